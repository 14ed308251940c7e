"""Which objects make up an artifact: one small object, `citeweave-objects.json`, put last and replaced in one step.

    {"format": "citeweave-objects", "version": 1,
     "files": {"manifest.json": {"bytes": 812, "sha256": "...", "at": "manifest.json"},
               "papers/year.npy": {"bytes": 128, "sha256": "...", "at": ".generations/1f2e3d4c5b6a/papers/year.npy"}}}

A file lies at its own name; where another version of it lies there, the new one goes below `.generations`, so that the
old artifact stays whole until the listing names the new one. A folder that other programs uploaded has no such object:
its files are those that are there, and their hashes those of the manifests among them.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from citeweave.core.artifact import MANIFEST, another_version
from citeweave.core.errors import ArtifactError, InputError
from citeweave.core.files import hash_json
from citeweave.remote.object_storage import (
    Address,
    Stored,
    check_name,
    check_names,
    list_objects,
    read_small,
    stat_object,
)

OBJECTS = "citeweave-objects.json"
GENERATIONS = ".generations"
FORMAT, VERSION = "citeweave-objects", 1
_HEX = set("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class File:
    """A file of an artifact and where its bytes are."""

    bytes: int
    sha256: str
    """Empty where nobody said: a file that another program uploaded."""

    at: str
    """Name of the object, relative to the base of its listing."""

    modified: int = 0
    """Told apart by it where there is no hash."""

    @property
    def content(self) -> list[Any]:
        return [self.bytes, self.sha256 or self.modified]


@dataclass(frozen=True, slots=True)
class ObjectListing:
    """The files of an artifact, of a folder or of a pattern; of a single object there is one."""

    base: Address
    files: dict[str, File]
    is_single: bool = False
    is_ours: bool = False
    """Written by `push`: every file has a hash."""

    @property
    def hash(self) -> str:
        """Of names and contents, wherever the bytes lie: same folder, same hash."""
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


def encode(listing: ObjectListing) -> bytes:
    return json.dumps(listing.as_json(), indent=1, ensure_ascii=False).encode()


def decode(base: Address, data: bytes, place: object) -> ObjectListing:
    """What `encode` wrote; anything else is refused, for its names become files."""
    try:
        told = json.loads(data)
        if told["format"] != FORMAT:
            raise ArtifactError(
                f"{place} is of format {str(told['format'])[:40]!r}, not {FORMAT!r}; name another place"
            )
        if told["version"] != VERSION:
            again = "copy the artifact there again with `citeweave copy`"
            raise ArtifactError(f"{place} is a list of objects {another_version(told['version'], VERSION, again)}")
        files = {
            str(name): File(file["bytes"], file["sha256"], file["at"], file.get("modified", 0))
            for name, file in told["files"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ArtifactError(f"{place} is damaged: it is no list of objects; copy the artifact there again") from None
    if not all(_is_sound(file) for file in files.values()):
        raise ArtifactError(f"{place} is damaged: it does not describe files; copy the artifact there again")
    check_names(list(files), place)
    check_names(sorted({file.at for file in files.values()}), place)
    return ObjectListing(base, files, is_ours=all(file.sha256 for file in files.values()))


def _is_sound(file: File) -> bool:
    return (
        type(file.bytes) is int
        and file.bytes >= 0
        and isinstance(file.sha256, str)
        and (not file.sha256 or (len(file.sha256) == 64 and set(file.sha256) <= _HEX))
        and isinstance(file.at, str)
        and type(file.modified) is int
    )


def read_listing(address: Address) -> ObjectListing | None:
    """The list of objects that `push` put at an address; None where it put none."""
    place = address / OBJECTS
    data = read_small(place)
    if data is None:
        return None
    listing = decode(address, data, place)
    if hidden := next(filter(_is_hidden, listing.files), None):
        # `push` sends none, and what is called as our work folders are would be taken for one
        raise InputError(f"{place} names the hidden file {hidden[:200]!r}, which no artifact has; copy it there again")
    return listing


def find_listing(address: Address) -> ObjectListing:
    """What an address, which may be a pattern, stands for; refused where nothing is there."""
    if address.is_pattern:
        return _matching(address)
    if listing := read_listing(address):
        return listing
    stored = {name: file for name, file in list_objects(address).items() if not _is_hidden(name)}
    single = stat_object(address)
    if stored:
        check_names(list(stored), address)
        if single is not None and single.bytes:
            raise InputError(f"{address} is an object and a folder; remove or rename one of them")
        return ObjectListing(address, _with_hashes(address, stored))
    if single is None:
        raise InputError(f"{address} is not there: no object and no folder has this name; check the address")
    base = Address(address.scheme, address.bucket, address.key.rpartition("/")[0])
    return ObjectListing(base, {address.name: File(single.bytes, "", address.name, single.modified)}, is_single=True)


def _matching(address: Address) -> ObjectListing:
    below, pattern = address.before_pattern()
    base = Address(address.scheme, address.bucket, below)
    wanted = pattern.split("/")
    found = {
        name: File(file.bytes, "", name, file.modified)
        for name, file in list_objects(base).items()
        if _fits(name.split("/"), wanted) and not _is_hidden(name)
    }
    if not found:
        raise InputError(f"{address} matches no object; check the pattern")
    check_names(list(found), address)
    return ObjectListing(base, found)


def _fits(parts: list[str], patterns: list[str]) -> bool:
    """
    >>> _fits(["2026", "a.gz"], ["*", "*.gz"]), _fits(["2026", "a.gz"], ["*.gz"])
    (True, False)
    """
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def _is_hidden(name: str) -> bool:
    """Files that begin with a dot are nobody's data; names that lead elsewhere are not hidden but refused."""
    return any(part.startswith(".") and part not in (".", "..") for part in name.split("/"))


def _with_hashes(address: Address, stored: dict[str, Stored]) -> dict[str, File]:
    """Files of a folder without a list of objects; sizes that its manifests contradict are refused."""
    hashes: dict[str, str] = {}
    for name in stored:
        if name.rpartition("/")[2] == MANIFEST:
            data = read_small(address / name) or b""
            named = hashes_of_manifest(name, data)
            if named:
                hashes[name] = hashlib.sha256(data).hexdigest()
            for inner, (size, sha256) in named.items():
                check_name(inner, address / name)
                if inner in stored and stored[inner].bytes != size:
                    raise ArtifactError(
                        f"{address / inner} has {stored[inner].bytes:,} bytes, its manifest says {size:,}: it is cut off "
                        "or of another version; copy the artifact there again"
                    )
                if inner not in stored:
                    raise ArtifactError(
                        f"{address / inner} is not there, but its manifest names it; copy it there again"
                    )
                hashes[inner] = sha256
    return {name: File(file.bytes, hashes.get(name, ""), name, file.modified) for name, file in stored.items()}


def hashes_of_manifest(name: str, data: bytes) -> dict[str, tuple[int, str]]:
    """Size and hash of the files that a manifest at `name` knows, by their names; empty for another program's."""
    above = name.removesuffix(MANIFEST)
    try:
        told = json.loads(data)
        if not {"kind", "version", "recipe"} <= told.keys():
            return {}
        return {
            f"{above}{inner}": (int(file["bytes"]), str(file["sha256"]))
            for inner, file in told["files"].items()
            if "sha256" in file
        }
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
