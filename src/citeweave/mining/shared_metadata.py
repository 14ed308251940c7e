"""Shared metadata: papers of the same venue, author or field, indexed both ways and drawn as candidates.

    paper 3: authors "Ada Lovelace", "A. Turing"    ->    values 0, 1
    value 0: papers 3, 8, 12

Values are compared without regard to case and spaces, and by name alone: two authors of one name are one. Takes about
20 bytes per entry.

    draw 10 of the 80,000 papers of the anchor's venue that have none of its authors

If an anchor has few candidates all are scanned, and those with the smallest key(salt, anchor, candidate) are taken. If
it has many, some are drawn until enough fit; a paper that shares three values is drawn no more often than one that
shares one. So a venue of 100,000 papers costs a few draws per paper, not ten billion pairs. The draws depend on nothing
but seed, anchor and candidates, as in `draw.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import BLOCK, TextColumn
from citeweave.core.errors import UserError
from citeweave.core.hash_keys import hash_texts
from citeweave.corpus.corpus import Corpus, lines
from citeweave.mining.draw import CandidateLists, anchor_key
from citeweave.mining.rules import MiningRules, is_relation


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


def collect_shared_metadata(corpus: Corpus, relations: Sequence[str], in_pool: NDArray[np.bool_]) -> SharedMetadata:
    """Collect the metadata that papers of a corpus share, for some relations together; (papers,) marks the pool."""
    keys, papers = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for relation in relations:
        column = _column(corpus, relation)
        for start in range(0, len(corpus), BLOCK):
            names, rows = [], []
            for row, text in enumerate(column[start : start + BLOCK], start):
                for name in filter(None, map(normalize_name, [text] if relation == "venue" else lines(text))):
                    names.append(f"{relation}:{name}")
                    rows.append(row)
            keys.append(hash_texts(names))
            papers.append(np.array(rows, np.int64))
    _, value = np.unique(np.concatenate(keys), return_inverse=True)  # (entries,)
    return index_shared_values(np.concatenate(papers), value, in_pool)


def check_relations(corpus: Corpus, rules: MiningRules) -> None:
    """Refuse rules about shared metadata that no paper of the corpus has; of several aspects one may be missing."""
    aspects = [aspect for aspect in rules.aspects if is_relation(aspect)]
    named = [rule.relation for rule in rules.rules if is_relation(rule.relation)]
    missing = {each for each in (*aspects, *named) if not _column(corpus, each).lengths().any()}
    if missing & set(named) or missing >= set(aspects) > set() or (missing and rules.every_aspect):
        names = " or ".join(sorted(missing))
        raise UserError(
            f"the rules ask what papers share by {', '.join(dict.fromkeys([*aspects, *named]))}, and no paper of "
            f"{corpus.folder} has {names}; leave that out of mining.aspects and of the rules"
        )


def _column(corpus: Corpus, relation: str) -> TextColumn:
    return {"venue": corpus.venues, "author": corpus.authors, "field": corpus.fields}[relation]


def index_shared_values(
    papers: NDArray[np.int64], values: NDArray[np.int64], in_pool: NDArray[np.bool_]
) -> SharedMetadata:
    """Index shared metadata, pairs of a paper and one of its values, in any order, both ways; both (entries,).

    >>> shared = index_shared_values(np.array([0, 1, 1]), np.array([0, 0, 1]), np.array([True, True]))
    >>> shared.values.tolist(), shared.members.tolist(), shared.member_offsets.tolist()
    ([0, 0, 1], [0, 1, 1], [0, 2, 3])
    """
    number = int(values.max()) + 1 if len(values) else 0
    codes = np.unique(papers * max(number, 1) + values)  # each entry once, by paper and value
    papers, values = codes // max(number, 1), codes % max(number, 1)
    here = in_pool[papers]
    order = np.argsort(values[here], kind="stable")
    return SharedMetadata(
        _offsets(papers, len(in_pool)),
        values.astype(np.int32),
        _offsets(values[here], number),
        papers[here][order].astype(np.int32),
    )


def normalize_name(name: str) -> str:
    """Normalize case and spaces of a name in shared metadata: a venue, author or field.

    >>> normalize_name("  Proceedings of  ACL ")
    'proceedings of acl'
    """
    return " ".join(name.split()).casefold()


def _offsets(owners: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(owners, minlength=number))])


# Drawing papers that share metadata with the anchor, or share none.

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
    _draw(anchors, keys, values, pool, unwanted or NO_METADATA, pool_size, count, forbidden, salt, stamps, rows, drawn)
    mask = np.arange(len(rows)) % max(count, 1) < np.repeat(drawn, count)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(drawn)])
    return CandidateLists(ends, rows[mask], np.full(int(mask.sum()), np.nan, np.float32))


def share_a_value(metadata: SharedMetadata, anchors: NDArray[np.int64], rows: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return whether the two papers of each pair share a metadata value; all of shape (pairs,)."""
    out = np.empty(len(rows), bool)
    _share(metadata, anchors, rows, out)
    return out


@numba.njit(cache=True, nogil=True)
def _share(metadata, anchors, rows, out):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        out[i] = _count_common(metadata, anchors[i], rows[i]) > 0


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
def _is_shared_by_all(unwanted, anchor, pool_size):  # type: ignore[no-untyped-def]
    """Whether some value of the anchor belongs to all papers, so that no paper is without it."""
    if len(unwanted.values) == 0:
        return False
    for i in range(unwanted.offsets[anchor], unwanted.offsets[anchor + 1]):
        value = unwanted.values[i]
        if unwanted.member_offsets[value + 1] - unwanted.member_offsets[value] >= pool_size:
            return True
    return False


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
def _draw(anchors, keys, wanted, pool, unwanted, pool_size, count, forbidden, salt, stamps, rows, drawn):  # type: ignore[no-untyped-def]
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
