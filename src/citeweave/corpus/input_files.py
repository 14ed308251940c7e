"""From the files and folders that a user names to the input files of an import, each with its format."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from citeweave.core.errors import InputError, UserError
from citeweave.core.files import check_regular, file_state, hash_file, open_input
from citeweave.core.inputs import Source
from citeweave.corpus.readers import guess_format, reader_of

OUTSIDE_FILES = ("references.jsonl", "reference_titles.jsonl")
"""Files of a data folder that are about papers outside it; read only where those are kept."""

_MOMENT = 2 * 10**9
"""Nanoseconds: file systems tell times in steps, some of two seconds."""

_ABOUT_OUTSIDE = "about papers outside the set; read with --outside keep"


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file to read."""

    path: Path
    format: str
    guessed: bool
    inside: str = ""
    """The path inside the folder that was named; empty for a file that was named itself."""

    bytes: int = 0
    sha256: str = ""
    """Size and content when the import began, which it must still have when it was read."""

    state: tuple[int, ...] = ()
    """Of the file when it was hashed, as `file_state` tells; none where it had just been written."""

    @property
    def name(self) -> str:
        return written_name(self.path)

    def hashed(self) -> InputFile:
        """The same file with its size and content."""
        try:
            state = file_state(self.path)
            # a later change may have the same time where the last one was a moment ago
            is_settled = abs(time.time_ns() - state[3]) > _MOMENT
            with open_input(self.path) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                return replace(self, bytes=file.tell(), sha256=digest, state=state if is_settled else ())
        except OSError as error:
            raise UserError(f"{self.path} cannot be read: {error.strerror}; check its permissions") from None

    def check_unchanged(self) -> None:
        """Refuse a file that is not any more what was hashed: what was read of it may be neither."""
        try:
            if file_state(self.path) == self.state or hash_file(self.path) == self.sha256:
                return
        except OSError:
            pass
        raise InputError(
            f"{self.path} was changed or removed while it was read; run the same command again once it stays as it is"
        )


@dataclass(frozen=True, slots=True)
class LeftAside:
    """A file of a named folder that is not read."""

    path: Path
    name: str
    """The path inside the folder that was named."""

    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class InputFiles:
    """The files to read, and those of the named folders that are left aside."""

    files: list[InputFile]
    left_aside: list[LeftAside]

    @property
    def skipped(self) -> dict[str, str]:
        """Path and reason of every file that is left aside."""
        return {str(file.path): file.reason for file in self.left_aside}

    def account(self) -> dict[str, Any]:
        """What was read and what was not, in files and bytes; `skipped_files` has the reasons."""
        return {
            "files": {
                "read": len(self.files),
                "bytes_read": sum(file.bytes for file in self.files),
                "left_aside": len(self.left_aside),
                "bytes_not_read": sum(file.bytes for file in self.left_aside),
            },
            "skipped_files": {file.name: file.reason for file in self.left_aside},
        }

    def refuse_left_aside(self) -> None:
        """Raise where a file is left aside for another reason than that `--outside drop` asks for it."""
        unwanted = [file for file in self.left_aside if file.reason != _ABOUT_OUTSIDE]
        if unwanted:
            named = "; ".join(f"{file.path}: {file.reason}" for file in unwanted[:3])
            raise InputError(
                f"{len(unwanted):,} files ({sum(file.bytes for file in unwanted):,} bytes) would not be read ({named}); "
                "name their --format, move them away, or leave out --strict"
            )

    def formats(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for file in self.files:
            counts[file.format] = counts.get(file.format, 0) + 1
        return counts


def written_name(path: Path) -> str:
    """The name of a file as text that any file can hold: bytes in it that are no UTF-8 become question marks."""
    return _written(path.name)


def _written(name: str) -> str:
    return name.encode("utf-8", "replace").decode()


def find_inputs(paths: Sequence[Path], format: str | None, *, keep_outside: bool) -> InputFiles:
    """Expand folders (sorted, hidden files left out) and tell every file's format."""
    if format is not None:
        reader_of(format)
    files: list[InputFile] = []
    left_aside: list[LeftAside] = []
    for path in paths:
        mode = _mode(path)
        if stat.S_ISDIR(mode):
            for inner in _files_below(path):
                file = _file_of_folder(inner, format, keep_outside=keep_outside)
                if isinstance(file, InputFile):
                    files.append(replace(file, inside=_written(inner.relative_to(path).as_posix())))
                else:
                    left_aside.append(_left_aside(inner, path, file))
        elif stat.S_ISREG(mode):
            files.append(_named_file(path, format))
        elif mode:
            check_regular(path)
        else:
            raise UserError(f"{path} does not exist; check the path")
    if not files:
        named = ", ".join(str(path) for path in paths)
        raise InputError(f"{named}: no file of a known format found; name the --format, or check the path")
    return InputFiles(files, left_aside)


def _mode(path: Path) -> int:
    """What stands at a path, 0 for nothing."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; check the path and its permissions") from None


def _files_below(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}; check its permissions")

    found = []
    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent, name) for name in names if not name.startswith(".")]
    return sorted(found)


def _named_file(path: Path, format: str | None) -> InputFile:
    if format is not None:
        if not Source(path).head().data.strip():
            raise InputError(f"{path} is empty; leave it out or get it again")
        return InputFile(path, format, guessed=False)
    guess = guess_format(Source(path))
    if guess is None:
        raise InputError(f"{path} is in no format that citeweave knows; {_advice(path)}")
    return InputFile(path, guess, guessed=True)


def _file_of_folder(path: Path, format: str | None, *, keep_outside: bool) -> InputFile | str:
    """The file with its format, or the reason why it is left aside."""
    source = Source(path)
    if not stat.S_ISREG(_mode(path)):
        return "not a file: a pipe, a device, or a link that leads nowhere"
    if source.name in OUTSIDE_FILES and not keep_outside:
        return _ABOUT_OUTSIDE
    if path.stat().st_size == 0:
        return "empty"
    if format is not None:
        return InputFile(path, format, guessed=False)
    if (guess := guess_format(source)) and not (guess == "edges" and _is_another_table(path)):
        return InputFile(path, guess, guessed=True)
    return "no known format"


def _left_aside(path: Path, folder: Path, reason: str) -> LeftAside:
    size = path.stat().st_size if stat.S_ISREG(_mode(path)) else 0
    return LeftAside(path, _written(path.relative_to(folder).as_posix()), size, reason)


def _is_another_table(path: Path) -> bool:
    """Of Parquet files the columns stand at the end, where guessing does not look."""
    from citeweave.corpus.readers.edges import is_another_table

    return is_another_table(path)


def _advice(path: Path) -> str:
    """What to do with a file that no reader takes, by its first bytes."""
    with open_input(path) as file:
        head = file.read(4)
    if head == b"%PDF":
        return "it is a PDF: convert it to TEI with GROBID first"
    if head[:2] == b"PK":
        return (
            "it is a zip archive or an Office file: unpack it, or save its table as CSV with the columns id and title"
        )
    return "name it with --format if you know better; a table of papers needs the columns id and title"
