from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from citeweave.serve.responses import CONTENT_POLICY, HEADERS

BODY = {"text": "models", "by": "words"}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("GET", "/docs", 200),
        ("GET", "/docs.css", 200),
        ("GET", "/openapi.json", 200),
        ("GET", "/metrics", 200),
        ("GET", "/nowhere", 404),
        ("GET", "/papers/nobody", 404),
        ("GET", "/search", 422),
        ("DELETE", "/search", 405),
        ("TRACE", "/", 405),
        ("PATCH", "/embed", 405),
        ("POST", "/health", 415),
    ],
)
def test_every_answer_has_the_headers(client: TestClient, method: str, path: str, status: int) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    for name, value in HEADERS.items():
        assert answer.headers.get_list(name) == [value], name
    assert "server" not in answer.headers and len(answer.headers["x-request-id"]) == 16
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["cache-control"]


def test_the_policy_lets_no_script_of_others_run() -> None:
    assert "default-src 'none'" in CONTENT_POLICY and "script-src 'self';" in CONTENT_POLICY
    assert "unsafe" not in CONTENT_POLICY and "http" not in CONTENT_POLICY


def test_the_headers_are_there_when_the_server_is_at_fault(serve: Callable[..., TestClient]) -> None:
    client = serve()
    app: Any = client.app

    @app.get("/broken")
    async def broken_route() -> None:
        raise RuntimeError("secret words")

    answer = client.get("/broken")
    assert answer.status_code == 500 and answer.headers["content-security-policy"] == CONTENT_POLICY
    error = answer.json()["error"]
    assert error["id"] == answer.headers["x-request-id"] and "secret" not in answer.text


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "LOCALHOST.", "127.0.0.1:1", "[::1]", "[::1]:8000"])
def test_names_of_this_machine_are_ours(client: TestClient, host: str) -> None:
    assert client.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "localhost:80@evil",
        "localhost:80:80",
        "",
        "[::1",
        "a b",
    ],
)
def test_other_names_are_not(client: TestClient, host: str) -> None:
    assert client.get("/health", headers={"host": host}).status_code == 400


def test_a_host_twice_is_refused(client: TestClient) -> None:
    assert client.get("/health", headers=[("host", "localhost"), ("host", "evil.example")]).status_code == 400


def test_a_host_can_be_allowed(serve: Callable[..., TestClient]) -> None:
    one = serve(allow_hosts=("Papers.example.org",))
    assert one.get("/health", headers={"host": "papers.example.org"}).status_code == 200
    assert one.get("/health", headers={"host": "example.org"}).status_code == 400
    any_ = serve(allow_hosts=("*",))
    assert any_.get("/health", headers={"host": "whatever"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:9999"},
        {"origin": "http://localhost.evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_posts_of_other_pages_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    assert client.post("/search", json=BODY, headers=headers).status_code == 403


def test_posts_of_our_page_and_of_programs_are_served(client: TestClient) -> None:
    for headers in (
        {},
        {"origin": "http://localhost", "sec-fetch-site": "same-origin"},
        {"origin": "https://localhost"},
    ):
        assert client.post("/search", json=BODY, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "application/jsonp"]
)
def test_posts_that_a_form_can_make_are_refused(client: TestClient, kind: str) -> None:
    assert client.post("/search", content=b'{"text": "a"}', headers={"content-type": kind}).status_code == 415


def test_long_addresses_and_headers_are_refused(client: TestClient) -> None:
    assert client.get("/search", params={"q": "x" * 9000}).status_code == 414
    assert client.get("/health", headers={"x-long": "x" * 20_000}).status_code == 431


def test_web_sockets_are_closed(client: TestClient) -> None:
    with pytest.raises(Exception), client.websocket_connect("/search"):  # noqa: B017 - its own error class is private
        pass


def test_folders_of_the_server_are_not_told(client: TestClient, place: Any) -> None:
    for path in ("/papers/none", "/search?q=a&aspect=nope", "/similar?paper=nobody"):
        answer = client.get(path)
        assert answer.status_code in (400, 404) and str(place.folder) not in answer.text
