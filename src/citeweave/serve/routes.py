"""Routes of the API: GET and POST /search, /search/batch, /similar, /papers, /suggest, /facets, /embed, /export, /health.

An id may hold any character, slashes too: /papers/doi:10.1/x and /papers/doi%3A10.1%2Fx are the same. It is looked up
among the ids of the index and nowhere else. /health and /metrics have reserved threads, so they answer however busy the
server is. `explore_routes.py` has the routes of the exploring views.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Response
from fastapi import Path as InPath
from fastapi import Query as FromUrl
from numpy.typing import NDArray
from prometheus_client import CONTENT_TYPE_LATEST

from citeweave.core.errors import CiteweaveError, UserError
from citeweave.corpus.text import paper_text
from citeweave.search.answer import allowed_rows, answer, needs_query_encoder
from citeweave.search.explain import explain
from citeweave.search.export import to_bibtex, to_csv, to_json
from citeweave.search.filters import count_facets, filter_rows
from citeweave.search.index import Index
from citeweave.search.query import Filter, Query
from citeweave.search.words import suggest as suggestions
from citeweave.serve.indexes import BatchedEncoder, CurrentServer, OpenIndex, Server, find_row, short_paper
from citeweave.serve.library import count_papers
from citeweave.serve.responses import Json, RefusedError, StrictRoute, failure, without_paths
from citeweave.serve.schemas import (
    BatchRequest,
    BatchResponse,
    EmbedRequest,
    EmbedResponse,
    ExportRequest,
    FacetsResponse,
    HealthResponse,
    IndexParameters,
    PaperDetails,
    PapersParameters,
    PapersResponse,
    SearchParameters,
    SearchRequest,
    SearchResponse,
    SimilarParameters,
    SuggestParameters,
    SuggestResponse,
    failures,
)
from citeweave.version import __version__

search_router = APIRouter(route_class=StrictRoute, tags=["search"])

MAX_EXPLAINED = 20
"""Maximum hits of /similar that are explained."""


@search_router.get("/search", response_model=SearchResponse, responses=failures())
async def search_by_words(server: CurrentServer, parameters: Annotated[SearchParameters, FromUrl()]) -> Response:
    """Search for a text given in the URL: a question, a title or an abstract."""
    return Json(
        await server.run_on_index(
            parameters.index, lambda opened: _search_json(opened, parameters.query(), with_facets=parameters.facets)
        )
    )


@search_router.post("/search", response_model=SearchResponse, responses=failures(403, 415))
async def search(server: CurrentServer, body: SearchRequest) -> Response:
    """Search by a text, a paper, liked papers, selected sentences, or a passage of a draft."""
    return Json(
        await server.run_on_index(
            body.index, lambda opened: _search_json(opened, body.query(), with_facets=body.facets)
        )
    )


@search_router.post("/search/batch", response_model=BatchResponse, responses=failures(403, 415))
async def search_batch(server: CurrentServer, body: BatchRequest) -> Response:
    """Answer several queries in one request; a failed query leaves an error in its place."""

    def work(opened: OpenIndex) -> dict[str, Any]:
        return {"answers": [_search_or_failure(opened, query.query()) for query in body.queries]}

    return Json(await server.run_on_index(body.index, work))


@search_router.get("/similar", response_model=SearchResponse, responses=failures())
async def similar(server: CurrentServer, parameters: Annotated[SimilarParameters, FromUrl()]) -> Response:
    """Return papers similar to a paper of the index, with reasons on request."""

    def work(opened: OpenIndex) -> dict[str, Any]:
        result = _search_json(opened, parameters.query(), with_facets=parameters.facets)
        if parameters.explain:
            row = find_row(opened.index, parameters.paper)
            for hit in result["hits"][:MAX_EXPLAINED]:
                hit["why"] = explain(opened.index, row, hit["row"]).brief()
        return result

    return Json(await server.run_on_index(parameters.index, work))


def _search_json(opened: OpenIndex, fields: dict[str, Any], *, with_facets: bool = False) -> dict[str, Any]:
    """Respond to /search: a search result as JSON, its hits with everything that the page shows."""
    query = Query.from_json(fields)
    _check_papers(opened.index, query)
    if needs_query_encoder(query) and not _can_use_words(query):
        opened.require_encoder()
    result = answer(opened.index, opened.query_encoder, query).as_json()
    result["coming"] = opened.coming if result["by"] == "words" != query.by else ""
    result["hits"] = [_hit_json(opened.index, hit) for hit in result["hits"]]
    return {**result, "facets": _facets_json(opened.index, allowed_rows(opened.index, query)) if with_facets else None}


def _facets_json(index: Index, mask: NDArray[np.bool_]) -> dict[str, Any]:
    """Return years, venues and fields of some papers, (size,), with counts, as JSON."""
    counts = count_facets(index, mask)
    return {**counts, "years": {str(year): count for year, count in counts["years"].items()}}


def _search_or_failure(opened: OpenIndex, fields: dict[str, Any]) -> dict[str, Any]:
    try:
        return _search_json(opened, fields)
    except RefusedError as error:
        return failure(error.message, coming=error.coming)
    except UserError as error:
        return failure(without_paths(str(error)))


def _can_use_words(query: Query) -> bool:
    """Return whether a text can be searched by words while the model is loading."""
    return query.kind == "text" and query.by != "vectors" and not query.aspect


def _check_papers(index: Index, query: Query) -> None:
    """Respond 404 for unknown papers before anything is computed."""
    ids = [query.paper, *query.liked, *query.disliked, query.sentences.paper if query.sentences else ""]
    for id in filter(None, ids):
        find_row(index, id)


def _hit_json(index: Index, hit: dict[str, Any]) -> dict[str, Any]:
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


# --- /papers, /suggest and /facets ---

papers_router = APIRouter(route_class=StrictRoute, tags=["papers"])

MAX_LISTED = 500
"""Maximum references, and citing papers, that are listed."""

_Id = Annotated[str, InPath(min_length=1, max_length=500, description="Any id of the paper, slashes included.")]


@papers_router.get("/papers", response_model=PapersResponse, responses=failures())
async def papers(server: CurrentServer, parameters: Annotated[PapersParameters, FromUrl()]) -> Response:
    """Return several papers by id, in the requested order; unknown ids are listed."""

    def work(opened: OpenIndex) -> dict[str, Any]:
        rows = opened.index.rows(parameters.id).tolist()
        return {
            "papers": [_paper_json(opened.index, row) for row in rows if row >= 0],
            "unknown": [id for id, row in zip(parameters.id, rows, strict=True) if row < 0],
        }

    return Json(await server.run_on_index(parameters.index, work))


@papers_router.get("/papers/{id:path}", response_model=PaperDetails, responses=failures())
async def paper(server: CurrentServer, id: _Id, parameters: Annotated[IndexParameters, FromUrl()]) -> Response:
    """Return a paper with its sentences, its references and the papers that cite it."""
    return Json(
        await server.run_on_index(
            parameters.index, lambda opened: _paper_details_json(opened.index, find_row(opened.index, id))
        )
    )


@papers_router.get("/suggest", response_model=SuggestResponse, responses=failures())
async def suggest(server: CurrentServer, parameters: Annotated[SuggestParameters, FromUrl()]) -> Response:
    """Suggest words and titles that complete a typed text."""

    def work(opened: OpenIndex) -> dict[str, Any]:
        found = []
        for one in suggestions(opened.index, parameters.q, parameters.count):
            paper = {"id": None, "title": None, "year": None} if one.row is None else short_paper(opened.index, one.row)
            found.append({"text": one.text, "papers": one.papers, **paper})
        return {"suggestions": found}

    return Json(await server.run_on_index(parameters.index, work))


@papers_router.get("/facets", response_model=FacetsResponse, responses=failures())
async def all_facets(server: CurrentServer, parameters: Annotated[IndexParameters, FromUrl()]) -> Response:
    """Return years, venues and fields of all papers of an index, with counts."""

    def work(opened: OpenIndex) -> bytes:
        key = ("facets", opened.name)
        state, content = server.cache.get(key, (None, b""))
        if state != opened.index.number:
            content = Json.write(_facets_json(opened.index, filter_rows(opened.index, Filter(local=True))))
            server.cache[key] = (opened.index.number, content)
        return bytes(content)

    return Response(await server.run_on_index(parameters.index, work), media_type="application/json")


def _paper_json(index: Index, row: int) -> dict[str, Any]:
    """Return the fields of a paper as JSON for /papers."""
    paper = index.paper(row)
    return {
        "id": paper.id,
        "title": paper.title,
        "abstract": paper.abstract,
        "year": paper.year,
        "venue": paper.venue,
        "authors": list(paper.authors),
        "fields": list(paper.fields),
        "ids": list(paper.ids),
    }


def _paper_details_json(index: Index, row: int) -> dict[str, Any]:
    """Return a paper with its sentences, references and citing papers as JSON for /papers/{id}."""
    keys = index.references(row)
    cited = index.rows_of_keys(keys)  # (references,), -1 where not in the index
    citing = np.asarray(index.citing(index.key_of(row)))
    return {
        **_paper_json(index, row),
        "row": row,
        "outside": index.paper(row).stub,
        "sentences": [{"number": n, "text": text} for n, text in enumerate(index.sentence_texts(row))],
        "references": _list_papers(index, cited[cited >= 0]),
        "references_unknown": int((cited < 0).sum()),
        "cited_by": _list_papers(index, citing),
        "cited_by_count": len(citing),
    }


def _list_papers(index: Index, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
    """List papers by id, so that the order does not depend on the history of the index."""
    return [short_paper(index, row) for row in sorted(rows.tolist(), key=index.id)[:MAX_LISTED]]


# --- /embed ---

embed_router = APIRouter(route_class=StrictRoute, tags=["vectors"])


@embed_router.post("/embed", response_model=EmbedResponse, responses=failures(403, 415))
async def embed(server: CurrentServer, body: EmbedRequest) -> Response:
    """Return vectors of texts in the index's own space; a text without words gets zeros."""
    texts = [paper_text(one, "") if isinstance(one, str) else paper_text(one.title, one.abstract) for one in body.texts]

    def look_up(opened: OpenIndex) -> OpenIndex:
        opened.index.check_aspect(body.aspect)
        return opened

    opened = await server.run_on_index(body.index, look_up)
    encoder = opened.require_encoder().encoder
    assert isinstance(encoder, BatchedEncoder)
    # no thread is blocked here: texts of many requests can wait at once
    encoded = await asyncio.wrap_future(encoder.batcher.submit(texts))  # (texts, dimension)

    def finish() -> bytes:
        heads = opened.index.heads
        vectors = heads.project(encoded, body.aspect) if body.aspect and heads is not None else encoded
        vectors = np.ascontiguousarray(vectors, np.float32)
        label = opened.index.provenance.label if opened.index.provenance else encoder.name
        return Json.write({"model": label, "dimension": vectors.shape[1], "vectors": vectors})

    return Response(await server.workers.run(finish), media_type="application/json")


