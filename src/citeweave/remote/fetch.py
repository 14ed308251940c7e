"""The cache of what was fetched: a slot an address, a folder a version, old ones removed by age.

    <cache>/cloud/corpus-1f2e3d4c5b6a/
      versions/<hash>/listing.json       what the version is made of
      versions/<hash>/content/corpus/    the artifact; its files are shared with other versions by hard links
      partial/<hash>/...                 the same, not yet whole; `parts/` are files on their way
      work/corpus                        what a command is writing for this address
      .lock

`<cache>` is $CITEWEAVE_CACHE or ~/.cache/citeweave. A version that is not the newest goes when nobody has asked for it for
a week; `citeweave cache --clear` removes all. Names of a storage have folders of their own: `corpus` may be any name.

From an address to a folder: what is missing is downloaded, several files at a time, and appears whole or not at all.

    fetch("s3://lab/index")       ~/.cache/citeweave/cloud/index-.../versions/.../index

Files that an older version in the cache has with the same hash are linked, so of an index that has grown only the new
segments travel. Every file is checked against its hash while it arrives. What broke off goes on, file by file.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from citeweave.core.errors import ArtifactError, InputError, UserError
from citeweave.core.files import LockedError, cache_folder, link_or_copy, move, take_lock, write_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.remote.contents import File, ObjectListing, decode, find_listing
from citeweave.remote.object_storage import (
    CHUNK,
    Address,
    TransferProgress,
    VanishedError,
    endpoint,
    reading,
    stat_object,
    told,
)

KEPT_SECONDS = 7 * 24 * 3600.0
"""How long a version stays that is not the newest, after it was last asked for."""

_RECORD, _ADDRESS = "listing.json", "address.txt"
LOCK, WORK_LOCK = ".lock", ".work.lock"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class Version:
    """A folder of a slot that holds one version of an artifact, whole or partial."""

    folder: Path
    name: str

    @property
    def content(self) -> Path:
        return self.folder / "content" / self.name

    def part(self, name: str) -> Path:
        """A file on its way: no name of a storage leads there, and a long one fits."""
        return self.folder / "parts" / hashlib.sha256(name.encode()).hexdigest()[:32]

    def record(self, listing: ObjectListing) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / _RECORD, listing.as_json())

    def listing(self, base: Address) -> ObjectListing | None:
        """What it is made of; None where it is no version."""
        try:
            path = self.folder / _RECORD
            return decode(base, path.read_bytes(), path)
        except (OSError, ArtifactError):
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

    def adopt(self, folder: Path, listing: ObjectListing) -> None:
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


class CacheEntry(NamedTuple):
    """A slot as `citeweave cache` shows it."""

    address: str
    folder: Path
    versions: int
    bytes: int
    used: float
    """When it was last asked for, in seconds since 1970."""


def kept_in(cache: Path | None = None) -> list[CacheEntry]:
    """What the cache holds, slot by slot."""
    found = []
    for folder in _within(cache_folder(cache) / "cloud"):
        if not (folder / _ADDRESS).is_file():
            continue  # not ours, should somebody call a folder of theirs the cache
        versions = _within(folder / "versions")
        used = max((path.stat().st_mtime for path in [*versions, folder]), default=0.0)
        address = (folder / _ADDRESS).read_text(encoding="utf-8").strip()
        found.append(CacheEntry(address, folder, len(versions), size_of(folder), used))
    return found


def clear(kept: CacheEntry) -> bool:
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


# From an address to a folder: what is missing is downloaded, several files at a time, and appears whole or not at all.

AT_ONCE = 6
"""Files that travel at a time: latency is hidden, and memory stays below AT_ONCE x 3 chunks."""

_Take = Callable[[Path, Path], object]
_CHANGES = 3
"""How often an artifact may be replaced while it is fetched."""


class DiffersError(InputError):
    """An object is not what its listing says."""


def fetch(address: str | Path | Address, *, cache: Path | None = None, reporter: Reporter = QUIET) -> Path:
    """The folder, or file, in the cache that holds what is at an address now."""
    place = address if isinstance(address, Address) else Address.parse(address)
    return fetch_version(place, cache=cache, reporter=reporter).content


def fetch_version(address: Address, *, cache: Path | None = None, reporter: Reporter = QUIET) -> Version:
    slot = Slot(address, cache)
    with slot.locked():
        listing = find_listing(address)
        for left in reversed(range(_CHANGES)):
            made = slot.version(listing.hash)
            if made.listing(listing.base) is not None:
                touch(made)
                slot.prune(keep=made)
                return made
            begun = slot.partial(listing.hash)
            begun.record(listing)
            try:
                fill(begun, listing, slot.all(), reporter)
            except (VanishedError, DiffersError):
                newer = find_listing(address)
                if newer.hash == listing.hash or not left:
                    raise
                reporter.say(f"{address} was replaced while it was fetched; fetching the new one")
                listing = newer
            else:
                return slot.publish(begun, listing.hash)
    raise AssertionError("the last turn raises or returns")


def fill(
    made: Version, listing: ObjectListing, sources: Sequence[Version], reporter: Reporter, *, take: _Take = link_or_copy
) -> int:
    """Bring the files of a listing into a version (of a single object: to its path); how many had to travel."""
    folder = made.content
    paths = {name: folder if listing.is_single else folder / name for name in listing.files}
    missing = {name: path for name, path in paths.items() if not path.is_file()}
    made.part("").parent.mkdir(parents=True, exist_ok=True)
    _take_known(made, missing, listing, sources, take)
    # a file has its name when it is whole
    missing = {name: path for name, path in missing.items() if not path.is_file()}
    size = sum(listing.files[name].bytes for name in missing)
    for path in missing.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder.parent).free
    if size > free:
        raise UserError(
            f"{listing.base} needs {size:,} bytes on {folder.parent}, which has {free:,}; make room, or name another "
            "cache with CITEWEAVE_CACHE"
        )
    with reporter.task(f"fetching {listing.base}", total=size, unit="bytes") as advance:
        counter = TransferProgress(advance)
        in_parallel(
            [
                partial(_download, listing.object_of(name), listing.files[name], made.part(name), path, counter)
                for name, path in missing.items()
            ],
            counter,
        )
    shutil.rmtree(made.part("").parent)
    return len(missing)


def in_parallel(jobs: Sequence[Callable[[], None]], counter: TransferProgress) -> None:
    """Run jobs in a few threads; the first failure, or Ctrl-C, stops the others at their next chunk."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = [pool.submit(job) for job in jobs]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            failed = [error for future in futures if future.done() and (error := future.exception()) is not None]
            if failed:
                raise failed[0]
        finally:
            counter.stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)


