"""Limits, headers, hosts and strict JSON between a client and the application; and what is counted of them."""

import asyncio
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from citeweave.serve.middleware import (
    CONTENT_POLICY,
    HEADERS,
    BodyLimit,
    ConcurrencyLimit,
    Metrics,
    RateLimit,
    TimeLimit,
)
from citeweave.serve.responses import App, Json, Message, Receive, RefusedError, Scope, Send
from citeweave.serve.responses import parse_strictly as parse


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


def scope_of(path: str = "/search", *, client: str = "1.2.3.4", **headers: bytes) -> Scope:
    pairs = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    return {"type": "http", "path": path, "method": "POST", "headers": pairs, "client": (client, 1)}


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


def ask(app: App, scope: Scope | None = None, receive: Receive | None = None) -> Said:
    said = Said()
    asyncio.run(app(scope or scope_of(), receive or receiving(b"")[0], said.send))  # type: ignore[arg-type]
    return said


def test_a_body_is_given_up_once_it_is_too_long_and_counted():
    metrics = Metrics()
    limit = BodyLimit(echo, 10, metrics)
    said = ask(limit, receive=receiving(b"01234", b"56789")[0])
    assert (said.status, said.body) == (200, b"0123456789")
    receive, left = receiving(b"01234", b"567890", b"never read", b"nor this")
    said = ask(limit, receive=receive)
    assert said.status == 413 and left == [b"never read", b"nor this"]
    assert said.error == {"what": "the body has more than 10 bytes", "next": "send less, or several requests"}
    assert 'citeweave_refused_total{limit="body"} 1.0' in metrics.text()
    # a declared length is believed without reading
    receive, left = receiving(b"x")
    assert ask(limit, scope_of(content_length=b"11"), receive).status == 413 and left == [b"x"]


@pytest.mark.parametrize("value", [b"-1", b"1e3", b"", b"9" * 30, b"1, 2", b"2"])
def test_a_strange_length_is_refused_and_one_beside_chunks(value):
    more = {"transfer_encoding": b"chunked"} if value == b"2" else {}
    assert ask(BodyLimit(echo, 10, Metrics()), scope_of(content_length=value, **more)).status == 400


def test_a_request_out_of_time_is_answered():
    async def never(*_: Any) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    said = ask(TimeLimit(never, 0.01, Metrics()))
    assert said.status == 503 and b"retry-after" in said.headers and "0.01 seconds" in said.error["what"]
    slow_body = ask(TimeLimit(BodyLimit(echo, 10, Metrics()), 0.01, Metrics()), receive=never)
    assert slow_body.status == 503


def test_one_request_too_many_is_sent_away_and_the_next_served():
    async def story() -> list[int]:
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
        return [one.status for one in said]

    assert asyncio.run(story()) == [200, 200, 503, 200, 200]


def test_threads_that_work_for_nobody_are_not_waited_for_and_errors_free_their_place():
    said = ask(ConcurrencyLimit(echo, 2, Metrics(), stuck=lambda: True))
    assert said.status == 503 and said.headers[b"retry-after"] == b"1"

    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError

    app = ConcurrencyLimit(broken, 1, Metrics())
    for _ in range(3):
        with pytest.raises(ValueError):
            ask(app)


def test_a_burst_then_the_rate():
    now = [0.0]
    app = RateLimit(echo, 2.0, Metrics(), clock=lambda: now[0])

    def statuses(count: int, path: str = "/search", client: str = "a") -> list[int]:
        return [ask(app, scope_of(path, client=client)).status for _ in range(count)]

    assert statuses(6) == [200, 200, 200, 200, 429, 429]
    assert statuses(1, client="b") == statuses(1, "/health") == [200]
    now[0] = 0.5
    assert statuses(2) == [200, 429]
    slow = RateLimit(echo, 0.1, Metrics(), clock=lambda: 0.0)
    assert ask(slow).status == 200
    said = ask(slow)
    assert said.status == 429 and said.headers[b"retry-after"] == b"10"


