"""Search by vectors: encode a query with the index's model, and find the papers with the nearest vectors, exactly.

    nearest_papers(index, query, 10)                                   the encoder's space
    nearest_papers(index, queries, 10, "method", itself=rows)          the space of methods, each query paper left out
    nearest_papers(index, query, 10, "all", allowed=mask)              all aspects side by side, some papers only

    query_encoder = open_query_encoder(index)                          the index's own model; any other is refused
    query_encoder.encode("parsing with graphs")                        (dimension,), comparable with the index's vectors
    search_text(index, query_encoder, "parsing with graphs", count=5)
    search_paper(index, "doi:10.1/x", count=5, aspect="method")        itself left out; no model is loaded

Scores are cosines; equal ones are ordered by id. A large index is scanned by its quantized codes (`vectors/topk`) with the
same result; `exact=False` skips the proof of it. Papers without a vector are never found. Does not mix spaces.
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
from citeweave.encoders.light_encoder import keep_light_encoder, open_light_encoder
from citeweave.encoders.runtimes import AUTO, same_weights
from citeweave.search.index import Index
from citeweave.search.query import MAX_TEXT, Hit
from citeweave.search.rankings import rank_rows
from citeweave.vectors.topk import Codes, Neighbors, nearest

MAX_COUNT = 10_000
"""Most papers of one search."""

_BLOCK = 65_536
"""Rows that are compared at a time where several spaces are put side by side in memory."""


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
    """Search for nearest neighbors: the rows of an index whose vectors are nearest to query vectors, and their cosines.

    Queries are (queries, dimension), or one (dimension,). `allowed`, (size,), masks the rows that may be found; `itself`, (queries,), has each query's own row, or -1. The result
    is (queries, count), or narrower where fewer papers are found.
    """
    check_count(count)
    index.check_aspect(aspect)
    matrix = np.atleast_2d(np.asarray(queries, np.float32))  # (queries, dimension)
    own = np.broadcast_to(np.asarray(-1 if itself is None else itself, np.int64), (len(matrix),))
    width = min(count, len(index))
    if index.matrix is None or not width:
        return _without_empty_columns(np.empty((len(matrix), 0), np.int32), np.empty((len(matrix), 0), np.float32))
    counted = index.with_vector if allowed is None else index.with_vector & allowed  # (size,)
    parts, codes = index.spaces(aspect), index.codes(aspect)
    if len(parts) == 1:
        near = _nearest(parts[0], matrix, width, counted, own, codes, exact=exact)
        return _without_empty_columns(near.rows, near.scores)
    found = []
    for start in range(0, index.size, block):
        part = slice(start, start + block)
        pool = np.concatenate([space[part] for space in parts], axis=1)  # (block, dimension)
        inner = np.where((own >= start) & (own < start + len(pool)), own - start, -1)
        if counted[part].any():
            near = _nearest(pool, matrix, width, counted[part], inner, None, exact=exact)
            found.append(Neighbors(np.where(near.rows >= 0, near.rows + start, -1).astype(np.int32), near.scores))
    return _merge(index, found, len(matrix), width)


# --- hits of a text or a paper ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueryEncoder:
    """The model of an index as the encoder of query texts: its vectors are comparable with those of the index."""

    index: Index
    encoder: Encoder
    any_runtime: bool = False
    """Whether another runtime than the index's may compute the model: scores then differ by about 0.001."""

    def __repr__(self) -> str:
        return f"QueryEncoder({self.encoder.name} for {self.index!r})"

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

    def encode(self, text: str, aspect: str = "", *, abstract: str = "") -> NDArray[np.float32]:
        """Encode a query text by the index's model in a space, (dimension,); with an abstract, the text is a title."""
        self.index.check_aspect(aspect)
        length = len(text) + len(abstract)
        if length > MAX_TEXT:
            raise UserError(f"the text has {length:,} characters; give at most {MAX_TEXT:,}")
        vectors = self.encoder.encode([paper_text(text, abstract)])  # (1, dimension)
        if not vectors.any() or not any(character.isalnum() for character in text + abstract):
            raise UserError(f"the text {text[:40]!r} holds no word that {self.encoder.name} can read; give another")
        return self.project(vectors[0], aspect)

    def project(self, vector: NDArray[np.float32], aspect: str) -> NDArray[np.float32]:
        """Project a vector of the encoder into the space of an aspect of the index; without aspect, return it."""
        heads = self.index.heads
        return heads.project(vector[None], aspect)[0] if aspect and heads is not None else vector


