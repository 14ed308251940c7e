"""Deterministic draws from candidate lists, the pool or papers with shared metadata, by keys of anchor and candidate.

    draw 2 of [4, 7, 9] for anchor 3   ->   the two with the smallest key(salt, 3, candidate)

A key depends on nothing but seed, purpose, anchor and candidate, so the same papers are drawn under any number of
workers, blocks or machines, and no random generator is needed per anchor.

    draw 10 of the 80,000 papers of the anchor's venue that have none of its authors

If an anchor shares metadata with few papers all are scanned, and those with the smallest key are taken. If with many,
some are drawn until enough fit; a paper that shares three values is drawn no more often than one that shares one. So a
venue of 100,000 papers costs a few draws per paper, not ten billion pairs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.compiled import compiled
from citeweave.core.hash_keys import mix_words
from citeweave.core.ragged import number_within, owners_of, spans, to_offsets
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
        return owners_of(self.offsets)


def empty_lists(anchors: int) -> CandidateLists:
    """Return candidate lists without any candidate, for so many anchors."""
    return CandidateLists(np.zeros(anchors + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))


def derive_salt(seed: int, *purpose: str | int) -> np.uint64:
    """Derive the 64-bit salt of a seed and a purpose, on which draws depend."""
    return np.uint64(stream(seed, *purpose).integers(1, 2**63))


def filter_entries(lists: CandidateLists, mask: NDArray[np.bool_]) -> CandidateLists:
    """Return the candidate lists with only the entries of a mask."""
    return CandidateLists(to_offsets(mask)[lists.offsets], lists.rows[mask], lists.scores[mask])


def take_lists(lists: CandidateLists, which: NDArray[np.int64]) -> CandidateLists:
    """Return the candidate lists of some anchors, in their order."""
    counts = lists.counts()[which]
    places = spans(lists.offsets[which], counts)
    return CandidateLists(to_offsets(counts), lists.rows[places], lists.scores[places])


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
    offsets = to_offsets(limits)
    picked = np.empty(int(offsets[-1]), np.int64)
    sizes = np.zeros(len(keys), np.int64)
    _choose(lists.offsets, lists.rows, lists.scores, keys, np.float32(sign), salt, offsets, picked, sizes)
    picked = picked[number_within(limits) < np.repeat(sizes, limits)]
    return CandidateLists(to_offsets(sizes), lists.rows[picked], lists.scores[picked])


def take_first(lists: CandidateLists, count: int) -> CandidateLists:
    """Return at most the first `count` candidates of every anchor."""
    return filter_entries(lists, number_within(lists.counts()) < count)


def repeat_to(lists: CandidateLists, count: int) -> CandidateLists:
    """Repeat the drawn candidates of every anchor that has some until there are `count`."""
    counts = lists.counts()
    sizes = np.where(counts > 0, np.maximum(counts, count), 0)
    at = np.repeat(lists.offsets[:-1], sizes) + number_within(sizes) % np.repeat(np.maximum(counts, 1), sizes)
    return CandidateLists(to_offsets(sizes), lists.rows[at], lists.scores[at])


def shuffle(lists: CandidateLists, keys: NDArray[np.uint64], salt: np.uint64) -> NDArray[np.int64]:
    """Return an order of all candidates that shuffles each list; repeats of a paper stay distinct entries."""
    owners, places = lists.owners(), number_within(lists.counts())
    order = _keys(salt, keys[owners], lists.rows.astype(np.uint64), places.astype(np.uint64))
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
    return _drawn_lists(rows, drawn, size)


def draw_from_groups(
    anchors: NDArray[np.int64],
    keys: NDArray[np.uint64],
    groups: NDArray[np.int64],
    offsets: NDArray[np.int64],
    papers: NDArray[np.int32],
    forbidden: CandidateLists,
    salt: np.uint64,
) -> NDArray[np.int32]:
    """Draw one paper of each of an anchor's groups, (anchors, groups), never a forbidden one or the anchor; -1 if none.

    `groups` are numbers of disjoint lists of papers, (anchors, groups); `offsets` and `papers` are these lists.
    """
    rows = np.full(groups.shape, -1, np.int32)
    nodes = 1 + max(int(values.max()) for values in (anchors, papers, forbidden.rows, np.zeros(1)) if len(values))
    stamps = np.zeros(nodes, np.int32)
    _draw_one_of_each(
        anchors, keys, groups, offsets, papers, forbidden.offsets, forbidden.rows, salt, stamps, rows
    )  # fmt: skip
    return rows


@compiled()
def _draw_one_of_each(anchors, keys, groups, offsets, papers, forbidden_offsets, forbidden, salt, stamps, rows):  # type: ignore[no-untyped-def]
    for number in range(len(anchors)):
        stamps[anchors[number]] = number + 1
        for i in range(forbidden_offsets[number], forbidden_offsets[number + 1]):
            stamps[forbidden[i]] = number + 1
        for place in range(groups.shape[1]):
            first = offsets[groups[number, place]]
            size = offsets[groups[number, place] + 1] - first
            if size == 0:
                continue
            start = np.int64(anchor_key(salt, keys[number], np.uint64(place)) % np.uint64(size))
            for step in range(size):  # from a random paper on, the first that is allowed
                row = papers[first + (start + step) % size]
                if stamps[row] != number + 1:
                    rows[number, place] = row
                    break


def _drawn_lists(rows: NDArray[np.int32], drawn: NDArray[np.int64], size: int) -> CandidateLists:
    """Return drawn papers as lists without scores; `rows` has room for `size` papers per anchor, `drawn` are there."""
    mask = np.arange(len(rows)) % max(size, 1) < np.repeat(drawn, size)
    return CandidateLists(to_offsets(drawn), rows[mask], np.full(int(mask.sum()), np.nan, np.float32))


@compiled()
def anchor_key(salt: np.uint64, anchor: np.uint64, row: np.uint64) -> np.uint64:
    """Return the key of drawing a paper for an anchor."""
    return mix_words(mix_words(salt, anchor), row)


@compiled()
def _keys(salt, anchor_keys, rows, places):  # type: ignore[no-untyped-def]
    out = np.empty(len(rows), np.uint64)
    for i in range(len(rows)):
        out[i] = mix_words(anchor_key(salt, anchor_keys[i], rows[i]), places[i])
    return out


@compiled()
def _allowed(offsets, rows, forbidden_offsets, forbidden, stamps, mask):  # type: ignore[no-untyped-def]
    for number in range(len(offsets) - 1):
        for i in range(forbidden_offsets[number], forbidden_offsets[number + 1]):
            stamps[forbidden[i]] = number + 1
        for i in range(offsets[number], offsets[number + 1]):
            mask[i] = stamps[rows[i]] != number + 1


@compiled()
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


@compiled()
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


@compiled()
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


# Draws of papers that share metadata with the anchor, or share none.


class SharedMetadata(NamedTuple):
    """Shared metadata (venues, authors, fields): every paper's values, and the papers of each; read by compiled code."""

    offsets: NDArray[np.int64]
    """Shape (papers + 1,): where the values of each paper begin in `values`."""

    values: NDArray[np.int32]
    """Ascending within a paper, each once."""

    member_offsets: NDArray[np.int64]
    """Shape (values + 1,)."""

    members: NDArray[np.int32]
    """Papers of the pool that have a value, ascending."""


