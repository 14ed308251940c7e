"""Errors as answers: one JSON shape, plain words, never a traceback.

    >>> failure("count is 0; give at least 1")
    {'error': {'what': 'count is 0', 'next': 'give at least 1'}}

Does not decide which error is whose fault: `app.py` maps kinds of errors to statuses.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

import orjson

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_LONGEST = 600
"""Characters of an error's words; they may quote what a client sent."""

_PATH = re.compile(r"(?<![\w:/.-])(?:[A-Za-z]:[\\/]|/|\\\\)(?:[^\s\\/'\"`;:,()]+[\\/])+[^\s\\/'\"`;:,()]+")
"""An absolute path of two or more names, here or on Windows."""


class RefusedError(Exception):
    """A request that is answered with a status of its own."""

    def __init__(self, status: int, words: str, *, after: int | None = None, coming: bool = False) -> None:
        """`coming`: the same request will be answered once something is ready that is being made."""
        super().__init__(words)
        self.status, self.words, self.after, self.coming = status, words, after, coming

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.after is None else {"Retry-After": str(self.after)}


def unknown_paper(id: str) -> RefusedError:
    return RefusedError(404, f"no paper has the id {clip(id, 120)!r}; look for it with /search or /suggest")


def clip(text: str, most: int = _LONGEST) -> str:
    """
    >>> clip("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def without_paths(words: str) -> str:
    """Folders of the server are nobody's business: of an absolute path only the last name is told.

    >>> without_paths("the paper 'doi:10.1/a/b' is not in /srv/all/index; look in it")
    "the paper 'doi:10.1/a/b' is not in index; look in it"
    >>> without_paths(r"C:\\Users\\ada\\index is damaged")
    'index is damaged'
    """
    return _PATH.sub(lambda found: re.split(r"[\\/]", found[0])[-1], words)


def printable(text: str) -> str:
    """A stranger's text for a log or a terminal: one line, and no sign that would move a cursor or change a colour.

    >>> printable("a\\n\\x1b[31mb\\u202e ü")
    'a\\\\n\\\\x1b[31mb\\\\u202e ü'
    """
    return "".join(s if s.isprintable() else s.encode("unicode_escape").decode("ascii") for s in text)


def failure(words: str, *, id: str = "", coming: bool = False) -> dict[str, Any]:
    """The body of an error; our messages say after their last semicolon what to do."""
    line = clip(" ".join(words.split()))
    what, _, advice = line.rpartition("; ")
    error = {"what": what, "next": advice} if what else {"what": line, "next": ""}
    return {"error": error | ({"id": id} if id else {}) | ({"coming": True} if coming else {})}


async def refuse(send: Send, status: int, words: str, headers: Mapping[str, str] | None = None, id: str = "") -> None:
    """Answer a request with an error before it reaches a route."""
    body = orjson.dumps(failure(words, id=id))
    told = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    await send({"type": "http.response.start", "status": status, "headers": encoded(told.items())})
    await send({"type": "http.response.body", "body": body})


def encoded(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]


def header(scope: Scope, name: bytes) -> list[bytes]:
    """All values of a header, whose name is given in small letters."""
    return [value for key, value in scope["headers"] if key.lower() == name]
