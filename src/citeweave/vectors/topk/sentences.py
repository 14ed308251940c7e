"""Papers with the best cosines to a query's sentences, by a scan of int8 codes: candidates for a document distance.

    score of a paper = sum over the query's sentences of the best cosine among the paper's sentences

    best_papers(codes, matrix, offsets, queries, 100).papers       (100,), the best first, ties by number

As in `scan.py` approximate scores select candidates and exact scores decide: a paper whose approximate sum, with the
errors of its sentences, does not reach a lower bound of the `count`-th sum is out. Without `exact` only the best by codes
are scored. Selects papers for `document_distance.rerank`; computes no plans and no masses.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.compiled import compiled
from citeweave.core.errors import UserError
from citeweave.core.executor import run_in_threads
from citeweave.core.ragged import Ragged
from citeweave.vectors.topk.codes import SLACK, Codes, QueryCodes, approximate_cosines, halves_are_faster
from citeweave.vectors.topk.kernels import (
    COSINE,
    SCAN_CHUNK,
    WORST,
    Bytes,
    Doubles,
    Flags,
    Floats,
    Ints,
    Keys,
    Longs,
    Words,
    exact_score,
    key,
    norm_of,
    push,
    read_only,
    score_of,
    widen,
)
from citeweave.vectors.topk.request import norms_of
from citeweave.vectors.topk.scan import ErrorBound, Queries, Rows, can_scan, likely_rows, rows_of

PART = 2048
"""Papers that a thread scans at a time."""

SCORED = 32
"""Papers that a thread scores exactly at a time."""

MAX_SENTENCES = 64
"""Largest number of sentences of a query."""


class BestPapers(NamedTuple):
    """The papers with the highest sums of best cosines to the query's sentences, the best first."""

    papers: Ints
    """(papers,)"""

    scores: Floats
    """(papers,) sums of `best`."""

    best: Floats
    """(papers, query sentences) the highest cosine with a sentence of the paper."""

    rows: Longs
    """(papers, query sentences) the row of the matrix with that cosine, the first of equal ones."""


@dataclass(frozen=True, slots=True)
class _Papers(Ragged):
    """The sentences of all papers that are scanned: where each paper begins, vectors, codes."""

    rows: Rows
    codes: Codes
    allowed: Flags
    """(papers,), or empty where all papers count."""


def best_papers(
    codes: Codes,
    matrix: NDArray[Any],
    offsets: NDArray[np.int64],
    queries: NDArray[Any],
    count: int,
    *,
    allowed: NDArray[np.bool_] | None = None,
    exact: bool = True,
) -> BestPapers:
    """Return the `count` papers whose sentences have the best cosines to the sentences `queries` together.

    Paper i has the rows offsets[i] to offsets[i + 1] of the matrix; `allowed`, (papers,), says which papers count; one
    without a sentence never does. Divide scores by len(queries) for the mean cosine.
    """
    if count < 1:
        raise UserError(f"count is {count}; it must be at least 1")
    codes.check(matrix)
    if not can_scan(matrix) or queries.ndim != 2 or queries.shape[1] != matrix.shape[1]:
        raise UserError(
            f"query sentences of shape {queries.shape} for sentence vectors of shape {matrix.shape} and type "
            f"{matrix.dtype}; give (n, {matrix.shape[1]}) of the same model, and store the vectors as float16 or float32"
        )
    if not 1 <= len(queries) <= MAX_SENTENCES:
        raise UserError(f"{len(queries)} query sentences; give 1 to {MAX_SENTENCES}")
    norms_of(queries, None, "queries")  # refuses numbers that are not finite
    papers = len(offsets) - 1
    chosen = np.empty(0, np.bool_) if allowed is None else np.ascontiguousarray(allowed, np.bool_)
    if allowed is not None and chosen.shape != (papers,):
        raise UserError(f"allowed has the shape {chosen.shape}; it must be one bool per paper, ({papers:,},)")
    # compiled code reads at these offsets without checking them
    if papers < 0 or offsets[0] != 0 or offsets[-1] != len(codes) or (np.diff(offsets) < 0).any():
        raise UserError(f"offsets are not increasing from 0 to {len(codes):,}, the rows of the matrix; make them again")
    rows = Rows.of(matrix, codes=codes)
    assert rows.codes is not None
    every = _Papers(read_only(np.ascontiguousarray(offsets, np.int64)), rows, rows.codes, read_only(chosen))
    return _search(every, Queries.of(queries), count, exact)


def _search(papers: _Papers, queries: Queries, count: int, exact: bool) -> BestPapers:
    kept, coded = max(2 * count, 64), QueryCodes.of(queries.vectors, queries.norms)
    sums, widest = np.empty(len(papers), np.float32), np.empty(len(papers), np.float32)
    first = rows_of(_scan(papers, coded, kept, sums, widest), kept)
    scored = _score(papers, queries, first)
    if exact:
        reached = float(np.partition(scored.scores, -count)[-count]) if len(first) >= count else -np.inf
        errors = [coded.error(query) for query in range(len(queries))]
        constant = sum(rest for _, rest in errors) + len(errors) * SLACK
        bound = ErrorBound(sum(factor for factor, _ in errors), 0.0, constant)
        new = np.setdiff1d(likely_rows(sums, read_only(widest), bound, reached), first, assume_unique=True)
        both: Iterable[Any] = zip(scored, _score(papers, queries, new), strict=True)
        scored = BestPapers._make(map(np.concatenate, both))
    # -0 and 0 are one score
    order = np.lexsort((scored.papers, -(scored.scores + np.float32(0))))[:count]
    return BestPapers._make(column[order] for column in scored)


