"""The papers of a benchmark, from a corpus folder or from files of any known format, for the leakage audit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citeweave.artefacts.manifest import MANIFEST
from citeweave.columns import TextColumn
from citeweave.corpus.corpus import Corpus, lines
from citeweave.corpus.intake.sources import find_inputs
from citeweave.corpus.leakage.audit import LeakageOptions, PaperColumns, PaperTable, audit_leakage
from citeweave.corpus.leakage.report import LeakageReport
from citeweave.corpus.paper import Paper
from citeweave.corpus.readers import reader_of
from citeweave.errors import InputError
from citeweave.opening import Source
from citeweave.tally import Tally


class CorpusPapers:
    """A corpus as a `PaperTable`."""

    def __init__(self, corpus: Corpus) -> None:
        self.ids: Sequence[str] = corpus.ids
        self.titles: Sequence[str] = corpus.titles
        self.abstracts: Sequence[str] = corpus.abstracts
        self.years: NDArray[np.int32] = corpus.years.astype(np.int32)
        self.other_ids: Sequence[tuple[str, ...]] = _Lines(corpus.other_ids)


class _Lines(Sequence[tuple[str, ...]]):
    """A column of lines, split when asked for."""

    def __init__(self, column: TextColumn) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return (lines(text) for text in self._column)

    def __getitem__(self, row):  # type: ignore[no-untyped-def]
        found = self._column[row]
        return lines(found) if isinstance(found, str) else [lines(text) for text in found]


def papers_of(path: Path) -> PaperTable:
    """The papers that a corpus folder, a data folder or a file holds."""
    if (path / MANIFEST).is_file():
        return CorpusPapers(Corpus.open(path))
    papers: list[Paper] = []
    for file in find_inputs([path], None, keep_outside=False).files:
        records = reader_of(file.format).read(Source(file.path), Tally())
        papers += [record for record in records if isinstance(record, Paper) and not record.stub]
    if not papers:
        raise InputError(f"{path} holds no papers to audit against; give a corpus, or files of papers")
    return PaperColumns(
        ids=[paper.id for paper in papers],
        titles=[paper.title for paper in papers],
        abstracts=[paper.abstract for paper in papers],
        years=np.array([paper.year or 0 for paper in papers], np.int32),
        other_ids=[paper.ids for paper in papers],
    )


def audit_corpus(
    corpus: Corpus, benchmarks: Mapping[str, str | Path | Corpus], options: LeakageOptions | None = None
) -> LeakageReport:
    """Find the papers of benchmarks, given as corpora, folders or files, inside a corpus."""
    tables = {
        name: CorpusPapers(given) if isinstance(given, Corpus) else papers_of(Path(given))
        for name, given in benchmarks.items()
    }
    return audit_leakage(CorpusPapers(corpus), tables, options)
