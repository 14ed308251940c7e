"""Columns of a Parquet table of citations as arrays: ids as numbers or texts, strengths, intents, flags.

    >>> ids = numbers_or_texts(pa.array([7, None, -1]), "citing", "s2:", Path("x.parquet"))
    >>> ids.given.tolist(), ids.sound.tolist(), ids.where(ids.given & ids.sound).texts()
    ([True, False, True], [True, True, False], ['s2:7'])

Nothing here opens files or knows what the columns are called.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from citeweave.corpus.cleaning import clean_text
from citeweave.corpus.paper import parse_intents
from citeweave.errors import InputError
from citeweave.hashing import Keys, hash_numbers, hash_spans

Mask = NDArray[np.bool_]

_BETWEEN_INTENTS = re.compile(r"[|;,]")
_EXACT = 2.0**53
"""Whole numbers above it cannot all be told apart as floating-point ones."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Ids that are a prefix and a number."""

    prefix: str
    numbers: NDArray[Any]
    given: Mask
    """False where there is none."""

    sound: Mask
    """False where it is negative, a fraction or too large."""

    def __len__(self) -> int:
        return len(self.numbers)

    def where(self, mask: Mask) -> Numbers:
        return self if mask.all() else Numbers(self.prefix, self.numbers[mask], self.given[mask], self.sound[mask])

    def keys(self) -> Keys:
        return hash_numbers(self.prefix, self.numbers)

    def texts(self) -> list[str]:
        return [f"{self.prefix}{number}" for number in self.numbers.tolist()]


@dataclass(frozen=True, slots=True)
class Texts:
    """Ids that are texts, clean of blanks and control signs."""

    column: pa.Array
    given: Mask

    @property
    def sound(self) -> Mask:
        return np.ones(len(self), np.bool_)

    def __len__(self) -> int:
        return len(self.column)

    def where(self, mask: Mask) -> Texts:
        return self if mask.all() else Texts(self.column.filter(pa.array(mask)), self.given[mask])

    def keys(self) -> Keys:
        """Straight from the column's bytes."""
        _, offsets, data = self.column.buffers()
        ends = np.frombuffer(offsets, np.int64)[self.column.offset : self.column.offset + len(self) + 1]
        return hash_spans(np.frombuffer(data or b"", np.uint8), ends[:-1], ends[1:])

    def texts(self) -> list[str]:
        return [str(text) for text in self.column.to_pylist()]


def numbers_or_texts(column: pa.Array, name: str, prefix: str, path: Path) -> Numbers | Texts:
    """The ids of a column; `prefix` is put before numbers, also before those that are written as texts."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    given = _given(column)
    if pa.types.is_integer(kind):
        numbers = column.cast(kind).fill_null(0).to_numpy(zero_copy_only=False)
        sound = numbers < 2**63 if numbers.dtype == np.uint64 else numbers >= 0
        return Numbers(prefix, numbers, given, sound)
    if pa.types.is_floating(kind):
        # what pandas makes of whole numbers some of which are missing
        values = column.cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
        given &= ~np.isnan(values)
        sound = ~given | ((values >= 0) & (values < _EXACT) & (values == np.floor(values)))
        return Numbers(prefix, np.where(given & sound, values, 0).astype(np.int64), given, sound)
    if _is_text(kind) or pa.types.is_null(kind):
        return _prefixed(_clean(column.cast(pa.large_string()).fill_null("")), prefix)
    raise InputError(f"{path}: column {name!r} is of type {column.type}; ids are whole numbers or texts; convert it")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _prefixed(ids: Texts, prefix: str) -> Texts:
    if not prefix or not len(ids):
        return ids
    parts = (pa.scalar(prefix, pa.large_string()), ids.column, pa.scalar("", pa.large_string()))
    column = pc.if_else(pc.utf8_is_decimal(ids.column), pc.binary_join_element_wise(*parts), ids.column)
    return Texts(column, ids.given)


def _clean(column: pa.Array) -> Texts:
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    used = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]] if len(column) else np.empty(0, np.uint8)
    # printable ASCII without blanks is clean as it is; anything else is looked at text by text
    if ((used <= 32) | (used >= 127)).any():
        column = pa.array([clean_text(text) for text in _decoded(column)], pa.large_string())
        ends = np.frombuffer(column.buffers()[1], np.int64)[: len(column) + 1]
    return Texts(column, np.diff(ends) > 0)


def _decoded(column: pa.Array) -> list[str]:
    """Parquet's writers promise UTF-8 and some break the promise."""
    return [bytes(text).decode("utf-8", "replace") for text in column.cast(pa.large_binary()).to_pylist()]


def strengths_of(column: pa.Array, name: str, path: Path) -> NDArray[np.float32]:
    """Strengths of citations; 1 where there is none, or none that makes sense."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise InputError(
            f"{path}: column {name!r} is of type {column.type}; strengths are numbers; convert it or rename it"
        )
    values = column.cast(pa.float64(), safe=False).fill_null(1.0).to_numpy(zero_copy_only=False)
    return np.where((values >= 0) & (values < 1e9), values, 1.0).astype(np.float32)


def intents_of(column: pa.Array, name: str, path: Path) -> NDArray[np.uint8]:
    """Intents as bits: words, several of them in one text between signs, or lists of words."""
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.uint8)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        out = np.zeros(len(column), np.uint8)
        rows = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
        np.bitwise_or.at(out, rows, intents_of(column.flatten(), name, path))
        return out
    if pa.types.is_dictionary(kind) or _is_text(kind):
        encoded = column if pa.types.is_dictionary(kind) else column.dictionary_encode()
        words = [str(word or "") for word in encoded.dictionary.to_pylist()]
        bits = np.array([int(parse_intents(_BETWEEN_INTENTS.split(word))) for word in words] + [0], np.uint8)
        found: NDArray[np.uint8] = bits[encoded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)]
        return found
    raise InputError(
        f"{path}: column {name!r} is of type {kind}; intents are words or lists of words; convert it or rename it"
    )


def flags_of(column: pa.Array, name: str, path: Path) -> Mask:
    """True and False, or numbers, of which 0 is False; False where nothing is said."""
    kind = column.type
    if not (pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise InputError(
            f"{path}: column {name!r} is of type {column.type}; it must be true or false; convert it or rename it"
        )
    flags: Mask = column.cast(pa.bool_()).fill_null(False).to_numpy(zero_copy_only=False)
    return flags


def _given(column: pa.Array) -> Mask:
    if column.null_count == 0:
        return np.ones(len(column), np.bool_)
    given: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return given
