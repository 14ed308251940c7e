"""GET /explain, /neighbourhood and /lacking: why two papers are near, what is around one, what is missing."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Response
from fastapi import Query as FromUrl

from citeweave.search.asking.explaining import explain
from citeweave.search.asking.graphing import lacking, neighbourhood
from citeweave.serve.answers import Explanation, Lacking, Neighbourhood, failures
from citeweave.serve.opening import Opened
from citeweave.serve.requests import ExplainParameters, LackingParameters, NeighbourhoodParameters
from citeweave.serve.routing import Json, StrictRoute
from citeweave.serve.serving import Held, row_of

router = APIRouter(route_class=StrictRoute, tags=["reasons"])


@router.get("/explain", response_model=Explanation, responses=failures())
async def explain_pair(server: Held, asked: Annotated[ExplainParameters, FromUrl()]) -> Response:
    """Why two papers are near: aligned sentences, shared references, common citing papers, words."""

    def work(opened: Opened) -> dict[str, Any]:
        left, right = row_of(opened.index, asked.left), row_of(opened.index, asked.right)
        return explain(opened.index, left, right).as_json()

    return Json(await server.ask(asked.index, work))


@router.get("/neighbourhood", response_model=Neighbourhood, responses=failures())
async def around(server: Held, asked: Annotated[NeighbourhoodParameters, FromUrl()]) -> Response:
    """The papers that a paper cites and those that cite it, and the citations among all of them."""

    def work(opened: Opened) -> dict[str, Any]:
        return neighbourhood(opened.index, row_of(opened.index, asked.paper), most=asked.most).as_json()

    return Json(await server.ask(asked.index, work))


@router.get("/lacking", response_model=Lacking, responses=failures())
async def missing(server: Held, asked: Annotated[LackingParameters, FromUrl()]) -> Response:
    """Papers that many of the index cite, and that are not in it."""

    def work(opened: Opened) -> dict[str, Any]:
        return lacking(opened.index, most=asked.most).as_json()

    return Json(await server.ask(asked.index, work))
