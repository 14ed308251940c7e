"""Limits of a request: bytes of its body, seconds, how many at a time, how many of one client.

Each limit is a wrapper around the application and answers by itself: 413, 503 with Retry-After, 429 with Retry-After.
A body is counted while it arrives and given up at the first byte too many. What a thread has begun cannot be stopped:
a request out of time is answered, and its thread goes on; where all threads do, the next request is sent away at once.

Does not look at what a request asks for.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from citeweave.serve.failures import App, Message, Receive, Scope, Send, header, refuse
from citeweave.serve.metrics import Metrics

ALWAYS = ("/health", "/metrics")
"""Paths that are answered however busy the server is, for those who watch it."""

_CLIENTS = 10_000
"""Client addresses whose rates are remembered; the one not heard of for longest is forgotten."""


class BodyLimit:
    """Reads the whole body, at most so many bytes, before anybody else sees the request."""

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
        """The body, None where it is too long; where the client went away, what it had sent."""
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
    """Answers 503 where a request takes longer than its seconds."""

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
    """Answers 503 at once where too many requests are being worked on; waiting in line would help nobody."""

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
    """Answers 429 to a client address that asks more often than `rate` times a second, after a burst of 2 x rate."""

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
        """Take a token of the client's bucket; seconds until there is one, 0 where one was taken."""
        now = self._clock()
        tokens, when = self._clients.pop(client, (self._burst, now))
        tokens = min(self._burst, tokens + (now - when) * self._rate)
        taken = tokens >= 1
        self._clients[client] = (tokens - taken, now)
        while len(self._clients) > _CLIENTS:
            self._clients.popitem(last=False)
        return 0.0 if taken else (1 - tokens) / self._rate
