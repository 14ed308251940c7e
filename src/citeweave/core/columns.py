"""Reading NumPy's files, `.npy` and `.npz`, without NumPy's own parser of their headers.

That parser calls `ast.literal_eval`. In CPython 3.11 a second parse during the first, by another thread or by a
destructor that the garbage collector runs, ends in `SystemError: AST constructor recursion depth mismatch`
(python/cpython#106905): a server or a pool of threads that opens arrays meets it sooner or later. A header has one
fixed form, so a pattern reads it. Plain numbers only: no objects, no records, no pickle. Needs NumPy and nothing else,
for training where little is installed.

    >>> import io
    >>> file = io.BytesIO()
    >>> np.save(file, np.arange(6, dtype=np.int32).reshape(2, 3))
    >>> _ = file.seek(0)
    >>> read_header(file)
    Header(dtype=dtype('int32'), shape=(2, 3), order='C', start=128)

Columns on disk: numbers as `.npy`, texts as one file of UTF-8 bytes beside their offsets.

    title.utf8          b"Deep learningA survey"
    title.offsets.npy   [0, 13, 21]

Both are written by appending and read through a memory map: opening costs nothing, a row costs one
slice, and a damaged file gives an error, never a crash. Nothing here knows what a paper is, and nothing
is forced to the disk: `core/files.py` does that once, when an artifact is whole.

Whether a value out of somebody's JSON or TOML is a number to compute with.

Whole numbers there may have hundreds of digits, for which `math.isfinite` and `float` raise OverflowError.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeGuard, cast, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from citeweave.core.errors import ArtifactError
from citeweave.core.files import open_input
from citeweave.core.randomness import Keys, hash_spans

_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000  # NumPy's own limit
# every repetition keeps what it took: a header made to be parsed for ever ends at once
_FORM = re.compile(
    r"\s*+\{\s*+'descr':\s*+'([<>|=][biufc?]\d{1,2})'\s*+,\s*+'fortran_order':\s*+(True|False)\s*+,"
    r"\s*+'shape':\s*+\(([\d\s,]*+)\)\s*+(?:,\s*+)?\}\s*+"
)
_LONGEST_SIZE, _MOST_SIZES = 19, 64
"""Digits of a size, and sizes of an array."""


class Header(NamedTuple):
    """What stands in front of an array's numbers."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    start: int  # bytes of the header

    @property
    def size(self) -> int:
        """Bytes of the numbers."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def end(self) -> int:
        """Bytes of the whole file."""
        return self.start + self.size


def open_array(path: Path) -> NDArray[Any]:
    """The array of an `.npy` file of an artifact, memory-mapped."""
    try:
        array = map_array(path)
        with open_input(path) as file:
            if path.stat().st_size != read_header(file).end:
                raise ValueError("it is longer than its header says")
        return array
    except FileNotFoundError:
        raise ArtifactError(f"{path} is missing: the artifact is not complete; make it again") from None
    except (ValueError, OSError) as error:
        raise ArtifactError(f"{path} is damaged ({error}); make it again") from None


def map_array(path: Path) -> NDArray[Any]:
    """The array of an `.npy` file, memory-mapped; ValueError where the file is none."""
    with open_input(path) as file:
        header = read_header(file)
        held = path.stat().st_size - header.start
    if held < header.size:
        raise ValueError(f"{held:,} bytes of numbers, its header promises {header.size:,}")
    if not header.size:  # nothing that could be mapped
        return np.zeros(header.shape, header.dtype)
    return np.asarray(
        np.memmap(path, header.dtype, mode="r", offset=header.start, shape=header.shape, order=header.order)
    )


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an `.npz` file by their names; ValueError where the file is none."""
    try:
        with open_input(path) as file, zipfile.ZipFile(file) as archive:
            return {entry.filename.removesuffix(".npy"): _read_entry(archive, entry) for entry in archive.infolist()}
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path} is no archive of arrays: {error}") from None


