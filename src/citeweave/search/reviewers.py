"""Reviewer matching: score how well the papers of each reviewer match each submission; its files.

    submissions   s                       people   ann: papers a, b, c, d     bo: paper a
    cosines       s-a 0.9  s-b 0.6  s-c 0.3  s-d 0.0
    top3          ann (0.9 + 0.6 + 0.3) / 3 = 0.6      bo 0.9
    max           ann 0.9                              bo 0.9
    mean          ann 0.45                             bo 0.9

    people = People.find({"ann": ["a", "b", "c", "d"], "bo": ["a"]}, papers, min_papers=1)
    for each in match_reviewers(submissions, papers, people, MatchOptions("top3", best=5)):
        print(each.submission, each.reviewer, each.score)

    people.jsonl     {"person": "ann", "papers": ["s2:1", "doi:10.1/x"]}
    people.csv       person,paper          one paper per line, or several separated by semicolons
                     ann,s2:1
                     ann,doi:10.1/x
    conflicts.csv    submission,person
                     s7,ann
    scores.csv       submission,reviewer,score
                     s7,bo,0.512345

Lines that name a person again add to their papers. Compressed files are read too. A person who wrote a submission is
never its reviewer. Submissions are compared block by block, so that memory does not grow with their number. Does not
assign reviewers: the scores are the input of programs that do.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import EmptyResultError, InputError, UserError
from citeweave.core.files import new_file, resolve_output
from citeweave.core.inputs import Source
from citeweave.core.progress import QUIET, Reporter, Tally
from citeweave.corpus.plain_text import clean_text
from citeweave.search.export import safe_cell
from citeweave.search.options import MatchOptions
from citeweave.vectors.vectors import Vectors, unit_rows

Doubles = NDArray[np.float64]

DECIMALS = 6
"""Decimals of a score that are the same on every machine, so that the order of reviewers is."""

_SUBMISSIONS, _MENTIONS = 256, 16_384
"""Submissions, and papers of reviewers, that are compared at a time: 32 MiB of cosines."""


RULES = {"top3": 3, "max": 1, "mean": 0}
"""How many of the best cosines of a reviewer's papers are averaged; 0 = all. Three: SciRepEval's reviewer matching (Singh et
al., EMNLP 2023); one, and all: Mimno and McCallum, "Expertise modeling for matching papers with reviewers", KDD 2007."""


def _reviewer_scores(cosines: Doubles, best: int) -> Doubles:
    """Score a reviewer by the mean of the `best` cosines of (submissions, papers), or of all; (submissions,).

    >>> _reviewer_scores(np.array([[0.25, 1.0, 0.5, 0.75], [0.0, 0.0, 0.0, 0.0]]), 3).tolist()
    [0.75, 0.0]
    """
    if best:
        best = min(best, cosines.shape[1])
        cosines = np.partition(cosines, cosines.shape[1] - best, axis=1)[:, -best:]
    scores: Doubles = cosines.mean(axis=1)
    return scores


_OPTIONS = MatchOptions()


@dataclass(frozen=True, slots=True)
class People:
    """Possible reviewers to match, sorted by name, with the rows of their papers' vectors."""

    names: Sequence[str]
    offsets: NDArray[np.int64]
    """(people + 1,): where each person's papers begin."""

    rows: NDArray[np.int64]
    """(mentions,): rows of the papers' vectors; a paper of two people is mentioned twice."""

    left_out: int
    """Number of persons with too few papers."""

    unknown: int
    """Number of papers without a vector, including those of persons left out."""

    @classmethod
    def find(cls, papers_of: Mapping[str, Sequence[str]], papers: Vectors, *, min_papers: int = 1) -> People:
        """Look up the papers of reviewers; leave out persons with fewer than `min_papers` that have a vector."""
        if min_papers < 1:
            raise UserError(f"--min-papers is {min_papers}; a person must have at least 1 paper")
        names, row_lists, unknown, left_out = [], [np.zeros(0, np.int64)], 0, 0
        for name in sorted(papers_of):
            ids = list(dict.fromkeys(papers_of[name]))
            looked_up = papers.rows(ids) if ids else np.zeros(0, np.int64)
            rows = np.unique(looked_up[looked_up >= 0])
            unknown += int((looked_up < 0).sum())
            if len(rows) < min_papers:
                left_out += 1
                continue
            names.append(name)
            row_lists.append(rows)
        if not names:
            raise UserError(
                f"none of {len(papers_of):,} people has {min_papers:,} papers with a vector: {unknown:,} of their papers are "
                "unknown; check the ids, or give --papers the corpus that has them"
            )
        offsets = np.cumsum([0, *(len(rows) for rows in row_lists[1:])])
        return cls(names, offsets, np.concatenate(row_lists), left_out, unknown)

    def __len__(self) -> int:
        return len(self.names)


