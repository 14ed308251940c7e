"""Files of published benchmarks: qrel, CSV, JSON, Parquet; papers' texts, labels; which suite a folder holds.

    q1 0 p7 1                                                             a qrel line: query, ignored, candidate, grade
    {"p1": {"title": "T", "abstract": "A", ...}, ...}                     papers of SciDocs, one object
    {"paper_id": "p1", "title": "T", "abstract": "A"}                     papers of MDCR, one per line
    {"doc_id": "q1", "query": "deep nets", "candidates": [{...}, ...]}    papers of SciRepEval, one query per line

SciRepEval's records are JSON lines, CSV or Parquet, in one file per split or several, as Hugging Face stores a dataset:

    fos/train.jsonl   fos/test.csv   fos/test-00000-of-00002.parquet   fos/test/0000.parquet   ir/test_qrel.jsonl

A benchmark is fixed: a line that cannot be read means a damaged or wrong file, so reading stops with file, line and next
step, and nothing is skipped. Only wanted papers are kept in memory; a wanted paper that no file knows stays, without text.
Files may be compressed: `x.jsonl.gz` stands for `x.jsonl`. Does not know what they mean: each suite does.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import InputError
from citeweave.core.files import hash_file
from citeweave.core.inputs import MAX_LINE, BadRecordError, Source, parse_json
from citeweave.evaluation.tasks import TaskTexts

MAX_GRADE = 2**31 - 1
FIELDS = ("title", "abstract")

MAX_GUESSED_CLASSES = 30
"""More distinct integers than this are taken for numbers, such as years, not for classes; SciDocs has 19 classes."""

REPEATED = "papers given twice, of which the last line counts"

_SUFFIXES = ("", ".gz", ".zst", ".bz2", ".xz")
_FORMATS = (".jsonl", ".csv", ".parquet")
_IDS = ("doc_id", "paper_id", "corpus_id", "id")
_PAPERS_FILE = re.compile(
    r"(?!reviewer_)(.*_)?(meta|metadata|papers|evaluation)(-\d+-of-\d+)?\.(jsonl|parquet)(\.\w+)?"
)
_PARQUET_ROWS = 1 << 13
_DAMAGED = "the file is damaged or half downloaded: download it again"


# --- finding files ---------------------------------------------------------------------------------------


def find_file(path: Path) -> Path | None:
    """Return a benchmark's file or its compressed form; None where there is neither."""
    forms = (path.with_name(path.name + suffix) for suffix in _SUFFIXES)
    return next((form for form in forms if form.is_file()), None)


class DataFolder:
    """The folder of a benchmark's files; remembers which of them were read, so that a report can name them."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._read: dict[str, Path] = {}
        if not self.folder.is_dir():
            what = "is a file, not a folder" if self.folder.exists() else "is not a folder"
            raise InputError(f"{self.folder} {what}; give the folder with the benchmark's files")

    def has(self, *names: str) -> bool:
        """Return whether the benchmark's folder has all of these files."""
        return all(find_file(self.folder / name) is not None for name in names)

    def file(self, name: str, holds: str) -> Path:
        """Return a file that the benchmark's folder must have, and record it as read; `holds` is for the message."""
        path = find_file(self.folder / name)
        if path is None:
            what = "is a folder, not a file" if (self.folder / name).is_dir() else "is missing"
            raise InputError(f"{self.folder / name} {what}: it holds {holds}; download it, or check the folder")
        self._read[name] = path
        return path

    def use(self, path: Path) -> Path:
        """Record a file of the benchmark that was found in another way as read, and return it."""
        inside = path.is_relative_to(self.folder)
        self._read[path.relative_to(self.folder).as_posix() if inside else str(path)] = path
        return path

    def hashes(self) -> dict[str, str]:
        """Return file -> sha256, for the benchmark's files that were read."""
        return {name: hash_file(path) for name, path in sorted(self._read.items())}

    def provenance(self, split: str, **counts: Any) -> dict[str, Any]:
        """Return where a suite's data comes from, for its report: folder, split, files with their hashes, counts."""
        return {"folder": str(self.folder), "split": split, "files": self.hashes(), **counts}


def split_files(folder: Path, *splits: str) -> list[Path]:
    """Return the files of a benchmark's first existing split among these; an empty list where there is none."""
    for split in splits:
        for form in _FORMATS:
            if existing := find_file(folder / f"{split}{form}"):
                return [existing]
        for pattern in (f"{split}-*", f"{split}/*"):
            if parts := sorted(path for path in folder.glob(pattern) if _format_of(path)):
                return parts
    return []


