"""Every parser of citeweave, by groups and names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .fuzz_files import other_files, readers, suites, vector_files
from .fuzz_settings import kept_files, settings, texts
from .fuzz_target import Target

GROUPS: dict[str, Callable[[], Iterator[Target]]] = {
    "readers": readers,
    "other files": other_files,
    "vector files": vector_files,
    "texts": texts,
    "settings": settings,
    "kept files": kept_files,
    "suites": suites,
}


def targets(group: str) -> dict[str, Target]:
    """The parsers of a group by their names."""
    return {target.name: target for target in GROUPS[group]()}
