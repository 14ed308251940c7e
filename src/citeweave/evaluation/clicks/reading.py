"""Reads SciDocs' click log: `recomm/{train,val,test}.csv`, `recomm/propensity_scores.json` and the papers' metadata.

    pid,clicked_pid,similar_papers_avail_at_time
    q1,p2,"p1,p2,p3"          next to q1 the papers p1, p2, p3 were shown, in this order; p2 was clicked

The propensity of a place tells how much more often it is clicked than the average place because of where it is:
`{"scores": [0.3, 0.1, 0.1, 0.1]}` becomes [2, 2/3, 2/3, 2/3], mean 1. A click deeper than the list has the last one.
Does not read vectors and does not judge.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import InputError, UserError, choose
from citeweave.evaluation.clicks.metadata import Metadata, read_metadata
from citeweave.opening import Source
from citeweave.progress import QUIET, Reporter

COLUMNS = ("pid", "clicked_pid", "similar_papers_avail_at_time")
PROPENSITIES = "recomm/propensity_scores.json"
METADATA = "paper_metadata_recomm.json"

_LONGEST_CELL = 2**24

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]


@dataclass(frozen=True)
class Clicks:
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
    def of(cls, rows: Iterable[tuple[str, str, Sequence[str]]]) -> Clicks:
        """From (query, clicked, shown); of equal papers in a list the first is the clicked one.

        >>> Clicks.of([("q", "b", ["a", "b"]), ("r", "c", ["c"])]).places.tolist()
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

    train: Clicks
    val: Clicks | None
    """Chooses the best epoch; without it the last one is taken."""

    test: Clicks
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


def read_clicks(path: Path) -> Clicks:
    """One log; a line that cannot be a click stops, as the peer's code does."""
    clicks = Clicks.of(_lines(path))
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
    return normalised(np.array(scores, np.float64), str(path))


def normalised(scores: Doubles, what: str = "the propensities") -> Doubles:
    """Propensities of mean 1: as many as there are places, divided by their sum.

    >>> normalised(np.array([3.0, 1.0, 2.0])).tolist()
    [1.5, 0.5, 1.0]
    """
    if not (np.isfinite(scores) & (scores > 0)).all():
        raise InputError(f"{what} must be above 0, each of them; their least is {scores.min():g}: get the file again")
    return np.asarray(scores * (len(scores) / scores.sum()), np.float64)


def propensity_of(places: Longs, propensities: Doubles) -> Doubles:
    """(clicks,) the propensity of each place; a place beyond the list has the last one, the nearest that was measured."""
    return propensities[np.minimum(places, len(propensities) - 1)]
