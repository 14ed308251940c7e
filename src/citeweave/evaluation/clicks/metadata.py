"""What is known of the papers of a click log: SciDocs' `paper_metadata_recomm.json`.

    {"p1": {"title": "T", "abstract": "A", "authors": ["7"], "year": 2015, "references": ["p2"], "cited_by": []}}

The file is one JSON object of gigabytes; it is read entry by entry, and only the wanted papers are kept. Of lists only
the 64-bit keys stay, sorted and distinct: enough to tell how much two lists share. Words of titles are kept in the same
way. Does not join papers that have several ids.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.cleaning import clean_text
from citeweave.evaluation.clicks.entries import read_entries
from citeweave.hashing import Keys, hash_texts
from citeweave.opening import Source
from citeweave.progress import QUIET, Reporter

_WORD = re.compile(r"\w+|[^\w\s]")
_NONE = np.empty(0, np.uint64)


@dataclass(frozen=True)
class KeyLists:
    """A list of keys for every paper, sorted, each key once."""

    offsets: NDArray[np.int64]
    """(papers + 1,)"""

    keys: Keys

    @classmethod
    def of(cls, lists: Sequence[Keys]) -> KeyLists:
        offsets = np.concatenate([[0], np.cumsum([len(keys) for keys in lists])]).astype(np.int64)
        return cls(offsets, np.concatenate([_NONE, *lists]))

    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)


@dataclass(frozen=True)
class Metadata:
    """A paper a row."""

    ids: Sequence[str]
    titles: Sequence[str]
    abstracts: Sequence[str]
    years: NDArray[np.float64]
    """NaN where unknown."""

    words: KeyLists
    authors: KeyLists
    references: KeyLists
    cited_by: KeyLists
    _rows: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._rows.update({name: row for row, name in enumerate(self.ids)})

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """The row of every id, -1 where nothing is known of it."""
        return np.array([self._rows.get(name, -1) for name in ids], np.int64)

    @classmethod
    def of(cls, entries: Iterable[tuple[str, object]]) -> Metadata:
        """From (id, entry); of equal ids the last counts, and what is no JSON object is nothing known.

        >>> known = Metadata.of([("p1", {"title": "A title", "year": "2015", "references": ["p2", "p3"]}), ("p2", None)])
        >>> known.rows(["p1", "p2"]).tolist(), known.years.tolist(), known.references.sizes().tolist()
        ([0, -1], [2015.0], [2])
        """
        papers = {name: _Paper.of(entry) for name, entry in entries if isinstance(entry, dict)}
        found = list(papers.values())
        return cls(
            ids=list(papers),
            titles=[paper.title for paper in found],
            abstracts=[paper.abstract for paper in found],
            years=np.array([paper.year for paper in found], np.float64),
            words=KeyLists.of([paper.words for paper in found]),
            authors=KeyLists.of([paper.authors for paper in found]),
            references=KeyLists.of([paper.references for paper in found]),
            cited_by=KeyLists.of([paper.cited_by for paper in found]),
        )


@dataclass(frozen=True, slots=True)
class _Paper:
    title: str
    abstract: str
    year: float
    words: Keys
    authors: Keys
    references: Keys
    cited_by: Keys

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> _Paper:
        title = clean_text(entry.get("title"))
        return cls(
            title,
            clean_text(entry.get("abstract")),
            year_of(entry.get("year")),
            _keys(title_words(title)),
            *(_keys(_ids(entry.get(name))) for name in ("authors", "references", "cited_by")),
        )


def read_metadata(path: Path, wanted: Collection[str], reporter: Reporter = QUIET) -> Metadata:
    """The wanted papers of the file."""
    with reporter.task(f"reading {path.name}", unit="papers") as advance:

        def kept() -> Iterable[tuple[str, object]]:
            for name, entry in read_entries(Source(path)):
                advance(1)
                if name in wanted:
                    yield name, entry

        return Metadata.of(kept())


def title_words(title: str) -> list[str]:
    """Words and punctuation marks, capital letters as they are.

    The peer lets spaCy 2 cut titles; that leaves 'COVID-19', '3.5' and "'s" whole, this does not.

    >>> title_words("BERT: pre-training")
    ['BERT', ':', 'pre', '-', 'training']
    """
    return _WORD.findall(title)


def year_of(value: object) -> float:
    """A year as a number, also from text; NaN for anything else.

    >>> year_of("2015"), year_of(None), year_of("in press")
    (2015.0, nan, nan)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        year = float(value)
    except (ValueError, OverflowError):
        return math.nan
    return year if math.isfinite(year) else math.nan


def _ids(value: object) -> list[str]:
    """The ids of a list; what is neither text nor number is none."""
    items = value if isinstance(value, list) else []
    return [str(item) for item in items if isinstance(item, str | int)]


def _keys(texts: list[str]) -> Keys:
    if not texts:
        return _NONE
    return np.unique(hash_texts([text.encode(errors="replace").decode() for text in texts]))
