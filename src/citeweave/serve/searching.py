"""GET and POST /search, POST /search/batch, GET /similar: questions in, papers out."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Response
from fastapi import Query as FromUrl
from numpy.typing import NDArray

from citeweave.errors import UserError
from citeweave.search.asking.answering import allowed_rows, answer, needs_reader
from citeweave.search.asking.explaining import explain
from citeweave.search.asking.query import Query
from citeweave.search.filters import facets
from citeweave.search.index import Index
from citeweave.serve.answers import Answer, Answers, failures
from citeweave.serve.failures import RefusedError, failure, without_paths
from citeweave.serve.opening import Opened
from citeweave.serve.requests import BatchRequest, SearchParameters, SearchRequest, SimilarParameters
from citeweave.serve.routing import Json, StrictRoute
from citeweave.serve.serving import Held, row_of

router = APIRouter(route_class=StrictRoute, tags=["search"])

MOST_EXPLAINED = 20


@router.get("/search", response_model=Answer, responses=failures())
async def search_by_words(server: Held, asked: Annotated[SearchParameters, FromUrl()]) -> Response:
    """Papers for a text: a question, a title, an abstract."""
    return Json(await server.ask(asked.index, lambda opened: found(opened, asked.query(), with_facets=asked.facets)))


@router.post("/search", response_model=Answer, responses=failures(403, 415))
async def search(server: Held, asked: SearchRequest) -> Response:
    """Papers for a text, a paper, liked papers, chosen sentences, or a passage of a draft."""
    return Json(await server.ask(asked.index, lambda opened: found(opened, asked.query(), with_facets=asked.facets)))


@router.post("/search/batch", response_model=Answers, responses=failures(403, 415))
async def search_batch(server: Held, asked: BatchRequest) -> Response:
    """Several queries in one request; a query that cannot be answered leaves an error in its place."""

    def work(opened: Opened) -> dict[str, Any]:
        return {"answers": [_answered(opened, one.query()) for one in asked.queries]}

    return Json(await server.ask(asked.index, work))


@router.get("/similar", response_model=Answer, responses=failures())
async def similar(server: Held, asked: Annotated[SimilarParameters, FromUrl()]) -> Response:
    """Papers like a paper of the index, on request with the reasons."""

    def work(opened: Opened) -> dict[str, Any]:
        made = found(opened, asked.query(), with_facets=asked.facets)
        if asked.explain:
            row = row_of(opened.index, asked.paper)
            for hit in made["hits"][:MOST_EXPLAINED]:
                hit["why"] = explain(opened.index, row, hit["row"]).brief()
        return made

    return Json(await server.ask(asked.index, work))


def found(opened: Opened, said: dict[str, Any], *, with_facets: bool = False) -> dict[str, Any]:
    """The answer to a query as JSON, its hits with all that a page shows."""
    query = Query.from_json(said)
    _check_papers(opened.index, query)
    if needs_reader(query) and not _words_will_do(query):
        opened.need_reader()
    told = answer(opened.index, opened.reader, query).as_json()
    told["coming"] = opened.coming if told["by"] == "words" != query.by else ""
    told["hits"] = [_whole_hit(opened.index, hit) for hit in told["hits"]]
    return {**told, "facets": facets_json(opened.index, allowed_rows(opened.index, query)) if with_facets else None}


def facets_json(index: Index, mask: NDArray[np.bool_]) -> dict[str, Any]:
    """Years, venues and fields of some papers, (size,), with their counts."""
    counts = facets(index, mask)
    return {**counts, "years": {str(year): count for year, count in counts["years"].items()}}


def _answered(opened: Opened, said: dict[str, Any]) -> dict[str, Any]:
    try:
        return found(opened, said)
    except RefusedError as error:
        return failure(error.words, coming=error.coming)
    except UserError as error:
        return failure(without_paths(str(error)))


def _words_will_do(query: Query) -> bool:
    """Whether a text can be searched for while the model is being loaded."""
    return query.kind == "text" and query.by != "vectors" and not query.aspect


def _check_papers(index: Index, query: Query) -> None:
    """404 for papers that are not there, before anything is computed."""
    asked = [query.paper, *query.liked, *query.disliked, query.sentences.paper if query.sentences else ""]
    for id in filter(None, asked):
        row_of(index, id)


def _whole_hit(index: Index, hit: dict[str, Any]) -> dict[str, Any]:
    paper = index.paper(hit["row"])
    matches = hit.get("matches") or []
    more = {"sentences": index.sentence_texts(hit["row"])} if matches else {}
    return {
        **hit,
        "abstract": paper.abstract,
        "venue": paper.venue,
        "authors": list(paper.authors),
        "fields": list(paper.fields),
        "outside": paper.stub,
        "matches": matches,
        **more,
    }
