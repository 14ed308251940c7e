"""Deterministic draws from candidate lists and the pool, by keys of seed, purpose, anchor and candidate.

    draw 2 of [4, 7, 9] for anchor 3   ->   the two with the smallest key(salt, 3, candidate)

A key depends on nothing else, so the same papers are drawn under any number of workers, blocks or machines, and no
random generator is needed per anchor.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.core.hash_keys import mix_words
from citeweave.core.randomness import stream

_ATTEMPTS = 4096
"""Random draws before the pool is scanned from a random position."""


class CandidateLists(NamedTuple):
    """Lists to draw from: the candidate papers of every anchor, ragged, with scores."""

    offsets: NDArray[np.int64]
    """Shape (anchors + 1,)."""

    rows: NDArray[np.int32]
    scores: NDArray[np.float32]
    """Higher is nearer or stronger; NaN if there is nothing to rank by. Shape of `rows`."""

    def counts(self) -> NDArray[np.int64]:
        """Return the number of candidates of every anchor."""
        return np.diff(self.offsets)

    def owners(self) -> NDArray[np.int64]:
        """Return the anchor's number for every candidate."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.counts())


def empty_lists(anchors: int) -> CandidateLists:
    """Return candidate lists without any candidate, for so many anchors."""
    return CandidateLists(np.zeros(anchors + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))


def derive_salt(seed: int, *purpose: str | int) -> np.uint64:
    """Derive the 64-bit salt of a seed and a purpose, on which draws depend."""
    return np.uint64(stream(seed, *purpose).integers(1, 2**63))


def filter_entries(lists: CandidateLists, mask: NDArray[np.bool_]) -> CandidateLists:
    """Return the candidate lists with only the entries of a mask."""
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(mask)])
    return CandidateLists(ends[lists.offsets], lists.rows[mask], lists.scores[mask])


def join_lists(*parts: CandidateLists) -> CandidateLists:
    """Join several lists to draw from, anchor by anchor."""
    if len(parts) == 1:
        return parts[0]
    owners = np.concatenate([part.owners() for part in parts])
    order = np.argsort(owners, kind="stable")
    offsets = np.sum([part.offsets for part in parts], axis=0)
    rows = np.concatenate([part.rows for part in parts])[order]
    return CandidateLists(offsets, rows, np.concatenate([part.scores for part in parts])[order])


def drop_forbidden(lists: CandidateLists, forbidden: CandidateLists, nodes: int) -> CandidateLists:
    """Return the lists to draw from without the papers in the forbidden list of the same anchor."""
    if not len(lists.rows) or not len(forbidden.rows):
        return lists
    mask = np.empty(len(lists.rows), bool)
    _allowed(lists.offsets, lists.rows, forbidden.offsets, forbidden.rows, np.zeros(nodes, np.int32), mask)
    return filter_entries(lists, mask)


def choose_candidates(
    lists: CandidateLists, keys: NDArray[np.uint64], count: int, order: str, salt: np.uint64
) -> CandidateLists:
    """Draw at most `count` candidates per anchor: at random, or the strongest or weakest with ties at random.

    Repeated papers count once. `keys` identify the anchors, one for each list.
    """
    sign = {"random": 0.0, "strongest": -1.0, "weakest": 1.0}[order]
    limits = np.minimum(lists.counts(), count)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(limits)])
    picked = np.empty(int(offsets[-1]), np.int64)
    sizes = np.zeros(len(keys), np.int64)
    _choose(lists.offsets, lists.rows, lists.scores, keys, np.float32(sign), salt, offsets, picked, sizes)
    within = np.arange(len(picked)) - np.repeat(offsets[:-1], limits)
    mask = within < np.repeat(sizes, limits)
    picked = picked[mask]
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return CandidateLists(ends, lists.rows[picked], lists.scores[picked])


def take_first(lists: CandidateLists, count: int) -> CandidateLists:
    """Return at most the first `count` candidates of every anchor."""
    place = np.arange(len(lists.rows)) - np.repeat(lists.offsets[:-1], lists.counts())
    return filter_entries(lists, place < count)


def repeat_to(lists: CandidateLists, count: int) -> CandidateLists:
    """Repeat the drawn candidates of every anchor that has some until there are `count`."""
    counts = lists.counts()
    sizes = np.where(counts > 0, np.maximum(counts, count), 0)
    place = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    at = np.repeat(lists.offsets[:-1], sizes) + place % np.repeat(np.maximum(counts, 1), sizes)
    return CandidateLists(np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]), lists.rows[at], lists.scores[at])


def shuffle(lists: CandidateLists, keys: NDArray[np.uint64], salt: np.uint64) -> NDArray[np.int64]:
    """Return an order of all candidates that shuffles each list; repeats of a paper stay distinct entries."""
    place = np.arange(len(lists.rows)) - np.repeat(lists.offsets[:-1], lists.counts())
    owners = lists.owners()
    order = _keys(salt, keys[owners], lists.rows.astype(np.uint64), place.astype(np.uint64))
    return np.lexsort([order, owners])


