"""The nearest papers of an index in one of its spaces: every paper is compared.

    nearest_papers(index, query, 10)                                   the encoder's space
    nearest_papers(index, queries, 10, "method", itself=rows)          the space of methods, each paper left out itself
    nearest_papers(index, query, 10, "all", allowed=mask)              all aspects side by side, some papers only

Scores are cosines; equal ones stand by id, so that neither the segments nor the series of changes that made them show.
Large segments are scanned by their codes (`similarity/topk`), which gives the same result; `exact=False` leaves out the
proof. Deleted papers and papers without a vector are never found. Does not encode anything.

Searching an index: by a text, or by one of its papers; in the encoder's space or in that of an aspect.

    reader = open_reader(index)                                   the very model of the index, checked
    search_text(index, reader, "parsing with graphs", count=5)
    search_paper(index, "doi:10.1/x", count=5, aspect="method")   itself left out; no model is loaded

Does not mix spaces: one search, one space.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.corpus.text import paper_text
from citeweave.encoders.encoder import Encoder, TorchEncoder, load_encoder
from citeweave.encoders.runtimes import AUTO, same_weights
from citeweave.search.index import Hit, Index
from citeweave.search.ranked_rows import rank_rows
from citeweave.search.segment import Segment
from citeweave.vectors.topk import Codes, Neighbors, nearest

MOST = 10_000
"""Papers that may be asked for at once."""

_BLOCK = 65_536
"""Rows that are compared at a time where more than the memory map is needed."""


def check_count(count: int) -> None:
    if not 1 <= count <= MOST:
        raise UserError(f"--count is {count}; it must be from 1 to {MOST:,} papers")


def nearest_papers(
    index: Index,
    queries: NDArray[Any],
    count: int,
    aspect: str = "",
    *,
    allowed: NDArray[np.bool_] | None = None,
    itself: NDArray[Any] | int | None = None,
    exact: bool = True,
    block: int = _BLOCK,
) -> Neighbors:
    """The nearest rows to vectors of the space, (queries, dimension) or one (dimension,); (queries, count or fewer).

    `allowed`, (size,), says which rows count; `itself`, (queries,), has each query's own row, or -1.
    """
    check_count(count)
    index.check_aspect(aspect)
    asked = np.atleast_2d(np.asarray(queries, np.float32))  # (queries, dimension)
    own = np.broadcast_to(np.asarray(-1 if itself is None else itself, np.int64), (len(asked),))
    width = min(count, len(index))
    found = [
        _in_segment(index, segment, _SegmentQuery(asked, own, width, aspect, exact, block), allowed)
        for segment in index.segments
        if segment.matrix is not None and width
    ]
    return _best(index, [each for parts in found for each in parts], len(asked), width)


@dataclass(frozen=True, slots=True)
class _SegmentQuery:
    """What is asked of every segment."""

    queries: NDArray[np.float32]
    itself: NDArray[np.int64]
    """Rows of the index, (queries,)."""

    count: int
    aspect: str
    exact: bool
    block: int


def _in_segment(
    index: Index, segment: Segment, asked: _SegmentQuery, allowed: NDArray[np.bool_] | None
) -> list[Neighbors]:
    """The nearest rows of one segment, as rows of the index."""
    span = slice(segment.start, segment.start + segment.size)
    counted = index.with_vector[span]  # (papers,)
    counted = counted if allowed is None else counted & allowed[span]
    inside = (asked.itself >= span.start) & (asked.itself < span.stop)
    own = np.where(inside, asked.itself - span.start, -1)  # (queries,)
    if not counted.any():
        return []
    parts, codes = index.spaces(segment, asked.aspect), index.codes(segment, asked.aspect)
    if len(parts) == 1:
        return [_moved(_nearest(parts[0], asked, counted, own, codes), span.start)]
    found = []
    for start in range(0, segment.size, asked.block):
        part = slice(start, start + asked.block)
        pool = np.concatenate([matrix[part] for matrix in parts], axis=1)  # (block, dimension)
        inner = np.where((own >= start) & (own < start + len(pool)), own - start, -1)
        if counted[part].any():
            found.append(_moved(_nearest(pool, asked, counted[part], inner), span.start + start))
    return found


def _nearest(
    pool: NDArray[Any],
    asked: _SegmentQuery,
    counted: NDArray[np.bool_],
    itself: NDArray[np.int64],
    codes: Codes | None = None,
) -> Neighbors:
    allowed = None if counted.all() else counted
    count = min(asked.count, len(pool))
    return nearest(pool, asked.queries, count, codes=codes, exact=asked.exact, allowed=allowed, itself=itself)


def _moved(near: Neighbors, start: int) -> Neighbors:
    return Neighbors(np.where(near.rows >= 0, near.rows + start, -1).astype(np.int32), near.scores)


def _best(index: Index, parts: list[Neighbors], queries: int, count: int) -> Neighbors:
    """The best of several lists, the highest score first, then by id; columns that no query fills are left out."""
    rows, scores = np.full((queries, count), -1, np.int32), np.full((queries, count), np.nan, np.float32)
    if len(parts) == 1:
        # within a segment rows stand by id
        rows[:, : parts[0].rows.shape[1]], scores[:, : parts[0].rows.shape[1]] = parts[0].rows, parts[0].scores
    elif parts:
        all_rows = np.concatenate([part.rows for part in parts], axis=1)
        all_scores = np.concatenate([part.scores for part in parts], axis=1)
        for query in range(queries):
            known = all_rows[query] >= 0
            best = rank_rows(all_rows[query, known], all_scores[query, known], count, name=index.id)
            rows[query, : len(best.rows)], scores[query, : len(best.rows)] = best.rows, best.scores
    filled = int((rows >= 0).sum(axis=1).max(initial=0))
    return Neighbors(rows[:, :filled], scores[:, :filled])


# Searching an index: by a text, or by one of its papers; in the encoder's space or in that of an aspect.

MAX_TEXT = 100_000
"""Characters of a query; more is a mistake, as no model reads so many."""


@dataclass(frozen=True, slots=True)
class QueryEncoder:
    """The encoder of an index: makes vectors of texts that may be compared with its own."""

    index: Index
    encoder: Encoder
    any_runtime: bool = False
    """Whether the model may be computed by another runtime than the index was: scores then differ by about 0.001."""

    def __post_init__(self) -> None:
        known = self.index.provenance
        if known is None or (self.any_runtime and same_weights(self.encoder.revision, known.revision)):
            return
        if self.encoder.revision != known.revision:
            raise UserError(
                f"{self.index.folder} was made by {known.label}, and {self.encoder.name} is revision "
                f"{self.encoder.revision}: their vectors cannot be compared; give the index's own model with --model, "
                "or build the index again"
            )

    def read(self, text: str, aspect: str = "", *, abstract: str = "") -> NDArray[np.float32]:
        """The vector of a text in a space, (dimension,); with an abstract the text is a paper's title."""
        self.index.check_aspect(aspect)
        length = len(text) + len(abstract)
        if length > MAX_TEXT:
            raise UserError(f"the text has {length:,} characters; give at most {MAX_TEXT:,}")
        found = self.encoder.encode([paper_text(text, abstract)])  # (1, dimension)
        if not found.any() or not any(sign.isalnum() for sign in text + abstract):
            raise UserError(f"the text {text[:40]!r} holds no word that {self.encoder.name} can read; give another")
        return self.into(found[0], aspect)

    def into(self, vector: NDArray[np.float32], aspect: str) -> NDArray[np.float32]:
        """A vector of the encoder in a space."""
        heads = self.index.heads
        return heads.project(vector[None], aspect)[0] if aspect and heads is not None else vector


