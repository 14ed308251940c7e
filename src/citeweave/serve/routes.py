"""GET and POST /search, POST /search/batch, GET /similar: questions in, papers out.

GET /papers, /papers/{id} and /suggest: what the index knows of a paper, and titles that begin as somebody types.

An id may hold any sign, slashes too: /papers/doi:10.1/x and /papers/doi%3A10.1%2Fx are the same. It is looked up among
the ids of the index and nowhere else.

POST /embed: vectors of texts, encoded together with those of other requests.

POST /export: papers as a file for other programs.

GET /health and /metrics: whether the server is well, what it has and lacks, and its counters.

Both are answered by threads of their own, however busy the server is.
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

from citeweave.core.errors import CiteweaveError, UserError
from citeweave.corpus.text import paper_text
from citeweave.search.answer import allowed_rows, answer, needs_query_encoder
from citeweave.search.explain import explain
from citeweave.search.export import to_bibtex, to_csv, to_json
from citeweave.search.filters import Filter, count_facets, filter_rows
from citeweave.search.index import Index
from citeweave.search.query import Query
from citeweave.search.suggest import suggest as suggestions
from citeweave.serve.indexes import BatchedEncoder, Held, Opened, Server, row_of, short
from citeweave.serve.metrics import CONTENT_TYPE, count_papers
from citeweave.serve.responses import Json, RefusedError, StrictRoute, failure, without_paths
from citeweave.serve.schemas import (
    Answers,
    BatchRequest,
    Embedded,
    EmbedRequest,
    ExportRequest,
    Facets,
    Health,
    IndexParameters,
    PapersParameters,
    PapersResponse,
    SearchParameters,
    SearchRequest,
    SearchResponse,
    SimilarParameters,
    Suggestions,
    SuggestParameters,
    WholePaper,
    failures,
)
from citeweave.version import __version__

search_router = APIRouter(route_class=StrictRoute, tags=["search"])

MOST_EXPLAINED = 20


@search_router.get("/search", response_model=SearchResponse, responses=failures())
async def search_by_words(server: Held, asked: Annotated[SearchParameters, FromUrl()]) -> Response:
    """Search for a text given in the URL: a question, a title or an abstract."""
    return Json(await server.ask(asked.index, lambda opened: found(opened, asked.query(), with_facets=asked.facets)))


@search_router.post("/search", response_model=SearchResponse, responses=failures(403, 415))
async def search(server: Held, asked: SearchRequest) -> Response:
    """Search by a text, a paper, liked papers, selected sentences, or a passage of a draft."""
    return Json(await server.ask(asked.index, lambda opened: found(opened, asked.query(), with_facets=asked.facets)))


@search_router.post("/search/batch", response_model=Answers, responses=failures(403, 415))
async def search_batch(server: Held, asked: BatchRequest) -> Response:
    """Answer several queries in one request; a failed query leaves an error in its place."""

    def work(opened: Opened) -> dict[str, Any]:
        return {"answers": [_answered(opened, one.query()) for one in asked.queries]}

    return Json(await server.ask(asked.index, work))


@search_router.get("/similar", response_model=SearchResponse, responses=failures())
async def similar(server: Held, asked: Annotated[SimilarParameters, FromUrl()]) -> Response:
    """Return papers similar to a paper of the index, with reasons on request."""

    def work(opened: Opened) -> dict[str, Any]:
        made = found(opened, asked.query(), with_facets=asked.facets)
        if asked.explain:
            row = row_of(opened.index, asked.paper)
            for hit in made["hits"][:MOST_EXPLAINED]:
                hit["why"] = explain(opened.index, row, hit["row"]).brief()
        return made

    return Json(await server.ask(asked.index, work))


def found(opened: Opened, said: dict[str, Any], *, with_facets: bool = False) -> dict[str, Any]:
    """Return a search result as JSON, its hits with everything that the page shows."""
    query = Query.from_json(said)
    _check_papers(opened.index, query)
    if needs_query_encoder(query) and not _words_will_do(query):
        opened.need_reader()
    told = answer(opened.index, opened.reader, query).as_json()
    told["coming"] = opened.coming if told["by"] == "words" != query.by else ""
    told["hits"] = [_whole_hit(opened.index, hit) for hit in told["hits"]]
    return {**told, "facets": facets_json(opened.index, allowed_rows(opened.index, query)) if with_facets else None}


def facets_json(index: Index, mask: NDArray[np.bool_]) -> dict[str, Any]:
    """Return years, venues and fields of some papers, (size,), with counts, as JSON."""
    counts = count_facets(index, mask)
    return {**counts, "years": {str(year): count for year, count in counts["years"].items()}}


def _answered(opened: Opened, said: dict[str, Any]) -> dict[str, Any]:
    try:
        return found(opened, said)
    except RefusedError as error:
        return failure(error.words, coming=error.coming)
    except UserError as error:
        return failure(without_paths(str(error)))


def _words_will_do(query: Query) -> bool:
    """Return whether a text can be searched by words while the model is loading."""
    return query.kind == "text" and query.by != "vectors" and not query.aspect


def _check_papers(index: Index, query: Query) -> None:
    """Respond 404 for unknown papers before anything is computed."""
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


# GET /papers, /papers/{id} and /suggest: what the index knows of a paper, and titles that begin as somebody types.

papers_router = APIRouter(route_class=StrictRoute, tags=["papers"])

MOST_LISTED = 500
"""References and citing papers that are listed."""

_Id = Annotated[str, InPath(min_length=1, max_length=500, description="Any id of the paper, slashes included.")]


@papers_router.get("/papers", response_model=PapersResponse, responses=failures())
async def papers(server: Held, asked: Annotated[PapersParameters, FromUrl()]) -> Response:
    """Return several papers by id, in the requested order; unknown ids are listed."""

    def work(opened: Opened) -> dict[str, Any]:
        rows = opened.index.rows(asked.id).tolist()
        return {
            "papers": [paper_json(opened.index, row) for row in rows if row >= 0],
            "unknown": [id for id, row in zip(asked.id, rows, strict=True) if row < 0],
        }

    return Json(await server.ask(asked.index, work))


@papers_router.get("/papers/{id:path}", response_model=WholePaper, responses=failures())
async def paper(server: Held, id: _Id, asked: Annotated[IndexParameters, FromUrl()]) -> Response:
    """Return a paper with its sentences, its references and the papers that cite it."""
    return Json(await server.ask(asked.index, lambda opened: whole_paper(opened.index, row_of(opened.index, id))))


@papers_router.get("/suggest", response_model=Suggestions, responses=failures())
async def suggest(server: Held, asked: Annotated[SuggestParameters, FromUrl()]) -> Response:
    """Suggest words and titles that complete a typed text."""

    def work(opened: Opened) -> dict[str, Any]:
        made = []
        for one in suggestions(opened.index, asked.q, asked.count):
            about = {"id": None, "title": None, "year": None} if one.row is None else short(opened.index, one.row)
            made.append({"text": one.text, "papers": one.papers, **about})
        return {"suggestions": made}

    return Json(await server.ask(asked.index, work))


@papers_router.get("/facets", response_model=Facets, responses=failures())
async def all_facets(server: Held, asked: Annotated[IndexParameters, FromUrl()]) -> Response:
    """Return years, venues and fields of all papers of an index, with counts."""

    def work(opened: Opened) -> bytes:
        key = ("facets", opened.name)
        state, made = server.kept.get(key, (None, b""))
        if state != opened.index.number:
            made = Json.write(facets_json(opened.index, filter_rows(opened.index, Filter(local=True))))
            server.kept[key] = (opened.index.number, made)
        return bytes(made)

    return Response(await server.ask(asked.index, work), media_type="application/json")


def paper_json(index: Index, row: int) -> dict[str, Any]:
    one = index.paper(row)
    return {
        "id": one.id,
        "title": one.title,
        "abstract": one.abstract,
        "year": one.year,
        "venue": one.venue,
        "authors": list(one.authors),
        "fields": list(one.fields),
        "ids": list(one.ids),
    }


def whole_paper(index: Index, row: int) -> dict[str, Any]:
    keys = index.references(row)
    cited = index.rows_of_keys(keys)  # (references,), -1 where not in the index
    citing = np.asarray(index.citing(index.key_of(row)))
    return {
        **paper_json(index, row),
        "row": row,
        "outside": index.paper(row).stub,
        "sentences": [{"number": n, "text": text} for n, text in enumerate(index.sentence_texts(row))],
        "references": _listed(index, cited[cited >= 0]),
        "references_unknown": int((cited < 0).sum()),
        "cited_by": _listed(index, citing),
        "cited_by_count": len(citing),
    }


def _listed(index: Index, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
    """List papers by id, so that the order does not depend on the history of the index."""
    return [short(index, row) for row in sorted(rows.tolist(), key=index.id)[:MOST_LISTED]]


# POST /embed: vectors of texts, encoded together with those of other requests.

embed_router = APIRouter(route_class=StrictRoute, tags=["vectors"])


@embed_router.post("/embed", response_model=Embedded, responses=failures(403, 415))
async def embed(server: Held, asked: EmbedRequest) -> Response:
    """Return vectors of texts in the index's own space; a text without words gets zeros."""
    texts = [
        paper_text(one, "") if isinstance(one, str) else paper_text(one.title, one.abstract) for one in asked.texts
    ]

    def look_up(opened: Opened) -> Opened:
        opened.index.check_aspect(asked.aspect)
        return opened

    opened = await server.ask(asked.index, look_up)
    encoder = opened.need_reader().encoder
    assert isinstance(encoder, BatchedEncoder)
    # no thread waits here: the texts of many requests can wait at once
    made = await asyncio.wrap_future(encoder.batcher.submit(texts))  # (texts, dimension)

    def finish() -> bytes:
        heads = opened.index.heads
        vectors = heads.project(made, asked.aspect) if asked.aspect and heads is not None else made
        vectors = np.ascontiguousarray(vectors, np.float32)
        label = opened.index.provenance.label if opened.index.provenance else encoder.name
        return Json.write({"model": label, "dimension": vectors.shape[1], "vectors": vectors})

    return Response(await server.workers.run(finish), media_type="application/json")


