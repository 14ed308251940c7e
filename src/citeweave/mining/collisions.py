"""Collisions and repeats in samples: pairs both positive and negative, repeated triplets, frequent papers.

    sample of 7: positives 1, 2    negatives 5        {1, 7} is positive for anchor 7 and negative for anchor 1:
    sample of 1: positives 2       negatives 7        one collision

The definition is SciNCL's (Ostendorff et al., EMNLP 2022, section 6.4): a pair, whichever of the two is the anchor,
that the samples contain both as positive and as negative.

    sample of 7: positives 1, 2, 1    negatives 5, 6, 2
    a repeated paper (1), a paper on both sides (2), three triplets: (7, 1, 5), (7, 2, 6), (7, 1, 2)

A paper that is the negative of very many anchors is a hub: a model can learn to push it away without reading.

Samples of any number are read in blocks, as flat columns with one entry per selected paper:

    for block in iter_picks(samples, "negatives"):
        block.anchors, block.rows, block.rules

A block holds complete samples. What is computed over blocks must not depend on where they end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.hash_keys import mix_keys
from citeweave.core.ragged import number_within
from citeweave.corpus.corpus import Corpus
from citeweave.graph.edge_sort import row_ranges
from citeweave.mining.draw import derive_salt
from citeweave.mining.samples import Picks, Samples

MAX_PICKS = 1 << 20
"""Maximum number of selected papers in a block, unless one sample has more."""


@dataclass(frozen=True, slots=True)
class PickBlock:
    """Papers to check for collisions: those selected on one side of some samples, as flat columns of shape (picks,)."""

    first: int
    """Number of the first entry among all of its side."""

    samples: NDArray[np.int64]
    """The sample of each selected paper."""

    anchors: NDArray[np.int64]
    rows: NDArray[np.int64]
    rules: NDArray[np.uint8]
    scores: NDArray[np.float32]
    aspects: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.rows)

    def draw(self, shares: NDArray[np.float64]) -> NDArray[np.int64]:
        """Sample some of the selected papers to look for collisions, by a share for every rule, (rules,), by position alone."""
        if (shares >= 1).all():
            return np.arange(len(self))
        places = np.arange(self.first, self.first + len(self), dtype=np.uint64)
        keys = mix_keys(places, np.full(len(self), derive_salt(0, "picks to look at"), np.uint64))
        return np.flatnonzero(keys.astype(np.float64) / 2.0**64 <= shares[self.rules])


def sample_spans(samples: Samples) -> Iterator[tuple[int, int]]:
    """Return spans of samples to check for collisions, of at most `MAX_PICKS` selected papers, or of one sample."""
    return row_ranges(samples.positives.lengths() + samples.negatives.lengths(), MAX_PICKS)


def iter_picks(samples: Samples, side: str) -> Iterator[PickBlock]:
    """Yield the papers selected on one side of all samples, block by block, in order."""
    for first, last in sample_spans(samples):
        yield take_picks(samples, side, first, last)


def take_picks(samples: Samples, side: str, first: int, last: int) -> PickBlock:
    """Return the papers to check for collisions on one side of the samples first to last, without the last."""
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


# Collisions.

_BYTES_PER_PICK = 48
"""A key, its origin, and the copies that sorting makes."""


@dataclass(frozen=True, slots=True)
class Collision:
    """A collision: one pair of papers that is both positive and negative."""

    papers: tuple[str, str]
    positive_by: tuple[str, ...]
    """Names of the rules that selected it as positive, for either of the two."""

    negative_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Collisions:
    """Counts of collisions: colliding pairs, and the negatives they affect."""

    pairs: int
    """Unordered pairs that are positive somewhere and negative somewhere."""

    same_anchor: int
    """Of these, pairs that are both for one and the same anchor."""

    same_aspect: int
    """Of these, pairs that are both in one and the same aspect; samples without aspects have one."""

    all_pairs: int
    """Distinct unordered pairs of an anchor and a selected paper."""

    negatives_touched: int
    """Negatives whose pair collides."""

    negatives: int
    touched_by_rule: dict[str, int]
    """Negatives whose pair collides, by the rule that selected them."""

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
            "examples": [{name: list(names) for name, names in asdict(one).items()} for one in self.examples],
        }


def find_collisions(samples: Samples, corpus: Corpus, *, examples: int = 10, memory: int = 512 << 20) -> Collisions:
    """Count the collisions in samples exactly; if they do not fit into the memory, in several passes."""
    picks = len(samples.positives.rows) + len(samples.negatives.rows)
    passes = max(1, -(-picks * _BYTES_PER_PICK // memory))
    papers = len(corpus)
    totals = np.zeros(5, np.int64)
    by_rule = np.zeros(len(samples.names.rules), np.int64)
    first: NDArray[np.uint64] = np.zeros(0, np.uint64)
    for number in range(passes):
        up, down = (_collect_pairs(samples, side, papers, number, passes) for side in ("positives", "negatives"))
        colliding, counts, rules = _compare(up, down, len(by_rule))
        totals += counts
        by_rule += rules
        first = np.sort(np.concatenate([first, colliding[:examples]]))[:examples]
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


def _pair_keys(block: PickBlock, papers: int) -> NDArray[np.uint64]:
    """Return one number per unordered pair of anchor and selected paper, ordered by lower row, then higher."""
    low, high = np.minimum(block.anchors, block.rows), np.maximum(block.anchors, block.rows)
    return (low * papers + high).astype(np.uint64)


class _SidePairs(NamedTuple):
    """The pairs of one side of samples in one pass; every column of shape (picks,)."""

    keys: NDArray[np.uint64]
    swapped: NDArray[np.bool_]
    """Whether the anchor is the higher row."""

    aspects: NDArray[np.uint8]
    rules: NDArray[np.uint8]


def _collect_pairs(samples: Samples, side: str, papers: int, number: int, passes: int) -> _SidePairs:
    """Collect the pairs of one side that belong to a pass; a pair belongs to the same pass on both sides."""
    parts = []
    for block in iter_picks(samples, side):
        keys = _pair_keys(block, papers)
        mask: NDArray[np.bool_] = block.anchors != block.rows
        if passes > 1:
            mask &= mix_keys(keys, keys) % np.uint64(passes) == number
        parts.append((keys[mask], (block.anchors > block.rows)[mask], block.aspects[mask], block.rules[mask]))
    return _SidePairs(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _compare(
    up: _SidePairs, down: _SidePairs, rules: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the keys of colliding pairs, counts in the order of `Collisions`, and affected negatives by rule."""
    positive, negative = np.unique(up.keys), np.unique(down.keys)
    colliding = np.intersect1d(positive, negative, assume_unique=True)
    (at, place), (touched, other) = (_find_colliding(side, colliding) for side in (up, down))
    anchors = np.intersect1d(2 * place + up.swapped[at], 2 * other + down.swapped[touched])
    aspects = np.intersect1d(256 * place + up.aspects[at], 256 * other + down.aspects[touched])
    counts = [
        len(colliding),
        len(np.unique(anchors // 2)),
        len(np.unique(aspects // 256)),
        len(positive) + len(negative) - len(colliding),
        len(touched),
    ]
    return colliding, np.array(counts, np.int64), np.bincount(down.rules[touched], minlength=rules)


def _find_colliding(side: _SidePairs, colliding: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which entries of a side collide, and the number of their colliding pair."""
    if not len(colliding):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    place = np.minimum(np.searchsorted(colliding, side.keys), len(colliding) - 1)
    at = np.flatnonzero(colliding[place] == side.keys)
    return at, place[at]


def _describe(samples: Samples, corpus: Corpus, keys: NDArray[np.uint64]) -> Iterator[Collision]:
    """Yield some colliding pairs with their ids and rules, as examples."""
    if not len(keys):
        return
    papers = len(corpus)
    rules: dict[str, list[set[int]]] = {}
    for side in ("positives", "negatives"):
        rules[side] = [set() for _ in keys]
        for block in iter_picks(samples, side):
            block_keys = _pair_keys(block, papers)
            for at in np.flatnonzero(np.isin(block_keys, keys)).tolist():
                rules[side][int(np.searchsorted(keys, block_keys[at]))].add(int(block.rules[at]))
    for number, key in enumerate(keys.tolist()):
        names = [tuple(samples.names.rules[rule] for rule in sorted(rules[side][number])) for side in rules]
        yield Collision((corpus.ids[key // papers], corpus.ids[key % papers]), names[0], names[1])


# Repeats.

_BYTES_PER_TRIPLET = 32
_MOST_FREQUENT = 0.01


@dataclass(frozen=True, slots=True)
class Frequency:
    """Repeats of single papers beside collisions: how often each is on one side of samples; the most frequent (hubs)."""

    picks: int
    papers: int
    """Distinct papers."""

    top: tuple[tuple[str, int], ...]
    """Ids and counts of the most frequent, largest first."""

    top_share: float
    """The share of all entries that the 1 % most frequent papers make up (at least one paper)."""

    def as_json(self) -> dict[str, Any]:
        """Return the frequencies of papers as JSON."""
        top = [{"paper": paper, "picks": count} for paper, count in self.top]
        return {"picks": self.picks, "papers": self.papers, "top_1_percent_share": self.top_share, "top": top}


@dataclass(frozen=True, slots=True)
class Repeats:
    """Counts of repeats beside collisions: triplets, papers of one sample, and frequent papers."""

    triplets: int
    repeated_triplets: int
    """Triplets of the same anchor, positive, negative and aspect as an earlier one."""

    repeated_picks: int
    """Papers that their sample already has on the same side."""

    on_both_sides: int
    """Papers that one sample has both as positive and as negative."""

    anchor_picked: int
    """Selected papers that are the anchor itself."""

    frequencies: dict[str, Frequency] = field(default_factory=dict)
    """By side: positives, negatives."""

    def as_json(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in self.__slots__ if name != "frequencies"}
        return {**counts, "frequencies": {side: value.as_json() for side, value in self.frequencies.items()}}


def find_repeats(samples: Samples, corpus: Corpus, *, top: int = 10, memory: int = 512 << 20) -> Repeats:
    """Count the repeats in samples beside collisions; triplets that do not fit into the memory take several passes."""
    papers = len(corpus)
    occurrences = {side: np.zeros(papers, np.int64) for side in ("positives", "negatives")}
    repeated = both = itself = 0
    for first, last in sample_spans(samples):
        keys = []
        for side, counts in occurrences.items():
            block = take_picks(samples, side, first, last)
            counts += np.bincount(block.rows, minlength=papers)
            itself += int((block.rows == block.anchors).sum())
            keys.append(np.unique((block.samples - first) * papers + block.rows))
            repeated += len(block) - len(keys[-1])
        both += len(np.intersect1d(keys[0], keys[1], assume_unique=True))
    triplets, distinct = _count_triplets(samples, memory)
    return Repeats(
        triplets=triplets,
        repeated_triplets=triplets - distinct,
        repeated_picks=repeated,
        on_both_sides=both,
        anchor_picked=itself,
        frequencies={side: _frequency(counts, corpus, top) for side, counts in occurrences.items()},
    )


def triplet_keys(samples: Samples, first: int, last: int) -> NDArray[np.uint64]:
    """Return a key for each triplet, paired as in `Samples.triplets`, by which collisions count repeats among the samples."""
    sides = [take_picks(samples, side, first, last) for side in ("positives", "negatives")]
    sizes = [np.bincount(block.samples - first, minlength=last - first) for block in sides]  # (samples,) each
    counts = np.where((sizes[0] > 0) & (sizes[1] > 0), np.maximum(*sizes), 0)
    owner, place = np.repeat(np.arange(last - first), counts), number_within(counts)  # (triplets,)
    rows = [
        block.rows[(np.cumsum(size) - size)[owner] + place % np.maximum(size[owner], 1)].astype(np.uint64)
        for block, size in zip(sides, sizes, strict=True)
    ]
    anchors, aspects = (column[first:last][owner].astype(np.uint64) for column in (samples.anchors, samples.aspects))
    return mix_keys(mix_keys(anchors, aspects), mix_keys(rows[0], rows[1]))


def _count_triplets(samples: Samples, memory: int) -> tuple[int, int]:
    """Count all triplets of the samples, and the distinct ones."""
    max_triplets = len(samples.positives.rows) + len(samples.negatives.rows)
    passes = max(1, -(-max_triplets * _BYTES_PER_TRIPLET // memory))
    total = distinct = 0
    for number in range(passes):
        parts = [np.zeros(0, np.uint64)]
        for span in sample_spans(samples):
            keys = triplet_keys(samples, *span)
            parts.append(keys if passes == 1 else keys[keys % np.uint64(passes) == number])
        keys = np.concatenate(parts)
        total, distinct = total + len(keys), distinct + len(np.unique(keys))
    return total, distinct


def _frequency(counts: NDArray[np.int64], corpus: Corpus, top: int) -> Frequency:
    used = int((counts > 0).sum())
    order = np.argsort(-counts, kind="stable")[: max(top, 1 + int(_MOST_FREQUENT * used))]
    total = int(counts.sum())
    largest = order[: max(1, round(_MOST_FREQUENT * used))]
    named = [(corpus.ids[row], int(counts[row])) for row in order[:top].tolist() if counts[row]]
    return Frequency(total, used, tuple(named), float(counts[largest].sum() / total) if total else 0.0)
