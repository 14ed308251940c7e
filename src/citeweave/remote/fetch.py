"""Download from object storage into a cache with versions: only missing files travel, every hash is checked.

    fetch("s3://lab/index")       ~/.cache/citeweave/cloud/index-.../versions/.../index

    <cache>/cloud/corpus-1f2e3d4c5b6a/
      versions/<hash>/listing.json       what the version is made of
      versions/<hash>/content/corpus/    the artifact; its files are shared with other versions by hard links
      partial/<hash>/...                 the same, not yet complete; `parts/` are files being downloaded
      work/corpus                        what a command is writing for this address
      .lock

`<cache>` is $CITEWEAVE_CACHE or ~/.cache/citeweave. An address has one slot, a slot one folder per version. A version that
is not the newest is removed a week after its last use; `citeweave cache --clear` removes all. Names on the storage have
folders of their own: `corpus` may be any name.

Files that an older version in the cache has with the same hash are linked, so of an index that has grown only the new
segments are downloaded, several files at a time. A version appears complete or not at all; an interrupted download resumes
file by file.
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
from citeweave.remote.object_list import ListedFile, ObjectListing, decode_listing, find_listing
from citeweave.remote.object_storage import (
    CHUNK,
    Address,
    TransferProgress,
    VanishedError,
    endpoint,
    explain_storage_errors,
    open_object,
    stat_object,
)

KEEP_SECONDS = 7 * 24 * 3600.0
"""Seconds that a version which is not the newest stays after its last use."""

_RECORD, _ADDRESS = "listing.json", "address.txt"
LOCK, WORK_LOCK = ".lock", ".work.lock"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class CachedVersion:
    """A cache folder into which one version of an artifact is fetched, complete or partial."""

    folder: Path
    name: str

    @property
    def content(self) -> Path:
        return self.folder / "content" / self.name

    def part(self, name: str) -> Path:
        """Return the path of a file that is being downloaded: no name on the storage leads there, and long ones fit."""
        return self.folder / "parts" / hashlib.sha256(name.encode()).hexdigest()[:32]

    def record(self, listing: ObjectListing) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / _RECORD, listing.as_json())

    def listing(self, base: Address) -> ObjectListing | None:
        """Return the listing of a fetched version's files, None where the folder is not a version."""
        try:
            path = self.folder / _RECORD
            return decode_listing(base, path.read_bytes(), path)
        except (OSError, ArtifactError):
            return None


class CacheSlot:
    """The place in the cache into which an address is fetched."""

    def __init__(self, address: Address, cache: Path | None = None) -> None:
        self.address = address
        self.name = address.before_pattern()[0].rpartition("/")[2] or "files" if address.is_pattern else address.name
        # the same bucket on another storage is another place
        key = hashlib.sha256(f"{endpoint() if address.scheme == 's3' else ''} {address}".encode()).hexdigest()[:12]
        self.folder = cache_folder(cache) / "cloud" / f"{_UNSAFE.sub('_', self.name)[:60]}-{key}"

    def version(self, hash: str) -> CachedVersion:
        return CachedVersion(self.folder / "versions" / hash[:16], self.name)

    def partial(self, hash: str) -> CachedVersion:
        return CachedVersion(self.folder / "partial" / hash[:16], self.name)

    @property
    def work(self) -> Path:
        return self.folder / "work" / self.name

    def all(self) -> list[CachedVersion]:
        """Return versions and partial versions, the most recently used first."""
        folders = [path for kind in ("versions", "partial") for path in _folders_in(self.folder / kind)]
        return [CachedVersion(path, self.name) for path in sorted(folders, key=_age)]

    @contextmanager
    def locked(self, name: str = LOCK, *, wait: bool = True) -> Iterator[None]:
        """Hold a lock on an address's place in the fetch cache; another process waits or is refused."""
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

    def publish(self, partial: CachedVersion, hash: str) -> CachedVersion:
        """Turn a partly fetched version into a complete one by one rename; other unfinished ones are removed."""
        version = self.version(hash)
        version.folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(version.folder, ignore_errors=True)
        move(partial.folder, version.folder)
        shutil.rmtree(self.folder / "partial", ignore_errors=True)
        self.prune(keep=version)
        return version

    def adopt(self, folder: Path, listing: ObjectListing) -> None:
        """Turn a folder that was just pushed into the version that the next fetch finds."""
        partial = self.partial(listing.hash)
        shutil.rmtree(partial.folder, ignore_errors=True)
        partial.record(listing)
        partial.content.parent.mkdir()
        move(folder, partial.content)
        self.publish(partial, listing.hash)

    def prune(self, keep: CachedVersion, seconds: float = KEEP_SECONDS) -> None:
        """Remove versions that have not been used for some time."""
        for path in _folders_in(self.folder / "versions"):
            if path != keep.folder and time.time() - path.stat().st_mtime > seconds:
                shutil.rmtree(path, ignore_errors=True)