def test_clients_are_not_remembered_for_ever():
    app = RateLimit(echo, 1.0, Metrics(), clock=lambda: 0.0)
    for number in range(10_100):
        app._wait(str(number))
    assert len(app._clients) == 10_000


def test_the_limits_of_a_server(serve: Callable[..., Any]):
    client = serve(max_body=2000)
    assert client.post("/search", json={"text": "a" * 3000}).status_code == 413
    assert client.post("/search", json={"text": "models", "by": "words"}).status_code == 200
    hasty, done = serve(time_limit=0.05, rate=1000), threading.Event()

    @hasty.app.get("/slow")
    async def slow() -> None:
        await hasty.app.state.server.workers.run(done.wait, 600)

    assert hasty.get("/slow").status_code == 503
    done.set()
    limited = serve(rate=0.001)
    assert [limited.get("/facets").status_code for _ in range(3)] == [200, 429, 429]
    assert limited.get("/health").status_code == 200
    assert limited.get("/page/main.js").status_code == 200, "the page itself loads"


# --- headers, hosts and pages of others -----------------------------------------------------------------------

BODY = {"text": "models", "by": "words"}


ANSWERS = [
    *(("GET", path, 200) for path in ("/health", "/docs", "/page/docs.css", "/openapi.json", "/metrics")),
    ("GET", "/nowhere", 404),
    ("GET", "/papers/nobody", 404),
    ("GET", "/search", 422),
    ("DELETE", "/search", 405),
    ("TRACE", "/", 405),
    ("PATCH", "/embed", 405),
    ("POST", "/health", 415),
]


@pytest.mark.parametrize(("method", "path", "status"), ANSWERS)
def test_every_answer_has_the_headers(client, method, path, status):
    answer = client.request(method, path)
    assert answer.status_code == status
    for name, value in HEADERS.items():
        assert answer.headers.get_list(name) == [value], name
    assert "server" not in answer.headers and len(answer.headers["x-request-id"]) == 16
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["cache-control"]


def test_the_policy_lets_no_script_of_others_run_also_when_the_server_is_at_fault(serve):
    assert "default-src 'none'" in CONTENT_POLICY and "script-src 'self';" in CONTENT_POLICY
    assert "unsafe" not in CONTENT_POLICY and "http" not in CONTENT_POLICY
    client = serve()

    @client.app.get("/broken")
    async def broken_route() -> None:
        raise RuntimeError("secret words")

    answer = client.get("/broken")
    assert answer.status_code == 500 and answer.headers["content-security-policy"] == CONTENT_POLICY
    assert answer.json()["error"]["id"] == answer.headers["x-request-id"] and "secret" not in answer.text


OURS = ["localhost", "localhost:8000", "LOCALHOST.", "127.0.0.1:1", "[::1]", "[::1]:8000"]
OTHERS = ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "localhost:80@evil", "localhost:80:80", "", "[::1", "a b"]  # fmt: skip


def test_only_names_of_this_machine_and_allowed_ones_are_ours(client, serve):
    def status(host: str, one: Any = client) -> int:
        return one.get("/health", headers={"host": host}).status_code

    assert {host: status(host) for host in OURS + OTHERS} == dict.fromkeys(OURS, 200) | dict.fromkeys(OTHERS, 400)
    assert client.get("/health", headers=[("host", "localhost"), ("host", "evil.example")]).status_code == 400
    named = serve(allow_hosts=("Papers.example.org",))
    assert (status("papers.example.org", named), status("example.org", named)) == (200, 400)
    assert status("whatever", serve(allow_hosts=("*",))) == 200


POSTS = [
    *(({"origin": f"http://{host}"}, 403) for host in ("evil.example", "localhost:9999", "localhost.evil.example")),
    ({"origin": "null"}, 403),
    ({"sec-fetch-site": "cross-site"}, 403),
    ({"sec-fetch-site": "same-site"}, 403),
    ({}, 200),
    ({"origin": "http://localhost", "sec-fetch-site": "same-origin"}, 200),
    ({"origin": "https://localhost"}, 200),
]


