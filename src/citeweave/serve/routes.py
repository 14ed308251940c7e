"""Routes of the API: /search, /search/batch, /similar, /papers, /suggest, /facets, /embed, /export, /explain, and others.

GET /explain says why two papers are similar, /neighborhood what cites and is cited by a paper, /lacking which cited papers
are missing from the index. /map returns all papers as points of a plane, computed in the background once per state of an
index. /samples shows mined training samples, if the server was started with --samples. `health.py` has /health. An id may hold any character, slashes too: /papers/doi:10.1/x and
/papers/doi%3A10.1%2Fx are the same. It is looked up among the ids of the index and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Response
from fastapi import Path as InPath
from fastapi import Query as FromUrl
from numpy.typing import NDArray

from citeweave.core.errors import CiteweaveError, UserError
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.text import paper_text
from citeweave.mining.samples import Picks, Samples
from citeweave.search.answer import allowed_rows, answer, needs_query_encoder
from citeweave.search.explain import discoveries_as_json, explain, find_neighborhood
from citeweave.search.export import paper_json, to_bibtex, to_csv, to_json, to_ris
from citeweave.search.filters import filter_rows
from citeweave.search.index import Index
from citeweave.search.look_up import look_up
from citeweave.search.query import Filter, Query
from citeweave.search.words import suggest as suggestions
from citeweave.serve import schemas
from citeweave.serve.indexes import BatchedEncoder, CurrentServer, OpenIndex
from citeweave.serve.responses import (
    Json,
    RefusedError,
    StrictRoute,
    facets_json,
    failure,
    find_row,
    hit_json,
    paper_details_json,
    printable,
    short_paper,
    unknown_paper,
    without_paths,
)

router = APIRouter(route_class=StrictRoute, responses=schemas.failures())
_OF_POST = schemas.failures(403, 415)

MAX_EXPLAINED = 20
"""Maximum hits of /similar that are explained."""


@router.get("/search", tags=["search"], response_model=schemas.SearchResponse)
async def search_by_words(
    server: CurrentServer, parameters: Annotated[schemas.SearchParameters, FromUrl()]
) -> Response:
    """Search for a text given in the URL: a question, a title or an abstract."""
    return await server.respond(
        parameters.index, lambda opened: _search_json(opened, parameters.query(), with_facets=parameters.facets)
    )


@router.post("/search", tags=["search"], response_model=schemas.SearchResponse, responses=_OF_POST)
async def search(server: CurrentServer, body: schemas.SearchRequest) -> Response:
    """Search by a text, a paper, liked papers, selected sentences, or a passage of a draft."""
    return await server.respond(body.index, lambda opened: _search_json(opened, body.query(), with_facets=body.facets))


@router.post("/search/batch", tags=["search"], response_model=schemas.BatchResponse, responses=_OF_POST)
async def search_batch(server: CurrentServer, body: schemas.BatchRequest) -> Response:
    """Answer several queries in one request; a failed query leaves an error in its place."""
    return await server.respond(
        body.index, lambda opened: {"answers": [_search_or_failure(opened, query.query()) for query in body.queries]}
    )


@router.get("/similar", tags=["search"], response_model=schemas.SearchResponse)
async def similar(server: CurrentServer, parameters: Annotated[schemas.SimilarParameters, FromUrl()]) -> Response:
    """Return papers similar to a paper of the index, with reasons on request."""

    def work(opened: OpenIndex) -> dict[str, Any]:
        result = _search_json(opened, parameters.query(), with_facets=parameters.facets)
        if parameters.explain:
            row = find_row(opened.index, parameters.paper)
            for hit in result["hits"][:MAX_EXPLAINED]:
                hit["why"] = explain(opened.index, row, hit["row"]).brief()
        return result

    return await server.respond(parameters.index, work)


def _search_json(opened: OpenIndex, fields: dict[str, Any], *, with_facets: bool = False) -> dict[str, Any]:
    """Respond to /search: a search result as JSON, its hits with everything that the page shows."""
    query = Query.from_json(fields)
    _check_papers(opened.index, query)
    if needs_query_encoder(query, opened.index) and not _can_use_words(query):
        opened.require_encoder()
    result = answer(opened.index, opened.query_encoder, query).as_json()
    result["coming"] = opened.coming if result["by"] == "words" != query.by else ""
    result["hits"] = [hit_json(opened.index, hit) for hit in result["hits"]]
    return {**result, "facets": _query_facets(opened.index, query) if with_facets else None}


def _query_facets(index: Index, query: Query) -> dict[str, Any]:
    """Count facets of the papers that a query's filter admits; names without the condition of their own kind, to offer more."""
    found = look_up(index, query)
    named = None if found.mask is not None or query.kind != "text" or not found.is_listing else found.first

    def rows(part: Query) -> NDArray[Any]:
        allowed = allowed_rows(index, part, found)
        return allowed if named is None else named[allowed[named]]

    counts = facets_json(index, rows(query))
    for kind in (counts.keys() - {"years"}) & query.where.as_json().keys():
        no_names: dict[str, Any] = {kind: ()}
        where = replace(query.where, **no_names)
        counts[kind] = facets_json(index, rows(replace(query, where=where)), kind)[kind]
    return counts


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


