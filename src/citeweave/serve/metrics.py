"""Metrics and request log of the server: Prometheus counters, one log line per request, plain 500s for server errors.

    >>> metrics = Metrics()
    >>> metrics.count_request("/search", "GET", 200, 0.02)
    >>> [line for line in metrics.text().splitlines() if line.startswith("citeweave_requests_total")]
    ['citeweave_requests_total{method="GET",route="/search",status="200"} 1.0']

Labels are routes, never text from a client, so their number is bounded. Each worker process counts by itself.

    GET /papers/p%3A1 200 3.1 ms a1b2c3d4e5f60718        --log text
    {"method":"GET","path":"/papers/p%3A1",...}          --log json

The query string is never logged, since it is what somebody searched for. Tracebacks are logged with --debug only.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from citeweave.serve.options import ServeOptions
from citeweave.serve.responses import (
    App,
    Message,
    Receive,
    Scope,
    Send,
    clip,
    printable,
    refuse,
)

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128)
_METHODS = ("GET", "HEAD", "POST", "OPTIONS")

disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Metrics of the server since its start, updated from any thread."""

    def __init__(self) -> None:
        own: dict[str, Any] = {"namespace": "citeweave", "registry": CollectorRegistry()}
        self._registry = own["registry"]
        self.requests = Counter("requests", "Answered requests.", ["route", "method", "status"], **own)
        self.seconds = Histogram(
            "request_seconds",
            "Time from the request head to the end of the response.",
            ["route"],
            buckets=SECONDS,
            **own,
        )
        self.refused = Counter("refused", "Requests refused by a limit.", ["limit"], **own)
        self.running = Gauge("requests_running", "Requests being processed.", **own)
        self.batches = Histogram("encoded_texts", "Texts per encoder call.", buckets=TEXTS, **own)

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        self.requests.labels(route, method if method in _METHODS else "other", status).inc()
        self.seconds.labels(route).observe(seconds)

    def count_refused(self, limit: str) -> None:
        self.refused.labels(limit).inc()

    def text(self, gauges: Mapping[str, Mapping[str, float]] | None = None) -> str:
        """Format all metrics in Prometheus's text format; `gauges` are current values by name and index."""
        current = CollectorRegistry()
        for name, values in (gauges or {}).items():
            what = f"{name.replace('_', ' ').capitalize()} of an index."
            gauge = Gauge(name, what, ["index"], namespace="citeweave", registry=current)
            for index, value in values.items():
                gauge.labels(index).set(value)
        return (generate_latest(self._registry) + generate_latest(current)).decode()


# --- the request log ---

LOG = logging.getLogger("citeweave.serve")


class RequestLogger:
    """Middleware that logs every request, counts it in the metrics, and turns server errors into a plain 500 with an id."""

    def __init__(self, app: App, options: ServeOptions, metrics: Metrics) -> None:
        self._app, self._options, self._metrics = app, options, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, id, status = time.perf_counter(), secrets.token_hex(8), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", id.encode())]}
            await send(message)

        self._metrics.running.inc()
        try:
            await self._app(scope, receive, sending)
        except Exception as error:  # nothing that a client sends may stop the server
            self._log_error(error, id)
            if not status:
                await refuse(sending, 500, "internal server error; report it with this id", id=id)
        finally:
            self._metrics.running.dec()
            seconds = time.perf_counter() - start
            self._metrics.count_request(_route_label(scope), scope["method"], status, seconds)
            self._log(scope, status, seconds, id)

    def _log_error(self, error: Exception, id: str) -> None:
        what = clip(printable(f"{type(error).__name__}: {error}"))
        LOG.error("%s internal error (%s)", id, what, exc_info=error if self._options.debug else None)

    def _log(self, scope: Scope, status: int, seconds: float, id: str) -> None:
        raw = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
        path = clip(raw.partition(b"?")[0].decode("latin-1"), 300)
        if self._options.log == "json":
            entry: dict[str, Any] = {"method": scope["method"], "path": path, "status": status}
            LOG.info(json.dumps({**entry, "ms": round(1000 * seconds, 1), "id": id}))
        else:
            escaped = path.encode("unicode_escape").decode("ascii")
            LOG.info("%s %s %d %.1f ms %s", scope["method"], escaped, status, 1000 * seconds, id)


def _route_label(scope: Scope) -> str:
    """Return the route pattern of a request for metric labels; "other" if it matched none."""
    path = getattr(scope.get("route"), "path", "")
    return path if isinstance(path, str) and path else "other"
