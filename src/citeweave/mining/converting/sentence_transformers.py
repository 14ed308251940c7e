"""Data sets of sentence-transformers: columns of texts, as Parquet or JSON lines, that `datasets` loads as they are.

    anchor  positive  negative  anchor_id  positive_id  negative_id                            columns="triplet"
    anchor  positive  negative_1 ... negative_n  anchor_id  positive_id  negative_1_id ...     columns="group"

Texts are those an encoder reads (`corpus/text.py`). sentence-transformers trains on every column it is given: take
the ids away before training (`dataset.remove_columns`), or write none. Reading: by the ids where there are some, else
by the texts, which must be exactly the corpus's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from citeweave.errors import InputError
from citeweave.mining.converting.incoming import BLOCK, NO_ID, blocks, grouped_samples, known_rows, paired_samples
from citeweave.mining.converting.paper_names import PaperNames
from citeweave.mining.sample_blocks import SampleBlock
from citeweave.opening import Head, Source, read_json_lines
from citeweave.parquet import batches, open_parquet
from citeweave.tally import Tally

NO_TEXT_GIVEN = "no text"

_MOST_NEGATIVES = 1000


def text_columns(negatives: int, *, grouped: bool) -> list[str]:
    """
    >>> text_columns(1, grouped=False), text_columns(2, grouped=True)
    (['anchor', 'positive', 'negative'], ['anchor', 'positive', 'negative_1', 'negative_2'])
    """
    names = [f"negative_{number}" for number in range(1, negatives + 1)] if grouped else ["negative"]
    return ["anchor", "positive", *names]


def role(head: Head) -> str | None:
    if head.data.startswith(b"PAR1"):
        return "samples"
    record = head.record
    return "samples" if record is not None and _columns_of(list(record)) else None


def _columns_of(names: Sequence[str]) -> list[str]:
    """The columns to read: of ids where all are there, else of texts; none where they are not ours."""
    count = next(
        (n - 1 for n in range(1, _MOST_NEGATIVES) if not {f"negative_{n}", f"negative_{n}_id"} & set(names)), 0
    )
    texts = text_columns(count, grouped=count > 0)
    for columns in ([f"{name}_id" for name in texts], texts):
        if set(columns) <= set(names):
            return columns
    return []


def read(
    sources: Sequence[Source], queries: Sequence[Source], names: PaperNames, tally: Tally
) -> Iterator[SampleBlock]:
    for source in sources:
        is_parquet = source.start(4) == b"PAR1"
        columns = _columns_of(_parquet_names(source) if is_parquet else list(source.head().record or {}))
        if not columns:
            raise InputError(
                f"{source.path} has no columns anchor, positive and negative (or negative_1, negative_2, ...), nor "
                "their ids; rename its columns"
            )
        records = _parquet_rows(source, columns) if is_parquet else _json_rows(source, columns, tally)
        rows = _known(records, columns, names, tally)
        yield from paired_samples(rows) if len(columns) == 3 else grouped_samples(rows)


def _known(
    records: Iterator[list[object]], columns: list[str], names: PaperNames, tally: Tally
) -> Iterator[NDArray[np.int32]]:
    """Rows of shape (n, columns) of the records whose papers are all in the corpus."""
    by_id = columns[0].endswith("_id")
    find: Callable[[list[str]], NDArray[np.int32]] = names.rows if by_id else names.rows_of_texts
    for block in blocks(records, max(1, BLOCK // len(columns))):
        values = [record for record in map(_texts, block) if record]
        tally.reject("rows", NO_ID if by_id else NO_TEXT_GIVEN, len(block) - len(values))
        rows = find([value for record in values for value in record]).reshape(-1, len(columns))
        yield known_rows(rows, tally, "rows")


def _texts(record: list[object]) -> list[str]:
    """The values as texts; none where one of them is no text or number, or empty."""
    plain = [value for value in record if isinstance(value, str | int) and not isinstance(value, bool)]
    texts = [value if isinstance(value, str) else str(value) if abs(value) < 10**30 else "" for value in plain]
    return texts if len(texts) == len(record) and all(texts) else []


def _json_rows(source: Source, columns: list[str], tally: Tally) -> Iterator[list[object]]:
    for record in read_json_lines(source, tally, "rows"):
        yield [record.get(name) for name in columns]


def _parquet_names(source: Source) -> list[str]:
    try:
        return list(pq.read_schema(source.path).names)
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise _bad_parquet(source.path, error) from None


def _parquet_rows(source: Source, columns: list[str]) -> Iterator[list[object]]:
    try:
        with open_parquet(source.path) as file:
            for batch in batches(file, source.path, rows=max(1, BLOCK // len(columns)), columns=columns):
                for record in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                    yield list(record)
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise _bad_parquet(source.path, error) from None


def _bad_parquet(path: Path, error: BaseException) -> InputError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return InputError(f"{path} cannot be read as Parquet ({reason}); get the file again")