# --- /export ---

export_router = APIRouter(route_class=StrictRoute, tags=["papers"])

_FORMATS: dict[str, tuple[Callable[[Iterable[Any]], str], str, str]] = {
    "bibtex": (to_bibtex, "application/x-bibtex; charset=utf-8", "papers.bib"),
    "csv": (to_csv, "text/csv; charset=utf-8", "papers.csv"),
    "json": (to_json, "application/json", "papers.json"),
}
_FILES = {media.partition(";")[0]: {"schema": {"type": "string"}} for _, media, _ in _FORMATS.values()}


@export_router.post(
    "/export",
    response_class=Response,
    responses={**failures(403, 415), 200: {"description": "The file.", "content": _FILES}},
)
async def export(server: CurrentServer, body: ExportRequest) -> Response:
    """Return papers as BibTeX, CSV or JSON, ordered by id."""
    write, media, name = _FORMATS[body.format]

    def work(opened: OpenIndex) -> str:
        rows = [find_row(opened.index, id) for id in body.ids]
        return write([opened.index.paper(row) for row in rows])

    # a fixed file name: nothing from a client or a paper gets into a header
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(await server.run_on_index(body.index, work), media_type=media, headers=headers)


# --- /health and /metrics ---

health_router = APIRouter(route_class=StrictRoute, tags=["server"])