def open_reader(index: Index, model: str | Path | None = None, *, device: str = "auto") -> QueryEncoder:
    """Load the model that the index was made by: where it was then, or where `model` says it is now."""
    where = str(model or index.model)
    if not model and Path(where).is_absolute() and not Path(where).is_dir():
        raise UserError(f"the model of {index.folder} is no longer at {where}; say with --model where it is")
    encoder = load_reader_encoder(index, where, device=device, runtime=index.runtime)
    return QueryEncoder(index, encoder, any_runtime=index.any_runtime)


def load_reader_encoder(index: Index, model: str, *, device: str, runtime: str) -> TorchEncoder:
    """The model in this runtime; where it does not run and the index allows any, in the fastest one of this processor."""
    try:
        return load_encoder(model, device=device, runtime=runtime)
    except UserError:
        if not index.any_runtime or runtime == AUTO:
            raise
        return load_encoder(model, device=device, runtime=AUTO)


def search_text(index: Index, reader: QueryEncoder, text: str, *, count: int = 10, aspect: str = "") -> list[Hit]:
    """The papers nearest to a text."""
    check_count(count)
    return hits(index, nearest_papers(index, reader.read(text, aspect), count, aspect))


def search_paper(index: Index, paper: str, *, count: int = 10, aspect: str = "") -> list[Hit]:
    """The papers nearest to a paper of the index, by any of its ids."""
    check_count(count)
    row = index.row(paper)
    query = index.take(np.array([row]), aspect)[0]  # (dimension,)
    return hits(index, nearest_papers(index, query, count, aspect, itself=row))


def hits(index: Index, found: Neighbors) -> list[Hit]:
    """The first line of neighbors as papers."""
    pairs = zip(found.rows[0].tolist(), found.scores[0].tolist(), strict=True)
    return [index.hit(row, score) for row, score in pairs if row >= 0]
