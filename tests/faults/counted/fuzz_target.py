"""What a target of fuzzing is: a parser as a function of bytes, with small valid inputs to begin from.

    Target("clean text", (b"a text",), parse).run(b"...")     None, or an exception, and that is a defect

`run` lets pass nothing but the errors that users are told of.
"""

from __future__ import annotations

import inspect
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from citeweave.core.errors import CiteweaveError
from citeweave.serve.responses import RefusedError

TESTS = Path(__file__).resolve().parents[2]
DOCUMENTED = (CiteweaveError, RefusedError, ValidationError)
_PLACE = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())


@dataclass(frozen=True)
class Target:
    """A parser."""

    name: str
    seeds: tuple[bytes, ...]
    parse: Callable[[bytes], object]
    words: tuple[bytes, ...] = ()
    """Words that it looks for."""

    def run(self, data: bytes) -> None:
        with suppress(*DOCUMENTED):
            self.parse(data)


def fuzz_file(name: str, data: bytes) -> Path:
    """A file of this process that is written again and again."""
    folder = _PLACE / f"citeweave-fuzz-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def of_file(name: str, parse: Callable[[Path], object]) -> Callable[[bytes], object]:
    return lambda data: parse(fuzz_file(name, data))


def exhaust(found: Iterable[object]) -> None:
    for _ in found:
        pass


def literals(*modules: Any) -> tuple[bytes, ...]:
    """Short words that stand in the source of a parser."""
    source = "".join(inspect.getsource(module) for module in modules)
    return tuple(sorted({word.encode() for word in re.findall(r'"([^"\\\n]{2,20})"', source)}))
