"""One file to one object: its bytes are checked while they travel, and a whole object is never replaced by half of one.

    push_file(Path("page.html"), Address.parse("s3://lab/page.html"), overwrite=True, reporter=reporter)

Storages make an object of whatever has come when a stream ends, also by an error. So a single object is sent under another
name beside its own and renamed there when it is whole; S3 renames up to 5 GiB, larger ones go straight. Objects of an
artefact need no such thing: its list alone makes them count.
"""

from __future__ import annotations

import hashlib
import secrets
from contextlib import suppress
from pathlib import Path

from citeweave.cloud.address import Address
from citeweave.cloud.storage import (
    CHUNK,
    MOST_MOVED,
    Counter,
    list_objects,
    move_object,
    open_output,
    remove_object,
    stat_object,
    told,
)
from citeweave.errors import InputError, UserError
from citeweave.files import hash_file, open_input
from citeweave.progress import Reporter


def upload(path: Path, address: Address, sha256: str, counter: Counter) -> None:
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
            upload(path, place, sha256, Counter(advance))
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
