"""Columns on disk: numbers as `.npy`, texts as one file of UTF-8 bytes beside their offsets.

    title.utf8          b"Deep learningA survey"
    title.offsets.npy   [0, 13, 21]

Both are written by appending and read through a memory map: opening costs nothing, a row costs one
slice, and a damaged file gives an error, never a crash. Nothing here knows what a paper is, and nothing
is forced to the disk: `files.py` does that once, when an artefact is whole.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from citeweave.arrays import open_array
from citeweave.errors import ArtefactError
from citeweave.files import open_input
from citeweave.hashing import Keys, hash_spans

_HEADER_SIZE = 128
_HOLE = 1 << 16
"""Blocks of at least so many bytes that are all zeros are not written out."""
_CHECKED = 1 << 24
"""Offsets looked at before the memory of their column is given back."""
BLOCK = 1 << 16
"""Rows handled at a time where a whole column is walked through."""


class NumberWriter:
    """Appends numbers to a one-dimensional `.npy` file; the header gets its true length on close."""

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._dtype = np.dtype(dtype)
        self._file = path.open("wb")
        self._file.write(_header(self._dtype, (0,)))
        self.count = 0

    def append(self, values: NDArray[Any] | Sequence[Any]) -> None:
        array = np.ascontiguousarray(values, self._dtype)
        if _is_hole(array):
            self._file.seek(array.nbytes, os.SEEK_CUR)  # a hole reads as zeros and takes no room on the disk
        else:
            self._file.write(array.data)
        self.count += len(array)

    def close(self) -> None:
        self._file.truncate(_HEADER_SIZE + self.count * self._dtype.itemsize)  # where the last block was a hole
        self._file.seek(0)
        self._file.write(_header(self._dtype, (self.count,)))
        self._file.close()


class MatrixWriter:
    """Appends rows of one width to a two-dimensional `.npy` file."""

    def __init__(self, path: Path, dtype: DTypeLike, width: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._dtype, self._width = np.dtype(dtype), width
        self._file = path.open("wb")
        self._file.write(_header(self._dtype, (0, width)))
        self.count = 0

    def append(self, rows: NDArray[Any]) -> None:
        """Rows of shape (number, width)."""
        array = np.ascontiguousarray(rows, self._dtype)
        assert array.shape[1:] == (self._width,), array.shape
        self._file.write(array.data)
        self.count += len(array)

    def close(self) -> None:
        self._file.seek(0)
        self._file.write(_header(self._dtype, (self.count, self._width)))
        self._file.close()


class GrowingColumn:
    """A column of numbers that grows in a file, or in memory where there is no path."""

    def __init__(self, path: Path | None, dtype: DTypeLike) -> None:
        self._path, self._dtype = path, np.dtype(dtype)
        self._parts: list[NDArray[Any]] = []
        self._writer = None if path is None else NumberWriter(path, dtype)

    def append(self, values: NDArray[Any]) -> None:
        if self._writer is None:
            self._parts.append(values.astype(self._dtype, copy=False))
        else:
            self._writer.append(values)

    def close(self) -> NDArray[Any]:
        """The whole column; memory-mapped where it is a file."""
        if self._writer is not None and self._path is not None:
            self._writer.close()
            return open_numbers(self._path, self._dtype)
        if len(self._parts) == 1:
            return self._parts[0]
        return np.concatenate([np.empty(0, self._dtype), *self._parts])


class TextWriter:
    """Appends texts to a column."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._data = (folder / f"{name}.utf8").open("wb", buffering=1 << 20)
        self._offsets = NumberWriter(folder / f"{name}.offsets.npy", np.int64)
        self._offsets.append([0])
        self._end = 0

    def append(self, texts: Sequence[str]) -> None:
        # lone surrogates cannot be encoded; readers remove them, this is the last guard
        parts = [text.encode("utf-8", "replace") for text in texts]
        self.append_bytes(np.array([len(part) for part in parts], np.int64), b"".join(parts))

    def append_bytes(self, lengths: NDArray[np.int64], data: bytes | NDArray[np.uint8]) -> None:
        """Texts that are already UTF-8, one after the other."""
        if len(lengths):
            self._data.write(data if isinstance(data, bytes) else data.data)
            ends = self._end + np.cumsum(lengths)
            self._offsets.append(ends)
            self._end = int(ends[-1])

    def append_empty(self, count: int) -> None:
        """So many empty texts."""
        self._offsets.append(np.full(count, self._end, np.int64))

    def close(self) -> None:
        self._data.close()
        self._offsets.close()


