"""Files of reviewer matching: who wrote what, who must not review what, and the scores.

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
from collections.abc import Iterable, Iterator
from pathlib import Path

from citeweave.corpus.cleaning import clean_text
from citeweave.errors import EmptyResultError, InputError
from citeweave.files import new_file
from citeweave.links import output_place
from citeweave.opening import Source
from citeweave.search.exporting import safe_cell
from citeweave.search.reviewers import DECIMALS, Fit
from citeweave.tally import Tally

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
