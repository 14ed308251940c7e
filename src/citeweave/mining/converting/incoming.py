"""What comes in: rows of query, positive and negatives become samples, every record accounted for.

    q, a, 1        one sample: positives a b, negatives 1 2
    q, b, 2
    q, b, 3        another one: b is in the first already

Lines that follow each other and have one query form a sample as long as no paper comes back in it: positives and
negatives then pair up one to one, and `triplets()` gives the lines back in their order. Nothing is sorted, and no more
than a block is held. Shared by the readers of all formats; knows none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from citeweave.mining.sample_blocks import SampleBlock, block_of
from citeweave.mining.samples import Names
from citeweave.tally import Tally

NAMES = Names(rules=("given positive", "given negative"))
POSITIVE, NEGATIVE = 0, 1

OUTSIDE = ("query not in the corpus", "positive not in the corpus", "negative not in the corpus")
TWICE = "one paper twice in the same record"
NO_ID = "no id"

BLOCK = 1 << 13
"""Records looked up at once."""

LARGEST_SAMPLE = 1024
"""Lines of one query that become one sample; more become several."""

_WRITTEN_AT_ONCE = 1 << 16

Item = TypeVar("Item")


def blocks(items: Iterable[Item], size: int = BLOCK) -> Iterator[list[Item]]:
    """
    >>> list(blocks("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    rest = iter(items)
    while block := list(islice(rest, size)):
        yield block


def known_rows(rows: NDArray[np.int32], tally: Tally, kind: str) -> NDArray[np.int32]:
    """Of records of shape (n, 2 + negatives) those whose papers are all known and all different."""
    missing = rows < 0
    outside = [missing[:, 0], missing[:, 1], missing[:, 2:].any(axis=1)]
    twice = (np.diff(np.sort(rows, axis=1), axis=1) == 0).any(axis=1)
    good = np.ones(len(rows), bool)
    for reason, found in zip((*OUTSIDE, TWICE), (*outside, twice), strict=True):
        tally.reject(kind, reason, int((found & good).sum()))
        good &= ~found
    tally.keep(kind, int(good.sum()))
    return rows[good]


def paired_samples(triplets: Iterable[NDArray[np.int32]]) -> Iterator[SampleBlock]:
    """Samples of triplets, given in blocks of shape (n, 3) in their order."""
    pending = _Pending()
    for block in triplets:
        for query, positive, negative in block.tolist():
            pending.add(query, positive, negative)
        if pending.size >= _WRITTEN_AT_ONCE:
            yield pending.take()
    if pending.size:
        yield pending.take(last=True)


def grouped_samples(rows: Iterable[NDArray[np.int32]]) -> Iterator[SampleBlock]:
    """One sample for every row of shape (2 + negatives,), given in blocks."""
    for block in rows:
        if len(block):
            yield block_of(
                block[:, 0].tolist(),
                block[:, 1:2].tolist(),
                block[:, 2:].tolist(),
                positive_rule=POSITIVE,
                negative_rule=NEGATIVE,
            )


class _Pending:
    """Samples that wait to be written; the last of them may still grow."""

    def __init__(self) -> None:
        self._anchors: list[int] = []
        self._positives: list[list[int]] = []
        self._negatives: list[list[int]] = []
        self._seen: set[int] = set()
        self.size = 0

    def add(self, query: int, positive: int, negative: int) -> None:
        goes_on = self._anchors and self._anchors[-1] == query and len(self._positives[-1]) < LARGEST_SAMPLE
        if not goes_on or positive in self._seen or negative in self._seen:
            self._anchors.append(query)
            self._positives.append([])
            self._negatives.append([])
            self._seen = set()
        self._positives[-1].append(positive)
        self._negatives[-1].append(negative)
        self._seen |= {positive, negative}
        self.size += 1

    def take(self, *, last: bool = False) -> SampleBlock:
        """The samples that are complete: all but the one that may still grow."""
        end = len(self._anchors) if last else len(self._anchors) - 1
        block = block_of(
            self._anchors[:end],
            self._positives[:end],
            self._negatives[:end],
            positive_rule=POSITIVE,
            negative_rule=NEGATIVE,
        )
        del self._anchors[:end], self._positives[:end], self._negatives[:end]
        self.size = sum(map(len, self._positives))
        return block