# POST /export: papers as a file for other programs.

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
async def export(server: Held, asked: ExportRequest) -> Response:
    """Return papers as BibTeX, CSV or JSON, ordered by id."""
    write, media, name = _FORMATS[asked.format]

    def work(opened: Opened) -> str:
        rows = [row_of(opened.index, id) for id in asked.ids]
        return write([opened.index.paper(row) for row in rows])

    # the file's name is ours: nothing of a client or of a paper gets into a header
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(await server.ask(asked.index, work), media_type=media, headers=headers)


# GET /health and /metrics: whether the server is well, what it has and lacks, and its counters.

health_router = APIRouter(route_class=StrictRoute, tags=["server"])

_EMPTY = {"papers": 0, "around": 0, "with_vectors": 0, "with_sentences": 0, "with_abstract": 0}


@health_router.get("/health", response_model=Health)
async def health(server: Held) -> Response:
    """Report what the server has, what it is doing, and what it lacks."""
    return Json(await server.workers.run_aside(_health, server))


@health_router.get("/metrics", responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})
async def metrics(server: Held) -> Response:
    """Return the counters in Prometheus's text format; each worker process has its own."""
    text = await server.workers.run_aside(lambda: server.metrics.text(_gauges(server)))
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


def counts_of(server: Server, name: str, index: Index) -> dict[str, int]:
    """Count the papers of an index and what they have, once per state."""
    key = ("counts", name)
    state, counts = server.kept.get(key, (None, {}))
    if state != index.number:
        counts = count_papers(index)
        server.kept[key] = (index.number, counts)
    return dict(counts)


