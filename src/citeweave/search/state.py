"""The state of an index: its segments and their deleted papers, in one file that is replaced atomically.

    index/state.json                  {"format": "citeweave-index", "version": 2, "number": 3, "segments": [...], "facts": {...}}
    index/segments/<name>/            immutable: `segment.py`
    index/deleted/<name>-<number>.npy deleted rows of a segment, ascending; written in the state of that number
    index/.lock                       held by the only writer

A change writes new files beside the old ones, and then another state.json: until that moment everybody reads the old
state, and after it the new one. What an interrupted writer left is removed by the next. Does not read any paper.
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

from citeweave.core.artifact import (
    MANIFEST,
    explain_version_mismatch,
    explain_write_error,
    kind_of,
    name_folder_in_errors,
    seal_payload,
    unseal_payload,
)
from citeweave.core.columns import open_numbers, write_numbers
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.files import (
    LockedError,
    check_links,
    hash_file,
    hash_json,
    hidden_name,
    move,
    read_input,
    resolve_output,
    sync,
    take_lock,
    write_json,
)
from citeweave.core.publish import INDEX_PARTS, SEGMENT_NAME, remove_artifact, remove_leftovers, work_folder

FORMAT, VERSION = "citeweave-index", 2
STATE, SEGMENTS, DELETED, HEADS = "state.json", "segments", "deleted", "heads"
PATIENCE = 60.0
"""Seconds that a writer waits for another writer."""

_LOCK = ".lock"
_SEGMENT = "index_segment"
_VERSION_MESSAGE = "this citeweave reads version"
_SEGMENT_FILE = re.compile(rf"\.?({SEGMENT_NAME.pattern})(?:\.citeweave[-.]\w+)?")
"""A segment, its work folder, or the lock of its writer."""

_UNFINISHED = re.compile(r"\..*\.citeweave-[0-9a-f]{8}")
"""A file that a killed writer left unfinished."""

_DELETED_FILE = re.compile(rf"{SEGMENT_NAME.pattern}-\d+\.npy|{_UNFINISHED.pattern}")


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """A segment as the state of an index names it, and how many of its papers are deleted."""

    name: str
    hash: str
    """Hash of the segment's manifest: another segment of the same name is refused."""

    papers: int
    deleted: int = 0
    deleted_in: int = 0
    """Number of the state that wrote the list of deleted rows, 0 where none is deleted."""

    def is_valid(self) -> bool:
        """Return whether an entry read from state.json has the types and ranges of a segment entry."""
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
class IndexState:
    """The state of an index at one moment: its segments, its metadata, and the hashes of its deletion lists."""

    number: int = 0
    segments: tuple[SegmentEntry, ...] = ()
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
    """Return whether a folder holds an index with a published state."""
    return (folder / STATE).is_file()


def read_state(folder: Path) -> IndexState:
    """Read the current state of an index folder; the error says what else the folder is."""
    path = folder / STATE
    try:
        data = json.loads(read_input(path))
    except FileNotFoundError:
        raise ArtifactError(_why_no_state(folder)) from None
    except NotADirectoryError:
        raise ArtifactError(f"{folder} is a file; give a folder that holds an index") from None
    except (ValueError, RecursionError):
        raise ArtifactError(f"{path} is damaged: it is not JSON; build the index again") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ArtifactError(f"{path} is not the state of an index; give a folder that `citeweave index` made")
    if data.get("version") != VERSION:
        again = "build it again with `citeweave index --overwrite`"
        raise ArtifactError(f"{folder} is an index {explain_version_mismatch(data.get('version'), VERSION, again)}")
    try:
        data = unseal_payload(data)
    except ValueError as error:
        raise ArtifactError(f"{path} is damaged: {error}; build the index again") from None
    try:
        segments = tuple(SegmentEntry(**entry) for entry in data["segments"])
        number, facts, lists = data["number"], data["facts"], data.get("lists", {})
    except (KeyError, TypeError):
        raise _damaged_state(path) from None
    names = {entry.name for entry in segments if entry.is_valid()}
    tables = isinstance(facts, dict) and isinstance(lists, dict)
    if len(names) != len(segments) or type(number) is not int or number < 1 or not tables:
        raise _damaged_state(path)
    check_links(folder)
    return IndexState(number, segments, facts, lists)


