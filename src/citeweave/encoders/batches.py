"""Which texts are read together: the longest first, alike in length, within a budget of tokens.

    >>> [batch.tolist() for batch in batches(np.array([3, 9, 4, 4]), budget=12)]
    [[1], [2, 3, 0]]

A batch costs its number of texts times its longest text, so that memory is set by the budget. The longest come first:
what does not fit into memory shows at once. Knows nothing of texts or tokens but their number.

Results of batches, saved by time: work that was interrupted resumes after the last batch that was saved.

    saved = SavedBatches(work / "00000003")
    run_batches(lengths, 2048, encode, results=Results([vectors], lambda rows: [rows]), saved=saved)
    saved.remove()                                      once the complete result is on the disk

    00000003.part-0-0.npz      rows of some texts in the first call of `run_batches`, and their results
    00000003.part-0-1.npz      the next ones, half a minute of work later

The clock decides what is saved when, never which texts share a batch, so the resumed result has the same bytes. Without a
folder nothing is saved.

Batches that fit into memory: where one does not, the budget is halved and the texts are read again.

    run_batches(lengths, 65536, encode)     encode(rows) for every batch; no text is left out

The plan depends on the lengths and the budget alone, until memory runs out: what was saved (`saved_batches.py`) is the
beginning of it, and the rest is planned as it was. A single text that does not fit is an error. Knows nothing of devices:
out of memory is what torch, NumPy or Python call so.
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

from citeweave.core.columns import read_kept
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.files import write_whole
from citeweave.core.progress import QUIET, SAVE_EVERY, Reporter


def batches(lengths: NDArray[np.int64], budget: int) -> Iterator[NDArray[np.int64]]:
    """Rows of every batch; a text longer than the budget is a batch of its own, a text without tokens is in none."""
    order = np.argsort(-lengths, kind="stable")  # (texts,)
    order = order[lengths[order] > 0]
    start = 0
    while start < len(order):
        count = max(1, budget // int(lengths[order[start]]))
        yield order[start : start + count]
        start += count


# Results of batches, saved by time: work that was interrupted resumes after the last batch that was saved.

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Results:
    """The arrays that batches fill."""

    arrays: Sequence[NDArray[Any]]
    places: Callable[[Rows], Sequence[Rows]]
    """Rows of texts -> rows of each array that hold their results."""

    done: Callable[[Rows], None] = lambda rows: None
    """Called with the rows of every batch, whether it was computed or restored."""

    settle: Callable[[], None] = lambda: None
    """Bring all results into the arrays; some may still be on a device."""


class SavedBatches:
    """The saved results of one piece of work, such as a shard; calls of `run_batches` on it follow each other."""

    def __init__(
        self,
        stem: Path | None = None,
        *,
        every: float = SAVE_EVERY,
        clock: Callable[[], float] = time.monotonic,
        save_last: bool = False,
    ) -> None:
        self.stem, self.every, self.clock, self.save_last = stem, every, clock, save_last
        """`save_last`: also the batches at the end, because the caller does not write the complete result."""

        self.halved = 0
        """How often memory ran out before the interruption."""

        self._parts = itertools.count()

    def next_part(self, results: Results | None) -> SavedPart:
        """What one call of `run_batches` saves."""
        return SavedPart(self, next(self._parts), results)

    def path(self, part: int, number: int) -> Path:
        assert self.stem is not None
        return self.stem.with_name(f"{self.stem.name}.part-{part}-{number}.npz")

    def remove(self, part: int = 0, number: int = 0) -> None:
        """Remove the files from one on: the complete result has taken their place."""
        for path in [] if self.stem is None else self.stem.parent.glob(f"{self.stem.name}.part-*-*.npz"):
            if _number_of(path) >= (part, number):
                path.unlink(missing_ok=True)


NOT_SAVED = SavedBatches()


class SavedPart:
    """One call of `run_batches`: the rows that are done, and those that are not saved yet."""

    def __init__(self, saved: SavedBatches, part: int, results: Results | None) -> None:
        self._saved, self._part, self._results = saved, part, results
        self._saves = results is not None and saved.stem is not None
        self._files, self._unsaved, self._last = 0, list[Rows](), saved.clock()

    def restore(self, texts: int, budget: int) -> tuple[Rows, int, int]:
        """Fill the arrays with what was saved; the rows that are left, the budget and how often it was halved."""
        is_left, halved = np.ones(texts, bool), 0
        while self._results and self._saves and (path := self._saved.path(self._part, self._files)).exists():
            rows, budget, halved = self._read(path, is_left, self._results)
            is_left[rows] = False
            self._results.done(rows)
            self._files += 1
        if self._saves:
            self._saved.remove(self._part, self._files)  # behind one that was removed because it was damaged
        self._saved.halved += halved
        return np.flatnonzero(is_left), budget, halved

    def add(self, rows: Rows, budget: int, halved: int) -> None:
        """A batch is done; save if it is time."""
        if not self._saves:
            return
        self._unsaved.append(rows)
        if self._saved.clock() - self._last >= self._saved.every:
            self.save(budget, halved)

    def finish(self, budget: int, halved: int) -> None:
        """All batches are done."""
        if self._results is not None:
            self._results.settle()
        if self._saved.save_last:
            self.save(budget, halved)

    def save(self, budget: int, halved: int) -> None:
        """Write what was not saved yet."""
        if self._results is None or not self._unsaved:  # nothing is unsaved where nothing is saved
            return
        self._results.settle()
        rows, path = np.concatenate(self._unsaved), self._saved.path(self._part, self._files)
        filled = zip(self._results.arrays, self._results.places(rows), strict=True)
        own = {f"array{number}": array[places] for number, (array, places) in enumerate(filled)}
        file = io.BytesIO()
        np.savez(file, rows=rows, state=np.array([budget, halved]), name=_name(path), **own)  # type: ignore[arg-type]
        write_whole(path, file.getvalue())
        self._unsaved = []  # first: the user may interrupt here, and what is saved must not be saved twice
        self._files, self._last = self._files + 1, self._saved.clock()

    def _read(self, path: Path, is_left: NDArray[np.bool_], results: Results) -> tuple[Rows, int, int]:
        names = [f"array{number}" for number in range(len(results.arrays))]
        found = read_kept(path, ["rows", "state", "name", *names])
        try:
            rows, (budget, halved) = found["rows"], found["state"].tolist()
            if found["name"].tobytes() != _name(path).tobytes():
                raise ValueError("it is another one")
            if len(np.unique(rows)) != len(rows) or not is_left[rows].all() or budget < 1:
                raise ValueError("it names texts that it cannot hold")
            for array, places, name in zip(results.arrays, results.places(rows), names, strict=True):
                array[places] = found[name]
        except (ValueError, IndexError, TypeError) as error:
            raise ArtifactError(
                f"{path}, which an earlier run saved, is damaged ({error}); remove it and run the same command again"
            ) from None
        return rows, budget, halved


def _number_of(path: Path) -> tuple[int, int]:
    """
    >>> _number_of(Path("00000003.part-0-12.npz"))
    (0, 12)
    """
    part, number = path.stem.rpartition(".part-")[2].split("-")
    return int(part), int(number)


def _name(path: Path) -> NDArray[np.uint8]:
    """Files that were swapped are noticed."""
    return np.frombuffer(path.name.encode(), np.uint8)


# Batches that fit into memory: where one does not, the budget is halved and the texts are read again.

Encode = Callable[[NDArray[np.int64]], None]

OUT_OF_MEMORY = "out of memory"
"""How the remark about a halved budget begins."""


def run_batches(
    lengths: NDArray[np.int64],
    budget: int,
    encode: Encode,
    *,
    results: Results | None = None,
    saved: SavedBatches = NOT_SAVED,
    reporter: Reporter = QUIET,
) -> int:
    """Call `encode` with the rows of every batch; the value is how often the budget was halved.

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
                "take a lower --precision or another --device"
            )
        # a batch may lie far under the budget: half of the budget could be the same batch again
        lower = max(1, min(budget, failed.texts * failed.longest) // 2)
        reporter.say(f"{OUT_OF_MEMORY} with a batch of {failed.texts:,} texts; going on with {lower:,} tokens a batch")
        budget, left, halved = lower, failed.left, halved + 1
        _free_memory()


class _Failed:
    """A batch that did not fit, and the rows still to read, its own among them."""

    def __init__(self, batch: NDArray[np.int64], left: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        self.texts, self.longest, self.left = len(batch), int(lengths[batch].max()), left


class _Attempt:
    """Batches by one budget, until one does not fit."""

    def __init__(self, lengths: NDArray[np.int64], budget: int, halved: int, part: SavedPart) -> None:
        self.lengths, self.budget, self.halved, self.part = lengths, budget, halved, part

    def run(self, left: NDArray[np.int64], encode: Encode, done: Encode) -> _Failed | None:
        try:
            return self._run(left, encode, done)
        except Exception:
            raise
        except BaseException:  # the user interrupted
            self.part.save(self.budget, self.halved)
            raise

    def _run(self, left: NDArray[np.int64], encode: Encode, done: Encode) -> _Failed | None:
        plan = [left[rows] for rows in batches(self.lengths[left], self.budget)]
        for number, rows in enumerate(plan):
            try:
                encode(rows)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                return _Failed(rows, np.concatenate(plan[number:]), self.lengths)
            self.part.add(rows, self.budget, self.halved)
            done(rows)
        return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that a smaller batch may do; torch itself need not be there.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    (True, True)
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("allocate memory" in text or "not enough memory" in text)


def _free_memory() -> None:
    """Give back what the failed batch held; called when its error, which holds its tensors, is gone."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
