from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from citeweave.serve.limits import BodyLimit, ConcurrencyLimit, RateLimit, TimeLimit
from citeweave.serve.metrics import Metrics
from citeweave.serve.responses import (
    App,
    Message,
    Receive,
    Scope,
    Send,
)


class Said:
    """What an application answered."""

    def __init__(self) -> None:
        self.status, self.headers, self.body = 0, dict[bytes, bytes](), b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self.body += message.get("body", b"")

    @property
    def error(self) -> dict[str, str]:
        found: dict[str, str] = orjson.loads(self.body)["error"]
        return found


def scope_of(
    path: str = "/search", *, client: str = "1.2.3.4", headers: list[tuple[bytes, bytes]] | None = None
) -> Scope:
    return {"type": "http", "path": path, "method": "POST", "headers": headers or [], "client": (client, 1)}


def receiving(*parts: bytes) -> tuple[Receive, list[bytes]]:
    """A body in parts, and those that nobody has asked for."""
    left = list(parts)

    async def receive() -> Message:
        part = left.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(left)}

    return receive, left


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def ask(app: App, scope: Scope, receive: Receive | None = None) -> Said:
    said = Said()
    asyncio.run(app(scope, receive or receiving(b"")[0], said.send))  # type: ignore[arg-type]
    return said


def test_a_body_within_the_limit_arrives_whole() -> None:
    said = ask(BodyLimit(echo, 10, Metrics()), scope_of(), receiving(b"01234", b"56789")[0])
    assert (said.status, said.body) == (200, b"0123456789")


def test_a_body_without_a_length_is_given_up_while_it_arrives() -> None:
    receive, left = receiving(b"01234", b"567890", b"never read", b"nor this")
    said = ask(BodyLimit(echo, 10, Metrics()), scope_of(), receive)
    assert said.status == 413 and left == [b"never read", b"nor this"]
    assert said.error == {"what": "the body has more than 10 bytes", "next": "send less, or several requests"}


def test_a_declared_length_is_believed_without_reading() -> None:
    receive, left = receiving(b"x")
    said = ask(BodyLimit(echo, 10, Metrics()), scope_of(headers=[(b"content-length", b"11")]), receive)
    assert said.status == 413 and left == [b"x"]


@pytest.mark.parametrize("value", [b"-1", b"1e3", b"", b"9" * 30, b"1, 2"])
def test_a_strange_length_is_refused(value: bytes) -> None:
    assert ask(BodyLimit(echo, 10, Metrics()), scope_of(headers=[(b"content-length", value)])).status == 400


def test_a_length_and_chunks_are_refused() -> None:
    both = [(b"content-length", b"2"), (b"transfer-encoding", b"chunked")]
    assert ask(BodyLimit(echo, 10, Metrics()), scope_of(headers=both)).status == 400


def test_a_request_out_of_time_is_answered() -> None:
    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()

    said = ask(TimeLimit(slow, 0.01, Metrics()), scope_of())
    assert said.status == 503 and b"retry-after" in said.headers and "0.01 seconds" in said.error["what"]


def test_a_slow_body_is_out_of_time_too() -> None:
    async def never() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    assert ask(TimeLimit(BodyLimit(echo, 10, Metrics()), 0.01, Metrics()), scope_of(), never).status == 503


def test_one_request_too_many_is_sent_away_and_the_next_served() -> None:
    async def story() -> tuple[list[int], int, int]:
        go = asyncio.Event()

        async def waits(scope: Scope, receive: Receive, send: Send) -> None:
            await go.wait()
            await echo(scope, receive, send)

        app, said = ConcurrencyLimit(waits, 2, Metrics()), [Said() for _ in range(5)]

        async def one(number: int, path: str = "/search") -> None:
            await app(scope_of(path), receiving(b"")[0], said[number].send)

        running = [asyncio.create_task(one(0)), asyncio.create_task(one(1))]
        await asyncio.sleep(0)
        await one(2)
        watching = asyncio.create_task(one(3, "/health"))  # answered however busy
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*running, watching)
        await one(4)
        return [one.status for one in said[:3]], said[3].status, said[4].status

    assert asyncio.run(story()) == ([200, 200, 503], 200, 200)


def test_threads_that_work_for_nobody_are_not_waited_for() -> None:
    said = ask(ConcurrencyLimit(echo, 2, Metrics(), stuck=lambda: True), scope_of())
    assert said.status == 503 and said.headers[b"retry-after"] == b"1"


def test_a_place_is_free_again_after_an_error() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError

    app = ConcurrencyLimit(broken, 1, Metrics())
    for _ in range(3):
        with pytest.raises(ValueError):
            ask(app, scope_of())


def rated(now: list[float], rate: float = 2.0) -> Callable[..., int]:
    app = RateLimit(echo, rate, Metrics(), clock=lambda: now[0])
    return lambda client="a", path="/search": ask(app, scope_of(path, client=client)).status


def test_a_burst_then_the_rate() -> None:
    now = [0.0]
    status = rated(now)
    assert [status() for _ in range(6)] == [200, 200, 200, 200, 429, 429]
    assert status("b") == 200, "another client"
    assert status(path="/health") == 200
    now[0] = 0.5
    assert [status(), status()] == [200, 429]


def test_rate_tells_when_to_come_back() -> None:
    app = RateLimit(echo, 0.1, Metrics(), clock=lambda: 0.0)
    assert ask(app, scope_of()).status == 200
    said = ask(app, scope_of())
    assert said.status == 429 and said.headers[b"retry-after"] == b"10"


def test_clients_are_not_remembered_for_ever() -> None:
    app = RateLimit(echo, 1.0, Metrics(), clock=lambda: 0.0)
    for number in range(10_100):
        app._wait(str(number))
    assert len(app._clients) == 10_000


def test_refusals_are_counted() -> None:
    metrics = Metrics()
    app: Any = BodyLimit(echo, 1, metrics)
    ask(app, scope_of(), receiving(b"too long")[0])
    assert 'citeweave_refused_total{limit="body"} 1' in metrics.text()
