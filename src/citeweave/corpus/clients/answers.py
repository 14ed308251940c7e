"""Answers kept on disk, so that an interrupted fetch goes on where it stopped and nothing is asked for twice.

    cache/openalex/3f/3f9a...c1.json     line 1: {"at": 1789000000, "status": 200, "request": {...}}, then the answer

A file is named by a hash of the request without the key, and appears whole or not at all. A damaged one counts as absent.
Does not ask anybody: see `http.py`.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from citeweave.artefacts.integrity import sealed, unsealed
from citeweave.files import hash_json, read_input, write_whole


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for; never holds a key."""

    path: str
    parameters: dict[str, str]
    body: Any = None
    """JSON to POST; None = GET."""

    def as_json(self, base: str) -> dict[str, Any]:
        return {"base": base, "path": self.path, "parameters": self.parameters, "body": self.body}


@dataclass(frozen=True, slots=True)
class Answer:
    """A status and its JSON."""

    status: int
    value: Any


class AnswerCache:
    """The answers of one service under a folder; `keep` is the age in seconds up to which they count, None = any."""

    def __init__(self, folder: Path, keep: float | None = None) -> None:
        self._folder, self._keep = folder, keep

    def find(self, request: dict[str, Any]) -> Answer | None:
        """The answer to a request, None where it is not there, too old or damaged."""
        try:
            head, _, body = read_input(self._path(request)).partition(b"\n")
            told = unsealed(json.loads(head))
            if told.get("sha256") != _hash(body):
                return None
            if told["request"] != request or (self._keep is not None and time.time() - told["at"] > self._keep):
                return None
            return Answer(int(told["status"]), json.loads(body))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def keep(self, request: dict[str, Any], status: int, body: bytes) -> None:
        path = self._path(request)
        path.parent.mkdir(parents=True, exist_ok=True)
        told = {"at": int(time.time()), "status": status, "request": request, "sha256": _hash(body)}
        head = json.dumps(sealed(told)).encode()
        write_whole(path, head + b"\n" + body)

    def _path(self, request: dict[str, Any]) -> Path:
        name = hash_json(request)
        return self._folder / name[:2] / f"{name}.json"


def _hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
