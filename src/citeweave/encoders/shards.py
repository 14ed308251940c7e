"""Work in shards: each one's arrays are kept in a file as soon as they are made, so that a later run goes on.

A shard may take hours on a slow machine, so its batches are saved by time too (`encoders/batches.py`).

    fill_shards(work, total=200_000, size=16_384, makers=[maker], reporter=reporter)
    fill_shards(work, total=200_000, size=16_384, makers=Hired(crew, work_of_it), reporter=reporter)
    for start, shard in read_shards(work, 200_000, 16_384): ...

The next shard is read while one is encoded. Several makers, one a device, take shards in turn; which of them made a
shard does not show. A crew (`citeweave.core.executor`) makes them elsewhere; they are saved here, in the same files. Knows
nothing of papers or vectors.

From shards to a folder of vectors: one row a paper, or several.

    plan = Plan(ids, facts, recipe, "float32", shard=16384)
    write_vectors(Path("vectors"), plan, makers, reporter=reporter)
    write_vectors(Path("vectors"), plan, FinishedShards(work, "papers"))

Shards stay in the partial folder until all are there; then the folder is put together, paper after paper. For that
time the vectors are on the disk twice. Does not encode: a `Maker` does.

Embedding by a crew: what its workers must know to make the very shards that this process would make.

    elsewhere = Elsewhere(crew, Loading("minilm"))
    embed_papers(corpus, encoder, "vectors", EmbeddingOptions(elsewhere=elsewhere))

The corpus, the model, a file of full texts and a token store are opened by each worker, by the path that they have
here: they must lie in folders that all machines share. Loads nothing itself; `remote.py` does, in the worker.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, new_artifact
from citeweave.core.columns import read_kept
from citeweave.core.errors import ArtifactError
from citeweave.core.executor import Executor, ShardTask
from citeweave.core.files import write_whole
from citeweave.core.progress import QUIET, SAVE_EVERY, Advance, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.encoders.batches import OUT_OF_MEMORY, SavedBatches
from citeweave.encoders.encoder import Encoder
from citeweave.encoders.tokens import TokenStore
from citeweave.vectors import sentence_vectors, vectors
from citeweave.vectors.sentence_vectors import SentenceVectors, SentenceVectorsWriter
from citeweave.vectors.vectors import Vectors, VectorsWriter

Arrays = dict[str, NDArray[Any]]
"""What a shard becomes, by name."""


@dataclass(frozen=True, slots=True)
class Maker:
    """One device's way from rows to arrays."""

    read: Callable[[int, int], Iterator[list[Any]]]
    """Rows start to stop, block by block; runs in a thread of its own, one shard ahead."""

    encode: Callable[[list[Any], Reporter, SavedBatches], Arrays]
    """What was read -> arrays; batches are saved by time."""


@dataclass(frozen=True, slots=True)
class Hired:
    """Makers that are not in this process."""

    crew: Executor
    work: ShardTask
    """`made_shard` of a maker is what its function has to give."""


class Stopped(BaseException):
    """Another thread failed, or the user interrupted: this one ends without a word."""


def fill_shards(
    work: Path,
    total: int,
    size: int,
    makers: Sequence[Maker] | Hired,
    *,
    label: str = "embedding",
    save_every: float = SAVE_EVERY,
    reporter: Reporter,
) -> None:
    """Make every shard that is not there yet; one that an earlier run had begun goes on after its last saved batch."""
    numbers = [number for number in range(count_shards(total, size)) if not _path(work, number).exists()]
    missing = sum(min(size, total - number * size) for number in numbers)
    with reporter.task(label, total, "papers") as advance:
        advance(total - missing)
        if isinstance(makers, Hired):
            for number, made in makers.crew.make(makers.work, numbers) if numbers else ():
                write_whole(_path(work, number), made)
                advance(min(size, total - number * size))
            return
        run = _Run(work, total, size, iter(numbers), advance, reporter, save_every)
        if len(makers) == 1:
            run.work_off(makers[0])
            return
        with ThreadPoolExecutor(len(makers)) as pool:
            futures = [pool.submit(run.work_off, maker) for maker in makers]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                run.stop.set()  # all are done, or one has failed, or the user interrupted
        _raise_first(futures)


def read_shards(work: Path, total: int, size: int) -> Iterator[tuple[int, Arrays]]:
    """First row and arrays of every shard, in order."""
    for number in range(count_shards(total, size)):
        path = _path(work, number)
        arrays = read_kept(path, ["halved"])
        found = arrays.pop("shard", np.array([number]))  # the oldest do not say which they are
        if found.tolist() != [number]:
            raise ArtifactError(
                f"{path} holds another shard ({found.tolist()}); remove it and run the same command again"
            )
        yield number * size, arrays


def made_shard(maker: Maker, read: list[Any], inner: ShardReporter, saved: SavedBatches | None = None) -> Arrays:
    """What was read as arrays, with how often memory ran out."""
    saved = saved or SavedBatches()
    arrays = maker.encode(read, inner, saved)
    arrays["halved"] = np.array([inner.halved + saved.halved])
    return arrays


