"""Artifacts of a stranger who wants to write a file, run a command or fill the memory, and how they are opened.

A maker gets a `Lab` and gives a `Trap`: `open` is what a user does with the artifact, `fire` what a careless program
would do with it, which shows that the payload is alive: afterwards the canary is there.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from citeweave.core.artifact import MANIFEST
from citeweave.core.files import hash_file


@dataclass(frozen=True)
class Trap:
    open: Callable[[], object]
    fire: Callable[[], object] | None = None
    """None where what is wrong is a size or a place, so that there is nothing to run."""


@dataclass(frozen=True)
class Command:
    """Unpickled it runs a command of the shell."""

    line: str

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.line,)


@dataclass
class Lab:
    """A folder to work in, with sound artifacts to spoil."""

    folder: Path
    sound: Path
    """Has corpus/, index/ and model/, which are copied and never changed."""

    made: list[Path] = field(default_factory=list)

    @property
    def canary(self) -> Path:
        """A file that nobody has a reason to write."""
        return self.folder / "canary"

    @property
    def command(self) -> str:
        return f"touch {self.canary}"

    @cached_property
    def payload(self) -> Command:
        return Command(self.command)

    @cached_property
    def pickled(self) -> bytes:
        return pickle.dumps(self.payload, protocol=2)

    @cached_property
    def objects(self) -> np.ndarray[Any, Any]:
        return np.array([self.payload, self.payload], dtype=object)

    def copy(self, name: str) -> Path:
        """A sound artifact that may be spoiled."""
        return Path(shutil.copytree(self.sound / name, self.folder / "given" / name, symlinks=True))

    def file(self, name: str, content: bytes | str) -> Path:
        path = self.folder / "given" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def unpickle(self, path: Path) -> Callable[[], object]:
        return lambda: pickle.loads(path.read_bytes())  # noqa: S301 - the careless way


def change_json(path: Path, change: Callable[[Any], object]) -> None:
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value))


def describe_again(folder: Path, name: str) -> None:
    """Let the manifest say of a spoiled file what it is now, as a stranger would."""
    path = folder / name
    told = {"bytes": path.stat().st_size, "sha256": hash_file(path)}
    change_json(folder / MANIFEST, lambda manifest: manifest["files"].__setitem__(name, told))


def safetensors_file(header: dict[str, Any], data: bytes = b"", *, length: int | None = None) -> bytes:
    """A file of this header, which need not be true."""
    text = json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data
