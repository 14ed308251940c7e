"""Ways to spoil a file: cut off, flipped, edited, swapped, of another version.

    >>> name, spoiled = corrupt(b'{"version": 1, "rows": 12}', b"another file", random.Random(3))
    >>> name in WAYS, spoiled != b'{"version": 1, "rows": 12}'
    (True, True)

The same random generator spoils the same file alike.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

Way = Callable[[bytes, bytes, random.Random], bytes]

_NUMBER = re.compile(rb"-?\d+")
_VERSION = re.compile(rb'("version": ?|NUMPY)(.)')
_HEAD = 256
"""Bytes at the beginning of a file, where formats have their sizes."""

_EXTREMES = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def corrupt(data: bytes, other: bytes, rng: random.Random) -> tuple[str, bytes]:
    """The name of a way and what it makes of the data; `other` is a file that could lie in its place by mistake."""
    while True:
        name = rng.choice(list(WAYS))
        spoiled = WAYS[name](data, other, rng)
        if spoiled != data:
            return name, spoiled


def _cut_off(data: bytes, other: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _flip(data: bytes, other: bytes, rng: random.Random, within: int | None = None) -> bytes:
    spoiled = bytearray(data)
    for _ in range(rng.randint(1, 3) if data else 0):
        spoiled[rng.randrange(min(len(data), within or len(data)))] ^= 1 << rng.randrange(8)
    return bytes(spoiled)


def _flip_in_head(data: bytes, other: bytes, rng: random.Random) -> bytes:
    return _flip(data, other, rng, within=_HEAD)


def _edit_number(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """A number that is written in digits becomes another: a shape, a size, a count."""
    found = list(_NUMBER.finditer(data[: 1 << 16]))
    if not found:
        return _overwrite_word(data, other, rng)
    place = rng.choice(found)
    value = int(place[0])
    new = rng.choice([0, -1, value + 1, value - 1, value * 2, 10 ** rng.randint(3, 25), -value])
    return data[: place.start()] + str(new).encode() + data[place.end() :]


def _overwrite_word(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Four or eight bytes at a round place become an extreme number: an offset, a length, a row."""
    size = rng.choice([4, 8])
    at = rng.randrange(max(1, len(data) // size)) * size
    word = (rng.choice(_EXTREMES) % 2 ** (8 * size)).to_bytes(size, "little")
    return data[:at] + word[: len(data) - at] + data[at + size :]


def _zero(data: bytes, other: bytes, rng: random.Random) -> bytes:
    at, length = rng.randrange(len(data) + 1), rng.choice([1, 16, 512, 4096])
    return data[:at] + bytes(len(data[at : at + length])) + data[at + length :]


def _lengthen(data: bytes, other: bytes, rng: random.Random) -> bytes:
    return data + rng.randbytes(rng.choice([1, 8, 100]))


def _swap(data: bytes, other: bytes, rng: random.Random) -> bytes:
    return other


def _other_version(data: bytes, other: bytes, rng: random.Random) -> bytes:
    found = list(_VERSION.finditer(data[: 1 << 16]))
    if not found:
        return _flip_in_head(data, other, rng)
    place = rng.choice(found)
    new = (
        bytes([rng.choice(b"02399\x00\xff")])
        if place[1] == b"NUMPY"
        else rng.choice([b"0", b"2", b"99", b"-1", b'"1"'])
    )
    return data[: place.start(2)] + new + data[place.end(2) :]


WAYS: dict[str, Way] = {
    "cut off": _cut_off,
    "bits flipped": _flip,
    "bits flipped in the head": _flip_in_head,
    "number edited": _edit_number,
    "word overwritten": _overwrite_word,
    "zeroed": _zero,
    "lengthened": _lengthen,
    "swapped": _swap,
    "other version": _other_version,
}
