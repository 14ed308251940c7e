"""How routes read and write JSON: strictly in, fast out.

Bodies with a key twice, with NaN or Infinity, with half of a surrogate pair, nested too deeply or not in UTF-8 are
refused with 400: other parsers would read them differently. Answers are written by orjson, which writes NaN as null.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute

from citeweave.serve.failures import RefusedError

_SMALL = 32_768
"""Bytes that are parsed faster than a thread is woken."""


class Json(Response):
    """An answer in JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return self.write(content)

    @staticmethod
    def write(content: Any) -> bytes:
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


class StrictRequest(Request):
    """A request whose body is read strictly."""

    async def json(self) -> Any:
        body = await self.body()
        return parse_strictly(body) if len(body) < _SMALL else await asyncio.to_thread(parse_strictly, body)


class StrictRoute(APIRoute):
    """A route of strict requests."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await inner(StrictRequest(request.scope, request.receive))

        return handle


def parse_strictly(data: bytes) -> Any:
    """
    >>> parse_strictly(b'{"a": [1, 2]}')
    {'a': [1, 2]}
    >>> parse_strictly(b'{"a": 1, "a": 2}')
    Traceback (most recent call last):
    citeweave.serve.failures.RefusedError: the body has a key twice; name each once
    """
    try:
        orjson.loads(data)  # refuses other encodings, NaN, halves of surrogate pairs and deep nesting, and is quick
        return json.loads(data, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError):
        raise RefusedError(400, "the body is not valid JSON in UTF-8; send one JSON object") from None


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise RefusedError(400, "the body has a key twice; name each once")
    return found
