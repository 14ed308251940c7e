"""One line of the log and one count for every request; our own faults become a plain 500 with an id.

    GET /papers/p%3A1 200 3.1 ms a1b2c3d4e5f60718        --log text
    {"method":"GET","path":"/papers/p%3A1",...}          --log json

The query string is never logged: it is what somebody searched for. A traceback is logged with --debug only.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from typing import Any

from citeweave.serve.failures import App, Message, Receive, Scope, Send, clip, printable, refuse
from citeweave.serve.metrics import Metrics
from citeweave.serve.options import ServeOptions

LOG = logging.getLogger("citeweave.serve")


class Watch:
    """Around the whole application, within the headers."""

    def __init__(self, app: App, options: ServeOptions, metrics: Metrics) -> None:
        self._app, self._options, self._metrics = app, options, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, id, status = time.perf_counter(), secrets.token_hex(8), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", id.encode())]}
            await send(message)

        self._metrics.began()
        try:
            await self._app(scope, receive, sending)
        except Exception as error:  # the last guard: nothing that a client sends may end the server
            self._log_fault(error, id)
            if not status:
                await refuse(sending, 500, "the server made a mistake; report it with this id", id=id)
        finally:
            self._metrics.ended()
            took = time.perf_counter() - begun
            self._metrics.answered(route_of(scope), scope["method"], status, took)
            self._log(scope, status, took, id)

    def _log_fault(self, error: Exception, id: str) -> None:
        what = clip(printable(f"{type(error).__name__}: {error}"))
        LOG.error("%s internal error (%s)", id, what, exc_info=error if self._options.debug else None)

    def _log(self, scope: Scope, status: int, took: float, id: str) -> None:
        raw = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
        path = clip(raw.partition(b"?")[0].decode("latin-1"), 300)
        if self._options.log == "json":
            told: dict[str, Any] = {"method": scope["method"], "path": path, "status": status}
            LOG.info(json.dumps({**told, "ms": round(1000 * took, 1), "id": id}))
        else:
            shown = path.encode("unicode_escape").decode("ascii")
            LOG.info("%s %s %d %.1f ms %s", scope["method"], shown, status, 1000 * took, id)


def route_of(scope: Scope) -> str:
    """The pattern of the route that a request took; "other" where it took none, so that labels stay few."""
    path = getattr(scope.get("route"), "path", "")
    return path if isinstance(path, str) and path else "other"