NO_METADATA = SharedMetadata(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0, np.int32))
"""Passed where no metadata is compared."""

SCAN_ALL = 512
"""Number of entries up to which all are scanned."""

MAX_DRAWS = 1024
"""Draws from more entries; if they yield too few papers, the lists are scanned ..."""

MAX_SCANNED = 8192
"""... from a random position, for so many entries at most: a rule may stay short if hardly any candidate fits."""


def draw_sharing_papers(
    anchors: NDArray[np.int64],
    keys: NDArray[np.uint64],
    wanted: SharedMetadata | NDArray[np.int32],
    unwanted: SharedMetadata | None,
    count: int,
    forbidden: CandidateLists,
    salt: np.uint64,
    *,
    pool_size: int,
) -> CandidateLists:
    """Draw at most `count` papers per anchor with shared metadata, uniformly, never forbidden ones.

    They share a value of `wanted` (or are in it, if it is a list of papers) and none of `unwanted`; `pool_size` is the
    number of all papers.
    """
    values, pool = NO_METADATA, np.zeros(0, np.int32)
    if isinstance(wanted, SharedMetadata):
        values = wanted
    else:
        pool = wanted
    rows, drawn = np.empty(len(anchors) * count, np.int32), np.zeros(len(anchors), np.int64)
    columns: list[NDArray[Any]] = [anchors, pool, values.members, forbidden.rows]
    stamps = np.zeros(1 + max((int(column.max()) for column in columns if len(column)), default=0), np.int32)
    _draw_sharing(
        anchors, keys, values, pool, unwanted or NO_METADATA, pool_size, count, forbidden, salt, stamps, rows, drawn
    )
    return _drawn_lists(rows, drawn, count)


