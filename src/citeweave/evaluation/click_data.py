"""Read SciDocs' click data: the click logs, the propensities of shown places, and the metadata of the papers.

    recomm/{train,val,test}.csv      pid,clicked_pid,similar_papers_avail_at_time
                                     q1,p2,"p1,p2,p3"    next to q1 the papers p1, p2, p3 were shown; p2 was clicked
    recomm/propensity_scores.json    {"scores": [0.3, 0.1, 0.1, 0.1]}
    paper_metadata_recomm.json       {"p1": {"title": "T", "abstract": "A", "authors": ["7"], "year": 2015,
                                             "references": ["p2"], "cited_by": []}, ...}

The propensity of a place says how much more often it is clicked than the average place because of where it is: the file
above becomes [2, 2/3, 2/3, 2/3], mean 1. A click deeper than the list gets the last one.

The metadata is one JSON object of gigabytes. It is read entry by entry, with a few megabytes and the largest entry in
memory, and only the wanted papers are kept. Of authors, references, citing papers and title words only sorted, distinct
64-bit keys are kept: enough to see how much two lists share. Does not merge papers that have several ids, does not read
vectors, and does not evaluate: `clicks.py` does.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import InputError, UserError, choose
from citeweave.core.hash_keys import Keys, hash_texts
from citeweave.core.inputs import Source
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.plain_text import clean_text
from citeweave.corpus.readers.json_records import read_members

COLUMNS = ("pid", "clicked_pid", "similar_papers_avail_at_time")
PROPENSITIES = "recomm/propensity_scores.json"
METADATA = "paper_metadata_recomm.json"

_MAX_CELL_CHARACTERS = 2**24

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]


_WORD = re.compile(r"\w+|[^\w\s]")
_NO_KEYS = np.empty(0, np.uint64)


@dataclass(frozen=True)
class ClickLog:
    """Click data of one log: the query paper of every click, the papers shown next to it, the place clicked."""

    queries: Sequence[str]
    shown: Sequence[str]
    """Ids of the papers shown, the lists of all clicks one after the other."""

    offsets: Longs
    """(clicks + 1,) where each list begins."""

    places: Longs
    """(clicks,) place of the clicked paper in its list, from 0."""

    def __len__(self) -> int:
        return len(self.queries)

    @classmethod
    def of(cls, rows: Iterable[tuple[str, str, Sequence[str]]]) -> ClickLog:
        """Make a log of click data from (query, clicked, shown); of equal shown papers the first is the clicked one.

        >>> ClickLog.of([("q", "b", ["a", "b"]), ("r", "c", ["c"])]).places.tolist()
        [1, 0]
        """
        queries, shown, sizes, places = [], list[str](), [0], []
        for query, clicked, papers in rows:
            if clicked not in papers:
                raise UserError(f"the paper {clicked!r} was clicked but is not among the {len(papers)} papers shown")
            queries.append(query)
            places.append(papers.index(clicked))
            shown.extend(papers)
            sizes.append(len(shown))
        return cls(queries, shown, np.array(sizes, np.int64), np.array(places, np.int64))

    @property
    def at(self) -> Longs:
        """(clicks,) row of the clicked paper in `shown`."""
        return self.offsets[:-1] + self.places

    @property
    def clicked(self) -> list[str]:
        """Id of the clicked paper of every click."""
        return [self.shown[row] for row in self.at.tolist()]

    @property
    def owners(self) -> Longs:
        """(shown,) the click that each shown paper belongs to."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def is_other(self) -> NDArray[np.bool_]:
        """Tell which shown papers differ from the clicked one, (shown,); a second copy of it does not."""
        clicked = self.clicked
        return np.array(
            [paper != clicked[click] for paper, click in zip(self.shown, self.owners.tolist(), strict=True)], bool
        )

    def papers(self) -> set[str]:
        """Return the ids of all papers of the click log."""
        return {*self.queries, *self.shown}


@dataclass(frozen=True)
class ClickData:
    """SciDocs' click data: the logs of three splits, propensities and metadata; vectors come from the system."""

    train: ClickLog
    val: ClickLog | None
    """Clicks to choose the best epoch by; without them the last epoch is taken."""

    test: ClickLog
    propensities: Doubles
    """(places,) propensities with mean 1."""

    metadata: Metadata


