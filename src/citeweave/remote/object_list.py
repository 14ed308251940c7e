"""The list of objects that make up an artifact on object storage: names, sizes and hashes, written last.

    citeweave-objects.json = {"format": "citeweave-objects", "version": 1,
     "files": {"manifest.json": {"bytes": 812, "sha256": "...", "at": "manifest.json"},
               "papers/year.npy": {"bytes": 128, "sha256": "...", "at": ".generations/1f2e3d4c5b6a/papers/year.npy"}}}

A file lies at its own name; where another version of it already lies there, the new one goes below `.generations`, so that
the old artifact stays complete until the listing names the new one. A folder that other programs uploaded has no listing:
its files are the objects that exist, with the hashes of the manifests among them.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from citeweave.core.artifact import MANIFEST, explain_version_mismatch
from citeweave.core.errors import ArtifactError, InputError
from citeweave.core.files import hash_json
from citeweave.remote.object_storage import (
    Address,
    ObjectInfo,
    check_object_name,
    check_object_names,
    list_objects,
    read_small_object,
    stat_object,
)

LISTING_NAME = "citeweave-objects.json"
GENERATIONS = ".generations"
FORMAT, VERSION = "citeweave-objects", 1
_HEX = set("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file in an object list, and the object that holds its bytes."""

    bytes: int
    sha256: str
    """Empty where unknown: a file that another program uploaded."""

    at: str
    """Name of the object that holds it, relative to the base of the listing."""

    modified: int = 0
    """Identifies the content where there is no hash."""

    @property
    def content(self) -> list[Any]:
        """Return what identifies the bytes of the file: size and hash, or modification time."""
        return [self.bytes, self.sha256 or self.modified]


@dataclass(frozen=True, slots=True)
class ObjectListing:
    """List of the objects of an artifact, a folder or a pattern on object storage; a single object is a list of one."""

    base: Address
    files: dict[str, ListedFile]
    is_single: bool = False
    is_ours: bool = False
    """Written by `push`: every file has a hash."""

    @property
    def hash(self) -> str:
        """Return a hash of names and contents, wherever the bytes lie: same folder, same hash."""
        return hash_json({name: file.content for name, file in self.files.items()})

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())

    def object_of(self, name: str) -> Address:
        at = self.files[name].at
        return self.base / at if self.base.key else Address(self.base.scheme, self.base.bucket, at)

    def as_json(self) -> dict[str, Any]:
        files = {
            name: {"bytes": file.bytes, "sha256": file.sha256, "at": file.at}
            | ({"modified": file.modified} if file.modified else {})
            for name, file in sorted(self.files.items())
        }
        return {"format": FORMAT, "version": VERSION, "files": files}


def encode_listing(listing: ObjectListing) -> bytes:
    """Return a listing as the bytes of its JSON object."""
    return json.dumps(listing.as_json(), indent=1, ensure_ascii=False).encode()


def decode_listing(base: Address, data: bytes, place: object) -> ObjectListing:
    """Parse an object list that `encode_listing` wrote; anything else is refused, since its names become files."""
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
            str(name): ListedFile(file["bytes"], file["sha256"], file["at"], file.get("modified", 0))
            for name, file in payload["files"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ArtifactError(f"{place} is damaged: it is not a list of objects; copy the artifact there again") from None
    if not all(_is_valid(file) for file in files.values()):
        raise ArtifactError(f"{place} is damaged: it does not describe files; copy the artifact there again")
    check_object_names(list(files), place)
    check_object_names(sorted({file.at for file in files.values()}), place)
    return ObjectListing(base, files, is_ours=all(file.sha256 for file in files.values()))


def _is_valid(file: ListedFile) -> bool:
    """Return whether the values of a listed file have the right types."""
    return (
        type(file.bytes) is int
        and file.bytes >= 0
        and isinstance(file.sha256, str)
        and (not file.sha256 or (len(file.sha256) == 64 and set(file.sha256) <= _HEX))
        and isinstance(file.at, str)
        and type(file.modified) is int
    )


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
        check_object_names(list(stored), address)
        if single is not None and single.bytes:
            raise InputError(f"{address} is an object and a folder; remove or rename one of them")
        return ObjectListing(address, _with_hashes(address, stored))
    if single is None:
        raise InputError(f"{address} does not exist: no object and no folder has this name; check the address")
    base = Address(address.scheme, address.bucket, address.key.rpartition("/")[0])
    return ObjectListing(
        base, {address.name: ListedFile(single.bytes, "", address.name, single.modified)}, is_single=True
    )


def _match_pattern(address: Address) -> ObjectListing:
    """Return the listing of all objects that match the pattern of an address."""
    below, pattern = address.before_pattern()
    base = Address(address.scheme, address.bucket, below)
    patterns = pattern.split("/")
    files = {
        name: ListedFile(file.bytes, "", name, file.modified)
        for name, file in list_objects(base).items()
        if _matches_parts(name.split("/"), patterns) and not _is_hidden(name)
    }
    if not files:
        raise InputError(f"{address} matches no object; check the pattern")
    check_object_names(list(files), address)
    return ObjectListing(base, files)


def _matches_parts(parts: list[str], patterns: list[str]) -> bool:
    """Return whether the parts of an object name match the parts of a pattern.

    >>> _matches_parts(["2026", "a.gz"], ["*", "*.gz"]), _matches_parts(["2026", "a.gz"], ["*.gz"])
    (True, False)
    """
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def _is_hidden(name: str) -> bool:
    """Return whether a part of an object name begins with a dot; "." and ".." are not hidden but refused."""
    return any(part.startswith(".") and part not in (".", "..") for part in name.split("/"))


def _with_hashes(address: Address, stored: dict[str, ObjectInfo]) -> dict[str, ListedFile]:
    """Return the files of a folder without a listing, hashes from its manifests; contradicting sizes are refused."""
    hashes: dict[str, str] = {}
    for name in stored:
        if name.rpartition("/")[2] == MANIFEST:
            data = read_small_object(address / name) or b""
            listed = manifest_hashes(name, data)
            if listed:
                hashes[name] = hashlib.sha256(data).hexdigest()
            for inner, (size, sha256) in listed.items():
                check_object_name(inner, address / name)
                if inner in stored and stored[inner].bytes != size:
                    raise ArtifactError(
                        f"{address / inner} has {stored[inner].bytes:,} bytes, its manifest says {size:,}: it is truncated "
                        "or of another version; copy the artifact there again"
                    )
                if inner not in stored:
                    raise ArtifactError(
                        f"{address / inner} does not exist, but its manifest names it; copy it there again"
                    )
                hashes[inner] = sha256
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
