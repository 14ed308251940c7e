"""Counters of a server, in the text form that Prometheus reads.

    >>> metrics = Metrics()
    >>> metrics.answered("/search", "GET", 200, 0.02)
    >>> [line for line in metrics.text().splitlines() if line.startswith("citeweave_requests_total")]
    ['citeweave_requests_total{route="/search",method="GET",status="200"} 1']

Labels are routes, never what a client wrote: their number is bounded. Counts are of one worker process.

How many papers an index has, and how many of them have what.

    {"papers": 1900, "around": 700, "with_vectors": 1900, "with_sentences": 1588, "with_abstract": 1588}

Papers around a library, which are known by what it cites and what cites it, are counted by themselves.

One line of the log and one count for every request; our own faults become a plain 500 with an id.

    GET /papers/p%3A1 200 3.1 ms a1b2c3d4e5f60718        --log text
    {"method":"GET","path":"/papers/p%3A1",...}          --log json

The query string is never logged: it is what somebody searched for. A traceback is logged with --debug only.
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

from citeweave.search.filters import Filter, filter_rows
from citeweave.search.index import Index
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
        around = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{around} {self.total:.6f}"
        yield f"{name}_count{around} {below}"


class Metrics:
    """Counters of the server since its start, updated from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._refused: Counter[str] = Counter()
        self._batches = Histogram(TEXTS)
        self._running = 0

    def began(self) -> None:
        with self._lock:
            self._running += 1

    def ended(self) -> None:
        with self._lock:
            self._running -= 1

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests[route, method if method in _METHODS else "other", status] += 1
            self._seconds.setdefault(route, Histogram(SECONDS)).add(seconds)

    def refused(self, limit: str) -> None:
        with self._lock:
            self._refused[limit] += 1

    def encoded(self, texts: int) -> None:
        """Count one encoder call and its texts."""
        with self._lock:
            self._batches.add(texts)

    def text(self, gauges: Mapping[str, Mapping[str, float]] | None = None) -> str:
        """Format all counters in Prometheus's text format; `gauges` are current values by name and index."""
        with self._lock:
            lines = [
                *_head("requests_total", "counter", "Answered requests."),
                *(
                    f'citeweave_requests_total{{route="{_safe(route)}",method="{method}",status="{status}"}} {count}'
                    for (route, method, status), count in sorted(self._requests.items())
                ),
                *_head("request_seconds", "histogram", "Time from a request's head to the end of its answer."),
            ]
            for route, histogram in sorted(self._seconds.items()):
                lines += histogram.lines("citeweave_request_seconds", f'route="{_safe(route)}"')
            lines += _head("refused_total", "counter", "Requests beyond a limit.")
            lines += [f'citeweave_refused_total{{limit="{n}"}} {c}' for n, c in sorted(self._refused.items())]
            lines += [
                *_head("requests_running", "gauge", "Requests in work."),
                f"citeweave_requests_running {self._running}",
            ]
            lines += _head("encoded_texts", "histogram", "Texts of one call of the encoder.")
            lines += self._batches.lines("citeweave_encoded_texts", "")
        for name, values in (gauges or {}).items():
            lines += _head(name, "gauge", f"{name.replace('_', ' ').capitalize()} of an index.")
            lines += [f'citeweave_{name}{{index="{_safe(index)}"}} {value:g}' for index, value in values.items()]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, help: str) -> list[str]:
    return [f"# HELP citeweave_{name} {help}", f"# TYPE citeweave_{name} {kind}"]


def _safe(label: str) -> str:
    """
    >>> _safe('a"b')
    'a\\\\"b'
    """
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# How many papers an index has, and how many of them have what.


def count_papers(index: Index) -> dict[str, int]:
    """Count the live papers of an index, and how many have vectors, sentences or abstracts."""
    own = filter_rows(index, Filter(local=True))  # (size,)
    return {
        "papers": int(own.sum()),
        "around": int((index.alive & ~own).sum()),
        "with_vectors": int((index.with_vector & own).sum()),
        "with_sentences": int((index.with_sentences & own).sum()),
        "with_abstract": int(filter_rows(index, Filter(local=True, has_abstract=True)).sum()),
    }


# One line of the log and one count for every request; our own faults become a plain 500 with an id.

LOG = logging.getLogger("citeweave.serve")


class Watch:
    """Middleware that logs and counts every request, and turns server errors into a plain 500 with an id."""

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
    """Return the route pattern of a request for metric labels; "other" if it matched none."""
    path = getattr(scope.get("route"), "path", "")
    return path if isinstance(path, str) and path else "other"
