"""From kept candidates to ranks: score exactly what is near the borders of the bands, and put it in order.

    band of ranks 3999 and 4000: 3,997 candidates are surely better, 6 may be members -> 6 exact scores, not 4,000

Order is by exact score, the highest first, then by row, the lowest first. Does not search: see `blocks.py` and `gpu.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numba import njit

from citeweave.similarity.topk.blocks import TILE, Block, Kept, Pool
from citeweave.similarity.topk.kernels import (
    L2,
    Doubles,
    Flags,
    Floats,
    Ints,
    Keys,
    Longs,
    exact_score,
    key,
    row_of,
    score_of,
)
from citeweave.similarity.topk.ranks import Ranks
from citeweave.similarity.topk.selection import collect, find_windows
from citeweave.threads import share_range

TOGETHER = 4096
"""Pairs scored exactly at a time by one thread."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Positions and scores of all bands side by side, (queries, columns); -1 and NaN where there is nothing."""

    positions: Ints
    scores: Floats

    @classmethod
    def empty(cls, queries: int, ranks: Ranks) -> Placed:
        shape = (queries, int(ranks.columns[-1]))
        return cls(np.full(shape, -1, np.int32), np.full(shape, np.nan, np.float32))

    def put(self, which: Longs, other: Placed) -> None:
        """Take over the lines of some queries."""
        self.positions[which], self.scores[which] = other.positions, other.scores


@dataclass(frozen=True, slots=True)
class Settler:
    """Finds the members of bands among candidates; `room` is how many may be held to be scored again."""

    pool: Pool
    ranks: Ranks
    workers: int
    room: int

    def settle(self, block: Block, kept: Kept) -> tuple[Placed, Flags]:
        """The members of the bands, and of which queries they are sure; the lines of the others are empty."""
        size, bands = len(block), len(self.ranks)
        ranks = kept.ranks or self.ranks
        needs = np.minimum(block.needs, ranks.deepest)
        edges, sure = np.full((size, bands, 2), np.inf), np.zeros(size, np.bool_)
        above, sizes = np.zeros((size, bands), np.int64), np.zeros((size, bands), np.int64)
        steps = np.unique(np.concatenate([ranks.lows + 1, ranks.highs]))[::-1].copy()
        at = np.stack([np.searchsorted(-steps, -ranks.lows - 1), np.searchsorted(-steps, -ranks.highs)], axis=1)
        share_range(
            size,
            lambda low, high: find_windows(
                kept.scores, kept.counts, kept.cuts, block.margins, needs, steps, at, edges, above, sizes, sure, low, high
            ),
            self.workers,
        )  # fmt: skip
        take = np.where(sure[:, None], self.ranks.reach(block.needs), 0)
        skip = ranks.lows - above
        assert np.all((take == 0) | ((skip >= 0) & (skip + take <= sizes))), "a member is outside its window"
        placed = Placed.empty(size, self.ranks)
        for part in self._parts(sizes):
            members = self._members(kept, edges, sizes, part)
            keys = self._keys(block, np.repeat(np.arange(part.start, part.stop), sizes[part].sum(axis=1)), members)
            self._place(keys, sizes, skip, take, part, placed)
        return placed, sure

    def exhaust(self, block: Block) -> Placed:
        """The same by exact scores of the whole pool: for the few queries with more ties than a scan can hold."""
        size = len(block)
        # to a vector of zeros all are equal, and the first rows are the nearest
        alike = (block.norms == 0) & (self.pool.metric != L2)
        best: list[Keys] = [np.empty(0, np.uint64) for _ in range(size)]
        for start in range(0, len(self.pool), TILE):
            found = np.arange(start, min(start + TILE, len(self.pool)), dtype=np.int32)
            for query in np.flatnonzero(~alike | (block.needs >= start)).tolist():
                others = found[found != block.itself[query]]
                keys = np.concatenate([best[query], self._keys(block, np.full(len(others), query), others)])
                need = int(block.needs[query])
                best[query] = np.partition(keys, need - 1)[:need] if need < len(keys) else keys
        placed = Placed.empty(size, self.ranks)
        take = self.ranks.reach(block.needs)
        for query in range(size):
            part = slice(query, query + 1)
            keys = np.tile(best[query], len(self.ranks))
            sizes = np.full((size, len(self.ranks)), len(best[query]))
            self._place(keys, sizes, np.broadcast_to(self.ranks.lows, take.shape), take, part, placed)
        return placed

    def _parts(self, sizes: Longs) -> Iterator[slice]:
        """Ranges of queries whose windows fit into the room, at least one query each."""
        ends, start = np.cumsum(sizes.sum(axis=1)), 0
        while start < len(sizes):
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + self.room, side="right")))
            yield slice(start, stop)
            start = stop

    def _members(self, kept: Kept, edges: Doubles, sizes: Longs, part: slice) -> Ints:
        ends = np.cumsum(sizes[part])  # (queries * bands,)
        members = np.empty(int(ends[-1]), np.int32)
        scores, positions, counts = kept.scores[part], kept.positions[part], np.maximum(kept.counts[part], 0)
        share_range(
            len(counts),
            lambda low, high: collect(scores, positions, counts, edges[part], ends, members, low, high),
            self.workers,
        )
        return members

    def _keys(self, block: Block, owners: Longs, members: Ints) -> Keys:
        keys = np.empty(len(members), np.uint64)

        def score(low: int, high: int) -> None:
            for start in range(low, high, TOGETHER):
                part = slice(start, min(start + TOGETHER, high))
                found = members[part]
                vectors, norms = self.pool.vectors(found), self.pool.norms[found]
                _rescore(block.vectors, block.norms, owners[part], vectors, norms, found, self.pool.metric, keys[part])

        share_range(len(members), score, self.workers)
        return keys

    def _place(self, keys: Keys, sizes: Longs, skip: Longs, take: Longs, part: slice, placed: Placed) -> None:
        ends, columns = np.cumsum(sizes[part]), self.ranks.columns[:-1].copy()
        positions, scores = placed.positions[part], placed.scores[part]
        skip, take = np.ascontiguousarray(skip[part]), np.ascontiguousarray(take[part])
        share_range(
            len(positions),
            lambda low, high: _place(keys, ends, skip, take, columns, positions, scores, low, high),
            self.workers,
        )


@njit(cache=True, nogil=True)
def _rescore(
    queries: Floats,
    norms: Doubles,
    owners: Longs,
    vectors: Floats,
    lengths: Doubles,
    found: Ints,
    metric: int,
    out: Keys,
) -> None:
    """The keys of pairs: query `owners[i]` with `vectors[i]`, of length `lengths[i]`, at the position `found[i]`."""
    for at in range(len(owners)):
        own = owners[at]
        score = exact_score(queries[own], vectors[at], norms[own] * lengths[at], metric)
        out[at] = key(score, found[at])


@njit(cache=True, nogil=True)
def _place(
    keys: Keys,
    ends: Longs,
    skip: Longs,
    take: Longs,
    columns: Longs,
    positions: Ints,
    scores: Floats,
    low: int,
    high: int,
) -> None:
    """Sort each window and write its members `skip` to `skip + take` to the columns of its band.

    `skip` and `take` are (queries, bands), `columns` says where the band begins in `positions` and `scores`
    (queries, columns).
    """
    bands = len(columns)
    for query in range(low, high):
        for band in range(bands):
            window = query * bands + band
            members = keys[ends[window - 1] if window else 0 : ends[window]]
            if take[query, band]:
                members.sort()
            for at in range(take[query, band]):
                one = members[skip[query, band] + at]
                scores[query, columns[band] + at] = score_of(one)
                positions[query, columns[band] + at] = row_of(one)