def _damaged_state(path: Path) -> ArtifactError:
    return ArtifactError(f"{path} is damaged: it does not describe an index; build the index again")


def _why_no_state(folder: Path) -> str:
    """Return why a folder without state.json is not an index, and what to do."""
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
    """Turn an error about a segment of an index's state into one about the index, as only that can be built again."""
    text = str(error)
    if _VERSION_MESSAGE in text:
        return error
    what = text.rpartition("; ")[0] or text
    return ArtifactError(f"{what}; build the index again: `citeweave index CORPUS -o {folder} --overwrite`")


def _deleted_path(folder: Path, entry: SegmentEntry) -> Path:
    """Return the file that lists the deleted rows of a segment."""
    return folder / DELETED / f"{entry.name}-{entry.deleted_in}.npy"


def read_deleted(folder: Path, entry: SegmentEntry, lists: Mapping[str, str]) -> NDArray[np.int32]:
    """Read which rows of a segment the state lists as deleted, ascending; `lists` has the hashes that the state records."""
    if not entry.deleted:
        return np.empty(0, np.int32)
    path = _deleted_path(folder, entry)
    rows: NDArray[np.int32] = open_numbers(path, np.int32)
    # they are used as places without another check
    sound = len(rows) == entry.deleted and rows[0] >= 0 and rows[-1] < entry.papers and bool((np.diff(rows) > 0).all())
    if not sound or (path.name in lists and hash_file(path) != lists[path.name]):
        raise ArtifactError(f"{path} is damaged: it does not fit the index; build the index again")
    return rows


class IndexWriter:
    """The only writer of an index's state while its folder is locked: writes segments and publishes states."""

    def __init__(self, folder: Path, state: IndexState | None) -> None:
        self.folder, self.state = folder, state

    @property
    def number(self) -> int:
        """Number of the state that is being written."""
        return self.state.number + 1 if self.state else 1

    def current(self) -> IndexState:
        """Return the state that the writer found or published last; there must be one."""
        assert self.state is not None
        return self.state

    def segment(self, recipe: dict[str, Any]) -> Path:
        """Return the folder for the segment of a recipe; the same for the next writer if this one is interrupted."""
        return self.folder / SEGMENTS / f"{self.number:06d}-{hash_json(recipe)[:8]}"

    def delete(self, entry: SegmentEntry, rows: NDArray[Any]) -> SegmentEntry:
        """Write a longer list of deleted rows of a segment; no state names it before `commit`."""
        lists = self.current().lists
        deleted = np.union1d(read_deleted(self.folder, entry, lists), rows).astype(np.int32)
        if len(deleted) == entry.deleted:
            return entry
        updated = SegmentEntry(entry.name, entry.hash, entry.papers, len(deleted), self.number)
        path = _deleted_path(self.folder, updated)
        temporary = hidden_name(path)
        write_numbers(temporary, deleted, np.int32)
        sync(temporary)
        move(temporary, path)
        sync(path.parent)
        return updated

    def commit(self, segments: Sequence[SegmentEntry], facts: dict[str, Any]) -> IndexState:
        """Publish a new state of the index; segments without a live paper are left out."""
        live = tuple(entry for entry in segments if entry.deleted < entry.papers)
        (self.folder / SEGMENTS).mkdir(exist_ok=True)
        sync(self.folder / SEGMENTS)
        paths = [_deleted_path(self.folder, entry) for entry in live if entry.deleted]
        state = IndexState(self.number, live, facts, {path.name: hash_file(path) for path in paths})
        write_json(self.folder / STATE, seal_payload(state.as_json()))
        self.state = state
        self.clean()
        return state

    def clean(self, keep: Sequence[Path] = ()) -> None:
        """Remove files that the state does not name, except of segments to `keep`, whose unfinished work is resumed."""
        entries = self.state.segments if self.state else ()
        names = {entry.name for entry in entries} | {path.name for path in keep}
        lists = {_deleted_path(self.folder, entry).name for entry in entries if entry.deleted}
        for path in _list_folder(self.folder / SEGMENTS):
            segment = _SEGMENT_FILE.fullmatch(path.name)
            if segment and segment[1] not in names:
                remove_artifact(path) if path.name == segment[1] else remove_leftovers(path.with_name(segment[1]))
        for path in _list_folder(self.folder / DELETED):
            if _DELETED_FILE.fullmatch(path.name) and path.name not in lists:
                path.unlink(missing_ok=True)
        for path in self.folder.glob(f".{STATE}.citeweave-????????"):
            path.unlink(missing_ok=True)


