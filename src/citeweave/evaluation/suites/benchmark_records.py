"""What probes learn and tell: class labels, multi-hot labels or numbers, from the cells of a benchmark's files.

>>> as_classes(["0", "2"], "train.csv").tolist(), as_classes(["cat", "2"], "train.csv").tolist()
([0, 2], ['cat', '2'])
>>> guess_kind(["0.5", "2"]), guess_kind([0, 1, 1]), guess_kind([[0, 1], [1, 1]])
('numbers', 'classes', 'labels')

Records of SciRepEval's data as they lie in a folder: JSON lines, CSV or Parquet, one file a split or several.

    fos/train.jsonl   fos/test.csv   fos/test-00000-of-00002.parquet   fos/test/0000.parquet   ir/test_qrel.jsonl

The last but two are how Hugging Face stores a dataset. Does not download, and does not know what the records mean.

Query papers with graded candidates, on their way from a benchmark's files to pools.

    >>> asked = clean_queries([GradedQuery("q", "q", ["b", "q", "a"], [2, 3, 0])], relevant=2)
    >>> asked.queries[0].candidates, asked.notes()
    (['a', 'b'], ('candidates left out, since they are the query itself: 1',))

Does not read files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import EmptyResultError, InputError
from citeweave.evaluation.suites.benchmark_files import (
    FIELDS,
    BenchmarkPapers,
    DataFolder,
    add_papers,
    find,
    read_csv,
    read_json_lines,
    unique,
)
from citeweave.evaluation.tasks import Pools, TaskTexts

KINDS = ("classes", "labels", "numbers")
MANY = 30
"""More whole numbers than this are taken for numbers, such as years, not for classes; SciDocs has 19 classes."""


def guess_kind(cells: Sequence[Any]) -> str:
    """What answers look like: lists are `labels`, fractions or many whole numbers are `numbers`, else `classes`."""
    if any(isinstance(cell, list) for cell in cells):
        return "labels"
    numbers = [_number(cell) for cell in cells]
    if any(number is None for number in numbers):
        return "classes"
    fractions = any(number is not None and number % 1 for number in numbers)
    return "numbers" if fractions or len(set(numbers)) > MANY else "classes"


def as_answers(kind: str, cells: Sequence[Any], where: str) -> NDArray[Any]:
    """The answers of one kind; `where` names the file for errors."""
    makers = {"classes": as_classes, "labels": as_labels, "numbers": as_numbers}
    return makers[kind](cells, where)


def as_classes(cells: Sequence[Any], where: str) -> NDArray[Any]:
    """Whole numbers where all are that 64 bits can hold, else texts."""
    for place, cell in enumerate(cells):
        if isinstance(cell, bool) or not isinstance(cell, str | int) or cell == "":
            raise InputError(f"{where} record {place + 1} has the label {cell!r}; a class is a text or a whole number")
    try:
        return np.array([int(cell) for cell in cells], np.int64)
    except (ValueError, OverflowError):
        return np.array([str(cell) for cell in cells])


def as_labels(cells: Sequence[Any], where: str) -> NDArray[np.int64]:
    """(papers, labels) of 0 and 1."""
    width = len(cells[0]) if cells and isinstance(cells[0], list) else 0
    for place, cell in enumerate(cells):
        if not isinstance(cell, list) or len(cell) != width or not width or not set(cell) <= {0, 1}:
            raise InputError(
                f"{where} record {place + 1} has the label {str(cell)[:60]}; several labels are a list of 0 and 1, "
                f"as long as the first one's ({width}); such lists stand in JSON lines, not in CSV"
            )
    return np.array(cells, np.int64)


def as_numbers(cells: Sequence[Any], where: str) -> NDArray[np.float64]:
    numbers = [_number(cell) for cell in cells]
    for place, number in enumerate(numbers):
        if number is None:
            raise InputError(f"{where} record {place + 1} has the label {cells[place]!r}; it must be a number")
    return np.array(numbers, np.float64)


def _number(cell: Any) -> float | None:
    """A finite number, also from text; None for anything else."""
    try:
        number = float(cell) if isinstance(cell, int | float | str) and not isinstance(cell, bool) else float("nan")
    except (ValueError, OverflowError):
        return None
    return number if np.isfinite(number) else None


# Records of SciRepEval's data as they lie in a folder: JSON lines, CSV or Parquet, one file a split or several.

_FORMS = (".jsonl", ".csv", ".parquet")
_ROWS = 1 << 13
_PAPERS = re.compile(r"(?!reviewer_)(.*_)?(meta|metadata|papers|evaluation)(-\d+-of-\d+)?\.(jsonl|parquet)(\.\w+)?")


def split_files(folder: Path, *splits: str) -> list[Path]:
    """The files of the first of these splits that is there; none where none is."""
    for split in splits:
        for form in _FORMS:
            if found := find(folder / f"{split}{form}"):
                return [found]
        for pattern in (f"{split}-*", f"{split}/*"):
            if parts := sorted(path for path in folder.glob(pattern) if _form(path)):
                return parts
    return []


def find_papers_files(folder: Path) -> list[Path]:
    """Files of titles and abstracts, told by their names: `metadata.jsonl`, `fos_meta.jsonl`, `papers.jsonl`."""
    return sorted(path for path in folder.iterdir() if path.is_file() and _PAPERS.fullmatch(path.name))


def read_records(paths: Iterable[Path], columns: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The records of some files, which must have these columns; fields of CSV files are texts."""
    for path in paths:
        form = _form(path)
        if form == ".csv":
            yield from read_csv(path, columns)
        elif form == ".parquet":
            yield from _read_parquet(path, columns)
        else:
            yield from read_json_lines(path, keys=columns)


