"""What an audit found: pairs of a corpus paper and a benchmark paper, the evidence for each, the counts.

Does not look for anything; see `audit.py`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Evidence(enum.IntFlag):
    """Why two records count as one work; the larger the value, the stronger."""

    NEAR_TITLE = 1
    """Almost the same long title, where one of them has no abstract to compare."""

    TEXT = 2
    """Title and abstract share most of their word triples."""

    TITLE = 4
    """The same title, letters and digits only."""

    OTHER_ID = 8
    """A DOI, arXiv id or the like that both have."""

    ID = 16
    """The id by which both tables know the paper."""

    ANY = 31


KINDS = (Evidence.ID, Evidence.OTHER_ID, Evidence.TITLE, Evidence.TEXT, Evidence.NEAR_TITLE)
"""Strongest first."""


class Match(NamedTuple):
    """One corpus paper that is one benchmark paper."""

    corpus_row: int
    benchmark_row: int
    evidence: Evidence
    """All that holds."""

    strongest: Evidence
    similarity: float
    """Containment of the texts, Jaccard of near titles; NaN where neither was needed or reached."""


@dataclass(frozen=True, slots=True)
class BenchmarkLeakage:
    """What of one benchmark is in the corpus. The arrays hold one pair a position, by corpus row."""

    papers: int
    """Papers in the benchmark."""

    corpus_rows: NDArray[np.int64]
    benchmark_rows: NDArray[np.int64]
    evidence: NDArray[np.uint8]
    similarity: NDArray[np.float32]
    generic_titles: int = 0
    """Titles that both sides have but too many papers share to mean anything."""

    def __len__(self) -> int:
        return len(self.corpus_rows)

    def __iter__(self) -> Iterator[Match]:
        columns = (self.corpus_rows, self.benchmark_rows, self.evidence, self.similarity)
        for corpus_row, benchmark_row, evidence, similarity in zip(*(c.tolist() for c in columns), strict=True):
            strongest = Evidence(1 << (evidence.bit_length() - 1))
            yield Match(corpus_row, benchmark_row, Evidence(evidence), strongest, similarity)

    def rows(self, evidence: Evidence = Evidence.ANY) -> NDArray[np.int64]:
        """Corpus rows with at least one of the evidences, sorted."""
        return np.unique(self.corpus_rows[(self.evidence & evidence.value) > 0])

    def as_json(self) -> dict[str, object]:
        """Counts of papers: `strongest` adds up to `corpus_papers`, `evidence` counts a paper once a kind."""
        rows, place = np.unique(self.corpus_rows, return_inverse=True)
        held = np.zeros(len(rows), np.uint8)
        np.bitwise_or.at(held, place, self.evidence)
        weaker = 2 * np.array([kind.value for kind in KINDS])  # held < weaker: nothing stronger than the kind
        return {
            "papers": self.papers,
            "papers_found": len(np.unique(self.benchmark_rows)),
            "corpus_papers": len(rows),
            "strongest": {
                name_of(kind): int(((held & kind.value > 0) & (held < limit)).sum())
                for kind, limit in zip(KINDS, weaker, strict=True)
            },
            "evidence": {name_of(kind): int((held & kind.value > 0).sum()) for kind in KINDS},
            "generic_titles": self.generic_titles,
        }


@dataclass(frozen=True, slots=True)
class LeakageReport:
    """What of every benchmark is in the corpus. `str()` gives a table of the counts."""

    corpus_papers: int
    benchmarks: dict[str, BenchmarkLeakage]
    options: dict[str, object] = field(default_factory=dict)

    def rows_to_exclude(self, evidence: Evidence = Evidence.ANY) -> NDArray[np.int64]:
        """Corpus rows that are papers of any benchmark by any of the evidences, sorted, each once."""
        found = [benchmark.rows(evidence) for benchmark in self.benchmarks.values()]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))

    def as_json(self) -> dict[str, object]:
        return {
            "corpus_papers": self.corpus_papers,
            "exclude": len(self.rows_to_exclude()),
            "benchmarks": {name: benchmark.as_json() for name, benchmark in self.benchmarks.items()},
            "options": dict(self.options),
        }

    def __str__(self) -> str:
        heads = ["benchmark", "papers", "found", "corpus papers", *(f"by {name_of(kind)}" for kind in KINDS)]
        lines = [heads]
        for name, benchmark in self.benchmarks.items():
            counts = benchmark.as_json()
            strongest: dict[str, int] = counts["strongest"]  # type: ignore[assignment]
            whole = [counts["papers"], counts["papers_found"], counts["corpus_papers"], *strongest.values()]
            lines.append([name, *(f"{number:,}" for number in whole)])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        exclude = len(self.rows_to_exclude())
        rows.append(f"{exclude:,} of {self.corpus_papers:,} corpus papers are in a benchmark (counted by strongest)")
        return "\n".join(rows)


def name_of(kind: Evidence) -> str:
    """
    >>> name_of(Evidence.OTHER_ID)
    'other_id'
    """
    return str(kind.name).lower()
