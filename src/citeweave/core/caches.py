"""Parts of the cache that are made on this machine, and made again when they are needed: list and clear them.

    <cache>/queries/570b9f9dd5be-e18f0feb/     artifacts, told by their manifests: copies of models, converted models, vectors
    <cache>/runtimes/e612a8580d1c.json         small files, told by their names

    >>> [part.entries for part in list_parts(Path("nowhere"))]
    [0, 0, 0, 0]

What else lies there is neither counted nor removed. Artifacts fetched from object storage are a part of their own, `cloud/`,
which `citeweave.remote.fetch` looks after.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from citeweave.core.artifact import kind_of
from citeweave.core.files import cache_folder
from citeweave.core.publish import remove_artifact

PARTS = {
    "queries": "models that encode questions",
    "openvino": "models converted for OpenVINO",
    "vectors": "vectors of evaluated papers",
    "runtimes": "fastest runtimes of models",
}
"""Name of a part's folder -> what it holds."""

_REVISION = re.compile(r"[0-9a-f]{8,64}\.json")


class CachePart(NamedTuple):
    """One part of the cache: what it holds, and how much."""

    name: str
    content: str
    entries: int
    bytes: int


def list_parts(cache: Path | None = None) -> list[CachePart]:
    """List the parts of the cache with the number and size of their entries."""
    entries = {name: list(_entries(cache_folder(cache) / name)) for name in PARTS}
    return [CachePart(name, PARTS[name], len(own), sum(map(_bytes, own))) for name, own in entries.items()]


def clear_parts(cache: Path | None = None) -> None:
    """Remove every entry of every part; a file that is in use and cannot be removed stays."""
    for name in PARTS:
        for entry in _entries(cache_folder(cache) / name):
            if entry.is_dir():
                remove_artifact(entry)
            else:
                with suppress(OSError):
                    entry.unlink(missing_ok=True)


def _entries(folder: Path) -> Iterator[Path]:
    """Yield what citeweave wrote into the folder of a part."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if kind_of(path) if path.is_dir() else _REVISION.fullmatch(path.name):
            yield path


def _bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in (path.rglob("*") if path.is_dir() else (path,)) if file.is_file())
