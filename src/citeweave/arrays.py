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
"""

from __future__ import annotations

import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import ArtefactError
from citeweave.files import open_input

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
    """The array of an `.npy` file of an artefact, memory-mapped."""
    try:
        array = map_array(path)
        with open_input(path) as file:
            if path.stat().st_size != read_header(file).end:
                raise ValueError("it is longer than its header says")
        return array
    except FileNotFoundError:
        raise ArtefactError(f"{path} is missing: the artefact is not complete; make it again") from None
    except (ValueError, OSError) as error:
        raise ArtefactError(f"{path} is damaged ({error}); make it again") from None


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
        raise ArtefactError(
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
