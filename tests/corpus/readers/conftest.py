"""The fixture `read_all`: the records that a reader yields for a file, and its counts."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from citeweave.core.inputs import Source
from citeweave.core.progress import Tally
from citeweave.corpus.paper import Citation, Context, Paper
from citeweave.corpus.readers import reader_of


@dataclass
class ReadRecords:
    """The records that one reader yielded for one file, and what it counted."""

    papers: list[Paper] = field(default_factory=list)
    citations: list[Citation] = field(default_factory=list)
    contexts: list[Context] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    @property
    def stubs(self) -> list[Paper]:
        return [paper for paper in self.papers if paper.stub]

    @property
    def full(self) -> list[Paper]:
        return [paper for paper in self.papers if not paper.stub]

    @property
    def notes(self) -> dict[str, int] | Counter[str]:
        return self.tally.notes

    def rejected(self, kind: str) -> dict[str, int]:
        return self.tally.counts[kind].rejected


@pytest.fixture
def read_all(tmp_path):
    """Run the reader of a format over a path, over text or bytes, or over a list of JSON records, one per line."""

    def read(format, content, name="file"):
        path = content if isinstance(content, Path) else tmp_path / name
        if isinstance(content, list):
            content = "\n".join(map(json.dumps, content))
        if not isinstance(content, Path):
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        result = ReadRecords()
        lists: dict[type, list[Any]] = {Paper: result.papers, Citation: result.citations, Context: result.contexts}
        for record in reader_of(format).read(Source(path), result.tally):
            lists[type(record)].append(record)
        return result

    return read
