"""Download from object storage: the list of objects that is an artifact there, and a cache with versions of it.

    fetch("s3://lab/index")       ~/.cache/citeweave/cloud/index-.../versions/.../index

    citeweave-objects.json = {"format": "citeweave-objects", "version": 1,
     "files": {"manifest.json": {"bytes": 812, "sha256": "...", "at": "manifest.json"},
               "papers/year.npy": {"bytes": 128, "sha256": "...", "at": ".generations/1f2e3d4c5b6a/papers/year.npy"}}}

The list is written last. A file lies at its own name; where another version of it already lies there, the new one goes
below `.generations`, so that the old artifact stays complete until the list names the new one. A folder that other programs
uploaded has no list: its files are the objects that exist, with the hashes of the manifests among them.

    <cache>/cloud/corpus-1f2e3d4c5b6a/
      versions/<hash>/listing.json       what the version is made of
      versions/<hash>/content/corpus/    the artifact; its files are shared with other versions by hard links
      partial/<hash>/...                 the same, not yet complete; `parts/` are files being downloaded
      work/<base>/corpus                 what a command is writing for this address

`<cache>` is $CITEWEAVE_CACHE or ~/.cache/citeweave. Only files travel whose hash no version in the cache has, several at a
time, and every hash is checked. A version appears complete or not at all; an interrupted download resumes file by file. A
version that is not the newest is removed a week after its last use; `citeweave cache --clear` removes all.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import Any, NamedTuple

from citeweave.core.artifact import MANIFEST, explain_version_mismatch
from citeweave.core.errors import ArtifactError, InputError, UserError
from citeweave.core.files import LockedError, cache_folder, hash_json, link_or_copy, move, take_lock, write_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.remote.object_storage import (
    CHUNK,
    Address,
    ObjectInfo,
    ObjectStream,
    VanishedError,
    check_object_name,
    check_object_names,
    endpoint,
    list_objects,
    read_small_object,
    stat_object,
)

LISTING_NAME = "citeweave-objects.json"
FORMAT, VERSION = "citeweave-objects", 1
_SHA256 = re.compile("([0-9a-f]{64})?")


class ListedFile(NamedTuple):
    """A file in an object list, and the object that holds its bytes."""

    bytes: int
    sha256: str
    """Empty where unknown: a file that another program uploaded."""

    at: str
    """Name of the object that holds it, relative to the base of the listing."""

    modified: int = 0
    """Identifies the content where there is no hash."""


@dataclass(frozen=True, slots=True)
class ObjectListing:
    """List of the objects of an artifact, a folder or a pattern on object storage; a single object is a list of one."""

    base: Address
    files: dict[str, ListedFile]
    is_single: bool = False

    @property
    def hash(self) -> str:
        """Return a hash of names and contents, wherever the bytes lie: same folder, same hash."""
        return hash_json({name: [file.bytes, file.sha256 or file.modified] for name, file in self.files.items()})

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())

    def object_of(self, name: str) -> Address:
        at = self.files[name].at
        return self.base / at if self.base.key else Address(self.base.scheme, self.base.bucket, at)

    def as_json(self) -> dict[str, Any]:
        files = {name: file._asdict() for name, file in sorted(self.files.items())}
        return {"format": FORMAT, "version": VERSION, "files": files}


def decode_listing(base: Address, data: bytes, place: object) -> ObjectListing:
    """Parse the JSON of an object list; anything else is refused, since its names become files."""
    try:
        payload = json.loads(data)
        if payload["format"] != FORMAT:
            raise ArtifactError(
                f"{place} has the format {str(payload['format'])[:40]!r}, not {FORMAT!r}; choose another address"
            )
        if payload["version"] != VERSION:
            again = "copy the artifact there again with `citeweave copy`"
            raise ArtifactError(
                f"{place} is a list of objects {explain_version_mismatch(payload['version'], VERSION, again)}"
            )
        files = {
            name: ListedFile(file["bytes"], file["sha256"], file["at"], file.get("modified", 0))
            for name, file in payload["files"].items()
        }
        are_files = all(
            [type(value) for value in file] == [int, str, str, int]
            and file.bytes >= 0
            and _SHA256.fullmatch(file.sha256)
            for file in files.values()
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ArtifactError(f"{place} is damaged: it is not a list of objects; copy the artifact there again") from None
    if not are_files:
        raise ArtifactError(f"{place} is damaged: it does not describe files; copy the artifact there again")
    check_object_names(files, place)
    check_object_names({file.at for file in files.values()}, place)
    return ObjectListing(base, files)


def read_listing(address: Address) -> ObjectListing | None:
    """Return the object list that `push` wrote at an address, None where there is none."""
    place = address / LISTING_NAME
    data = read_small_object(place)
    if data is None:
        return None
    listing = decode_listing(address, data, place)
    if hidden := next(filter(_is_hidden, listing.files), None):
        # `push` uploads none, and a name like that of our work folders would be taken for one
        raise InputError(f"{place} names the hidden file {hidden[:200]!r}, which no artifact has; copy it there again")
    return listing


def find_listing(address: Address) -> ObjectListing:
    """Return the object list of an address, which may be a pattern or a single object; refused if nothing is there."""
    if address.is_pattern:
        return _match_pattern(address)
    if listing := read_listing(address):
        return listing
    stored = {name: file for name, file in list_objects(address).items() if not _is_hidden(name)}
    single = stat_object(address)
    if stored:
        check_object_names(stored, address)
        if single is not None and single.bytes:
            raise InputError(f"{address} is an object and a folder; remove or rename one of them")
        return ObjectListing(address, _with_hashes(address, stored))
    if single is None:
        raise InputError(f"{address} does not exist: no object and no folder has this name; check the address")
    base = Address(address.scheme, address.bucket, address.key.rpartition("/")[0])
    file = ListedFile(single.bytes, "", address.name, single.modified)
    return ObjectListing(base, {address.name: file}, is_single=True)


def _match_pattern(address: Address) -> ObjectListing:
    """Return the listing of all objects that match the pattern of an address."""
    below, pattern = address.before_pattern()
    base = Address(address.scheme, address.bucket, below)
    files = {
        name: ListedFile(file.bytes, "", name, file.modified)
        for name, file in list_objects(base).items()
        if _matches(name, pattern) and not _is_hidden(name)
    }
    if not files:
        raise InputError(f"{address} matches no object; check the pattern")
    check_object_names(files, address)
    return ObjectListing(base, files)


def _matches(name: str, pattern: str) -> bool:
    """Return whether an object name matches a pattern, part by part.

    >>> _matches("2026/a.gz", "*/*.gz"), _matches("2026/a.gz", "*.gz")
    (True, False)
    """
    parts, patterns = name.split("/"), pattern.split("/")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def _is_hidden(name: str) -> bool:
    """Return whether a part of an object name begins with a dot; "." and ".." are not hidden but refused."""
    return any(part.startswith(".") and part not in (".", "..") for part in name.split("/"))


def _with_hashes(address: Address, stored: dict[str, ObjectInfo]) -> dict[str, ListedFile]:
    """Return the files of a folder without a listing, hashes from its manifests; contradicting sizes are refused."""
    hashes: dict[str, str] = {}
    for manifest in (name for name in stored if name.rpartition("/")[2] == MANIFEST):
        data = read_small_object(address / manifest) or b""
        listed = manifest_hashes(manifest, data)
        for name, (size, sha256) in listed.items():
            check_object_name(name, address / manifest)
            if name not in stored:
                raise ArtifactError(f"{address / name} does not exist, but its manifest names it; copy it there again")
            if stored[name].bytes != size:
                raise ArtifactError(
                    f"{address / name} has {stored[name].bytes:,} bytes, its manifest says {size:,}: it is truncated "
                    "or of another version; copy the artifact there again"
                )
            hashes[name] = sha256
        if listed:
            hashes[manifest] = hashlib.sha256(data).hexdigest()
    return {name: ListedFile(file.bytes, hashes.get(name, ""), name, file.modified) for name, file in stored.items()}


def manifest_hashes(name: str, data: bytes) -> dict[str, tuple[int, str]]:
    """Return size and hash of the objects that a manifest at `name` lists, by name; empty for another program's."""
    parent = name.removesuffix(MANIFEST)
    try:
        manifest = json.loads(data)
        if not {"kind", "version", "recipe"} <= manifest.keys():
            return {}
        return {
            f"{parent}{inner}": (int(file["bytes"]), str(file["sha256"]))
            for inner, file in manifest["files"].items()
            if "sha256" in file
        }
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


