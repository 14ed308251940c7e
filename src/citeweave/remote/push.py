"""Upload to object storage: `push` a folder or file, `copy` either way, outputs of commands at an address.

    push("index", "s3://lab/index", overwrite=True)      segments that are already there are not uploaded again
    copy("s3://lab/corpus", "corpus")                    from an address to here, from here to an address, or between two

What the storage lacks is uploaded, and then one object, the listing, makes it the artifact there. Until the listing is
written everybody reads the old artifact, and after it the new one; only then are objects removed that the old one alone
used. Objects that this module did not write, and that no artifact names, are never touched. An interrupted push resumes:
the cache records which objects have arrived. Two processes that push to one address at once are not kept apart, but the
one that notices reports it.

A storage turns whatever has arrived into an object when a stream ends, even by an error. So a single file is sent under
another name beside its own and renamed when it is complete; S3 renames up to 5 GiB, larger files are sent directly. Objects
of an artifact need no such thing: only the listing makes them count.

    with PendingUpload(Address.parse("s3://lab/vectors")).prepare(reporter) as out:
        embed(..., out.folder)          holds the artifact that is already at the address, as a local folder would
        out.send(overwrite=False)

The command works in a folder of the cache, and its result is sent when it is done. An interrupted command finds its
intermediate files again, and an interrupted upload sends the rest.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock

from citeweave.core.artifact import MANIFEST, locked_work_folder
from citeweave.core.errors import InputError, UserError
from citeweave.core.files import hash_file, link_or_copy, move, open_input, resolve_output, write_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.publish import INDEX_STATE, check_replaceable, is_index_file, publish, remove_work_folder
from citeweave.remote.fetch import (
    WORK_LOCK,
    CachedVersion,
    CacheSlot,
    download_files,
    fetch,
    fetch_version,
    remove_path,
    run_transfers,
)
from citeweave.remote.object_list import (
    GENERATIONS,
    LISTING_NAME,
    ListedFile,
    ObjectListing,
    encode_listing,
    find_listing,
    manifest_hashes,
    read_listing,
)
from citeweave.remote.object_storage import (
    CHUNK,
    MAX_MOVED_BYTES,
    Address,
    TransferProgress,
    check_object_names,
    explain_storage_errors,
    is_address,
    list_objects,
    move_object,
    open_output,
    read_small_object,
    remove_object,
    stat_object,
    write_small_object,
)


def _upload(path: Path, address: Address, sha256: str, counter: TransferProgress) -> None:
    """Upload a file while hashing it; refused if the hash is not the expected one."""
    digest = hashlib.sha256()
    with open_input(path) as file:
        with explain_storage_errors(address):
            out = open_output(address)
        try:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                with explain_storage_errors(address):
                    out.write(chunk)
                counter.add(len(chunk))
        finally:
            # closed even after a failure: what arrived is truncated, but nothing names it yet
            with explain_storage_errors(address):
                out.close()
    if digest.hexdigest() != sha256:
        raise UserError(f"{path} has changed since it was written; make {path.parent} again")


def _push_file(path: Path, address: Address, *, overwrite: bool, reporter: Reporter) -> int:
    """Upload one file; the object at the address is replaced when the new one is complete."""
    if not overwrite and stat_object(address) is not None:
        raise UserError(f"{address} already exists; choose another address, or add --overwrite")
    if list_objects(address):
        raise UserError(f"{address} is a folder, not an object; choose another address")
    size, sha256 = path.stat().st_size, hash_file(path)
    place = _temporary_object(address) if size <= MAX_MOVED_BYTES else address
    with reporter.task(f"sending to {address}", total=size, unit="bytes") as advance:
        try:
            _upload(path, place, sha256, TransferProgress(advance))
            info = stat_object(place)
            if info is None or info.bytes != size:
                raise InputError(f"{address} did not arrive complete; run the same command again")
            if place != address:
                move_object(place, address)
        except BaseException:
            if place != address:
                with suppress(InputError):  # the first error is the one to report
                    remove_object(place)
            raise
    return size


def _temporary_object(address: Address) -> Address:
    """Return the temporary name under which a single object is uploaded, so that a truncated one replaces nothing."""
    above, slash, name = address.key.rpartition("/")
    return Address(address.scheme, address.bucket, f"{above}{slash}.{name[:200]}.{secrets.token_hex(4)}.part")


_ARTIFACT_MARKS = {MANIFEST, INDEX_STATE}
_BEGUN_MARK = "begun"


@dataclass(frozen=True, slots=True)
class PushResult:
    """How many files and bytes a push covered, uploaded and removed."""

    files: int
    bytes: int
    sent: int
    sent_bytes: int
    removed: int

    def __str__(self) -> str:
        if not self.sent and not self.removed:
            return f"{self.files} files, {self.bytes:,} bytes: all already there"
        return f"{self.files} files, {self.bytes:,} bytes; {self.sent} sent, {self.sent_bytes:,} bytes"


def push(
    folder: str | Path,
    address: str | Path | Address,
    *,
    overwrite: bool = False,
    base: str | None = None,
    cache: Path | None = None,
    reporter: Reporter = QUIET,
) -> PushResult:
    """Push a folder or file to an address; what differs there is replaced with `overwrite`, or if it still is `base`."""
    source = Path(folder)
    place = address if isinstance(address, Address) else Address.parse(address)
    if place.is_pattern:
        raise UserError(f"{place} is a pattern; name one folder to write to")
    if source.is_file():
        size = _push_file(source, place, overwrite=overwrite or base is not None, reporter=reporter)
        return PushResult(1, size, 1, size, 0)
    if not source.is_dir():
        raise UserError(f"{source} does not exist; name a folder or a file to copy")
    with CacheSlot(place, cache).locked():
        return _Push(source, place, CacheSlot(place, cache), reporter).run(overwrite=overwrite, base=base)


class _Push:
    """One push of a folder to an address."""

    def __init__(self, folder: Path, address: Address, slot: CacheSlot, reporter: Reporter) -> None:
        self.folder, self.address, self.reporter = folder, address, reporter
        self.journal = _Journal(slot.folder / "pushed.txt")

    def run(self, *, overwrite: bool, base: str | None) -> PushResult:
        local = _local_files(self.folder)
        single = stat_object(self.address)
        if single is not None and single.bytes:
            raise UserError(f"{self.address} is an object, not a folder; choose another address")
        there = list_objects(self.address)
        current = read_listing(self.address) if LISTING_NAME in there else None
        wanted = ObjectListing(self.address, local)
        if current is not None and current.hash == wanted.hash:
            return PushResult(len(local), wanted.bytes, 0, 0, 0)
        foreign = set(there) - self.journal.begun
        if foreign and not overwrite:
            self._refuse_unless(base, current, foreign)
        # a folder that another program uploaded is an artifact too, and is removed when it is replaced
        old = current or (find_listing(self.address) if foreign & _ARTIFACT_MARKS else None)
        disused = _objects_of(old) if old else set()
        in_use = {file.at for file in current.files.values()} if current else set()
        placed = self._place_files(wanted, current, foreign | in_use)
        known = {(file.at, file.sha256) for file in (current.files.values() if current else ())} | self.journal.arrived
        missing = [
            name
            for name, file in placed.files.items()
            if (file.at, file.sha256) not in known or file.at not in there or there[file.at].bytes != file.bytes
        ]
        self._upload(placed, missing)
        self._commit(placed, current)
        removed = self._remove(disused - {file.at for file in placed.files.values()})
        self.journal.clear()
        return PushResult(len(local), placed.bytes, len(missing), sum(local[name].bytes for name in missing), removed)

    def _refuse_unless(self, base: str | None, current: ObjectListing | None, foreign: set[str]) -> None:
        current_hash = (
            current.hash if current else find_listing(self.address).hash if foreign & _ARTIFACT_MARKS else None
        )
        if base is not None and base == current_hash:
            return
        if base is not None:
            raise UserError(
                f"{self.address} was changed by another process meanwhile; fetch it again, or add --overwrite"
            )
        what = "holds another artifact" if current_hash else "holds objects that are no artifact of citeweave"
        raise UserError(f"{self.address} {what}; choose another address, or add --overwrite")

    def _place_files(self, wanted: ObjectListing, current: ObjectListing | None, taken: set[str]) -> ObjectListing:
        """Choose an object for each file: bytes that are already there, else its own name, else below `.generations`."""
        known = {(file.bytes, file.sha256): file.at for file in current.files.values()} if current else {}
        files = {}
        for name, file in wanted.files.items():
            free = name if name not in taken and name != LISTING_NAME else f"{GENERATIONS}/{wanted.hash[:12]}/{name}"
            files[name] = ListedFile(file.bytes, file.sha256, known.get((file.bytes, file.sha256), free))
        return ObjectListing(self.address, files, is_ours=True)

    def _upload(self, placed: ObjectListing, missing: list[str]) -> None:
        self.journal.begin({placed.files[name].at for name in missing})
        size = sum(placed.files[name].bytes for name in missing)
        with self.reporter.task(f"sending to {self.address}", total=size, unit="bytes") as advance:
            counter = TransferProgress(advance)

            def send(name: str) -> None:
                _upload(self.folder / name, placed.object_of(name), placed.files[name].sha256, counter)
                self.journal.arrive(placed.files[name])

            run_transfers([partial(send, name) for name in missing], counter)

    def _commit(self, placed: ObjectListing, current: ObjectListing | None) -> None:
        there = list_objects(self.address)
        for name, file in placed.files.items():
            if file.at not in there or there[file.at].bytes != file.bytes:
                raise InputError(f"{placed.object_of(name)} did not arrive complete; run the same command again")
        now = read_listing(self.address)
        if (now and now.hash) != (current and current.hash):
            raise UserError(
                f"{self.address} was changed by another process meanwhile; fetch it again, or add --overwrite"
            )
        write_small_object(self.address / LISTING_NAME, encode_listing(placed))
        if read_small_object(self.address / LISTING_NAME) != encode_listing(placed):
            raise InputError(f"{self.address / LISTING_NAME} did not arrive complete; run the same command again")

    def _remove(self, disused: set[str]) -> int:
        for at in sorted(disused):
            remove_object(self.address / at)
        return len(disused)


def _objects_of(artifact: ObjectListing) -> set[str]:
    """Return the objects that belong to an artifact: files with a hash in a listing or manifest, and an index's state."""
    is_index = INDEX_STATE in artifact.files and _is_index_state(artifact.object_of(INDEX_STATE))
    return {
        file.at
        for name, file in artifact.files.items()
        if (file.sha256 or (is_index and is_index_file(tuple(name.split("/"))))) and file.at != LISTING_NAME
    }


def _is_index_state(address: Address) -> bool:
    try:
        return bool(json.loads(read_small_object(address) or b"")["format"] == "citeweave-index")
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


class _Journal:
    """Which objects an unfinished push has begun and which have arrived, one per line, so that the next push resumes."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, Lock()
        self.begun: set[str] = set()
        self.arrived: set[tuple[str, str]] = set()
        """Names of objects and hashes of what lies there."""
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        for line in lines:
            sha256, _, at = line.partition(" ")
            self.begun.add(at)
            self.arrived |= {(at, sha256)} if sha256 != _BEGUN_MARK else set()

    def begin(self, objects: set[str]) -> None:
        self.begun |= objects
        self._add([f"{_BEGUN_MARK} {at}\n" for at in sorted(objects)])

    def arrive(self, file: ListedFile) -> None:
        self._add([f"{file.sha256} {file.at}\n"])

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)

    def _add(self, lines: list[str]) -> None:
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.writelines(lines)


def _local_files(folder: Path) -> dict[str, ListedFile]:
    """Return the files of a folder with their hashes, from manifests or computed; hidden ones are left out."""
    names = sorted(_visible_names(folder))
    check_object_names(names, folder)
    known: dict[str, tuple[int, str]] = {}
    for name in names:
        if name.rpartition("/")[2] == MANIFEST:
            known |= manifest_hashes(name, (folder / name).read_bytes())
    files = {}
    for name in names:
        size = (folder / name).stat().st_size
        if name in known and known[name][0] != size:
            raise UserError(f"{folder / name} has another size than its manifest says; make {folder} again")
        files[name] = ListedFile(size, known[name][1] if name in known else hash_file(folder / name), name)
    if missing := sorted(known.keys() - files.keys()):
        raise UserError(f"{folder / missing[0]} is missing, but its manifest names it; make {folder} again")
    if not files:
        raise UserError(f"{folder} is empty; there is nothing to copy")
    return files


def _visible_names(folder: Path) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in [*folders, *names]:
            if Path(parent, name).is_symlink():
                raise UserError(
                    f"{Path(parent, name)} is a link; copy what it points to, since object storage has no links"
                )
        for name in names:
            if not name.startswith("."):
                yield Path(parent, name).relative_to(folder).as_posix()


# Copying in either direction.


@dataclass(frozen=True, slots=True)
class CopyResult:
    """How many files and bytes a copy pushed or fetched, and to which target."""

    target: str
    files: int
    bytes: int
    sent: int
    """Files that were transferred; the others were already there."""


def copy(
    source: str | Path,
    target: str | Path,
    *,
    overwrite: bool = False,
    cache: Path | None = None,
    reporter: Reporter = QUIET,
) -> CopyResult:
    """Push or fetch a copy of an artifact, any folder, or a file; at least one of source and target is an address."""
    if is_address(target):
        local = fetch(source, cache=cache, reporter=reporter) if is_address(source) else Path(source)
        destination = Address.parse(target)
        result = push(local, destination, overwrite=overwrite, cache=cache, reporter=reporter)
        return CopyResult(str(destination), result.files, result.bytes, result.sent)
    if not is_address(source):
        raise UserError(f"{source} and {target} are both local; give an address such as s3://bucket/corpus, or use cp")
    address, folder = Address.parse(source), Path(target)
    listing = find_listing(address)
    if listing.is_single and folder.is_dir():
        folder = folder / address.name
    _refuse_existing_target(folder, listing, overwrite=overwrite)
    folder = resolve_output(folder)
    with locked_work_folder(folder) as work:
        version = CachedVersion(work / "kept" / listing.hash[:16], folder.name)
        sent = _receive(version, listing, CacheSlot(address, cache).all(), reporter)
        _refuse_existing_target(
            folder, listing, overwrite=overwrite
        )  # what appeared there meanwhile is not ours to replace
        if listing.is_single:
            move(version.content, folder)
            remove_work_folder(folder)
        else:
            shutil.rmtree(work / "new")  # empty, or left by an exchange that was killed
            move(version.content, work / "new")
            publish(folder)
    return CopyResult(str(folder), len(listing.files), listing.bytes, sent)


def _receive(version: CachedVersion, listing: ObjectListing, cached: list[CachedVersion], reporter: Reporter) -> int:
    try:
        version.record(listing)
    except OSError as error:
        raise UserError(f"{version.folder} cannot be written ({error.strerror}); choose another place") from None
    # never linked: a copy may be changed, the cache must not
    return download_files(version, listing, cached, reporter, copy_file=shutil.copyfile)


def _refuse_existing_target(folder: Path, listing: ObjectListing, *, overwrite: bool) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not overwrite:
        raise UserError(f"{folder} exists; choose another place, or add --overwrite")
    ours = any((folder / name).is_file() for name in (MANIFEST, "state.json"))
    if folder.is_file() != listing.is_single or (folder.is_dir() and not ours):
        raise UserError(f"{folder} exists and is not an artifact of citeweave; choose another place")
    if folder.is_dir():
        check_replaceable(folder)


# The output of a command that writes to an address.

_BASE = "base.json"


class PendingUpload:
    """Output of a command that will be pushed: a local folder, uploaded to its address at the end."""

    def __init__(self, address: Address, cache: Path | None = None) -> None:
        self.address, self._cache, self._slot = address, cache, CacheSlot(address, cache)
        self.folder = self._slot.work
        self._base: str | None = None
        self._reporter = QUIET

    @contextmanager
    def prepare(self, reporter: Reporter = QUIET, *, must_exist: bool = False) -> Iterator[PendingUpload]:
        """Prepare the local folder to push; a second process that writes to the same address is refused."""
        self._reporter = reporter
        if self.address.is_pattern:
            raise UserError(f"{self.address} is a pattern; name one folder to write to")
        with self._slot.locked(WORK_LOCK, wait=False):
            self._base = self._remote_hash()
            if must_exist and self._base is None:
                raise UserError(f"{self.address} does not exist; check the address")
            if self.folder.exists() and self._base_of_work() != self._base:
                remove_path(self.folder)  # based on what is no longer there; a partial folder beside it stays
            if self._base is not None and not self.folder.exists():
                _copy_for_changes(fetch_version(self.address, cache=self._cache, reporter=reporter), self.folder)
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._slot.folder / _BASE, {"base": self._base})
            yield self

    def send(self, *, overwrite: bool = False) -> PushResult | None:
        """Push what the command wrote, or return None where it wrote nothing."""
        if not self.folder.exists():
            return None
        base = self._base if self.folder.is_dir() else ""
        result = push(
            self.folder, self.address, overwrite=overwrite, base=base, cache=self._cache, reporter=self._reporter
        )
        with self._slot.locked():
            if self.folder.is_dir():
                self._slot.adopt(self.folder, ObjectListing(self.address, _local_files(self.folder)))
            shutil.rmtree(self.folder.parent)
        return result

    def _remote_hash(self) -> str | None:
        """Return the hash of the artifact at the address, None where there is no folder."""
        there = list_objects(self.address)
        if not ({LISTING_NAME, MANIFEST, "state.json"} & there.keys()):
            return None
        return find_listing(self.address).hash

    def _base_of_work(self) -> str | None:
        try:
            base = json.loads((self._slot.folder / _BASE).read_bytes())["base"]
        except (OSError, ValueError, KeyError, TypeError):
            return ""
        return None if base is None else str(base)


def _copy_for_changes(version: CachedVersion, folder: Path) -> None:
    """Copy a cached version into a folder that may be changed; only files that a manifest names are linked."""
    temporary = folder.with_name(folder.name + ".laid")
    shutil.rmtree(temporary, ignore_errors=True)
    paths = [path for path in version.content.rglob("*") if path.is_file()]
    fixed: set[str] = set()
    for path in paths:
        if path.name == MANIFEST:
            fixed |= manifest_hashes(path.relative_to(version.content).as_posix(), path.read_bytes()).keys()
    for path in paths:
        name = path.relative_to(version.content).as_posix()
        target = temporary / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (link_or_copy if name in fixed else shutil.copyfile)(path, target)
    move(temporary, folder)
