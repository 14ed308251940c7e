"""Batches that fit into memory: where one does not, the budget is halved and the texts are read again.

    run_batches(lengths, 65536, encode)     encode(rows) for every batch; no text is left out

The plan depends on the lengths and the budget alone, until memory runs out: what was saved (`saved_batches.py`) is the
beginning of it, and the rest is planned as it was. A single text that does not fit is an error. Knows nothing of devices:
out of memory is what torch, NumPy or Python call so.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from citeweave.encoders.batching import batches
from citeweave.encoders.saved_batches import NOT_SAVED, Results, SavedBatches, SavedPart
from citeweave.errors import UserError
from citeweave.progress import QUIET, Reporter

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
