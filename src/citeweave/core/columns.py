"""Columns on disk, memory-mapped: numbers as `.npy` arrays, texts as one UTF-8 file with offsets.

    title.utf8          b"Deep learningA survey"
    title.offsets.npy   [0, 13, 21]

Opening a column costs nothing, a row costs one slice, and a damaged file gives an error, never a crash. Nothing here knows
what a paper is, and nothing is forced to the disk: `core/artifact.py` does that once, when an artifact is complete.

`.npy` and `.npz` headers are parsed here, not by NumPy, whose parser calls `ast.literal_eval`. In CPython 3.11 a second
parse during the first, by another thread or by a destructor that the garbage collector runs, ends in `SystemError: AST
constructor recursion depth mismatch` (python/cpython#106905), which a server or a thread pool that opens arrays meets
sooner or later. A header has one fixed form, so a regular expression reads it. Plain numbers only: no objects, no records,
no pickle. Needs only NumPy, for training where little is installed.

    >>> import io
    >>> file = io.BytesIO()
    >>> np.save(file, np.arange(6, dtype=np.int32).reshape(2, 3))
    >>> _ = file.seek(0)
    >>> read_header(file)
    Header(dtype=dtype('int32'), shape=(2, 3), order='C', start=128)
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, TypeGuard, cast, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from citeweave.core.errors import ArtifactError
from citeweave.core.files import open_input

if TYPE_CHECKING:
    import pyarrow

    from citeweave.core.hash_keys import Keys

_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 10_000  # NumPy's own limit
# possessive repetitions: a header crafted for endless backtracking fails at once
_HEADER_PATTERN = re.compile(
    r"\s*+\{\s*+'descr':\s*+'([<>|=][biufc?]\d{1,2})'\s*+,\s*+'fortran_order':\s*+(True|False)\s*+,"
    r"\s*+'shape':\s*+\(([\d\s,]*+)\)\s*+(?:,\s*+)?\}\s*+"
)
_MAX_SIZE_DIGITS, _MAX_DIMENSIONS = 19, 64
"""Most digits of one size of an array, and most sizes."""


class Header(NamedTuple):
    """The header of an `.npy` file: type, shape and order of an array, and where its numbers start."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    start: int  # bytes of the header

    @property
    def size(self) -> int:
        """Return the bytes of the numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


def open_array(path: Path) -> NDArray[Any]:
    """Return the memory-mapped array of an `.npy` file of an artifact."""
    try:
        return map_array(path, exact=True)
    except FileNotFoundError:
        raise ArtifactError(f"{path} is missing: the artifact is not complete; make it again") from None
    except (ValueError, OSError) as error:
        raise ArtifactError(f"{path} is damaged ({error}); make it again") from None


def map_array(path: Path, *, exact: bool = False) -> NDArray[Any]:
    """Return the memory-mapped array of any `.npy` file; ValueError where it is not one, or is longer and must be `exact`."""
    with open_input(path) as file:
        header = read_header(file)
        available = path.stat().st_size - header.start
    if available < header.size:
        raise ValueError(f"{available:,} bytes of numbers, its header promises {header.size:,}")
    if exact and available > header.size:
        raise ValueError("it is longer than its header says")
    if not header.size:  # an empty range cannot be mapped
        return np.zeros(header.shape, header.dtype)
    return np.asarray(
        np.memmap(path, header.dtype, mode="r", offset=header.start, shape=header.shape, order=header.order)
    )


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return all arrays of an `.npz` file by name; ValueError where the file is not one."""
    try:
        with open_input(path) as file, zipfile.ZipFile(file) as archive:
            return {entry.filename.removesuffix(".npy"): _read_entry(archive, entry) for entry in archive.infolist()}
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path} is not an archive of arrays: {error}") from None


