"""`copy`: a folder or a file from an address to here, from here to an address, or from one address to another.

What a command writes for an address: it works in a folder of the cache, and what it made is sent when it is done.

    with Outgoing(Address.parse("s3://lab/vectors")).working(reporter) as out:
        embed(..., out.folder)          an artifact that is there already lies in it: the command sees it as it would here
        out.send(overwrite=False)

A command that was interrupted finds its beginnings again, and one whose sending broke off sends the rest.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from citeweave.core.artifact import MANIFEST, working
from citeweave.core.errors import UserError
from citeweave.core.files import link_or_copy, move, output_place, write_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.publish import check_replaceable, discard_work, publish
from citeweave.remote.fetch import WORK_LOCK, Slot, Version, fetch, fetch_version, fill, remove
from citeweave.remote.contents import OBJECTS, ObjectListing, find_listing, hashes_of_manifest
from citeweave.remote.object_storage import Address, is_address, list_objects
from citeweave.remote.push import Pushed, local_files, push


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied where."""

    target: str
    files: int
    bytes: int
    sent: int
    """Files that traveled; the others were there."""


def copy(
    source: str | Path,
    target: str | Path,
    *,
    overwrite: bool = False,
    cache: Path | None = None,
    reporter: Reporter = QUIET,
) -> Copied:
    """Copy an artifact, any folder, or a file. One of the two at least is an address."""
    if is_address(target):
        from_here = fetch(source, cache=cache, reporter=reporter) if is_address(source) else Path(source)
        destination = Address.parse(target)
        done = push(from_here, destination, overwrite=overwrite, cache=cache, reporter=reporter)
        return Copied(str(destination), done.files, done.bytes, done.sent)
    if not is_address(source):
        raise UserError(f"{source} and {target} are both here; give an address such as s3://bucket/corpus, or use cp")
    address, folder = Address.parse(source), Path(target)
    listing = find_listing(address)
    if listing.is_single and folder.is_dir():
        folder = folder / address.name
    _refuse(folder, listing, overwrite=overwrite)
    folder = output_place(folder)
    with working(folder) as work:
        made = Version(work / "kept" / listing.hash[:16], folder.name)
        sent = _receive(made, listing, Slot(address, cache).all(), reporter)
        _refuse(folder, listing, overwrite=overwrite)  # what came there meanwhile is not ours to replace
        if listing.is_single:
            move(made.content, folder)
            discard_work(folder)
        else:
            shutil.rmtree(work / "new")  # empty, or what an exchange that was killed took away
            move(made.content, work / "new")
            publish(folder)
    return Copied(str(folder), len(listing.files), listing.bytes, sent)


def _receive(made: Version, listing: ObjectListing, known: list[Version], reporter: Reporter) -> int:
    try:
        made.record(listing)
    except OSError as error:
        raise UserError(f"{made.folder} cannot be written ({error.strerror}); name another place") from None
    # never linked: a copy may be changed, the cache must not
    return fill(made, listing, known, reporter, take=shutil.copyfile)


def _refuse(folder: Path, listing: ObjectListing, *, overwrite: bool) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not overwrite:
        raise UserError(f"{folder} exists; choose another place, or add --overwrite")
    ours = any((folder / name).is_file() for name in (MANIFEST, "state.json"))
    if folder.is_file() != listing.is_single or (folder.is_dir() and not ours):
        raise UserError(f"{folder} exists and is not an artifact of citeweave; choose another place")
    if folder.is_dir():
        check_replaceable(folder)


# What a command writes for an address: it works in a folder of the cache, and what it made is sent when it is done.

_BASE = "base.json"


class PendingUpload:
    """An address that a command writes to."""

    def __init__(self, address: Address, cache: Path | None = None) -> None:
        self.address, self._cache, self._slot = address, cache, Slot(address, cache)
        self.folder = self._slot.work
        self._base: str | None = None
        self._reporter = QUIET

    @contextmanager
    def working(self, reporter: Reporter = QUIET, *, must_exist: bool = False) -> Iterator[PendingUpload]:
        """Prepare the folder; another process that writes for the same address is refused."""
        self._reporter = reporter
        if self.address.is_pattern:
            raise UserError(f"{self.address} is a pattern; name one folder to write to")
        with self._slot.locked(WORK_LOCK, wait=False):
            self._base = self._hash_there()
            if must_exist and self._base is None:
                raise UserError(f"{self.address} is not there; check the address")
            if self.folder.exists() and self._base_of_work() != self._base:
                remove(self.folder)  # made from what is not there any more; a partial folder beside it stays
            if self._base is not None and not self.folder.exists():
                _lay_out(fetch_version(self.address, cache=self._cache, reporter=reporter), self.folder)
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._slot.folder / _BASE, {"base": self._base})
            yield self

    def send(self, *, overwrite: bool = False) -> Pushed | None:
        """Send what the command made; None where it made nothing."""
        if not self.folder.exists():
            return None
        base = self._base if self.folder.is_dir() else ""
        done = push(
            self.folder, self.address, overwrite=overwrite, base=base, cache=self._cache, reporter=self._reporter
        )
        with self._slot.locked():
            if self.folder.is_dir():
                self._slot.adopt(self.folder, ObjectListing(self.address, local_files(self.folder)))
            shutil.rmtree(self.folder.parent)
        return done

    def _hash_there(self) -> str | None:
        """What lies at the address now; None where no folder does."""
        there = list_objects(self.address)
        if not ({OBJECTS, MANIFEST, "state.json"} & there.keys()):
            return None
        return find_listing(self.address).hash

    def _base_of_work(self) -> str | None:
        try:
            base = json.loads((self._slot.folder / _BASE).read_bytes())["base"]
        except (OSError, ValueError, KeyError, TypeError):
            return ""
        return None if base is None else str(base)


def _lay_out(version: Version, folder: Path) -> None:
    """A folder that may be changed, of a version that may not: only files that a manifest names are shared."""
    temporary = folder.with_name(folder.name + ".laid")
    shutil.rmtree(temporary, ignore_errors=True)
    paths = [path for path in version.content.rglob("*") if path.is_file()]
    fixed: set[str] = set()
    for path in paths:
        if path.name == MANIFEST:
            fixed |= hashes_of_manifest(path.relative_to(version.content).as_posix(), path.read_bytes()).keys()
    for path in paths:
        name = path.relative_to(version.content).as_posix()
        target = temporary / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (link_or_copy if name in fixed else shutil.copyfile)(path, target)
    move(temporary, folder)