def open_query_encoder(index: Index, model: str | Path | None = None, *, device: str = "auto") -> QueryEncoder:
    """Load the model of an index to encode queries: from where it was, or from where `model` says it is now.

    On a CPU a kept copy of the model is used, which needs no torch; the first call keeps one (`encoders/light_encoder.py`).
    """
    where, known = index.locate_model(model), index.provenance
    weights = known.revision.partition("-")[0] if known else ""
    encoder: Encoder | None = None
    if known and device in ("auto", "cpu") and (index.any_runtime or weights == known.revision):
        encoder = open_light_encoder(where, weights)
        if encoder is None:
            loaded = load_encoder(where, device=device)
            encoder = keep_light_encoder(loaded, where) or loaded
    encoder = encoder or load_query_encoder(index, where, device=device, runtime=index.runtime)
    return QueryEncoder(index, encoder, any_runtime=index.any_runtime)


def load_query_encoder(index: Index, model: str, *, device: str, runtime: str) -> TorchEncoder:
    """Load an index's model in a runtime; where that fails and the index allows any, in this processor's fastest."""
    try:
        return load_encoder(model, device=device, runtime=runtime)
    except UserError:
        if not index.any_runtime or runtime == AUTO:
            raise
        return load_encoder(model, device=device, runtime=AUTO)


def search_text(
    index: Index, query_encoder: QueryEncoder, text: str, *, count: int = 10, aspect: str = ""
) -> list[Hit]:
    """Return the `count` papers of an index whose vectors are nearest to that of a text, the nearest first.

    `query_encoder` is from `open_query_encoder`; `aspect` names a vector space of the model. `answer` uses words, too.
    """
    check_count(count)
    return _hits(index, nearest_papers(index, query_encoder.encode(text, aspect), count, aspect))


def search_paper(index: Index, paper: str, *, count: int = 10, aspect: str = "") -> list[Hit]:
    """Return the papers of an index whose vectors are nearest to that of one of its papers, given by any of its ids."""
    check_count(count)
    row = index.row(paper)
    query = index.take(np.array([row]), aspect)[0]  # (dimension,)
    return _hits(index, nearest_papers(index, query, count, aspect, itself=row))


def _hits(index: Index, neighbors: Neighbors) -> list[Hit]:
    """Return the neighbors of the first query as hits."""
    pairs = zip(neighbors.rows[0].tolist(), neighbors.scores[0].tolist(), strict=True)
    return [index.hit(row, score) for row, score in pairs if row >= 0]


def check_count(count: int) -> None:
    """Refuse a number of nearest papers below 1 or above MAX_COUNT."""
    if not 1 <= count <= MAX_COUNT:
        raise UserError(f"--count is {count}; it must be from 1 to {MAX_COUNT:,} papers")


def need_papers(index: Index) -> None:
    """Refuse to search an index without papers."""
    if not len(index):
        raise UserError(f"{index.folder} holds no paper; add some with `citeweave change {index.folder} --add CORPUS`")


def need_vectors(index: Index, what: str) -> None:
    """Refuse a nearest-neighbor search in an index that has words only and no vectors."""
    need_papers(index)
    if not index.with_vector.any():
        raise UserError(
            f"{what} needs vectors, and {index.folder} has none yet; make them with "
            f"`citeweave change {index.folder} --fill`, or search by words"
        )


def _nearest(
    pool: NDArray[Any],
    queries: NDArray[np.float32],
    count: int,
    counted: NDArray[np.bool_],
    itself: NDArray[np.int64],
    codes: Codes | None,
    *,
    exact: bool,
) -> Neighbors:
    if not counted.any():
        return Neighbors(np.empty((len(queries), 0), np.int32), np.empty((len(queries), 0), np.float32))
    allowed = None if counted.all() else counted
    return nearest(pool, queries, min(count, len(pool)), codes=codes, exact=exact, allowed=allowed, itself=itself)


def _merge(index: Index, parts: list[Neighbors], queries: int, count: int) -> Neighbors:
    """Merge neighbors from several blocks of rows, the highest cosine first, then by id."""
    rows, scores = np.full((queries, count), -1, np.int32), np.full((queries, count), np.nan, np.float32)
    all_rows = np.concatenate([np.empty((queries, 0), np.int32), *(part.rows for part in parts)], axis=1)
    all_scores = np.concatenate([np.empty((queries, 0), np.float32), *(part.scores for part in parts)], axis=1)
    for query in range(queries):
        known = all_rows[query] >= 0
        best = rank_rows(all_rows[query, known], all_scores[query, known], count, name=index.id)
        rows[query, : len(best.rows)], scores[query, : len(best.rows)] = best.rows, best.scores
    return _without_empty_columns(rows, scores)


def _without_empty_columns(rows: NDArray[np.int32], scores: NDArray[np.float32]) -> Neighbors:
    """Return neighbors without the columns that no query fills."""
    filled = int((rows >= 0).sum(axis=1).max(initial=0))
    return Neighbors(rows[:, :filled], scores[:, :filled])