class ReviewerScore(NamedTuple):
    """How well a reviewer matches a submission."""

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
) -> Iterator[ReviewerScore]:
    """Match reviewers: score them for submissions, submission by submission in their order, the best first, ties by name.

    `conflicts` are pairs (submission, reviewer) to leave out; so are authors of a submission.
    """
    _check_same_space(submissions, papers)
    places = {name: place for place, name in enumerate(people.names)}
    excluded = _conflicts_by_submission(conflicts, places)
    with reporter.task("comparing vectors", len(submissions), "submissions") as advance:
        for start in range(0, len(submissions), _SUBMISSIONS):
            part = slice(start, min(start + _SUBMISSIONS, len(submissions)))
            ids = [submissions.ids[at] for at in range(part.start, part.stop)]
            scores = _score_block(np.asarray(submissions.matrix[part]), papers.matrix, people, RULES[options.rule])
            _leave_out_authors(scores, papers.rows(ids), people)
            for person_scores, id in zip(scores, ids, strict=True):
                person_scores[excluded.get(id, [])] = np.nan
                yield from _best_reviewers(id, person_scores, people, options.best)
            advance(len(ids))


def _check_same_space(submissions: Vectors, papers: Vectors) -> None:
    """Refuse vectors of submissions and reviewers' papers that are not of one model and text recipe."""
    ours, theirs = submissions.provenance, papers.provenance
    if (ours.revision, ours.dimension, ours.text_recipe) != (theirs.revision, theirs.dimension, theirs.text_recipe):
        raise UserError(
            f"the submissions' vectors are of {ours.label} with {ours.dimension} numbers, the papers' of {theirs.label} "
            f"with {theirs.dimension}, or they read other parts of a paper; embed both with one model"
        )


def _score_block(submissions: NDArray[Any], matrix: NDArray[Any], people: People, best: int) -> Doubles:
    """Return the rounded scores of all reviewers for a block of submissions, (submissions, people)."""
    queries, scores = _units(submissions), np.empty((len(submissions), len(people)))
    for first, last in _runs(people.offsets):
        low = people.offsets[first]
        cosines = queries @ _units(matrix[people.rows[low : people.offsets[last]]]).T  # (submissions, mentions)
        for person in range(first, last):
            own = people.offsets[person] - low, people.offsets[person + 1] - low
            scores[:, person] = _reviewer_scores(cosines[:, own[0] : own[1]], best)
    return np.round(scores, DECIMALS) + 0.0  # no -0.0


