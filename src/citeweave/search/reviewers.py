"""Reviewer matching: how well the papers of each person fit each submission.

    submissions   s (2 numbers each)      people   ann: papers a, b, c, d     bo: paper a
    cosines       s-a 0.9  s-b 0.6  s-c 0.3  s-d 0.0
    top3          ann (0.9 + 0.6 + 0.3) / 3 = 0.6      bo 0.9
    max           ann 0.9                              bo 0.9
    mean          ann 0.45                             bo 0.9

    people = People.find({"ann": ["a", "b", "c", "d"], "bo": ["a"]}, papers, fewest=1)
    for fit in match_reviewers(submissions, papers, people, MatchOptions("top3", best=5)):
        print(fit.submission, fit.reviewer, fit.score)

A person who wrote a submission is no reviewer of it. Submissions are compared block by block, so that memory does not
grow with their number. Does not assign anybody: the scores are what programs for that take in.

Files of reviewer matching: who wrote what, who must not review what, and the scores.

    people.jsonl     {"person": "ann", "papers": ["s2:1", "doi:10.1/x"]}
    people.csv       person,paper          one paper a line, or several with semicolons between them
                     ann,s2:1
                     ann,doi:10.1/x
    conflicts.csv    submission,person
                     s7,ann
    scores.csv       submission,reviewer,score
                     s7,bo,0.512345

Lines that say the same person again add to their papers. Compressed files are read too. Does not look papers up.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import EmptyResultError, InputError, UserError, choose
from citeweave.core.files import new_file, output_place
from citeweave.core.inputs import Source
from citeweave.core.progress import QUIET, Reporter, Tally
from citeweave.corpus.plain_text import clean_text
from citeweave.search.export import safe_cell
from citeweave.vectors.vectors import Vectors

Doubles = NDArray[np.float64]

TOP = 3
DECIMALS = 6
"""Of a score: what is the same on every machine, so that the order of people is."""

_SUBMISSIONS, _MENTIONS = 256, 16_384
"""Submissions, and papers of people, that are compared at a time: 32 MiB of cosines."""


def mean_of_top(cosines: Doubles) -> Doubles:
    """Mean of the three best of (submissions, papers), of all where there are fewer; (submissions,).

    The rule of SciRepEval's reviewer matching (Singh et al., EMNLP 2023).

    >>> mean_of_top(np.array([[0.25, 1.0, 0.5, 0.75], [0.0, 0.0, 0.0, 0.0]])).tolist()
    [0.75, 0.0]
    """
    top = min(TOP, cosines.shape[1])
    found: Doubles = np.partition(cosines, cosines.shape[1] - top, axis=1)[:, -top:].mean(axis=1)
    return found


def best(cosines: Doubles) -> Doubles:
    """The nearest paper: the maximum of Mimno and McCallum, "Expertise modeling for matching papers with reviewers",
    KDD 2007."""
    found: Doubles = cosines.max(axis=1)
    return found


def mean(cosines: Doubles) -> Doubles:
    """All papers alike: the average of the same paper."""
    found: Doubles = cosines.mean(axis=1)
    return found


RULES: dict[str, Callable[[Doubles], Doubles]] = {"top3": mean_of_top, "max": best, "mean": mean}


@dataclass(frozen=True, slots=True)
class MatchOptions:
    """How people are scored, and how many are told."""

    rule: str = "top3"
    best: int = 0
    """People of a submission, the best ones; 0 = all."""

    def __post_init__(self) -> None:
        choose(self.rule, RULES, "--rule")
        if self.best < 0:
            raise UserError(f"--best is {self.best}; it must be 0, for all people, or more")


_OPTIONS = MatchOptions()


@dataclass(frozen=True, slots=True)
class People:
    """Persons, sorted by name, with the rows of their papers."""

    names: Sequence[str]
    offsets: NDArray[np.int64]
    """(people + 1,) where each person's papers begin."""

    rows: NDArray[np.int64]
    """(mentions,) of the papers' vectors; a paper of two people is mentioned twice."""

    left_out: int
    """Persons with too few papers."""

    unknown: int
    """Papers of people, those left out included, that have no vector."""

    @classmethod
    def find(cls, papers_of: Mapping[str, Sequence[str]], papers: Vectors, *, fewest: int = 1) -> People:
        """Look the papers up; persons with fewer than `fewest` that have a vector are left out."""
        if fewest < 1:
            raise UserError(f"--fewest is {fewest}; a person must have at least 1 paper")
        names, kept, unknown, left_out = [], [np.zeros(0, np.int64)], 0, 0
        for name in sorted(papers_of):
            wanted = list(dict.fromkeys(papers_of[name]))
            found = papers.rows(wanted) if wanted else np.zeros(0, np.int64)
            rows = np.unique(found[found >= 0])
            unknown += int((found < 0).sum())
            if len(rows) < fewest:
                left_out += 1
                continue
            names.append(name)
            kept.append(rows)
        if not names:
            raise UserError(
                f"none of {len(papers_of):,} people has {fewest:,} papers with a vector: {unknown:,} of their papers are "
                "not known; check the ids, or give --papers the corpus that has them"
            )
        offsets = np.cumsum([0, *(len(rows) for rows in kept[1:])])
        return cls(names, offsets, np.concatenate(kept), left_out, unknown)

    def __len__(self) -> int:
        return len(self.names)


