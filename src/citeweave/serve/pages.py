"""GET / and /page/...: the files of the page, read once at the start. A name that is not among them is 404.

What a client asks for is looked up in a table and never becomes a path of the file system.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI, Request, Response

from citeweave.serve.failures import RefusedError

FOLDER = Path(__file__).parent / "page"
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
START = "/page/index.html"


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file as it is sent."""

    data: bytes
    packed: bytes
    """By gzip; empty where that is not smaller."""

    kind: str
    tag: str


def file_of(data: bytes, suffix: str) -> PageFile:
    packed = gzip.compress(data, 6, mtime=0)
    tag = hashlib.sha256(data).hexdigest()[:24]
    return PageFile(data, packed if len(packed) < 0.9 * len(data) else b"", KINDS[suffix], tag)


def read_files(folder: Path = FOLDER) -> dict[str, PageFile]:
    """The files of the page by their addresses; links and other kinds of files are left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.suffix in KINDS:
            found[f"/page/{path.relative_to(folder).as_posix()}"] = file_of(path.read_bytes(), path.suffix)
    if START in found:
        found["/"] = found[START]
    return found


def answer_file(file: PageFile | None, request: Request) -> Response:
    """The file, or 304 where the client has it already."""
    if file is None:
        raise RefusedError(404, "there is no such page; start at /")
    packed = bool(file.packed) and "gzip" in request.headers.get("accept-encoding", "")
    tag = f'"{file.tag}{"-gzip" if packed else ""}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if packed:
        headers["Content-Encoding"] = "gzip"
    return Response(file.packed if packed else file.data, media_type=file.kind, headers=headers)


def add_pages(app: FastAPI, files: Mapping[str, PageFile]) -> None:
    """Serve the files under their addresses."""

    async def page(request: Request) -> Response:
        return answer_file(files.get(request.scope["path"]), request)

    for path in ("/", "/docs.css", "/page/{name:path}"):
        app.add_route(path, page, methods=["GET", "HEAD"], include_in_schema=False)
