"""Work in shards: each one's arrays are kept in a file as soon as they are made, so that a later run goes on.

A shard may take hours on a slow machine, so its batches are saved by time too (`encoders/saved_batches.py`).

    fill_shards(work, total=200_000, size=16_384, makers=[maker], reporter=reporter)
    fill_shards(work, total=200_000, size=16_384, makers=Hired(crew, work_of_it), reporter=reporter)
    for start, shard in read_shards(work, 200_000, 16_384): ...

The next shard is read while one is encoded. Several makers, one a device, take shards in turn; which of them made a
shard does not show. A crew (`citeweave.crew`) makes them elsewhere; they are saved here, in the same files. Knows
nothing of papers or vectors.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.arrays import read_kept
from citeweave.crew import Crew, Work
from citeweave.encoders.backing_off import OUT_OF_MEMORY
from citeweave.encoders.saved_batches import SavedBatches
from citeweave.errors import ArtefactError
from citeweave.files import write_whole
from citeweave.progress import SAVE_EVERY, Advance, Reporter

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

    crew: Crew
    work: Work
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
            raise ArtefactError(
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
