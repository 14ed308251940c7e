"""Near-duplicate texts: exact search for texts that share most of their words, by an index of word shingles.

A shingle is a run of consecutive words. Two texts are near duplicates if they share a large part of the
distinct shingles of the shorter one (`containment`), so a truncated abstract matches the complete one.

The usual way, MinHash with banding, proposes pairs by chance, may miss some, and uses the Jaccard
index, which a truncated abstract lowers. Here one side (a benchmark) is small: all its shingles fit in
memory, the other side is streamed, and the counts of shared shingles are exact.

    >>> known = shingle_texts(["we learn word vectors from raw text", "a survey of parsing methods"], words=2)
    >>> index = ShingleIndex.build(known)
    >>> seen = shingle_texts(["Abstract: we learn word vectors from text."], words=2)
    >>> pairs = index.find(seen, DuplicateThreshold(containment=0.6, minimum=3))
    >>> pairs.queries.tolist(), pairs.rows.tolist(), pairs.shared.tolist(), pairs.containment.tolist()
    ([0], [0], [4], [0.6666666865348816])

Words: ASCII letters and digits in lower case; other letters as they are, neither lower-cased nor
stripped of accents; every character of Chinese, Japanese and Korean is a word; all else separates words.
Does not know papers, titles or ids: `leakage.py` compares those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.compiled import compiled
from citeweave.core.hash_keys import spread_bits
from citeweave.core.ragged import count_owners, run_offsets, to_offsets

BOILERPLATE = 100
"""A shingle that occurs in more texts of an index than this ("in this paper") is ignored."""

_FNV_START, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_HALF = np.uint64(33)
_SEPARATOR, _LETTER, _SEPARATOR_2, _SEPARATOR_3, _CHARACTER_3 = 0, 1, 2, 3, 4


def _kinds_of_bytes() -> NDArray[np.uint8]:
    """Return for every byte whether it is part of a word, a separator, or the start of a longer character."""
    kinds = np.full(256, _LETTER, np.uint8)  # (256,)
    kinds[:128] = [_LETTER if chr(byte).isalnum() else _SEPARATOR for byte in range(128)]
    kinds[0xC2] = _SEPARATOR_2  # U+0080-00BF: Latin-1 symbols such as the no-break space
    kinds[0xE2] = _SEPARATOR_3  # U+2000-2FFF: dashes, quotes, mathematical symbols
    kinds[0xE3:0xEE] = _CHARACTER_3  # U+3000-D7FF: Chinese, Japanese, Korean
    return kinds


_KINDS = _kinds_of_bytes()


@dataclass(frozen=True, slots=True)
class Shingles:
    """The distinct word shingles of some texts: text `i` has `hashes[bounds[i]:bounds[i + 1]]`."""

    hashes: NDArray[np.uint64]
    bounds: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.bounds) - 1


class DuplicateThreshold(NamedTuple):
    """Conditions under which two texts count as near duplicates; all must hold."""

    containment: float = 0.0
    jaccard: float = 0.0
    minimum: int = 1
    """Texts with fewer distinct shingles, on either side, are not compared."""


@dataclass(frozen=True, slots=True)
class DuplicatePairs:
    """Pairs of near-duplicate texts, one pair per position."""

    queries: NDArray[np.int64]
    """Positions of the query texts."""

    rows: NDArray[np.int64]
    """Positions of the texts in the index."""

    shared: NDArray[np.int64]
    """Distinct shingles that both have."""

    containment: NDArray[np.float32]
    """Shared shingles as a fraction of the shorter text's shingles."""

    jaccard: NDArray[np.float32]
    """Shared shingles as a fraction of all shingles of both texts."""


