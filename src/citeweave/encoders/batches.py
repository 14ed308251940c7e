"""Batches of texts by length within a token budget; results are saved by time, and halved batches retry on low memory.

    >>> [batch.tolist() for batch in batches(np.array([3, 9, 4, 4]), budget=12)]
    [[1], [2, 3, 0]]

A batch costs its number of texts times its longest text, so the budget bounds memory. The longest come first, so that a lack
of memory shows at once; then the budget is halved and the rest is planned again. A single text that does not fit is an
error. Out of memory is whatever torch, NumPy or Python report as such.

    run_batches(lengths, 65536, encode)                 encode(rows) for every batch; no text is left out

    saved = SavedBatches(work / "00000003")
    run_batches(lengths, 2048, encode, results=BatchResults([vectors], lambda rows: [rows]), saved=saved)
    saved.remove()                                      once the complete result is on the disk

    00000003.part-0-0.npz      rows of some texts in the first call of `run_batches`, and their results
    00000003.part-0-1.npz      the next ones, half a minute of work later

The clock decides when results are saved, never which texts share a batch, so a resumed run has the same bytes. Without a
folder nothing is saved. Does not see texts or tokens, only their numbers.
"""

from __future__ import annotations

import gc
import io
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import read_saved_arrays
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.files import write_atomically
from citeweave.core.progress import QUIET, SAVE_EVERY, Reporter

Rows = NDArray[np.int64]
Encode = Callable[[Rows], None]

OUT_OF_MEMORY = "out of memory"
"""The beginning of the message about a halved budget."""


def batches(lengths: NDArray[np.int64], budget: int) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of each batch of texts; a text longer than the budget is alone, one without tokens is in none."""
    order = np.argsort(-lengths, kind="stable")  # (texts,)
    order = order[lengths[order] > 0]
    start = 0
    while start < len(order):
        count = max(1, budget // int(lengths[order[start]]))
        yield order[start : start + count]
        start += count


@dataclass(frozen=True, slots=True)
class BatchResults:
    """The arrays that batches of texts fill with their results."""

    arrays: Sequence[NDArray[Any]]
    places: Callable[[Rows], Sequence[Rows]]
    """Rows of texts -> rows of each array that hold their results."""

    done: Callable[[Rows], None] = lambda rows: None
    """Called with the rows of every batch, whether it was computed or restored."""

    collect: Callable[[], None] = lambda: None
    """Copy all results into the arrays; some may still be on a device."""


class SavedBatches:
    """The saved batches of texts of one piece of work, such as a shard; calls of `run_batches` follow each other."""

    def __init__(
        self,
        stem: Path | None = None,
        *,
        every: float = SAVE_EVERY,
        clock: Callable[[], float] = time.monotonic,
        save_last: bool = False,
    ) -> None:
        self.stem, self.every, self.clock, self.save_last = stem, every, clock, save_last
        """`save_last`: also save the last batches, because the caller does not write the complete result."""

        self.halved = 0
        """How often memory ran out before the interruption."""

        self._parts = itertools.count()

    def next_part(self, results: BatchResults | None) -> SavedPart:
        """Return the saved part of the next call of `run_batches`."""
        return SavedPart(self, next(self._parts), results)

    def path(self, part: int, number: int) -> Path:
        assert self.stem is not None
        return self.stem.with_name(f"{self.stem.name}.part-{part}-{number}.npz")

    def remove(self, part: int = 0, number: int = 0) -> None:
        """Remove the saved batches from this file on, once the complete result is written."""
        for path in [] if self.stem is None else self.stem.parent.glob(f"{self.stem.name}.part-*-*.npz"):
            if _number_of(path) >= (part, number):
                path.unlink(missing_ok=True)


NOT_SAVED = SavedBatches()


class SavedPart:
    """The saved batches of one call of `run_batches`: the rows that are done, and those not saved yet."""

    def __init__(self, saved: SavedBatches, part: int, results: BatchResults | None) -> None:
        self._saved, self._part, self._results = saved, part, results
        self._saves = results is not None and saved.stem is not None
        self._files, self._unsaved, self._last = 0, list[Rows](), saved.clock()

    def restore(self, texts: int, budget: int) -> tuple[Rows, int, int]:
        """Fill the arrays from saved batches of texts; return remaining rows, budget and how often it was halved."""
        is_left, halved = np.ones(texts, bool), 0
        while self._results and self._saves and (path := self._saved.path(self._part, self._files)).exists():
            rows, budget, halved = self._read(path, is_left, self._results)
            is_left[rows] = False
            self._results.done(rows)
            self._files += 1
        if self._saves:
            self._saved.remove(self._part, self._files)  # after one that was removed because it was damaged
        self._saved.halved += halved
        return np.flatnonzero(is_left), budget, halved

    def add(self, rows: Rows, budget: int, halved: int) -> None:
        """Note that one of the batches is encoded, and save the batches so far if it is time."""
        if not self._saves:
            return
        self._unsaved.append(rows)
        if self._saved.clock() - self._last >= self._saved.every:
            self.save(budget, halved)

    def finish(self, budget: int, halved: int) -> None:
        """Collect the results when all batches are done, and save the last ones if wanted."""
        if self._results is not None:
            self._results.collect()
        if self._saved.save_last:
            self.save(budget, halved)

    def save(self, budget: int, halved: int) -> None:
        """Save the vectors of those batches that are encoded but not saved yet."""
        if self._results is None or not self._unsaved:  # without a folder nothing is recorded
            return
        self._results.collect()
        rows, path = np.concatenate(self._unsaved), self._saved.path(self._part, self._files)
        filled = zip(self._results.arrays, self._results.places(rows), strict=True)
        own = {f"array{number}": array[places] for number, (array, places) in enumerate(filled)}
        file = io.BytesIO()
        np.savez(file, rows=rows, state=np.array([budget, halved]), name=_name(path), **own)  # type: ignore[arg-type]
        write_atomically(path, file.getvalue())
        self._unsaved = []  # first: the user may interrupt here, and nothing must be saved twice
        self._files, self._last = self._files + 1, self._saved.clock()

    def _read(self, path: Path, is_left: NDArray[np.bool_], results: BatchResults) -> tuple[Rows, int, int]:
        names = [f"array{number}" for number in range(len(results.arrays))]
        arrays = read_saved_arrays(path, ["rows", "state", "name", *names])
        try:
            rows, (budget, halved) = arrays["rows"], arrays["state"].tolist()
            if arrays["name"].tobytes() != _name(path).tobytes():
                raise ValueError("it is another one")
            if len(np.unique(rows)) != len(rows) or not is_left[rows].all() or budget < 1:
                raise ValueError("it names texts that it cannot hold")
            for array, places, name in zip(results.arrays, results.places(rows), names, strict=True):
                array[places] = arrays[name]
        except (ValueError, IndexError, TypeError) as error:
            raise ArtifactError(
                f"{path}, which an earlier run saved, is damaged ({error}); remove it and run the same command again"
            ) from None
        return rows, budget, halved


def _number_of(path: Path) -> tuple[int, int]:
    """Return the part and number in the name of a file of saved batches.

    >>> _number_of(Path("00000003.part-0-12.npz"))
    (0, 12)
    """
    part, number = path.stem.rpartition(".part-")[2].split("-")
    return int(part), int(number)


def _name(path: Path) -> NDArray[np.uint8]:
    """Return a file's name as bytes, saved inside it so that swapped files are detected."""
    return np.frombuffer(path.name.encode(), np.uint8)


