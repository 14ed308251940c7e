"""First results of a real library: prints those to grade by reading, and the share of questions with a good first result.

    python benchmarks/library_questions.py INDEX --grades benchmarks/library_grades.tsv --kinds meaning
    python benchmarks/library_questions.py INDEX --grades benchmarks/library_grades.tsv --modes default

`library_questions.tsv` has a question per line: its kind, its text, and what a good answer would be. Each is answered in the
default mode, by vectors and by words. The file of grades has a question, the id of a paper, and 1 for a good answer or 0. First
results that have no grade yet are printed with their title and the beginning of their abstract, one line per question and paper
in random order, so that the reader does not know which mode found them. The result "-" says that nothing fits.
"""

from __future__ import annotations

import argparse
import csv
import random
from pathlib import Path

from citeweave import Index, Query, answer, open_query_encoder

MODES = {"default": "", "vectors": "vectors", "words": "words"}
NOTHING = "-"
HERE = Path(__file__).parent


def read_table(path: Path) -> list[dict[str, str]]:
    """Read a table of tab-separated columns with a header; texts are not quoted."""
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def first_results(index: Index, questions: list[str], modes: list[str]) -> dict[str, dict[str, str]]:
    """Return the id of the first result of every question by every mode."""
    encoder, found = open_query_encoder(index), dict[str, dict[str, str]]()
    for mode in modes:
        found[mode] = {}
        for question in questions:
            hits = answer(index, encoder, Query(text=question, by=MODES[mode], count=1)).hits
            found[mode][question] = hits[0].id if hits else NOTHING
    return found


def show_ungraded(index: Index, rows: list[dict[str, str]], pairs: set[tuple[str, str]]) -> None:
    """Print the pairs of question and paper that nobody graded, in random order."""
    wanted = {row["question"]: row["good"] for row in rows}
    for question, id in random.Random(1).sample(sorted(pairs), len(pairs)):
        if id != NOTHING:
            paper = index.paper(index.row(id))
            print(f"{question}\t{id}\n    wanted: {wanted[question]}\n    {paper.title}\n    {paper.abstract[:300]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("--questions", type=Path, default=HERE / "library_questions.tsv")
    parser.add_argument("--grades", type=Path, default=HERE / "library_grades.tsv")
    parser.add_argument("--kinds", nargs="+", help="only questions of these kinds")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    options = parser.parse_args()
    index = Index.open(options.index)
    rows = [row for row in read_table(options.questions) if not options.kinds or row["kind"] in options.kinds]
    known = read_table(options.grades) if options.grades.exists() else []
    grades = {(row["question"], row["paper"]): row["grade"] == "1" for row in known}
    found = first_results(index, [row["question"] for row in rows], options.modes)
    pairs = {(question, id) for own in found.values() for question, id in own.items()}
    show_ungraded(index, rows, pairs - set(grades))
    for mode, own in found.items():
        values = [grades.get((question, id), False) for question, id in own.items()]
        ungraded = sum(pair not in grades and pair[1] != NOTHING for pair in own.items())
        print(f"{mode}: {sum(values)} of {len(values)} questions have a good first result, {ungraded} not graded")


if __name__ == "__main__":
    main()
