"""Untrusted input: every answer is a refusal or an ordinary answer, never a fault of ours, and it goes on serving."""

import asyncio
import json
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

JSON = {"content-type": "application/json"}

TEXTS = [
    "../../../../etc/passwd", "..\\..\\windows\\win.ini", "/etc/passwd", "file:///etc/passwd", "//evil.example/x",
    "http://169.254.169.254/latest/meta-data", "gopher://localhost:6379/_INFO", "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>", "javascript:alert(1)", "{{7*7}}${7*7}<%= 7*7 %>", "'; DROP TABLE papers; --",
    '" OR "1"="1', "$(id)`id`|id;id", "%00", "\x00", "a\x00b", "%0d%0aSet-Cookie: a=b", "\r\nSet-Cookie: a=b\r\n",
    "\n\n", "%s%n%x", "__proto__", "constructor", "__class__.__init__.__globals__", "\u202egnp.exe", "\ufeff",
    "\u0000\u0001\u001b[31m", "😀" * 200, "ü" * 400, "a" * 499, "İıſK", "\U0010ffff", "NaN", "null", "true", "-1",
    "1e309", "0x10", "९", "*", "?", "#", "%", "%%", "%zz", "%c0%ae%c0%ae/", "..%2f..%2f", "....//....//", ".", "..",
    "/", "//", "~root",
]  # fmt: skip
BODIES: list[bytes] = [
    b"", b" ", b"null", b"true", b"1", b'"text"', b"[]", b"{}", b"{", b"}", b"[[", b'{"text"', b'{"text":}', b"\x00",
    b"\xff\xfe", b"\x80" * 100, b"<xml/>", b"a=b&c=d", b"--x\r\n\r\n--x--", b"[" * 60_000, b'{"a":' * 60_000,
    b"[" * 900 + b"]" * 900, b"1" * 5000, b'{"text": 1' + b"0" * 5000 + b"}", b'{"text": "a", "text": "b"}',
    b'{"text": NaN}', b'{"count": Infinity, "text": "a"}', b'{"text": "\\ud800"}', b'{"text": "\\udfff\\ud800"}',
    b'{"text": "\xff"}', b'{"text": "a", "count": 1e400}', b'{"text": "a"}{"text": "b"}', b'\xef\xbb\xbf{"text": "a"}',
    '{"text": "a"}'.encode("utf-16"), '{"text": "a"}'.encode("utf-32"),
]  # fmt: skip

VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 10**400, -(10**400), 2**63, 2**64, 1.5, -0.0, 1e308, "", "a", "1", [], [[]], [None],
    ["a"] * 2000, {}, {"a": 1}, {"$ne": 1}, [[[[[[1]]]]]], "x" * 200_000, {"__proto__": {}}, ["\x00"], "\x00",
]  # fmt: skip
KEYS = [
    "text", "paper", "liked", "disliked", "sentences", "cite", "by", "aspect", "count", "offset", "where", "diversity",
    "approximate", "index", "facets", "unknown", "__class__",
]  # fmt: skip


def check(client: TestClient, answer: Any, about: object) -> None:
    assert answer.status_code < 500, (about, answer.status_code, answer.text[:500])
    assert "content-security-policy" in answer.headers and "set-cookie" not in answer.headers
    assert "Traceback" not in answer.text and "root:x:" not in answer.text
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert error["what"] and "\n" not in error["what"] and len(answer.content) < 2000, about


def alive(client: TestClient) -> None:
    assert client.get("/health").json()["status"] == "ok"
    assert client.get("/search", params={"q": "models learn", "by": "words"}).json()["hits"]


@pytest.mark.parametrize(
    "address",
    ["/papers/{}", "/page/{}", "/{}", "/papers?id={}", "/similar?paper={}", "/search?by=words&q={}", "/suggest?q={}",
     "/explain?left={}&right=p:1", "/neighborhood?paper={}", "/health?{}", "/map/titles?rows={}", "/samples?anchor={}"],
)  # fmt: skip
def test_texts_in_addresses(client, address):
    for text in TEXTS:
        check(client, client.get(address.format(quote(text, safe=""))), (address, text))
    alive(client)


