"""One file to one object: its bytes are checked while they travel, and a whole object is never replaced by half of one.

    push_file(Path("page.html"), Address.parse("s3://lab/page.html"), overwrite=True, reporter=reporter)

Storages make an object of whatever has come when a stream ends, also by an error. So a single object is sent under another
name beside its own and renamed there when it is whole; S3 renames up to 5 GiB, larger ones go straight. Objects of an
artifact need no such thing: its list alone makes them count.

From a folder to an address: what the storage lacks is uploaded, and then one object makes it the artifact there.

    push("index", "s3://lab/index", overwrite=True)      segments that are there do not travel again

Until that last object is put, everybody reads the old artifact, and after it the new one; only then are objects removed
that the old one alone used. Objects that this module did not put there, and no artifact names, are never touched. What
broke off goes on: the cache notes which objects have arrived. Two that push to one address at once are not kept apart,
but the one who notices says so.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock

from citeweave.core.artifact import MANIFEST
from citeweave.core.errors import InputError, UserError
from citeweave.core.files import hash_file, open_input
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.publish import INDEX_STATE, is_of_index
from citeweave.remote.fetch import Slot, in_parallel
from citeweave.remote.contents import (
    GENERATIONS,
    OBJECTS,
    File,
    ObjectListing,
    encode,
    find_listing,
    hashes_of_manifest,
    read_listing,
)
from citeweave.remote.object_storage import (
    CHUNK,
    MOST_MOVED,
    Address,
    TransferProgress,
    check_names,
    list_objects,
    move_object,
    open_output,
    read_small,
    remove_object,
    stat_object,
    told,
    write_small,
)


def upload(path: Path, address: Address, sha256: str, counter: TransferProgress) -> None:
    """Send a file while its hash is taken; refused where it is not the one that was told."""
    digest = hashlib.sha256()
    with open_input(path) as file:
        with told(address):
            out = open_output(address)
        try:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                with told(address):
                    out.write(chunk)
                counter.add(len(chunk))
        finally:
            # closed also when something failed: what arrived is cut off, but nothing names it yet
            with told(address):
                out.close()
    if digest.hexdigest() != sha256:
        raise UserError(f"{path} has changed since it was written; make {path.parent} again")


def push_file(path: Path, address: Address, *, overwrite: bool, reporter: Reporter) -> int:
    """Send one file; what lies at the address is replaced when the new object is whole."""
    if not overwrite and stat_object(address) is not None:
        raise UserError(f"{address} is there already; choose another address, or add --overwrite")
    if list_objects(address):
        raise UserError(f"{address} is a folder, not an object; choose another address")
    size, sha256 = path.stat().st_size, hash_file(path)
    place = _beside(address) if size <= MOST_MOVED else address
    with reporter.task(f"sending to {address}", total=size, unit="bytes") as advance:
        try:
            upload(path, place, sha256, TransferProgress(advance))
            found = stat_object(place)
            if found is None or found.bytes != size:
                raise InputError(f"{address} did not arrive whole; run the same command again")
            if place != address:
                move_object(place, address)
        except BaseException:
            if place != address:
                with suppress(InputError):  # what went wrong first is told
                    remove_object(place)
            raise
    return size


def _beside(address: Address) -> Address:
    """Where a single object is sent first: one that is cut off must not take the place of a whole one."""
    above, slash, name = address.key.rpartition("/")
    return Address(address.scheme, address.bucket, f"{above}{slash}.{name[:200]}.{secrets.token_hex(4)}.part")


# From a folder to an address: what the storage lacks is uploaded, and then one object makes it the artifact there.

_HEADS = {MANIFEST, INDEX_STATE}
_BEGUN = "begun"


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a push did."""

    files: int
    bytes: int
    sent: int
    sent_bytes: int
    removed: int

    def __str__(self) -> str:
        if not self.sent and not self.removed:
            return f"{self.files} files, {self.bytes:,} bytes: all there already"
        return f"{self.files} files, {self.bytes:,} bytes; {self.sent} sent, {self.sent_bytes:,} bytes"


def push(
    folder: str | Path,
    address: str | Path | Address,
    *,
    overwrite: bool = False,
    base: str | None = None,
    cache: Path | None = None,
    reporter: Reporter = QUIET,
) -> Pushed:
    """Upload a folder or a file. What is there and differs is replaced with `overwrite`, or where it is still `base`."""
    source = Path(folder)
    place = address if isinstance(address, Address) else Address.parse(address)
    if place.is_pattern:
        raise UserError(f"{place} is a pattern; name one folder to write to")
    if source.is_file():
        size = push_file(source, place, overwrite=overwrite or base is not None, reporter=reporter)
        return Pushed(1, size, 1, size, 0)
    if not source.is_dir():
        raise UserError(f"{source} does not exist; name a folder or a file to copy")
    with Slot(place, cache).locked():
        return _Push(source, place, Slot(place, cache), reporter).run(overwrite=overwrite, base=base)


