"""The curl lines of docs/api.md are asked of a server: their addresses, keys and types are right."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fastapi.testclient import TestClient

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"


def curls() -> list[list[str]]:
    text = PAGE.read_text().replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in re.findall(r"^curl .*$", text, re.MULTILINE)]


@pytest.mark.parametrize("words", curls(), ids=lambda words: words[0].removeprefix("http://localhost:8000")[:30])
def test_curl(client: TestClient, words: list[str]) -> None:
    address = urlsplit(words[0])
    path = f"{address.path}?{address.query}" if address.query else address.path
    if "-d" in words:
        body = words[words.index("-d") + 1]
        answer = client.post(path, content=body.encode(), headers={"content-type": "application/json"})
    else:
        answer = client.get(path)
    missing = answer.status_code == 404 and "no paper has the id" in answer.text  # the papers are made up
    assert answer.status_code == 200 or missing, answer.text


def test_every_route_is_on_the_page(client: TestClient) -> None:
    table = PAGE.read_text().replace("/papers/ID", "/papers/{id}")
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method in methods:
            assert f"`{method.upper()} {path}" in table or f"{method.upper()} {path}?" in table, (method, path)
