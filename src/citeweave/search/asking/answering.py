"""Answers a query: the door to everything that an index can be asked.

    found = answer(index, reader, Query(text="rain measured by telephones", where=Filter(years=(2015, None))))
    found.hits[0].title, found.exact, found.note
    answer(index, None, Query(paper="doi:10.1/x", diversity=0.3))         no model is needed for papers
    answer(index, Query(text="rain"))                                     loads the model of the index

Hits stand by score, then by id, so that they do not depend on how the index came to be; with `diversity` the best are
put in another order. Does not explain: see `explaining.py`.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import UserError
from citeweave.search.asking.answers import Answer, Found, Match, Ranking
from citeweave.search.asking.diversity import diverse_order, pool_size
from citeweave.search.asking.drafts import recommend_all
from citeweave.search.asking.finding import Among, Near, find, need_vectors
from citeweave.search.asking.query import Query
from citeweave.search.asking.sentences import best_sentence, by_sentences, matches_of
from citeweave.search.exact import MOST, nearest_papers
from citeweave.search.filters import filter_rows, unknown_names
from citeweave.search.index import Index
from citeweave.search.searching import Reader, open_reader


def needs_reader(query: Query) -> bool:
    """Whether the index's model must be loaded to answer in full."""
    pasted = query.sentences is not None and bool(query.sentences.texts)
    return pasted or query.cite is not None or (query.kind == "text" and query.by != "words")


def allowed_rows(index: Index, query: Query) -> NDArray[np.bool_]:
    """The papers among which a query searches, (size,): what its filter lets through, without mere references."""
    where = query.where
    if where.local is None and not (query.outside or query.cite):
        where = replace(where, local=True)
    return filter_rows(index, where)


def answer(
    index: Index, reader: Reader | Query | None, query: Query | None = None, *, near: Near = nearest_papers
) -> Answer:
    """The papers that a query asks for; `reader` may be None where `needs_reader` says so, or for words alone.

    With the query in its place, the index's own model is loaded where the query needs it.

    `near` compares vectors: the index itself, or a store (`stores/asking.py`), which sentences and drafts do not ask.
    """
    if isinstance(reader, Query) and query is None:
        query = reader
        reader = open_reader(index) if needs_reader(query) and index.with_vector.any() else None
    if query is None or isinstance(reader, Query):
        raise UserError("answer takes an index, a reader or None, and a query; or an index and a query")
    began = time.perf_counter()
    allowed, unknown = allowed_rows(index, query), unknown_names(index, query.where)  # (size,)
    if query.cite is not None:
        need_vectors(index, "what to cite")
        if reader is None:
            raise UserError(f"what to cite needs the model of {index.folder}, and none is loaded")
        hits, passage = recommend_all(index, reader, query, allowed)
        return Answer(query, hits, True, unknown, time.perf_counter() - began, "vectors", passage)
    ranking = _ranking(Among(index, allowed, near), reader, query)
    page = slice(query.offset, query.offset + query.count)
    rows, scores = ranking.rows[page].tolist(), ranking.scores[page].tolist()
    hits = [
        Found(hit.id, hit.title, hit.year, hit.score, hit.row, matches)
        for hit, matches in zip(
            (index.hit(row, score) for row, score in zip(rows, scores, strict=True)),
            _matches(index, query, ranking, rows),
            strict=True,
        )
    ]
    note = "; ".join(filter(None, (ranking.note, unknown)))
    return Answer(query, hits, ranking.exact, note, time.perf_counter() - began, ranking.by)


def _ranking(among: Among, reader: Reader | None, query: Query) -> Ranking:
    end, pool = query.offset + query.count, pool_size(query.count) if query.diversity else 0
    wanted = min(max(end, pool), MOST)
    if query.sentences is not None:
        found = by_sentences(among.index, reader, query.sentences, among.allowed, wanted, exact=not query.approximate)
    else:
        found = find(among, reader, query, wanted)
    return _diverse(among.index, query, found, pool) if query.diversity else found


def _diverse(index: Index, query: Query, found: Ranking, pool: int) -> Ranking:
    """The best `pool` papers in another order, all others behind them: pages of one size fit together."""
    need_vectors(index, "diversity")
    rows = found.rows[:pool]
    known = index.with_vector[rows]
    own = index.take(rows[known], query.aspect)
    vectors = np.zeros((len(rows), own.shape[1]), np.float32)  # (pool, dimension)
    vectors[known] = own
    order = diverse_order(found.scores[:pool], vectors, query.diversity, query.offset + query.count)
    order = np.concatenate([order, np.arange(len(rows), len(found.rows))]) if len(order) == len(rows) else order
    return found._replace(rows=found.rows[order], scores=found.scores[order])


def _matches(index: Index, query: Query, ranking: Ranking, rows: list[int]) -> list[tuple[Match, ...]]:
    if ranking.vectors is None:
        return [()] * len(rows)
    if query.sentences is not None:
        return matches_of(index, ranking.vectors, rows)
    return [best_sentence(index, ranking.vectors[0], row) for row in rows]