class _Push:
    def __init__(self, folder: Path, address: Address, slot: Slot, reporter: Reporter) -> None:
        self.folder, self.address, self.reporter = folder, address, reporter
        self.journal = _Journal(slot.folder / "pushed.txt")

    def run(self, *, overwrite: bool, base: str | None) -> Pushed:
        local = local_files(self.folder)
        single = stat_object(self.address)
        if single is not None and single.bytes:
            raise UserError(f"{self.address} is an object, not a folder; choose another address")
        there = list_objects(self.address)
        current = read_listing(self.address) if OBJECTS in there else None
        wanted = ObjectListing(self.address, local)
        if current is not None and current.hash == wanted.hash:
            return Pushed(len(local), wanted.bytes, 0, 0, 0)
        foreign = set(there) - self.journal.begun
        if foreign and not overwrite:
            self._refuse_unless(base, current, foreign)
        # a folder that another program uploaded is an artifact too, which goes when it is replaced
        old = current or (find_listing(self.address) if foreign & _HEADS else None)
        disused = _objects_of(old) if old else set()
        in_use = {file.at for file in current.files.values()} if current else set()
        placed = self._place(wanted, current, foreign | in_use)
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
        return Pushed(len(local), placed.bytes, len(missing), sum(local[name].bytes for name in missing), removed)

    def _refuse_unless(self, base: str | None, current: ObjectListing | None, foreign: set[str]) -> None:
        found = current.hash if current else find_listing(self.address).hash if foreign & _HEADS else None
        if base is not None and base == found:
            return
        if base is not None:
            raise UserError(
                f"{self.address} was changed by somebody else meanwhile; fetch it again, or add --overwrite"
            )
        what = "holds another artifact" if found else "holds objects that are no artifact of citeweave"
        raise UserError(f"{self.address} {what}; choose another address, or add --overwrite")

    def _place(self, wanted: ObjectListing, current: ObjectListing | None, taken: set[str]) -> ObjectListing:
        """Where each file goes: to bytes that are there, else to its own name, else below `.generations`."""
        known = {(file.bytes, file.sha256): file.at for file in current.files.values()} if current else {}
        files = {}
        for name, file in wanted.files.items():
            free = name if name not in taken and name != OBJECTS else f"{GENERATIONS}/{wanted.hash[:12]}/{name}"
            files[name] = File(file.bytes, file.sha256, known.get((file.bytes, file.sha256), free))
        return ObjectListing(self.address, files, is_ours=True)

    def _upload(self, placed: ObjectListing, missing: list[str]) -> None:
        self.journal.begin({placed.files[name].at for name in missing})
        size = sum(placed.files[name].bytes for name in missing)
        with self.reporter.task(f"sending to {self.address}", total=size, unit="bytes") as advance:
            counter = TransferProgress(advance)

            def send(name: str) -> None:
                upload(self.folder / name, placed.object_of(name), placed.files[name].sha256, counter)
                self.journal.arrive(placed.files[name])

            in_parallel([partial(send, name) for name in missing], counter)

    def _commit(self, placed: ObjectListing, current: ObjectListing | None) -> None:
        there = list_objects(self.address)
        for name, file in placed.files.items():
            if file.at not in there or there[file.at].bytes != file.bytes:
                raise InputError(f"{placed.object_of(name)} did not arrive whole; run the same command again")
        now = read_listing(self.address)
        if (now and now.hash) != (current and current.hash):
            raise UserError(
                f"{self.address} was changed by somebody else meanwhile; fetch it again, or add --overwrite"
            )
        write_small(self.address / OBJECTS, encode(placed))
        if read_small(self.address / OBJECTS) != encode(placed):
            raise InputError(f"{self.address / OBJECTS} did not arrive whole; run the same command again")

    def _remove(self, disused: set[str]) -> int:
        for at in sorted(disused):
            remove_object(self.address / at)
        return len(disused)


def _objects_of(artifact: ObjectListing) -> set[str]:
    """The objects that are an artifact's own: files with a hash, as a list or a manifest gives it, and an index's state."""
    is_index = INDEX_STATE in artifact.files and _is_index_state(artifact.object_of(INDEX_STATE))
    return {
        file.at
        for name, file in artifact.files.items()
        if (file.sha256 or (is_index and is_of_index(tuple(name.split("/"))))) and file.at != OBJECTS
    }


def _is_index_state(address: Address) -> bool:
    try:
        return bool(json.loads(read_small(address) or b"")["format"] == "citeweave-index")
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


class _Journal:
    """Which objects a push has begun and which have arrived, for the next one, should it break off: a line each."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, Lock()
        self.begun: set[str] = set()
        self.arrived: set[tuple[str, str]] = set()
        """Names of objects and hashes of what lies there."""
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        for line in lines:
            sha256, _, at = line.partition(" ")
            self.begun.add(at)
            self.arrived |= {(at, sha256)} if sha256 != _BEGUN else set()

    def begin(self, objects: set[str]) -> None:
        self.begun |= objects
        self._add([f"{_BEGUN} {at}\n" for at in sorted(objects)])

    def arrive(self, file: File) -> None:
        self._add([f"{file.sha256} {file.at}\n"])

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)

    def _add(self, lines: list[str]) -> None:
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.writelines(lines)


def local_files(folder: Path) -> dict[str, File]:
    """The files of a folder, hidden and unfinished ones left out, with their hashes: of manifests, else made now."""
    names = sorted(_names(folder))
    check_names(names, folder)
    known: dict[str, tuple[int, str]] = {}
    for name in names:
        if name.rpartition("/")[2] == MANIFEST:
            known |= hashes_of_manifest(name, (folder / name).read_bytes())
    files = {}
    for name in names:
        size = (folder / name).stat().st_size
        if name in known and known[name][0] != size:
            raise UserError(f"{folder / name} has another size than its manifest says; make {folder} again")
        files[name] = File(size, known[name][1] if name in known else hash_file(folder / name), name)
    if gone := sorted(known.keys() - files.keys()):
        raise UserError(f"{folder / gone[0]} is missing, its manifest names it; make {folder} again")
    if not files:
        raise UserError(f"{folder} is empty; there is nothing to copy")
    return files


def _names(folder: Path) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in [*folders, *names]:
            if Path(parent, name).is_symlink():
                raise UserError(f"{Path(parent, name)} is a link; copy what it leads to, for a storage has no links")
        for name in names:
            if not name.startswith("."):
                yield Path(parent, name).relative_to(folder).as_posix()
