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
must be in folders that all machines share. Loads no encoder itself: `embed.py` does, also in the worker.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
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
from citeweave.core.ragged import Longs, Ragged
from citeweave.corpus.corpus import Corpus
from citeweave.encoders.batches import NOT_SAVED, OUT_OF_MEMORY, SavedBatches
from citeweave.encoders.encoder import Encoder
from citeweave.encoders.tokens import TokenStore
from citeweave.vectors import sentence_vectors, vectors
from citeweave.vectors.sentence_vectors import SentenceVectors, SentenceVectorsWriter
from citeweave.vectors.vectors import Vectors, VectorsWriter

Arrays = dict[str, NDArray[Any]]
"""The arrays of a shard, by name."""

NO_TEXT = "no text, or a vector of zeros"
WORKER = "citeweave.encoders.embed:make_shard_worker"


@dataclass(frozen=True, slots=True)
class ShardMaker:
    """Makes the arrays of a shard on one device: reads rows, then encodes them."""

    read: Callable[[int, int], list[Any]]
    """Reads rows start to stop, a block of them; runs in its own thread, one shard ahead."""

    encode: Callable[[list[Any], Reporter, SavedBatches], Arrays]
    """Encodes the rows that were read; batches are saved by time."""

    block: int
    """Rows that are read at a time."""

    def blocks(self, start: int, stop: int) -> Iterator[list[Any]]:
        """Yield the rows of a shard, from start to stop, block by block."""
        for at in range(start, stop, self.block):
            yield self.read(at, min(at + self.block, stop))


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
    save_every: float = SAVE_EVERY,
    reporter: Reporter,
) -> None:
    """Make every missing shard; one that an earlier run had begun resumes after its last saved batch."""
    numbers = [number for number in range(_count_shards(total, size)) if not _path(work, number).exists()]
    missing = sum(min(size, total - number * size) for number in numbers)
    with reporter.task("embedding", total, "papers") as advance:
        advance(total - missing)
        if isinstance(makers, RemoteMaker):
            for number, content in makers.executor.make(makers.task, numbers) if numbers else ():
                write_atomically(_path(work, number), content)
                advance(min(size, total - number * size))
            return
        run = _ShardRun(work, total, size, save_every, reporter, advance, iter(numbers))
        if len(makers) == 1:
            with _threads_taking_turns():
                run.make_shards(makers[0])
            return
        with _threads_taking_turns(), ThreadPoolExecutor(len(makers)) as pool:
            futures = [pool.submit(run.make_shards, maker) for maker in makers]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                run.stop.set()  # all are done, one failed, or the user interrupted
        _raise_first(futures)


