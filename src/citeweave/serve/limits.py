"""Limits of a request: bytes of its body, seconds, how many at a time, how many of one client.

Each limit is a wrapper around the application and answers by itself: 413, 503 with Retry-After, 429 with Retry-After.
A body is counted while it arrives and given up at the first byte too many. What a thread has begun cannot be stopped:
a request out of time is answered, and its thread goes on; where all threads do, the next request is sent away at once.

Does not look at what a request asks for.

Connections that must say what they want and hear the answer: one whose client is silent or deaf is closed.

uvicorn waits as long as the client likes: for the first request of a connection, for the rest of any head, for a body that
was refused already, and until an answer has been read. A few hundred such connections would then be all that it can have,
and nobody else would be answered.

    uvicorn.Config(app, http=PromptProtocol)

Bodies, and the work on an answer, are timed by `limits.py`. Needs uvicorn, so it is imported where a server is made.
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
"""Paths that are answered however busy the server is, for those who watch it."""

_CLIENTS = 10_000
"""Client addresses whose rates are remembered; the one not heard of for longest is forgotten."""


class BodyLimit:
    """Middleware that reads the request body, up to a maximum size, before any other code sees it."""

    def __init__(self, app: App, most: int, metrics: Metrics) -> None:
        self._app, self._most, self._metrics = app, most, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = header(scope, b"content-length")
        if any(not value.isdigit() or len(value) > 20 for value in declared) or len(declared) > 1:
            await refuse(send, 400, "the Content-Length is not one number; send the body's length in bytes")
            return
        if declared and header(scope, b"transfer-encoding"):  # a proxy in front may believe the other one
            words = "the request has a Content-Length and a Transfer-Encoding; send one of them"
            await refuse(send, 400, words, {"Connection": "close"})
            return
        body = None if declared and int(declared[0]) > self._most else await self._read(receive)
        if body is None:
            self._metrics.refused("body")
            words = f"the body has more than {self._most:,} bytes; send less, or several requests"
            await refuse(send, 413, words, {"Connection": "close"})
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
            if size > self._most:
                return None
        return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

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
            self._metrics.refused("time")
            if started:
                raise
            words = f"the request took longer than {self._seconds:g} seconds; ask for less, or try again later"
            await refuse(send, 503, words, {"Retry-After": "5"})


class ConcurrencyLimit:
    """Middleware that answers 503 at once when too many requests are being processed."""

    def __init__(self, app: App, most: int, metrics: Metrics, *, stuck: Callable[[], bool] = lambda: False) -> None:
        """`stuck` tells whether all threads work for requests that were given up."""
        self._app, self._most, self._metrics, self._stuck = app, most, metrics, stuck
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ALWAYS:
            await self._app(scope, receive, send)
            return
        if self._running >= self._most or self._stuck():
            self._metrics.refused("concurrency")
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
        free = scope["type"] != "http" or not self._rate or scope["path"] in ALWAYS
        if free or (wait := self._wait((scope.get("client") or ("",))[0])) <= 0:
            await self._app(scope, receive, send)
            return
        self._metrics.refused("rate")
        words = f"more than {self._rate:g} requests a second come from this address; wait and ask again"
        await refuse(send, 429, words, {"Retry-After": str(max(1, math.ceil(wait)))})

    def _wait(self, client: str) -> float:
        """Take a token from the client's bucket; return the seconds until there is one, 0 if one was taken."""
        now = self._clock()
        tokens, when = self._clients.pop(client, (self._burst, now))
        tokens = min(self._burst, tokens + (now - when) * self._rate)
        taken = tokens >= 1
        self._clients[client] = (tokens - taken, now)
        while len(self._clients) > _CLIENTS:
            self._clients.popitem(last=False)
        return 0.0 if taken else (1 - tokens) / self._rate


# Connections that must say what they want and hear the answer: one whose client is silent or deaf is closed.

PATIENCE = 10.0
"""Seconds from the connection, or from the first byte of a further request, to the end of the request's head."""


READING = 20.0
"""Seconds that a client may take to read the next 48 KiB or so of an answer."""


class PromptProtocol(H11Protocol):
    """HTTP/1.1 protocol with time limits for sending the request head and reading the response."""

    patience = PATIENCE
    reading = READING
    _waiting: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        self._was_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.reading, self._drop)

    def resume_writing(self) -> None:
        self._was_read()
        super().resume_writing()

    def _drop(self) -> None:
        """Close the connection at once and discard unsent data."""
        own = self.transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _was_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _watch(self) -> None:
        """Start waiting for a request head, or stop when it has arrived; single bytes do not extend the wait."""
        if self.conn.their_state is not h11.IDLE and not self._is_answered():
            self._forget()
        elif self._waiting is None and self.timeout_keep_alive_task is None:
            self._waiting = self.loop.call_later(self.patience, self.transport.close)

    def _is_answered(self) -> bool:
        """Return whether the rest of the body is no longer needed."""
        return self.conn.their_state is h11.SEND_BODY and self.cycle is not None and self.cycle.response_complete

    def _forget(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