class Fit(NamedTuple):
    """A person for a submission."""

    submission: str
    reviewer: str
    score: float


def match_reviewers(
    submissions: Vectors,
    papers: Vectors,
    people: People,
    options: MatchOptions = _OPTIONS,
    *,
    conflicts: Collection[tuple[str, str]] = (),
    reporter: Reporter = QUIET,
) -> Iterator[Fit]:
    """Every allowed pair, submission by submission in their order, the best people first, equal ones by name.

    `conflicts` are pairs (submission, reviewer) that must not be; so are people and submissions they wrote.
    """
    check_same_space(submissions, papers)
    known = {name: at for at, name in enumerate(people.names)}
    apart = _by_submission(conflicts, known)
    with reporter.task("comparing vectors", len(submissions), "submissions") as advance:
        for start in range(0, len(submissions), _SUBMISSIONS):
            part = slice(start, min(start + _SUBMISSIONS, len(submissions)))
            ids = [submissions.ids[at] for at in range(part.start, part.stop)]
            scores = _scores(np.asarray(submissions.matrix[part]), papers.matrix, people, RULES[options.rule])
            _leave_out_authors(scores, papers.rows(ids), people)
            for line, id in zip(scores, ids, strict=True):
                line[apart.get(id, [])] = np.nan
                yield from _told(id, line, people, options.best)
            advance(len(ids))


def check_same_space(submissions: Vectors, papers: Vectors) -> None:
    """Refuse vectors that must not be compared."""
    one, other = submissions.provenance, papers.provenance
    if (one.revision, one.dimension, one.text_recipe) != (other.revision, other.dimension, other.text_recipe):
        raise UserError(
            f"the submissions' vectors are of {one.label} with {one.dimension} numbers, the papers' of {other.label} "
            f"with {other.dimension}, or they read other parts of a paper; embed both with one model"
        )


def _scores(submissions: NDArray[Any], matrix: NDArray[Any], people: People, rule: Callable[..., Doubles]) -> Doubles:
    """(submissions, people), rounded."""
    queries, found = _units(submissions), np.empty((len(submissions), len(people)))
    for first, last in _runs(people.offsets):
        low = people.offsets[first]
        cosines = queries @ _units(matrix[people.rows[low : people.offsets[last]]]).T  # (submissions, mentions)
        for person in range(first, last):
            own = people.offsets[person] - low, people.offsets[person + 1] - low
            found[:, person] = rule(cosines[:, own[0] : own[1]])
    return np.round(found, DECIMALS) + 0.0  # no -0.0


def _runs(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """People whose papers are compared together: at most _MENTIONS papers, at least one person."""
    first, people = 0, len(offsets) - 1
    while first < people:
        last = int(np.searchsorted(offsets, offsets[first] + _MENTIONS, side="right")) - 1
        last = min(max(last, first + 1), people)
        yield first, last
        first = last


def _units(rows: NDArray[Any]) -> Doubles:
    # wide numbers, so that a score does not depend on its company
    wide = np.asarray(rows, np.float64)
    found: Doubles = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)
    return found


