"""Results of batches, saved by time: work that was interrupted resumes after the last batch that was saved.

    saved = SavedBatches(work / "00000003")
    run_batches(lengths, 2048, encode, results=Results([vectors], lambda rows: [rows]), saved=saved)
    saved.remove()                                      once the complete result is on the disk

    00000003.part-0-0.npz      rows of some texts in the first call of `run_batches`, and their results
    00000003.part-0-1.npz      the next ones, half a minute of work later

The clock decides what is saved when, never which texts share a batch, so the resumed result has the same bytes. Without a
folder nothing is saved.
"""

from __future__ import annotations

import io
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.arrays import read_kept
from citeweave.errors import ArtefactError
from citeweave.files import write_whole
from citeweave.progress import SAVE_EVERY

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
            raise ArtefactError(
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
