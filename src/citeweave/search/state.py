"""The state of an index: which segments it has and which of their papers are gone. One file, replaced in one step.

    index/state.json                  {"format": "citeweave-index", "version": 2, "number": 3, "segments": [...], "facts": {...}}
    index/segments/<name>/            immutable: `segment.py`
    index/deleted/<name>-<number>.npy rows of a segment that are gone, ascending; written in the state of that number
    index/.lock                       held by the one writer

A change writes what is new beside what is there, and then another state.json: until that moment everybody reads the old
state, and after it the new one. What an interrupted writer left is removed by the next. Knows no paper.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import MANIFEST, another_version, kind_of, naming_failures, sealed, unsealed, unwritable
from citeweave.core.columns import open_numbers, write_numbers
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.files import (
    LockedError,
    check_links,
    hash_file,
    hash_json,
    hidden_name,
    move,
    output_place,
    read_input,
    sync,
    take_lock,
    write_json,
)
from citeweave.core.publish import INDEX_PARTS, SEGMENT_NAME, remove_artifact, remove_leftovers, work_folder

FORMAT, VERSION = "citeweave-index", 2
STATE, SEGMENTS, DELETED, HEADS = "state.json", "segments", "deleted", "heads"
PATIENCE = 60.0
"""Seconds that a writer waits for another one."""

_LOCK = ".lock"
_SEGMENT = "index_segment"
_OF_VERSIONS = "this citeweave reads version"
_MADE = re.compile(rf"\.?({SEGMENT_NAME.pattern})(?:\.citeweave[-.]\w+)?")
"""A segment, its work folder, or the lock of its writer."""

_BEGUN = re.compile(r"\..*\.citeweave-[0-9a-f]{8}")
"""A file that a killed writer had begun."""

_LIST = re.compile(rf"{SEGMENT_NAME.pattern}-\d+\.npy|{_BEGUN.pattern}")


@dataclass(frozen=True, slots=True)
class Entry:
    """A segment in a state."""

    name: str
    hash: str
    """Of the segment's manifest: another segment of the same name is refused."""

    papers: int
    deleted: int = 0
    deleted_in: int = 0
    """Number of the state that wrote the list of deleted rows, 0 where none is deleted."""

    def check(self) -> bool:
        numbers = (self.papers, self.deleted, self.deleted_in)
        return (
            isinstance(self.name, str)
            and isinstance(self.hash, str)
            and bool(SEGMENT_NAME.fullmatch(self.name))
            and all(type(number) is int and number >= 0 for number in numbers)
            and self.deleted <= self.papers
            and bool(self.deleted) == bool(self.deleted_in)
        )


