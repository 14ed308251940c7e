"""Texts as UTF-8 bytes in which a word is a run of ASCII letters, digits, underscores and bytes beyond ASCII.

    >>> data, offsets = to_bytes(["As is", "n–gram É", "ΟΔΟΣ"])
    >>> data.tobytes().decode(), offsets.tolist()
    ('As isn   gram éοδος', [0, 5, 16, 24])

Letters beyond ASCII become small as `str.lower` makes them, signs beyond ASCII that are no part of a word become
blanks; capitals of ASCII stay. Compiled code does it letter by letter from a table of Unicode's first plane; a text
with a letter that becomes small in another way (of another length, or, as the Greek sigma, by the letters around it)
or that lies beyond that plane goes through Python's own rule as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

_NO_WORD = re.compile(r"[^\w\x00-\x7f]+")
_FIRST_PLANE = 1 << 16
_PARTS_WORDS, _OTHERWISE = 0, -1
_SIGMA = ord("Σ")


class TextBytes(NamedTuple):
    """Texts one after the other."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    """(texts + 1,)"""


def to_bytes(texts: Sequence[str]) -> TextBytes:
    """The bytes of these texts, settled as above."""
    parts = [text.encode("utf-8", "replace") for text in texts]  # lone surrogates are no part of a word, nor is "?"
    joined = _join(parts)
    if not joined.data.size or int(joined.data.max()) < 0x80:
        return joined
    odd = np.flatnonzero(_settle(joined.data, joined.offsets, _small_letters()))
    if not len(odd):
        return joined
    for number in odd.tolist():
        parts[number] = _NO_WORD.sub(" ", texts[number].lower()).encode()
    joined = _join(parts)
    _settle(joined.data, joined.offsets, _small_letters())
    return joined


def _join(parts: Sequence[bytes]) -> TextBytes:
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts], dtype=np.int64)]).astype(np.int64)
    return TextBytes(np.frombuffer(bytearray(b"".join(parts)), np.uint8), offsets)


@cache
def _small_letters() -> NDArray[np.int32]:
    """(65536,): each letter of a word as a small one, 0 for what parts words, -1 where a table cannot tell."""
    table = np.zeros(_FIRST_PLANE, np.int32)
    for code in range(0x80, _FIRST_PLANE):
        letter = chr(code)
        small = letter.lower()
        if code == _SIGMA or (small != letter and (len(small) > 1 or _width(ord(small)) != _width(code))):
            table[code] = _OTHERWISE
        elif letter.isalnum():
            table[code] = ord(small)
    return table


def _width(code: int) -> int:
    """Bytes of a letter in UTF-8."""
    return 1 if code < 0x80 else 2 if code < 0x800 else 3


@numba.njit(cache=True, nogil=True)
def _settle(data: NDArray[np.uint8], offsets: NDArray[np.int64], small: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Make letters small and signs blanks, in place; which texts hold a letter that was left as it is."""
    odd = np.zeros(len(offsets) - 1, np.bool_)
    for text in range(len(odd)):
        at = offsets[text]
        while at < offsets[text + 1]:
            first = data[at]
            if first < 0x80:
                at += 1
                continue
            if first >= 0xF0:
                odd[text] = True
                at += 4
                continue
            wide = first >= 0xE0
            code = np.int32(data[at + 1] & 0x3F)
            if wide:
                code = (np.int32(first & 0x0F) << 12) | (code << 6) | np.int32(data[at + 2] & 0x3F)
            else:
                code |= np.int32(first & 0x1F) << 6
            letter = small[code]
            if letter < 0:
                odd[text] = True
            elif letter == 0:
                data[at : at + 2 + wide] = 32
            elif wide:
                data[at] = 0xE0 | (letter >> 12)
                data[at + 1] = 0x80 | ((letter >> 6) & 0x3F)
                data[at + 2] = 0x80 | (letter & 0x3F)
            else:
                data[at] = 0xC0 | (letter >> 6)
                data[at + 1] = 0x80 | (letter & 0x3F)
            at += 2 + wide
    return odd