def find_papers_files(folder: Path) -> list[Path]:
    """Return a folder's files of titles and abstracts by their names: `metadata.jsonl`, `fos_meta.jsonl`, `papers.jsonl`."""
    return sorted(path for path in folder.iterdir() if path.is_file() and _PAPERS_FILE.fullmatch(path.name))


# --- formats ---------------------------------------------------------------------------------------------


def read_json(path: Path) -> Any:
    """Read a benchmark file that is one JSON value."""
    with Source(path).open() as stream:
        data = stream.read().removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        raise InputError(f"{path} is empty; {_DAMAGED}")
    try:
        return parse_json(data)
    except BadRecordError:
        line, ends_early = _where_json_breaks(data)
        what = "ends in the middle of its JSON" if ends_early else "is not valid JSON"
        raise InputError(f"{path} {what} at line {line}; {_DAMAGED}") from None


def read_json_lines(path: Path, *, keys: Sequence[str] = (), ids: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the objects of a benchmark's JSON-lines file; `keys` and `ids` must be in each, and ids become text.

    An id may be a string or an integer: SciRepEval's files hold both.
    """
    empty = True
    for number, line in _lines(path):
        empty = False
        try:
            record = parse_json(line)
        except BadRecordError as error:
            raise InputError(f"{path} line {number} is {error}; {_DAMAGED}") from None
        if not isinstance(record, dict):
            raise InputError(f"{path} line {number} is not a JSON object; is this the right file?")
        if absent := [key for key in (*ids, *keys) if key not in record]:
            raise InputError(
                f"{path} line {number} has no {absent[0]!r}; it has {_list(record)}; is this the right file?"
            )
        for key in ids:
            record[key] = as_id(record[key], f"{path} line {number}: {key}")
        yield record
    if empty:
        raise InputError(f"{path} is empty; {_DAMAGED}")


def read_qrel(path: Path) -> dict[str, dict[str, int]]:
    """Read a benchmark's qrel file of relevance judgments, `{query: {candidate: grade}}`, in the order of the file.

    A repeated pair is an error, as in pytrec_eval: either grade might be meant.
    """
    pools: dict[str, dict[str, int]] = {}
    for number, line in _lines(path):
        parts = _decode(path, line).split()
        if len(parts) != 4:
            raise InputError(
                f"{path} line {number} has {len(parts)} of the 4 parts 'query 0 candidate grade'; {_DAMAGED}"
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
        raise InputError(f"{path} is empty; {_DAMAGED}")
    return pools


def read_csv(path: Path, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the rows of a benchmark's CSV file with a header, each `{column: text}` of these columns."""
    with Source(path).open() as stream:
        text = _decode(path, stream.read())
    rows = csv.reader(io.StringIO(text, newline=""))
    try:
        header = next(rows, [])
        if not header:
            raise InputError(f"{path} is empty; {_DAMAGED}")
        if absent := [name for name in columns if name not in header]:
            raise InputError(
                f"{path} has no column {absent[0]!r}; its first line is {_list(header)}; is this the right file?"
            )
        places = [header.index(name) for name in columns]
        for row in rows:
            if row and len(row) < len(header):
                raise InputError(f"{path} line {rows.line_num} has {len(row)} of {len(header)} columns; {_DAMAGED}")
            if row:
                yield {name: row[place] for name, place in zip(columns, places, strict=True)}
    except csv.Error as error:
        raise InputError(f"{path} line {rows.line_num} is not CSV ({error}); {_DAMAGED}") from None


def read_records(paths: Iterable[Path], columns: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the records of benchmark files (JSON lines, CSV as strings, Parquet), which must have these columns."""
    for path in paths:
        form = _format_of(path)
        if form == ".csv":
            yield from read_csv(path, columns)
        elif form == ".parquet":
            yield from _read_parquet(path, columns)
        else:
            yield from read_json_lines(path, keys=columns)


def _format_of(path: Path) -> str:
    """Return a file's format, such as `.jsonl` for `x.jsonl.gz`; empty where it cannot be read."""
    return next((form for form in _FORMATS if form in path.suffixes), "") if path.is_file() else ""


def _read_parquet(path: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the records of a benchmark's Parquet file, which must have these columns."""
    import pyarrow as pa

    from citeweave.core.inputs import open_parquet, read_parquet_batches

    try:
        file = open_parquet(path)
        if absent := [name for name in columns if name not in file.schema_arrow.names]:
            raise InputError(
                f"{path} has no column {absent[0]!r}; it has {', '.join(file.schema_arrow.names)}; is this the right file?"
            )
        for batch in read_parquet_batches(file, path, rows=_PARQUET_ROWS):
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path} is not a complete Parquet file ({reason}); download it again") from None


def as_id(value: object, what: str) -> str:
    """Return a paper's or query's id in a benchmark file as text; `what` names it in the error."""
    if isinstance(value, str) and value:
        return value
    if type(value) is int:
        return str(value)
    raise InputError(f"{what} is {_short(value)}; an id is a string or an integer")


def as_grade(value: object, what: str) -> int:
    """Return a relevance grade as an integer, also where a benchmark file has it as `1.0` or as text."""
    try:
        number = float(value) if isinstance(value, (int, float, str)) else float("nan")
        grade = int(number)
    except (ValueError, OverflowError):
        number, grade = float("nan"), 0
    if grade != number or abs(grade) > MAX_GRADE or isinstance(value, bool):
        raise InputError(f"{what} is {_short(value)}; a grade is an integer such as 0 or 1")
    return grade


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a benchmark file that are not blank, each with its number."""
    with Source(path).open() as stream:
        for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE + 1), b""), 1):
            if len(line) > MAX_LINE:
                raise InputError(f"{path} line {number} is longer than {MAX_LINE >> 20} MiB; is this the right file?")
            if content := line.strip().removeprefix(b"\xef\xbb\xbf"):
                yield number, content


def _decode(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; {_DAMAGED}") from None


def _where_json_breaks(data: bytes) -> tuple[int, bool]:
    """Return the line where a file's JSON breaks, and whether the file ends too early there."""
    text = data.decode("utf-8", "replace").rstrip()
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        # a string that is cut off is reported where it begins
        return error.lineno, error.pos >= len(text) - 1 or error.msg.startswith("Unterminated")
    except RecursionError:
        pass
    return 1, False


def _list(names: object) -> str:
    return _short(", ".join(str(name) for name in names)) if isinstance(names, (list, dict)) else _short(names)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# --- titles and abstracts --------------------------------------------------------------------------------


@dataclass
class BenchmarkPapers:
    """Papers in benchmark files: id -> (title, abstract); the first of a repeated paper counts."""

    known: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, name: str, record: Mapping[str, Any], fields: Sequence[str] = FIELDS) -> None:
        """Add a paper; fields beside title and abstract, such as venue and year, are appended to the abstract."""
        if name not in self.known:
            rest = [_field_text(record.get(field)) for field in fields if field != "title"]
            self.known[name] = (_field_text(record.get("title")), " ".join(text for text in rest if text))

    def add_records(
        self, records: Iterable[Mapping[str, Any]], wanted: Collection[str], path: Path, fields: Sequence[str] = FIELDS
    ) -> None:
        """Add the wanted papers of a file's records: one each, or SciRepEval's queries with their candidates."""
        candidates: list[tuple[str, Mapping[str, Any]]] = []
        for record in records:
            for name, paper, is_query in _papers_of(record, path):
                if name in wanted and is_query:
                    self.add(name, paper, fields)
                elif name in wanted:
                    candidates.append((name, paper))
        # SciRepEval reads all queries before the candidates, and the first of equal ids counts
        for name, paper in candidates:
            self.add(name, paper, fields)

    def texts(self, ids: Iterable[str]) -> TaskTexts:
        """Return the texts of these papers, each once, in their order."""
        names = unique(ids)
        pairs = [self.known.get(name, ("", "")) for name in names]
        return TaskTexts(names, [title for title, _ in pairs], [abstract for _, abstract in pairs])


def word_counts(counts: Mapping[str, int]) -> tuple[str, ...]:
    """Return what was counted in a benchmark's files as notes of its suite, such as "pairs left out: 1,200"; no zeros."""
    return tuple(f"{what}: {number:,}" for what, number in counts.items() if number)


def unique(ids: Iterable[str]) -> list[str]:
    """Return each id of benchmark files once, in the order of first appearance."""
    return list(dict.fromkeys(ids))


def read_texts(
    data: DataFolder, files: Sequence[Path], ids: Iterable[str], *, lacking: str, fields: Sequence[str] = FIELDS
) -> TaskTexts:
    """Read papers' texts from these benchmark files; without files only ids, and `lacking` names the missing one."""
    wanted = unique(ids)
    if not files:
        return TaskTexts.of_ids(wanted, lacking=lacking)
    papers = BenchmarkPapers()
    for path in files:
        papers.add_records(read_records([data.use(path)]), set(wanted), path, fields)
    return papers.texts(wanted)


def _papers_of(record: Mapping[str, Any], path: Path) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Yield the papers of a SciRepEval record: id, fields, and whether it is the query."""
    query = record.get("query")
    if "candidates" not in record:
        yield _id(record, path), record, False
        return
    if isinstance(query, str):
        yield _id(record, path), {"title": query}, True
    elif isinstance(query, Mapping):
        yield _id(query, path), query, True
    else:
        raise InputError(f"{path}: a record with candidates has no query; download the file again")
    for candidate in record["candidates"] or ():
        yield _id(candidate, path), candidate, False


def _id(record: object, path: Path) -> str:
    if isinstance(record, Mapping):
        for key in _IDS:
            if record.get(key) is not None:
                return as_id(record[key], f"{path}: {key}")
    raise InputError(f"{path} names a paper without an id; each needs one of {', '.join(_IDS)}")


def _field_text(value: object) -> str:
    """Return a paper's field as text: a string as it is, a number such as a year as text, else an empty string."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and value == value else ""


# --- labels of probes ------------------------------------------------------------------------------------


def guess_kind(cells: Sequence[Any]) -> str:
    """Guess the kind of a benchmark's labels: lists are `labels`, fractions or many integers `numbers`, else `classes`.

    >>> guess_kind(["0.5", "2"]), guess_kind([0, 1, 1]), guess_kind([[0, 1], [1, 1]])
    ('numbers', 'classes', 'labels')
    """
    if any(isinstance(cell, list) for cell in cells):
        return "labels"
    numbers = [_number(cell) for cell in cells]
    if None in numbers:
        return "classes"
    is_number = any(number % 1 for number in numbers if number) or len(set(numbers)) > MAX_GUESSED_CLASSES
    return "numbers" if is_number else "classes"


def as_classes(cells: Sequence[Any], where: str) -> NDArray[Any]:
    """Return a benchmark's class labels as integers where all of them fit into 64 bits, else as strings."""
    for place, cell in enumerate(cells):
        if isinstance(cell, bool) or not isinstance(cell, str | int) or cell == "":
            raise InputError(f"{where} record {place + 1} has the label {cell!r}; a class is a string or an integer")
    try:
        return np.array([int(cell) for cell in cells], np.int64)
    except (ValueError, OverflowError):
        return np.array([str(cell) for cell in cells])


def as_labels(cells: Sequence[Any], where: str) -> NDArray[np.int64]:
    """Return a benchmark's lists of labels as a multi-hot array, (papers, labels) of 0 and 1."""
    width = len(cells[0]) if cells and isinstance(cells[0], list) else 0
    for place, cell in enumerate(cells):
        if not isinstance(cell, list) or len(cell) != width or not width or not set(cell) <= {0, 1}:
            raise InputError(
                f"{where} record {place + 1} has the label {str(cell)[:60]}; multi-hot labels are a list of 0 and 1, "
                f"as long as the first one ({width}); JSON lines can hold such lists, CSV cannot"
            )
    return np.array(cells, np.int64)


def as_numbers(cells: Sequence[Any], where: str) -> NDArray[np.float64]:
    """Return a benchmark's labels for a regression probe as finite numbers."""
    numbers = [_number(cell) for cell in cells]
    for place, number in enumerate(numbers):
        if number is None:
            raise InputError(f"{where} record {place + 1} has the label {cells[place]!r}; it must be a number")
    return np.array(numbers, np.float64)


def _number(cell: Any) -> float | None:
    """Return a label as a finite number, also from text; None for anything else."""
    try:
        number = float(cell) if isinstance(cell, int | float | str) and not isinstance(cell, bool) else float("nan")
    except (ValueError, OverflowError):
        return None
    return number if np.isfinite(number) else None


# --- which benchmark a folder holds ----------------------------------------------------------------------

SUITE_FILES = {
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
"""Suite -> files, each of which identifies it."""

SUITE_KEYS = {
    "csfcube": (("judgements.jsonl", "facet"), ("papers.jsonl", "sentence_facets_predicted")),
    "beir": (("judgements.jsonl", "query_text"), ("papers.jsonl", "tldr")),
}
"""Suite -> JSON-lines files, each of which identifies it by a key of its first line."""


def recognize_suite(folder: Path) -> tuple[str, str]:
    """Return the suite whose benchmark files a folder holds, and the file that identifies it; two "" for none."""
    for suite, names in SUITE_FILES.items():
        for name in names:
            if find_file(folder / name):
                return suite, name
    for suite, keys in SUITE_KEYS.items():
        for name, key in keys:
            path = find_file(folder / name)
            if path and key in (Source(path).head().record or {}):
                return suite, name
    return "", ""


def wrong_folder(folder: Path, suite: str, expected: str) -> InputError:
    """Return the error for a folder without the suite's files, which names the suite it holds; `expected` lists files."""
    other, name = recognize_suite(folder)
    if other and other != suite:
        return InputError(f"{folder} is not a folder of {suite}: its {name} belongs to {other}; use --suite {other}")
    return InputError(f"{folder} holds no files of {suite}: it needs {expected}; check the folder or download them")