def shard_bytes(arrays: Arrays, number: int) -> bytes:
    """A shard as its file holds it, with its number: files that were swapped are noticed."""
    file = io.BytesIO()
    np.savez(file, **arrays, shard=np.array([number]))  # type: ignore[arg-type]
    return file.getvalue()


def count_shards(total: int, size: int) -> int:
    return -(-total // size)


class _Run:
    """What the threads of one call share."""

    def __init__(
        self,
        work: Path,
        total: int,
        size: int,
        numbers: Iterator[int],
        advance: Advance,
        reporter: Reporter,
        save_every: float,
    ) -> None:
        self.save_every = save_every
        self.work, self.total, self.size, self.reporter = work, total, size, reporter
        self.stop = threading.Event()
        self._numbers, self._advance, self._lock = numbers, advance, threading.Lock()

    def next_number(self) -> int | None:
        with self._lock:
            return next(self._numbers, None)

    def advance(self, amount: int) -> None:
        if self.stop.is_set():
            raise Stopped
        with self._lock:
            self._advance(amount)

    def work_off(self, maker: Maker) -> None:
        """Take shards until there are none; the next one is read while one is encoded."""
        with ThreadPoolExecutor(1) as reading:
            try:
                number = self.next_number()
                ahead = None if number is None else reading.submit(self._read, maker, number)
                while ahead is not None and number is not None:
                    read, now = ahead.result(), number
                    number = self.next_number()
                    ahead = None if number is None else reading.submit(self._read, maker, number)
                    self._make(maker, now, read)
            except BaseException:
                self.stop.set()  # also for the thread that reads ahead
                raise

    def _read(self, maker: Maker, number: int) -> list[Any]:
        start = number * self.size
        read: list[Any] = []
        for block in maker.read(start, min(start + self.size, self.total)):
            if self.stop.is_set():
                raise Stopped
            read += block
        return read

    def _make(self, maker: Maker, number: int, read: list[Any]) -> None:
        inner = ShardReporter(self.advance, self.reporter)
        saved = SavedBatches(_path(self.work, number).with_suffix(""), every=self.save_every)
        arrays = made_shard(maker, read, inner, saved)
        write_whole(_path(self.work, number), shard_bytes(arrays, number))
        saved.remove()
        self.advance(len(read) - inner.done)


class ShardReporter(Reporter):
    """Hands the progress and the remarks of one shard on to the task of the whole."""

    def __init__(self, onward: Advance, outer: Reporter) -> None:
        super().__init__(quiet=outer.quiet, stream=outer.stream)
        self.onward, self.done, self.halved = onward, 0, 0

    def say(self, message: str) -> None:
        self.halved += message.startswith(OUT_OF_MEMORY)
        Reporter.say(self, message)

    @contextmanager
    def task(self, label: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        yield self._advance

    def _advance(self, amount: int) -> None:
        self.done += amount
        self.onward(amount)


def _raise_first(futures: Sequence[Future[None]]) -> None:
    """The error that stopped the others, if there is one."""
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in [*(error for error in errors if not isinstance(error, Stopped)), *errors]:
        raise error


def _path(work: Path, number: int) -> Path:
    return work / f"{number:08d}.npz"


# From shards to a folder of vectors: one row a paper, or several.

NO_TEXT = "no text, or a vector of zeros"


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Which papers become which folder."""

    ids: Sequence[str]
    """Asked for slices only."""

    facts: dict[str, str]
    """Model, revision, text recipe and source of the vectors."""

    recipe: dict[str, Any]
    """All that decides the result."""

    dtype: str
    shard: int
    """Papers of a shard."""

    batches: str = ""
    """What else decides the batches: shards of another plan are not taken over."""

    overwrite: bool = False
    save_every: float = SAVE_EVERY
    """Seconds of work after which the batches of a shard are saved."""


@dataclass(frozen=True, slots=True)
class FinishedShards:
    """Shards that already exist and hold the arrays of several folders: `papers.matrix`, `sentences.matrix`, ..."""

    work: Path
    name: str
    """The part of the arrays' names before the dot."""

    def read(self, total: int, size: int) -> Iterator[tuple[int, Arrays]]:
        """First row and arrays of every shard, in order; the arrays of the other folders are left out."""
        before = f"{self.name}."
        for start, arrays in read_shards(self.work, total, size):
            own = {name.removeprefix(before): array for name, array in arrays.items() if name.startswith(before)}
            yield start, {**own, "halved": arrays["halved"]}


Shards = Sequence[Maker] | Hired | FinishedShards
"""Who makes the shards of a folder, or where they are."""


def kept_rows(found: NDArray[np.float32], dtype: str) -> Arrays:
    """Shard of one vector a paper, (papers, dimension): rows of zeros are left out."""
    filled = np.flatnonzero(found.any(axis=1))  # (papers with a vector,)
    with np.errstate(over="ignore"):  # what is not finite is counted when it is written
        return {"rows": filled, "matrix": found[filled].astype(dtype)}


def write_vectors(folder: Path, plan: ShardPlan, makers: Shards, *, reporter: Reporter = QUIET) -> Vectors:
    """One vector a paper; `makers` give `rows` and `matrix`."""
    with new_artifact(folder, vectors.KIND, vectors.VERSION, plan.recipe, overwrite=plan.overwrite) as artifact:
        shards = _filled(artifact, plan, makers, reporter)
        writer = VectorsWriter(folder, artifact, plan.dtype, plan.facts)
        try:
            for start, arrays in shards:
                names = plan.ids[start : start + plan.shard]
                rows = arrays["rows"].tolist()
                writer.tally.reject("vectors", NO_TEXT, len(names) - len(rows))
                writer.append([names[row] for row in rows], arrays["matrix"])
                _count(artifact, arrays)
            return writer.finish()
        finally:
            writer.close()


def write_ragged(folder: Path, plan: ShardPlan, makers: Shards, *, reporter: Reporter = QUIET) -> SentenceVectors:
    """Several vectors a paper; `makers` give `offsets`, `numbers`, `matrix` and `lost`."""
    kind, version = sentence_vectors.KIND, sentence_vectors.VERSION
    with new_artifact(folder, kind, version, plan.recipe, overwrite=plan.overwrite) as artifact:
        shards = _filled(artifact, plan, makers, reporter)
        writer = SentenceVectorsWriter(folder, artifact, plan.dtype, plan.facts)
        try:
            for start, arrays in shards:
                names, cuts = plan.ids[start : start + plan.shard], arrays["offsets"]
                rows = np.flatnonzero(np.diff(cuts)).tolist()
                writer.tally.reject("papers", NO_TEXT, len(names) - len(rows))
                writer.append(
                    [names[row] for row in rows],
                    [arrays["matrix"][cuts[row] : cuts[row + 1]] for row in rows],
                    [arrays["numbers"][cuts[row] : cuts[row + 1]] for row in rows],
                )
                writer.tally.note("parts without a vector", int(arrays["lost"][0]))
                _count(artifact, arrays)
            return writer.finish()
        finally:
            writer.close()


def _filled(
    artifact: ArtifactWriter, plan: ShardPlan, makers: Shards, reporter: Reporter
) -> Iterator[tuple[int, Arrays]]:
    if isinstance(makers, FinishedShards):
        return makers.read(len(plan.ids), plan.shard)
    work = artifact.work(f"shards-{plan.shard}{plan.batches}")
    fill_shards(work, len(plan.ids), plan.shard, makers, save_every=plan.save_every, reporter=reporter)
    return read_shards(work, len(plan.ids), plan.shard)


def _count(artifact: ArtifactWriter, arrays: Arrays) -> None:
    if halved := int(arrays["halved"][0]):
        artifact.facts["out_of_memory"] = artifact.facts.get("out_of_memory", 0) + halved


# Embedding by a crew: what its workers must know to make the very shards that this process would make.

MAKER = "citeweave.encoders.remote_shards:embed_maker"


@dataclass(frozen=True, slots=True)
class Loading:
    """How a worker loads its encoder; as `load_aspect_encoder` takes it."""

    model: str
    aspect: str = ""
    device: str = "cpu"
    runtime: str = "torch"
    compiled: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    """pooling, max_tokens, dtype, batch_tokens: JSON values."""

    def __post_init__(self) -> None:
        if Path(self.model).exists():  # a folder, and workers have other working folders
            object.__setattr__(self, "model", str(Path(self.model).absolute()))


@dataclass(frozen=True, slots=True)
class RemoteShards:
    """Who makes the shards, with which encoder."""

    crew: Executor
    loading: Loading

    def hire(self, corpus: Corpus, encoder: Encoder, kind: str, how: Mapping[str, Any]) -> Hired:
        """The work of one embedding; `kind` is papers, sentences or chunks, `how` what its maker asks beside."""
        given = {
            "corpus": {"folder": str(corpus.folder.absolute()), "hash": corpus.hash},
            "loading": asdict(self.loading) | {"settings": dict(self.loading.settings)},
            "revision": encoder.revision,
            "kind": kind,
            "how": dict(how),
            "beside": fingerprints(how),
        }
        return Hired(self.crew, ShardTask(MAKER, given, label="embedding", gpu=self.loading.device.startswith("cuda")))


def fingerprints(how: Mapping[str, Any]) -> dict[str, str]:
    """What is read beside corpus and model, by path: the hash of a token store, the bytes of a file of full texts."""
    found = {}
    if how.get("tokens"):
        store = TokenStore.open(how["tokens"])
        found[how["tokens"]] = store.manifest.hash if store.manifest else ""
    if how.get("full_text"):
        found[how["full_text"]] = f"{Path(how['full_text']).stat().st_size} bytes"
    return found
