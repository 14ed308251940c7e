"""The web application: routes, middleware, error responses, pages, and running it with uvicorn.

    create_app({"main": Path("index"), "other": Path("other-index")})
    create_app(library, options)                                               an index that is still being built
    run_app(create_app({"main": Path("index")}), "127.0.0.1", 8000, options)   blocks until Ctrl-C
    run_workers({"main": Path("index")}, "0.0.0.0", 8000, options, workers=4)  several processes

From the outside in, a request passes: response headers, log and counters, host and origin check, rate, time, body,
concurrency, and then a route. Nothing is global: two applications in one process share nothing.

GET / and /page/... serve the files of the page, which are read once at startup. A requested name is looked up in a table
and never becomes a path in the file system. GET /docs shows the routes of /openapi.json as one plain page without
scripts. Does not encrypt: put a proxy in front for that.
"""

from __future__ import annotations

import gzip
import hashlib
import inspect
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from citeweave.core.errors import CiteweaveError, UserError, require
from citeweave.serve.health import health_router
from citeweave.serve.indexes import MAIN, ServedIndexes, Server, Workers
from citeweave.serve.library import Library
from citeweave.serve.middleware import (
    BodyLimit,
    ConcurrencyLimit,
    Metrics,
    OriginGuard,
    PromptProtocol,
    RateLimit,
    RequestLogger,
    SecureHeaders,
    TimeLimit,
)
from citeweave.serve.options import VARIABLE, ServeOptions
from citeweave.serve.responses import Json, RefusedError, StrictRoute, clip, failure, without_paths
from citeweave.serve.routes import MapCache, SampleBrowser, router
from citeweave.version import __version__

if TYPE_CHECKING:
    import uvicorn


_DESCRIPTION = "Search papers of an index by text, paper or sentences, explain the results, and embed texts."
_OPTIONS = ServeOptions()