def read_click_data(folder: Path, split: str = "test", reporter: Reporter = QUIET) -> ClickData:
    """Read the click data of SciDocs' folder.

    `split="val"` evaluates the validation clicks and chooses no epoch by them, as SciDocs' code does.
    """
    choose(split, ("test", "val"), "the split of the click log")
    names = ["train", "val", "test"] if split == "test" else ["train", "val"]
    files = {name: folder / f"recomm/{name}.csv" for name in names}
    needed = [*files.values(), folder / PROPENSITIES, folder / METADATA]
    if missing := [path.relative_to(folder).as_posix() for path in needed if not path.is_file()]:
        raise InputError(f"{folder} lacks {', '.join(missing)}; SciDocs' recommendation task needs them")
    logs = {name: read_clicks(path) for name, path in files.items()}
    papers = set[str]().union(*(log.papers() for log in logs.values()))
    return ClickData(
        train=logs["train"],
        val=logs["val"] if split == "test" else None,
        test=logs[split],
        propensities=read_propensities(folder / PROPENSITIES),
        metadata=read_metadata(folder / METADATA, papers, reporter),
    )


def read_clicks(path: Path) -> ClickLog:
    """Read one log of SciDocs' click data; a line that is no click is an error, as in SciDocs' code."""
    clicks = ClickLog.of(_read_click_rows(path))
    if not len(clicks):
        raise InputError(
            f"{path} holds no clicks; it must have the columns {', '.join(COLUMNS)} and one line per click"
        )
    return clicks


