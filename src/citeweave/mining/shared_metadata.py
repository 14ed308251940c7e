"""What papers share: venues, authors and fields as sparse rows in both directions, papers to values and back.

    paper 3: authors "Ada Lovelace", "A. Turing"    ->    values 0, 1
    value 0: papers 3, 8, 12

Values are compared without regard to case and spaces, and by name alone: two authors of one name are one. Holds about
20 bytes an entry. Which papers are drawn by it: `sharing_draws.py`.

Drawing papers that share something with the anchor, or share nothing, compiled and without listing them all.

    draw 10 of the 80,000 papers of the anchor's venue that have none of its authors

Where an anchor has few candidates all are looked at, and those of the least key(salt, anchor, candidate) are taken.
Where it has many, some are drawn until enough fit; a paper that shares three values is drawn no more often than one
that shares one. So a venue of 100,000 papers costs its papers a few draws each, not ten billion pairs. Depends on
nothing but seed, anchor and candidates, as `drawing.py` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import BLOCK, TextColumn
from citeweave.core.errors import UserError
from citeweave.core.randomness import hash_texts
from citeweave.corpus.corpus import Corpus, lines
from citeweave.mining.draw import CandidateLists, anchor_key
from citeweave.mining.rules import MiningRules, is_relation


class Sharing(NamedTuple):
    """Values of papers and papers of values; compiled code reads it as it is."""

    offsets: NDArray[np.int64]
    """Shape (papers + 1,): where the values of each paper begin in `values`."""

    values: NDArray[np.int32]
    """Ascending within a paper, each once."""

    member_offsets: NDArray[np.int64]
    """Shape (values + 1,)."""

    members: NDArray[np.int32]
    """Papers of the pool that have a value, ascending."""


NO_SHARING = Sharing(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0, np.int32))
"""Stands for relations that are not asked for."""


def sharing_of(corpus: Corpus, relations: Sequence[str], in_pool: NDArray[np.bool_]) -> Sharing:
    """What the papers of a corpus share by some of `aspect_names.RELATIONS` taken together; (papers,) marks the pool."""
    keys, papers = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for relation in relations:
        column = _column(corpus, relation)
        for start in range(0, len(corpus), BLOCK):
            names, rows = [], []
            for row, text in enumerate(column[start : start + BLOCK], start):
                for name in filter(None, map(plain_name, [text] if relation == "venue" else lines(text))):
                    names.append(f"{relation}:{name}")
                    rows.append(row)
            keys.append(hash_texts(names))
            papers.append(np.array(rows, np.int64))
    _, value = np.unique(np.concatenate(keys), return_inverse=True)  # (entries,)
    return sharing_from(np.concatenate(papers), value, in_pool)


def check_relations(corpus: Corpus, rules: MiningRules) -> None:
    """Refuse rules about relations of which the corpus knows nothing; of several aspects one may lack."""
    aspects = [aspect for aspect in rules.aspects if is_relation(aspect)]
    named = [rule.relation for rule in rules.rules if is_relation(rule.relation)]
    lacking = {each for each in (*aspects, *named) if not _column(corpus, each).lengths().any()}
    if lacking & set(named) or lacking >= set(aspects) > set() or (lacking and rules.every_aspect):
        names = " or ".join(sorted(lacking))
        raise UserError(
            f"the rules ask what papers share by {', '.join(dict.fromkeys([*aspects, *named]))}, and no paper of "
            f"{corpus.folder} has {names}; leave that out of mining.aspects and of the rules"
        )


def _column(corpus: Corpus, relation: str) -> TextColumn:
    return {"venue": corpus.venues, "author": corpus.authors, "field": corpus.fields}[relation]


def sharing_from(papers: NDArray[np.int64], values: NDArray[np.int64], in_pool: NDArray[np.bool_]) -> Sharing:
    """The same from pairs of a paper and one of its values, in any order; both (entries,).

    >>> found = sharing_from(np.array([0, 1, 1]), np.array([0, 0, 1]), np.array([True, True]))
    >>> found.values.tolist(), found.members.tolist(), found.member_offsets.tolist()
    ([0, 0, 1], [0, 1, 1], [0, 2, 3])
    """
    number = int(values.max()) + 1 if len(values) else 0
    codes = np.unique(papers * max(number, 1) + values)  # each entry once, by paper and value
    papers, values = codes // max(number, 1), codes % max(number, 1)
    here = in_pool[papers]
    order = np.argsort(values[here], kind="stable")
    return Sharing(
        _offsets(papers, len(in_pool)),
        values.astype(np.int32),
        _offsets(values[here], number),
        papers[here][order].astype(np.int32),
    )


def plain_name(name: str) -> str:
    """
    >>> plain_name("  Proceedings of  ACL ")
    'proceedings of acl'
    """
    return " ".join(name.split()).casefold()


def _offsets(owners: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(owners, minlength=number))])


# Drawing papers that share something with the anchor, or share nothing, compiled and without listing them all.

FEW = 512
"""Entries up to which all are looked at at once."""

DRAWS = 1024
"""Draws from more of them; an anchor that is short then has its lists looked through ..."""

WALK = 8192
"""... from a random place, for so many entries at most: a rule may come short where hardly any candidate fits."""


def draw_sharers(
    anchors: NDArray[np.int64],
    keys: NDArray[np.uint64],
    wanted: Sharing | NDArray[np.int32],
    unwanted: Sharing | None,
    count: int,
    forbidden: CandidateLists,
    salt: np.uint64,
    *,
    pool_size: int,
) -> CandidateLists:
    """At most `count` different papers for every anchor, uniformly, none of them forbidden or the anchor itself.

    They share a value of `wanted` (or are of the pool that it is) and none of `unwanted`; `pool_size` are all papers.
    """
    values, pool = NO_SHARING, np.zeros(0, np.int32)
    if isinstance(wanted, Sharing):
        values = wanted
    else:
        pool = wanted
    rows, found = np.empty(len(anchors) * count, np.int32), np.zeros(len(anchors), np.int64)
    columns: list[NDArray[Any]] = [anchors, pool, values.members, forbidden.rows]
    stamps = np.zeros(1 + max((int(column.max()) for column in columns if len(column)), default=0), np.int32)
    not_these = unwanted or NO_SHARING
    _draw(anchors, keys, values, pool, not_these, pool_size, count, forbidden, salt, stamps, rows, found)
    mask = np.arange(len(rows)) % max(count, 1) < np.repeat(found, count)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(found)])
    return CandidateLists(ends, rows[mask], np.full(int(mask.sum()), np.nan, np.float32))


def shares_any(sharing: Sharing, anchors: NDArray[np.int64], rows: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether the two papers of each pair have a value in common; all of shape (pairs,)."""
    out = np.empty(len(rows), bool)
    _share(sharing, anchors, rows, out)
    return out