# The cache.

KEEP_SECONDS = 7 * 24 * 3600.0
"""Seconds that a version which is not the newest stays after its last use."""

_LISTING, _ADDRESS = "listing.json", "address.txt"
LOCK, WORK_LOCK = ".lock", ".work.lock"


class CachedVersion(NamedTuple):
    """A folder into which one version of an artifact is fetched, complete or partial."""

    folder: Path
    name: str

    @property
    def content(self) -> Path:
        return self.folder / "content" / self.name

    def record(self, listing: ObjectListing) -> None:
        self.content.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / _LISTING, listing.as_json())

    def listing(self, base: Address) -> ObjectListing | None:
        """Return the listing of a fetched version's files, None where the folder is not a version."""
        try:
            return decode_listing(base, (self.folder / _LISTING).read_bytes(), self.folder)
        except (OSError, ArtifactError):
            return None


class CacheSlot:
    """The place in the cache into which an address is fetched."""

    def __init__(self, address: Address, cache: Path | None = None) -> None:
        self.address = address
        self.name = address.before_pattern()[0].rpartition("/")[2] or "files" if address.is_pattern else address.name
        # the same bucket on another storage is another place
        key = hashlib.sha256(f"{endpoint() if address.scheme == 's3' else ''} {address}".encode()).hexdigest()[:12]
        self.folder = cache_folder(cache) / "cloud" / f"{re.sub('[^A-Za-z0-9._-]', '_', self.name)[:60]}-{key}"

    def version(self, hash: str, kind: str = "versions") -> CachedVersion:
        return CachedVersion(self.folder / kind / hash[:16], self.name)

    def files(self, base: Address) -> dict[str, Path]:
        """Return where versions, complete or partial, have the files of each hash, if they have them yet."""
        found = {}
        for folder in [*folders_in(self.folder / "partial"), *folders_in(self.folder / "versions")]:
            version = CachedVersion(folder, self.name)
            listing = version.listing(base)
            for name, file in listing.files.items() if listing else ():
                found[file.sha256] = version.content / name
        found.pop("", None)
        return found

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
        return self.use(version)

    def use(self, version: CachedVersion) -> CachedVersion:
        """Record that a version was used now, and remove those that have not been for some time."""
        os.utime(version.folder)
        for path in folders_in(self.folder / "versions"):
            if path != version.folder and time.time() - path.stat().st_mtime > KEEP_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
        return version


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
    for folder in folders_in(cache_folder(cache) / "cloud"):
        if not (folder / _ADDRESS).is_file():
            continue  # not ours: the user may have named a folder of theirs as the cache
        versions = folders_in(folder / "versions")
        infos = [Path(parent, name).lstat() for parent, _, names in os.walk(folder) for name in names]
        sizes = {(info.st_dev, info.st_ino): info.st_size for info in infos}  # files that versions share count once
        used = max(path.stat().st_mtime for path in [*versions, folder])
        address = (folder / _ADDRESS).read_text(encoding="utf-8").strip()
        entries.append(CacheEntry(address, folder, len(versions), sum(sizes.values()), used))
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
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    with suppress(OSError):  # another process may have begun again
        entry.folder.rmdir()
    return True