def _read_click_rows(path: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (query, clicked paper, shown papers) from the CSV file of a click log."""
    csv.field_size_limit(_MAX_CELL_CHARACTERS)  # a global setting, which another reader may have changed
    with Source(path).open() as stream:
        lines = csv.reader(io.TextIOWrapper(stream, "utf-8-sig", newline=""))
        try:
            header = next(lines, [])
            if missing := [name for name in COLUMNS if name not in header]:
                raise InputError(f"{path} has no column {', '.join(missing)}; it has {', '.join(header) or 'none'}")
            query, clicked, shown = (header.index(name) for name in COLUMNS)
            for line in lines:
                if not line:
                    continue
                if len(line) != len(header):
                    raise InputError(
                        f"{path} line {lines.line_num} has {len(line)} columns instead of {len(header)}; "
                        "is the file cut off? get it again"
                    )
                papers = line[shown].strip().split(",")
                if line[clicked] not in papers:
                    raise InputError(
                        f"{path} line {lines.line_num}: the clicked paper {line[clicked]!r} is not among the "
                        f"{len(papers)} papers shown; is the file cut off? get it again"
                    )
                yield line[query], line[clicked], papers
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{path} line {lines.line_num} cannot be read ({error}); is it a CSV file?") from None


def read_propensities(path: Path) -> Doubles:
    """Read the propensities of click data, one per shown place, scaled to mean 1."""
    value = Source(path).json()
    scores = value.get("scores") if isinstance(value, dict) else None
    if not isinstance(scores, list) or not scores or not all(isinstance(score, int | float) for score in scores):
        raise InputError(f'{path} must be {{"scores": [one number per place]}}; get the file again')
    return normalize_propensities(np.array(scores, np.float64), str(path))


def normalize_propensities(scores: Doubles, source: str = "the propensities") -> Doubles:
    """Scale the propensities of click data, one per shown place, to mean 1.

    >>> normalize_propensities(np.array([3.0, 1.0, 2.0])).tolist()
    [1.5, 0.5, 1.0]
    """
    if not (np.isfinite(scores) & (scores > 0)).all():
        raise InputError(
            f"{source} must hold propensities above 0; the smallest is {scores.min():g}: get the file again"
        )
    return np.asarray(scores * (len(scores) / scores.sum()), np.float64)


def propensity_of(places: Longs, propensities: Doubles) -> Doubles:
    """Return the propensity of each clicked place, (clicks,); a place beyond the list gets the last one."""
    return propensities[np.minimum(places, len(propensities) - 1)]


@dataclass(frozen=True)
class KeyLists:
    """Keys of click data, sorted and distinct: the authors, references, citing papers or title words of every paper."""

    offsets: NDArray[np.int64]
    """(papers + 1,)"""

    keys: Keys

    @classmethod
    def of(cls, lists: Sequence[Keys]) -> KeyLists:
        """Join the keys of all papers to one array with offsets."""
        offsets = np.concatenate([[0], np.cumsum([len(keys) for keys in lists])]).astype(np.int64)
        return cls(offsets, np.concatenate([_NO_KEYS, *lists]))

    def sizes(self) -> NDArray[np.int64]:
        """Return the number of keys of every paper, (papers,)."""
        return np.diff(self.offsets)


@dataclass(frozen=True)
class Metadata:
    """Metadata among the click data: titles, years, authors and citations, one row per paper."""

    ids: Sequence[str]
    titles: Sequence[str]
    abstracts: Sequence[str]
    years: NDArray[np.float64]
    """(papers,) year of publication, NaN where unknown."""

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
        """Return the row of every paper id, -1 for a paper without metadata."""
        return np.array([self._rows.get(name, -1) for name in ids], np.int64)

    @classmethod
    def of(cls, entries: Iterable[tuple[str, object]]) -> Metadata:
        """Make the metadata of click data from (paper id, JSON entry); the last of equal ids counts.

        >>> metadata = Metadata.of([("p1", {"title": "A title", "year": "2015", "references": ["p2", "p3"]}), ("p2", None)])
        >>> metadata.rows(["p1", "p2"]).tolist(), metadata.years.tolist(), metadata.references.sizes().tolist()
        ([0, -1], [2015.0], [2])
        """
        by_id = {name: _PaperMetadata.of(entry) for name, entry in entries if isinstance(entry, dict)}
        papers = list(by_id.values())
        return cls(
            ids=list(by_id),
            titles=[paper.title for paper in papers],
            abstracts=[paper.abstract for paper in papers],
            years=np.array([paper.year for paper in papers], np.float64),
            words=KeyLists.of([paper.words for paper in papers]),
            authors=KeyLists.of([paper.authors for paper in papers]),
            references=KeyLists.of([paper.references for paper in papers]),
            cited_by=KeyLists.of([paper.cited_by for paper in papers]),
        )


@dataclass(frozen=True, slots=True)
class _PaperMetadata:
    """Metadata of one paper of a click log."""

    title: str
    abstract: str
    year: float
    words: Keys
    authors: Keys
    references: Keys
    cited_by: Keys

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> _PaperMetadata:
        """Read the metadata of one paper in the click data from its JSON entry."""
        title = clean_text(entry.get("title"))
        return cls(
            title,
            clean_text(entry.get("abstract")),
            _year_of(entry.get("year")),
            _keys(title_words(title)),
            *(_keys(_ids(entry.get(name))) for name in ("authors", "references", "cited_by")),
        )


def read_metadata(path: Path, wanted: Collection[str], reporter: Reporter = QUIET) -> Metadata:
    """Read the click data's metadata of the wanted papers from SciDocs' JSON file."""
    with reporter.task(f"reading {path.name}", unit="papers") as advance:

        def wanted_entries() -> Iterable[tuple[str, object]]:
            for name, entry in read_members(Source(path)):
                advance(1)
                if name in wanted:
                    yield name, entry

        return Metadata.of(wanted_entries())


def title_words(title: str) -> list[str]:
    """Split a title in the click data into words and punctuation marks, case kept.

    SciDocs' code uses spaCy 2, which does not split 'COVID-19', '3.5' and "'s"; this does.

    >>> title_words("BERT: pre-training")
    ['BERT', ':', 'pre', '-', 'training']
    """
    return _WORD.findall(title)


def _year_of(value: object) -> float:
    """Return a paper's year as a number, also from text; NaN for anything else.

    >>> _year_of("2015"), _year_of(None), _year_of("in press")
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
    """Return the ids in a JSON list; what is neither text nor number is left out."""
    items = value if isinstance(value, list) else []
    return [str(item) for item in items if isinstance(item, str | int)]


def _keys(texts: list[str]) -> Keys:
    """Hash ids or title words to sorted, distinct 64-bit keys."""
    if not texts:
        return _NO_KEYS
    return np.unique(hash_texts([text.encode(errors="replace").decode() for text in texts]))