def _mark_used(version: CachedVersion) -> None:
    """Record that a cached version was used now."""
    os.utime(version.folder)


class CacheEntry(NamedTuple):
    """A place in the fetch cache as `citeweave cache` shows it."""

    address: str
    folder: Path
    versions: int
    bytes: int
    used: float
    """Time of the last use, in seconds since 1970."""


def list_cache(cache: Path | None = None) -> list[CacheEntry]:
    """Return what the cache of fetched addresses holds, one entry per slot."""
    entries = []
    for folder in _folders_in(cache_folder(cache) / "cloud"):
        if not (folder / _ADDRESS).is_file():
            continue  # not ours: the user may have named a folder of theirs as the cache
        versions = _folders_in(folder / "versions")
        used = max((path.stat().st_mtime for path in [*versions, folder]), default=0.0)
        address = (folder / _ADDRESS).read_text(encoding="utf-8").strip()
        entries.append(CacheEntry(address, folder, len(versions), _disk_usage(folder), used))
    return entries


def clear_cache_entry(entry: CacheEntry) -> bool:
    """Remove a slot of the fetch cache, unless a process is working there now; return whether it was removed."""
    with ExitStack() as locks:
        for name in (LOCK, WORK_LOCK):
            try:
                locks.enter_context(take_lock(entry.folder / name, remove=True))
            except LockedError:
                return False
        for path in entry.folder.iterdir():
            if path.name not in (LOCK, WORK_LOCK):
                remove_path(path)
    with suppress(OSError):  # another process may have begun again
        entry.folder.rmdir()
    return True