def read_kept(path: Path, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """The arrays of an `.npz` file that an interrupted run kept for the next one; `names` must be among them."""
    try:
        found = read_arrays(path)
        if lacking := [name for name in names if name not in found]:
            raise ValueError(f"it lacks {lacking[0]}")
    except (ValueError, OSError) as error:
        raise ArtifactError(
            f"{path}, which an earlier run kept, is damaged ({error}); remove it and run the same command again"
        ) from None
    return found


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    with cast(zipfile.ZipExtFile, archive.open(entry)) as file:
        header = read_header(file)
        if entry.file_size - header.start < header.size:
            raise ValueError(f"{entry.filename}: {entry.file_size:,} bytes, its header promises {header.size:,} more")
        flat = np.empty(math.prod(header.shape), header.dtype)
        if flat.size and file.readinto(flat.view(np.uint8).data) != header.size:
            raise ValueError(f"{entry.filename} ends before its header says")
        file.read(1)  # at the end the archive checks its sum
    return flat.reshape(header.shape, order=header.order)


def read_header(file: IO[bytes] | zipfile.ZipExtFile) -> Header:
    """The header at which `file` stands; afterwards it stands at the first number."""
    front = file.read(8)
    if front[:6] != _MAGIC or len(front) < 8:
        raise ValueError("it does not begin as a NumPy array does")
    if front[6] not in (1, 2, 3):
        raise ValueError(f"version {front[6]} of NumPy's format is not known")
    form = "<H" if front[6] == 1 else "<I"
    prefix = file.read(struct.calcsize(form))
    length = struct.unpack(form, prefix)[0] if len(prefix) == struct.calcsize(form) else 0
    text = file.read(length) if 0 < length <= _LONGEST_HEADER else b""
    found = _FORM.fullmatch(text.decode("latin-1")) if len(text) == length else None
    if found is None:
        raise ValueError("its header does not describe an array of plain numbers")
    code, fortran, shape = found.groups()
    return Header(_dtype(code), _shape(shape), "F" if fortran == "True" else "C", 8 + len(prefix) + length)


def _dtype(code: str) -> np.dtype[Any]:
    try:
        return np.dtype(code)
    except TypeError:
        raise ValueError(f"{code!r} is no type of numbers") from None


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.replace(",", " ").split()
    if len(sizes) > _MOST_SIZES or any(len(size) > _LONGEST_SIZE for size in sizes):
        raise ValueError("its header promises more numbers than there can be")
    return tuple(map(int, sizes))


# Columns on disk: numbers as `.npy`, texts as one file of UTF-8 bytes beside their offsets.

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
        # runs of neighboring rows are copied at once
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

    def _damage(self) -> ArtifactError:
        return ArtifactError(f"{self._path} and its offsets do not fit together: the file is damaged; make it again")


def open_numbers(path: Path, dtype: DTypeLike) -> NDArray[Any]:
    """A memory-mapped one-dimensional array that must be of this type."""
    array = open_array(path)
    if array.dtype != np.dtype(dtype) or array.ndim != 1:
        raise ArtifactError(f"{path} does not hold one column of {np.dtype(dtype)}; make it again")
    return array


def open_matrix(path: Path, dtype: DTypeLike, shape: tuple[int, int]) -> NDArray[Any]:
    """A memory-mapped two-dimensional array, row after row, that must be of this type and shape."""
    array = open_array(path)
    if array.dtype != np.dtype(dtype) or array.shape != shape or not array.flags.c_contiguous:
        raise ArtifactError(f"{path} does not hold {shape[0]} rows of {shape[1]} {np.dtype(dtype)}; make it again")
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
        raise ArtifactError(f"{path} is missing: the artifact is not complete; make it again") from None


# Whether a value out of somebody's JSON or TOML is a number to compute with.

_LARGEST = sys.float_info.max


def is_finite(value: object) -> TypeGuard[int | float]:
    """A number that a float can hold; True and False are none.

    >>> is_finite(3), is_finite(0.5), is_finite(float("nan")), is_finite(10**400), is_finite(True), is_finite("3")
    (True, True, False, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
