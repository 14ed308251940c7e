"""Writes data sets of sentence-transformers; what they look like is told in `sentence_transformers.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from citeweave.mining.converting.options import ExportOptions
from citeweave.mining.converting.outgoing import CELLS, Outgoing, PaperRows
from citeweave.mining.converting.sentence_transformers import text_columns
from citeweave.mining.samples import Samples
from citeweave.tally import Count

PARQUET, JSON_LINES = "train.parquet", "train.jsonl"
EVERY_FILE = (PARQUET, JSON_LINES)

FEW_NEGATIVES = "fewer negatives than there are columns for them"
MANY_NEGATIVES = "negatives beyond the columns for them, left out"
IDS_TRAIN = "columns of ids, to be removed before training: sentence-transformers takes every column for a text"

Append = Callable[[NDArray[Any]], None]


def files(options: ExportOptions) -> tuple[str, ...]:
    return (PARQUET if options.file_type == "parquet" else JSON_LINES,)


def write(out: Outgoing, paths: dict[str, Path]) -> int:
    """Write the file; how many rows are in it."""
    grouped = out.options.columns == "group"
    negatives = (out.options.negatives or most_common_negatives(out.samples)) if grouped else 1
    columns = text_columns(negatives, grouped=grouped)
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


def most_common_negatives(samples: Samples) -> int:
    """The number of negatives that most rows have, a row being a positive; of several the largest, at least 1."""
    ups, downs = np.diff(samples.positives.offsets), np.diff(samples.negatives.offsets)  # (samples,)
    rows = np.bincount(downs, weights=ups)[1:]  # (largest number of negatives,)
    return len(rows) - int(np.argmax(rows[::-1])) if rows.any() else 1


def _group_rows(out: Outgoing, negatives: int) -> Iterator[PaperRows]:
    """Anchor, positive and negatives in blocks of shape (n, 2 + negatives), one row for every positive."""
    ups, downs = out.samples.positives, out.samples.negatives
    counts = np.diff(downs.offsets)  # (samples,)
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