def folders_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


# Downloading.

PARALLEL_FILES = 6
"""Files transferred at a time: this hides latency, and memory stays below PARALLEL_FILES x 3 chunks."""

Count = Callable[[int], None]


class _StoppedError(Exception):
    """A transfer is no longer wanted: another file failed, or the user pressed Ctrl-C."""


def run_transfers(jobs: Iterable[Callable[[Count], None]], label: str, size: int, reporter: Reporter) -> None:
    """Run transfers in a few threads; the first failure, or Ctrl-C, stops the others at their next chunk."""
    lock, stopped = Lock(), Event()

    def count(amount: int) -> None:
        if stopped.is_set():
            raise _StoppedError
        with lock:
            advance(amount)

    with reporter.task(label, total=size, unit="bytes") as advance, ThreadPoolExecutor(PARALLEL_FILES) as pool:
        try:
            for future in as_completed([pool.submit(job, count) for job in jobs]):
                future.result()
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)


def fetch(address: str | Path | Address, *, cache: Path | None = None, reporter: Reporter = QUIET) -> Path:
    """Return the folder, or file, in the cache that holds what is at an address now."""
    place = address if isinstance(address, Address) else Address.parse(address)
    slot = CacheSlot(place, cache)
    with slot.locked():
        listing = find_listing(place)
        while True:
            version = slot.version(listing.hash)
            if version.listing(listing.base) is not None:
                return slot.use(version).content
            unfinished = slot.version(listing.hash, "partial")
            try:
                download_files(unfinished, listing, slot.files(listing.base), link_or_copy, reporter)
                return slot.publish(unfinished, listing.hash).content
            except VanishedError:
                newer = find_listing(place)
                if newer.hash == listing.hash:
                    raise
                reporter.say(f"{place} was replaced while it was fetched; fetching the new one")
                listing = newer


