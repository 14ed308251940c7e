"""What all routes share: the indexes, the threads, the counters; and the step from a request into a thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from citeweave.search.index import Index
from citeweave.serve.failures import unknown_paper
from citeweave.serve.metrics import Metrics
from citeweave.serve.opening import Opened, Shelf
from citeweave.serve.options import ServeOptions
from citeweave.serve.working import Workers

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Server:
    """One application's own; nothing is global."""

    shelf: Shelf
    workers: Workers
    metrics: Metrics
    options: ServeOptions
    kept: dict[Any, Any]
    """What is computed once a state of an index, by the routes that do."""

    async def ask(self, name: str, work: Callable[[Opened], T]) -> T:
        """Do work on an index, the one of now, in a thread."""
        return await self.workers.run(lambda: work(self.shelf.get(name)))


def _held(request: Request) -> Server:
    server: Server = request.app.state.server
    return server


Held = Annotated[Server, Depends(_held)]


def row_of(index: Index, id: str) -> int:
    """The row of a paper by any of its ids; 404 where there is none."""
    row = int(index.rows([id])[0])
    if row < 0:
        raise unknown_paper(id)
    return row


def short(index: Index, row: int) -> dict[str, Any]:
    """What lists of papers show."""
    return {"id": index.id(row), "title": index.title(row), "year": index.year(row) or None}
