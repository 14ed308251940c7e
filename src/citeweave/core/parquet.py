"""Parquet tables as input, perhaps damaged or hostile: read some rows at a time, bounded before memory is taken.

    with open_parquet(path) as file:
        for batch in read_parquet_batches(file, path, rows=8192, columns=["id", "title"]):
            batch.to_pylist()

A text that a file stores once may be the value of a million rows, so texts are read as dictionaries, and the size of a
batch is known before it is expanded. A page of the file is in memory at once, 2 GiB at most. A file of its own, since
pyarrow takes 40 MB of memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from citeweave.core.errors import InputError
from citeweave.core.files import check_regular

MAX_BATCH = 1 << 30
"""Bytes of a batch; 8,192 rows of a table with full texts have less."""

_MAX_GROUP, _MAX_ROW = 64 << 20, 1 << 20
"""Bytes of a row group, and of its mean row where the group is larger; no paper needs more."""


def open_parquet(path: Path, **options: Any) -> pq.ParquetFile:
    """Open a Parquet input file with texts as dictionaries; refused if its metadata promise rows that no paper has."""
    check_regular(path)
    metadata = pq.read_metadata(path)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)  # not its columns: pyarrow 26 aborts if the histogram of one is damaged
        if group.total_byte_size > _MAX_GROUP + _MAX_ROW * group.num_rows:
            raise InputError(
                f"{path}: {group.num_rows:,} rows of the table take {group.total_byte_size:,} bytes; a row may have "
                f"{_MAX_ROW:,} bytes on average: leave out the columns that hold more"
            )
    columns = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    return pq.ParquetFile(path, metadata=metadata, read_dictionary=texts, **options)


def read_parquet_batches(
    file: pq.ParquetFile, path: Path, *, rows: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield a Parquet table in batches of rows; refused if a batch would be larger than `MAX_BATCH`."""
    for batch in file.iter_batches(batch_size=rows, columns=columns):
        if (size := sum(_expanded_size(column, path) for column in batch.columns)) > MAX_BATCH:
            raise InputError(
                f"{path}: {len(batch):,} rows take {size:,} bytes once expanded; "
                f"{MAX_BATCH:,} are allowed: split the table, or leave out columns"
            )
        yield pa.RecordBatch.from_arrays([_expand(column) for column in batch.columns], names=batch.schema.names)


def _expanded_size(column: pa.Array, path: Path) -> int:
    """Return the bytes of a column without dictionaries; refused if it refers to texts its dictionary does not hold."""
    if pa.types.is_dictionary(column.type):
        lengths = pc.fill_null(pc.binary_length(column.dictionary), 0).to_numpy(zero_copy_only=False)
        used = pc.drop_null(column.indices).to_numpy(zero_copy_only=False)
        if len(used) and not 0 <= int(used.min()) <= int(used.max()) < len(lengths):  # pyarrow reads beyond its end
            raise InputError(f"{path} is damaged: a column refers to texts that it does not hold; get the file again")
        return int(lengths.astype(np.int64)[used].sum()) if len(used) else 0
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return _expanded_size(column.flatten(), path)
    if pa.types.is_struct(column.type):
        return sum(_expanded_size(part, path) for part in column.flatten())
    return int(column.nbytes)


def _expand(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