def _scan(papers: _Papers, coded: QueryCodes, kept: int, sums: Floats, widest: Floats) -> Keys:
    """Compute approximate sums and errors of all papers, and the keys of the best of each part, (parts, kept)."""
    codes, by_halves = papers.codes, halves_are_faster()
    parts, floors = -(-len(papers) // PART), np.full(1, WORST)
    best, words, halves = np.full((parts, min(kept, PART)), WORST), read_only(coded.words), read_only(coded.halves)

    def work(part: int) -> None:
        start, stop = part * PART, min((part + 1) * PART, len(papers))
        _scan_papers(
            codes.matrix, codes.scales, codes.errors, papers.offsets, papers.allowed, start, stop, words, halves,
            coded.units, by_halves, sums, widest, best[part], floors,
        )  # fmt: skip

    run_in_threads(parts, work)
    return best


def _score(papers: _Papers, queries: Queries, chosen: Ints) -> BestPapers:
    """Score these papers by their exact cosines with the query's sentences."""
    shape = len(chosen), len(queries)
    best, rows = np.empty(shape, np.float32), np.empty(shape, np.int64)
    sums = np.empty(len(chosen), np.float32)

    def work(part: int) -> None:
        start, stop = part * SCORED, min((part + 1) * SCORED, len(chosen))
        _score_papers(
            papers.rows.matrix, papers.offsets, chosen, start, stop, queries.vectors, queries.norms, best, rows, sums
        )

    run_in_threads(-(-len(chosen) // SCORED), work)
    return BestPapers(chosen, sums, best, rows)


# --- compiled ------------------------------------------------------------------------------------------


@compiled()
def _scan_papers(
    codes: Bytes, scales: Floats, errors: Floats, offsets: Longs, allowed: Flags, start: int, stop: int, words: Words,
    halves: Bytes, units: Doubles, by_halves: bool, approximate_sums: Floats, widest: Floats, best: Keys, floors: Keys,
) -> None:  # fmt: skip
    """Scan papers start to stop: sums (papers,) of the best approximate cosines, the widest error, the best keys.

    A paper that does not count or has no sentence has the sum -inf.
    """
    count = len(units)
    sums, line = np.empty(SCAN_CHUNK, np.int32), np.empty((count, SCAN_CHUNK), np.float32)
    highest = np.empty(count, np.float32)
    kept, cut = 0, np.float32(-np.inf)
    first = last = offsets[start]  # rows whose cosines are in `line`
    for paper in range(start, stop):
        approximate_sums[paper], widest[paper] = -np.inf, 0
        if (len(allowed) and not allowed[paper]) or offsets[paper] == offsets[paper + 1]:
            continue
        highest[:] = -np.inf
        for row in range(offsets[paper], offsets[paper + 1]):
            if row >= last:
                first, last = row, min(row + SCAN_CHUNK, offsets[stop])
                for query in range(count):
                    approximate_cosines(
                        codes, scales, first, last, words[query], halves[query], units[query], by_halves, sums, line[query]
                    )  # fmt: skip
            widest[paper] = max(widest[paper], errors[row])
            for query in range(count):
                highest[query] = max(highest[query], line[query, row - first])
        total = 0.0
        for query in range(count):
            total += highest[query]
        approximate_sums[paper] = total
        if approximate_sums[paper] >= cut:
            kept = push(best, kept, key(approximate_sums[paper], paper))
            worst = min(floors[0], best[0] if kept == len(best) else WORST)
            cut = np.float32(-np.inf) if worst == WORST else score_of(worst)
    if kept == len(best):
        floors[0] = min(floors[0], best[0])


@compiled()
def _score_papers(
    matrix: Any, offsets: Longs, papers: Ints, start: int, stop: int, queries: Floats, query_norms: Doubles,
    best: Floats, rows: Longs, sums: Floats,
) -> None:  # fmt: skip
    """Score papers: best[i, j] = highest exact cosine of query sentence j in papers[i], in row rows[i, j]; sums[i]."""
    line = np.empty(matrix.shape[1], np.float32)
    for at in range(start, stop):
        paper = papers[at]
        best[at], rows[at] = -np.inf, -1
        for row in range(offsets[paper], offsets[paper + 1]):
            widen(matrix[row], line)
            norm = norm_of(line)
            for query in range(len(queries)):
                score = exact_score(queries[query], line, query_norms[query] * norm, COSINE)
                if score > best[at, query]:
                    best[at, query], rows[at, query] = score, row
        total = 0.0
        for query in range(len(queries)):
            total += best[at, query]
        sums[at] = total