def shingle_texts(texts: Sequence[str], words: int) -> Shingles:
    """Return the word shingles of every text: hashes of its runs of `words` words; a shorter text has none.

    >>> shingle_texts(["a b c", "A, B", "b"], words=2).bounds.tolist()
    [0, 2, 3, 3]
    """
    encoded = [text.encode("utf-8", "replace") for text in texts]
    bounds = to_offsets([len(data) for data in encoded])  # (texts + 1,)
    buffer = np.frombuffer(b"".join(encoded), np.uint8)  # (bytes,)
    hashes = np.empty(len(buffer) // 2 + len(encoded), np.uint64)  # a word and its separator take two bytes or more
    ends = np.zeros(len(encoded) + 1, np.int64)  # (texts + 1,)
    longest = int(np.diff(bounds).max(initial=1))
    slots = np.empty(1 << longest.bit_length(), np.uint64)  # more than there can be words
    _hash_shingles(buffer, bounds, _KINDS, words, slots, hashes, ends)
    return Shingles(hashes[: ends[-1]].copy(), ends)


@dataclass(frozen=True, slots=True)
class ShingleIndex:
    """Index from word shingles to the texts that contain them. About 20 bytes per shingle, 3.5 kB per abstract."""

    keys: NDArray[np.uint64]
    """Every shingle of every text, sorted."""

    rows: NDArray[np.int32]
    """The text of each key; a single -1 stands for all texts of a boilerplate shingle."""

    directory: NDArray[np.int32]
    """Keys whose first bits are `b` are at positions `directory[b]` to `directory[b + 1]`."""

    sizes: NDArray[np.int64]
    """Distinct shingles of each text, boilerplate left out."""

    @classmethod
    def build(cls, shingles: Shingles, boilerplate: int = BOILERPLATE) -> ShingleIndex:
        """Build the index of some texts' shingles, ignoring shingles that more than `boilerplate` texts share."""
        owners = np.repeat(np.arange(len(shingles), dtype=np.int32), np.diff(shingles.bounds))
        order = np.argsort(shingles.hashes, kind="stable")
        keys, rows = shingles.hashes[order], owners[order]  # (shingles,) each
        offsets = run_offsets(keys)
        sizes = np.diff(offsets)
        common = np.repeat(sizes > boilerplate, sizes)
        rows[common] = -1
        indexed = ~common
        indexed[offsets[:-1]] = True
        keys, rows = keys[indexed], rows[indexed]
        sizes = np.bincount(rows[rows >= 0], minlength=len(shingles)).astype(np.int64)
        bits = len(keys).bit_length() + 1  # mostly empty, so that most misses end here
        leads = (keys >> np.uint64(64 - bits)).astype(np.int64)
        return cls(keys, rows, count_owners(leads, 1 << bits).astype(np.int32), sizes)

    def find(self, shingles: Shingles, threshold: DuplicateThreshold) -> DuplicatePairs:
        """Find every pair of a query text and a text of the index that reaches the threshold."""
        shift = np.uint64(65 - len(self.directory).bit_length())  # the directory has 2**bits + 1 entries
        capacity = 4 * len(shingles) + 1024
        while True:
            pairs = np.empty((capacity, 4), np.int64)  # query, row, shared, size of the query
            number = _find_pairs(
                shingles.hashes, shingles.bounds, self.keys, self.rows, self.directory, shift, self.sizes,
                *threshold, pairs,
            )  # fmt: skip
            if number <= capacity:
                break
            capacity = number
        queries, rows, shared, sizes = pairs[:number].T
        smaller = np.minimum(sizes, self.sizes[rows])
        union = sizes + self.sizes[rows] - shared
        return DuplicatePairs(
            queries.copy(), rows.copy(), shared.copy(),
            (shared / smaller).astype(np.float32), (shared / union).astype(np.float32),
        )  # fmt: skip


@compiled()
def _word_end(buffer, at, stop, kinds):  # type: ignore[no-untyped-def]
    """Hash the next word at or after `at` by FNV-1a; return its hash and its end (-1: no word left)."""
    value = _FNV_START
    inside = False
    while at < stop:
        kind = kinds[buffer[at]]
        if kind == _LETTER:
            byte = buffer[at]
            if 65 <= byte <= 90:
                byte += 32
            value = (value ^ np.uint64(byte)) * _FNV_PRIME
            inside = True
            at += 1
        elif inside:
            return value, at
        elif kind == _CHARACTER_3:
            for place in range(at, min(at + 3, stop)):
                value = (value ^ np.uint64(buffer[place])) * _FNV_PRIME
            return value, min(at + 3, stop)
        else:
            at += 1 if kind == _SEPARATOR else kind
    return value, (at if inside else -1)


@compiled()
def _hash_shingles(buffer, bounds, kinds, words, slots, hashes, ends):  # type: ignore[no-untyped-def]
    """Write the distinct shingle hashes of all texts, one text after the other, and where each text's end."""
    # buffer (bytes,), bounds (texts + 1,), kinds (256,), slots (a power of two,) -> hashes (bytes,), ends (texts + 1,)
    window = np.zeros(words, np.uint64)  # the last words' hashes, oldest first
    stamps = np.zeros(len(slots), np.int32)
    filled = 0
    for text in range(len(bounds) - 1):
        seen = 0
        first = filled
        value, at = _word_end(buffer, bounds[text], bounds[text + 1], kinds)
        while at >= 0:
            for place in range(words - 1):
                window[place] = window[place + 1]
            window[words - 1] = value
            seen += 1
            if seen >= words:
                shingle = _FNV_START
                for place in range(words):
                    shingle = (shingle ^ window[place]) * _FNV_PRIME
                    shingle ^= shingle >> _HALF
                hashes[filled] = spread_bits(shingle)  # the index sorts by the first bits
                filled += 1
            value, at = _word_end(buffer, at, bounds[text + 1], kinds)
        filled = _keep_distinct(hashes, first, filled, slots, stamps, text + 1)
        ends[text + 1] = filled


@compiled()
def _keep_distinct(hashes, first, last, slots, stamps, stamp):  # type: ignore[no-untyped-def]
    """Drop repeated shingles in `hashes[first:last]`, keep the order, and return the new end."""
    # slots, stamps (a power of two,): a hash set; a slot is taken if it has this text's stamp
    mask = np.uint64(len(slots) - 1)
    end = first
    for place in range(first, last):
        slot = hashes[place] & mask
        while stamps[slot] == stamp and slots[slot] != hashes[place]:
            slot = (slot + np.uint64(1)) & mask
        if stamps[slot] != stamp:
            slots[slot], stamps[slot] = hashes[place], stamp
            hashes[end] = hashes[place]
            end += 1
    return end


@compiled()
def _find_pairs(hashes, bounds, keys, rows, directory, shift, sizes, containment, jaccard, minimum, pairs):  # type: ignore[no-untyped-def]
    """Write the near-duplicate pairs of query and index texts as far as they fit, and return their total number."""
    # hashes (shingles,), bounds (texts + 1,) of the queries; keys, rows, directory, sizes of the index
    # -> pairs (capacity, 4)
    counts = np.zeros(len(sizes), np.int32)  # shared shingles with each text of the index
    touched = np.empty(len(sizes), np.int32)  # the texts whose count is not 0
    number = 0
    for text in range(len(bounds) - 1):
        size = bounds[text + 1] - bounds[text]
        reached = 0
        for place in range(bounds[text], bounds[text + 1]):
            lead = np.int64(hashes[place] >> shift)
            for entry in range(directory[lead], directory[lead + 1]):
                if keys[entry] == hashes[place]:
                    row = rows[entry]
                    if row < 0:
                        size -= 1
                        continue
                    if counts[row] == 0:
                        touched[reached] = row
                        reached += 1
                    counts[row] += 1
        for step in range(reached):
            row = touched[step]
            shared = counts[row]
            counts[row] = 0
            smaller = min(size, sizes[row])
            union = size + sizes[row] - shared
            if smaller >= minimum and shared >= containment * smaller and shared >= jaccard * union:
                if number < len(pairs):
                    pairs[number, 0], pairs[number, 1] = text, row
                    pairs[number, 2], pairs[number, 3] = shared, size
                number += 1
    return number