# --- /papers, /suggest and /facets ---

_Id = Annotated[str, InPath(min_length=1, max_length=500, description="Any id of the paper, slashes included.")]


@router.get("/papers", tags=["papers"], response_model=schemas.PapersResponse)
async def papers(server: CurrentServer, parameters: Annotated[schemas.PapersParameters, FromUrl()]) -> Response:
    """Return several papers by id, in the requested order; unknown ids are listed."""

    def work(opened: OpenIndex) -> dict[str, Any]:
        rows = opened.index.rows(parameters.id).tolist()
        return {
            "papers": [paper_json(opened.index.paper(row)) for row in rows if row >= 0],
            "unknown": [id for id, row in zip(parameters.id, rows, strict=True) if row < 0],
        }

    return await server.respond(parameters.index, work)


@router.get("/papers/{id:path}", tags=["papers"], response_model=schemas.PaperDetails)
async def paper(server: CurrentServer, id: _Id, parameters: Annotated[schemas.IndexParameters, FromUrl()]) -> Response:
    """Return a paper with its sentences, its references and the papers that cite it."""
    return await server.respond(
        parameters.index, lambda opened: paper_details_json(opened.index, find_row(opened.index, id))
    )


@router.get("/suggest", tags=["papers"], response_model=schemas.SuggestResponse)
async def suggest(server: CurrentServer, parameters: Annotated[schemas.SuggestParameters, FromUrl()]) -> Response:
    """Suggest words and titles that complete a typed text."""

    def work(opened: OpenIndex) -> dict[str, Any]:
        found = []
        for one in suggestions(opened.index, parameters.q, parameters.count):
            paper = {"id": None, "title": None, "year": None} if one.row is None else short_paper(opened.index, one.row)
            found.append({"text": one.text, "papers": one.papers, **paper})
        return {"suggestions": found}

    return await server.respond(parameters.index, work)


@router.get("/facets", tags=["papers"], response_model=schemas.FacetsResponse)
async def all_facets(server: CurrentServer, parameters: Annotated[schemas.IndexParameters, FromUrl()]) -> Response:
    """Return years, venues, authors, fields, keywords and collections of all papers of an index, with counts."""

    def count(index: Index) -> dict[str, Any]:
        return facets_json(index, filter_rows(index, Filter(local=True)))

    return await server.respond(
        parameters.index, lambda opened: server.once_per_state("facets", opened.name, opened.index, count)
    )


# --- /embed ---


@router.post("/embed", tags=["vectors"], response_model=schemas.EmbedResponse, responses=_OF_POST)
async def embed(server: CurrentServer, body: schemas.EmbedRequest) -> Response:
    """Return vectors of texts in the index's own space; a text without words gets zeros."""
    texts = [paper_text(one, "") if isinstance(one, str) else paper_text(one.title, one.abstract) for one in body.texts]

    opened = await server.run_on_index(body.index, lambda opened: opened)
    opened.index.check_aspect(body.aspect)
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