def download_files(
    version: CachedVersion,
    listing: ObjectListing,
    cached: dict[str, Path],
    copy_file: Callable[[Path, Path], object],
    reporter: Reporter,
) -> tuple[int, int]:
    """Fetch the files of a listing, those with a cached hash by `copy_file`; return files and bytes that travelled."""
    version.record(listing)
    # no name on the storage leads to `parts`, and long ones fit; a file gets its own name when it is complete
    parts, jobs, size = version.folder / "parts", [], 0
    parts.mkdir(exist_ok=True)
    for name, file in listing.files.items():
        path = version.content if listing.is_single else version.content / name
        if path.is_file():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = parts / hashlib.sha256(name.encode()).hexdigest()[:32]
        source = cached.get(file.sha256)
        if source is not None and source.is_file() and source.stat().st_size == file.bytes:
            temporary.unlink(missing_ok=True)  # a link is not made over a file
            copy_file(source, temporary)
            move(temporary, path)
        else:
            jobs.append(partial(_download, listing.object_of(name), file, temporary, path))
            size += file.bytes
    if size > (free := shutil.disk_usage(version.folder).free):
        raise UserError(
            f"{listing.base} needs {size:,} bytes on {version.folder}, which has {free:,}; free some space, or name another "
            "cache with CITEWEAVE_CACHE"
        )
    run_transfers(jobs, f"fetching {listing.base}", size, reporter)
    shutil.rmtree(parts)
    return len(jobs), size


def _download(address: Address, file: ListedFile, temporary: Path, path: Path, count: Count) -> None:
    """Download one object to a temporary file, check size and hash, and give the file its name."""
    digest, size = hashlib.sha256(), 0
    with ObjectStream(address, "r") as stream, temporary.open("wb") as out:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            out.write(chunk)
            size += len(chunk)
            count(len(chunk))
        out.flush()
        os.fsync(out.fileno())
    if size != file.bytes:
        raise VanishedError(
            f"{address} has {size:,} bytes, {file.bytes:,} were expected: it is truncated or was replaced; copy it there again"
        )
    if file.sha256 and digest.hexdigest() != file.sha256:
        raise VanishedError(f"{address} is not the file that was uploaded: its hash differs; copy it there again")
    if not file.sha256 and stat_object(address) != (file.bytes, file.modified):
        raise VanishedError(f"{address} was replaced while it was fetched; try again")
    move(temporary, path)
