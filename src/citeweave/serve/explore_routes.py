"""GET /explain, /neighborhood and /lacking: why two papers are near, what is around one, what is missing.

GET /map and /map/titles: all papers as points of a plane, made once a state by a thread of its own.

GET /samples: mined training samples, for looking at them. Only where the server was started with --samples.
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
from citeweave.search.explain import explain
from citeweave.search.index import Index
from citeweave.search.neighborhood import find_missing_papers, find_neighborhood
from citeweave.serve.indexes import Held, Opened, row_of, short
from citeweave.serve.responses import Json, RefusedError, StrictRoute, printable, unknown_paper, without_paths
from citeweave.serve.schemas import (
    ExplainParameters,
    ExplainResponse,
    IndexParameters,
    LackingParameters,
    MapWorking,
    MissingPaperResponse,
    NeighborhoodParameters,
    NeighborhoodResponse,
    SamplePage,
    SamplesParameters,
    Titles,
    TitlesParameters,
    failures,
)

explain_router = APIRouter(route_class=StrictRoute, tags=["reasons"])


@explain_router.get("/explain", response_model=ExplainResponse, responses=failures())
async def explain_pair(server: Held, asked: Annotated[ExplainParameters, FromUrl()]) -> Response:
    """Explain why two papers are similar: aligned sentences, shared references, common citing papers, words."""

    def work(opened: Opened) -> dict[str, Any]:
        left, right = row_of(opened.index, asked.left), row_of(opened.index, asked.right)
        return explain(opened.index, left, right).as_json()

    return Json(await server.ask(asked.index, work))


@explain_router.get("/neighborhood", response_model=NeighborhoodResponse, responses=failures())
async def around(server: Held, asked: Annotated[NeighborhoodParameters, FromUrl()]) -> Response:
    """Return the papers that a paper cites or is cited by, and the citations among them."""

    def work(opened: Opened) -> dict[str, Any]:
        return find_neighborhood(opened.index, row_of(opened.index, asked.paper), max_papers=asked.most).as_json()

    return Json(await server.ask(asked.index, work))


@explain_router.get("/lacking", response_model=MissingPaperResponse, responses=failures())
async def missing(server: Held, asked: Annotated[LackingParameters, FromUrl()]) -> Response:
    """Return papers that many papers of the index cite but that are not in it."""

    def work(opened: Opened) -> dict[str, Any]:
        return find_missing_papers(opened.index, max_papers=asked.most).as_json()

    return Json(await server.ask(asked.index, work))


# GET /map and /map/titles: all papers as points of a plane, made once a state by a thread of its own.

map_router = APIRouter(route_class=StrictRoute, tags=["map"])

LOG = logging.getLogger("citeweave.serve")


@dataclass(slots=True)
class MapRoom:
    """The newest map of every index as bytes, and the maps being computed."""

    maps: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    failed: dict[tuple[str, int], str] = field(default_factory=dict)
    making: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, opened: Opened, *, later: bool) -> bytes | None:
        """Return the map of the index's current state; None while it is being computed."""
        from citeweave.search.map import find_map

        name, index = opened.name, opened.index
        state, made = self.maps.get(name, (-1, b""))
        if state == index.number:
            return made
        if why := self.failed.get((name, index.number)):
            raise RefusedError(404, why)
        if (known := find_map(index)) is not None:
            self.maps[name] = (index.number, Json.write(known.as_json()))
            return self.maps[name][1]
        with self.lock:
            if name not in self.making and not later:
                self.making.add(name)
                threading.Thread(target=self._make, args=(name, index), name="citeweave-map", daemon=True).start()
        return None

    def _make(self, name: str, index: Index) -> None:
        from citeweave.search.map import make_map

        try:
            self.maps[name] = (index.number, Json.write(make_map(index).as_json()))
        except CiteweaveError as error:
            self.failed = {(name, index.number): without_paths(str(error))}
        except Exception as error:  # a thread has nobody to raise to
            LOG.error("the map of %s cannot be made (%s: %s)", name, type(error).__name__, printable(str(error)))
            self.failed = {(name, index.number): "the map cannot be made; the server's log says why"}
        finally:
            with self.lock:
                self.making.discard(name)


@map_router.get("/map", responses={**failures(), 202: {"model": MapWorking, "description": "It is being made."}})
async def whole_map(server: Held, asked: Annotated[IndexParameters, FromUrl()]) -> Response:
    """Return every paper as a map point: positions, years, fields and clusters as base64 numbers."""
    room: MapRoom = server.kept["maps"]
    library = server.shelf.library
    working = library.working() if library else None  # while papers are added, a map would be old when it is made
    made = await server.ask(asked.index, lambda opened: room.get(opened, later=working is not None))
    if made is None:
        told = {"working": dict(working) if working else {"what": "mapping"}}
        return Json(told, status_code=202, headers={"Retry-After": "2"})
    return Response(made, media_type="application/json")


@map_router.get("/map/titles", response_model=Titles, responses=failures())
async def titles(server: Held, asked: Annotated[TitlesParameters, FromUrl()]) -> Response:
    """Return the titles of map points by row; deleted rows are left out."""

    def work(opened: Opened) -> dict[str, Any]:
        index = opened.index
        rows = {row for row in map(int, asked.rows.split(",")) if row < index.size and index.alive[row]}
        return {"titles": {str(row): short(index, row) for row in sorted(rows)}}

    return Json(await server.ask(asked.index, work))


# GET /samples: mined training samples, for looking at them. Only where the server was started with --samples.

samples_router = APIRouter(route_class=StrictRoute, tags=["samples"])

MOST_PICKS = 100
"""Positives, and negatives, of a sample that are listed."""


@dataclass(frozen=True, slots=True)
class SampleBook:
    """Mined samples with the corpus that they refer to, for browsing."""

    samples: Samples
    corpus: Corpus

    @classmethod
    def open(cls, samples: str | Path, corpus: str | Path) -> SampleBook:
        if not corpus:
            raise UserError("--samples names rows of a corpus; give the one they were mined from with --corpus")
        opened, papers = Samples.open(samples), Corpus.open(Path(corpus))
        opened.check_corpus(papers.hash, papers.folder)
        return cls(opened, papers)

    def page(self, anchor: str, start: int, count: int) -> dict[str, Any]:
        """Return a page of mined samples, all of them or those of one paper."""
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
        end = min(int(picks.offsets[number + 1]), start + MOST_PICKS)
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
async def samples(server: Held, asked: Annotated[SamplesParameters, FromUrl()]) -> Response:
    """Return mined samples: an anchor, its positives and negatives, and the rule that selected each."""
    book = server.kept.get("samples")
    if book is None:
        raise RefusedError(404, "this server has no samples; start it with --samples FOLDER --corpus FOLDER")
    return Json(await server.workers.run(book.page, asked.anchor, asked.start, asked.count))
