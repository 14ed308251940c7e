"""One way to run a reader over a file: what it yields and what it counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest

from citeweave.core.inputs import Source
from citeweave.core.progress import Tally
from citeweave.corpus.paper import Citation, Context, Paper


@dataclass
class Read:
    """Everything one reader made of one file."""

    papers: list[Paper] = field(default_factory=list)
    citations: list[Citation] = field(default_factory=list)
    contexts: list[Context] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    @property
    def stubs(self) -> list[Paper]:
        return [p for p in self.papers if p.stub]

    @property
    def full(self) -> list[Paper]:
        return [p for p in self.papers if not p.stub]

    def rejected(self, kind: str) -> dict[str, int]:
        return self.tally.counts[kind].rejected


def _read_all(reader: ModuleType, path: Path) -> Read:
    found = Read()
    for record in reader.read(Source(path), found.tally):
        match record:
            case Paper():
                found.papers.append(record)
            case Citation():
                found.citations.append(record)
            case Context():
                found.contexts.append(record)
            case _:
                raise AssertionError(f"a reader yielded {record!r}")
    return found


@pytest.fixture
def read_all() -> Callable[[ModuleType, Path], Read]:
    return _read_all
