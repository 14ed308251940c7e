"""The entries of one large JSON object, one at a time: `{"p1": {...}, "p2": {...}}` gives ("p1", {...}), ("p2", {...}).

Memory holds a few megabytes and the largest entry, never the file. Of an entry nothing is checked here but that it is
JSON; a key that comes twice is given twice.

What is known of the papers of a click log: SciDocs' `paper_metadata_recomm.json`.

    {"p1": {"title": "T", "abstract": "A", "authors": ["7"], "year": 2015, "references": ["p2"], "cited_by": []}}

The file is one JSON object of gigabytes; it is read entry by entry, and only the wanted papers are kept. Of lists only
the 64-bit keys stay, sorted and distinct: enough to tell how much two lists share. Words of titles are kept in the same
way. Does not join papers that have several ids.

Reads SciDocs' click log: `recomm/{train,val,test}.csv`, `recomm/propensity_scores.json` and the papers' metadata.

    pid,clicked_pid,similar_papers_avail_at_time
    q1,p2,"p1,p2,p3"          next to q1 the papers p1, p2, p3 were shown, in this order; p2 was clicked

The propensity of a place tells how much more often it is clicked than the average place because of where it is:
`{"scores": [0.3, 0.1, 0.1, 0.1]}` becomes [2, 2/3, 2/3, 2/3], mean 1. A click deeper than the list has the last one.
Does not read vectors and does not judge.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import InputError, UserError, choose
from citeweave.core.inputs import MAX_LINE, Source
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import Keys, hash_texts
from citeweave.corpus.plain_text import clean_text

_CHUNK = 4 * 2**20
_AFTER = frozenset(" \t\r\n:,}")
_BLANKS = re.compile(r"[ \t\r\n]*")


def read_entries(source: Source, chunk: int = _CHUNK) -> Iterator[tuple[str, object]]:
    """Every key of the file's one object with its value, in order."""
    with source.open() as stream:
        window = _ClickWindow(source, io.TextIOWrapper(stream, "utf-8-sig", errors="replace"), chunk)
        window.expect("{")
        sign = window.expect("}") if window.peek() == "}" else ","
        while sign == ",":
            key = window.value()
            if not isinstance(key, str):
                raise window.broken("a key is no string")
            window.expect(":")
            yield key, window.value()
            sign = window.expect(",}")
        if window.peek():
            raise window.broken("something follows the object")


class _ClickWindow:
    """The part of the text that is in memory; `at` is where reading stands."""

    def __init__(self, source: Source, stream: TextIO, chunk: int) -> None:
        self._source, self._stream, self._chunk = source, stream, chunk
        self._text, self._at, self._before = "", 0, 0
        self._is_whole = False
        self._decode = json.JSONDecoder().raw_decode

    def broken(self, reason: str) -> InputError:
        return InputError(
            f"{self._source.path} cannot be read near character {self._before + self._at:,} ({reason}); it must be one "
            "JSON object of papers by id: get the file again"
        )

    def peek(self) -> str:
        """The next sign that is not blank; nothing at the end."""
        while True:
            blanks = _BLANKS.match(self._text, self._at)
            assert blanks is not None  # the pattern matches nothing, too
            self._at = blanks.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._grow():
                return ""

    def expect(self, signs: str) -> str:
        """Step over the next sign, which must be one of these."""
        sign = self.peek()
        if not sign:
            raise self.broken("the file ends too early")
        if sign not in signs:
            raise self.broken(f"{sign!r} where {' or '.join(signs)} belongs")
        self._at += 1
        return sign

    def value(self) -> object:
        """Step over the next value. It ends where a sign of the object follows: of `1.5e3` the window may show `1.5e`."""
        self.peek()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except json.JSONDecodeError:
                if not self._grow():
                    raise self.broken("no JSON, or cut off") from None
                continue
            except RecursionError:
                raise self.broken("nested too deeply") from None
            if self._text[end : end + 1] in _AFTER or not self._grow():
                self._at = end
                return value

    def _grow(self) -> bool:
        """Reads on, twice as much where an entry is larger than the window; False at the end of the file."""
        if self._is_whole:
            return False
        rest = self._text[self._at :]
        if len(rest) > MAX_LINE:
            raise self.broken(f"no end of an entry within {MAX_LINE >> 20} Mi characters")
        more = self._stream.read(max(self._chunk, len(rest)))
        self._before += self._at
        self._text, self._at = rest + more, 0
        self._is_whole = not more
        return not self._is_whole


