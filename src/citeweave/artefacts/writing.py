"""Artefacts in the making: folders that appear whole or not at all.

A stage writes into a hidden folder beside it (see `publishing.py`), which gets the name by one rename, after every file
has reached the disk. What is interrupted leaves that work folder, from which the next run goes on; what is done is never
rewritten in place.

    with new_artefact(folder, kind, version, recipe) as artefact:
        write(artefact.folder / "data.txt")
        manifest = artefact.finish()
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from citeweave.artefacts.disk_failures import naming_failures, unwritable
from citeweave.artefacts.manifest import MANIFEST, Manifest, kind_of, kind_without_manifest, read_manifest
from citeweave.artefacts.ownership import check_replaceable
from citeweave.artefacts.publishing import (
    begin_work,
    discard_unkept,
    discard_work,
    lock_file,
    publish,
    remove_leftovers,
)
from citeweave.errors import ArtefactError, EmptyResultError, UserError
from citeweave.files import hash_file, hash_json, sync, write_json
from citeweave.links import check_links, output_place
from citeweave.locks import LockedError, take_lock
from citeweave.version import __version__


class ArtefactWriter:
    """The work folder of an artefact that is being made, and in it the folder that will have its name."""

    def __init__(self, folder: Path, kind: str, version: int, recipe: dict[str, Any], *, place: Path) -> None:
        self.place, self.folder = place, place / "new"
        self._target, self._kind, self._version, self._recipe = folder, kind, version, recipe
        self.facts: dict[str, Any] = {}
        self.overwrite = False
        """Whether an older artefact of the same kind may be replaced."""

    def work(self, name: str) -> Path:
        """A folder for intermediate files; after an interruption the same recipe finds them again, another does not."""
        return self.shared_work(f"{hash_json(self._recipe)[:16]}/{name}")

    def shared_work(self, name: str) -> Path:
        """The same for files that any recipe may use, because their names say what they were made of."""
        path = self.place / "kept" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def clear(self) -> None:
        """Remove what an interrupted run had begun to write, except its intermediate files."""
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def finish(self) -> Manifest:
        """Hash the files, write the manifest, give the folder its name; only then are intermediate files removed."""
        inner = [path.parent for path in self.folder.rglob(MANIFEST)]
        names = sorted(
            path.relative_to(self.folder).as_posix()
            for path in self.folder.rglob("*")
            if path.is_file() and (path.name == MANIFEST or not any(folder in path.parents for folder in inner))
        )
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            described = list(pool.map(lambda name: _describe(self.folder / name), names))
        files = dict(zip(names, described, strict=True))
        manifest = Manifest(self._kind, self._version, self._recipe, self.facts, files, _made())
        write_json(self.folder / MANIFEST, manifest.as_json())
        if self._target.exists():  # what came there meanwhile is not ours to replace
            refuse_existing(self._target, self._kind, overwrite=self.overwrite)
        publish(self._target)
        return manifest


@contextmanager
def new_artefact(
    folder: Path, kind: str, version: int, recipe: dict[str, Any], *, overwrite: bool = False
) -> Iterator[ArtefactWriter]:
    """Make an artefact; the caller ends with `writer.finish()`. One writer at a time."""
    folder = output_place(folder)
    if folder.exists():
        refuse_existing(folder, kind, overwrite=overwrite)
    with working(folder) as place:
        if folder.exists():  # another process may have made it before we had the lock
            refuse_existing(folder, kind, overwrite=overwrite)
        writer = ArtefactWriter(folder, kind, version, recipe, place=place)
        writer.overwrite = overwrite
        writer.clear()
        yield writer


def early_work(folder: Path, recipe: dict[str, Any], name: str) -> Path:
    """The same as `ArtefactWriter.work`, for what is made before the artefact itself is begun."""
    folder = output_place(folder)
    with working(folder) as place:
        return ArtefactWriter(folder, "", 0, recipe, place=place).work(name)


@contextmanager
def working(folder: Path) -> Iterator[Path]:
    """The work folder of an output, for one process at a time; in it no link leads out of it.

    A run that fails leaves it only where the next one can go on from it: an empty result would be empty again.
    """
    with ExitStack() as held:
        try:
            held.enter_context(take_lock(lock_file(folder), remove=True))
            place = begin_work(folder)
        except LockedError:
            raise UserError(f"{folder} is being written by another process; wait for it or choose another -o") from None
        except OSError as error:
            raise unwritable(folder, error, "name another place with -o") from None
        check_links(place)
        held.enter_context(naming_failures(folder))
        try:
            yield place
        except EmptyResultError:
            discard_work(folder)
            raise
        except BaseException:
            discard_unkept(folder)
            raise


def refuse_existing(folder: Path, kind: str, *, overwrite: bool) -> None:
    """Say why an existing folder is not written over; only our own artefacts of the same kind ever are."""
    if (folder / MANIFEST).is_file():
        if kind_of(folder) not in (kind, ""):
            raise UserError(f"{folder} holds {kind_of(folder)}, which {kind} must not replace; choose another -o")
        if not overwrite:
            raise UserError(
                f"{folder} holds an artefact made from other inputs or options; choose another -o or --overwrite"
            )
        check_replaceable(folder)
    elif other := kind_without_manifest(folder):
        raise UserError(f"{folder} holds {other}, which {kind} must not replace; choose another -o")
    elif not folder.is_dir() or any(folder.iterdir()):
        raise UserError(f"{folder} exists and is not an artefact of citeweave; choose another -o")


def matches(folder: Path, kind: str, version: int, recipe: dict[str, Any]) -> bool:
    """Whether the folder already holds the artefact that this recipe would make; then nothing is left beside it."""
    try:
        is_there = hash_json(read_manifest(folder, kind, version).recipe) == hash_json(recipe)
    except ArtefactError:
        return False
    if is_there:
        remove_leftovers(folder)
    return is_there


def _describe(path: Path) -> dict[str, Any]:
    """Size and hash of a file, after it has reached the disk; of an artefact inside this one kind, version and hash."""
    if path.name == MANIFEST:
        # its own manifest names the time it was made, which must not count
        inner = json.loads(path.read_bytes())
        return {"artefact": inner["hash"], "kind": inner["kind"], "version": inner["version"]}
    sync(path)
    return {"bytes": path.stat().st_size, "sha256": hash_file(path)}


def _made() -> dict[str, str]:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"at": now, "citeweave": __version__, "python": platform.python_version()}