_NO_PAPERS = {"papers": 0, "around": 0, "with_vectors": 0, "with_sentences": 0, "with_abstract": 0}


@health_router.get("/health", response_model=HealthResponse)
async def health(server: CurrentServer) -> Response:
    """Report what the server has, what it is doing, and what it lacks."""
    return Json(await server.workers.run_reserved(_health_json, server))


@health_router.get("/metrics", responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})
async def metrics(server: CurrentServer) -> Response:
    """Return the counters in Prometheus's text format; each worker process has its own."""
    text = await server.workers.run_reserved(lambda: server.metrics.text(_gauges(server)))
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _count_index_papers(server: Server, name: str, index: Index) -> dict[str, int]:
    """Respond to GET /health: count the papers of an index and what they have, once per state."""
    key = ("counts", name)
    state, counts = server.cache.get(key, (None, {}))
    if state != index.number:
        counts = count_papers(index)
        server.cache[key] = (index.number, counts)
    return dict(counts)


def _describe_missing_data(counts: dict[str, int], opened: OpenIndex | None) -> list[str]:
    """Describe what the papers of an index lack for /health, one sentence each.

    >>> _describe_missing_data({"papers": 1900, "with_vectors": 1900, "with_sentences": 1900, "with_abstract": 1588}, None)
    ['312 of 1,900 papers have no abstract']
    """
    names = {"with_abstract": "abstract", "with_vectors": "vector yet", "with_sentences": "sentence vectors"}
    lines = []
    for key, name in names.items():
        without = counts["papers"] - counts[key]
        if without > 0 and (counts[key] or key != "with_sentences"):
            lines.append(f"{without:,} of {counts['papers']:,} papers have no {name}")
    if opened is not None and opened.no_encoder and counts["with_vectors"]:
        lines.append(f"texts are searched by their words only: {opened.no_encoder}")
    return lines