def run_batches(
    lengths: NDArray[np.int64],
    budget: int,
    encode: Encode,
    *,
    results: BatchResults | None = None,
    saved: SavedBatches = NOT_SAVED,
    reporter: Reporter = QUIET,
) -> int:
    """Call `encode` with the rows of every batch of texts; return how often the budget was halved for lack of memory.

    With `results` the batches that `saved` holds are restored instead, and those that are done are saved by time.
    """
    part = saved.next_part(results)
    left, budget, halved = part.restore(len(lengths), budget)  # rows not yet read
    done = (lambda rows: None) if results is None else results.done
    while True:
        failed = _Attempt(lengths, budget, halved, part).run(left, encode, done)
        if failed is None:
            part.finish(budget, halved)
            return halved
        if failed.texts == 1:
            raise UserError(
                f"{OUT_OF_MEMORY}: a single text of {failed.longest:,} tokens does not fit; lower --max-tokens, "
                "use a lower --precision or another --device"
            )
        # a batch may be far below the budget, and half of the budget could give the same batch again
        lower = max(1, min(budget, failed.texts * failed.longest) // 2)
        reporter.say(
            f"{OUT_OF_MEMORY} with a batch of {failed.texts:,} texts; continuing with {lower:,} tokens per batch"
        )
        budget, left, halved = lower, failed.left, halved + 1
        _free_memory()


class _FailedBatch:
    """A batch that did not fit into memory, and the remaining rows, its own included."""

    def __init__(self, batch: NDArray[np.int64], left: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        self.texts, self.longest, self.left = len(batch), int(lengths[batch].max()), left


class _Attempt:
    """Runs batches by one budget, until one does not fit into memory."""

    def __init__(self, lengths: NDArray[np.int64], budget: int, halved: int, part: SavedPart) -> None:
        self.lengths, self.budget, self.halved, self.part = lengths, budget, halved, part

    def run(self, left: NDArray[np.int64], encode: Encode, done: Encode) -> _FailedBatch | None:
        try:
            return self._run(left, encode, done)
        except Exception:
            raise
        except BaseException:  # the user interrupted
            self.part.save(self.budget, self.halved)
            raise

    def _run(self, left: NDArray[np.int64], encode: Encode, done: Encode) -> _FailedBatch | None:
        plan = [left[rows] for rows in batches(self.lengths[left], self.budget)]
        for number, rows in enumerate(plan):
            try:
                encode(rows)
            except Exception as error:
                if not _is_out_of_memory(error):
                    raise
                return _FailedBatch(rows, np.concatenate(plan[number:]), self.lengths)
            self.part.add(rows, self.budget, self.halved)
            done(rows)
        return None


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that a smaller batch may fit; torch need not be installed.

    >>> _is_out_of_memory(MemoryError()), _is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    (True, True)
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("allocate memory" in text or "not enough memory" in text)


def _free_memory() -> None:
    """Free the memory of a failed batch; called once its error, which holds its tensors, is gone."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
