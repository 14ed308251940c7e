"""The papers whose sentences are nearest to some sentences, by a scan of codes.

    score of a paper = sum over the query's sentences of the best cosine among the paper's sentences

    quick_best_sentences(codes, matrix, offsets, queries, 100).papers       (100,), the best first, equal ones by number

As in `nearest.py` a scan proposes and exact scores decide: a paper whose quick sum, with the errors of its sentences,
does not reach the sum that the last of `count` surely has is out. Without `exact` the best by codes alone are scored.
Proposes papers for `reranking.py`; knows no plans and no masses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import UserError
from citeweave.similarity.quick import scanning
from citeweave.similarity.quick.asking import Asked, ask
from citeweave.similarity.quick.codes import Codes
from citeweave.similarity.quick.nearest import Searched, best_rows, likely_rows, plainly, read_only
from citeweave.similarity.quick.sentence_scanning import scan_papers, score_papers
from citeweave.similarity.quick.sharing import share
from citeweave.similarity.searching.selecting import Floats, Ints, Longs

PART = 2048
"""Papers that a thread scans at a time."""

SCORED = 32
"""Papers that a thread scores exactly at a time."""

MOST_SENTENCES = 64
"""Of a query."""


@dataclass(frozen=True, slots=True)
class BestPapers:
    """The best papers, the best first."""

    papers: Ints
    """(papers,)"""

    scores: Floats
    """(papers,) sums of `best`."""

    best: Floats
    """(papers, query sentences) the highest cosine with a sentence of the paper."""

    rows: Longs
    """(papers, query sentences) the row of the matrix that has it, the first of equal ones."""


def quick_best_sentences(
    codes: Codes,
    matrix: NDArray[Any],
    offsets: NDArray[np.int64],
    queries: NDArray[Any],
    count: int,
    *,
    allowed: NDArray[np.bool_] | None = None,
    exact: bool = True,
) -> BestPapers:
    """The best `count` papers, or as many as there are, for the sentences `queries` (sentences, dimension) together.

    Paper i has the rows offsets[i] to offsets[i + 1] of the matrix; `allowed`, (papers,), says which papers count. One
    without a sentence never does. Divide scores by len(queries) for the mean cosine.
    """
    if count < 1:
        raise UserError(f"count is {count}; it must be at least 1")
    searched, asked = Searched.of(codes, matrix, None), ask(queries, matrix.shape[1])
    papers = len(offsets) - 1
    chosen = np.empty(0, np.bool_) if allowed is None else np.ascontiguousarray(allowed, np.bool_)
    if allowed is not None and chosen.shape != (papers,):
        raise UserError(f"allowed has the shape {chosen.shape}; it must say yes or no of each of {papers:,} papers")
    if not 1 <= len(asked) <= MOST_SENTENCES:
        raise UserError(f"{len(asked)} query sentences; give 1 to {MOST_SENTENCES}")
    # compiled code follows the offsets without looking
    if papers < 0 or offsets[0] != 0 or offsets[-1] != len(codes) or (np.diff(offsets) < 0).any():
        raise UserError(f"offsets do not grow from 0 to {len(codes):,}, the rows of the matrix; make them again")
    return _search(searched, asked, read_only(np.ascontiguousarray(offsets, np.int64)), read_only(chosen), count, exact)


def _search(
    searched: Searched, asked: Asked, offsets: Longs, allowed: NDArray[np.bool_], count: int, exact: bool
) -> BestPapers:
    papers = len(offsets) - 1
    kept = max(2 * count, 64)
    sums, widest = np.empty(papers, np.float32), np.empty(papers, np.float32)
    first = best_rows(_scan(searched, asked, offsets, allowed, kept, sums, widest), kept)
    scored = _score(searched, asked, offsets, first)
    if exact:
        sure = float(np.partition(scored.scores, -count)[-count]) if len(first) >= count else -np.inf
        errors = [asked.error(query) for query in range(len(asked))]
        bound = sum(share for share, _ in errors), sum(rest for _, rest in errors) + len(errors) * scanning.SLACK
        likely = likely_rows(sums, read_only(widest), bound, sure)
        new = np.setdiff1d(likely, first, assume_unique=True)
        scored = _joined(scored, _score(searched, asked, offsets, new))
    order = np.lexsort((scored.papers, -(scored.scores + np.float32(0))))[:count]
    return BestPapers(scored.papers[order], scored.scores[order], scored.best[order], scored.rows[order])


def _scan(
    searched: Searched,
    asked: Asked,
    offsets: Longs,
    allowed: NDArray[np.bool_],
    kept: int,
    sums: Floats,
    widest: Floats,
) -> NDArray[np.uint64]:
    """Quick sums and errors of all papers, and the keys of the best of each part, (parts, kept)."""
    codes, papers = searched.codes, len(offsets) - 1
    parts, floors = -(-papers // PART), np.full(1, scanning.WORST)
    best, halves = np.full((parts, min(kept, PART)), scanning.WORST), read_only(asked.halves)

    def work(part: int) -> None:
        start, stop = part * PART, min((part + 1) * PART, papers)
        scan_papers(
            codes.flat, codes.width, codes.scales, codes.errors, offsets, allowed, start, stop, halves, asked.units,
            sums, widest, best[part], floors, plainly(),
        )  # fmt: skip

    share(parts, work)
    return best


def _score(searched: Searched, asked: Asked, offsets: Longs, papers: Ints) -> BestPapers:
    """These papers by their exact cosines."""
    shape = len(papers), len(asked)
    best, rows = np.empty(shape, np.float32), np.empty(shape, np.int64)
    sums = np.empty(len(papers), np.float32)
    matrix, halves = searched.numbers()

    def work(part: int) -> None:
        start, stop = part * SCORED, min((part + 1) * SCORED, len(papers))
        score_papers(
            matrix, searched.codes.norms, offsets, papers, start, stop, asked.vectors, asked.norms, best, rows, sums,
            halves,
        )  # fmt: skip

    share(-(-len(papers) // SCORED), work)
    return BestPapers(papers, sums, best, rows)


def _joined(one: BestPapers, other: BestPapers) -> BestPapers:
    return BestPapers(
        *(np.concatenate([getattr(each, name) for each in (one, other)]) for name in BestPapers.__slots__)
    )
