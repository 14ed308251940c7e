"""Walking through samples of any number: some samples at a time, their picks as flat columns.

    for block in walk(samples, "negatives"):
        block.anchors, block.rows, block.rules      one entry a pick

A block holds whole samples. What is computed over blocks must not depend on where they end.

Collisions: pairs of papers that samples hold to be alike in one place and different in another.

    sample of 7: positives 1, 2    negatives 5        {1, 7} stands as positive for 7 and as negative for 1:
    sample of 1: positives 2       negatives 7        one collision

The definition is SciNCL's (Ostendorff et al., EMNLP 2022, section 6.4): a pair, whichever of the two is the anchor,
that the whole set contains both as positive and as negative. Which rules cause it is for `audit.py` to say.

Repeats: what samples hold more than once, and the papers that occur in them most often.

    sample of 7: positives 1, 2, 1    negatives 5, 6, 2
    a pick repeated (1), a paper on both sides (2), three triplets: (7, 1, 5), (7, 2, 6), (7, 1, 2)

A paper that is the negative of very many anchors is a hub: a model can learn to push it away without reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.randomness import mix
from citeweave.corpus.corpus import Corpus
from citeweave.mining.draw import salt_of
from citeweave.mining.samples import Picks, Samples

PICKS = 1 << 20
"""Picks of a block, unless one sample has more."""


@dataclass(frozen=True, slots=True)
class PickBlock:
    """The picks of one side of some samples; every column of shape (picks,)."""

    first: int
    """Number of the first pick among all of its side."""

    samples: NDArray[np.int64]
    """The sample of each pick."""

    anchors: NDArray[np.int64]
    rows: NDArray[np.int64]
    rules: NDArray[np.uint8]
    scores: NDArray[np.float32]
    aspects: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.rows)

    def draw(self, shares: NDArray[np.float64]) -> NDArray[np.int64]:
        """Some of the picks, by a share for every rule, shape (rules,); which ones depends on their places alone."""
        if (shares >= 1).all():
            return np.arange(len(self))
        places = np.arange(self.first, self.first + len(self), dtype=np.uint64)
        keys = mix(places, np.full(len(self), salt_of(0, "picks to look at"), np.uint64))
        return np.flatnonzero(keys.astype(np.float64) / 2.0**64 <= shares[self.rules])


def spans(samples: Samples) -> Iterator[tuple[int, int]]:
    """Parts of the samples that hold at most `PICKS` picks of both sides, or one sample."""
    ends = samples.positives.offsets + samples.negatives.offsets  # (samples + 1,)
    first = 0
    while first < len(samples):
        last = int(np.searchsorted(ends, ends[first] + PICKS, "right")) - 1
        last = min(max(last, first + 1), len(samples))
        yield first, last
        first = last


def walk(samples: Samples, side: str) -> Iterator[PickBlock]:
    """All picks of one side, block by block, in order."""
    for first, last in spans(samples):
        yield take_span(samples, side, first, last)


def take_span(samples: Samples, side: str, first: int, last: int) -> PickBlock:
    """The picks of one side of the samples first to last, the last not among them."""
    picks: Picks = getattr(samples, side)
    ends = picks.offsets[first : last + 1]
    owners = np.repeat(np.arange(first, last), np.diff(ends))
    span = slice(int(ends[0]), int(ends[-1]))
    return PickBlock(
        first=span.start,
        samples=owners,
        anchors=samples.anchors[owners].astype(np.int64),
        rows=picks.rows[span].astype(np.int64),
        rules=np.asarray(picks.rules[span]),
        scores=np.asarray(picks.scores[span]),
        aspects=samples.aspects[owners],
    )


# Collisions: pairs of papers that samples hold to be alike in one place and different in another.

_BYTES_A_PICK = 48
"""A key, where it comes from, and the copies that sorting makes."""


@dataclass(frozen=True, slots=True)
class Collision:
    """One pair that stands on both sides."""

    papers: tuple[str, str]
    positive_by: tuple[str, ...]
    """Names of the rules that chose it as positive, for either of the two."""

    negative_by: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "papers": list(self.papers),
            "positive_by": list(self.positive_by),
            "negative_by": list(self.negative_by),
        }


@dataclass(frozen=True, slots=True)
class Collisions:
    """How many pairs collide, and how many picks they touch."""

    pairs: int
    """Unordered pairs that are positive somewhere and negative somewhere."""

    same_anchor: int
    """Of these, pairs that are both for one and the same anchor."""

    same_aspect: int
    """Of these, pairs that are both in one and the same aspect; samples without aspects have one."""

    all_pairs: int
    """Different unordered pairs of an anchor and a pick."""

    negatives_touched: int
    """Negative picks whose pair collides."""

    negatives: int
    touched_by_rule: dict[str, int]
    """Negative picks whose pair collides, by the rule that chose them."""

    examples: tuple[Collision, ...] = ()

    @property
    def share_of_pairs(self) -> float:
        return self.pairs / self.all_pairs if self.all_pairs else 0.0

    @property
    def share_of_negatives(self) -> float:
        return self.negatives_touched / self.negatives if self.negatives else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "pairs": self.pairs,
            "pairs_same_anchor": self.same_anchor,
            "pairs_same_aspect": self.same_aspect,
            "all_pairs": self.all_pairs,
            "share_of_pairs": self.share_of_pairs,
            "negatives_touched": self.negatives_touched,
            "negatives": self.negatives,
            "share_of_negatives": self.share_of_negatives,
            "negatives_touched_by_rule": dict(self.touched_by_rule),
            "examples": [example.as_json() for example in self.examples],
        }


def find_collisions(samples: Samples, corpus: Corpus, *, examples: int = 10, memory: int = 512 << 20) -> Collisions:
    """Count the collisions exactly; more picks than fit into the memory are gone through several times."""
    picks = len(samples.positives.rows) + len(samples.negatives.rows)
    passes = max(1, -(-picks * _BYTES_A_PICK // memory))
    papers = len(corpus)
    totals = np.zeros(5, np.int64)
    by_rule = np.zeros(len(samples.names.rules), np.int64)
    first: NDArray[np.uint64] = np.zeros(0, np.uint64)
    for number in range(passes):
        up, down = (_gather(samples, side, papers, number, passes) for side in ("positives", "negatives"))
        found, counts, rules = _compare(up, down, len(by_rule))
        totals += counts
        by_rule += rules
        first = np.sort(np.concatenate([first, found[:examples]]))[:examples]
    pairs, same_anchor, same_aspect, all_pairs, touched = map(int, totals)
    names = dict(zip(samples.names.rules, by_rule.tolist(), strict=True))
    return Collisions(
        pairs=pairs,
        same_anchor=same_anchor,
        same_aspect=same_aspect,
        all_pairs=all_pairs,
        negatives_touched=touched,
        negatives=len(samples.negatives.rows),
        touched_by_rule={name: count for name, count in names.items() if count},
        examples=tuple(_describe(samples, corpus, first)),
    )


def pair_keys(block: PickBlock, papers: int) -> NDArray[np.uint64]:
    """One number for every unordered pair of anchor and pick, in the order of the lower row and then the higher."""
    low, high = np.minimum(block.anchors, block.rows), np.maximum(block.anchors, block.rows)
    return (low * papers + high).astype(np.uint64)


@dataclass(frozen=True, slots=True)
class _Side:
    """The pairs of one side that a pass looks at; every column of shape (picks,)."""

    keys: NDArray[np.uint64]
    turned: NDArray[np.bool_]
    """Whether the anchor is the higher row."""

    aspects: NDArray[np.uint8]
    rules: NDArray[np.uint8]


def _gather(samples: Samples, side: str, papers: int, number: int, passes: int) -> _Side:
    """The picks whose pair belongs to one of several passes; a pair belongs to one, whichever side it is on."""
    parts: list[_Side] = [
        _Side(np.zeros(0, np.uint64), np.zeros(0, bool), np.zeros(0, np.uint8), np.zeros(0, np.uint8))
    ]
    for block in walk(samples, side):
        keys = pair_keys(block, papers)
        kept: NDArray[np.bool_] = block.anchors != block.rows
        if passes > 1:
            kept &= mix(keys, keys) % np.uint64(passes) == number
        parts.append(_Side(keys[kept], (block.anchors > block.rows)[kept], block.aspects[kept], block.rules[kept]))
    return _Side(*(np.concatenate([getattr(part, name) for part in parts]) for name in _Side.__slots__))


def _compare(up: _Side, down: _Side, rules: int) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """The colliding keys; counts in the order of `Collisions`; negatives touched by rule."""
    positive, negative = np.unique(up.keys), np.unique(down.keys)
    found = np.intersect1d(positive, negative, assume_unique=True)
    there, here = (_colliding(side, found) for side in (up, down))
    anchors = _meet(*(np.unique(2 * place + side.turned[at]) for side, (at, place) in ((up, there), (down, here))))
    aspects = _meet(*(np.unique(256 * place + side.aspects[at]) for side, (at, place) in ((up, there), (down, here))))
    counts = [
        len(found),
        len(np.unique(anchors // 2)),
        len(np.unique(aspects // 256)),
        len(positive) + len(negative) - len(found),
        len(here[0]),
    ]
    return found, np.array(counts, np.int64), np.bincount(down.rules[here[0]], minlength=rules)


def _colliding(side: _Side, found: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which picks have a colliding pair, and which of the pairs it is."""
    if not len(found):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    place = np.minimum(np.searchsorted(found, side.keys), len(found) - 1)
    at = np.flatnonzero(found[place] == side.keys)
    return at, place[at]


