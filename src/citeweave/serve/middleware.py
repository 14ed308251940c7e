"""Middleware: metrics and log of requests, limits, security headers, and the check of a request's host and origin.

    >>> metrics = Metrics()
    >>> metrics.count_request("/search", "GET", 200, 0.02)
    >>> [line for line in metrics.text().splitlines() if line.startswith("citeweave_requests_total")]
    ['citeweave_requests_total{method="GET",route="/search",status="200"} 1.0']
    >>> _parse_host(b"localhost:8000"), _parse_host(b"[::1]:8000"), _parse_host(b"evil.example:80@localhost")
    ('localhost', '[::1]', None)

Labels of metrics are routes, never text from a client, so their number is bounded. Each worker process counts by itself.

    GET /papers/p%3A1 200 3.1 ms a1b2c3d4e5f60718        --log text
    {"method":"GET","path":"/papers/p%3A1",...}          --log json

The query string is never logged, since it is what somebody searched for. Tracebacks are logged with --debug only.

Each limit answers by itself: 413, 503 with Retry-After, 429 with Retry-After. A body is counted while it arrives and
refused at the first byte too many. A thread cannot be stopped: a request that runs out of time is answered while its
thread continues, and when all threads are busy like that, further requests are refused at once. uvicorn waits
indefinitely for the first request of a connection, for the rest of any request head, for a body that was already
refused, and until a response has been read; a few hundred such connections would block the server. `PromptProtocol`
closes connections whose clients do not send or read: `uvicorn.Config(app, http=PromptProtocol)`.

A page of another site may send requests to a server on localhost, by its address or by a name of its own that resolves
to it (DNS rebinding). So the Host must be one of ours, and a POST must be JSON and, if it names an origin, come from our
own page. Scripts run only from our own files, so a title that holds a script stays text. There are no users and no
passwords: whoever can reach the port can read the index.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import secrets
import socket
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any

import h11
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from uvicorn.protocols.http.h11_impl import H11Protocol

from citeweave.serve.options import ServeOptions
from citeweave.serve.responses import (
    App,
    Message,
    Receive,
    Scope,
    Send,
    clip,
    encode_headers,
    header,
    printable,
    refuse,
)

METHODS = ("GET", "HEAD", "POST", "OPTIONS")

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128)

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
        self.requests.labels(route, method if method in METHODS else "other", status).inc()
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
            entry: dict[str, Any] = {
                "time": round(time.time(), 3),
                "method": scope["method"],
                "path": path,
                "status": status,
            }
            LOG.info(json.dumps({**entry, "ms": round(1000 * seconds, 1), "id": id}))
        else:
            escaped = path.encode("unicode_escape").decode("ascii")
            LOG.info("%s %s %d %.1f ms %s", scope["method"], escaped, status, 1000 * seconds, id)


def _route_label(scope: Scope) -> str:
    """Return the route pattern of a request for metric labels; "other" if it matched none."""
    path = getattr(scope.get("route"), "path", "")
    return path if isinstance(path, str) and path else "other"


# --- limits ---

ALWAYS = ("/health", "/metrics")
"""Paths that are answered however busy the server is, for monitoring."""

PAGE_FILES = "/page/"
"""Paths of the page's own files, which do not count as requests of a client."""

_MAX_CLIENTS = 10_000
"""Maximum client addresses whose rates are remembered; the least recent one is forgotten."""


