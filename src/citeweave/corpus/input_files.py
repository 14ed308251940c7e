"""Input files of an import: find them in the named files and folders, recognize their formats, and hash them.

Does not read records: the readers do.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from citeweave.core.errors import InputError, UserError
from citeweave.core.files import check_regular, file_state, hash_file, open_input
from citeweave.core.inputs import Source
from citeweave.corpus.readers import guess_format, reader_of

OUTSIDE_FILES = ("references.jsonl", "reference_titles.jsonl")
"""Files of a data folder about cited papers outside it; read only where those papers are kept."""

_MOMENT = 2 * 10**9
"""Nanoseconds: file systems store times in steps, some of two seconds."""

_ABOUT_OUTSIDE = "about papers outside the set; read with --outside keep"


@dataclass(frozen=True, slots=True)
class InputFile:
    """An input file to read, with its format, and its size and hash once known."""

    path: Path
    format: str
    guessed: bool
    inside: str = ""
    """The path inside the named folder; empty for a file that was named itself."""

    bytes: int = 0
    sha256: str = ""
    """Size and content when the import began; both must be the same after reading."""

    state: tuple[int, ...] = ()
    """Result of `file_state` when the file was hashed; empty where it had just been written."""

    @property
    def name(self) -> str:
        return printable_name(self.path)

    def hashed(self) -> InputFile:
        """Return the input file with its size, hash and state."""
        try:
            state = file_state(self.path)
            # a change right after another one may have the same time stamp
            is_settled = abs(time.time_ns() - state[3]) > _MOMENT
            with open_input(self.path) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                return replace(self, bytes=file.tell(), sha256=digest, state=state if is_settled else ())
        except OSError as error:
            raise UserError(f"{self.path} cannot be read: {error.strerror}; check its permissions") from None

    def check_unchanged(self) -> None:
        """Raise an error if the input file was changed or removed since it was hashed."""
        try:
            if file_state(self.path) == self.state or hash_file(self.path) == self.sha256:
                return
        except OSError:
            pass
        raise InputError(
            f"{self.path} was changed or removed while it was read; run the same command again once it no longer changes"
        )


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file of a named folder that is not imported, and why."""

    path: Path
    name: str
    """The path inside the named folder."""

    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class InputFiles:
    """The input files of an import, and the files of the named folders that are skipped."""

    files: list[InputFile]
    left_aside: list[SkippedFile]

    @property
    def skipped(self) -> dict[str, str]:
        """Path and reason of every file that is skipped."""
        return {str(file.path): file.reason for file in self.left_aside}

    def account(self) -> dict[str, Any]:
        """Return the number and size of the files that were read and skipped, with the reasons, for the manifest."""
        return {
            "files": {
                "read": len(self.files),
                "bytes_read": sum(file.bytes for file in self.files),
                "left_aside": len(self.left_aside),
                "bytes_not_read": sum(file.bytes for file in self.left_aside),
            },
            "skipped_files": {file.name: file.reason for file in self.left_aside},
        }

    def refuse_skipped(self) -> None:
        """Raise an error if a file is skipped for another reason than `--outside drop`."""
        unwanted = [file for file in self.left_aside if file.reason != _ABOUT_OUTSIDE]
        if unwanted:
            examples = "; ".join(f"{file.path}: {file.reason}" for file in unwanted[:3])
            raise InputError(
                f"{len(unwanted):,} files ({sum(file.bytes for file in unwanted):,} bytes) would not be read ({examples}); "
                "name their --format, move them away, or leave out --strict"
            )

    def formats(self) -> dict[str, int]:
        """Return the number of input files of each format."""
        return dict(Counter(file.format for file in self.files))


def printable_name(path: Path, folder: Path | None = None) -> str:
    """Return the name of a file, or its path inside a folder, as valid UTF-8; other bytes become question marks."""
    name = path.name if folder is None else path.relative_to(folder).as_posix()
    return name.encode("utf-8", "replace").decode()


def find_inputs(paths: Sequence[Path], format: str | None, *, keep_outside: bool) -> InputFiles:
    """Find the input files in the named files and folders (sorted, without hidden files) and recognize their formats."""
    if format is not None:
        reader_of(format)
    files: list[InputFile] = []
    skipped: list[SkippedFile] = []
    for path in paths:
        mode = _mode(path)
        if stat.S_ISDIR(mode):
            for inner in _files_below(path):
                chosen, inside = _file_in_folder(inner, format, keep_outside=keep_outside), printable_name(inner, path)
                if isinstance(chosen, InputFile):
                    files.append(replace(chosen, inside=inside))
                else:
                    size = inner.stat().st_size if stat.S_ISREG(_mode(inner)) else 0
                    skipped.append(SkippedFile(inner, inside, size, chosen))
        elif stat.S_ISREG(mode):
            files.append(_named_file(path, format))
        elif mode:
            check_regular(path)
        else:
            raise UserError(f"{path} does not exist; check the path")
    if not files:
        listed = ", ".join(str(path) for path in paths)
        raise InputError(f"{listed}: no file of a known format found; name the --format, or check the path")
    return InputFiles(files, skipped)


def _mode(path: Path) -> int:
    """Return the mode of the file or folder at a path, 0 where there is none."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; check the path and its permissions") from None


def _files_below(folder: Path) -> list[Path]:
    """Return all files in a folder and its subfolders, sorted, without hidden ones."""

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}; check its permissions")

    files = []
    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(parent, name) for name in names if not name.startswith(".")]
    return sorted(files)


def _named_file(path: Path, format: str | None) -> InputFile:
    """Return a file that the user named as an input file; raise an error if its format is not known."""
    if format is not None:
        if not Source(path).head().data.strip():
            raise InputError(f"{path} is empty; leave it out or get it again")
        return InputFile(path, format, guessed=False)
    guess = guess_format(Source(path))
    if guess is None:
        raise InputError(f"{path} is in no format that citeweave recognizes; {_advice(path)}")
    return InputFile(path, guess, guessed=True)


def _file_in_folder(path: Path, format: str | None, *, keep_outside: bool) -> InputFile | str:
    """Return a file of a named folder as an input file, or the reason why it is skipped."""
    source = Source(path)
    if not stat.S_ISREG(_mode(path)):
        return "not a file: a pipe, a device, or a link that leads nowhere"
    if source.name in OUTSIDE_FILES and not keep_outside:
        return _ABOUT_OUTSIDE
    if path.stat().st_size == 0:
        return "empty"
    if format is not None:
        return InputFile(path, format, guessed=False)
    guess = guess_format(source)
    if guess == "edges":
        from citeweave.corpus.readers.edges import is_another_table

        if is_another_table(path):  # the columns of a Parquet file are at its end, where guessing does not look
            guess = None
    return InputFile(path, guess, guessed=True) if guess else "no known format"


def _advice(path: Path) -> str:
    """Return advice for a file of unknown format, by its first bytes."""
    with open_input(path) as file:
        head = file.read(4)
    if head == b"%PDF":
        return "it is a PDF: convert it to TEI with GROBID first"
    if head[:2] == b"PK":
        return "it is a zip archive or an Office file: unpack it, or save its table as CSV with the columns id (or doi) and title"
    return (
        "name its format with --format (such as bibtex, ris or plain; in Python ImportOptions(format=...)), "
        "or give a table of papers the columns id (or doi) and title"
    )