def draw_from_pool(
    anchors: NDArray[np.int64],
    keys: NDArray[np.uint64],
    pool: NDArray[np.int32],
    count: int,
    forbidden: CandidateLists,
    salt: np.uint64,
    *,
    fields: tuple[NDArray[np.uint64], str] | None = None,
) -> CandidateLists:
    """Draw `count` distinct papers of the pool per anchor, uniformly, never forbidden ones or the anchor itself.

    A larger draw begins with the papers of a smaller one. `fields` holds a bit mask for every row and requires the
    same, overlapping or disjoint fields of study; papers without fields are then never drawn. Papers are rows under
    2**31.
    """
    masks, kind = fields if fields is not None else (np.zeros(0, np.uint64), "")
    mode = {"": 0, "same": 1, "overlapping": 2, "disjoint": 3}[kind]
    size = min(count, len(pool))
    rows, drawn = np.empty(len(anchors) * size, np.int32), np.zeros(len(anchors), np.int64)
    nodes = 1 + max(int(values.max()) for values in (anchors, pool, forbidden.rows, np.zeros(1)) if len(values))
    stamps = np.zeros(nodes, np.int32)
    _draw(anchors, keys, pool, size, forbidden.offsets, forbidden.rows, salt, masks, mode, stamps, rows, drawn)
    mask = np.arange(len(rows)) % max(size, 1) < np.repeat(drawn, size)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(drawn)])
    return CandidateLists(ends, rows[mask], np.full(int(mask.sum()), np.nan, np.float32))


@numba.njit(cache=True, nogil=True)
def anchor_key(salt: np.uint64, anchor: np.uint64, row: np.uint64) -> np.uint64:
    """Return the key of drawing a paper for an anchor."""
    return mix_words(mix_words(salt, anchor), row)


@numba.njit(cache=True, nogil=True)
def _keys(salt, anchor_keys, rows, places):  # type: ignore[no-untyped-def]
    out = np.empty(len(rows), np.uint64)
    for i in range(len(rows)):
        out[i] = mix_words(anchor_key(salt, anchor_keys[i], rows[i]), places[i])
    return out


@numba.njit(cache=True, nogil=True)
def _allowed(offsets, rows, forbidden_offsets, forbidden, stamps, mask):  # type: ignore[no-untyped-def]
    for number in range(len(offsets) - 1):
        for i in range(forbidden_offsets[number], forbidden_offsets[number + 1]):
            stamps[forbidden[i]] = number + 1
        for i in range(offsets[number], offsets[number + 1]):
            mask[i] = stamps[rows[i]] != number + 1


@numba.njit(cache=True, nogil=True)
def _choose(offsets, rows, scores, anchor_keys, sign, salt, out_offsets, picked, sizes):  # type: ignore[no-untyped-def]
    """Keep the first candidates of each list by (sign * score, key): insertion into a small sorted array."""
    for number in range(len(anchor_keys)):
        start, limit = out_offsets[number], out_offsets[number + 1] - out_offsets[number]
        values, keys = np.empty(limit, np.float32), np.empty(limit, np.uint64)
        size = 0
        for i in range(offsets[number], offsets[number + 1]):
            key = anchor_key(salt, anchor_keys[number], np.uint64(rows[i]))
            value = np.float32(0.0) if sign == 0 else sign * scores[i]
            if size == limit and (value > values[size - 1] or (value == values[size - 1] and key >= keys[size - 1])):
                continue
            at = size if size < limit else size - 1
            while at > 0 and (value < values[at - 1] or (value == values[at - 1] and key < keys[at - 1])):
                at -= 1
            if at > 0 and rows[picked[start + at - 1]] == rows[i]:
                continue
            last = size if size < limit else size - 1
            for j in range(last, at, -1):
                values[j], keys[j], picked[start + j] = values[j - 1], keys[j - 1], picked[start + j - 1]
            values[at], keys[at], picked[start + at] = value, key, i
            if size < limit:
                size += 1
        sizes[number] = size


@numba.njit(cache=True, nogil=True)
def _draw(anchors, keys, pool, count, forbidden_offsets, forbidden, salt, masks, mode, stamps, rows, drawn):  # type: ignore[no-untyped-def]
    size = np.uint64(len(pool))
    for number in range(len(anchors)):
        anchor, start = anchors[number], number * count
        stamps[anchor] = number + 1
        for i in range(forbidden_offsets[number], forbidden_offsets[number + 1]):
            stamps[forbidden[i]] = number + 1
        taken = attempt = 0
        offset = np.int64(anchor_key(salt, keys[number], np.uint64(_ATTEMPTS)) % size) if len(pool) else 0
        while taken < count and attempt < _ATTEMPTS + len(pool):
            if attempt < _ATTEMPTS:
                row = pool[np.int64(anchor_key(salt, keys[number], np.uint64(attempt)) % size)]
            else:
                row = pool[(offset + attempt - _ATTEMPTS) % len(pool)]
            attempt += 1
            if stamps[row] != number + 1 and _fits(masks, anchor, row, mode):
                stamps[row] = number + 1
                rows[start + taken] = row
                taken += 1
        drawn[number] = taken


@numba.njit(cache=True, nogil=True)
def _fits(masks, anchor, row, mode):  # type: ignore[no-untyped-def]
    """Whether the fields of study of two papers are the same (1), overlap without being equal (2), are disjoint (3)."""
    if mode == 0:
        return True
    first, second = masks[anchor], masks[row]
    if first == 0 or second == 0:
        return False
    if mode == 1:
        return first == second
    shared = (first & second) != 0
    return shared and first != second if mode == 2 else not shared