@dataclass(frozen=True, slots=True)
class State:
    """What an index is at one moment."""

    number: int = 0
    segments: tuple[Entry, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    lists: dict[str, str] = field(default_factory=dict)
    """Name of a file of deleted rows -> its hash."""

    def as_json(self) -> dict[str, Any]:
        entries = [asdict(entry) for entry in self.segments]
        return {
            "format": FORMAT,
            "version": VERSION,
            "number": self.number,
            "segments": entries,
            "facts": self.facts,
            "lists": self.lists,
        }


def is_index(folder: Path) -> bool:
    """Whether a folder holds an index of this format, finished once."""
    return (folder / STATE).is_file()


def read_state(folder: Path) -> State:
    """The state of an index folder; says what else the folder is where it is none."""
    path = folder / STATE
    try:
        data = json.loads(read_input(path))
    except FileNotFoundError:
        raise ArtifactError(_why_none(folder)) from None
    except NotADirectoryError:
        raise ArtifactError(f"{folder} is a file; give a folder that holds an index") from None
    except (ValueError, RecursionError):
        raise ArtifactError(f"{path} is damaged: it is no JSON; build the index again") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ArtifactError(f"{path} is not the state of an index; give a folder that `citeweave index` made")
    if data.get("version") != VERSION:
        again = "build it again with `citeweave index --overwrite`"
        raise ArtifactError(f"{folder} is an index {another_version(data.get('version'), VERSION, again)}")
    try:
        data = unsealed(data)
    except ValueError as error:
        raise ArtifactError(f"{path} is damaged: {error}; build the index again") from None
    try:
        segments = tuple(Entry(**entry) for entry in data["segments"])
        number, facts, lists = data["number"], data["facts"], data.get("lists", {})
    except (KeyError, TypeError):
        raise _damaged(path) from None
    names = {entry.name for entry in segments if entry.check()}
    tables = isinstance(facts, dict) and isinstance(lists, dict)
    if len(names) != len(segments) or type(number) is not int or number < 1 or not tables:
        raise _damaged(path)
    check_links(folder)
    return State(number, segments, facts, lists)


def _damaged(path: Path) -> ArtifactError:
    return ArtifactError(f"{path} is damaged: it does not describe an index; build the index again")


def _why_none(folder: Path) -> str:
    if not folder.exists():
        return f"{folder} does not exist; give a folder that holds an index"
    kind = kind_of(folder)
    if kind == "index":
        return f"{folder} is an index of format version 1, which cannot be changed; build it again with `citeweave index --overwrite`"
    if kind:
        return f"{folder} holds {kind}, not index; give a folder that holds an index"
    if (folder / SEGMENTS).is_dir() or work_folder(folder).exists():
        return f"{folder} was interrupted while it was made; run the same command again to finish it"
    return f"{folder} is not an index (no {STATE}); give a folder that `citeweave index` made"


def damaged_index(folder: Path, error: ArtifactError) -> ArtifactError:
    """An error of one of its segments as one of the index: nobody can make a segment again."""
    text = str(error)
    if _OF_VERSIONS in text:
        return error
    what = text.rpartition("; ")[0] or text
    return ArtifactError(f"{what}; build the index again: `citeweave index CORPUS -o {folder} --overwrite`")


def deleted_path(folder: Path, entry: Entry) -> Path:
    return folder / DELETED / f"{entry.name}-{entry.deleted_in}.npy"


def read_deleted(folder: Path, entry: Entry, lists: Mapping[str, str]) -> NDArray[np.int32]:
    """Rows of a segment that are gone, ascending; `lists` are the state's."""
    if not entry.deleted:
        return np.empty(0, np.int32)
    path = deleted_path(folder, entry)
    rows: NDArray[np.int32] = open_numbers(path, np.int32)
    # they are used as places without looking again
    sound = len(rows) == entry.deleted and rows[0] >= 0 and rows[-1] < entry.papers and bool((np.diff(rows) > 0).all())
    if not sound or (path.name in lists and hash_file(path) != lists[path.name]):
        raise ArtifactError(f"{path} is damaged: it does not fit the index; build the index again")
    return rows


class IndexWriter:
    """The one writer of an index; see `writing`."""

    def __init__(self, folder: Path, state: State | None) -> None:
        self.folder, self.state = folder, state

    @property
    def number(self) -> int:
        """Of the state that is being written."""
        return self.state.number + 1 if self.state else 1

    def known(self) -> State:
        assert self.state is not None
        return self.state

    def segment(self, recipe: dict[str, Any]) -> Path:
        """Where the segment of this recipe goes; the same for the next writer, should this one be interrupted."""
        return self.folder / SEGMENTS / f"{self.number:06d}-{hash_json(recipe)[:8]}"

    def delete(self, entry: Entry, rows: NDArray[Any]) -> Entry:
        """The segment with these rows gone as well; their list is on the disk, but no state names it yet."""
        known = self.known().lists
        gone = np.union1d(read_deleted(self.folder, entry, known), rows).astype(np.int32)
        if len(gone) == entry.deleted:
            return entry
        made = Entry(entry.name, entry.hash, entry.papers, len(gone), self.number)
        path = deleted_path(self.folder, made)
        temporary = hidden_name(path)
        write_numbers(temporary, gone, np.int32)
        sync(temporary)
        move(temporary, path)
        sync(path.parent)
        return made

    def commit(self, segments: Sequence[Entry], facts: dict[str, Any]) -> State:
        """Make it the state that everybody reads from now on. Segments without a living paper are left out."""
        living = tuple(entry for entry in segments if entry.deleted < entry.papers)
        (self.folder / SEGMENTS).mkdir(exist_ok=True)
        sync(self.folder / SEGMENTS)
        paths = [deleted_path(self.folder, entry) for entry in living if entry.deleted]
        state = State(self.number, living, facts, {path.name: hash_file(path) for path in paths})
        write_json(self.folder / STATE, sealed(state.as_json()))
        self.state = state
        self.clean()
        return state

    def clean(self, keep: Sequence[Path] = ()) -> None:
        """Remove what no state names, except segments that are about to be made, whose beginnings help."""
        entries = self.state.segments if self.state else ()
        names = {entry.name for entry in entries} | {path.name for path in keep}
        lists = {deleted_path(self.folder, entry).name for entry in entries if entry.deleted}
        for path in _within(self.folder / SEGMENTS):
            made = _MADE.fullmatch(path.name)
            if made and made[1] not in names:
                remove_artifact(path) if path.name == made[1] else remove_leftovers(path.with_name(made[1]))
        for path in _within(self.folder / DELETED):
            if _LIST.fullmatch(path.name) and path.name not in lists:
                path.unlink(missing_ok=True)
        for path in self.folder.glob(f".{STATE}.citeweave-????????"):
            path.unlink(missing_ok=True)


@contextmanager
def writing(
    folder: Path, *, create: bool = False, overwrite: bool = False, patience: float = PATIENCE
) -> Iterator[IndexWriter]:
    """Change an index; one writer at a time, another waits so many seconds.

    `create` allows a folder without state, `overwrite` also one whose state cannot be read.
    """
    if create:
        folder = output_place(folder)
        _check_place(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error, "name another place with -o") from None
    else:
        read_state(folder)
    try:
        check_links(folder)
        lock = take_lock(folder / _LOCK, wait=patience)
    except LockedError:
        raise UserError(f"{folder} is being written by another process; wait for it and try again") from None
    except OSError as error:
        raise unwritable(folder, error, "change a copy of it, or its permissions") from None
    with lock, naming_failures(folder):
        if create:
            _check_place_again(folder)
        yield IndexWriter(folder, _standing_state(folder, overwrite=overwrite))


def _standing_state(folder: Path, *, overwrite: bool) -> State | None:
    """The state that is there; none where it is to be overwritten and cannot be read, but surely is of an index."""
    if not is_index(folder):
        return None
    try:
        return read_state(folder)
    except ArtifactError as error:
        if not overwrite:
            raise
        if not _is_surely_index(folder):
            what = str(error).rpartition("; ")[0]
            raise UserError(
                f"{what}, so that nobody can tell whether {folder} is an index; remove it yourself, or choose another -o"
            ) from None
    for path in _within(folder / SEGMENTS):
        if kind_of(path) == _SEGMENT:  # finished, maybe damaged, and would be taken for one that is about to be made
            remove_artifact(path)
    return None


def _is_surely_index(folder: Path) -> bool:
    """Whether only files of an index are in a folder, and one of them says that it is one."""
    named = FORMAT.encode() in read_input(folder / STATE)
    return _only_ours(folder) and (named or any(kind_of(path) == _SEGMENT for path in _within(folder / SEGMENTS)))


def _only_ours(folder: Path) -> bool:
    return all(path.name in INDEX_PARTS or _BEGUN.fullmatch(path.name) for path in folder.iterdir())


def _check_place(folder: Path) -> None:
    """Refuse to begin an index where something else is."""
    if not folder.exists() or is_index(folder):
        return
    if (folder / MANIFEST).is_file():
        kind = kind_of(folder)
        raise UserError(
            f"{folder} holds {kind}, which index must not replace; choose another -o"
            if kind != "index"
            else f"{folder} is an index of format version 1; choose another -o or --overwrite"
        )
    if not folder.is_dir() or not _only_ours(folder):
        raise UserError(f"{folder} exists and is not an index of citeweave; choose another -o")


def _check_place_again(folder: Path) -> None:
    """The same once the lock is ours: another process may have put something there before; our lock leaves it."""
    try:
        _check_place(folder)
    except UserError:
        (folder / _LOCK).unlink(missing_ok=True)
        raise


def _within(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []
