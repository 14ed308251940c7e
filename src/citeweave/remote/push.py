"""Upload to object storage: `push` a folder or file, `copy` either way, outputs of commands at an address.

    push("index", "s3://lab/index", overwrite=True)      files that are already there are not uploaded again
    copy("s3://lab/corpus", "corpus")                    from an address to here, from here to an address, or between two

What the storage lacks is uploaded, and then one object, the list, makes it the artifact there. Until the list is written
everybody reads the old artifact, and after it the new one; only then are objects removed that the old one alone used.
Objects that this module did not write, and that no artifact names, are never touched. An interrupted push resumes: the
cache records which objects it has begun. Two processes that push to one address at once are not kept apart, but the one
that notices reports it.

A storage turns whatever has arrived into an object when a stream ends, even by an error. So a single file is sent under
another name beside its own and renamed when it is complete; S3 renames up to 5 GiB, larger files are sent directly. Objects
of an artifact need no such thing: only the list makes them count.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from citeweave.core.artifact import MANIFEST, locked_work_folder
from citeweave.core.errors import InputError, UserError
from citeweave.core.files import hash_file, link_or_copy, move, open_input, resolve_output, write_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.publish import INDEX_STATE, check_replaceable, is_index_file, publish, remove_work_folder
from citeweave.remote.fetch import (
    LISTING_NAME,
    WORK_LOCK,
    CachedVersion,
    CacheSlot,
    Count,
    ListedFile,
    ObjectListing,
    download_files,
    fetch,
    find_listing,
    folders_in,
    manifest_hashes,
    read_listing,
    run_transfers,
)
from citeweave.remote.object_storage import (
    CHUNK,
    MAX_MOVED_BYTES,
    Address,
    ObjectStream,
    check_object_names,
    is_address,
    list_objects,
    move_object,
    read_small_object,
    remove_object,
    stat_object,
    write_small_object,
)

_ARTIFACT_MARKS = {MANIFEST, INDEX_STATE}


class CopyResult(NamedTuple):
    """How many files and bytes a copy has at its target, and how many were transferred; the others were already there."""

    target: str
    files: int
    bytes: int
    sent: int
    sent_bytes: int

    def __str__(self) -> str:
        sent = f"; {self.sent} sent, {self.sent_bytes:,} bytes" if self.sent else ": all already there"
        return f"{self.files} files, {self.bytes:,} bytes{sent}"


def push(
    folder: str | Path,
    address: str | Path | Address,
    *,
    overwrite: bool = False,
    base: str | None = None,
    cache: Path | None = None,
    reporter: Reporter = QUIET,
) -> CopyResult:
    """Push a folder or file to an address; what differs there is replaced with `overwrite`, or if it still is `base`."""
    source = Path(folder)
    place = address if isinstance(address, Address) else Address.parse(address)
    if place.is_pattern:
        raise UserError(f"{place} is a pattern; name one folder to write to")
    if source.is_file():
        return _push_file(source, place, overwrite or base is not None, reporter)
    if not source.is_dir():
        raise UserError(f"{source} does not exist; name a folder or a file to copy")
    slot = CacheSlot(place, cache)
    with slot.locked():
        return _push_folder(source, slot, overwrite, base, reporter)


def _push_folder(folder: Path, slot: CacheSlot, overwrite: bool, base: str | None, reporter: Reporter) -> CopyResult:
    address, wanted = slot.address, ObjectListing(slot.address, _local_files(folder))
    single, there = stat_object(address), list_objects(address)
    if single is not None and single.bytes:
        raise UserError(f"{address} is an object, not a folder; choose another address")
    current = read_listing(address) if LISTING_NAME in there else None
    if current is not None and current.hash == wanted.hash:
        return CopyResult(str(address), len(wanted.files), wanted.bytes, 0, 0)
    journal = slot.folder / "pushed.json"
    begun: dict[str, str] = json.loads(journal.read_bytes()) if journal.is_file() else {}
    foreign = there.keys() - begun.keys()
    # a folder that another program uploaded is an artifact too, and is removed when it is replaced
    old = current or (find_listing(address) if foreign & _ARTIFACT_MARKS else None)
    if foreign and not overwrite and (base is None or base != (old and old.hash)):
        what = "holds another artifact" if old else "holds objects that are no artifact of citeweave"
        raise UserError(
            f"{address} {what}; choose another address, or add --overwrite" if base is None else _changed(address)
        )
    in_use = {file.at: file.sha256 for file in current.files.values()} if current else {}
    placed = _place_files(wanted, current, {**dict.fromkeys(foreign | in_use.keys(), ""), **begun})
    missing = {
        name: file
        for name, file in placed.files.items()
        if file.at not in there
        or there[file.at].bytes != file.bytes
        or file.sha256 not in (in_use.get(file.at), begun.get(file.at))
    }
    write_json(journal, begun | {file.at: file.sha256 for file in missing.values()})
    jobs = [partial(_upload, folder / name, placed.object_of(name), file.sha256) for name, file in missing.items()]
    size = sum(file.bytes for file in missing.values())
    run_transfers(jobs, f"sending to {address}", size, reporter)
    _commit(placed, current)
    for at in sorted((_objects_of(old) if old else set()) - {file.at for file in placed.files.values()}):
        remove_object(address / at)
    journal.unlink()
    return CopyResult(str(address), len(placed.files), placed.bytes, len(missing), size)


def _place_files(wanted: ObjectListing, current: ObjectListing | None, taken: dict[str, str]) -> ObjectListing:
    """Choose an object for each file: bytes that are already there, else its own name, else below `.generations`.

    `taken` are objects with the hash of what an interrupted push may have begun to write there, else without.
    """
    known = {(file.bytes, file.sha256): file.at for file in current.files.values()} if current else {}
    files = {}
    for name, file in wanted.files.items():
        is_free = taken.get(name, file.sha256) == file.sha256 and name != LISTING_NAME
        at = name if is_free else f".generations/{wanted.hash[:12]}/{name}"
        files[name] = file._replace(at=known.get((file.bytes, file.sha256), at))
    return ObjectListing(wanted.base, files)


def _upload(path: Path, address: Address, sha256: str, count: Count) -> None:
    """Upload a file while hashing it; the last chunk is sent only if the hash is right, so that a wrong object is short."""
    digest = hashlib.sha256()
    with open_input(path) as file, ObjectStream(address, "w") as out:
        chunk = file.read(CHUNK)
        while chunk:
            digest.update(chunk)
            following = file.read(CHUNK)
            if not following and digest.hexdigest() != sha256:
                break
            count(len(chunk))
            out.write(chunk)
            chunk = following
    if digest.hexdigest() != sha256:
        raise UserError(f"{path} has changed since it was written; make {path.parent} again")


def _commit(placed: ObjectListing, current: ObjectListing | None) -> None:
    """Check that every object has arrived, and write the list that makes them the artifact."""
    there, place = list_objects(placed.base), placed.base / LISTING_NAME
    for name, file in placed.files.items():
        if file.at not in there or there[file.at].bytes != file.bytes:
            raise InputError(f"{placed.object_of(name)} did not arrive complete; run the same command again")
    now = read_listing(placed.base)
    if (now and now.hash) != (current and current.hash):
        raise UserError(_changed(placed.base))
    data = json.dumps(placed.as_json(), indent=1, ensure_ascii=False).encode()
    write_small_object(place, data)
    if read_small_object(place) != data:
        raise InputError(f"{place} did not arrive complete; run the same command again")


def _changed(address: Address) -> str:
    return f"{address} was changed by another process meanwhile; fetch it again, or add --overwrite"


def _objects_of(artifact: ObjectListing) -> set[str]:
    """Return the objects that belong to an artifact: files with a hash in a listing or manifest, and an index's state."""
    is_index = False
    if INDEX_STATE in artifact.files:
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            state = json.loads(read_small_object(artifact.object_of(INDEX_STATE)) or b"")
            is_index = state["format"] == "citeweave-index"
    return {
        file.at
        for name, file in artifact.files.items()
        if (file.sha256 or (is_index and is_index_file(tuple(name.split("/"))))) and file.at != LISTING_NAME
    }


def _push_file(path: Path, address: Address, overwrite: bool, reporter: Reporter) -> CopyResult:
    """Upload one file under a hidden name beside its own, and rename it when it is complete: S3 does up to 5 GiB."""
    if not overwrite and stat_object(address) is not None:
        raise UserError(f"{address} already exists; choose another address, or add --overwrite")
    if list_objects(address):
        raise UserError(f"{address} is a folder, not an object; choose another address")
    size, sha256 = path.stat().st_size, hash_file(path)
    above, slash, name = address.key.rpartition("/")
    hidden = Address(address.scheme, address.bucket, f"{above}{slash}.{name[:200]}.{secrets.token_hex(4)}.part")
    place = hidden if size <= MAX_MOVED_BYTES else address
    try:
        run_transfers([partial(_upload, path, place, sha256)], f"sending to {address}", size, reporter)
        info = stat_object(place)
        if info is None or info.bytes != size:
            raise InputError(f"{address} did not arrive complete; run the same command again")
        if place == hidden:
            move_object(hidden, address)
    except BaseException:
        with suppress(InputError):  # the first error is the one to report
            remove_object(hidden)
        raise
    return CopyResult(str(address), 1, size, 1, size)


def _local_files(folder: Path) -> dict[str, ListedFile]:
    """Return the files of a folder with their hashes, from manifests or computed; hidden ones are left out."""
    names = sorted(_visible_names(folder))
    check_object_names(names, folder)
    known = _hashes_in_manifests(folder, names)
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


def _hashes_in_manifests(folder: Path, names: Iterable[str]) -> dict[str, tuple[int, str]]:
    known: dict[str, tuple[int, str]] = {}
    for name in names:
        if name.rpartition("/")[2] == MANIFEST:
            known |= manifest_hashes(name, (folder / name).read_bytes())
    return known


