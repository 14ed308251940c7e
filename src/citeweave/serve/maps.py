"""GET /map and /map/titles: all papers as points of a plane, made once a state by a thread of its own."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Response
from fastapi import Query as FromUrl

from citeweave.errors import CiteweaveError
from citeweave.search.index import Index
from citeweave.serve.answers import MapWorking, Titles, failures
from citeweave.serve.failures import RefusedError, printable, without_paths
from citeweave.serve.opening import Opened
from citeweave.serve.requests import IndexParameters, TitlesParameters
from citeweave.serve.routing import Json, StrictRoute
from citeweave.serve.serving import Held, short

router = APIRouter(route_class=StrictRoute, tags=["map"])

LOG = logging.getLogger("citeweave.serve")


@dataclass(slots=True)
class MapRoom:
    """The newest map of every index, as bytes, and what is being made."""

    maps: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    failed: dict[tuple[str, int], str] = field(default_factory=dict)
    making: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, opened: Opened, *, later: bool) -> bytes | None:
        """The map of the index's very state, as it names rows; None while it is being made, or is to be made later."""
        from citeweave.search.mapping import find_map

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
        from citeweave.search.mapping import make_map

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


@router.get("/map", responses={**failures(), 202: {"model": MapWorking, "description": "It is being made."}})
async def whole_map(server: Held, asked: Annotated[IndexParameters, FromUrl()]) -> Response:
    """Every paper as a point: places, years, fields and clusters as base64 of little-endian numbers."""
    room: MapRoom = server.kept["maps"]
    library = server.shelf.library
    working = library.working() if library else None  # while papers are added, a map would be old when it is made
    made = await server.ask(asked.index, lambda opened: room.get(opened, later=working is not None))
    if made is None:
        told = {"working": dict(working) if working else {"what": "mapping"}}
        return Json(told, status_code=202, headers={"Retry-After": "2"})
    return Response(made, media_type="application/json")


@router.get("/map/titles", response_model=Titles, responses=failures())
async def titles(server: Held, asked: Annotated[TitlesParameters, FromUrl()]) -> Response:
    """Titles of points, by the rows that the map gives; rows that are gone are left out."""

    def work(opened: Opened) -> dict[str, Any]:
        index = opened.index
        rows = {row for row in map(int, asked.rows.split(",")) if row < index.size and index.alive[row]}
        return {"titles": {str(row): short(index, row) for row in sorted(rows)}}

    return Json(await server.ask(asked.index, work))