def create_app(
    indexes: Mapping[str, Path] | Library, options: ServeOptions = _OPTIONS, *, also: Mapping[str, Path] | None = None
) -> FastAPI:
    """Create the web application (ASGI) that serves indexes by name, with its page and API; the first is the default."""
    library = None if isinstance(indexes, Mapping) else indexes
    first = indexes if isinstance(indexes, Mapping) else {MAIN: Path(indexes.index_folder)}
    folders = {name: Path(folder) for name, folder in {**first, **(also or {})}.items()}
    if not folders:
        raise UserError("there is no index to serve; give the folder of one")
    metrics = Metrics()
    server = Server(ServedIndexes(folders, options, metrics, library), Workers(options.threads), metrics, options, {})
    server.cache["maps"] = MapCache()
    if options.samples:
        server.cache["samples"] = SampleBrowser.open(options.samples, options.corpus)
    server.indexes.open_all()
    app = FastAPI(
        title="citeweave",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    app.state.server = server
    app.router.route_class = StrictRoute
    app.include_router(router)
    app.include_router(health_router)
    _add_pages(app, server)
    _add_error_handlers(app)
    _add_middleware(app, server)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    app.state.server.workers.close()
    app.state.server.indexes.close()


def _add_pages(app: FastAPI, server: Server) -> None:
    files = read_files()
    files[f"/page/{SHARED.name}"] = _make_page_file(SHARED.read_bytes(), SHARED.suffix)
    add_pages(app, files)

    async def docs(request: Request) -> Response:
        if "docs" not in server.cache:  # takes a while, so not at startup
            server.cache["docs"] = await server.workers.run(
                lambda: _make_page_file(_describe_routes(app.openapi()).encode(), ".html")
            )
        return _respond_with_file(server.cache["docs"], request)

    app.add_route("/docs", docs, methods=["GET", "HEAD"], include_in_schema=False)


def _add_middleware(app: FastAPI, server: Server) -> None:
    """Add the middleware of the application; the last one added is the outermost."""
    options, metrics = server.options, server.metrics
    app.add_middleware(ConcurrencyLimit, options.concurrent, metrics, stuck=server.workers.stuck)
    app.add_middleware(BodyLimit, options.max_body, metrics)
    app.add_middleware(TimeLimit, options.time_limit, metrics)
    app.add_middleware(RateLimit, options.rate, metrics)
    app.add_middleware(OriginGuard, options)
    app.add_middleware(RequestLogger, options, metrics)
    app.add_middleware(SecureHeaders)


def _add_error_handlers(app: FastAPI) -> None:
    def refused(request: Request, error: Any) -> Response:
        return Json(failure(error.message, coming=error.coming), status_code=error.status, headers=error.headers)

    def user_error(request: Request, error: Any) -> Response:
        return Json(failure(without_paths(str(error))), status_code=400)

    def http_error(request: Request, error: Any) -> Response:
        message = _HTTP_MESSAGES.get(error.status_code, "the request cannot be answered; see /docs")
        return Json(failure(message), status_code=error.status_code, headers=error.headers)

    def invalid(request: Request, error: Any) -> Response:
        return Json(failure(_describe_invalid_fields(error.errors())), status_code=422)

    handlers: dict[Any, Callable[[Request, Any], Response]] = {
        RefusedError: refused,
        CiteweaveError: user_error,
        HTTPException: http_error,
        RequestValidationError: invalid,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


_HTTP_MESSAGES = {
    400: "the request cannot be read; send what /docs describes",
    404: "unknown path; see /docs for the ones that exist",
    405: "this address does not take this method; see /docs",
}


_FIELD_RULES = {
    "extra_forbidden": "is not a known field",
    "missing": "is missing",
    "string_too_short": "must have at least {min_length} character(s)",
    "string_too_long": "must have at most {max_length} characters",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "int_parsing": "must be a whole number",
    "model_attributes_type": "must be a JSON object",
}
"""Kind of a validation error -> the rule in plain words; others are told in the words of the library."""


def _describe_invalid_fields(errors: list[Any]) -> str:
    """Describe the first few fields of a request that are invalid, with short values.

    >>> error = {"loc": ("body", "count"), "type": "greater_than_equal", "ctx": {"ge": 1}, "msg": "", "input": -1}
    >>> _describe_invalid_fields([error])
    'count must be at least 1 (it is -1); see /docs'
    """
    lines = []
    for error in errors[:3]:
        where = ".".join(str(part) for part in error["loc"][1:]) or str(error["loc"][0])
        value = error.get("input")
        suffix = f" (it is {clip(repr(value), 80)})" if isinstance(value, str | int | float) else ""
        plain = _FIELD_RULES.get(error["type"])
        rule = f" {plain.format(**error.get('ctx', {}))}" if plain else f": {clip(error['msg'], 160)}"
        lines.append(f"{clip(where, 80)}{rule}{suffix}")
    more = f", and {len(errors) - 3} more" if len(errors) > 3 else ""
    return f"{', '.join(lines)}{more}; see /docs"


# --- running ---

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_CONNECTIONS_PER_REQUEST = 4


def is_loopback(host: str) -> bool:
    """Return whether the web application's host is reachable from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
    (True, False)
    """
    return host in LOOPBACK or host.startswith("127.")


def _set_log(options: ServeOptions) -> None:
    """Send the server's log to standard error as text or JSON lines."""
    log = logging.getLogger("citeweave.serve")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.handlers[:] = [handler]
    log.setLevel(logging.WARNING if options.log == "none" else logging.INFO)
    log.propagate = False


def _settings(host: str, port: int, options: ServeOptions) -> dict[str, Any]:
    return {
        "host": host,
        "port": port,
        "http": PromptProtocol,
        "ws": "none",
        "lifespan": "on",
        "access_log": False,  # uvicorn's log has query strings; `middleware.py` writes ours
        "log_level": "warning",
        "server_header": False,
        "proxy_headers": False,
        "h11_max_incomplete_event_size": options.max_headers + options.max_url,
        "limit_concurrency": _CONNECTIONS_PER_REQUEST * options.concurrent,
        "timeout_keep_alive": 5,
        "timeout_graceful_shutdown": 5,
    }


def create_server(app: FastAPI, host: str, port: int, options: ServeOptions) -> uvicorn.Server:
    """Return a uvicorn server that is not running yet, for running it in a thread."""
    uvicorn = require("uvicorn", extra="serve")
    server: Any = uvicorn.Server(uvicorn.Config(app, **_settings(host, port, options)))
    return server  # type: ignore[no-any-return]


def run_app(app: FastAPI, host: str, port: int, options: ServeOptions) -> None:
    """Run the web application until it is stopped."""
    _set_log(options)
    run_until_stopped(create_server(app, host, port, options))


def run_until_stopped(server: uvicorn.Server) -> None:
    """Run the web application until Ctrl-C, SIGTERM or the end of its terminal, each of which is a normal exit."""

    def end(number: int, frame: object) -> None:
        server.should_exit = True  # before uvicorn handles signals itself, and when it passes one on at its end

    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]
    for number in numbers:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, end)
    server.run()