def _meet(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.intersect1d(first, second, assume_unique=True)


def _describe(samples: Samples, corpus: Corpus, keys: NDArray[np.uint64]) -> Iterator[Collision]:
    """Name some colliding pairs and the rules behind them."""
    if not len(keys):
        return
    papers = len(corpus)
    rules: dict[str, list[set[int]]] = {}
    for side in ("positives", "negatives"):
        rules[side] = [set() for _ in keys]
        for block in walk(samples, side):
            found = pair_keys(block, papers)
            for at in np.flatnonzero(np.isin(found, keys)).tolist():
                rules[side][int(np.searchsorted(keys, found[at]))].add(int(block.rules[at]))
    for number, key in enumerate(keys.tolist()):
        names = [tuple(samples.names.rules[rule] for rule in sorted(rules[side][number])) for side in rules]
        yield Collision((corpus.ids[key // papers], corpus.ids[key % papers]), names[0], names[1])


# Repeats: what samples hold more than once, and the papers that occur in them most often.

_BYTES_A_TRIPLET = 32
_MOST_FREQUENT = 0.01


@dataclass(frozen=True, slots=True)
class Frequency:
    """How often papers occur on one side of samples."""

    picks: int
    papers: int
    """Different ones."""

    top: tuple[tuple[str, int], ...]
    """Ids and counts of the most frequent, largest first."""

    top_share: float
    """The share of all picks that the 1 % most frequent of the papers make up (at least one paper)."""

    def as_json(self) -> dict[str, Any]:
        top = [{"paper": paper, "picks": count} for paper, count in self.top]
        return {"picks": self.picks, "papers": self.papers, "top_1_percent_share": self.top_share, "top": top}


@dataclass(frozen=True, slots=True)
class Repeats:
    """What occurs twice; all counts are of what could go without losing anything."""

    triplets: int
    repeated_triplets: int
    """Triplets of the same anchor, positive, negative and aspect as an earlier one."""

    repeated_picks: int
    """Picks of a paper that its sample has on the same side already."""

    on_both_sides: int
    """Papers that one sample has both as positive and as negative."""

    anchor_picked: int
    """Picks that are the anchor itself."""

    frequencies: dict[str, Frequency] = field(default_factory=dict)
    """By side: positives, negatives."""

    def as_json(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in self.__slots__ if name != "frequencies"}
        return {**counts, "frequencies": {side: value.as_json() for side, value in self.frequencies.items()}}


def find_repeats(samples: Samples, corpus: Corpus, *, top: int = 10, memory: int = 512 << 20) -> Repeats:
    """Count the repeats; triplets that do not fit into the memory are gone through several times."""
    papers = len(corpus)
    seen = {side: np.zeros(papers, np.int64) for side in ("positives", "negatives")}
    repeated = both = itself = 0
    for first, last in spans(samples):
        keys = []
        for side, counts in seen.items():
            block = take_span(samples, side, first, last)
            counts += np.bincount(block.rows, minlength=papers)
            itself += int((block.rows == block.anchors).sum())
            keys.append(np.unique((block.samples - first) * papers + block.rows))
            repeated += len(block) - len(keys[-1])
        both += len(np.intersect1d(keys[0], keys[1], assume_unique=True))
    triplets, different = _count_triplets(samples, memory)
    return Repeats(
        triplets=triplets,
        repeated_triplets=triplets - different,
        repeated_picks=repeated,
        on_both_sides=both,
        anchor_picked=itself,
        frequencies={side: _frequency(counts, corpus, top) for side, counts in seen.items()},
    )


def triplet_keys(samples: Samples, first: int, last: int) -> NDArray[np.uint64]:
    """A key for every triplet of the samples first to last, paired as `Samples.triplets` does."""
    sides = [take_span(samples, side, first, last) for side in ("positives", "negatives")]
    sizes = [np.bincount(block.samples - first, minlength=last - first) for block in sides]  # (samples,) each
    counts = np.where((sizes[0] > 0) & (sizes[1] > 0), np.maximum(*sizes), 0)
    owner = np.repeat(np.arange(last - first), counts)  # (triplets,)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = [
        block.rows[(np.cumsum(size) - size)[owner] + place % np.maximum(size[owner], 1)].astype(np.uint64)
        for block, size in zip(sides, sizes, strict=True)
    ]
    anchors, aspects = (column[first:last][owner].astype(np.uint64) for column in (samples.anchors, samples.aspects))
    return mix(mix(anchors, aspects), mix(rows[0], rows[1]))


def _count_triplets(samples: Samples, memory: int) -> tuple[int, int]:
    """All triplets, and the different ones."""
    most = len(samples.positives.rows) + len(samples.negatives.rows)
    passes = max(1, -(-most * _BYTES_A_TRIPLET // memory))
    total = different = 0
    for number in range(passes):
        parts = [np.zeros(0, np.uint64)]
        for span in spans(samples):
            keys = triplet_keys(samples, *span)
            parts.append(keys if passes == 1 else keys[keys % np.uint64(passes) == number])
        found = np.concatenate(parts)
        total, different = total + len(found), different + len(np.unique(found))
    return total, different


def _frequency(counts: NDArray[np.int64], corpus: Corpus, top: int) -> Frequency:
    used = int((counts > 0).sum())
    order = np.argsort(-counts, kind="stable")[: max(top, 1 + int(_MOST_FREQUENT * used))]
    total = int(counts.sum())
    largest = order[: max(1, round(_MOST_FREQUENT * used))]
    named = [(corpus.ids[row], int(counts[row])) for row in order[:top].tolist() if counts[row]]
    return Frequency(total, used, tuple(named), float(counts[largest].sum() / total) if total else 0.0)
