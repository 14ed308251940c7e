"""From the files and folders that a user names to the input files of an import, each with its format."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from citeweave.corpus.readers import guess_format, reader_of
from citeweave.errors import InputError, UserError
from citeweave.opening import Source

OUTSIDE_FILES = ("references.jsonl", "reference_titles.jsonl")
"""Files of a data folder that are about papers outside it; read only where those are kept."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file to read."""

    path: Path
    format: str
    guessed: bool


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files to read, and those of the named folders that are left aside, with the reason."""

    files: list[InputFile]
    skipped: dict[str, str]

    def formats(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for file in self.files:
            counts[file.format] = counts.get(file.format, 0) + 1
        return counts


def find_inputs(paths: Sequence[Path], format: str | None, *, keep_outside: bool) -> Inputs:
    """Expand folders (sorted, hidden files left out) and tell every file's format."""
    if format is not None:
        reader_of(format)
    files: list[InputFile] = []
    skipped: dict[str, str] = {}
    for path in paths:
        if path.is_dir():
            for inner in _files_below(path):
                _add_from_folder(inner, format, files, skipped, keep_outside=keep_outside)
        elif path.exists():
            files.append(_named_file(path, format))
        else:
            raise UserError(f"{path} does not exist; name files or folders to import")
    if not files:
        named = ", ".join(str(path) for path in paths)
        raise InputError(f"{named}: no file of a known format found; name the --format, or check the path")
    return Inputs(files, skipped)


def _files_below(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}; check its permissions")

    found = []
    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent, name) for name in names if not name.startswith(".")]
    return sorted(path for path in found if path.is_file())


def _named_file(path: Path, format: str | None) -> InputFile:
    if format is not None:
        return InputFile(path, format, guessed=False)
    guess = guess_format(Source(path))
    if guess is None:
        raise InputError(f"{path} is in no format that citeweave knows; name it with --format if you know better")
    return InputFile(path, guess, guessed=True)


def _add_from_folder(
    path: Path, format: str | None, files: list[InputFile], skipped: dict[str, str], *, keep_outside: bool
) -> None:
    source = Source(path)
    if source.name in OUTSIDE_FILES and not keep_outside:
        skipped[str(path)] = "about papers outside the set; read with --outside keep"
    elif format is not None:
        files.append(InputFile(path, format, guessed=False))
    elif path.stat().st_size == 0:
        skipped[str(path)] = "empty"
    elif guess := guess_format(source):
        files.append(InputFile(path, guess, guessed=True))
    else:
        skipped[str(path)] = "no known format"
