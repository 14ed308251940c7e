"""The nearest vectors by cosine, found by a scan of codes: the very rows and scores of `similarity/nearest.py`.

    codes = make_codes(matrix)                                      or Codes.open(folder)
    quick_nearest(codes, matrix, queries, 10).rows                  (queries, 10)
    quick_nearest(codes, matrix, queries, 10, allowed=years > 2019, itself=rows, exact=False)

    1. every row gets a quick cosine; the best few are scored exactly, which gives a score that the k-th surely has
    2. a row whose quick cosine, with its proved error, does not reach that score is out; all others are scored exactly

Without `exact` the second step is left out. Results do not depend on the number of threads. One query takes a few
milliseconds for 100,000 rows of 384 numbers; hundreds of queries at once are faster in `similarity.nearest`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import UserError
from citeweave.similarity.nearest import Neighbours
from citeweave.similarity.quick import scanning
from citeweave.similarity.quick.asking import Asked, ask
from citeweave.similarity.quick.codes import Codes
from citeweave.similarity.quick.instruction import processor_has
from citeweave.similarity.quick.sharing import share
from citeweave.similarity.searching.selecting import Doubles, Floats, Ints, Longs

PART = 16_384
"""Rows that a thread scans at a time."""

TOGETHER = 8
"""Queries that are scanned for at a time."""

SCORED = 512
"""Rows that a thread scores exactly at a time."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The best rows of one query, the nearest first, equal ones by row: all that score as much as the k-th, or more."""

    rows: Ints
    scores: Floats


