"""The API as /openapi.json describes it: requests made from the description get answers that fit it."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

pytest.importorskip("schemathesis", reason="pip install schemathesis")

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

EXAMPLES = 5
"""Requests a route."""

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
CODES = {"200", "202", "400", "404", "405", "413", "414", "422", "429", "431", "503", "403", "415"}


def test_every_route_is_described(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            assert route["description"], (method, path)
            assert set(route["responses"]) <= CODES, (method, path)
    for name in ("SearchRequest", "EmbedRequest", "ExportRequest"):
        assert described["components"]["schemas"][name]["examples"], name
        assert described["components"]["schemas"][name]["additionalProperties"] is False


def test_every_text_and_list_is_bounded(client: TestClient) -> None:
    """What a client sends has a longest length, wherever it stands."""
    described = client.get("/openapi.json").json()
    parts = described["components"]["schemas"]
    asked = [name for name in parts if name.endswith("Request")] + ["TitleAndAbstract"]
    parameters = [
        one["schema"]
        for methods in described["paths"].values()
        for route in methods.values()
        for one in route.get("parameters", ())
    ]
    for schema in [parts[name] for name in asked] + parameters:
        for part in walk(schema):
            if part.get("type") == "string":
                assert "maxLength" in part or "enum" in part or "const" in part, part
            if part.get("type") == "array":
                assert "maxItems" in part, part
            if part.get("type") in ("integer", "number"):
                assert "maximum" in part and "minimum" in part, part


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
def test_requests_from_the_description(client: TestClient, app: FastAPI, mode: Any) -> None:
    tried = 0
    for found in schemathesis.openapi.from_dict(app.openapi()).get_all_operations():
        tried += check_operation(client, found.ok(), mode)
    assert tried > 8
    assert client.get("/health").json()["status"] == "ok"


def check_operation(client: TestClient, operation: Any, mode: Any) -> bool:
    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Any) -> None:
        sent = case.as_transport_kwargs(base_url="http://localhost")
        if isinstance(sent.get("data"), bytes | str):
            sent["content"] = sent.pop("data")
        sent = {name: sent[name] for name in ("method", "url", "params", "headers", "json", "content") if name in sent}
        response = client.request(**sent)
        assert response.status_code < 500 or response.status_code == 503, (sent, response.text)
        case.validate_response(response, checks=CHECKS)

    try:
        check()
    except Unsatisfiable:  # nothing can be sent that does not fit, as to a route without parameters
        return False
    return True