def _take_known(
    made: Version, missing: dict[str, Path], listing: ObjectListing, sources: Sequence[Version], take: _Take
) -> None:
    """Take files of the same hash from versions that are here."""
    wanted: dict[str, list[tuple[Path, Path]]] = {}
    for name, path in missing.items():
        if listing.files[name].sha256:
            wanted.setdefault(listing.files[name].sha256, []).append((made.part(name), path))
    for source in sources:
        known = source.listing(listing.base)
        for name, file in known.files.items() if known else ():
            here = source.content / name
            for temporary, path in wanted.get(file.sha256, ()):
                if not path.exists() and here.is_file() and here.stat().st_size == file.bytes:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    temporary.unlink(missing_ok=True)  # a link is not made over a file
                    take(here, temporary)
                    move(temporary, path)


def _download(address: Address, file: File, temporary: Path, path: Path, counter: TransferProgress) -> None:
    digest, size = hashlib.sha256(), 0
    with reading(address) as stream, temporary.open("wb") as out:
        while True:
            with told(address):
                chunk = stream.read(CHUNK)
            if not chunk:
                break
            digest.update(chunk)
            out.write(chunk)
            size += len(chunk)
            counter.add(len(chunk))
        out.flush()
        os.fsync(out.fileno())
    if size != file.bytes:
        raise DiffersError(
            f"{address} has {size:,} bytes, {file.bytes:,} were expected: it is cut off or was replaced; copy it there again"
        )
    if file.sha256 and digest.hexdigest() != file.sha256:
        raise DiffersError(f"{address} is not the file that was put there: its hash differs; copy it there again")
    if not file.sha256:
        now = stat_object(address)
        if now is None or now.modified != file.modified:
            raise DiffersError(f"{address} was replaced while it was fetched; try again")
    move(temporary, path)
