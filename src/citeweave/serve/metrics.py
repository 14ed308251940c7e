"""Metrics and request log of the server: Prometheus counters, one log line per request, plain 500s for server errors.

    >>> metrics = Metrics()
    >>> metrics.count_request("/search", "GET", 200, 0.02)
    >>> [line for line in metrics.text().splitlines() if line.startswith("citeweave_requests_total")]
    ['citeweave_requests_total{route="/search",method="GET",status="200"} 1']

Labels are routes, never text from a client, so their number is bounded. Each worker process counts by itself.

    GET /papers/p%3A1 200 3.1 ms a1b2c3d4e5f60718        --log text
    {"method":"GET","path":"/papers/p%3A1",...}          --log json

The query string is never logged, since it is what somebody searched for. Tracebacks are logged with --debug only.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_METHODS = ("GET", "HEAD", "POST", "OPTIONS")


@dataclass(slots=True)
class Histogram:
    """A Prometheus histogram: counts by upper bounds, and the sum."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str) -> Iterable[str]:
        below = 0
        comma = "," if labels else ""
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            below += count
            yield f'{name}_bucket{{{labels}{comma}le="{bound}"}} {below}'
        braced = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{braced} {self.total:.6f}"
        yield f"{name}_count{braced} {below}"


class Metrics:
    """Metrics of the server: counters since its start, updated from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._refused: Counter[str] = Counter()
        self._batches = Histogram(TEXTS)
        self._running = 0

    def begin_request(self) -> None:
        with self._lock:
            self._running += 1

    def end_request(self) -> None:
        with self._lock:
            self._running -= 1

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests[route, method if method in _METHODS else "other", status] += 1
            self._seconds.setdefault(route, Histogram(SECONDS)).add(seconds)

    def count_refused(self, limit: str) -> None:
        with self._lock:
            self._refused[limit] += 1

    def count_batch(self, texts: int) -> None:
        """Count one encoder call and its texts."""
        with self._lock:
            self._batches.add(texts)

    def text(self, gauges: Mapping[str, Mapping[str, float]] | None = None) -> str:
        """Format all metrics in Prometheus's text format; `gauges` are current values by name and index."""
        with self._lock:
            lines = [
                *_head("requests_total", "counter", "Answered requests."),
                *(
                    f'citeweave_requests_total{{route="{_escape_label(route)}",method="{method}",status="{status}"}} {count}'
                    for (route, method, status), count in sorted(self._requests.items())
                ),
                *_head("request_seconds", "histogram", "Time from the request head to the end of the response."),
            ]
            for route, histogram in sorted(self._seconds.items()):
                lines += histogram.lines("citeweave_request_seconds", f'route="{_escape_label(route)}"')
            lines += _head("refused_total", "counter", "Requests refused by a limit.")
            lines += [f'citeweave_refused_total{{limit="{n}"}} {c}' for n, c in sorted(self._refused.items())]
            lines += [
                *_head("requests_running", "gauge", "Requests being processed."),
                f"citeweave_requests_running {self._running}",
            ]
            lines += _head("encoded_texts", "histogram", "Texts per encoder call.")
            lines += self._batches.lines("citeweave_encoded_texts", "")
        for name, values in (gauges or {}).items():
            lines += _head(name, "gauge", f"{name.replace('_', ' ').capitalize()} of an index.")
            lines += [
                f'citeweave_{name}{{index="{_escape_label(index)}"}} {value:g}' for index, value in values.items()
            ]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, help: str) -> list[str]:
    return [f"# HELP citeweave_{name} {help}", f"# TYPE citeweave_{name} {kind}"]


def _escape_label(label: str) -> str:
    """Escape the value of a Prometheus label.

    >>> _escape_label('a"b')
    'a\\\\"b'
    """
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


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

        self._metrics.begin_request()
        try:
            await self._app(scope, receive, sending)
        except Exception as error:  # nothing that a client sends may stop the server
            self._log_error(error, id)
            if not status:
                await refuse(sending, 500, "internal server error; report it with this id", id=id)
        finally:
            self._metrics.end_request()
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