# What is known of the papers of a click log: SciDocs' `paper_metadata_recomm.json`.

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


# Reads SciDocs' click log: `recomm/{train,val,test}.csv`, `recomm/propensity_scores.json` and the papers' metadata.

COLUMNS = ("pid", "clicked_pid", "similar_papers_avail_at_time")
PROPENSITIES = "recomm/propensity_scores.json"
METADATA = "paper_metadata_recomm.json"

_LONGEST_CELL = 2**24

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]


@dataclass(frozen=True)
class ClickLog:
    """A click a row: the paper beside which papers were shown, those papers in order, the place of the clicked one."""

    queries: Sequence[str]
    shown: Sequence[str]
    """Of all clicks, one list after the other."""

    offsets: Longs
    """(clicks + 1,) where each list begins."""

    places: Longs
    """(clicks,) of the clicked paper in its list, the first is 0."""

    def __len__(self) -> int:
        return len(self.queries)

    @classmethod
    def of(cls, rows: Iterable[tuple[str, str, Sequence[str]]]) -> ClickLog:
        """From (query, clicked, shown); of equal papers in a list the first is the clicked one.

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
        return [self.shown[row] for row in self.at.tolist()]

    @property
    def owners(self) -> Longs:
        """(shown,) the click that each shown paper belongs to."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def is_other(self) -> NDArray[np.bool_]:
        """(shown,) whether a shown paper is another than the clicked one. A second copy of that one is no other."""
        clicked = self.clicked
        return np.array(
            [paper != clicked[click] for paper, click in zip(self.shown, self.owners.tolist(), strict=True)], bool
        )

    def papers(self) -> set[str]:
        """Every paper of the log."""
        return {*self.queries, *self.shown}


@dataclass(frozen=True)
class ClickData:
    """All that the task needs but the vectors."""

    train: ClickLog
    val: ClickLog | None
    """Chooses the best epoch; without it the last one is taken."""

    test: ClickLog
    propensities: Doubles
    """(places,) mean 1."""

    metadata: Metadata


def read_click_data(folder: Path, split: str = "test", reporter: Reporter = QUIET) -> ClickData:
    """The task as it lies in SciDocs' folder.

    `split="val"` judges the validation clicks and chooses no epoch by them, as the peer does.
    """
    choose(split, ("test", "val"), "the split of the click log")
    names = ["train", "val", "test"] if split == "test" else ["train", "val"]
    files = {name: folder / f"recomm/{name}.csv" for name in names}
    needed = [*files.values(), folder / PROPENSITIES, folder / METADATA]
    if missing := [path.relative_to(folder).as_posix() for path in needed if not path.is_file()]:
        raise InputError(f"{folder} lacks {', '.join(missing)}; the recommendations of SciDocs need them")
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
    """One log; a line that cannot be a click stops, as the peer's code does."""
    clicks = ClickLog.of(_lines(path))
    if not len(clicks):
        raise InputError(f"{path} holds no clicks; it must have the columns {', '.join(COLUMNS)} and a line a click")
    return clicks


def _lines(path: Path) -> Iterator[tuple[str, str, list[str]]]:
    csv.field_size_limit(_LONGEST_CELL)  # else it is what the last reader of tables left
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
    """The propensities by place, made to have mean 1."""
    value = Source(path).json()
    scores = value.get("scores") if isinstance(value, dict) else None
    if not isinstance(scores, list) or not scores or not all(isinstance(score, int | float) for score in scores):
        raise InputError(f'{path} must be {{"scores": [a number a place]}}; get the file again')
    return normalized(np.array(scores, np.float64), str(path))


def normalized(scores: Doubles, what: str = "the propensities") -> Doubles:
    """Propensities of mean 1: as many as there are places, divided by their sum.

    >>> normalized(np.array([3.0, 1.0, 2.0])).tolist()
    [1.5, 0.5, 1.0]
    """
    if not (np.isfinite(scores) & (scores > 0)).all():
        raise InputError(f"{what} must be above 0, each of them; their least is {scores.min():g}: get the file again")
    return np.asarray(scores * (len(scores) / scores.sum()), np.float64)


def propensity_of(places: Longs, propensities: Doubles) -> Doubles:
    """(clicks,) the propensity of each place; a place beyond the list has the last one, the nearest that was measured."""
    return propensities[np.minimum(places, len(propensities) - 1)]