def _health_json(server: Server) -> dict[str, Any]:
    library = server.indexes.library
    health: dict[str, Any] = {"status": "starting", **_NO_PAPERS, "model": "", "reads_texts": False, "aspects": []}
    lacks: list[str] = []
    try:
        opened = server.indexes.get()
    except RefusedError:
        pass
    except CiteweaveError as error:
        health["status"] = "failing"
        lacks = [without_paths(str(error))]
    else:
        counts = _count_index_papers(server, opened.name, opened.index)
        provenance = opened.index.provenance
        health |= {"status": "ok", **counts, "model": provenance.label if provenance else ""}
        health |= {"reads_texts": opened.query_encoder is not None, "aspects": list(opened.index.aspects)}
        lacks = _describe_missing_data(counts, opened)
        if error_message := server.indexes.errors.get(opened.name):
            health["status"] = "failing"
            lacks.append(
                f"an older state is served, because the index can no longer be read: {without_paths(error_message)}"
            )
    working = library.working() if library else None
    lacks += [line for line in (library.missing_data() if library else ()) if line not in lacks]
    return {
        **health,
        "indexes": server.indexes.names,
        "working": None if working is None else dict(working),
        "lacks": lacks,
        "samples": "samples" in server.cache,
        "version": __version__,
    }


def _gauges(server: Server) -> dict[str, dict[str, float]]:
    papers, vectors, states = dict[str, float](), dict[str, float](), dict[str, float]()
    for name in server.indexes.names:
        try:
            index = server.indexes.get(name).index
        except (RefusedError, CiteweaveError):
            continue
        counts = _count_index_papers(server, name, index)
        papers[name], vectors[name], states[name] = counts["papers"], counts["with_vectors"], index.number
    return {"papers": papers, "papers_with_vectors": vectors, "state_number": states}
