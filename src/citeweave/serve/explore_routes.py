"""Routes for exploring: GET /explain, /neighborhood, /lacking, /map, /map/titles and /samples.

/explain says why two papers are similar, /neighborhood what cites and is cited by a paper, /lacking which cited papers
are missing from the index. /map returns all papers as points of a plane, computed in the background once per state of an
index. /samples shows mined training samples, if the server was started with --samples.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Response
from fastapi import Query as FromUrl

from citeweave.core.errors import CiteweaveError, UserError
from citeweave.corpus.corpus import Corpus
from citeweave.mining.samples import Picks, Samples
from citeweave.search.explain import explain, find_missing_papers, find_neighborhood
from citeweave.search.index import Index
from citeweave.serve.indexes import CurrentServer, OpenIndex, find_row, short_paper
from citeweave.serve.responses import Json, RefusedError, StrictRoute, printable, unknown_paper, without_paths
from citeweave.serve.schemas import (
    ExplainParameters,
    ExplainResponse,
    IndexParameters,
    MapPending,
    MissingPaperResponse,
    MissingParameters,
    NeighborhoodParameters,
    NeighborhoodResponse,
    SamplePage,
    SamplesParameters,
    TitlesParameters,
    TitlesResponse,
    failures,
)

explain_router = APIRouter(route_class=StrictRoute, tags=["reasons"])


@explain_router.get("/explain", response_model=ExplainResponse, responses=failures())
async def explain_pair(server: CurrentServer, parameters: Annotated[ExplainParameters, FromUrl()]) -> Response:
    """Explain why two papers are similar: aligned sentences, shared references, common citing papers, words."""

    def work(opened: OpenIndex) -> dict[str, Any]:
        left, right = find_row(opened.index, parameters.left), find_row(opened.index, parameters.right)
        return explain(opened.index, left, right).as_json()

    return Json(await server.run_on_index(parameters.index, work))


@explain_router.get("/neighborhood", response_model=NeighborhoodResponse, responses=failures())
async def neighborhood(server: CurrentServer, parameters: Annotated[NeighborhoodParameters, FromUrl()]) -> Response:
    """Return the papers that a paper cites or is cited by, and the citations among them."""

    def work(opened: OpenIndex) -> dict[str, Any]:
        return find_neighborhood(
            opened.index, find_row(opened.index, parameters.paper), max_papers=parameters.most
        ).as_json()

    return Json(await server.run_on_index(parameters.index, work))


@explain_router.get("/lacking", response_model=MissingPaperResponse, responses=failures())
async def missing(server: CurrentServer, parameters: Annotated[MissingParameters, FromUrl()]) -> Response:
    """Return papers that many papers of the index cite but that are not in it."""

    def work(opened: OpenIndex) -> dict[str, Any]:
        return {"papers": [paper.as_json() for paper in find_missing_papers(opened.index, parameters.most)]}

    return Json(await server.run_on_index(parameters.index, work))


# --- /map ---

map_router = APIRouter(route_class=StrictRoute, tags=["map"])

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


@map_router.get(
    "/map", responses={**failures(), 202: {"model": MapPending, "description": "The map is being computed."}}
)
async def get_map(server: CurrentServer, parameters: Annotated[IndexParameters, FromUrl()]) -> Response:
    """Return every paper as a map point: positions, years, fields and clusters as base64 numbers."""
    maps: MapCache = server.cache["maps"]
    library = server.indexes.library
    working = library.working() if library else None  # while papers are added, a map would soon be outdated
    content = await server.run_on_index(parameters.index, lambda opened: maps.get(opened, wait=working is not None))
    if content is None:
        body = {"working": dict(working) if working else {"what": "mapping"}}
        return Json(body, status_code=202, headers={"Retry-After": "2"})
    return Response(content, media_type="application/json")


@map_router.get("/map/titles", response_model=TitlesResponse, responses=failures())
async def titles(server: CurrentServer, parameters: Annotated[TitlesParameters, FromUrl()]) -> Response:
    """Return the titles of map points by row; deleted rows are left out."""

    def work(opened: OpenIndex) -> dict[str, Any]:
        index = opened.index
        rows = {row for row in map(int, parameters.rows.split(",")) if row < index.size}
        return {"titles": {str(row): short_paper(index, row) for row in sorted(rows)}}

    return Json(await server.run_on_index(parameters.index, work))


# --- /samples ---

samples_router = APIRouter(route_class=StrictRoute, tags=["samples"])

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


@samples_router.get("/samples", response_model=SamplePage, responses=failures())
async def samples(server: CurrentServer, parameters: Annotated[SamplesParameters, FromUrl()]) -> Response:
    """Return mined samples: an anchor, its positives and negatives, and the rule that selected each."""
    browser = server.cache.get("samples")
    if browser is None:
        raise RefusedError(404, "this server has no samples; start it with --samples FOLDER --corpus FOLDER")
    return Json(await server.workers.run(browser.page, parameters.anchor, parameters.start, parameters.count))