_FORMATS: dict[str, tuple[Callable[[Iterable[Any]], str], str, str]] = {
    "bibtex": (to_bibtex, "application/x-bibtex; charset=utf-8", "papers.bib"),
    "ris": (to_ris, "application/x-research-info-systems; charset=utf-8", "papers.ris"),
    "csv": (to_csv, "text/csv; charset=utf-8", "papers.csv"),
    "json": (to_json, "application/json", "papers.json"),
}
_FILES = {media.partition(";")[0]: {"schema": {"type": "string"}} for _, media, _ in _FORMATS.values()}


@router.post(
    "/export",
    tags=["papers"],
    response_class=Response,
    responses={**_OF_POST, 200: {"description": "The file.", "content": _FILES}},
)
async def export(server: CurrentServer, body: schemas.ExportRequest) -> Response:
    """Return papers as BibTeX, RIS, CSV or JSON, ordered by id."""
    write, media, name = _FORMATS[body.format]

    def work(opened: OpenIndex) -> str:
        rows = [find_row(opened.index, id) for id in body.ids]
        return write([opened.index.paper(row) for row in rows])

    # a fixed file name: nothing from a client or a paper gets into a header
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(await server.run_on_index(body.index, work), media_type=media, headers=headers)


# --- /explain, /neighborhood and /lacking ---


@router.get("/explain", tags=["reasons"], response_model=schemas.ExplainResponse)
async def explain_pair(server: CurrentServer, parameters: Annotated[schemas.ExplainParameters, FromUrl()]) -> Response:
    """Explain why two papers are similar: aligned sentences, shared references, common citing papers, words."""

    def work(opened: OpenIndex) -> dict[str, Any]:
        left, right = find_row(opened.index, parameters.left), find_row(opened.index, parameters.right)
        return explain(opened.index, left, right).as_json()

    return await server.respond(parameters.index, work)


@router.get("/neighborhood", tags=["reasons"], response_model=schemas.NeighborhoodResponse)
async def neighborhood(
    server: CurrentServer, parameters: Annotated[schemas.NeighborhoodParameters, FromUrl()]
) -> Response:
    """Return the papers that a paper cites or is cited by, and the citations among them."""

    def work(opened: OpenIndex) -> dict[str, Any]:
        row = find_row(opened.index, parameters.paper)
        return find_neighborhood(opened.index, row, parameters.most).as_json()

    return await server.respond(parameters.index, work)


@router.get("/lacking", tags=["reasons"], response_model=schemas.MissingPaperResponse)
async def missing(server: CurrentServer, parameters: Annotated[schemas.MissingParameters, FromUrl()]) -> Response:
    """Return papers that are not in the index: those that many of its papers cite, and those that cite it."""
    return await server.respond(parameters.index, lambda opened: discoveries_as_json(opened.index, parameters.most))


# --- /map ---

LOG = logging.getLogger("citeweave.serve")


@dataclass(slots=True)
class MapCache:
    """Responses of the exploring route GET /map: the newest map of every index as bytes, and the maps being computed."""

    maps: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    failed: dict[tuple[str, int], str] = field(default_factory=dict)
    computing: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, opened: OpenIndex, *, wait: bool) -> bytes | None:
        """Respond to GET /map: the map of the index's current state; None while it is computed, or not yet begun because of `wait`."""
        from citeweave.search.map import find_map

        name, index = opened.name, opened.index
        state, content = self.maps.get(name, (-1, b""))
        if state == index.number:
            return content
        if why := self.failed.get((name, index.number)):
            raise RefusedError(404, why)
        if (saved := find_map(index)) is not None:
            self.maps[name] = (index.number, Json.write(saved.as_json()))
            return self.maps[name][1]
        with self.lock:
            if name not in self.computing and not wait:
                self.computing.add(name)
                threading.Thread(target=self._compute, args=(name, index), name="citeweave-map", daemon=True).start()
        return None

    def _compute(self, name: str, index: Index) -> None:
        from citeweave.search.map import make_map

        try:
            self.maps[name] = (index.number, Json.write(make_map(index).as_json()))
        except CiteweaveError as error:
            self.failed = {(name, index.number): without_paths(str(error))}
        except Exception as error:  # nobody catches what a thread raises
            LOG.error("the map of %s cannot be computed (%s: %s)", name, type(error).__name__, printable(str(error)))
            self.failed = {(name, index.number): "the map cannot be computed; see the server's log"}
        finally:
            with self.lock:
                self.computing.discard(name)


