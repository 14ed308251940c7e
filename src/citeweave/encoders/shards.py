"""Shards of an embedding run: made locally or remotely, saved as soon as they are done, then joined to a folder.

    fill_shards(work, total=200_000, size=16_384, makers=[maker], reporter=reporter)
    fill_shards(work, total=200_000, size=16_384, makers=RemoteMaker(executor, task), reporter=reporter)
    for start, shard in read_shards(work, 200_000, 16_384): ...

    plan = ShardPlan(ids, metadata, recipe, "float32", shard=16384)
    write_vectors(Path("vectors"), plan, makers, reporter=reporter)
    write_vectors(Path("vectors"), plan, FinishedShards(work, "papers"))

    remote = RemoteShards(executor, EncoderSpec("minilm"))
    embed_papers(corpus, encoder, "vectors", EmbeddingOptions(remote=remote))

A shard may take hours on a slow machine, so its batches are saved by time too (`batches.py`). The next shard is read while
one is encoded. Several makers, one per device, take shards in turn; the result does not depend on which one made a shard.
Shards stay in the partial folder until all are done; then the folder is written, paper after paper, and the vectors are
on the disk twice for that time.

Remote workers open the corpus, the model, a file of full texts and a token store by the paths that they have here: these
must be in folders that all machines share. Loads no encoder itself: `remote_shards.py` does, in the worker.
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
from citeweave.core.columns import read_saved_arrays
from citeweave.core.errors import ArtifactError
from citeweave.core.executor import Executor, ShardTask
from citeweave.core.files import write_atomically
from citeweave.core.progress import QUIET, SAVE_EVERY, Advance, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.encoders.batches import OUT_OF_MEMORY, SavedBatches
from citeweave.encoders.encoder import Encoder
from citeweave.encoders.tokens import TokenStore
from citeweave.vectors import sentence_vectors, vectors
from citeweave.vectors.sentence_vectors import SentenceVectors, SentenceVectorsWriter
from citeweave.vectors.vectors import Vectors, VectorsWriter

Arrays = dict[str, NDArray[Any]]
"""The arrays of a shard, by name."""

NO_TEXT = "no text, or a vector of zeros"
WORKER = "citeweave.encoders.remote_shards:make_shard_worker"


@dataclass(frozen=True, slots=True)
class ShardMaker:
    """Makes the arrays of a shard on one device: reads rows, then encodes them."""

    read: Callable[[int, int], Iterator[list[Any]]]
    """Yields rows start to stop, block by block; runs in its own thread, one shard ahead."""

    encode: Callable[[list[Any], Reporter, SavedBatches], Arrays]
    """Encodes the rows that were read; batches are saved by time."""


@dataclass(frozen=True, slots=True)
class RemoteMaker:
    """Makes shards on the workers of an executor, in other processes."""

    executor: Executor
    task: ShardTask


class Stopped(BaseException):
    """Another thread that makes shards failed, or the user interrupted: this one ends silently."""


def fill_shards(
    work: Path,
    total: int,
    size: int,
    makers: Sequence[ShardMaker] | RemoteMaker,
    *,
    label: str = "embedding",
    save_every: float = SAVE_EVERY,
    reporter: Reporter,
) -> None:
    """Make every missing shard; one that an earlier run had begun resumes after its last saved batch."""
    numbers = [number for number in range(_count_shards(total, size)) if not _path(work, number).exists()]
    missing = sum(min(size, total - number * size) for number in numbers)
    with reporter.task(label, total, "papers") as advance:
        advance(total - missing)
        if isinstance(makers, RemoteMaker):
            for number, content in makers.executor.make(makers.task, numbers) if numbers else ():
                write_atomically(_path(work, number), content)
                advance(min(size, total - number * size))
            return
        run = _ShardRun(work, total, size, iter(numbers), advance, reporter, save_every)
        if len(makers) == 1:
            run.make_shards(makers[0])
            return
        with ThreadPoolExecutor(len(makers)) as pool:
            futures = [pool.submit(run.make_shards, maker) for maker in makers]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                run.stop.set()  # all are done, one failed, or the user interrupted
        _raise_first(futures)


def read_shards(work: Path, total: int, size: int) -> Iterator[tuple[int, Arrays]]:
    """Yield the first row and the arrays of every shard of an embedding run, in order."""
    for number in range(_count_shards(total, size)):
        path = _path(work, number)
        arrays = read_saved_arrays(path, ["halved"])
        stored = arrays.pop("shard", np.array([number]))  # the oldest files do not hold their number
        if stored.tolist() != [number]:
            raise ArtifactError(
                f"{path} holds another shard ({stored.tolist()}); remove it and run the same command again"
            )
        yield number * size, arrays


def make_shard(maker: ShardMaker, read: list[Any], inner: ShardReporter, saved: SavedBatches | None = None) -> Arrays:
    """Encode the rows of a shard; `halved` among its arrays is how often memory ran out."""
    saved = saved or SavedBatches()
    arrays = maker.encode(read, inner, saved)
    arrays["halved"] = np.array([inner.halved + saved.halved])
    return arrays


def shard_bytes(arrays: Arrays, number: int) -> bytes:
    """Return the bytes of a shard's file, with its number, so that swapped files are detected."""
    file = io.BytesIO()
    np.savez(file, **arrays, shard=np.array([number]))  # type: ignore[arg-type]
    return file.getvalue()


