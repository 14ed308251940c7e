"""The state of an index: which of its generations counts now, in one file that is replaced atomically.

    index/state.json              {"format": "citeweave-index", "version": 3, "number": 7, "generation": "000007-1f2e3d4c", ...}
    index/generations/<name>/     immutable: `index.py`
    index/.lock                   held by the only writer

A change writes the next generation beside the current one, and then another state.json: until that moment everybody reads
the old generation, and after it the new one. What an interrupted writer left is removed by the next. Does not read any
paper.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from citeweave.core.artifact import (
    MANIFEST,
    Manifest,
    explain_version_mismatch,
    explain_write_error,
    kind_of,
    name_folder_in_errors,
    read_manifest,
    seal_payload,
    unseal_payload,
)
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.files import (
    LockedError,
    check_links,
    hash_json,
    read_input,
    resolve_output,
    sync,
    take_lock,
    write_json,
)
from citeweave.core.publish import (
    GENERATION_NAME,
    INDEX_GENERATIONS,
    INDEX_PARTS,
    INDEX_STATE,
    remove_artifact,
    remove_leftovers,
    work_folder,
)

FORMAT, VERSION = "citeweave-index", 3
KIND = "index_generation"
STATE, GENERATIONS = INDEX_STATE, INDEX_GENERATIONS
PATIENCE = 60.0
"""Seconds that a writer waits for another writer."""

_LOCK = ".lock"
_VERSION_MESSAGE = "this citeweave reads version"
_GENERATION_FILE = re.compile(rf"\.?({GENERATION_NAME.pattern})(?:\.citeweave[-.]\w+)?")
"""A generation, its work folder, or the lock of its writer."""

_UNFINISHED = re.compile(r"\..*\.citeweave-[0-9a-f]{8}")
"""A file that a killed writer left unfinished."""


@dataclass(frozen=True, slots=True)
class IndexState:
    """The state of an index at one moment: its generation, by number, name and hash."""

    number: int
    generation: str
    """Name of a folder in generations/."""

    hash: str
    """Hash of the generation's manifest: another generation of the same name is refused."""

    def as_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **asdict(self)}


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
        again = "build it again in another folder with `citeweave index`"
        raise ArtifactError(f"{folder} is an index {explain_version_mismatch(data.get('version'), VERSION, again)}")
    try:
        data = unseal_payload(data)
    except ValueError as error:
        raise ArtifactError(f"{path} is damaged: {error}; build the index again") from None
    number, name, hash = (data.get(key) for key in ("number", "generation", "hash"))
    is_named = isinstance(name, str) and GENERATION_NAME.fullmatch(name)
    if not is_named or not isinstance(hash, str) or type(number) is not int or number < 1:
        raise ArtifactError(f"{path} is damaged: it does not describe an index; build the index again")
    check_links(folder)
    return IndexState(number, str(name), hash)


def read_generation(folder: Path, state: IndexState) -> Manifest:
    """Read the manifest of the generation that the state of an index names."""
    place = folder / GENERATIONS / state.generation
    manifest = read_manifest(place, KIND, VERSION)
    if manifest.hash != state.hash:
        raise ArtifactError(f"{place} is another generation than {folder}/{STATE} names; build the index again")
    return manifest


def read_facts(folder: Path) -> dict[str, Any]:
    """Read what an index records about its corpus, its model and its options, without opening its columns."""
    return read_generation(folder, read_state(folder)).facts


def _why_no_state(folder: Path) -> str:
    """Return why a folder without state.json is not an index, and what to do."""
    if not folder.exists():
        return f"{folder} does not exist; give a folder that holds an index"
    kind = kind_of(folder)
    if kind == "index":
        return f"{folder} is an index of format version 1, which cannot be changed; build it again with `citeweave index --overwrite`"
    if kind:
        return f"{folder} holds {kind}, not index; give a folder that holds an index"
    if (folder / GENERATIONS).is_dir() or work_folder(folder).exists():
        return f"{folder} was interrupted while it was made; run the same command again to finish it"
    return f"{folder} is not an index (no {STATE}); give a folder that `citeweave index` made"


def damaged_index(folder: Path, error: ArtifactError) -> ArtifactError:
    """Turn an error about a generation of an index into one about the index, as only that can be built again."""
    text = str(error)
    if _VERSION_MESSAGE in text:
        return error
    what = text.rpartition("; ")[0] or text
    return ArtifactError(f"{what}; build the index again: `citeweave index CORPUS -o {folder} --overwrite`")


class IndexWriter:
    """The only writer of an index's state while its folder is locked: publishes and removes generations."""

    def __init__(self, folder: Path, state: IndexState | None) -> None:
        self.folder, self.state = folder, state

    def generation(self, recipe: dict[str, Any]) -> Path:
        """Return the folder for the next generation; the same for the next writer if this one is interrupted."""
        number = self.state.number + 1 if self.state else 1
        return self.folder / GENERATIONS / f"{number:06d}-{hash_json(recipe)[:8]}"

    def publish(self, place: Path) -> None:
        """Publish a finished generation as the current one, and remove all others."""
        number, manifest = int(place.name.partition("-")[0]), read_manifest(place, KIND, VERSION)
        sync(self.folder / GENERATIONS)
        self.state = IndexState(number, place.name, manifest.hash)
        write_json(self.folder / STATE, seal_payload(self.state.as_json()))
        self.clean()

    def clean(self, keep: Sequence[Path] = ()) -> None:
        """Remove generations that the state does not name, except those to `keep`, whose unfinished work is resumed."""
        names = {self.state.generation} if self.state else set()
        names |= {path.name for path in keep}
        for path in _list_folder(self.folder / GENERATIONS):
            generation = _GENERATION_FILE.fullmatch(path.name)
            if generation and generation[1] not in names:
                remove_artifact(path) if path.name == generation[1] else remove_leftovers(path.with_name(generation[1]))
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
        if not overwrite or _VERSION_MESSAGE in str(error):
            raise
        if not _is_certainly_index(folder):
            what = str(error).rpartition("; ")[0]
            raise UserError(
                f"{what}, so that nobody can tell whether {folder} is an index; remove it yourself, or choose another -o"
            ) from None
    for path in _list_folder(folder / GENERATIONS):
        if kind_of(path) == KIND:  # finished, maybe damaged, and would be mistaken for a new one
            remove_artifact(path)
    return None


def _is_certainly_index(folder: Path) -> bool:
    """Return whether a folder holds only files of an index, and one of them says so."""
    is_named = FORMAT.encode() in read_input(folder / STATE)
    return _has_only_index_files(folder) and (
        is_named or any(kind_of(path) == KIND for path in _list_folder(folder / GENERATIONS))
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