class BodyLimit:
    """Middleware that reads the request body, up to a maximum size, before any other code sees it."""

    def __init__(self, app: App, max_bytes: int, metrics: Metrics) -> None:
        self._app, self._max_bytes, self._metrics = app, max_bytes, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = header(scope, b"content-length")
        if any(not value.isdigit() or len(value) > 20 for value in declared) or len(declared) > 1:
            await refuse(send, 400, "the Content-Length is not a single number; send the length of the body in bytes")
            return
        if declared and header(scope, b"transfer-encoding"):  # a proxy in front may trust the other one
            message = "the request has both Content-Length and Transfer-Encoding; send only one of them"
            await refuse(send, 400, message, {"Connection": "close"})
            return
        body = None if declared and int(declared[0]) > self._max_bytes else await self._read(receive)
        if body is None:
            self._metrics.count_refused("body")
            message = f"the body has more than {self._max_bytes:,} bytes; send less, or several requests"
            await refuse(send, 413, message, {"Connection": "close"})
            return
        await self._app(scope, _replay(body, receive), send)

    async def _read(self, receive: Receive) -> bytes | None:
        """Read the request body; None if it is too long, or what was sent if the client disconnected."""
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                break
            part, more = message.get("body", b""), message.get("more_body", False)
            parts.append(part)
            size += len(part)
            if size > self._max_bytes:
                return None
        return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


class TimeLimit:
    """Middleware that answers 503 when a request exceeds its time limit."""

    def __init__(self, app: App, seconds: float, metrics: Metrics) -> None:
        self._app, self._seconds, self._metrics = app, seconds, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            async with asyncio.timeout(self._seconds):
                await self._app(scope, receive, sending)
        except TimeoutError:
            self._metrics.count_refused("time")
            if started:
                raise
            message = f"the request took longer than {self._seconds:g} seconds; ask for less, or try again later"
            await refuse(send, 503, message, {"Retry-After": "5"})


class ConcurrencyLimit:
    """Middleware that answers 503 at once when too many requests are being processed."""

    def __init__(
        self, app: App, max_requests: int, metrics: Metrics, *, stuck: Callable[[], bool] = lambda: False
    ) -> None:
        """`stuck` returns whether all threads work on abandoned requests."""
        self._app, self._max_requests, self._metrics, self._stuck = app, max_requests, metrics, stuck
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ALWAYS:
            await self._app(scope, receive, send)
            return
        if self._running >= self._max_requests or self._stuck():
            self._metrics.count_refused("concurrency")
            await refuse(send, 503, "the server is busy; try again in a second", {"Retry-After": "1"})
            return
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1


class RateLimit:
    """Middleware that answers 429 to a client with more than `rate` requests per second, after a burst of 2 x rate."""

    def __init__(self, app: App, rate: float, metrics: Metrics, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._rate, self._metrics, self._clock = app, rate, metrics, clock
        self._burst = max(1.0, 2 * rate)
        self._clients: OrderedDict[str, tuple[float, float]] = OrderedDict()  # address -> (tokens, when)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_free = scope["type"] != "http" or not self._rate or scope["path"] in ALWAYS
        # the page loads twenty small files at once, which are in memory
        if (
            is_free
            or scope["path"].startswith(PAGE_FILES)
            or (wait := self._wait((scope.get("client") or ("",))[0])) <= 0
        ):
            await self._app(scope, receive, send)
            return
        self._metrics.count_refused("rate")
        message = f"this address sends more than {self._rate:g} requests per second; wait and try again"
        await refuse(send, 429, message, {"Retry-After": str(max(1, math.ceil(wait)))})

    def _wait(self, client: str) -> float:
        """Take a token from the client's bucket; return the seconds until there is one, 0 if one was taken."""
        now = self._clock()
        tokens, when = self._clients.pop(client, (self._burst, now))
        tokens = min(self._burst, tokens + (now - when) * self._rate)
        taken = tokens >= 1
        self._clients[client] = (tokens - taken, now)
        while len(self._clients) > _MAX_CLIENTS:
            self._clients.popitem(last=False)
        return 0.0 if taken else (1 - tokens) / self._rate


# --- slow connections ---

HEAD_SECONDS = 10.0
"""Maximum seconds from the connection, or from the first byte of a further request, to the end of the request head."""

READ_SECONDS = 20.0
"""Maximum seconds that a client may take to read the next 48 KiB or so of a response."""


class PromptProtocol(H11Protocol):
    """HTTP/1.1 protocol with time limits for sending the request head and reading the response."""

    head_seconds = HEAD_SECONDS
    read_seconds = READ_SECONDS
    _head_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._time_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_read_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read_timer = self.loop.call_later(self.read_seconds, self._drop)

    def resume_writing(self) -> None:
        self._stop_read_timer()
        super().resume_writing()

    def _drop(self) -> None:
        """Close the connection at once and discard unsent data."""
        connection = self.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _time_head(self) -> None:
        """Start the timer of a request head, or stop it when the head has arrived; single bytes do not extend it."""
        if self.conn.their_state is not h11.IDLE and not self._is_answered():
            self._stop_head_timer()
        elif self._head_timer is None and self.timeout_keep_alive_task is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self.transport.close)

    def _is_answered(self) -> bool:
        """Return whether the rest of the body is no longer needed."""
        return self.conn.their_state is h11.SEND_BODY and self.cycle is not None and self.cycle.response_complete

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


