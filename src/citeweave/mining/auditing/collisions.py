"""Collisions: pairs of papers that samples hold to be alike in one place and different in another.

    sample of 7: positives 1, 2    negatives 5        {1, 7} stands as positive for 7 and as negative for 1:
    sample of 1: positives 2       negatives 7        one collision

The definition is SciNCL's (Ostendorff et al., EMNLP 2022, section 6.4): a pair, whichever of the two is the anchor,
that the whole set contains both as positive and as negative. Which rules cause it is for `audit.py` to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.corpus import Corpus
from citeweave.hashing import mix
from citeweave.mining.auditing.pick_blocks import PickBlock, walk
from citeweave.mining.samples import Samples

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
