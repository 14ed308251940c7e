"""What a bundle says of itself, without reading the rest of it."""

from __future__ import annotations

import json
import lzma
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.table.bundle import PARTS
from citeweave.core.errors import ArtifactError


@dataclass(frozen=True)
class BundleFacts:
    """The version of the data, and what cannot be made of them."""

    version: str = ""
    """Empty where no bundle is at hand."""

    systems: tuple[str, ...] = ()
    impossible: Mapping[str, str] = field(default_factory=dict)
    """System -> why it has no samples."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    """All of them."""


def bundle_facts(path: Path) -> BundleFacts:
    """Read the first file of a bundle alone; reports may have come without their bundle."""
    if not path.is_file():
        return BundleFacts()
    try:
        with lzma.open(path, "rb") as file, tarfile.open(fileobj=file, mode="r|") as archive:
            first = archive.next()
            if first is None or first.name != PARTS[0]:
                raise ValueError
            about = json.loads(archive.extractfile(first).read())  # type: ignore[union-attr]
        own = about["facts"]
        return BundleFacts(about["version"], tuple(about["systems"]), dict(own.get("not possible here", {})), own)
    except (OSError, lzma.LZMAError, tarfile.TarError, EOFError, ValueError, KeyError):
        raise ArtifactError(f"{path} is no bundle of the table, or cut off; prepare or fetch it again") from None