def remove_path(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _disk_usage(folder: Path) -> int:
    """Return the bytes that fetched versions take on the disk below a folder; files that they share count once."""
    sizes = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            info = Path(parent, name).lstat()
            sizes[info.st_dev, info.st_ino] = info.st_size
    return sum(sizes.values())


def _folders_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _age(path: Path) -> float:
    return -path.stat().st_mtime


# Downloading.

PARALLEL_FILES = 6
"""Files transferred at a time: this hides latency, and memory stays below PARALLEL_FILES x 3 chunks."""

_CopyFile = Callable[[Path, Path], object]
_MAX_REPLACEMENTS = 3
"""Most replacements of an artifact while it is fetched."""


class ObjectMismatchError(InputError):
    """An object is not what its listing says."""


def fetch(address: str | Path | Address, *, cache: Path | None = None, reporter: Reporter = QUIET) -> Path:
    """Return the folder, or file, in the cache that holds what is at an address now."""
    place = address if isinstance(address, Address) else Address.parse(address)
    return fetch_version(place, cache=cache, reporter=reporter).content


def fetch_version(address: Address, *, cache: Path | None = None, reporter: Reporter = QUIET) -> CachedVersion:
    """Fetch what is at an address now: return its cached version, downloading what is missing."""
    slot = CacheSlot(address, cache)
    with slot.locked():
        listing = find_listing(address)
        for remaining in reversed(range(_MAX_REPLACEMENTS)):
            version = slot.version(listing.hash)
            if version.listing(listing.base) is not None:
                _mark_used(version)
                slot.prune(keep=version)
                return version
            partial_version = slot.partial(listing.hash)
            partial_version.record(listing)
            try:
                download_files(partial_version, listing, slot.all(), reporter)
            except (VanishedError, ObjectMismatchError):
                newer = find_listing(address)
                if newer.hash == listing.hash or not remaining:
                    raise
                reporter.say(f"{address} was replaced while it was fetched; fetching the new one")
                listing = newer
            else:
                return slot.publish(partial_version, listing.hash)
    raise AssertionError("the last attempt raises or returns")


def download_files(
    version: CachedVersion,
    listing: ObjectListing,
    sources: Sequence[CachedVersion],
    reporter: Reporter,
    *,
    copy_file: _CopyFile = link_or_copy,
) -> int:
    """Fetch the files of a listing into a cached version, and return how many had to be downloaded."""
    folder = version.content
    paths = {name: folder if listing.is_single else folder / name for name in listing.files}
    missing = {name: path for name, path in paths.items() if not path.is_file()}
    version.part("").parent.mkdir(parents=True, exist_ok=True)
    _reuse_cached(version, missing, listing, sources, copy_file)
    # a file gets its name when it is complete
    missing = {name: path for name, path in missing.items() if not path.is_file()}
    size = sum(listing.files[name].bytes for name in missing)
    for path in missing.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder.parent).free
    if size > free:
        raise UserError(
            f"{listing.base} needs {size:,} bytes on {folder.parent}, which has {free:,}; free some space, or name another "
            "cache with CITEWEAVE_CACHE"
        )
    with reporter.task(f"fetching {listing.base}", total=size, unit="bytes") as advance:
        counter = TransferProgress(advance)
        run_transfers(
            [
                partial(_download, listing.object_of(name), listing.files[name], version.part(name), path, counter)
                for name, path in missing.items()
            ],
            counter,
        )
    shutil.rmtree(version.part("").parent)
    return len(missing)


def run_transfers(jobs: Sequence[Callable[[], None]], counter: TransferProgress) -> None:
    """Fetch, or upload, in a few threads; the first failure, or Ctrl-C, stops the others at their next chunk."""
    with ThreadPoolExecutor(PARALLEL_FILES) as pool:
        futures = [pool.submit(job) for job in jobs]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            failed = [error for future in futures if future.done() and (error := future.exception()) is not None]
            if failed:
                raise failed[0]
        finally:
            counter.stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)


def _reuse_cached(
    version: CachedVersion,
    missing: dict[str, Path],
    listing: ObjectListing,
    sources: Sequence[CachedVersion],
    copy_file: _CopyFile,
) -> None:
    """Take files with the same hash from versions that are already in the cache."""
    wanted: dict[str, list[tuple[Path, Path]]] = {}
    for name, path in missing.items():
        if listing.files[name].sha256:
            wanted.setdefault(listing.files[name].sha256, []).append((version.part(name), path))
    for source in sources:
        listed = source.listing(listing.base)
        for name, file in listed.files.items() if listed else ():
            cached = source.content / name
            for temporary, path in wanted.get(file.sha256, ()):
                if not path.exists() and cached.is_file() and cached.stat().st_size == file.bytes:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    temporary.unlink(missing_ok=True)  # a link is not made over a file
                    copy_file(cached, temporary)
                    move(temporary, path)


def _download(address: Address, file: ListedFile, temporary: Path, path: Path, counter: TransferProgress) -> None:
    """Download one object to a temporary file, check size and hash, and give the file its name."""
    digest, size = hashlib.sha256(), 0
    with open_object(address) as stream, temporary.open("wb") as out:
        while True:
            with explain_storage_errors(address):
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
        raise ObjectMismatchError(
            f"{address} has {size:,} bytes, {file.bytes:,} were expected: it is truncated or was replaced; copy it there again"
        )
    if file.sha256 and digest.hexdigest() != file.sha256:
        raise ObjectMismatchError(f"{address} is not the file that was uploaded: its hash differs; copy it there again")
    if not file.sha256:
        now = stat_object(address)
        if now is None or now.modified != file.modified:
            raise ObjectMismatchError(f"{address} was replaced while it was fetched; try again")
    move(temporary, path)
