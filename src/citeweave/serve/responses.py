"""Responses: errors, JSON written and parsed strictly, and papers of an index as JSON.

    >>> failure("count is 0; give at least 1")
    {'error': {'what': 'count is 0', 'next': 'give at least 1'}}

Every error is JSON of one shape, never a traceback; `app.py` maps kinds of errors to statuses. Bodies with duplicate
keys, NaN, Infinity, half a surrogate pair, deep nesting, or not in UTF-8 are refused with 400, since parsers read them
differently. Responses are written by orjson, which writes NaN as null.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping
from typing import Any

import numpy as np
import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute
from numpy.typing import NDArray

from citeweave.core.errors import without_paths as without_paths
from citeweave.search.export import paper_json
from citeweave.search.filters import FACET_KINDS, count_facets
from citeweave.search.index import Index
from citeweave.search.paper_details import cited_counts

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_MAX_MESSAGE = 600
"""Maximum characters of an error message, which may quote what a client sent."""


class RefusedError(Exception):
    """An error that becomes a JSON response with its own HTTP status."""

    def __init__(self, status: int, message: str, *, retry_after: int | None = None, coming: bool = False) -> None:
        """`coming` means that the same request will succeed once background work is done."""
        super().__init__(message)
        self.status, self.message, self.retry_after, self.coming = status, message, retry_after, coming

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


def unknown_paper(id: str) -> RefusedError:
    return RefusedError(404, f"no paper has the id {clip(id, 120)!r}; search for it with /search or /suggest")


def clip(text: str, max_length: int = _MAX_MESSAGE) -> str:
    """Shorten a text for an error response.

    >>> clip("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def printable(text: str) -> str:
    """Make untrusted text of a request safe for responses and logs: one line, no control characters.

    >>> printable("a\\n\\x1b[31mb\\u202e ü")
    'a\\\\n\\\\x1b[31mb\\\\u202e ü'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def failure(message: str, *, id: str = "", coming: bool = False) -> dict[str, Any]:
    """Build the JSON body of an error response; the part after the last semicolon says what to do."""
    line = clip(" ".join(message.split()))
    what, _, advice = line.rpartition("; ")
    error = {"what": what, "next": advice} if what else {"what": line, "next": ""}
    return {"error": error | ({"id": id} if id else {}) | ({"coming": True} if coming else {})}


async def refuse(send: Send, status: int, message: str, headers: Mapping[str, str] | None = None, id: str = "") -> None:
    """Respond with an error before a request reaches a route."""
    body = orjson.dumps(failure(message, id=id))
    fields = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    await send({"type": "http.response.start", "status": status, "headers": encode_headers(fields.items())})
    await send({"type": "http.response.body", "body": body})


def encode_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]


def header(scope: Scope, name: bytes) -> list[bytes]:
    """Return all values of a request header, by its lower-case name."""
    return [value for key, value in scope["headers"] if key.lower() == name]


# --- JSON ---

_SMALL = 32_768
"""Bytes of a body that is parsed faster than a thread wakes up."""


class Json(Response):
    """A JSON response, written by orjson."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return self.write(content)

    @staticmethod
    def write(content: Any) -> bytes:
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


class StrictRequest(Request):
    """A request whose JSON body is parsed strictly: no duplicate keys, no NaN."""

    async def json(self) -> Any:
        body = await self.body()
        return parse_strictly(body) if len(body) < _SMALL else await asyncio.to_thread(parse_strictly, body)


class StrictRoute(APIRoute):
    """A FastAPI route that parses its requests strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await inner(StrictRequest(request.scope, request.receive))

        return handle


def parse_strictly(data: bytes) -> Any:
    """Parse the JSON body of a request strictly; what parsers read differently becomes an error response.

    >>> parse_strictly(b'{"a": [1, 2]}')
    {'a': [1, 2]}
    >>> parse_strictly(b'{"a": 1, "a": 2}')
    Traceback (most recent call last):
    citeweave.serve.responses.RefusedError: the body has a duplicate key; give each key once
    """
    try:
        orjson.loads(data)  # fast, and refuses other encodings, NaN, half surrogate pairs and deep nesting
        return json.loads(data, object_pairs_hook=_refuse_duplicates)
    except (ValueError, RecursionError):
        raise RefusedError(400, "the body is not valid JSON in UTF-8; send one JSON object") from None


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise RefusedError(400, "the body has a duplicate key; give each key once")
    return table


# --- papers of an index ---

MAX_LISTED = 500
"""Maximum references, and citing papers, that are listed."""


def find_row(index: Index, id: str) -> int:
    """Return the row of a paper of a served index by any of its ids; 404 if there is none."""
    row = int(index.rows([id])[0])
    if row < 0:
        raise unknown_paper(id)
    return row


def short_paper(index: Index, row: int) -> dict[str, Any]:
    """Return the id, title and year of a paper of an index, as lists of papers show it."""
    return {"id": index.id(row), "title": index.titles[row], "year": int(index.years[row]) or None}


def facets_json(index: Index, rows: NDArray[Any], *kinds: str) -> dict[str, Any]:
    """Return years, venues, authors and further names of some rows (or a mask) with counts, as JSON; or only some kinds."""
    counts = count_facets(index, rows, kinds=kinds or FACET_KINDS)
    if "years" in counts:
        counts["years"] = {str(year): count for year, count in counts["years"].items()}
    return counts


def hit_json(index: Index, hit: dict[str, Any]) -> dict[str, Any]:
    """Return a hit of a search as JSON, with everything that the page shows of its paper."""
    paper = index.paper(hit["row"])
    fields = paper_json(paper)
    del fields["ids"]
    more = {"sentences": index.sentence_texts(hit["row"])} if hit["matches"] else {}
    cited_by = int(cited_counts(index)[paper.row])
    return {**hit, **fields, "outside": paper.stub, "cited_by_count": cited_by, **more}


def paper_details_json(index: Index, row: int) -> dict[str, Any]:
    """Return a paper with its sentences, references and citing papers as JSON for /papers/{id}."""
    paper, citing = index.paper(row), index.citing(index.key_of(row))
    cited = index.rows_of_keys(index.references(row))  # (references,), -1 where not in the index
    searchable = set(index.sentence_numbers(row).tolist())
    return {
        **paper_json(paper),
        "row": row,
        "outside": paper.stub,
        "sentences": [
            {"number": n, "text": text, "vector": n in searchable} for n, text in enumerate(index.sentence_texts(row))
        ],
        "references": _list_papers(index, cited[cited >= 0]),
        "references_unknown": int((cited < 0).sum()),
        "cited_by": _list_papers(index, citing),
        "cited_by_count": len(citing),
    }


def _list_papers(index: Index, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
    """List papers by id, so that the order does not depend on the history of the index."""
    return [short_paper(index, row) for row in sorted(rows.tolist(), key=index.id)[:MAX_LISTED]]