def _count_shards(total: int, size: int) -> int:
    return -(-total // size)


class _ShardRun:
    """The state that the threads of one `fill_shards` share."""

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

    def make_shards(self, maker: ShardMaker) -> None:
        """Make the shards of an embedding run until none is left; the next one is read while one is encoded."""
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

    def _read(self, maker: ShardMaker, number: int) -> list[Any]:
        start = number * self.size
        read: list[Any] = []
        for block in maker.read(start, min(start + self.size, self.total)):
            if self.stop.is_set():
                raise Stopped
            read += block
        return read

    def _make(self, maker: ShardMaker, number: int, read: list[Any]) -> None:
        inner = ShardReporter(self.advance, self.reporter)
        saved = SavedBatches(_path(self.work, number).with_suffix(""), every=self.save_every)
        arrays = make_shard(maker, read, inner, saved)
        write_atomically(_path(self.work, number), shard_bytes(arrays, number))
        saved.remove()
        self.advance(len(read) - inner.done)


class ShardReporter(Reporter):
    """Forwards the progress and messages of one shard to the reporter of the run."""

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
    """Raise the error that stopped the other threads, if there is one."""
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in [*(error for error in errors if not isinstance(error, Stopped)), *errors]:
        raise error


def _path(work: Path, number: int) -> Path:
    return work / f"{number:08d}.npz"


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The papers, metadata and recipe of a vectors folder that is made from shards."""

    ids: Sequence[str]
    """Only slices are read."""

    metadata: dict[str, str]
    """Model, revision, text recipe and source of the vectors."""

    recipe: dict[str, Any]
    """Everything that decides the result."""

    dtype: str
    shard: int
    """Papers per shard."""

    batches: str = ""
    """Settings that decide the batches: shards of other settings are not reused."""

    overwrite: bool = False
    save_every: float = SAVE_EVERY
    """Seconds of work after which the batches of a shard are saved."""


@dataclass(frozen=True, slots=True)
class FinishedShards:
    """Shards that already exist and hold the arrays of several folders: `papers.matrix`, `sentences.matrix`, ..."""

    work: Path
    name: str
    """The part of the arrays' names before the dot, such as `papers`."""

    def read(self, total: int, size: int) -> Iterator[tuple[int, Arrays]]:
        """Yield the first row and the arrays of every shard, without those of other folders."""
        before = f"{self.name}."
        for start, arrays in read_shards(self.work, total, size):
            own = {name.removeprefix(before): array for name, array in arrays.items() if name.startswith(before)}
            yield start, {**own, "halved": arrays["halved"]}


Shards = Sequence[ShardMaker] | RemoteMaker | FinishedShards
"""What makes the shards of a folder, or where they are."""


def drop_empty_rows(matrix: NDArray[np.float32], dtype: str) -> Arrays:
    """Return the arrays of a shard with one vector per paper, (papers, dimension), without rows of zeros."""
    filled = np.flatnonzero(matrix.any(axis=1))  # (papers with a vector,)
    with np.errstate(over="ignore"):  # numbers that are not finite are counted when they are written
        return {"rows": filled, "matrix": matrix[filled].astype(dtype)}


def write_vectors(folder: Path, plan: ShardPlan, makers: Shards, *, reporter: Reporter = QUIET) -> Vectors:
    """Write a folder with one vector per paper from shards with `rows` and `matrix`."""
    with new_artifact(folder, vectors.KIND, vectors.VERSION, plan.recipe, overwrite=plan.overwrite) as artifact:
        shards = _shard_arrays(artifact, plan, makers, reporter)
        writer = VectorsWriter(folder, artifact, plan.dtype, plan.metadata)
        try:
            for start, arrays in shards:
                names = plan.ids[start : start + plan.shard]
                rows = arrays["rows"].tolist()
                writer.tally.reject("vectors", NO_TEXT, len(names) - len(rows))
                writer.append([names[row] for row in rows], arrays["matrix"])
                _count_out_of_memory(artifact, arrays)
            return writer.finish()
        finally:
            writer.close()


def write_ragged_vectors(
    folder: Path, plan: ShardPlan, makers: Shards, *, reporter: Reporter = QUIET
) -> SentenceVectors:
    """Write a folder with several vectors per paper from shards with `offsets`, `numbers`, `matrix` and `lost`."""
    kind, version = sentence_vectors.KIND, sentence_vectors.VERSION
    with new_artifact(folder, kind, version, plan.recipe, overwrite=plan.overwrite) as artifact:
        shards = _shard_arrays(artifact, plan, makers, reporter)
        writer = SentenceVectorsWriter(folder, artifact, plan.dtype, plan.metadata)
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
                _count_out_of_memory(artifact, arrays)
            return writer.finish()
        finally:
            writer.close()


def _shard_arrays(
    artifact: ArtifactWriter, plan: ShardPlan, makers: Shards, reporter: Reporter
) -> Iterator[tuple[int, Arrays]]:
    if isinstance(makers, FinishedShards):
        return makers.read(len(plan.ids), plan.shard)
    work = artifact.scratch_folder(f"shards-{plan.shard}{plan.batches}")
    fill_shards(work, len(plan.ids), plan.shard, makers, save_every=plan.save_every, reporter=reporter)
    return read_shards(work, len(plan.ids), plan.shard)


def _count_out_of_memory(artifact: ArtifactWriter, arrays: Arrays) -> None:
    if halved := int(arrays["halved"][0]):
        artifact.facts["out_of_memory"] = artifact.facts.get("out_of_memory", 0) + halved


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """Which encoder a worker loads to make shards: the arguments of `load_aspect_encoder`."""

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
    """The executor whose workers embed the shards, and the encoder that they load."""

    executor: Executor
    encoder: EncoderSpec

    def make_task(self, corpus: Corpus, encoder: Encoder, kind: str, options: Mapping[str, Any]) -> RemoteMaker:
        """Return the maker of a run's shards; `kind` is papers, sentences or chunks, `options` what its shards need."""
        payload = {
            "corpus": {"folder": str(corpus.folder.absolute()), "hash": corpus.hash},
            "encoder": asdict(self.encoder) | {"settings": dict(self.encoder.settings)},
            "revision": encoder.revision,
            "kind": kind,
            "options": dict(options),
            "fingerprints": fingerprints(options),
        }
        on_gpu = self.encoder.device.startswith("cuda")
        return RemoteMaker(self.executor, ShardTask(WORKER, payload, label="embedding", gpu=on_gpu))


def fingerprints(options: Mapping[str, Any]) -> dict[str, str]:
    """Return by path what identifies inputs of shards: the token store's hash, the size of the file of full texts."""
    prints = {}
    if options.get("tokens"):
        store = TokenStore.open(options["tokens"])
        prints[options["tokens"]] = store.manifest.hash if store.manifest else ""
    if options.get("full_text"):
        prints[options["full_text"]] = f"{Path(options['full_text']).stat().st_size} bytes"
    return prints