class TextColumn(Sequence[str]):
    """A column of texts, memory-mapped.

    `column[5]` is a string, `column.take(rows)` a list of strings; nothing else is loaded.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.utf8"
        self.offsets: NDArray[np.int64] = open_numbers(folder / f"{name}.offsets.npy", np.int64)
        self._data = _map(self._path)
        if len(self.offsets) == 0 or self.offsets[0] != 0 or self.offsets[-1] != len(self._data):
            raise self._damage()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return self.take(np.arange(len(self))[row])
        if row < 0:
            row += len(self)
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self._text(int(self.offsets[row]), int(self.offsets[row + 1]))

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), BLOCK):
            yield from self.take(np.arange(start, min(start + BLOCK, len(self))))

    def take(self, rows: NDArray[np.integer[Any]]) -> list[str]:
        """The texts of these rows, in their order."""
        starts, ends = self.offsets[rows].tolist(), self.offsets[np.asarray(rows) + 1].tolist()
        return [self._text(start, end) for start, end in zip(starts, ends, strict=True)]

    def lengths(self) -> NDArray[np.int64]:
        """Length of every text in bytes."""
        return np.diff(self.offsets)

    @property
    def data(self) -> NDArray[np.uint8]:
        """All bytes, one text after the other."""
        return np.frombuffer(self._data, np.uint8)

    def gather(self, rows: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], bytes]:
        """Lengths and bytes of these rows, ready for `TextWriter.append_bytes`."""
        if len(self._data) == 0:
            return np.zeros(len(rows), np.int64), b""
        starts, ends = self.offsets[rows], self.offsets[np.asarray(rows) + 1]
        if len(rows) and (starts > ends).any():
            raise self._damage()
        # runs of neighbouring rows are copied at once
        breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
        first, last = np.concatenate([[0], breaks]), np.concatenate([breaks - 1, [len(rows) - 1]])
        spans = zip(starts[first].tolist(), ends[last].tolist(), strict=True) if len(rows) else ()
        return ends - starts, b"".join([self._data[start:end] for start, end in spans])

    def keys(self) -> Keys:
        """Hash key of every text."""
        # compiled code follows the offsets without looking
        if not offsets_fit(self.offsets, len(self), len(self._data)):
            raise self._damage()
        return hash_spans(self.data, self.offsets[:-1], self.offsets[1:])

    def _text(self, start: int, end: int) -> str:
        if not 0 <= start <= end:
            raise self._damage()
        try:
            return self._data[start:end].decode()
        except UnicodeDecodeError:
            raise self._damage() from None

    def _damage(self) -> ArtefactError:
        return ArtefactError(f"{self._path} and its offsets do not fit together: the file is damaged; make it again")


def open_numbers(path: Path, dtype: DTypeLike) -> NDArray[Any]:
    """A memory-mapped one-dimensional array that must be of this type."""
    array = open_array(path)
    if array.dtype != np.dtype(dtype) or array.ndim != 1:
        raise ArtefactError(f"{path} does not hold one column of {np.dtype(dtype)}; make it again")
    return array


def open_matrix(path: Path, dtype: DTypeLike, shape: tuple[int, int]) -> NDArray[Any]:
    """A memory-mapped two-dimensional array, row after row, that must be of this type and shape."""
    array = open_array(path)
    if array.dtype != np.dtype(dtype) or array.shape != shape or not array.flags.c_contiguous:
        raise ArtefactError(f"{path} does not hold {shape[0]} rows of {shape[1]} {np.dtype(dtype)}; make it again")
    return array


def offsets_fit(offsets: NDArray[np.int64], rows: int, end: int) -> bool:
    """Whether offsets part `end` values into so many lists, one after the other; read block by block."""
    if len(offsets) != rows + 1 or offsets[0] != 0 or offsets[-1] != end:
        return False
    for start in range(0, rows, _CHECKED):
        part = offsets[start : start + _CHECKED + 1]
        if (part[1:] < part[:-1]).any():
            return False
        release(offsets)
    return True


def release(*columns: NDArray[Any] | TextColumn) -> None:
    """Give back the memory in which a walked-through column was cached; it can be read again."""
    for column in columns:
        if isinstance(column, TextColumn):
            release(column.offsets)
        held: Any = column._data if isinstance(column, TextColumn) else column
        while isinstance(held, np.ndarray) and held.base is not None:
            held = held.base
        if isinstance(held, memoryview):
            held = held.obj
        if hasattr(held, "madvise") and hasattr(mmap, "MADV_DONTNEED"):  # a map, and not on Windows
            held.madvise(mmap.MADV_DONTNEED)


def write_numbers(path: Path, values: NDArray[Any], dtype: DTypeLike | None = None) -> None:
    """A whole column of numbers at once."""
    writer = NumberWriter(path, values.dtype if dtype is None else dtype)
    writer.append(values)
    writer.close()


def _is_hole(array: NDArray[Any]) -> bool:
    """Whether a block is large and all zeros; of integers only, since -0.0 is no zero on disk."""
    if array.nbytes < _HOLE or array.dtype.kind not in "iub" or array[0] or array[-1]:
        return False
    return not array.any()


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Version 1.0 of NumPy's header, padded to a fixed size so that it can be written again."""
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape}, }}"
    body = text.encode().ljust(_HEADER_SIZE - 11) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


def _map(path: Path) -> bytes | mmap.mmap:
    try:
        with open_input(path) as file:
            if os.fstat(file.fileno()).st_size == 0:
                return b""
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ArtefactError(f"{path} is missing: the artefact is not complete; make it again") from None