def read_saved_arrays(path: Path, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Return the columns of an `.npz` file that an interrupted run left; `names` must be among them."""
    try:
        arrays = read_arrays(path)
        if missing := [name for name in names if name not in arrays]:
            raise ValueError(f"{missing[0]} is missing")
    except (ValueError, OSError) as error:
        raise ArtifactError(
            f"{path}, which an earlier run left, is damaged ({error}); remove it and run the same command again"
        ) from None
    return arrays


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    with cast(zipfile.ZipExtFile, archive.open(entry)) as file:
        header = read_header(file)
        if entry.file_size - header.start < header.size:
            raise ValueError(f"{entry.filename}: {entry.file_size:,} bytes, its header promises {header.size:,} more")
        flat = np.empty(math.prod(header.shape), header.dtype)
        if flat.size and file.readinto(flat.view(np.uint8).data) != header.size:
            raise ValueError(f"{entry.filename} is shorter than its header says")
        file.read(1)  # at the end the archive checks its checksum
    return flat.reshape(header.shape, order=header.order)


def read_header(file: IO[bytes] | zipfile.ZipExtFile) -> Header:
    """Parse the `.npy` header at the current position of `file`, which then stands at the first number."""
    front = file.read(8)
    if front[:6] != _MAGIC or len(front) < 8:
        raise ValueError("it does not begin like a NumPy array")
    if front[6] not in (1, 2, 3):
        raise ValueError(f"version {front[6]} of NumPy's format is unknown")
    size_format = "<H" if front[6] == 1 else "<I"
    prefix = file.read(struct.calcsize(size_format))
    length = struct.unpack(size_format, prefix)[0] if len(prefix) == struct.calcsize(size_format) else 0
    text = file.read(length) if 0 < length <= _MAX_HEADER else b""
    match = _HEADER_PATTERN.fullmatch(text.decode("latin-1")) if len(text) == length else None
    if match is None:
        raise ValueError("its header does not describe an array of plain numbers")
    code, fortran, shape = match.groups()
    return Header(_dtype(code), _shape(shape), "F" if fortran == "True" else "C", 8 + len(prefix) + length)


def _dtype(code: str) -> np.dtype[Any]:
    try:
        return np.dtype(code)
    except TypeError:
        raise ValueError(f"{code!r} is not a type of numbers") from None


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.replace(",", " ").split()
    if len(sizes) > _MAX_DIMENSIONS or any(len(size) > _MAX_SIZE_DIGITS for size in sizes):
        raise ValueError("its header promises more numbers than there can be")
    return tuple(map(int, sizes))


# Columns of numbers and texts.

_HEADER_SIZE = 128
_MIN_HOLE = 1 << 16
"""Fewest bytes of a block of zeros that is left out of the file as a hole."""
_OFFSETS_PER_CHECK = 1 << 24
"""Offsets checked before the memory of their column is given back."""
BLOCK = 1 << 16
"""Rows handled at a time where a complete column is read."""


class NumberWriter:
    """Appends numbers to an `.npy` file, whose header gets its true length on close; rows of `width` make a matrix."""

    def __init__(self, path: Path, dtype: DTypeLike, width: int | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._dtype, self._row = np.dtype(dtype), () if width is None else (width,)
        self._file = path.open("wb")
        self._file.write(_header(self._dtype, (0, *self._row)))
        self.count = 0

    def append(self, values: NDArray[Any] | Sequence[Any]) -> None:
        """Append numbers, or rows of shape (number, width)."""
        array = np.ascontiguousarray(values, self._dtype)
        assert array.shape[1:] == self._row, array.shape
        if _is_hole(array):
            self._file.seek(array.nbytes, os.SEEK_CUR)  # a hole reads as zeros and takes no space on the disk
        else:
            self._file.write(array.data)
        self.count += len(array)

    def close(self) -> None:
        shape = (self.count, *self._row)
        self._file.truncate(_HEADER_SIZE + math.prod(shape) * self._dtype.itemsize)  # where the last block was a hole
        self._file.seek(0)
        self._file.write(_header(self._dtype, shape))
        self._file.close()


class MatrixWriter(NumberWriter):
    """Appends rows of one width to a two-dimensional `.npy` file."""


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
        """Return the complete growing column, memory-mapped where it is a file."""
        if self._writer is not None and self._path is not None:
            self._writer.close()
            return open_numbers(self._path, self._dtype)
        if len(self._parts) == 1:
            return self._parts[0]
        return np.concatenate([np.empty(0, self._dtype), *self._parts])


class TextWriter:
    """Appends texts to a column: a UTF-8 file and its offsets."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._data = (folder / f"{name}.utf8").open("wb", buffering=1 << 20)
        self._offsets = NumberWriter(folder / f"{name}.offsets.npy", np.int64)
        self._offsets.append([0])
        self._end = 0

    def append(self, texts: Sequence[str]) -> None:
        # lone surrogates cannot be encoded; readers remove them, and this is the last guard
        parts = [text.encode("utf-8", "replace") for text in texts]
        self.append_bytes(np.array([len(part) for part in parts], np.int64), b"".join(parts))

    def append_bytes(self, lengths: NDArray[np.int64], data: bytes | NDArray[np.uint8]) -> None:
        """Append texts that are already UTF-8, one after the other."""
        if len(lengths):
            self._data.write(data if isinstance(data, bytes) else data.data)
            ends = self._end + np.cumsum(lengths)
            self._offsets.append(ends)
            self._end = int(ends[-1])

    def append_empty(self, count: int) -> None:
        """Append empty texts."""
        self._offsets.append(np.full(count, self._end, np.int64))

    def close(self) -> None:
        self._data.close()
        self._offsets.close()


class TableWriter(dict[str, Any]):
    """The writers of several columns of one folder, by name: of texts where the type is `str`, else of numbers."""

    def __init__(self, folder: Path, kinds: Mapping[str, Any]) -> None:
        for name, kind in kinds.items():
            self[name] = TextWriter(folder, name) if kind is str else NumberWriter(folder / f"{name}.npy", kind)

    def append(self, **columns: Any) -> None:
        """Append values to the columns that are named."""
        for name, values in columns.items():
            self[name].append(values)

    def close(self) -> None:
        for writer in self.values():
            writer.close()


class TextColumn(Sequence[str]):
    """A memory-mapped column of texts.

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

    def __repr__(self) -> str:
        return f"TextColumn({self._path.stem!r}: {len(self):,} texts)"

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
        """Return the texts of these rows, in their order."""
        starts, ends = self.offsets[rows].tolist(), self.offsets[np.asarray(rows) + 1].tolist()
        return [self._text(start, end) for start, end in zip(starts, ends, strict=True)]

    def lengths(self) -> NDArray[np.int64]:
        """Return the length of every text in bytes."""
        return np.diff(self.offsets)

    @property
    def data(self) -> NDArray[np.uint8]:
        """Return all bytes of the column, one text after the other."""
        return np.frombuffer(self._data, np.uint8)

    def gather(self, rows: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], bytes]:
        """Return lengths and bytes of these rows, ready for `TextWriter.append_bytes`."""
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
        """Return the 64-bit hash key of every text."""
        # compiled code follows the offsets unchecked
        if not offsets_fit(self.offsets, len(self), len(self._data)):
            raise self._damage()
        from citeweave.core.hash_keys import hash_spans  # needs numba, which opening columns does not

        return hash_spans(self.data, self.offsets[:-1], self.offsets[1:])

    def as_arrow(self) -> pyarrow.LargeStringArray:
        """Return the column as an Arrow array that shares its bytes, after a check of its offsets and its UTF-8."""
        import pyarrow

        buffers = [pyarrow.py_buffer(np.ascontiguousarray(array)) for array in (self.offsets, self.data)]
        texts = pyarrow.LargeStringArray.from_buffers(len(self), *buffers)
        try:
            texts.validate(full=True)
        except pyarrow.ArrowInvalid:
            raise self._damage() from None
        return texts

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
    """Return a memory-mapped column of numbers, which must be of this type."""
    array = open_array(path)
    if array.dtype != np.dtype(dtype) or array.ndim != 1:
        raise ArtifactError(f"{path} does not hold one column of {np.dtype(dtype)}; make it again")
    return array


def open_matrix(path: Path, dtype: DTypeLike, shape: tuple[int, int]) -> NDArray[Any]:
    """Return a memory-mapped, row-major matrix, which must be of this type and shape."""
    array = open_array(path)
    if array.dtype != np.dtype(dtype) or array.shape != shape or not array.flags.c_contiguous:
        raise ArtifactError(f"{path} does not hold {shape[0]} rows of {shape[1]} {np.dtype(dtype)}; make it again")
    return array


def offsets_fit(offsets: NDArray[np.int64], rows: int, end: int) -> bool:
    """Return whether a column's offsets split `end` values into `rows` consecutive lists; reads them block by block."""
    if len(offsets) != rows + 1 or offsets[0] != 0 or offsets[-1] != end:
        return False
    for start in range(0, rows, _OFFSETS_PER_CHECK):
        part = offsets[start : start + _OFFSETS_PER_CHECK + 1]
        if (part[1:] < part[:-1]).any():
            return False
        release(offsets)
    return True


def release(*columns: NDArray[Any] | TextColumn) -> None:
    """Give back the memory in which a memory-mapped column was cached; it can be read again."""
    for column in columns:
        if isinstance(column, TextColumn):
            release(column.offsets)
        buffer: Any = column._data if isinstance(column, TextColumn) else column
        while isinstance(buffer, np.ndarray) and buffer.base is not None:
            buffer = buffer.base
        if isinstance(buffer, memoryview):
            buffer = buffer.obj
        if hasattr(buffer, "madvise") and hasattr(mmap, "MADV_DONTNEED"):  # a map, and not on Windows
            buffer.madvise(mmap.MADV_DONTNEED)


def find_sorted(wanted: NDArray[Any], keys: NDArray[Any]) -> NDArray[np.int64]:
    """Return the place of each wanted key in a sorted column of keys, -1 where it is not there.

    >>> find_sorted(np.array([7, 9], np.uint64), np.array([8, 9], np.uint64)).tolist()
    [-1, 1]
    """
    if not len(keys):
        return np.full(wanted.shape, -1, np.int64)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, at, -1)