@contextmanager
def _threads_taking_turns() -> Iterator[None]:
    """Let a waiting thread run after 0.1 ms, not 5: one that launches a GPU's kernels waits before each of them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


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


def make_shard(maker: ShardMaker, read: list[Any], inner: ShardReporter, saved: SavedBatches = NOT_SAVED) -> Arrays:
    """Encode the rows of a shard; `halved` among its arrays is how often memory ran out."""
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


@dataclass
class _ShardRun:
    """The state that the threads of one `fill_shards` share."""

    work: Path
    total: int
    size: int
    save_every: float
    reporter: Reporter
    advance: Advance
    numbers: Iterator[int]
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def make_shards(self, maker: ShardMaker) -> None:
        """Make the shards of an embedding run until none is left; the next one is read while one is encoded."""
        with ThreadPoolExecutor(1) as reading:
            try:
                ahead = reading.submit(self._read_next, maker)
                while (shard := ahead.result()) is not None:
                    ahead = reading.submit(self._read_next, maker)
                    self._make(maker, *shard)
            except BaseException:
                self.stop.set()  # also for the thread that reads ahead
                raise

    def _read_next(self, maker: ShardMaker) -> tuple[int, list[Any]] | None:
        """Read the next shard that no thread has taken, and return its number and rows; None where none is left."""
        with self.lock:
            number = next(self.numbers, None)
        if number is None:
            return None
        read: list[Any] = []
        for block in maker.blocks(number * self.size, min((number + 1) * self.size, self.total)):
            if self.stop.is_set():
                raise Stopped
            read += block
        return number, read

    def _advance(self, amount: int) -> None:
        if self.stop.is_set():
            raise Stopped
        with self.lock:
            self.advance(amount)

    def _make(self, maker: ShardMaker, number: int, read: list[Any]) -> None:
        inner = ShardReporter(self._advance, self.reporter)
        saved = SavedBatches(_path(self.work, number).with_suffix(""), every=self.save_every)
        arrays = make_shard(maker, read, inner, saved)
        write_atomically(_path(self.work, number), shard_bytes(arrays, number))
        saved.remove()
        self._advance(len(read) - inner.done)


class EncodingWorker:
    """A remote worker that makes the bytes of a shard by its number; one thread may read while the other encodes."""

    overlaps = True

    def __init__(self, maker: ShardMaker, total: int, size: int) -> None:
        self._maker, self._total, self._size = maker, total, size
        self._reading, self._computing = threading.Lock(), threading.Lock()

    def __call__(self, number: int) -> bytes:
        start = number * self._size
        with self._reading:
            blocks = self._maker.blocks(start, min(start + self._size, self._total))
            read = [one for block in blocks for one in block]
        with self._computing:
            return shard_bytes(make_shard(self._maker, read, ShardReporter(lambda amount: None, QUIET)), number)


class ShardReporter(Reporter):
    """Forwards the progress and messages of one shard to the reporter of the run."""

    def __init__(self, onward: Advance, outer: Reporter) -> None:
        super().__init__(quiet=outer.quiet, stream=outer.stream)
        self.onward, self.outer, self.done, self.halved = onward, outer, 0, 0

    def say(self, message: str) -> None:
        self.halved += message.startswith(OUT_OF_MEMORY)
        self.outer.say(message)

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

    metadata: dict[str, Any]
    """Model, revision, text recipe and source of the vectors; for sentences also how the model is best read."""

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


Shards = Sequence[ShardMaker] | RemoteMaker | FinishedShards
"""What makes the shards of a folder, or where they are."""


def drop_empty_rows(matrix: NDArray[np.float32], dtype: str) -> Arrays:
    """Return the arrays of a shard with one vector per paper, (papers, dimension), without rows of zeros."""
    filled = np.flatnonzero(matrix.any(axis=1))  # (papers with a vector,)
    with np.errstate(over="ignore"):  # numbers that are not finite are counted when they are written
        return {"rows": filled, "matrix": matrix[filled].astype(dtype)}


def ragged_rows(matrix: NDArray[np.float32], offsets: Longs, numbers: NDArray[Any], lost: int, dtype: str) -> Arrays:
    """Return the arrays of a shard with several vectors per paper, (vectors, dimension), and the number of each."""
    with np.errstate(over="ignore"):  # likewise
        return {"matrix": matrix.astype(dtype), "offsets": offsets, "numbers": numbers, "lost": np.array([lost])}


def write_vectors(folder: Path, plan: ShardPlan, makers: Shards, *, reporter: Reporter = QUIET) -> Vectors:
    """Write a folder with one vector per paper from shards with `rows` and `matrix`."""
    with new_artifact(folder, vectors.KIND, vectors.VERSION, plan.recipe, overwrite=plan.overwrite) as artifact:
        shards = _shard_arrays(artifact, plan, makers, reporter)
        with closing(VectorsWriter(folder, artifact, plan.dtype, plan.metadata)) as writer:
            for start, arrays in shards:
                names = plan.ids[start : start + plan.shard]
                rows = arrays["rows"].tolist()
                writer.tally.reject("vectors", NO_TEXT, len(names) - len(rows))
                writer.append([names[row] for row in rows], arrays["matrix"])
            return writer.finish()


def write_ragged_vectors(
    folder: Path, plan: ShardPlan, makers: Shards, *, reporter: Reporter = QUIET
) -> SentenceVectors:
    """Write a folder with several vectors per paper from shards with `offsets`, `numbers`, `matrix` and `lost`."""
    kind, version = sentence_vectors.KIND, sentence_vectors.VERSION
    with new_artifact(folder, kind, version, plan.recipe, overwrite=plan.overwrite) as artifact:
        shards = _shard_arrays(artifact, plan, makers, reporter)
        with closing(SentenceVectorsWriter(folder, artifact, plan.dtype, plan.metadata)) as writer:
            for start, arrays in shards:
                names, parts = plan.ids[start : start + plan.shard], Ragged(arrays["offsets"])
                rows = np.flatnonzero(parts.lengths()).tolist()
                writer.tally.reject("papers", NO_TEXT, len(names) - len(rows))
                writer.append(
                    [names[row] for row in rows],
                    [arrays["matrix"][parts.span(row)] for row in rows],
                    [arrays["numbers"][parts.span(row)] for row in rows],
                )
                writer.tally.note("parts without a vector", int(arrays["lost"][0]))
            return writer.finish()


def _shard_arrays(
    artifact: ArtifactWriter, plan: ShardPlan, makers: Shards, reporter: Reporter
) -> Iterator[tuple[int, Arrays]]:
    """Make the missing shards, and return the first row and the arrays of each; the artifact counts lacks of memory."""
    if isinstance(makers, FinishedShards):
        work, prefix = makers.work, f"{makers.name}."
    else:
        work, prefix = artifact.scratch_folder(f"shards-{plan.shard}{plan.batches}"), ""
        fill_shards(work, len(plan.ids), plan.shard, makers, save_every=plan.save_every, reporter=reporter)

    def read() -> Iterator[tuple[int, Arrays]]:
        for start, arrays in read_shards(work, len(plan.ids), plan.shard):
            if halved := int(arrays["halved"][0]):
                artifact.facts["out_of_memory"] = artifact.facts.get("out_of_memory", 0) + halved
            yield start, {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}

    return read()


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
