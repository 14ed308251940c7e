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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import read_saved_arrays
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.files import write_atomically
from citeweave.core.progress import QUIET, SAVE_EVERY, Reporter

if TYPE_CHECKING:
    from torch import Tensor

Rows = NDArray[np.int64]
Encode = Callable[[Rows], None]

OUT_OF_MEMORY = "out of memory"
"""The beginning of the message about a halved budget."""


def batches(lengths: Rows, budget: int) -> Iterator[Rows]:
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


AHEAD = 2
"""Batches that a device computes before the results of an earlier one are waited for."""


class ResultCopies:
    """Results of batches on their way from a device into an array, while the device computes the next batches."""

    def __init__(self, target: NDArray[np.float32]) -> None:
        self.target = target
        self._under_way: deque[tuple[Rows, Tensor, Any]] = deque()

    def add(self, places: Rows, batch: Tensor) -> None:
        """Start copying a batch to these rows of the array, and finish the copies of those before the last ones."""
        copy, copied = batch.to("cpu", non_blocking=True), None
        if batch.is_cuda:
            copied = sys.modules["torch"].cuda.Event()
            copied.record(sys.modules["torch"].cuda.current_stream(batch.device))
        self._under_way.append((places, copy, copied))
        self.collect(left=AHEAD)

    def collect(self, left: int = 0) -> None:
        """Finish copies, the oldest first, until no more than these are left."""
        while len(self._under_way) > left:
            places, copy, copied = self._under_way.popleft()
            if copied is not None:
                copied.synchronize()
            self.target[places] = copy.numpy()


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

    def next_part(self, results: BatchResults) -> SavedPart:
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
NO_RESULTS = BatchResults((), lambda rows: ())
"""For callers that keep the results themselves: nothing is saved."""


class SavedPart:
    """The saved batches of one call of `run_batches`: the rows that are done, and those not saved yet."""

    def __init__(self, saved: SavedBatches, part: int, results: BatchResults) -> None:
        self._saved, self._part, self._results = saved, part, results
        self._saves = results is not NO_RESULTS and saved.stem is not None
        self._files, self._unsaved, self._last = 0, list[Rows](), saved.clock()

    def restore(self, texts: int, budget: int) -> tuple[Rows, int, int]:
        """Fill the arrays from saved batches of texts; return remaining rows, budget and how often it was halved."""
        is_left, halved = np.ones(texts, bool), 0
        while self._saves and (path := self._saved.path(self._part, self._files)).exists():
            rows, budget, halved = self._read(path, is_left)
            is_left[rows] = False
            self._results.done(rows)
            self._files += 1
        if self._saves:
            self._saved.remove(self._part, self._files)  # after one that was removed because it was damaged
        self._saved.halved += halved
        return np.flatnonzero(is_left), budget, halved

    def add(self, rows: Rows, budget: int, halved: int) -> None:
        """Note that one of the batches is encoded, and save the batches so far if it is time."""
        if self._saves:
            self._unsaved.append(rows)
            if self._saved.clock() - self._last >= self._saved.every:
                self.save(budget, halved)
        self._results.done(rows)

    def finish(self, budget: int, halved: int) -> None:
        """Collect the results when all batches are done, and save the last ones if wanted."""
        self._results.collect()
        if self._saved.save_last:
            self.save(budget, halved)

    def save(self, budget: int, halved: int) -> None:
        """Save the vectors of those batches that are encoded but not saved yet."""
        if not self._unsaved:  # without a folder nothing is recorded
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

    def _read(self, path: Path, is_left: NDArray[np.bool_]) -> tuple[Rows, int, int]:
        results = self._results
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
    results: BatchResults = NO_RESULTS,
    saved: SavedBatches = NOT_SAVED,
    reporter: Reporter = QUIET,
) -> int:
    """Call `encode` with the rows of every batch of texts; return how often the budget was halved for lack of memory.

    With `results` the batches that `saved` holds are restored instead, and those that are done are saved by time.
    """
    part = saved.next_part(results)
    left, budget, halved = part.restore(len(lengths), budget)  # rows not yet read
    while True:
        plan = [left[rows] for rows in batches(lengths[left], budget)]
        try:
            done = _encode_until_full(plan, encode, partial(part.add, budget=budget, halved=halved))
        except BaseException as error:
            if not isinstance(error, Exception):  # the user interrupted
                part.save(budget, halved)
            raise
        if done == len(plan):
            part.finish(budget, halved)
            return halved
        texts, longest = len(plan[done]), int(lengths[plan[done]].max())
        if texts == 1:
            raise UserError(
                f"{OUT_OF_MEMORY}: a single text of {longest:,} tokens does not fit; lower --max-tokens, "
                "use a lower --precision or another --device"
            )
        # a batch may be far below the budget, and half of the budget could give the same batch again
        budget, left, halved = max(1, min(budget, texts * longest) // 2), np.concatenate(plan[done:]), halved + 1
        reporter.say(f"{OUT_OF_MEMORY} with a batch of {texts:,} texts; continuing with {budget:,} tokens per batch")
        _free_memory()


def _encode_until_full(plan: Sequence[Rows], encode: Encode, add: Encode) -> int:
    """Encode the batches of a plan and add each; return how many fitted into memory."""
    for number, rows in enumerate(plan):
        try:
            encode(rows)
        except Exception as error:
            if not _is_out_of_memory(error):
                raise
            return number
        add(rows)
    return len(plan)


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