@numba.njit(cache=True, nogil=True)
def _share(sharing, anchors, rows, out):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        out[i] = _common(sharing, anchors[i], rows[i]) > 0


@numba.njit(cache=True, nogil=True)
def _common(sharing, first, second):  # type: ignore[no-untyped-def]
    """How many values two papers have in common."""
    if len(sharing.values) == 0:
        return 0
    i, end = sharing.offsets[first], sharing.offsets[first + 1]
    j, stop = sharing.offsets[second], sharing.offsets[second + 1]
    number = 0
    while i < end and j < stop:
        if sharing.values[i] < sharing.values[j]:
            i += 1
        elif sharing.values[i] > sharing.values[j]:
            j += 1
        else:
            number += 1
            i += 1
            j += 1
    return number


@numba.njit(cache=True, nogil=True)
def _entries(wanted, pool, anchor):  # type: ignore[no-untyped-def]
    """Entries of all lists of an anchor; a paper that stands in two counts twice."""
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
    """The paper at a place of the lists of an anchor, one after the other."""
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
def _take_least(of_anchor, salt, row, keys, rows, size, count):  # type: ignore[no-untyped-def]
    """Put a paper among those of the least keys, ascending; returns how many there are now."""
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
def _is_everybodys(unwanted, anchor, pool_size):  # type: ignore[no-untyped-def]
    """Whether some value of the anchor is that of all papers, so that nobody is without."""
    if len(unwanted.values) == 0:
        return False
    for i in range(unwanted.offsets[anchor], unwanted.offsets[anchor + 1]):
        value = unwanted.values[i]
        if unwanted.member_offsets[value + 1] - unwanted.member_offsets[value] >= pool_size:
            return True
    return False


@numba.njit(cache=True, nogil=True)
def _walk(lists, anchor, first, number, mark, chosen, most):  # type: ignore[no-untyped-def]
    """Of so many entries those that fit, by least key, into `chosen`; returns how many."""
    wanted, pool, unwanted, stamps, salt, key = lists
    total, size = _entries(wanted, pool, anchor), 0
    least = np.empty(max(most, 1), np.uint64)
    for place in range(number):
        row = _entry(wanted, pool, anchor, (first + place) % total)
        if stamps[row] != mark:
            stamps[row] = mark
            if _common(unwanted, anchor, row) == 0:
                size = _take_least(key, salt, row, least, chosen, size, most)
    return size


@numba.njit(cache=True, nogil=True)
def _draw(anchors, keys, wanted, pool, unwanted, pool_size, count, forbidden, salt, stamps, rows, found):  # type: ignore[no-untyped-def]
    for number in range(len(anchors)):
        anchor, mark, taken = anchors[number], number + 1, 0
        chosen = rows[number * count : (number + 1) * count]
        stamps[anchor] = mark
        for i in range(forbidden.offsets[number], forbidden.offsets[number + 1]):
            stamps[forbidden.rows[i]] = mark
        total = _entries(wanted, pool, anchor)
        if total == 0 or _is_everybodys(unwanted, anchor, pool_size):
            continue
        for attempt in range(DRAWS if total > FEW else 0):
            key = anchor_key(salt, keys[number], np.uint64(attempt))
            row = _entry(wanted, pool, anchor, np.int64(key % np.uint64(total)))
            shared = _common(wanted, anchor, row)
            # a paper that stands in several lists is taken as seldom; the key's upper half is as good as another key
            if stamps[row] == mark or (shared > 1 and (key >> np.uint64(32)) % np.uint64(shared) != 0):
                continue
            stamps[row] = mark
            if _common(unwanted, anchor, row) == 0:
                chosen[taken] = row
                taken += 1
                if taken == count:
                    break
        if taken < count:
            first = np.int64(anchor_key(salt, keys[number], np.uint64(DRAWS)) % np.uint64(total))
            lists = (wanted, pool, unwanted, stamps, salt, keys[number])
            taken += _walk(lists, anchor, first, min(total, WALK), mark, chosen[taken:], count - taken)
        found[number] = taken
