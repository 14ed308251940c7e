"""The files of a benchmark: qrel, CSV, JSON and JSON lines, each read whole or refused with file, line and next step.

    q1 0 p7 1        a qrel line: query, nothing, candidate, grade

A benchmark is fixed: a line that cannot be read means a damaged or foreign file, so nothing is skipped or counted.
Files may be compressed; `x.jsonl.gz` stands for `x.jsonl`. Does not know what the files mean: each suite does.

Titles and abstracts of a benchmark's papers, from the files that hold them.

    {"p1": {"title": "T", "abstract": "A", ...}, ...}                    SciDocs, one object
    {"paper_id": "p1", "title": "T", "abstract": "A"}                    MDCR, a line a paper
    {"doc_id": "q1", "query": "deep nets", "candidates": [{...}, ...]}   SciRepEval, a line a query

Only wanted papers are kept. A paper that the file does not know stays, without text: reports count such papers.

Which benchmark a folder holds, told by its files: for the error of somebody who gave the folder of another one.

    mdcr_test.json                          MDCR
    corpus.jsonl, queries.jsonl             BEIR

Does not read more than the first line of a file.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from citeweave.core.errors import InputError
from citeweave.core.files import hash_file
from citeweave.core.inputs import MAX_LINE, BadRecordError, Source, parse_json
from citeweave.evaluation.click_data import read_entries
from citeweave.evaluation.tasks import TaskTexts

_SUFFIXES = ("", ".gz", ".zst", ".bz2", ".xz")
HIGHEST_GRADE = 2**31 - 1
_AGAIN = "the file is damaged or half downloaded: get it again"


def find(path: Path) -> Path | None:
    """The file, or its compressed form; None where there is neither."""
    forms = (path.with_name(path.name + suffix) for suffix in _SUFFIXES)
    return next((form for form in forms if form.is_file()), None)


def existing(path: Path, holds: str) -> Path:
    """The file, or its compressed form; it must be there. `holds` says what is in it, for the message."""
    if found := find(path):
        return found
    what = "is a folder, not a file" if path.is_dir() else "is missing"
    raise InputError(f"{path} {what}: it holds {holds}; download it, or check the folder")


class DataFolder:
    """A folder with files of a benchmark; remembers which of them were read, so that a report can name them."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._read: dict[str, Path] = {}
        if not self.folder.is_dir():
            what = "is a file, not a folder" if self.folder.exists() else "is no folder"
            raise InputError(f"{self.folder} {what}; give the folder with the benchmark's files")

    def has(self, *names: str) -> bool:
        """Whether all of these files are there."""
        return all(find(self.folder / name) is not None for name in names)

    def absent(self, *names: str) -> list[str]:
        """Those of these files that are not there."""
        return [name for name in names if not self.has(name)]

    def file(self, name: str, holds: str) -> Path:
        """A file that must be there; it counts as read."""
        path = existing(self.folder / name, holds)
        self._read[name] = path
        return path

    def use(self, path: Path) -> Path:
        """A file that was found in another way; it counts as read."""
        inside = path.is_relative_to(self.folder)
        self._read[path.relative_to(self.folder).as_posix() if inside else str(path)] = path
        return path

    def hashes(self) -> dict[str, str]:
        """File -> sha256, of those that were read."""
        return {name: hash_file(path) for name, path in sorted(self._read.items())}


def read_json(path: Path) -> Any:
    """The whole file as one JSON value."""
    with Source(path).open() as stream:
        data = stream.read().removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        raise InputError(f"{path} is empty; {_AGAIN}")
    try:
        return parse_json(data)
    except BadRecordError:
        line, ends_early = _where_json_breaks(data)
        what = "ends in the middle of its JSON" if ends_early else "is not valid JSON"
        raise InputError(f"{path} {what} at line {line}; {_AGAIN}") from None


