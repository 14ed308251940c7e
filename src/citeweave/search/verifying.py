"""What a folder that citeweave made is, and whether it is still what was written.

    describe_folder("index/", verify=True)    {"kind": "index", "version": 2, "hash": "...", "files": 61, "bytes": ...}

With `verify` every byte of every file is read: any artefact with a manifest, or an index with its segments, its lists of
deleted papers and its aspect heads. Does not repair.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from citeweave.artefacts.integrity import check_files
from citeweave.artefacts.manifest import Manifest, any_manifest, read_manifest
from citeweave.errors import ArtefactError
from citeweave.search import segment
from citeweave.search.index import Index
from citeweave.search.state import SEGMENTS, VERSION, damaged_index, is_index, read_state


def describe_folder(folder: str | Path, *, verify: bool = False) -> dict[str, Any]:
    """Kind, format version, hash, and how many files and bytes there are; an error where a file has changed."""
    folder = Path(folder)
    if is_index(folder):
        return _describe_index(folder, verify=verify)
    manifest = any_manifest(folder)
    check_files(folder, manifest, content=verify)
    told = {"kind": manifest.kind, "version": manifest.version, "hash": manifest.hash}
    return {**told, **_sizes([manifest]), **_verified(verify), "facts": manifest.facts}


def _describe_index(folder: Path, *, verify: bool) -> dict[str, Any]:
    state = read_state(folder)
    try:
        manifests = [_manifest(folder / SEGMENTS / entry.name, verify=verify) for entry in state.segments]
    except ArtefactError as error:
        raise damaged_index(folder, error) from None
    index = Index.open(folder)  # compares segments, lists of deleted papers and heads with the state
    if verify:
        _ = index.heads
    told = {"kind": "index", "version": VERSION, "state": state.number, "papers": len(index)}
    return {**told, **_sizes(manifests), **_verified(verify), "facts": state.facts}


def _manifest(place: Path, *, verify: bool) -> Manifest:
    manifest = read_manifest(place, segment.KIND, segment.VERSION)
    check_files(place, manifest, content=verify)
    return manifest


def _sizes(manifests: list[Manifest]) -> dict[str, int]:
    sizes = [described.get("bytes", 0) for manifest in manifests for described in manifest.files.values()]
    return {"files": len(sizes), "bytes": sum(sizes)}


def _verified(verify: bool) -> dict[str, str]:
    return {"verified": "every file is as it was written"} if verify else {}
