"""Files in one file, compressed by xz with a window that is larger than what they repeat of each other.

pack(path, {"about.json": b"{}"})
unpack(path)["about.json"]
"""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Mapping
from pathlib import Path

from citeweave.core.errors import ArtifactError

WINDOW = 2**27


def pack(path: Path, parts: Mapping[str, bytes]) -> None:
    """Files in one, compressed; what they share is stored once."""
    size = sum(map(len, parts.values()))
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": min(WINDOW, max(2**16, size))}]
    temporary = path.with_name(path.name + ".new")
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(temporary, "wb", filters=filters) as file, tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in parts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    temporary.replace(path)


def unpack(path: Path) -> dict[str, bytes]:
    """What `pack` put in."""
    try:
        with lzma.open(path, "rb") as file, tarfile.open(fileobj=file, mode="r") as archive:
            return {entry.name: archive.extractfile(entry).read() for entry in archive if entry.isfile()}  # type: ignore[union-attr]
    except (OSError, lzma.LZMAError, tarfile.TarError, EOFError):
        raise ArtifactError(f"{path} is missing, cut off or no packed file; make or fetch it again") from None