def lacks_of(counts: dict[str, int], opened: Opened) -> list[str]:
    """
    >>> lacks_of({"papers": 1900, "with_vectors": 1900, "with_sentences": 1900, "with_abstract": 1588}, None)
    ['312 of 1,900 papers have no abstract']
    """
    names = {"with_abstract": "abstract", "with_vectors": "vector yet", "with_sentences": "sentence vectors"}
    lacks = []
    for key, name in names.items():
        without = counts["papers"] - counts[key]
        if without > 0 and (counts[key] or key != "with_sentences"):
            lacks.append(f"{without:,} of {counts['papers']:,} papers have no {name}")
    if opened is not None and opened.why and counts["with_vectors"]:
        lacks.append(f"texts are searched by their words only: {opened.why}")
    return lacks


def _health(server: Server) -> dict[str, Any]:
    library = server.shelf.library
    told: dict[str, Any] = {"status": "starting", **_EMPTY, "model": "", "reads_texts": False, "aspects": []}
    lacks: list[str] = []
    try:
        opened = server.shelf.get()
    except RefusedError:
        pass
    except CiteweaveError as error:
        told["status"] = "failing"
        lacks = [without_paths(str(error))]
    else:
        counts = counts_of(server, opened.name, opened.index)
        provenance = opened.index.provenance
        told |= {"status": "ok", **counts, "model": provenance.label if provenance else ""}
        told |= {"reads_texts": opened.reader is not None, "aspects": list(opened.index.aspects)}
        lacks = lacks_of(counts, opened)
        if trouble := server.shelf.troubles.get(opened.name):
            told["status"] = "failing"
            lacks.append(f"an older state is served, as the index cannot be read any more: {without_paths(trouble)}")
    working = library.working() if library else None
    lacks += [line for line in (library.lacks() if library else ()) if line not in lacks]
    return {
        **told,
        "indexes": server.shelf.names,
        "working": None if working is None else dict(working),
        "lacks": lacks,
        "samples": "samples" in server.kept,
        "version": __version__,
    }


def _gauges(server: Server) -> dict[str, dict[str, float]]:
    papers, vectors, states = dict[str, float](), dict[str, float](), dict[str, float]()
    for name in server.shelf.names:
        try:
            index = server.shelf.get(name).index
        except (RefusedError, CiteweaveError):
            continue
        counts = counts_of(server, name, index)
        papers[name], vectors[name], states[name] = counts["papers"], counts["with_vectors"], index.number
    return {"papers": papers, "papers_with_vectors": vectors, "state_number": states}
