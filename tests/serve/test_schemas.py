"""The API as /openapi.json and docs/api.md describe it: requests made from the description get answers that fit it."""

import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi.testclient import TestClient

pytest.importorskip("schemathesis", reason="pip install schemathesis")

import schemathesis
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks
from starlette.testclient import httpx

SETTINGS = {"max_examples": 5, "derandomize": True, "database": None, "deadline": None}
NAMES = ("status_code", "content_type", "response_schema")
CHECKS = [not_a_server_error, *(getattr(checks, f"{name}_conformance") for name in NAMES)]
CODES = {"200", "202", "400", "404", "405", "413", "414", "422", "429", "431", "503", "403", "415"}
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text()


def test_every_route_is_described_and_every_text_and_list_is_bounded(client):
    """What a client sends has a longest length, wherever it stands."""
    described, table = client.get("/openapi.json").json(), PAGE.replace("/papers/ID", "/papers/{id}")
    schemas, parameters = described["components"]["schemas"], []
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            assert route["description"] and set(route["responses"]) <= CODES, (method, path)
            assert f"`{method.upper()} {path}" in table or f"{method.upper()} {path}?" in table, (method, path)
            parameters += [one["schema"] for one in route.get("parameters", ())]
    assert set(described["paths"]) >= {"/search", "/similar", "/embed", "/papers", "/explain"}
    for name in ("SearchRequest", "EmbedRequest", "ExportRequest"):
        assert schemas[name]["examples"] and schemas[name]["additionalProperties"] is False, name
    requests = [schemas[name] for name in schemas if name.endswith("Request") or name == "TitleAndAbstract"]
    for part in (part for schema in requests + parameters for part in walk(schema)):
        if part.get("type") == "string":
            assert "maxLength" in part or "enum" in part or "const" in part, part
        if part.get("type") == "array":
            assert "maxItems" in part, part
        if part.get("type") in ("integer", "number"):
            assert "maximum" in part and "minimum" in part, part


def test_the_page_of_the_description_needs_nobody_else(client):
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html") and "/similar" in page.text
    assert "<script" not in page.text and "//" not in page.text.replace("http://", "").replace("doi:", "")
    assert client.get("/docs", headers={"if-none-match": page.headers["etag"]}).status_code == 304


def walk(schema: Any) -> Any:
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from walk(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from walk(value)


MODES = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_requests_from_the_description(client, app, mode):
    tried = 0
    for found in schemathesis.openapi.from_dict(app.openapi()).get_all_operations():
        tried += check_operation(client, found.ok(), mode)
    assert tried > 8
    assert client.get("/health").json()["status"] == "ok"


def check_operation(client: TestClient, operation: Any, mode: Any) -> bool:
    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(**SETTINGS, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    def check(case: Any) -> None:
        sent = case.as_transport_kwargs(base_url="http://localhost")
        if isinstance(sent.get("data"), bytes | str):
            sent["content"] = sent.pop("data")
        sent = {name: sent[name] for name in ("method", "url", "params", "headers", "json", "content") if name in sent}
        try:
            response = client.request(**sent)
        except httpx.InvalidURL:  # the client sends no address of more than 64 kB
            reject()
        assert response.status_code < 500 or response.status_code == 503, (sent, response.text)
        case.validate_response(response, checks=CHECKS)

    try:
        check()
    except Unsatisfiable:  # nothing can be sent that does not fit, as to a route without parameters
        return False
    return True


CURLS = re.findall(r"^curl .*$", PAGE.replace("\\\n", " "), re.MULTILINE)


@pytest.mark.parametrize("line", CURLS, ids=lambda line: line.partition("localhost:8000")[2][:30])
def test_the_curl_lines_of_the_docs_are_answered(client, line):
    words = shlex.split(line)[1:]
    address = urlsplit(words[0])
    path = f"{address.path}?{address.query}" if address.query else address.path
    if "-d" in words:
        body = words[words.index("-d") + 1]
        answer = client.post(path, content=body.encode(), headers={"content-type": "application/json"})
    else:
        answer = client.get(path)
    missing = answer.status_code == 404 and "no paper has the id" in answer.text  # the papers are made up
    assert answer.status_code == 200 or missing, answer.text
