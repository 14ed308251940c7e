"""Datasets of sentence-transformers, read and written: columns of texts as Parquet or JSON lines.

    anchor  positive  negative  anchor_id  positive_id  negative_id                            columns="triplet"
    anchor  positive  negative_1 ... negative_n  anchor_id  positive_id  negative_1_id ...     columns="group"

Texts are those an encoder reads (`corpus/text.py`). sentence-transformers trains on every column it is given: remove
the ids before training (`dataset.remove_columns`), or write none. Reading: by the ids if there are some, else by the
texts, which must be exactly the corpus's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from citeweave.core.errors import InputError
from citeweave.core.inputs import FileHead, Source, open_parquet, read_json_lines, read_parquet_batches
from citeweave.core.progress import Count, Tally
from citeweave.mining.formats.triplets import (
    CELLS,
    NO_ID,
    ROWS,
    ExportedSamples,
    PaperRows,
    blocks,
    grouped_samples,
    known_rows,
    paired_samples,
)
from citeweave.mining.options import ExportOptions
from citeweave.mining.samples import SampleBlock, Samples
from citeweave.mining.tables import PaperLookup

NO_TEXT_GIVEN = "no text"

_MAX_NEGATIVES = 1000


def _text_columns(negatives: int, *, grouped: bool) -> list[str]:
    """Return the names of the text columns of a dataset, with one or several negatives.

    >>> _text_columns(1, grouped=False), _text_columns(2, grouped=True)
    (['anchor', 'positive', 'negative'], ['anchor', 'positive', 'negative_1', 'negative_2'])
    """
    names = [f"negative_{number}" for number in range(1, negatives + 1)] if grouped else ["negative"]
    return ["anchor", "positive", *names]


def recognize(head: FileHead) -> str | None:
    """Return "samples" for a dataset of sentence-transformers by its beginning, else None."""
    if head.data.startswith(b"PAR1"):
        return "samples"
    record = head.record
    return "samples" if record is not None and _columns_of(list(record)) else None


def _columns_of(names: Sequence[str]) -> list[str]:
    """Return the dataset columns to read: ids if all exist, else texts; none if it is another dataset."""
    count = next((n - 1 for n in range(1, _MAX_NEGATIVES) if not {f"negative_{n}", f"negative_{n}_id"} & set(names)), 0)
    texts = _text_columns(count, grouped=count > 0)
    for columns in ([f"{name}_id" for name in texts], texts):
        if set(columns) <= set(names):
            return columns
    return []


def read(
    sources: Sequence[Source], queries: Sequence[Source], lookup: PaperLookup, tally: Tally
) -> Iterator[SampleBlock]:
    """Read datasets of sentence-transformers as blocks of samples."""
    for source in sources:
        is_parquet = source.start(4) == b"PAR1"
        columns = _columns_of(_parquet_names(source) if is_parquet else list(source.head().record or {}))
        if not columns:
            raise InputError(
                f"{source.path} has no columns anchor, positive and negative (or negative_1, negative_2, ...), nor "
                "their ids; rename its columns"
            )
        records = _parquet_rows(source, columns) if is_parquet else _json_rows(source, columns, tally)
        rows = _look_up_rows(records, columns, lookup, tally)
        yield from paired_samples(rows) if len(columns) == 3 else grouped_samples(rows)


def _look_up_rows(
    records: Iterator[list[object]], columns: list[str], lookup: PaperLookup, tally: Tally
) -> Iterator[NDArray[np.int32]]:
    """Yield rows, (n, columns), of the dataset records whose papers are all in the corpus."""
    by_id = columns[0].endswith("_id")
    find: Callable[[list[str]], NDArray[np.int32]] = lookup.rows if by_id else lookup.rows_of_texts
    for block in blocks(records, max(1, ROWS // len(columns))):
        values = [record for record in map(_as_texts, block) if record]
        tally.reject("rows", NO_ID if by_id else NO_TEXT_GIVEN, len(block) - len(values))
        rows = find([value for record in values for value in record]).reshape(-1, len(columns))
        yield known_rows(rows, tally, "rows")


def _as_texts(record: list[object]) -> list[str]:
    """Return the values of a record as texts; none if one of them is empty or not a text or number."""
    plain = [value for value in record if isinstance(value, str | int) and not isinstance(value, bool)]
    texts = [value if isinstance(value, str) else str(value) if abs(value) < 10**30 else "" for value in plain]
    return texts if len(texts) == len(record) and all(texts) else []


def _json_rows(source: Source, columns: list[str], tally: Tally) -> Iterator[list[object]]:
    """Yield the dataset columns of every JSON line."""
    for record in read_json_lines(source, tally, "rows"):
        yield [record.get(name) for name in columns]


def _parquet_names(source: Source) -> list[str]:
    try:
        return list(pq.read_schema(source.path).names)
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise _bad_parquet(source.path, error) from None


def _parquet_rows(source: Source, columns: list[str]) -> Iterator[list[object]]:
    """Yield the dataset columns of every row of a Parquet file."""
    try:
        with open_parquet(source.path) as file:
            for batch in read_parquet_batches(file, source.path, rows=max(1, ROWS // len(columns)), columns=columns):
                for record in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                    yield list(record)
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise _bad_parquet(source.path, error) from None


def _bad_parquet(path: Path, error: BaseException) -> InputError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return InputError(f"{path} cannot be read as Parquet ({reason}); get the file again")


# Writing.

PARQUET, JSON_LINES = "train.parquet", "train.jsonl"
EVERY_FILE = (PARQUET, JSON_LINES)

FEW_NEGATIVES = "fewer negatives than there are columns for them"
MANY_NEGATIVES = "negatives beyond the columns for them, left out"
IDS_TRAIN = "columns of ids, to be removed before training: sentence-transformers takes every column for a text"

Append = Callable[[NDArray[Any]], None]


def file_names(options: ExportOptions) -> tuple[str, ...]:
    """Return the name of the file of an export to a dataset."""
    return (PARQUET if options.file_type == "parquet" else JSON_LINES,)


def write(out: ExportedSamples, paths: dict[str, Path]) -> int:
    """Write samples as a dataset of sentence-transformers; return the number of rows."""
    grouped = out.options.columns == "group"
    negatives = (out.options.negatives or _most_common_negatives(out.samples)) if grouped else 1
    columns = _text_columns(negatives, grouped=grouped)
    names = [*columns, *(f"{name}_id" for name in columns)] if out.options.ids else columns
    out.tally.note(IDS_TRAIN, len(names) - len(columns))
    ((name, path),) = paths.items()
    written = 0
    with (_new_parquet if name == PARQUET else _new_json_lines)(path, names) as append:
        for rows in _group_rows(out, negatives) if grouped else out.triplets(with_text=True):
            if len(rows):
                parts = [out.texts(rows), out.ids(rows)] if out.options.ids else [out.texts(rows)]
                append(np.concatenate(parts, axis=1))  # (rows, names)
                written += len(rows)
    return written


def _most_common_negatives(samples: Samples) -> int:
    """Return the number of negatives that most rows of a dataset can have, one row per positive; at least 1."""
    ups, downs = samples.positives.lengths(), samples.negatives.lengths()  # (samples,)
    rows = np.bincount(downs, weights=ups)[1:]  # (largest number of negatives,)
    return len(rows) - int(np.argmax(rows[::-1])) if rows.any() else 1


def _group_rows(out: ExportedSamples, negatives: int) -> Iterator[PaperRows]:
    """Yield anchor, positive and several negatives per row, in blocks of shape (n, 2 + negatives)."""
    ups, downs = out.samples.positives, out.samples.negatives
    counts = downs.lengths()  # (samples,)
    out.count_samples(needs_negatives=True)
    out.tally.counts["rows"] = Count()
    owners = ups.owners()  # (positives,)
    full = counts[owners] >= negatives
    out.tally.reject("rows", FEW_NEGATIVES, int((~full).sum()))
    out.tally.note(MANY_NEGATIVES, int((counts[owners][full] - negatives).sum()))
    places, size = np.flatnonzero(full), max(1, CELLS // (2 + negatives))
    for start in range(0, len(places), size):
        own = owners[places[start : start + size]]
        pairs = np.stack([out.samples.anchors[own], ups.rows[places[start : start + size]]], axis=1)
        others = downs.rows[downs.offsets[own][:, None] + np.arange(negatives)]  # (n, negatives)
        yield out.writable(np.concatenate([pairs, others], axis=1), "rows", with_text=True)


@contextmanager
def _new_parquet(path: Path, names: list[str]) -> Iterator[Append]:
    schema = pa.schema([(name, pa.string()) for name in names])

    def append(rows: NDArray[Any]) -> None:
        writer.write_batch(pa.record_batch([pa.array(column, pa.string()) for column in rows.T], schema=schema))

    with pq.ParquetWriter(path, schema) as writer:
        yield append


@contextmanager
def _new_json_lines(path: Path, names: list[str]) -> Iterator[Append]:
    with path.open("wb") as file:
        yield lambda rows: file.writelines(
            orjson.dumps(dict(zip(names, row, strict=True))) + b"\n" for row in rows.tolist()
        )