@dataclass(frozen=True, slots=True)
class Searched:
    """A matrix, its codes, and which of its rows count: what is asked again and again."""

    codes: Codes
    matrix: NDArray[Any]
    allowed: NDArray[np.bool_]
    """(rows,), or empty where all rows count."""

    @classmethod
    def of(cls, codes: Codes, matrix: NDArray[Any], allowed: NDArray[np.bool_] | None) -> Searched:
        codes.check(matrix)
        if matrix.dtype not in (np.float16, np.float32) or not matrix.flags.c_contiguous:
            raise UserError(f"vectors of type {matrix.dtype} cannot be scanned; store them as float16 or float32")
        chosen = np.empty(0, np.bool_) if allowed is None else np.ascontiguousarray(allowed, np.bool_)
        if allowed is not None and chosen.shape != (len(codes),):
            raise UserError(
                f"allowed has the shape {chosen.shape}; it must say yes or no of each of {len(codes):,} rows"
            )
        plain = Codes(*(read_only(getattr(codes, name)) for name in Codes.__slots__))
        return cls(plain, matrix, read_only(chosen))

    def numbers(self) -> tuple[NDArray[Any], int | None]:
        """The matrix as compiled code reads it: float16 as its bits, and whether it is."""
        if self.matrix.dtype == np.float16:
            return read_only(self.matrix.view(np.uint16)), 1
        return read_only(self.matrix), None

    def score(self, query: Floats, norm: float, rows: Ints) -> Floats:
        """Exact cosines of one query with these rows."""
        matrix, halves = self.numbers()
        found = np.empty(len(rows), np.float32)

        def work(part: int) -> None:
            start = part * SCORED
            stop = min(start + SCORED, len(rows))
            scanning.score(matrix, self.codes.norms, rows, start, stop, query, norm, found, halves)

        share(-(-len(rows) // SCORED), work)
        return found


def quick_nearest(
    codes: Codes,
    matrix: NDArray[Any],
    queries: NDArray[Any],
    k: int,
    *,
    allowed: NDArray[np.bool_] | None = None,
    itself: NDArray[Any] | None = None,
    exact: bool = True,
) -> Neighbours:
    """The k nearest rows of every query, (queries, k), equal ones by row; -1 and NaN where there are no more.

    `allowed`, (rows,), says which rows count; `itself`, (queries,), has each query's own row, or -1.
    """
    found = quick_candidates(codes, matrix, queries, k, allowed=allowed, itself=itself, exact=exact)
    rows = np.full((len(found), k), -1, np.int32)
    scores = np.full((len(found), k), np.nan, np.float32)
    for query, best in enumerate(found):
        count = min(k, len(best.rows))
        rows[query, :count], scores[query, :count] = best.rows[:count], best.scores[:count]
    return Neighbours(rows, scores)


def quick_candidates(
    codes: Codes,
    matrix: NDArray[Any],
    queries: NDArray[Any],
    k: int,
    *,
    allowed: NDArray[np.bool_] | None = None,
    itself: NDArray[Any] | None = None,
    exact: bool = True,
    least: float = -np.inf,
) -> list[Candidates]:
    """Of every query all rows that score as much as its k-th, so that the caller can order equal ones.

    Rows under `least` are left out: where several matrices are searched, the k-th score so far saves work.
    """
    if k < 1:
        raise UserError(f"k is {k}; it must be at least 1")
    searched, asked = Searched.of(codes, matrix, allowed), ask(queries, matrix.shape[1])
    own = np.full(len(asked), -1, np.int64) if itself is None else np.asarray(itself, np.int64)
    if own.shape != (len(asked),):
        raise UserError(
            f"itself has the shape {own.shape} for {len(asked):,} queries; give one row a query, -1 for none"
        )
    found: list[Candidates] = []
    for start in range(0, len(asked), TOGETHER):
        part = slice(start, min(start + TOGETHER, len(asked)))
        found += _search(searched, asked.part(part.start, part.stop), own[part], k, exact, least)
    return found


@dataclass(frozen=True, slots=True)
class Compared:
    """One query with all rows of a matrix: between which numbers each cosine surely lies; exact cosines on demand."""

    searched: Searched
    query: Floats
    norm: float
    low: Doubles
    high: Doubles
    """(rows,) each."""

    def exact(self, rows: NDArray[Any]) -> Floats:
        """The cosines of these rows, the very ones of `quick_nearest`; (rows,)."""
        return self.searched.score(self.query, self.norm, np.ascontiguousarray(rows, np.int32))


def compare(codes: Codes, matrix: NDArray[Any], query: NDArray[Any]) -> Compared:
    """A scan for one query (dimension,), for callers whose score is made of more than one cosine."""
    searched, asked = Searched.of(codes, matrix, None), ask(query[None], matrix.shape[1])
    quick = np.empty((1, len(codes)), np.float32)
    _scan(searched, asked, np.full(1, -1, np.int64), 1, quick)
    wider, rest = asked.error(0)
    errors = np.asarray(codes.errors, np.float64) * wider + rest  # (rows,)
    return Compared(searched, asked.vectors[0], float(asked.norms[0]), quick[0] - errors, quick[0] + errors)


def _search(searched: Searched, asked: Asked, own: Longs, k: int, exact: bool, least: float) -> list[Candidates]:
    rows = len(searched.codes)
    if not rows:
        return [Candidates(np.empty(0, np.int32), np.empty(0, np.float32)) for _ in range(len(asked))]
    quick = np.empty((len(asked), rows), np.float32)  # (queries, rows)
    best = _scan(searched, asked, own, min(max(4 * k, 64), rows), quick)
    found = []
    for query in range(len(asked)):
        vector, norm = asked.vectors[query], float(asked.norms[query])
        first = best_rows(best[:, query], max(4 * k, 64))
        scores = searched.score(vector, norm, first)
        if exact:
            # the k-th of any rows is a score that the k-th of all reaches too
            sure = max(float(np.partition(scores, -k)[-k]) if len(scores) >= k else -np.inf, least)
            likely = likely_rows(quick[query], searched.codes.errors, asked.error(query), sure)
            first, scores = likely, searched.score(vector, norm, likely)
        found.append(settle(first, scores, k, least))
    return found


def settle(rows: Ints, scores: Floats, k: int, least: float = -np.inf) -> Candidates:
    """Those that score as much as the k-th, and `least`, in order."""
    kth = float(np.partition(scores, -k)[-k]) if len(scores) > k else -np.inf
    kept = np.flatnonzero(scores >= max(kth, least))
    # -0 and 0 are one score
    order = kept[np.lexsort((rows[kept], -(scores[kept] + np.float32(0))))]
    return Candidates(rows[order], scores[order])


def _scan(searched: Searched, asked: Asked, own: Longs, kept: int, quick: Floats) -> NDArray[np.uint64]:
    """Quick cosines into `quick`, and the keys of the best of each part, (parts, queries, kept)."""
    codes, rows = searched.codes, len(searched.codes)
    parts = -(-rows // PART)
    best = np.full((parts, len(asked), min(kept, PART)), scanning.WORST)
    floors = np.full(len(asked), scanning.WORST)

    def work(part: int) -> None:
        start, stop = part * PART, min((part + 1) * PART, rows)
        scanning.scan(
            codes.flat, codes.width, codes.scales, searched.allowed, start, stop, read_only(asked.halves), asked.units,
            own, quick, best[part], floors, plainly(),
        )  # fmt: skip

    share(parts, work)
    return best


def best_rows(keys: NDArray[np.uint64], count: int) -> Ints:
    """The rows of the `count` smallest keys, ascending; keys (parts, kept)."""
    flat = keys[keys != scanning.WORST]
    chosen = np.partition(flat, count - 1)[:count] if len(flat) > count else flat
    return np.sort((chosen & np.uint64(0xFFFFFFFF)).astype(np.int32))


def likely_rows(quick: Floats, errors: Floats, bound: tuple[float, float], least: float) -> Ints:
    """Rows whose score may be `least` or more, ascending; a quick one is wrong by errors[row] * bound[0] + bound[1]."""
    rows, size = len(quick), 4 * PART
    parts = -(-rows // size)
    found, counts = np.empty(rows, np.int32), np.zeros(parts, np.int64)

    def work(part: int) -> None:
        start, stop = part * size, min((part + 1) * size, rows)
        counts[part] = scanning.find_likely(quick, errors, start, stop, *bound, least, found[start:stop])

    share(parts, work)
    return np.concatenate([found[:0], *(found[part * size :][: counts[part]] for part in range(parts))])


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view that cannot be written to, as mapped files are: compiled code is made for one kind of array."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


def plainly() -> int | None:
    """None where the processor has the instruction, as `scanning.py` wants it."""
    return None if _HAS_INSTRUCTION else 1


_HAS_INSTRUCTION = processor_has("asimddp")