def find_keys(wanted: NDArray[Any], keys: NDArray[Any]) -> NDArray[np.int64]:
    """Return the place of each wanted key in a column of keys, -1 where it is not there.

    >>> find_keys(np.array([7, 9], np.uint64), np.array([9, 8], np.uint64)).tolist()
    [-1, 0]
    """
    return KeyLookup(keys).find(wanted)


class KeyLookup:
    """Looks up the places of keys in a column that is sorted once; of equal keys the first place is found."""

    def __init__(self, keys: NDArray[Any]) -> None:
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def find(self, wanted: NDArray[Any]) -> NDArray[np.int64]:
        """Return the place of each wanted key, -1 where it is not there."""
        at = find_sorted(wanted, self._keys)
        return np.where(at >= 0, self._order[at], -1) if len(self._keys) else at


def write_numbers(path: Path, values: NDArray[Any], dtype: DTypeLike | None = None) -> None:
    """Write a complete column of numbers."""
    writer = NumberWriter(path, values.dtype if dtype is None else dtype)
    writer.append(values)
    writer.close()


def _is_hole(array: NDArray[Any]) -> bool:
    """Return whether a block of integers is large and all zeros, so that a hole in the file can stand for it."""
    if array.nbytes < _MIN_HOLE or array.dtype.kind not in "iub" or array.flat[0] or array.flat[-1]:
        return False
    return not array.any()


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return an `.npy` header of version 1.0, padded to a fixed size so that it can be rewritten on close."""
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


_MAX_FLOAT = sys.float_info.max


def is_finite(value: object) -> TypeGuard[int | float]:
    """Return whether a value from JSON or TOML is a number that a float can hold; True and False are not.

    >>> is_finite(3), is_finite(0.5), is_finite(float("nan")), is_finite(10**400), is_finite(True), is_finite("3")
    (True, True, False, False, False, False)
    """
    # integers may have hundreds of digits, for which `math.isfinite` and `float` raise OverflowError
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MAX_FLOAT
