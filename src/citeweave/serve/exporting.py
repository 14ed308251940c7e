"""POST /export: papers as a file for other programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fastapi import APIRouter, Response

from citeweave.search.bibtex import to_bibtex
from citeweave.search.exporting import to_csv, to_json
from citeweave.serve.answers import failures
from citeweave.serve.opening import Opened
from citeweave.serve.requests import ExportRequest
from citeweave.serve.routing import StrictRoute
from citeweave.serve.serving import Held, row_of

router = APIRouter(route_class=StrictRoute, tags=["papers"])

_FORMATS: dict[str, tuple[Callable[[Iterable[Any]], str], str, str]] = {
    "bibtex": (to_bibtex, "application/x-bibtex; charset=utf-8", "papers.bib"),
    "csv": (to_csv, "text/csv; charset=utf-8", "papers.csv"),
    "json": (to_json, "application/json", "papers.json"),
}
_FILES = {media.partition(";")[0]: {"schema": {"type": "string"}} for _, media, _ in _FORMATS.values()}


@router.post(
    "/export",
    response_class=Response,
    responses={**failures(403, 415), 200: {"description": "The file.", "content": _FILES}},
)
async def export(server: Held, asked: ExportRequest) -> Response:
    """Papers as BibTeX, CSV or JSON, in the order of their ids."""
    write, media, name = _FORMATS[asked.format]

    def work(opened: Opened) -> str:
        rows = [row_of(opened.index, id) for id in asked.ids]
        return write([opened.index.paper(row) for row in rows])

    # the file's name is ours: nothing of a client or of a paper gets into a header
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(await server.ask(asked.index, work), media_type=media, headers=headers)
