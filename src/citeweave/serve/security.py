"""What keeps strangers' pages and texts from using the server: headers of every answer, and whom it listens to.

A page of another site may send requests to a server on localhost, by its address or by a name of its own that leads
there (DNS rebinding). So the Host must be one of ours, a POST must be JSON and, where it says where it comes from, come
from our own page. Scripts run from our own files only, so a title that holds a script is text.

    >>> host_of(b"localhost:8000"), host_of(b"[::1]:8000"), host_of(b"evil.example:80@localhost")
    ('localhost', '[::1]', None)

There are no users and no passwords here: who may reach the port may read the index.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from citeweave.serve.failures import App, Message, Receive, Scope, Send, encoded, header, refuse
from citeweave.serve.options import ServeOptions

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
    """Sets the headers of every answer, errors included, and takes out the server's name."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._headers = encoded(HEADERS.items())
        self._set = {name for name, _ in self._headers} | {b"server"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in self._set]
                if not any(name.lower() == b"cache-control" for name, _ in kept):
                    kept.append((b"cache-control", b"no-store"))
                message = {**message, "headers": kept + self._headers}
            await send(message)

        await self._app(scope, receive, sending)


class Guard:
    """Turns away requests that are not meant for this server, or that are no requests of its kind."""

    def __init__(self, app: App, options: ServeOptions) -> None:
        self._app, self._options = app, options
        self._hosts = {host.lower().rstrip(".") for host in (*LOCAL, *options.allow_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] == "http" and (found := self._fault(scope)):
            await refuse(send, *found)
            return
        await self._app(scope, receive, send)

    def _fault(self, scope: Scope) -> tuple[int, str] | None:
        return (
            _too_long(scope, self._options)
            or _wrong_host(scope, self._hosts)
            or _wrong_method(scope)
            or (_foreign_post(scope) if scope["method"] == "POST" else None)
        )


def host_of(value: bytes) -> str | None:
    """The name in a Host header without its port, None where it is not one."""
    found = _HOST.fullmatch(value)
    return found[1].decode("ascii").lower().rstrip(".") if found else None


def _too_long(scope: Scope, options: ServeOptions) -> tuple[int, str] | None:
    size = len(scope.get("raw_path") or scope["path"].encode("utf-8", "replace")) + len(scope["query_string"])
    if size > options.max_url:
        return 414, f"the address has {size:,} bytes; give at most {options.max_url:,}, or POST a JSON body"
    size = sum(len(name) + len(value) for name, value in scope["headers"])
    if size > options.max_headers:
        return 431, f"the headers have {size:,} bytes; give at most {options.max_headers:,}"
    return None


def _wrong_host(scope: Scope, hosts: Collection[str]) -> tuple[int, str] | None:
    given = header(scope, b"host")
    name = host_of(given[0]) if len(given) == 1 else None
    if name is None:
        return 400, "the request names no single Host; send one Host header"
    if name not in hosts and "*" not in hosts:
        return 400, f"this server does not go by the name {name!r}; start it with --allow-host {name} if it should"
    return None


def _wrong_method(scope: Scope) -> tuple[int, str] | None:
    if scope["method"] not in _METHODS:
        return 405, "this method is not served; use GET or POST"
    return None


def _foreign_post(scope: Scope) -> tuple[int, str] | None:
    kinds = header(scope, b"content-type")
    kind = kinds[0].decode("latin-1").partition(";")[0].strip().lower() if len(kinds) == 1 else ""
    if kind != "application/json":
        return 415, "the body is not declared as JSON; send it with Content-Type: application/json"
    host = header(scope, b"host")[0].lower()
    for origin in header(scope, b"origin"):
        if origin.lower() not in (b"http://" + host, b"https://" + host):
            return 403, "the request comes from a page of another site; ask from the server's own page or a program"
    if any(site not in (b"same-origin", b"none") for site in header(scope, b"sec-fetch-site")):
        return 403, "the request comes from a page of another site; ask from the server's own page or a program"
    return None