def _visible_names(folder: Path) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in [*folders, *names]:
            if Path(parent, name).is_symlink():
                raise UserError(
                    f"{Path(parent, name)} is a link; copy what it points to, since object storage has no links"
                )
        yield from (Path(parent, name).relative_to(folder).as_posix() for name in names if not name.startswith("."))


# Copying in either direction.


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
        return push(local, target, overwrite=overwrite, cache=cache, reporter=reporter)
    if not is_address(source):
        raise UserError(f"{source} and {target} are both local; give an address such as s3://bucket/corpus, or use cp")
    address, folder = Address.parse(source), Path(target)
    listing = find_listing(address)
    if listing.is_single and folder.is_dir():
        folder = folder / address.name
    _refuse_existing_target(folder, listing, overwrite)
    folder = resolve_output(folder)
    with locked_work_folder(folder) as work:
        version = CachedVersion(work / "kept" / listing.hash[:16], folder.name)
        # never linked: a copy may be changed, the cache must not
        cached = CacheSlot(address, cache).files(listing.base)
        sent = download_files(version, listing, cached, shutil.copyfile, reporter)
        _refuse_existing_target(folder, listing, overwrite)  # what appeared there meanwhile is not ours to replace
        if listing.is_single:
            move(version.content, folder)
            remove_work_folder(folder)
        else:
            shutil.rmtree(work / "new")  # empty, or left by an exchange that was killed
            move(version.content, work / "new")
            publish(folder)
    return CopyResult(str(folder), len(listing.files), listing.bytes, *sent)


def _refuse_existing_target(folder: Path, listing: ObjectListing, overwrite: bool) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not overwrite:
        raise UserError(f"{folder} exists; choose another place, or add --overwrite")
    ours = any((folder / name).is_file() for name in _ARTIFACT_MARKS)
    if folder.is_file() != listing.is_single or (folder.is_dir() and not ours):
        raise UserError(f"{folder} exists and is not an artifact of citeweave; choose another place")
    if folder.is_dir():
        check_replaceable(folder)


class PendingUpload:
    """Output of a command that will be pushed: a local folder in the cache, uploaded to its address at the end.

        with PendingUpload(Address.parse("s3://lab/vectors")).prepare(reporter) as out:
            embed(..., out.folder)          holds the artifact that is already at the address, as a local folder would
            out.send(overwrite=False)

    An interrupted command finds its intermediate files again, and an interrupted upload sends the rest.
    """

    folder: Path

    def __init__(self, address: Address, cache: Path | None = None) -> None:
        self.address, self._cache, self._slot = address, cache, CacheSlot(address, cache)
        self._base: str | None = None
        self._reporter = QUIET

    @contextmanager
    def prepare(self, reporter: Reporter = QUIET, *, must_exist: bool = False) -> Iterator[PendingUpload]:
        """Prepare the local folder to push; a second process that writes to the same address is refused."""
        self._reporter, work = reporter, self._slot.folder / "work"
        if self.address.is_pattern:
            raise UserError(f"{self.address} is a pattern; name one folder to write to")
        with self._slot.locked(WORK_LOCK, wait=False):
            is_artifact = list_objects(self.address).keys() & {LISTING_NAME, *_ARTIFACT_MARKS}
            self._base = find_listing(self.address).hash if is_artifact else None
            if must_exist and self._base is None:
                raise UserError(f"{self.address} does not exist; check the address")
            self.folder = work / (self._base or "nothing")[:16] / self._slot.name
            for path in folders_in(work):
                if path != self.folder.parent:
                    shutil.rmtree(path)  # based on what is no longer there
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            if self._base is not None and not self.folder.exists():
                _copy_for_changes(fetch(self.address, cache=self._cache, reporter=reporter), self.folder)
            yield self

    def send(self, *, overwrite: bool = False) -> CopyResult | None:
        """Push what the command wrote, or return None where it wrote nothing."""
        if not self.folder.exists():
            return None
        base = self._base if self.folder.is_dir() else ""
        result = push(
            self.folder, self.address, overwrite=overwrite, base=base, cache=self._cache, reporter=self._reporter
        )
        with self._slot.locked():
            if self.folder.is_dir():  # becomes the version that the next fetch finds
                listing = ObjectListing(self.address, _local_files(self.folder))
                version = self._slot.version(listing.hash, "partial")
                shutil.rmtree(version.folder, ignore_errors=True)
                version.record(listing)
                move(self.folder, version.content)
                self._slot.publish(version, listing.hash)
            shutil.rmtree(self._slot.folder / "work")
        return result


def _copy_for_changes(content: Path, folder: Path) -> None:
    """Copy a cached artifact into a folder that may be changed; only files that a manifest names are linked."""
    temporary = folder.with_name(folder.name + ".laid")
    shutil.rmtree(temporary, ignore_errors=True)
    names = [path.relative_to(content).as_posix() for path in content.rglob("*") if path.is_file()]
    fixed = {str(content / name) for name in _hashes_in_manifests(content, names)}
    shutil.copytree(
        content,
        temporary,
        copy_function=lambda path, to: (link_or_copy if path in fixed else shutil.copyfile)(Path(path), Path(to)),
    )
    move(temporary, folder)