def test_raw_addresses_and_query_strings(client):
    """As they are, where no client library repairs them first."""
    for text in TEXTS:
        raw = text.encode("utf-8", "surrogatepass").replace(b"\n", b"").replace(b"\r", b"").replace(b" ", b"")
        for path in (b"/papers/" + raw, b"/page/" + raw, b"/page/../" + raw, b"/" + raw):
            status, body = raw_get(client, path)
            assert 200 <= status < 500 and b"root:x:" not in body, path
    for query in (
        *(b"q=\xff\xfe", b"q=%ff%fe", b"q=%00", b"=", b"&&&", b"q", b"q=a&q=b", b"q=a;q=b", b"%"),
        *(b"q=a&count=%31%30", b"q[]=a", b"q=a&count=1&count=2"),
    ):
        assert raw_get(client, b"/search", query)[0] < 500, query
    alive(client)


def raw_get(client: TestClient, path: bytes, query: bytes = b"") -> tuple[int, bytes]:
    """A request without a client library between."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": path.decode("utf-8", "replace"), "raw_path": path, "query_string": query, "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": ("1.2.3.4", 5), "server": ("localhost", 80), "state": {},
    }  # fmt: skip
    asyncio.run(client.app(scope, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


@pytest.mark.parametrize("route", ["/search", "/search/batch", "/embed", "/export"])
def test_bodies_that_are_no_requests(client, route):
    for body in BODIES:
        answer = client.post(route, content=body, headers=JSON)
        check(client, answer, (route, body[:60]))
        assert answer.status_code in (400, 413, 422), (route, body[:60], answer.status_code)
    alive(client)


def test_wrong_types_in_queries(client):
    parts = ("years", "venues", "fields", "ids", "not_ids", "has_abstract", "local", "nothing")
    wrong = [{key: value} for key in KEYS for value in VALUES]
    wrong += [{"where": {part: value}} for part in parts for value in VALUES]
    for number, query in enumerate(wrong):
        # numbers of any size are written by hand: Python refuses to write some of them
        body = json.dumps({"by": "words", "text": "models", **query}).encode()
        check(client, client.post("/search", content=body, headers=JSON), (number, str(query)[:200]))
    assert len(wrong) > 600
    alive(client)


def test_wrong_types_in_other_bodies(client):
    for value in VALUES:
        for route, body in (
            ("/embed", {"texts": value}),
            ("/embed", {"texts": [value]}),
            ("/embed", {"texts": [{"title": value, "abstract": value}]}),
            ("/embed", {"texts": ["a"], "aspect": value}),
            ("/export", {"format": value, "ids": ["p:1"]}),
            ("/export", {"format": "csv", "ids": value}),
            ("/search/batch", {"queries": value}),
            ("/search/batch", {"queries": [value]}),
            ("/search", {"sentences": {"paper": value, "numbers": value}}),
            ("/search", {"sentences": {"texts": value}}),
            ("/search", {"cite": {"text": value, "intent": value}}),
            ("/search", {"liked": value, "disliked": value}),
        ):
            check(client, client.post(route, content=json.dumps(body).encode(), headers=JSON), (route, str(body)[:200]))
    alive(client)


@pytest.mark.parametrize("name", ["count", "offset", "year_from", "year_to", "diversity", "facets", "by", "index"])
def test_wrong_parameters(client, name):
    for text in (*TEXTS, "1" * 5000, "-" + "9" * 400, "1_000", " 1", "1.0", "inf", "nan", "１２"):
        check(client, client.get("/search", params={"q": "models", "by": "words"} | {name: text}), (name, text[:40]))


def test_strange_headers(client):
    for name in ("accept", "accept-encoding", "if-none-match", "x-forwarded-for", "x-forwarded-host", "cookie", "range",
                 "user-agent", "referer", "expect", "upgrade", "x-request-id", "content-type"):  # fmt: skip
        for value in ("", "\xff" * 20, "a" * 2000, "*", "gzip;q=NaN", "bytes=0-99999999999", "a: b"):
            for path in ("/health", "/docs"):
                answer = client.get(path, headers={name: value.encode("latin-1")})  # type: ignore[dict-item]
                assert answer.status_code in (200, 304), (name, value)
                assert "a: b" not in answer.headers.values()


def test_nothing_of_a_client_gets_into_a_file_name(client):
    answer = client.post("/export", json={"format": "csv", "ids": ["../../etc/passwd"]})
    assert answer.status_code == 200 and answer.headers["content-disposition"] == 'attachment; filename="papers.csv"'