def share_a_value(metadata: SharedMetadata, anchors: NDArray[np.int64], rows: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return whether the two papers of each pair share a metadata value; all of shape (pairs,)."""
    out = np.empty(len(rows), bool)
    _share(metadata, anchors, rows, out)
    return out


@compiled()
def _share(metadata, anchors, rows, out):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        out[i] = _count_common(metadata, anchors[i], rows[i]) > 0


@compiled()
def _count_common(metadata, first, second):  # type: ignore[no-untyped-def]
    """Count the metadata values that two papers have in common."""
    if len(metadata.values) == 0:
        return 0
    i, end = metadata.offsets[first], metadata.offsets[first + 1]
    j, stop = metadata.offsets[second], metadata.offsets[second + 1]
    number = 0
    while i < end and j < stop:
        if metadata.values[i] < metadata.values[j]:
            i += 1
        elif metadata.values[i] > metadata.values[j]:
            j += 1
        else:
            number += 1
            i += 1
            j += 1
    return number


@compiled()
def _count_entries(wanted, pool, anchor):  # type: ignore[no-untyped-def]
    """Count the entries of an anchor's lists of sharing papers; a paper in two lists counts twice."""
    if len(pool):
        return np.int64(len(pool))
    total = np.int64(0)
    if len(wanted.values):
        for i in range(wanted.offsets[anchor], wanted.offsets[anchor + 1]):
            value = wanted.values[i]
            total += wanted.member_offsets[value + 1] - wanted.member_offsets[value]
    return total


@compiled()
def _entry(wanted, pool, anchor, place):  # type: ignore[no-untyped-def]
    """Return the paper at a position of an anchor's concatenated lists of sharing papers."""
    if len(pool):
        return pool[place]
    for i in range(wanted.offsets[anchor], wanted.offsets[anchor + 1]):
        start = wanted.member_offsets[wanted.values[i]]
        size = wanted.member_offsets[wanted.values[i] + 1] - start
        if place < size:
            return wanted.members[start + place]
        place -= size
    return np.int32(-1)


@compiled()
def _insert_by_key(of_anchor, salt, row, keys, rows, size, count):  # type: ignore[no-untyped-def]
    """Insert a drawn paper among those with the smallest keys, ascending; returns how many there are now."""
    key = anchor_key(salt, of_anchor, np.uint64(row))
    if size == count and key >= keys[size - 1]:
        return size
    at = size if size < count else size - 1
    size = at + 1
    while at > 0 and key < keys[at - 1]:
        keys[at], rows[at] = keys[at - 1], rows[at - 1]
        at -= 1
    keys[at], rows[at] = key, row
    return size


@compiled()
def _is_shared_by_all(unwanted, anchor, pool_size):  # type: ignore[no-untyped-def]
    """Whether some value of the anchor belongs to all papers, so that no paper is without it."""
    if len(unwanted.values) == 0:
        return False
    for i in range(unwanted.offsets[anchor], unwanted.offsets[anchor + 1]):
        value = unwanted.values[i]
        if unwanted.member_offsets[value + 1] - unwanted.member_offsets[value] >= pool_size:
            return True
    return False


@compiled()
def _scan(lists, anchor, first, number, mark, chosen, count):  # type: ignore[no-untyped-def]
    """Scan so many entries and put the papers that fit, by smallest key, into `chosen`; returns how many."""
    wanted, pool, unwanted, stamps, salt, key = lists
    total, size = _count_entries(wanted, pool, anchor), 0
    smallest = np.empty(max(count, 1), np.uint64)
    for place in range(number):
        row = _entry(wanted, pool, anchor, (first + place) % total)
        if stamps[row] != mark:
            stamps[row] = mark
            if _count_common(unwanted, anchor, row) == 0:
                size = _insert_by_key(key, salt, row, smallest, chosen, size, count)
    return size


@compiled()
def _draw_sharing(anchors, keys, wanted, pool, unwanted, pool_size, count, forbidden, salt, stamps, rows, drawn):  # type: ignore[no-untyped-def]
    for number in range(len(anchors)):
        anchor, mark, taken = anchors[number], number + 1, 0
        chosen = rows[number * count : (number + 1) * count]
        stamps[anchor] = mark
        for i in range(forbidden.offsets[number], forbidden.offsets[number + 1]):
            stamps[forbidden.rows[i]] = mark
        total = _count_entries(wanted, pool, anchor)
        if total == 0 or _is_shared_by_all(unwanted, anchor, pool_size):
            continue
        for attempt in range(MAX_DRAWS if total > SCAN_ALL else 0):
            key = anchor_key(salt, keys[number], np.uint64(attempt))
            row = _entry(wanted, pool, anchor, np.int64(key % np.uint64(total)))
            shared = _count_common(wanted, anchor, row)
            # a paper in several lists is accepted less often in turn; the key's upper half is as good as another key
            if stamps[row] == mark or (shared > 1 and (key >> np.uint64(32)) % np.uint64(shared) != 0):
                continue
            stamps[row] = mark
            if _count_common(unwanted, anchor, row) == 0:
                chosen[taken] = row
                taken += 1
                if taken == count:
                    break
        if taken < count:
            first = np.int64(anchor_key(salt, keys[number], np.uint64(MAX_DRAWS)) % np.uint64(total))
            lists = (wanted, pool, unwanted, stamps, salt, keys[number])
            taken += _scan(lists, anchor, first, min(total, MAX_SCANNED), mark, chosen[taken:], count - taken)
        drawn[number] = taken