@pytest.mark.parametrize(("headers", "status"), POSTS)
def test_posts_of_other_pages_are_refused_and_ours_are_served(client, headers, status):
    assert client.post("/search", json=BODY, headers=headers).status_code == status


def test_what_a_form_can_send_and_long_addresses_headers_and_sockets_are_refused(client, place):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "application/jsonp"):
        answer = client.post("/search", content=b'{"text": "a"}', headers={"content-type": kind})
        assert answer.status_code == 415, kind
    assert client.get("/search", params={"q": "x" * 9000}).status_code == 414
    assert client.get("/health", headers={"x-long": "x" * 20_000}).status_code == 431
    with pytest.raises(Exception), client.websocket_connect("/search"):  # noqa: B017 - its own error class is private
        pass
    # and no answer names a folder of the server
    for path in ("/papers/none", "/search?q=a&aspect=nope", "/similar?paper=nobody"):
        answer = client.get(path)
        assert answer.status_code in (400, 404) and str(place.folder) not in answer.text


# --- strict JSON -----------------------------------------------------------------------------------------------

AMBIGUOUS = [
    b"", b"{", b"nul", b'{"a": 1, "a": 2}', b'{"b": {"a": 1, "a": 1}}', b'{"a": NaN}', b'{"a": Infinity}', b"1e999",
    b'{"a": -Infinity}', b'{"a": "\xff"}', b'"\\ud800"', '{"a": 1}'.encode("utf-16"), b"\xef\xbb\xbf{}", b"[" * 100_000,
    b"[" * 5000 + b"]" * 5000, b'{"a":' * 2000 + b"1" + b"}" * 2000, b"{'a': 1}", b'{"a": 01}', b"{} {}", b'{"a": 1,}',
    b'{"a": /**/ 1}', b'{"a\x00": 1}',
]  # fmt: skip


@pytest.mark.parametrize("body", AMBIGUOUS, ids=lambda body: repr(body[:24]))
def test_what_parsers_read_differently_is_refused(body):
    with pytest.raises(RefusedError) as caught:
        parse(body)
    assert caught.value.status == 400


def test_plain_json_is_read_and_written_without_nan():
    assert parse(b"{}") == {} and parse(b'{"a": [1, null, "\xc3\xbc"]}') == {"a": [1, None, "ü"]}
    assert parse(b'"\\ud83d\\ude00"') == "😀"
    assert Json({"a": math.nan, "b": np.float32([1, 2]), 3: None}).body == b'{"a":null,"b":[1.0,2.0],"3":null}'


# --- metrics -----------------------------------------------------------------------------------------------------


def test_metrics_count_what_happened():
    metrics = Metrics()
    for seconds in (0.0004, 0.004, 0.004, 99.0):
        metrics.count_request("/search", "GET", 200, seconds)
    metrics.count_request("other", "BREW", 405, 0.1)
    metrics.count_refused("rate")
    metrics.batches.observe(3)
    metrics.running.inc()
    families = text_string_to_metric_families(metrics.text({"papers": {'a"b': 19}}))
    samples = {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}
    expected = {
        ("citeweave_request_seconds_count", "/search"): 4,
        ("citeweave_request_seconds_bucket", "0.001", "/search"): 1,
        ("citeweave_request_seconds_bucket", "30.0", "/search"): 3,
        ("citeweave_requests_total", "GET", "/search", "200"): 4,
        ("citeweave_requests_total", "other", "other", "405"): 1,
        ("citeweave_refused_total", "rate"): 1,
        ("citeweave_encoded_texts_bucket", "2.0"): 0,
        ("citeweave_encoded_texts_bucket", "4.0"): 1,
        ("citeweave_requests_running",): 1,
        ("citeweave_papers", 'a"b'): 19,
    }
    assert {name: samples.get(name) for name in expected} == expected
    assert samples["citeweave_request_seconds_sum", "/search"] == pytest.approx(99.0084)