# --- security ---

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
LOCAL = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(rb"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::\d{1,5})?")


class SecureHeaders:
    """Middleware that sets security headers on every response and removes the server's name."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._headers = encode_headers(HEADERS.items())
        self._set = {name for name, _ in self._headers} | {b"server"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in self._set]
                if not any(name.lower() == b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-store"))
                message = {**message, "headers": headers + self._headers}
            await send(message)

        await self._app(scope, receive, sending)


class OriginGuard:
    """Middleware that responds to requests with foreign hosts or origins, and to malformed ones, with an error."""

    def __init__(self, app: App, options: ServeOptions) -> None:
        self._app, self._options = app, options
        self._hosts = {host.lower().rstrip(".") for host in (*LOCAL, *options.allow_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] == "http" and (refusal := self._check(scope)):
            await refuse(send, *refusal)
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> tuple[int, str] | None:
        refusal = _too_long(scope, self._options) or _wrong_host(scope, self._hosts)
        if refusal is None and scope["method"] not in METHODS:
            return 405, "this method is not supported; use GET or POST"
        return refusal or (_foreign_post(scope) if scope["method"] == "POST" else None)


def _parse_host(value: bytes) -> str | None:
    """Return the name in a Host header without its port; None if it is malformed."""
    match = _HOST.fullmatch(value)
    return match[1].decode("ascii").lower().rstrip(".") if match else None


def _too_long(scope: Scope, options: ServeOptions) -> tuple[int, str] | None:
    size = len(scope.get("raw_path") or scope["path"].encode("utf-8", "replace")) + len(scope["query_string"])
    if size > options.max_url:
        return 414, f"the address has {size:,} bytes; give at most {options.max_url:,}, or POST a JSON body"
    size = sum(len(name) + len(value) for name, value in scope["headers"])
    if size > options.max_headers:
        return 431, f"the headers have {size:,} bytes; give at most {options.max_headers:,}"
    return None


def _wrong_host(scope: Scope, hosts: Collection[str]) -> tuple[int, str] | None:
    hosts_sent = header(scope, b"host")
    name = _parse_host(hosts_sent[0]) if len(hosts_sent) == 1 else None
    if name is None:
        return 400, "the request names no single Host; send one Host header"
    if name not in hosts and "*" not in hosts:
        return 400, f"this server does not accept the host name {name!r}; start it with --allow-host {name} to allow it"
    return None


def _foreign_post(scope: Scope) -> tuple[int, str] | None:
    kinds = header(scope, b"content-type")
    kind = kinds[0].decode("latin-1").partition(";")[0].strip().lower() if len(kinds) == 1 else ""
    if kind != "application/json":
        return 415, "the body is not declared as JSON; send it with Content-Type: application/json"
    host = header(scope, b"host")[0].lower()
    for origin in header(scope, b"origin"):
        if origin.lower() not in (b"http://" + host, b"https://" + host):
            return 403, "the request comes from a page of another site; send it from the server's own page or a program"
    if any(site not in (b"same-origin", b"none") for site in header(scope, b"sec-fetch-site")):
        return 403, "the request comes from a page of another site; send it from the server's own page or a program"
    return None