def exit_at_once() -> None:
    """Exit the process while a thread still loads a model; a normal exit would abort inside compiled code."""
    if any(thread.name.startswith("citeweave-") for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def check_port(host: str, port: int) -> int:
    """Return the port for the web application to listen on, a free one for 0; an error if nothing can listen there."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            if os.name == "posix":  # on Windows it would take the port from another server
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return int(probe.getsockname()[1])
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or "no such host"
        raise UserError(
            f"cannot listen at {host} port {port} ({reason}); choose another --port, or stop what uses it"
        ) from None


def check_indexes(indexes: Mapping[str, Path], options: ServeOptions) -> None:
    """Try the web application before its worker processes start: open the indexes without a model, to fail early."""
    from citeweave.search.index import Index

    for folder in indexes.values():
        Index.open(folder)
    if options.samples:
        SampleBrowser.open(options.samples, options.corpus)


def run_workers(indexes: Mapping[str, Path], host: str, port: int, options: ServeOptions, *, workers: int) -> None:
    """Run the web application with several processes that share the port; each opens the indexes and loads its own model."""
    uvicorn = require("uvicorn", extra="serve")
    folders = {name: str(folder) for name, folder in indexes.items()}
    os.environ[VARIABLE] = json.dumps({"indexes": folders, "options": options.to_environment()})
    more = {"timeout_worker_healthcheck": 60}  # a process may not answer while it loads a model
    known = inspect.signature(uvicorn.Config).parameters
    uvicorn.run(
        "citeweave.serve.app:app_from_environment",
        factory=True,
        workers=workers,
        **_settings(host, port, options),
        **{name: value for name, value in more.items() if name in known},
    )


def app_from_environment() -> FastAPI:
    """Create the web application of a worker process from environment variables."""
    if VARIABLE not in os.environ:
        raise UserError(f"{VARIABLE} is not set; start the server with `citeweave serve`")
    settings = json.loads(os.environ[VARIABLE])
    options = ServeOptions.from_environment(settings["options"])
    _set_log(options)
    return create_app({name: Path(folder) for name, folder in settings["indexes"].items()}, options)


# --- files of the page ---

FOLDER = Path(__file__).parent / "page"
SHARED = FOLDER.parents[1] / "evaluation" / "page" / "map.js"
"""The script of maps, which reports use too; the page loads it as /page/map.js."""

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
START = "/page/index.html"


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the web page with its headers, as the web application sends it."""

    data: bytes
    compressed: bytes
    """The data as gzip; empty if that is not smaller."""

    media_type: str
    tag: str


def _make_page_file(data: bytes, suffix: str) -> PageFile:
    compressed = gzip.compress(data, 6, mtime=0)
    tag = hashlib.sha256(data).hexdigest()[:24]
    return PageFile(data, compressed if len(compressed) < 0.9 * len(data) else b"", MEDIA_TYPES[suffix], tag)


def read_files(folder: Path = FOLDER) -> dict[str, PageFile]:
    """Read the files of the web application's page by their URLs; links and unknown kinds of files are left out."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.suffix in MEDIA_TYPES:
            files[f"/page/{path.relative_to(folder).as_posix()}"] = _make_page_file(path.read_bytes(), path.suffix)
    if START in files:
        files["/"] = files[START]
    return files


def _respond_with_file(file: PageFile | None, request: Request) -> Response:
    """Respond with a page file, or with 304 if the client already has it."""
    if file is None:
        raise RefusedError(404, "there is no such page; start at /")
    as_gzip = bool(file.compressed) and "gzip" in request.headers.get("accept-encoding", "")
    tag = f'"{file.tag}{"-gzip" if as_gzip else ""}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if as_gzip:
        headers["Content-Encoding"] = "gzip"
    return Response(file.compressed if as_gzip else file.data, media_type=file.media_type, headers=headers)


def add_pages(app: FastAPI, files: Mapping[str, PageFile]) -> None:
    """Add routes to the web application that serve the files of its page."""

    async def page(request: Request) -> Response:
        return _respond_with_file(files.get(request.scope["path"]), request)

    for path in ("/", "/page/{name:path}"):
        app.add_route(path, page, methods=["GET", "HEAD"], include_in_schema=False)


# --- /docs ---


def _describe_routes(openapi: Mapping[str, Any]) -> str:
    """Render the OpenAPI description of the application's routes as one plain HTML page at /docs."""
    info = openapi["info"]
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f'<title>{escape(info["title"])}</title><link rel="stylesheet" href="/page/docs.css"></head><body>',
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info.get('description', ''))}</p>",
        '<p>For programs: <a href="/openapi.json">openapi.json</a>.</p>',
    ]
    for path, methods in openapi["paths"].items():
        for method, route in methods.items():
            lines += _describe_route(path, method, route, openapi)
    return "\n".join([*lines, "</body></html>\n"])


def _describe_route(path: str, method: str, route: Mapping[str, Any], openapi: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(route.get('description', ''))}</p>"
    if parameters := route.get("parameters"):
        yield "<table>"
        for one in parameters:
            text = one.get("description") or one["schema"].get("description", "")
            required = " (required)" if one.get("required") else ""
            yield f"<tr><td><code>{escape(one['name'])}</code>{required}</td><td>{escape(text)}</td></tr>"
        yield "</table>"
    content = route.get("requestBody", {}).get("content", {}).get("application/json", {})
    name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    for example in openapi.get("components", {}).get("schemas", {}).get(name, {}).get("examples", ()):
        yield f"<pre>{escape(json.dumps(example, ensure_ascii=False))}</pre>"