def _runs(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield ranges of people whose papers are compared together: at most _MENTIONS papers, at least one person."""
    first, people = 0, len(offsets) - 1
    while first < people:
        last = int(np.searchsorted(offsets, offsets[first] + _MENTIONS, side="right")) - 1
        last = min(max(last, first + 1), people)
        yield first, last
        first = last


def _units(rows: NDArray[Any]) -> Doubles:
    # float64, so that a rounded score does not depend on the rest of its block
    return unit_rows(np.asarray(rows, np.float64))


def _leave_out_authors(scores: Doubles, own: NDArray[np.int64], people: People) -> None:
    """Remove the scores of reviewers for submissions that they wrote, which are their papers too."""
    for at in np.flatnonzero(own >= 0).tolist():
        mentions = np.flatnonzero(people.rows == own[at])
        scores[at, np.searchsorted(people.offsets, mentions, side="right") - 1] = np.nan


def _conflicts_by_submission(conflicts: Collection[tuple[str, str]], places: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the places of the reviewers that have a conflict with each submission."""
    excluded: dict[str, list[int]] = {}
    for submission, reviewer in conflicts:
        if reviewer in places:
            excluded.setdefault(submission, []).append(places[reviewer])
    return excluded


def _best_reviewers(id: str, scores: Doubles, people: People, max_reviewers: int) -> Iterator[ReviewerScore]:
    """Yield the best reviewers of a submission; NaN marks those left out."""
    allowed = np.flatnonzero(~np.isnan(scores))
    order = allowed[np.argsort(-scores[allowed], kind="stable")]
    for person in order[: max_reviewers or None].tolist():
        yield ReviewerScore(id, people.names[person], float(scores[person]))


# --- files -----------------------------------------------------------------------------------------------

COLUMNS = ("submission", "reviewer", "score")


def read_people(path: Path) -> dict[str, list[str]]:
    """Read the paper ids of every possible reviewer to match from a JSON Lines or CSV file."""
    people: dict[str, list[str]] = {}
    rows = (
        _read_json_people(path)
        if Source(path).name.endswith((".jsonl", ".ndjson", ".json"))
        else _read_csv_people(path)
    )
    for person, papers in rows:
        people.setdefault(person, []).extend(papers)
    if not people:
        raise InputError(f"{path} names no person; it must have lines such as {_EXAMPLE}")
    return people


def read_conflicts(path: Path) -> set[tuple[str, str]]:
    """Read conflicts of interest, pairs of (submission, reviewer) not to match, from a CSV file."""
    return {
        (row["submission"], row["person"])
        for row in _read_table(path, ("submission", "person"))
        if row["submission"] and row["person"]
    }


def write_scores(path: Path, scores: Iterable[ReviewerScore]) -> int:
    """Write the scores of matched reviewers as CSV, atomically; return the number of lines without the header."""
    count = 0
    with new_file(resolve_output(path)) as file:
        stream = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="", write_through=True)
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        for each in scores:
            writer.writerow([safe_cell(each.submission), safe_cell(each.reviewer), f"{each.score:.{DECIMALS}f}"])
            count += 1
        stream.detach()
        if not count:
            raise EmptyResultError("no person may review any submission: all are left out as authors or by conflicts")
    return count


_EXAMPLE = '{"person": "ann", "papers": ["s2:1"]}, or be a CSV file with the columns person and paper'


def _read_json_people(path: Path) -> Iterator[tuple[str, list[str]]]:
    for number, line in enumerate(Source(path).raw_lines(Tally(), "people"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            person, papers = record["person"], record["papers"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InputError(f"{path}, line {number} is not such as {_EXAMPLE}") from None
        has_name = isinstance(person, str) and person.strip()
        if not has_name or not isinstance(papers, list) or not all(isinstance(id, str) for id in papers):
            raise InputError(f"{path}, line {number} is not such as {_EXAMPLE}")
        yield clean_text(person), papers


def _read_csv_people(path: Path) -> Iterator[tuple[str, list[str]]]:
    for row in _read_table(path, ("person", "paper")):
        if row["person"]:
            yield row["person"], [id.strip() for id in row["paper"].split(";") if id.strip()]


def _read_table(path: Path, names: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file of reviewer matching that must have these columns."""
    text = Source(path).text(Tally())
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [clean_text(cell).lower() for cell in next(reader, [])]
        header = ["paper" if cell == "papers" else "person" if cell == "reviewer" else cell for cell in header]
        if missing := [name for name in names if name not in header]:
            raise InputError(f"{path} has no column {missing[0]!r}; its first line must be {','.join(names)}")
        places = [header.index(name) for name in names]
        for row in reader:
            yield {name: clean_text(row[at]) if at < len(row) else "" for name, at in zip(names, places, strict=True)}
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num} is not CSV: {error}; save it again as CSV") from None