@contextmanager
def open_writer(
    folder: Path, *, create: bool = False, overwrite: bool = False, patience: float = PATIENCE
) -> Iterator[IndexWriter]:
    """Lock an index folder for the only writer of its state; another writer waits `patience` seconds.

    `create` allows a folder without state, `overwrite` also one whose state cannot be read.
    """
    if create:
        folder = resolve_output(folder)
        _check_place(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explain_write_error(folder, error, "name another place with -o") from None
    else:
        read_state(folder)
    try:
        check_links(folder)
        lock = take_lock(folder / _LOCK, wait=patience)
    except LockedError:
        raise UserError(f"{folder} is being written by another process; wait for it and try again") from None
    except OSError as error:
        raise explain_write_error(folder, error, "change a copy of it, or its permissions") from None
    with lock, name_folder_in_errors(folder):
        if create:
            _check_place_again(folder)
        yield IndexWriter(folder, _existing_state(folder, overwrite=overwrite))


def _existing_state(folder: Path, *, overwrite: bool) -> IndexState | None:
    """Read the existing state; None where there is none, or where `overwrite` may replace an unreadable index."""
    if not is_index(folder):
        return None
    try:
        return read_state(folder)
    except ArtifactError as error:
        if not overwrite:
            raise
        if not _is_certainly_index(folder):
            what = str(error).rpartition("; ")[0]
            raise UserError(
                f"{what}, so that nobody can tell whether {folder} is an index; remove it yourself, or choose another -o"
            ) from None
    for path in _list_folder(folder / SEGMENTS):
        if kind_of(path) == _SEGMENT:  # finished, maybe damaged, and would be mistaken for a new one
            remove_artifact(path)
    return None


def _is_certainly_index(folder: Path) -> bool:
    """Return whether a folder holds only files of an index, and one of them says so."""
    is_named = FORMAT.encode() in read_input(folder / STATE)
    return _has_only_index_files(folder) and (
        is_named or any(kind_of(path) == _SEGMENT for path in _list_folder(folder / SEGMENTS))
    )


def _has_only_index_files(folder: Path) -> bool:
    return all(path.name in INDEX_PARTS or _UNFINISHED.fullmatch(path.name) for path in folder.iterdir())


def _check_place(folder: Path) -> None:
    """Refuse to create an index in a folder that holds something else."""
    if not folder.exists() or is_index(folder):
        return
    if (folder / MANIFEST).is_file():
        kind = kind_of(folder)
        raise UserError(
            f"{folder} holds {kind}, which index must not replace; choose another -o"
            if kind != "index"
            else f"{folder} is an index of format version 1; choose another -o or --overwrite"
        )
    if not folder.is_dir() or not _has_only_index_files(folder):
        raise UserError(f"{folder} exists and is not an index of citeweave; choose another -o")


def _check_place_again(folder: Path) -> None:
    """Check the folder again once the lock is held, as another process may have written; on refusal remove the lock."""
    try:
        _check_place(folder)
    except UserError:
        (folder / _LOCK).unlink(missing_ok=True)
        raise


def _list_folder(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []
