"""The compiled loops of `sentences.py`: the best sentence of every paper for each query sentence, quickly and exactly.

    paper of 3 sentences, query of 2      quick cosines 0.3 0.9 0.1 and 0.4 0.2 0.6   ->   best 0.9, 0.6; sum 1.5

As in `scanning.py`, a range of papers is a thread's own. Does not choose papers.
"""

# ruff: noqa: PLR0913

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from citeweave.similarity.quick.scanning import CHUNK, WORST, Codes8, Flags, multiply, push, read_row
from citeweave.similarity.searching.rescoring import COSINE, Keys, _key, _score, exact_score
from citeweave.similarity.searching.selecting import Doubles, Floats, Ints, Longs


@njit(cache=True, nogil=True)
def scan_papers(
    codes: Codes8, width: int, scales: Floats, errors: Floats, offsets: Longs, allowed: Flags, start: int, stop: int,
    queries: Codes8, factors: Doubles, sums: Floats, widest: Floats, best: Keys, floors: Keys, plainly: Any,
) -> None:  # fmt: skip
    """Papers start to stop: sums (papers,) of the best quick cosines, widest (papers,) error, keys of the best.

    A paper that does not count or has no sentence has the sum -inf.
    """
    count = len(factors)
    high, low, line = np.empty(CHUNK, np.int32), np.empty(CHUNK, np.int32), np.empty((count, CHUNK), np.float32)
    most = np.empty(count, np.float32)
    kept, cut = 0, np.float32(-np.inf)
    first = last = offsets[start]  # rows whose cosines are in `line`
    for paper in range(start, stop):
        sums[paper], widest[paper] = -np.inf, 0
        if (len(allowed) and not allowed[paper]) or offsets[paper] == offsets[paper + 1]:
            continue
        most[:] = -np.inf
        for row in range(offsets[paper], offsets[paper + 1]):
            if row >= last:
                first, last = row, min(row + CHUNK, offsets[stop])
                for query in range(count):
                    at = query * 2 * width
                    multiply(
                        codes, width, scales, first, last, queries, at, factors[query], high, low, line[query], plainly
                    )
            widest[paper] = max(widest[paper], errors[row])
            for query in range(count):
                most[query] = max(most[query], line[query, row - first])
        total = 0.0
        for query in range(count):
            total += most[query]
        sums[paper] = total
        if sums[paper] >= cut:
            kept = push(best, kept, _key(sums[paper], paper))
            worst = min(floors[0], best[0] if kept == len(best) else WORST)
            cut = np.float32(-np.inf) if worst == WORST else _score(worst)
    if kept == len(best):
        floors[0] = min(floors[0], best[0])


@njit(cache=True, nogil=True)
def score_papers(
    matrix: Any, norms: Doubles, offsets: Longs, papers: Ints, start: int, stop: int, queries: Floats,
    query_norms: Doubles, best: Floats, rows: Longs, sums: Floats, halves: Any,
) -> None:  # fmt: skip
    """best[i, j] = the highest exact cosine of query sentence j in papers[i], of the row rows[i, j]; sums[i] of them."""
    line = np.empty(matrix.shape[1], np.float32)
    for at in range(start, stop):
        paper = papers[at]
        best[at], rows[at] = -np.inf, -1
        for row in range(offsets[paper], offsets[paper + 1]):
            read_row(matrix, row, line, halves)
            for query in range(len(queries)):
                found = exact_score(queries[query], line, query_norms[query] * norms[row], COSINE)
                if found > best[at, query]:
                    best[at, query], rows[at, query] = found, row
        total = 0.0
        for query in range(len(queries)):
            total += best[at, query]
        sums[at] = total
