"""What a command writes for an address: it works in a folder of the cache, and what it made is sent when it is done.

    with Outgoing(Address.parse("s3://lab/vectors")).working(reporter) as out:
        embed(..., out.folder)          an artefact that is there already lies in it: the command sees it as it would here
        out.send(overwrite=False)

A command that was interrupted finds its beginnings again, and one whose sending broke off sends the rest.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from citeweave.artefacts.manifest import MANIFEST
from citeweave.cloud.address import Address
from citeweave.cloud.fetching import fetch_version
from citeweave.cloud.listing import OBJECTS, Listing, find_listing, hashes_of_manifest
from citeweave.cloud.pushing import Pushed, local_files, push
from citeweave.cloud.slots import WORK_LOCK, Slot, Version, remove
from citeweave.cloud.storage import list_objects
from citeweave.errors import UserError
from citeweave.files import link_or_copy, move, write_json
from citeweave.progress import QUIET, Reporter

_BASE = "base.json"


class Outgoing:
    """An address that a command writes to."""

    def __init__(self, address: Address, cache: Path | None = None) -> None:
        self.address, self._cache, self._slot = address, cache, Slot(address, cache)
        self.folder = self._slot.work
        self._base: str | None = None
        self._reporter = QUIET

    @contextmanager
    def working(self, reporter: Reporter = QUIET, *, must_exist: bool = False) -> Iterator[Outgoing]:
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
                self._slot.adopt(self.folder, Listing(self.address, local_files(self.folder)))
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
