"""Which texts are read together: the longest first, alike in length, within a budget of tokens.

    >>> [batch.tolist() for batch in batches(np.array([3, 9, 4, 4]), budget=12)]
    [[1], [2, 3, 0]]

A batch costs its number of texts times its longest text, so that memory is set by the budget. The longest come first:
what does not fit into memory shows at once. Knows nothing of texts or tokens but their number.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


def batches(lengths: NDArray[np.int64], budget: int) -> Iterator[NDArray[np.int64]]:
    """Rows of every batch; a text longer than the budget is a batch of its own, a text without tokens is in none."""
    order = np.argsort(-lengths, kind="stable")  # (texts,)
    order = order[lengths[order] > 0]
    start = 0
    while start < len(order):
        count = max(1, budget // int(lengths[order[start]]))
        yield order[start : start + count]
        start += count
