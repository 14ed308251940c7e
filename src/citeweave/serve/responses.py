"""Error responses, strict JSON requests, security headers, and the check of a request's host and origin.

    >>> failure("count is 0; give at least 1")
    {'error': {'what': 'count is 0', 'next': 'give at least 1'}}
    >>> _parse_host(b"localhost:8000"), _parse_host(b"[::1]:8000"), _parse_host(b"evil.example:80@localhost")
    ('localhost', '[::1]', None)

Every error is JSON of one shape, never a traceback; `app.py` maps kinds of errors to statuses. Bodies with duplicate
keys, NaN, Infinity, half a surrogate pair, deep nesting, or not in UTF-8 are refused with 400, since parsers read them
differently. Responses are written by orjson, which writes NaN as null.

A page of another site may send requests to a server on localhost, by its address or by a name of its own that resolves
to it (DNS rebinding). So the Host must be one of ours, and a POST must be JSON and, if it names an origin, come from our
own page. Scripts run only from our own files, so a title that holds a script stays text. There are no users and no
passwords: whoever can reach the port can read the index.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, MutableMapping
from typing import Any

import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute

from citeweave.serve.options import ServeOptions

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_MAX_MESSAGE = 600
"""Maximum characters of an error message, which may quote what a client sent."""

_PATH = re.compile(r"(?<![\w:/.-])(?:[A-Za-z]:[\\/]|/|\\\\)(?:[^\s\\/'\"`;:,()]+[\\/])+[^\s\\/'\"`;:,()]+")
"""Matches an absolute path of two or more names, POSIX or Windows."""


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


def without_paths(message: str) -> str:
    """Hide the server's folders in a message: only the last name of an absolute path is shown.

    >>> without_paths("the paper 'doi:10.1/a/b' is not in /srv/all/index; look in it")
    "the paper 'doi:10.1/a/b' is not in index; look in it"
    >>> without_paths(r"C:\\Users\\ada\\index is damaged")
    'index is damaged'
    """
    return _PATH.sub(lambda match: re.split(r"[\\/]", match[0])[-1], message)


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
    await send({"type": "http.response.start", "status": status, "headers": _encode_headers(fields.items())})
    await send({"type": "http.response.body", "body": body})


def _encode_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
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


# --- security ---

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
LOCAL = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(rb"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::\d{1,5})?")
_METHODS = ("GET", "HEAD", "POST", "OPTIONS")


class SecureHeaders:
    """Middleware that sets security headers on every response and removes the server's name."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._headers = _encode_headers(HEADERS.items())
        self._set = {name for name, _ in self._headers} | {b"server"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in self._set]
                if not any(name.lower() == b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-store"))
                message = {**message, "headers": headers + self._headers}
            await send(message)

        await self._app(scope, receive, sending)


class OriginGuard:
    """Middleware that responds to requests with foreign hosts or origins, and to malformed ones, with an error."""

    def __init__(self, app: App, options: ServeOptions) -> None:
        self._app, self._options = app, options
        self._hosts = {host.lower().rstrip(".") for host in (*LOCAL, *options.allow_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] == "http" and (refusal := self._check(scope)):
            await refuse(send, *refusal)
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> tuple[int, str] | None:
        return (
            _too_long(scope, self._options)
            or _wrong_host(scope, self._hosts)
            or _wrong_method(scope)
            or (_foreign_post(scope) if scope["method"] == "POST" else None)
        )


def _parse_host(value: bytes) -> str | None:
    """Return the name in a Host header without its port; None if it is malformed."""
    match = _HOST.fullmatch(value)
    return match[1].decode("ascii").lower().rstrip(".") if match else None


def _too_long(scope: Scope, options: ServeOptions) -> tuple[int, str] | None:
    size = len(scope.get("raw_path") or scope["path"].encode("utf-8", "replace")) + len(scope["query_string"])
    if size > options.max_url:
        return 414, f"the address has {size:,} bytes; give at most {options.max_url:,}, or POST a JSON body"
    size = sum(len(name) + len(value) for name, value in scope["headers"])
    if size > options.max_headers:
        return 431, f"the headers have {size:,} bytes; give at most {options.max_headers:,}"
    return None


def _wrong_host(scope: Scope, hosts: Collection[str]) -> tuple[int, str] | None:
    hosts_sent = header(scope, b"host")
    name = _parse_host(hosts_sent[0]) if len(hosts_sent) == 1 else None
    if name is None:
        return 400, "the request names no single Host; send one Host header"
    if name not in hosts and "*" not in hosts:
        return 400, f"this server does not accept the host name {name!r}; start it with --allow-host {name} to allow it"
    return None


def _wrong_method(scope: Scope) -> tuple[int, str] | None:
    if scope["method"] not in _METHODS:
        return 405, "this method is not supported; use GET or POST"
    return None


def _foreign_post(scope: Scope) -> tuple[int, str] | None:
    kinds = header(scope, b"content-type")
    kind = kinds[0].decode("latin-1").partition(";")[0].strip().lower() if len(kinds) == 1 else ""
    if kind != "application/json":
        return 415, "the body is not declared as JSON; send it with Content-Type: application/json"
    host = header(scope, b"host")[0].lower()
    for origin in header(scope, b"origin"):
        if origin.lower() not in (b"http://" + host, b"https://" + host):
            return 403, "the request comes from a page of another site; send it from the server's own page or a program"
    if any(site not in (b"same-origin", b"none") for site in header(scope, b"sec-fetch-site")):
        return 403, "the request comes from a page of another site; send it from the server's own page or a program"
    return None
