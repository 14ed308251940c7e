"""Whether an artefact is still what was written.

    check_files(folder, manifest)                  at every opening: sizes, and of a small artefact every byte
    check_files(folder, manifest, content=True)    every byte of any artefact: `citeweave info FOLDER --verify`
    sealed(told), unsealed(found)                  a small JSON file that carries a hash of itself

What is opened through a memory map may be far larger than what can be read at every opening. So a changed byte in an
artefact of at most `SMALL` bytes is noticed when it is opened, and one in a larger artefact when it is verified; until
then reading it gives an error or other numbers, never a crash. A file is read once a process, as long as it stays as
it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from citeweave.artefacts.manifest import Manifest, read_manifest
from citeweave.errors import ArtefactError
from citeweave.files import hash_file, seal_of

SMALL = 64 * 2**20
"""Bytes of an artefact that is read as a whole when it is opened: some 50 milliseconds."""

_found_right: set[tuple[object, ...]] = set()
"""Files that were read and had the hash that they should have: path, what changes when it is written, hash."""


def check_files(folder: Path, manifest: Manifest, *, content: bool = False) -> None:
    """Check that every file is there with its size, and its hash where the artefact is small or with `content=True`."""
    sizes = [described.get("bytes", 0) for described in manifest.files.values()]
    is_small = all(type(size) is int for size in sizes) and sum(sizes) <= SMALL
    for name, described in manifest.files.items():
        if "artefact" in described:
            _check_inner(folder, name, described, content=content)
        else:
            _check(folder, name, described, content=content or is_small, again=content)


def check_some(folder: Path, manifest: Manifest, names: Iterable[str]) -> None:
    """Check size and hash of some files: of those that are read as a whole anyway."""
    for name in names:
        _check(folder, name, manifest.files.get(name, {}), content=True)


def sealed(told: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with a hash of itself, by which `unsealed` notices a changed byte."""
    return {**told, "seal": seal_of(told)}


def unsealed(found: object) -> dict[str, Any]:
    """The object without its seal; ValueError where it has none or is not what was sealed.

    >>> unsealed(sealed({"step": 3}))
    {'step': 3}
    >>> unsealed({**sealed({"step": 3}), "step": 4})
    Traceback (most recent call last):
    ValueError: it has changed since it was written
    """
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    told = {name: value for name, value in found.items() if name != "seal"}
    if found.get("seal") != seal_of(told):  # one without might be one whose seal is damaged
        raise ValueError("it has changed since it was written")
    return told


def _check(folder: Path, name: str, described: dict[str, Any], *, content: bool, again: bool = False) -> None:
    path = folder / name
    if not path.is_file() or path.stat().st_size != described.get("bytes"):
        raise ArtefactError(f"{path} is missing or has another size than its manifest says; make {folder} again")
    if not content:
        return
    state = path.stat()
    known = (str(path.absolute()), state.st_ino, state.st_mtime_ns, state.st_size, described.get("sha256"))
    if known in _found_right and not again:
        return
    if hash_file(path) != described.get("sha256"):
        raise ArtefactError(f"{path} is damaged: it has changed since it was written; make {folder} again")
    _found_right.add(known)


def _check_inner(folder: Path, name: str, described: dict[str, Any], *, content: bool) -> None:
    path = folder / name
    inner = read_manifest(path.parent, described.get("kind", ""), described.get("version", 0))
    if inner.hash != described["artefact"]:
        raise ArtefactError(f"{path.parent} is another {inner.kind} than {folder} was made with; make it again")
    check_files(path.parent, inner, content=content)
