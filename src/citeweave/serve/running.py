"""Runs an application with uvicorn: in this process, or in several that make it anew from the environment.

    run_app(create_app({"main": Path("index")}), "127.0.0.1", 8000, options)      blocks until Ctrl-C
    run_workers({"main": Path("index")}, "0.0.0.0", 8000, options, workers=4)

Header lines are bounded by h11, on which `connections.py` builds. Does not encrypt: put a proxy in front for that.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from citeweave.errors import UserError
from citeweave.extras import require
from citeweave.serve.options import VARIABLE, ServeOptions

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_CONNECTIONS_PER_REQUEST = 4


def is_local(host: str) -> bool:
    """
    >>> is_local("127.0.0.1"), is_local("0.0.0.0")
    (True, False)
    """
    return host in LOOPBACK or host.startswith("127.")


def set_log(options: ServeOptions) -> None:
    """Lines of the server go to standard error; a JSON line stays one."""
    log = logging.getLogger("citeweave.serve")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.handlers[:] = [handler]
    log.setLevel(logging.WARNING if options.log == "none" else logging.INFO)
    log.propagate = False


def _settings(host: str, port: int, options: ServeOptions) -> dict[str, Any]:
    from citeweave.serve.connections import PromptProtocol

    return {
        "host": host,
        "port": port,
        "http": PromptProtocol,
        "ws": "none",
        "lifespan": "on",
        "access_log": False,  # uvicorn's has the query strings; `watching.py` writes ours
        "log_level": "warning",
        "server_header": False,
        "proxy_headers": False,
        "h11_max_incomplete_event_size": options.max_headers + options.max_url,
        "limit_concurrency": _CONNECTIONS_PER_REQUEST * options.concurrent,
        "timeout_keep_alive": 5,
        "timeout_graceful_shutdown": 5,
    }


def server_of(app: FastAPI, host: str, port: int, options: ServeOptions) -> uvicorn.Server:
    """A server that is not running yet, for those who run it in a thread."""
    uvicorn = require("uvicorn", extra="serve")
    server: Any = uvicorn.Server(uvicorn.Config(app, **_settings(host, port, options)))
    return server  # type: ignore[no-any-return]


def run_app(app: FastAPI, host: str, port: int, options: ServeOptions) -> None:
    """Serve until somebody stops it."""
    set_log(options)
    run_until_told(server_of(app, host, port, options))


def run_until_told(server: uvicorn.Server) -> None:
    """Run a server until Ctrl-C, SIGTERM, or the end of its terminal, each of which is an ordinary end."""

    def end(number: int, frame: object) -> None:
        server.should_exit = True  # before uvicorn listens to signals itself, and when it passes one on at its end

    known = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]
    for number in known:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, end)
    server.run()


def leave_at_once() -> None:
    """End the process where a thread still loads a model: Python's own end aborts a thread inside compiled code."""
    if any(thread.name.startswith("citeweave-") for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def check_port(host: str, port: int) -> int:
    """The port, a free one for 0; an error where nobody can listen there."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            if os.name == "posix":  # on Windows it would take the port from who listens there
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return int(probe.getsockname()[1])
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or "no such host"
        raise UserError(
            f"{host} port {port} cannot be listened at ({reason}); take another --port, or end what uses it"
        ) from None


def check_places(indexes: Mapping[str, Path], options: ServeOptions) -> None:
    """Open what workers will serve, without a model; what cannot be read is an error."""
    from citeweave.search.index import Index
    from citeweave.serve.samples import SampleBook

    for folder in indexes.values():
        Index.open(folder)
    if options.samples:
        SampleBook.open(options.samples, options.corpus)


def run_workers(indexes: Mapping[str, Path], host: str, port: int, options: ServeOptions, *, workers: int) -> None:
    """Serve by several processes that share the port; each opens the indexes and loads the model by itself."""
    uvicorn = require("uvicorn", extra="serve")
    told = {"indexes": {name: str(folder) for name, folder in indexes.items()}, "options": options.to_environment()}
    os.environ[VARIABLE] = json.dumps(told)
    patience = {"timeout_worker_healthcheck": 60}  # loading a model may keep a process from answering for a while
    known = inspect.signature(uvicorn.Config).parameters
    uvicorn.run(
        "citeweave.serve.running:app_from_environment",
        factory=True,
        workers=workers,
        **_settings(host, port, options),
        **{name: value for name, value in patience.items() if name in known},
    )


def app_from_environment() -> FastAPI:
    """The application of a worker process."""
    from citeweave.serve.app import create_app

    if VARIABLE not in os.environ:
        raise UserError(f"{VARIABLE} is not set; start the server with `citeweave serve`")
    told = json.loads(os.environ[VARIABLE])
    options = ServeOptions.from_environment(told["options"])
    set_log(options)
    return create_app({name: Path(folder) for name, folder in told["indexes"].items()}, options)