@router.get(
    "/map", tags=["map"], responses={202: {"model": schemas.MapPending, "description": "The map is being computed."}}
)
async def get_map(server: CurrentServer, parameters: Annotated[schemas.IndexParameters, FromUrl()]) -> Response:
    """Return every paper as a map point: positions, years, fields and clusters as base64 numbers."""
    maps: MapCache = server.cache["maps"]
    library = server.indexes.library
    working = library.working() if library else None  # while papers are added, a map would soon be outdated
    content = await server.run_on_index(parameters.index, lambda opened: maps.get(opened, wait=working is not None))
    if content is None:
        body = {"working": dict(working) if working else {"what": "mapping"}}
        return Json(body, status_code=202, headers={"Retry-After": "2"})
    return Response(content, media_type="application/json")


@router.get("/map/titles", tags=["map"], response_model=schemas.TitlesResponse)
async def titles(server: CurrentServer, parameters: Annotated[schemas.TitlesParameters, FromUrl()]) -> Response:
    """Return the titles of map points by row; deleted rows are left out."""

    def work(opened: OpenIndex) -> dict[str, Any]:
        index = opened.index
        rows = {row for row in map(int, parameters.rows.split(",")) if row < index.size}
        return {"titles": {str(row): short_paper(index, row) for row in sorted(rows)}}

    return await server.respond(parameters.index, work)


# --- /samples ---

MAX_PICKS = 100
"""Maximum positives, and negatives, of a sample that are listed."""


@dataclass(frozen=True, slots=True)
class SampleBrowser:
    """Mined samples with the corpus that they refer to, for the exploring route GET /samples."""

    samples: Samples
    corpus: Corpus

    @classmethod
    def open(cls, samples: str | Path, corpus: str | Path) -> SampleBrowser:
        if not corpus:
            raise UserError("--samples refers to rows of a corpus; give the corpus they were mined from with --corpus")
        opened, papers = Samples.open(samples), Corpus.open(Path(corpus))
        opened.check_corpus(papers.hash, papers.folder)
        return cls(opened, papers)

    def page(self, anchor: str, start: int, count: int) -> dict[str, Any]:
        """Respond to GET /samples of the exploring routes: a page of mined samples, all of them or those of one paper."""
        if anchor:
            row = int(self.corpus.rows([anchor])[0])
            if row < 0:
                raise unknown_paper(anchor)
            numbers = np.flatnonzero(self.samples.anchors == row)  # (samples of the anchor,)
            total, chosen = len(numbers), numbers[start : start + count].tolist()
        else:
            total = len(self.samples)
            chosen = list(range(min(start, total), min(start + count, total)))
        return {"total": total, "start": start, "samples": [self._sample(number) for number in chosen]}

    def _sample(self, number: int) -> dict[str, Any]:
        anchor = int(self.samples.anchors[number])
        return {
            "anchor": {"id": self.corpus.ids[anchor], "title": self.corpus.titles[anchor]},
            "aspect": self.samples.names.aspects[int(self.samples.aspects[number])],
            "positives": self._picks(self.samples.positives, number),
            "negatives": self._picks(self.samples.negatives, number),
        }

    def _picks(self, picks: Picks, number: int) -> list[dict[str, Any]]:
        start = int(picks.offsets[number])
        end = min(int(picks.offsets[number + 1]), start + MAX_PICKS)
        parts = (picks.rows[start:end].tolist(), picks.rules[start:end].tolist(), picks.scores[start:end].tolist())
        return [
            {
                "id": self.corpus.ids[row],
                "title": self.corpus.titles[row],
                "rule": self.samples.names.rules[rule],
                "score": score if np.isfinite(score) else None,
            }
            for row, rule, score in zip(*parts, strict=True)
        ]


@router.get("/samples", tags=["samples"], response_model=schemas.SamplePage)
async def samples(server: CurrentServer, parameters: Annotated[schemas.SamplesParameters, FromUrl()]) -> Response:
    """Return mined samples: an anchor, its positives and negatives, and the rule that selected each."""
    browser = server.cache.get("samples")
    if browser is None:
        raise RefusedError(404, "this server has no samples; start it with --samples FOLDER --corpus FOLDER")
    return Json(await server.workers.run(browser.page, parameters.anchor, parameters.start, parameters.count))
