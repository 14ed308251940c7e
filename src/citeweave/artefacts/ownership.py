"""What in a folder is citeweave's: only that is ever replaced or removed.

check_replaceable(folder)       UserError where a file of it was not written by citeweave
remove_artefact(folder)         removes the files that its manifests name, and folders that are empty then
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from citeweave.errors import InputError, UserError
from citeweave.files import read_input

MANIFEST = "manifest.json"
INDEX_STATE = "state.json"
INDEX_PARTS = frozenset({INDEX_STATE, "segments", "deleted", "maps", "heads", ".lock", ".lock.held"})
"""What lies in the folder of an index; its segments and maps have manifests of their own."""

SEGMENT_NAME = re.compile(r"\d{6,12}-[0-9a-f]{8}")

_OF_SYSTEMS = frozenset({".DS_Store", "Thumbs.db", "desktop.ini"})
"""Files that desktops leave in any folder."""

_FilesIn = Callable[[Path], set[str] | None]


def check_replaceable(folder: Path) -> None:
    """Refuse to replace a folder with a file that citeweave did not write."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, not a folder of citeweave; choose another -o")
    for path, is_ours in _files(folder):
        if not is_ours:
            raise UserError(
                f"{folder} cannot be replaced: {path} was not written by citeweave; move it elsewhere, or choose "
                "another -o"
            )


def remove_artefact(folder: Path) -> None:
    """Remove the files that manifests name, those last: what is interrupted goes on. A stranger's file stays."""
    files = [path for path, is_ours in _files(folder) if is_ours]
    with suppress(OSError):  # what cannot be removed now is removed by the next writer
        for path in sorted(files, key=lambda path: (path.name in (MANIFEST, INDEX_STATE), -len(path.parts))):
            path.unlink(missing_ok=True)
    for parent, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):
            Path(parent).rmdir()


def _files(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Every file below a folder, and whether citeweave wrote it."""
    files_in, is_index = functools.cache(_files_in), (folder / INDEX_STATE).is_file()
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(parent, name)
            of_index = is_index and is_of_index(path.relative_to(folder).parts)
            yield path, of_index or name in _OF_SYSTEMS or _is_named(path, folder, files_in)


def is_of_index(parts: tuple[str, ...]) -> bool:
    """Whether a file in the folder of an index is the index's own, though no manifest names it."""
    if parts[0] == "segments" and len(parts) > 2:  # also where the segment's manifest is damaged or gone
        return bool(SEGMENT_NAME.fullmatch(parts[1])) and parts[-1].endswith((".npy", ".utf8"))
    return parts[0] in INDEX_PARTS and (len(parts) == 1 or parts[0] in ("deleted", "heads"))


def _is_named(path: Path, root: Path, files_in: _FilesIn) -> bool:
    """Whether a manifest in the file's folder or above it, up to `root`, names the file; a manifest names itself."""
    for folder in path.parents:
        name = path.relative_to(folder).as_posix()
        if (files := files_in(folder)) is not None and (name == MANIFEST or name in files):
            return True
        if folder == root:
            break
    return False


def _files_in(folder: Path) -> set[str] | None:
    """The names of files in the manifest of a folder; None where it has none, or another program's."""
    try:
        data = json.loads(read_input(folder / MANIFEST))
        return set(data["files"]) if {"kind", "version", "recipe", "files"} <= data.keys() else None
    except (InputError, OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
