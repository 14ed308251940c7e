"""The cache of what was fetched: a slot an address, a folder a version, old ones removed by age.

    <cache>/cloud/corpus-1f2e3d4c5b6a/
      versions/<hash>/listing.json       what the version is made of
      versions/<hash>/content/corpus/    the artefact; its files are shared with other versions by hard links
      partial/<hash>/...                 the same, not yet whole; `parts/` are files on their way
      work/corpus                        what a command is writing for this address
      .lock

`<cache>` is $CITEWEAVE_CACHE or ~/.cache/citeweave. A version that is not the newest goes when nobody has asked for it for
a week; `citeweave cache --clear` removes all. Names of a storage have folders of their own: `corpus` may be any name.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from citeweave.cloud.address import Address
from citeweave.cloud.listing import Listing, decode
from citeweave.cloud.storage import endpoint
from citeweave.errors import ArtefactError, UserError
from citeweave.files import cache_folder, move, write_json
from citeweave.locks import LockedError, take_lock

KEPT_SECONDS = 7 * 24 * 3600.0
"""How long a version stays that is not the newest, after it was last asked for."""

_RECORD, _ADDRESS = "listing.json", "address.txt"
LOCK, WORK_LOCK = ".lock", ".work.lock"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class Version:
    """A folder of a slot that holds one version of an artefact, whole or partial."""

    folder: Path
    name: str

    @property
    def content(self) -> Path:
        return self.folder / "content" / self.name

    def part(self, name: str) -> Path:
        """A file on its way: no name of a storage leads there, and a long one fits."""
        return self.folder / "parts" / hashlib.sha256(name.encode()).hexdigest()[:32]

    def record(self, listing: Listing) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / _RECORD, listing.as_json())

    def listing(self, base: Address) -> Listing | None:
        """What it is made of; None where it is no version."""
        try:
            path = self.folder / _RECORD
            return decode(base, path.read_bytes(), path)
        except (OSError, ArtefactError):
            return None


class Slot:
    """The place of an address in the cache."""

    def __init__(self, address: Address, cache: Path | None = None) -> None:
        self.address = address
        self.name = address.before_pattern()[0].rpartition("/")[2] or "files" if address.is_pattern else address.name
        # the same bucket of another storage is another place
        key = hashlib.sha256(f"{endpoint() if address.scheme == 's3' else ''} {address}".encode()).hexdigest()[:12]
        self.folder = cache_folder(cache) / "cloud" / f"{_UNSAFE.sub('_', self.name)[:60]}-{key}"

    def version(self, hash: str) -> Version:
        return Version(self.folder / "versions" / hash[:16], self.name)

    def partial(self, hash: str) -> Version:
        return Version(self.folder / "partial" / hash[:16], self.name)

    @property
    def work(self) -> Path:
        return self.folder / "work" / self.name

    def all(self) -> list[Version]:
        """Versions and partial versions, those asked for last first."""
        folders = [path for kind in ("versions", "partial") for path in _within(self.folder / kind)]
        return [Version(path, self.name) for path in sorted(folders, key=_age)]

    @contextmanager
    def locked(self, name: str = LOCK, *, wait: bool = True) -> Iterator[None]:
        try:
            lock = take_lock(self.folder / name, wait=math.inf if wait else 0.0)
        except LockedError:
            raise UserError(f"{self.address} is being written by another process; wait for it") from None
        except OSError as error:
            raise UserError(
                f"{self.folder} cannot be written ({error.strerror}); name another cache with CITEWEAVE_CACHE"
            ) from None
        with lock:
            (self.folder / _ADDRESS).write_text(f"{self.address}\n", encoding="utf-8")
            yield

    def publish(self, partial: Version, hash: str) -> Version:
        """Make a partial version whole, by one rename; others that were not finished are not wanted any more."""
        made = self.version(hash)
        made.folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(made.folder, ignore_errors=True)
        move(partial.folder, made.folder)
        shutil.rmtree(self.folder / "partial", ignore_errors=True)
        self.prune(keep=made)
        return made

    def adopt(self, folder: Path, listing: Listing) -> None:
        """Make a folder that was just sent the version of it that the next fetch finds."""
        partial = self.partial(listing.hash)
        shutil.rmtree(partial.folder, ignore_errors=True)
        partial.record(listing)
        partial.content.parent.mkdir()
        move(folder, partial.content)
        self.publish(partial, listing.hash)

    def prune(self, keep: Version, seconds: float = KEPT_SECONDS) -> None:
        for path in _within(self.folder / "versions"):
            if path != keep.folder and time.time() - path.stat().st_mtime > seconds:
                shutil.rmtree(path, ignore_errors=True)


def touch(version: Version) -> None:
    """Note that somebody asked for it now."""
    os.utime(version.folder)


class Kept(NamedTuple):
    """A slot as `citeweave cache` shows it."""

    address: str
    folder: Path
    versions: int
    bytes: int
    used: float
    """When it was last asked for, in seconds since 1970."""


def kept_in(cache: Path | None = None) -> list[Kept]:
    """What the cache holds, slot by slot."""
    found = []
    for folder in _within(cache_folder(cache) / "cloud"):
        if not (folder / _ADDRESS).is_file():
            continue  # not ours, should somebody call a folder of theirs the cache
        versions = _within(folder / "versions")
        used = max((path.stat().st_mtime for path in [*versions, folder]), default=0.0)
        address = (folder / _ADDRESS).read_text(encoding="utf-8").strip()
        found.append(Kept(address, folder, len(versions), size_of(folder), used))
    return found


def clear(kept: Kept) -> bool:
    """Remove a slot, unless somebody is fetching, sending or working there now."""
    with ExitStack() as locks:
        for name in (LOCK, WORK_LOCK):
            try:
                locks.enter_context(take_lock(kept.folder / name, remove=True))
            except LockedError:
                return False
        for path in kept.folder.iterdir():
            if path.name not in (LOCK, WORK_LOCK):
                remove(path)
    with suppress(OSError):  # somebody may have begun anew
        kept.folder.rmdir()
    return True


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def size_of(folder: Path) -> int:
    """Bytes on the disk below a folder; files that versions share count once."""
    sizes = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            told = Path(parent, name).lstat()
            sizes[told.st_dev, told.st_ino] = told.st_size
    return sum(sizes.values())


def _within(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _age(path: Path) -> float:
    return -path.stat().st_mtime