def read_json_lines(path: Path, *, keys: Sequence[str] = (), ids: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file, one a line. `keys` and `ids` must be in each; ids become text.

    An id may be a text or a whole number: SciRepEval's files hold both.
    """
    empty = True
    for number, line in _lines(path):
        empty = False
        try:
            record = parse_json(line)
        except BadRecordError as error:
            raise InputError(f"{path} line {number} is {error}; {_AGAIN}") from None
        if not isinstance(record, dict):
            raise InputError(f"{path} line {number} is no JSON object; is it another file?")
        if absent := [key for key in (*ids, *keys) if key not in record]:
            raise InputError(f"{path} line {number} has no {absent[0]!r}; it has {_list(record)}; is it another file?")
        for key in ids:
            record[key] = as_id(record[key], f"{path} line {number}: {key}")
        yield record
    if empty:
        raise InputError(f"{path} is empty; {_AGAIN}")


def read_qrel(path: Path) -> dict[str, dict[str, int]]:
    """`{query: {candidate: grade}}`, in the order of the file.

    A pair that is given twice stops the reading, as it stops pytrec_eval's: either grade might be meant.
    """
    pools: dict[str, dict[str, int]] = {}
    for number, line in _lines(path):
        parts = _text_cell(path, line).split()
        if len(parts) != 4:
            raise InputError(
                f"{path} line {number} has {len(parts)} of the 4 parts 'query 0 candidate grade'; {_AGAIN}"
            )
        query, _, candidate, grade = parts
        pool = pools.setdefault(query, {})
        if candidate in pool:
            raise InputError(
                f"{path} line {number} judges query {query} and candidate {candidate} a second time; "
                "remove one of the two lines"
            )
        pool[candidate] = as_grade(grade, f"{path} line {number}: the grade")
    if not pools:
        raise InputError(f"{path} is empty; {_AGAIN}")
    return pools


def read_csv(path: Path, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """The rows of a CSV file with a header, each `{column: text}` of these columns; others are left out."""
    with Source(path).open() as stream:
        text = _text_cell(path, stream.read())
    rows = csv.reader(io.StringIO(text, newline=""))
    try:
        header = next(rows, [])
        if not header:
            raise InputError(f"{path} is empty; {_AGAIN}")
        if absent := [name for name in columns if name not in header]:
            raise InputError(
                f"{path} has no column {absent[0]!r}; its first line is {_list(header)}; is it another file?"
            )
        places = [header.index(name) for name in columns]
        for row in rows:
            if row and len(row) < len(header):
                raise InputError(f"{path} line {rows.line_num} has {len(row)} of {len(header)} columns; {_AGAIN}")
            if row:
                yield {name: row[place] for name, place in zip(columns, places, strict=True)}
    except csv.Error as error:
        raise InputError(f"{path} line {rows.line_num} is no CSV ({error}); {_AGAIN}") from None


def as_id(value: object, what: str) -> str:
    """An id as text; `what` names it in the error."""
    if isinstance(value, str) and value:
        return value
    if type(value) is int:
        return str(value)
    raise InputError(f"{what} is {_short(value)}; an id is a text or a whole number")


def as_grade(value: object, what: str) -> int:
    """A grade as a whole number, also where it is written as `1.0` or as text."""
    try:
        number = float(value) if isinstance(value, (int, float, str)) else float("nan")
        grade = int(number)
    except (ValueError, OverflowError):
        number, grade = float("nan"), 0
    if grade != number or abs(grade) > HIGHEST_GRADE or isinstance(value, bool):
        raise InputError(f"{what} is {_short(value)}; a grade is a whole number such as 0 or 1")
    return grade


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, each with its number."""
    with Source(path).open() as stream:
        number = 0
        while line := stream.readline(MAX_LINE + 1):
            number += 1
            if len(line) > MAX_LINE:
                raise InputError(f"{path} line {number} is longer than {MAX_LINE >> 20} MiB; is it another file?")
            if line := line.strip().removeprefix(b"\xef\xbb\xbf"):
                yield number, line


def _text_cell(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; {_AGAIN}") from None


def _where_json_breaks(data: bytes) -> tuple[int, bool]:
    """The line where JSON breaks, and whether the file ends too early there."""
    text = data.decode("utf-8", "replace").rstrip()
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        # a string that is cut off is told where it begins
        return error.lineno, error.pos >= len(text) - 1 or error.msg.startswith("Unterminated")
    except RecursionError:
        pass
    return 1, False


def _list(names: object) -> str:
    return _short(", ".join(str(name) for name in names)) if isinstance(names, (list, dict)) else _short(names)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# Titles and abstracts of a benchmark's papers, from the files that hold them.

FIELDS = ("title", "abstract")
_IDS = ("doc_id", "paper_id", "corpus_id", "id")


@dataclass
class BenchmarkPapers:
    """What is known of some papers: id -> (title, abstract). Of a paper that comes twice the first counts."""

    known: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, name: str, record: Mapping[str, Any], fields: Sequence[str] = FIELDS) -> None:
        """Fields beside title and abstract, such as venue and year, stand at the abstract's end."""
        if name not in self.known:
            rest = [_paper_field(record.get(name)) for name in fields if name != "title"]
            self.known[name] = (_paper_field(record.get("title")), " ".join(text for text in rest if text))

    def texts(self, ids: Iterable[str]) -> TaskTexts:
        """Texts of these papers, each once, in their order."""
        names = unique(ids)
        pairs = [self.known.get(name, ("", "")) for name in names]
        return TaskTexts(names, [title for title, _ in pairs], [abstract for _, abstract in pairs])


def unique(ids: Iterable[str]) -> list[str]:
    """Every id once, in the order of its first place.

    >>> unique(["b", "a", "b"])
    ['b', 'a']
    """
    return list(dict.fromkeys(ids))


def read_paper_object(path: Path, wanted: Collection[str]) -> BenchmarkPapers:
    """The wanted papers of one large JSON object, `{id: {"title", "abstract", ...}}`."""
    papers = BenchmarkPapers()
    for name, record in read_entries(Source(path)):
        if not isinstance(record, dict):
            raise InputError(f"{path}: the entry of {name!r} is no JSON object; get the file again")
        if name in wanted:
            papers.add(name, record)
    return papers


def add_papers(
    papers: BenchmarkPapers,
    records: Iterable[Mapping[str, Any]],
    wanted: Collection[str],
    *,
    path: Path,
    fields: Sequence[str] = FIELDS,
) -> None:
    """Papers of records, one each, or SciRepEval's records of a query with its candidates; `path` is for errors."""
    candidates: list[tuple[str, Mapping[str, Any]]] = []
    for record in records:
        for name, paper, is_query in _papers_of(record, path):
            if name not in wanted:
                continue
            if is_query:
                papers.add(name, paper, fields)
            else:
                candidates.append((name, paper))
    # the peer reads all queries before the candidates, and of equal ids the first counts
    for name, paper in candidates:
        papers.add(name, paper, fields)


def _papers_of(record: Mapping[str, Any], path: Path) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    query = record.get("query")
    if "candidates" not in record:
        yield _id(record, path), record, False
        return
    if isinstance(query, str):
        yield _id(record, path), {"title": query}, True
    elif isinstance(query, Mapping):
        yield _id(query, path), query, True
    else:
        raise InputError(f"{path}: a record with candidates has no query; get the file again")
    for candidate in record["candidates"] or ():
        yield _id(candidate, path), candidate, False


def _id(record: object, path: Path) -> str:
    if isinstance(record, Mapping):
        for key in _IDS:
            if record.get(key) is not None:
                return as_id(record[key], f"{path}: {key}")
    raise InputError(f"{path} names a paper without an id; each needs one of {', '.join(_IDS)}")


def _paper_field(value: object) -> str:
    """A text as it stands, a number such as a year as text; nothing for anything else."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and value == value else ""


# Which benchmark a folder holds, told by its files: for the error of somebody who gave the folder of another one.

MARKS = {
    "scidocs": (
        "cite/test.qrel",
        "coview/test.qrel",
        "mag/test.csv",
        "recomm/test.csv",
        "paper_metadata_mag_mesh.json",
    ),
    "scirepeval": ("scirepeval_tasks.jsonl",),
    "reviewers": ("reviewer_metadata.jsonl",),
    "mdcr": ("mdcr_test.json", "mdcr_val.json"),
    "csfcube": ("test-pid2anns-csfcube-background.json", "abstracts-csfcube-preds.jsonl"),
    "relish": ("test-pid2anns-relish.json", "abstracts-relish.jsonl"),
    "treccovid_rf": ("test-pid2anns-treccovid.json", "abstracts-treccovid.jsonl"),
    "beir": ("corpus.jsonl", "queries.jsonl"),
}
"""Suite -> files of which each tells it."""

KEYS = {
    "csfcube": (("judgments.jsonl", "facet"), ("papers.jsonl", "sentence_facets_predicted")),
    "beir": (("judgments.jsonl", "query_text"), ("papers.jsonl", "tldr")),
}
"""Suite -> files of JSON lines, each of which tells it by a key of its first line."""


def recognize(folder: Path) -> tuple[str, str]:
    """The suite whose files the folder holds, and the file that tells it; two empty texts where none does."""
    for suite, marks in MARKS.items():
        for mark in marks:
            if find(folder / mark):
                return suite, mark
    for suite, keys in KEYS.items():
        for name, key in keys:
            path = find(folder / name)
            if path and key in (Source(path).head().record or {}):
                return suite, name
    return "", ""


def refuse(folder: Path, suite: str, expected: str) -> InputError:
    """The error for a folder without the suite's files; `expected` names them."""
    other, mark = recognize(folder)
    if other and other != suite:
        return InputError(f"{folder} is no folder of {suite}: its {mark} belongs to {other}; use --suite {other}")
    return InputError(f"{folder} holds no files of {suite}: it needs {expected}; check the folder or download them")
