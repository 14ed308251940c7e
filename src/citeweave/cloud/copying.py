"""`copy`: a folder or a file from an address to here, from here to an address, or from one address to another."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from citeweave.artefacts.manifest import MANIFEST
from citeweave.artefacts.ownership import check_replaceable
from citeweave.artefacts.publishing import discard_work, publish
from citeweave.artefacts.writing import working
from citeweave.cloud.address import Address, is_address
from citeweave.cloud.fetching import fetch, fill
from citeweave.cloud.listing import Listing, find_listing
from citeweave.cloud.pushing import push
from citeweave.cloud.slots import Slot, Version
from citeweave.errors import UserError
from citeweave.files import move
from citeweave.links import output_place
from citeweave.progress import QUIET, Reporter


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied where."""

    target: str
    files: int
    bytes: int
    sent: int
    """Files that travelled; the others were there."""


def copy(
    source: str | Path,
    target: str | Path,
    *,
    overwrite: bool = False,
    cache: Path | None = None,
    reporter: Reporter = QUIET,
) -> Copied:
    """Copy an artefact, any folder, or a file. One of the two at least is an address."""
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


def _receive(made: Version, listing: Listing, known: list[Version], reporter: Reporter) -> int:
    try:
        made.record(listing)
    except OSError as error:
        raise UserError(f"{made.folder} cannot be written ({error.strerror}); name another place") from None
    # never linked: a copy may be changed, the cache must not
    return fill(made, listing, known, reporter, take=shutil.copyfile)


def _refuse(folder: Path, listing: Listing, *, overwrite: bool) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not overwrite:
        raise UserError(f"{folder} exists; choose another place, or add --overwrite")
    ours = any((folder / name).is_file() for name in (MANIFEST, "state.json"))
    if folder.is_file() != listing.is_single or (folder.is_dir() and not ours):
        raise UserError(f"{folder} exists and is not an artefact of citeweave; choose another place")
    if folder.is_dir():
        check_replaceable(folder)
