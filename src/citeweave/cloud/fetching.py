"""From an address to a folder: what is missing is downloaded, several files at a time, and appears whole or not at all.

    fetch("s3://lab/index")       ~/.cache/citeweave/cloud/index-.../versions/.../index

Files that an older version in the cache has with the same hash are linked, so of an index that has grown only the new
segments travel. Every file is checked against its hash while it arrives. What broke off goes on, file by file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

from citeweave.cloud.address import Address
from citeweave.cloud.listing import File, Listing, find_listing
from citeweave.cloud.slots import Slot, Version, touch
from citeweave.cloud.storage import CHUNK, Counter, VanishedError, reading, stat_object, told
from citeweave.errors import InputError, UserError
from citeweave.files import link_or_copy, move
from citeweave.progress import QUIET, Reporter

AT_ONCE = 6
"""Files that travel at a time: latency is hidden, and memory stays below AT_ONCE x 3 chunks."""

_Take = Callable[[Path, Path], object]
_CHANGES = 3
"""How often an artefact may be replaced while it is fetched."""


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
    made: Version, listing: Listing, sources: Sequence[Version], reporter: Reporter, *, take: _Take = link_or_copy
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
        counter = Counter(advance)
        in_parallel(
            [
                partial(_download, listing.object_of(name), listing.files[name], made.part(name), path, counter)
                for name, path in missing.items()
            ],
            counter,
        )
    shutil.rmtree(made.part("").parent)
    return len(missing)


def in_parallel(jobs: Sequence[Callable[[], None]], counter: Counter) -> None:
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
    made: Version, missing: dict[str, Path], listing: Listing, sources: Sequence[Version], take: _Take
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


def _download(address: Address, file: File, temporary: Path, path: Path, counter: Counter) -> None:
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