def _leave_out_authors(scores: Doubles, own: NDArray[np.int64], people: People) -> None:
    for at in np.flatnonzero(own >= 0).tolist():
        mentions = np.flatnonzero(people.rows == own[at])
        scores[at, np.searchsorted(people.offsets, mentions, side="right") - 1] = np.nan


def _by_submission(conflicts: Collection[tuple[str, str]], known: Mapping[str, int]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for submission, reviewer in conflicts:
        if reviewer in known:
            found.setdefault(submission, []).append(known[reviewer])
    return found


def _told(id: str, line: Doubles, people: People, most: int) -> Iterator[Fit]:
    allowed = np.flatnonzero(~np.isnan(line))
    order = allowed[np.argsort(-line[allowed], kind="stable")]
    for person in order[: most or None].tolist():
        yield Fit(id, people.names[person], float(line[person]))


# Files of reviewer matching: who wrote what, who must not review what, and the scores.

COLUMNS = ("submission", "reviewer", "score")


def read_people(path: Path) -> dict[str, list[str]]:
    """The papers of every person."""
    found: dict[str, list[str]] = {}
    rows = _json_people(path) if Source(path).name.endswith((".jsonl", ".ndjson", ".json")) else _csv_people(path)
    for person, papers in rows:
        found.setdefault(person, []).extend(papers)
    if not found:
        raise InputError(f"{path} names no person; it must have lines such as {_EXAMPLE}")
    return found


def read_conflicts(path: Path) -> set[tuple[str, str]]:
    """Pairs (submission, person) that must not be."""
    return {
        (row["submission"], row["person"])
        for row in _table(path, ("submission", "person"))
        if row["submission"] and row["person"]
    }


def write_scores(path: Path, fits: Iterable[Fit]) -> int:
    """Write the scores; the file is there when it is complete. Says how many lines it has beside the first."""
    count = 0
    with new_file(output_place(path)) as file:
        stream = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="", write_through=True)
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        for fit in fits:
            writer.writerow([safe_cell(fit.submission), safe_cell(fit.reviewer), f"{fit.score:.{DECIMALS}f}"])
            count += 1
        stream.detach()
        if not count:
            raise EmptyResultError("no person may review any submission: all are left out as authors or by conflicts")
    return count


_EXAMPLE = '{"person": "ann", "papers": ["s2:1"]}, or be a CSV file with the columns person and paper'


def _json_people(path: Path) -> Iterator[tuple[str, list[str]]]:
    for number, line in enumerate(Source(path).raw_lines(Tally(), "people"), 1):
        if not line.strip():
            continue
        try:
            said = json.loads(line)
            person, papers = said["person"], said["papers"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InputError(f"{path}, line {number} is not such as {_EXAMPLE}") from None
        named = isinstance(person, str) and person.strip()
        if not named or not isinstance(papers, list) or not all(isinstance(id, str) for id in papers):
            raise InputError(f"{path}, line {number} is not such as {_EXAMPLE}")
        yield clean_text(person), papers


def _csv_people(path: Path) -> Iterator[tuple[str, list[str]]]:
    for row in _table(path, ("person", "paper")):
        if row["person"]:
            yield row["person"], [id.strip() for id in row["paper"].split(";") if id.strip()]


def _table(path: Path, names: tuple[str, ...]) -> Iterator[dict[str, str]]:
    text = Source(path).text(Tally())
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        head = [clean_text(cell).lower() for cell in next(reader, [])]
        head = ["paper" if cell == "papers" else "person" if cell == "reviewer" else cell for cell in head]
        if missing := [name for name in names if name not in head]:
            raise InputError(f"{path} has no column {missing[0]!r}; its first line must be {','.join(names)}")
        places = [head.index(name) for name in names]
        for row in reader:
            yield {name: clean_text(row[at]) if at < len(row) else "" for name, at in zip(names, places, strict=True)}
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num} is no CSV: {error}; save it again as CSV") from None
