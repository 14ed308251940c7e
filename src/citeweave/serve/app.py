"""The application: routes, limits, errors and pages put together.

    create_app({"main": Path("index"), "other": Path("other-index")})
    create_app(library, options)                   an index that is still being made

From the outside in, a request passes: headers of the answer, log and counters, whom we listen to, rate, time, body,
concurrency, and then a route. Nothing is global: two applications of one process share nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from citeweave.errors import CiteweaveError, UserError
from citeweave.serve import embedding, exporting, health, maps, papers, samples, searching, whys
from citeweave.serve.describing import STYLE, describe_routes
from citeweave.serve.failures import RefusedError, clip, failure, without_paths
from citeweave.serve.limits import BodyLimit, ConcurrencyLimit, RateLimit, TimeLimit
from citeweave.serve.metrics import Metrics
from citeweave.serve.opening import MAIN, Library, Shelf
from citeweave.serve.options import ServeOptions
from citeweave.serve.pages import add_pages, answer_file, file_of, read_files
from citeweave.serve.routing import Json, StrictRoute
from citeweave.serve.security import Guard, SecureHeaders
from citeweave.serve.serving import Server
from citeweave.serve.watching import Watch
from citeweave.serve.working import Workers
from citeweave.version import __version__

ROUTERS = (searching, papers, whys, embedding, maps, samples, exporting, health)
_ABOUT = "Papers of an index: searched by texts, papers and sentences, with the reasons; vectors of texts."
_OPTIONS = ServeOptions()


def create_app(
    indexes: Mapping[str, Path] | Library,
    options: ServeOptions = _OPTIONS,
    *,
    also: Mapping[str, Path] | None = None,
) -> FastAPI:
    """The application that serves these indexes; the first is asked where a request names none."""
    library = None if isinstance(indexes, Mapping) else indexes
    first = indexes if isinstance(indexes, Mapping) else {MAIN: Path(indexes.index_folder)}
    folders = {name: Path(folder) for name, folder in {**first, **(also or {})}.items()}
    if not folders:
        raise UserError("there is no index to serve; give the folder of one")
    metrics = Metrics()
    server = Server(Shelf(folders, options, metrics, library), Workers(options.threads), metrics, options, {})
    server.kept["maps"] = maps.MapRoom()
    if options.samples:
        server.kept["samples"] = samples.SampleBook.open(options.samples, options.corpus)
    server.shelf.start()
    app = FastAPI(
        title="citeweave",
        version=__version__,
        description=_ABOUT,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    app.state.server = server
    app.router.route_class = StrictRoute
    for module in ROUTERS:
        app.include_router(module.router)
    _add_pages(app, server)
    _add_failures(app)
    _wrap(app, server)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    app.state.server.workers.close()
    app.state.server.shelf.close()


def _add_pages(app: FastAPI, server: Server) -> None:
    files = {**read_files(), "/docs.css": file_of(STYLE.encode(), ".css")}
    add_pages(app, files)

    async def docs(request: Request) -> Response:
        if "docs" not in server.kept:  # describing takes a while, so not at the start
            server.kept["docs"] = await server.workers.run(
                lambda: file_of(describe_routes(app.openapi()).encode(), ".html")
            )
        return answer_file(server.kept["docs"], request)

    app.add_route("/docs", docs, methods=["GET", "HEAD"], include_in_schema=False)


def _wrap(app: FastAPI, server: Server) -> None:
    """The last that is added is the outermost."""
    options, metrics = server.options, server.metrics
    app.add_middleware(ConcurrencyLimit, options.concurrent, metrics, stuck=server.workers.stuck)
    app.add_middleware(BodyLimit, options.max_body, metrics)
    app.add_middleware(TimeLimit, options.time_limit, metrics)
    app.add_middleware(RateLimit, options.rate, metrics)
    app.add_middleware(Guard, options)
    app.add_middleware(Watch, options, metrics)
    app.add_middleware(SecureHeaders)


def _add_failures(app: FastAPI) -> None:
    def refused(request: Request, error: Any) -> Response:
        return Json(failure(error.words, coming=error.coming), status_code=error.status, headers=error.headers)

    def of_user(request: Request, error: Any) -> Response:
        return Json(failure(without_paths(str(error))), status_code=400)

    def of_route(request: Request, error: Any) -> Response:
        words = _ROUTE_WORDS.get(error.status_code, "the request cannot be answered; see /docs")
        return Json(failure(words), status_code=error.status_code, headers=error.headers)

    def of_shape(request: Request, error: Any) -> Response:
        return Json(failure(shape_words(error.errors())), status_code=422)

    handlers: dict[Any, Callable[[Request, Any], Response]] = {
        RefusedError: refused,
        CiteweaveError: of_user,
        HTTPException: of_route,
        RequestValidationError: of_shape,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


_ROUTE_WORDS = {
    400: "the request cannot be read; send what /docs describes",
    404: "there is no such address; see /docs for those there are",
    405: "this address does not take this method; see /docs",
}


def shape_words(errors: list[Any]) -> str:
    """The first few things that do not fit, with what was sent where that is short.

    >>> shape_words([{"loc": ("body", "count"), "msg": "Input should be greater than 0", "input": -1}])
    'count: Input should be greater than 0 (it is -1); see /docs'
    """
    lines = []
    for error in errors[:3]:
        where = ".".join(str(part) for part in error["loc"][1:]) or str(error["loc"][0])
        given = error.get("input")
        shown = f" (it is {clip(repr(given), 80)})" if isinstance(given, str | int | float) else ""
        lines.append(f"{clip(where, 80)}: {clip(error['msg'], 160)}{shown}")
    more = f", and {len(errors) - 3} more" if len(errors) > 3 else ""
    return f"{', '.join(lines)}{more}; see /docs"