def read_texts(
    data: DataFolder, files: Sequence[Path], ids: Iterable[str], *, lacking: str, fields: Sequence[str] = FIELDS
) -> TaskTexts:
    """Texts of these papers; without files only their ids, and `lacking` says what would hold the texts."""
    wanted = unique(ids)
    if not files:
        return TaskTexts.of_ids(wanted, lacking=lacking)
    papers = BenchmarkPapers()
    for path in files:
        add_papers(papers, read_records([data.use(path)]), set(wanted), path=path, fields=fields)
    return papers.texts(wanted)


def _form(path: Path) -> str:
    """`.jsonl` of `x.jsonl.gz`; empty where it is none that can be read."""
    return next((form for form in _FORMS if form in path.suffixes), "") if path.is_file() else ""


def _read_parquet(path: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    import pyarrow as pa

    from citeweave.core.inputs import batches, open_parquet

    try:
        file = open_parquet(path)
        if absent := [name for name in columns if name not in file.schema_arrow.names]:
            raise InputError(
                f"{path} has no column {absent[0]!r}; it has {', '.join(file.schema_arrow.names)}; is it another file?"
            )
        for batch in batches(file, path, rows=_ROWS):
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path} is no whole Parquet file ({reason}); get it again") from None


# Query papers with graded candidates, on their way from a benchmark's files to pools.

REPEATED = "papers given twice, of which the last line counts"
UNKNOWN = "papers without text, which only the pools name"


@dataclass(frozen=True)
class GradedQuery:
    """A query paper with its candidates."""

    name: str
    """What reports call it."""

    paper: str
    candidates: Sequence[str]
    grades: Sequence[int]
    group: str = ""
    sentences: NDArray[np.int64] | None = None
    """Which sentences of the paper count, None = all."""


@dataclass
class GradedQueries:
    """Queries made fit to be judged; `counts` says what was done to them, in words for the suite's notes."""

    queries: list[GradedQuery]
    counts: Counter[str]

    def notes(self) -> tuple[str, ...]:
        return tuple(f"{what}: {number:,}" for what, number in self.counts.items() if number)


def clean_queries(queries: Iterable[GradedQuery], *, relevant: int) -> GradedQueries:
    """Each query without itself among its candidates, and each candidate once, in the order of their ids.

    The order matters: ASPIRE's files list what is relevant first, and a model that gives all the same score would
    be right by the order alone.
    """
    counts: Counter[str] = Counter()
    kept = []
    for query in queries:
        grades = dict(zip(query.candidates, query.grades, strict=True))
        counts["candidates named twice, of which the last grade counts"] += len(query.candidates) - len(grades)
        if query.paper in grades:
            del grades[query.paper]
            counts["candidates left out, since they are the query itself"] += 1
        counts["queries left out, since they have no candidates"] += not grades
        if grades:
            counts["queries without relevant papers, which count as 0"] += max(grades.values()) < relevant
            names = sorted(grades)
            kept.append(replace(query, candidates=names, grades=[grades[name] for name in names]))
    return GradedQueries(kept, counts)


def with_unknown(texts: TaskTexts, queries: Sequence[GradedQuery]) -> tuple[TaskTexts, int]:
    """The texts with an empty row for every paper that only the pools name, and how many those are."""
    named: set[str] = {query.paper for query in queries}
    for query in queries:
        named.update(query.candidates)
    unknown = sorted(named.difference(texts.ids))
    if not unknown:
        return texts, 0
    blank: list[list[str]] = [[] for _ in unknown]
    more = TaskTexts(
        ids=[*texts.ids, *unknown],
        titles=[*texts.titles, *([""] * len(unknown))],
        abstracts=[*texts.abstracts, *([""] * len(unknown))],
        sentences=None if texts.sentences is None else [*texts.sentences, *blank],
        labels=None if texts.labels is None else [*texts.labels, *blank],
        lacking=texts.lacking,
    )
    return more, len(unknown)


def make_pools(texts: TaskTexts, queries: Sequence[GradedQuery]) -> Pools:
    """Queries and candidates as rows of the texts, all of which must be there."""
    if not queries:
        raise EmptyResultError("no query is left to judge; check the split and the folder")
    candidates = np.concatenate([texts.rows(query.candidates) for query in queries])
    rows = texts.rows([query.paper for query in queries])
    assert (candidates >= 0).all() and (rows >= 0).all(), "with_unknown gives every paper a row"
    grouped, aspects = any(query.group for query in queries), any(query.sentences is not None for query in queries)
    return Pools(
        queries=rows,
        offsets=np.concatenate([[0], np.cumsum([len(query.candidates) for query in queries])]).astype(np.int64),
        candidates=candidates,
        grades=np.concatenate([np.array(query.grades, np.int64) for query in queries]),
        names=[query.name for query in queries],
        sentences=[query.sentences for query in queries] if aspects else None,
        groups=[query.group for query in queries] if grouped else None,
    )
