"""Repeats: what samples hold more than once, and the papers that occur in them most often.

    sample of 7: positives 1, 2, 1    negatives 5, 6, 2
    a pick repeated (1), a paper on both sides (2), three triplets: (7, 1, 5), (7, 2, 6), (7, 1, 2)

A paper that is the negative of very many anchors is a hub: a model can learn to push it away without reading.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.corpus import Corpus
from citeweave.hashing import mix
from citeweave.mining.auditing.pick_blocks import spans, take_span
from citeweave.mining.samples import Samples

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
