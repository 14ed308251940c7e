"""Stable 64-bit hash keys of texts and ids, computed over complete columns.

The same text has the same key on every machine and in every version of citeweave, whether it comes as a Python string, as
a column of UTF-8 bytes or as a prefix and a number:

    >>> int(hash_text("s2:42")) == int(hash_numbers("s2:", np.array([42]))[0])
    True

Keys are spread evenly over 64 bits, so two of a hundred million ids share one with a chance of 1 in 3,700. They are not
meant to withstand somebody who searches for two ids with one key.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from citeweave.core.compiled import compiled
from citeweave.core.ragged import to_offsets

Keys = NDArray[np.uint64]

_START = np.uint64(0xCBF29CE484222325)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_FEW_BYTES = 4096
"""Bytes that Python hashes sooner than numba is loaded."""


@compiled()
def spread_bits(state: np.uint64) -> np.uint64:
    """Spread the bits of a hash evenly, for compiled code: MurmurHash3's finalizer (Appleby)."""
    state ^= state >> np.uint64(33)
    state *= np.uint64(0xFF51AFD7ED558CCD)
    state ^= state >> np.uint64(33)
    state *= np.uint64(0xC4CEB9FE1A85EC53)
    state ^= state >> np.uint64(33)
    # 0 means "no key"
    return state if state != np.uint64(0) else np.uint64(1)


@compiled()
def _hash_bytes(data: NDArray[np.uint8], start: int, end: int) -> np.uint64:
    """Hash a span of bytes, eight per step, the last padded with zeros; the length tells such texts apart."""
    state = _START ^ np.uint64(end - start)
    at = start
    while at < end:
        word = np.uint64(0)
        if at + 8 <= end:
            place = np.uintp(at)  # unsigned, so that the compiler merges the eight loads into one
            for i in range(8):
                word |= np.uint64(data[place + np.uintp(i)]) << np.uint64(8 * i)
        else:
            for i in range(end - at):
                word |= np.uint64(data[at + i]) << np.uint64(8 * i)
        state = (state ^ word) * _ODD
        state ^= state >> np.uint64(32)
        at += 8
    return spread_bits(state)


@compiled()
def _hash_spans(data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], out: Keys) -> None:
    for i in range(len(out)):
        out[i] = _hash_bytes(data, starts[i], ends[i])


@compiled()
def write_digits(number: int, out: NDArray[np.uint8], start: int) -> int:
    """Write a non-negative number as ASCII digits from `start` on and return where they end, for compiled code."""
    end = start
    while number > 0 or end == start:
        out[end] = 48 + number % 10
        number //= 10
        end += 1
    for i in range((end - start) // 2):
        out[start + i], out[end - 1 - i] = out[end - 1 - i], out[start + i]
    return end


@compiled()
def _hash_numbers(prefix: NDArray[np.uint8], numbers: NDArray[np.int64], out: Keys) -> None:
    text = np.empty(len(prefix) + 20, np.uint8)
    text[: len(prefix)] = prefix
    for i in range(len(numbers)):
        out[i] = _hash_bytes(text, 0, write_digits(numbers[i], text, len(prefix)))


def hash_spans(data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Keys:
    """Return the hash keys of the byte spans data[starts[i]:ends[i]]."""
    out = np.empty(len(starts), np.uint64)
    run = _hash_spans.small if int((ends - starts).sum()) <= _FEW_BYTES else _hash_spans
    run(data, starts, ends, out)
    return out


def hash_texts(texts: list[str]) -> Keys:
    """Return the hash keys of many strings, in order."""
    parts = [text.encode() for text in texts]
    offsets = to_offsets([len(part) for part in parts])
    return hash_spans(np.frombuffer(b"".join(parts), np.uint8), offsets[:-1], offsets[1:])


def hash_text(text: str) -> np.uint64:
    """Return the hash key of one string."""
    return np.uint64(hash_texts([text])[0])


def hash_numbers(prefix: str, numbers: NDArray[np.int64]) -> Keys:
    """Return the hash keys of `prefix + str(number)` for non-negative numbers, without making the strings."""
    out = np.empty(len(numbers), np.uint64)
    _hash_numbers(np.frombuffer(prefix.encode(), np.uint8), np.ascontiguousarray(numbers, np.int64), out)
    return out


@compiled()
def mix_words(first: np.uint64, second: np.uint64) -> np.uint64:
    """Combine two hash keys into one, for compiled code."""
    return spread_bits(first * _ODD + second)


@compiled()
def mix_keys(first: Keys, second: Keys) -> Keys:
    """Combine two columns of hash keys into one, row by row; the order of the two matters."""
    out = np.empty(len(first), np.uint64)
    for i in range(len(first)):
        out[i] = mix_words(first[i], second[i])
    return out
