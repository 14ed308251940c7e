"""An input that changes at a step of the command that reads it.

    {"kind": "change", "at": 3, "how": "replace", "input": "in/papers.jsonl", "other": "other/papers.jsonl"}

A step is a file below the input that is about to be opened, or the next piece that is read of a file that may be compressed.
The change happens inside the reading process, just before its step, so that every order of both can be tried.
"""

from __future__ import annotations

import itertools
import mmap
import os
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILE_CHANGES = ("replace", "rewrite", "truncate", "append", "remove")
FOLDER_CHANGES = ("exchange", "replace a file", "remove", "remove a file")


def change(how: str, path: Path, other: Path) -> None:
    """What another program does to an input."""
    if how == "replace":
        Path(shutil.copy(other, path.with_name(".other"))).replace(path)
    elif how == "rewrite":
        path.write_bytes(other.read_bytes())
    elif how == "truncate":
        os.truncate(path, path.stat().st_size // 2)
    elif how == "append":
        with path.open("ab") as file:
            file.write(other.read_bytes())
    elif how == "exchange":
        path.rename(path.with_name("before"))
        shutil.copytree(other, path)
    elif how == "replace a file":
        name = Path("papers", "title.utf8")
        Path(shutil.copy(other / name, path / ".other")).replace(path / name)
    elif how == "remove a file":
        (path / "papers" / "title.utf8").unlink()
    else:
        path.rename(path.with_name("before"))


def begin(trouble: dict[str, Any], counter: mmap.mmap) -> None:
    """Count steps from here on; at one of them the input changes."""
    numbers, is_changing = itertools.count(1), False
    source, other = Path(trouble["input"]), Path(trouble["other"])

    def step() -> None:
        nonlocal is_changing
        if is_changing:
            return
        count = next(numbers)
        counter[:8] = struct.pack("<q", count)
        if count == trouble["at"]:
            is_changing = True
            change(trouble["how"], source, other)
            is_changing = False

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(str(source)):
            step()

    sys.addaudithook(watch)
    _count_pieces(step)


def _count_pieces(step: Callable[[], None]) -> None:
    from citeweave.core import inputs as opening

    real = opening._Guarded.readinto

    def readinto(self: opening._Guarded, buffer: object) -> int:
        step()
        return real(self, buffer)

    opening._Guarded.readinto = readinto  # type: ignore[method-assign]
