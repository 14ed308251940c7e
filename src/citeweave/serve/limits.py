"""Limits of requests and connections: bytes of a body, seconds, requests at a time, requests per second of a client.

Each limit is middleware that answers by itself: 413, 503 with Retry-After, 429 with Retry-After. A body is counted while
it arrives and refused at the first byte too many. A thread cannot be stopped: a request that runs out of time is
answered while its thread continues, and when all threads are busy like that, further requests are refused at once.

uvicorn waits indefinitely for the first request of a connection, for the rest of any request head, for a body that was
already refused, and until a response has been read; a few hundred such connections would block the server.
`PromptProtocol` closes connections whose clients do not send or read:

    uvicorn.Config(app, http=PromptProtocol)

Does not look at the content of a request.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from citeweave.serve.metrics import Metrics
from citeweave.serve.responses import (
    App,
    Message,
    Receive,
    Scope,
    Send,
    header,
    refuse,
)

ALWAYS = ("/health", "/metrics")
"""Paths that are answered however busy the server is, for monitoring."""

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
        unlimited = scope["type"] != "http" or not self._rate or scope["path"] in ALWAYS
        if unlimited or (wait := self._wait((scope.get("client") or ("",))[0])) <= 0:
            await self._app(scope, receive, send)
            return
        self._metrics.count_refused("rate")
        message = f"more than {self._rate:g} requests per second come from this address; wait and try again"
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
