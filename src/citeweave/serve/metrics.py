"""Counters of a server, in the text form that Prometheus reads.

    >>> metrics = Metrics()
    >>> metrics.answered("/search", "GET", 200, 0.02)
    >>> [line for line in metrics.text().splitlines() if line.startswith("citeweave_requests_total")]
    ['citeweave_requests_total{route="/search",method="GET",status="200"} 1']

Labels are routes, never what a client wrote: their number is bounded. Counts are of one worker process.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_METHODS = ("GET", "HEAD", "POST", "OPTIONS")


@dataclass(slots=True)
class Histogram:
    """Counts by upper bounds, and the sum."""

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
    """What happened since the start; may be told from any thread."""

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
        """One call of an encoder."""
        with self._lock:
            self._batches.add(texts)

    def text(self, gauges: Mapping[str, Mapping[str, float]] | None = None) -> str:
        """The page; `gauges` are values of now: name -> name of an index -> number."""
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
