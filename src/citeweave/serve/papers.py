"""GET /papers, /papers/{id} and /suggest: what the index knows of a paper, and titles that begin as somebody types.

An id may hold any sign, slashes too: /papers/doi:10.1/x and /papers/doi%3A10.1%2Fx are the same. It is looked up among
the ids of the index and nowhere else.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Response
from fastapi import Path as InPath
from fastapi import Query as FromUrl
from numpy.typing import NDArray

from citeweave.search.filters import Filter, filter_rows
from citeweave.search.index import Index
from citeweave.search.words import suggest as suggestions
from citeweave.serve.answers import Facets, Papers, Suggestions, WholePaper, failures
from citeweave.serve.opening import Opened
from citeweave.serve.requests import IndexParameters, PapersParameters, SuggestParameters
from citeweave.serve.routing import Json, StrictRoute
from citeweave.serve.searching import facets_json
from citeweave.serve.serving import Held, row_of, short

router = APIRouter(route_class=StrictRoute, tags=["papers"])

MOST_LISTED = 500
"""References and citing papers that are listed."""

_Id = Annotated[str, InPath(min_length=1, max_length=500, description="Any id of the paper, slashes included.")]


@router.get("/papers", response_model=Papers, responses=failures())
async def papers(server: Held, asked: Annotated[PapersParameters, FromUrl()]) -> Response:
    """Several papers by their ids, in the order asked for; those that are not there are listed."""

    def work(opened: Opened) -> dict[str, Any]:
        rows = opened.index.rows(asked.id).tolist()
        return {
            "papers": [paper_json(opened.index, row) for row in rows if row >= 0],
            "unknown": [id for id, row in zip(asked.id, rows, strict=True) if row < 0],
        }

    return Json(await server.ask(asked.index, work))


@router.get("/papers/{id:path}", response_model=WholePaper, responses=failures())
async def paper(server: Held, id: _Id, asked: Annotated[IndexParameters, FromUrl()]) -> Response:
    """A paper with its sentences, its references and who cites it."""
    return Json(await server.ask(asked.index, lambda opened: whole_paper(opened.index, row_of(opened.index, id))))


@router.get("/suggest", response_model=Suggestions, responses=failures())
async def suggest(server: Held, asked: Annotated[SuggestParameters, FromUrl()]) -> Response:
    """Words and titles that go on as the text begins."""

    def work(opened: Opened) -> dict[str, Any]:
        made = []
        for one in suggestions(opened.index, asked.q, asked.count):
            about = {"id": None, "title": None, "year": None} if one.row is None else short(opened.index, one.row)
            made.append({"text": one.text, "papers": one.papers, **about})
        return {"suggestions": made}

    return Json(await server.ask(asked.index, work))


@router.get("/facets", response_model=Facets, responses=failures())
async def all_facets(server: Held, asked: Annotated[IndexParameters, FromUrl()]) -> Response:
    """Years, venues and fields of all papers, with their counts."""

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
    """Papers by their ids, so that the list does not depend on how the index came to be."""
    return [short(index, row) for row in sorted(rows.tolist(), key=index.id)[:MOST_LISTED]]
