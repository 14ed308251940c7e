"""How good the vectors are while they are being trained: triplets and pools that training does not see.

    accuracy       share of held-back triplets whose positive is nearer than their negative, by L2 of their vectors, or
                   by the distance between papers that a loss on sentences trains; of samples with aspects, by cosine in
                   the space of their aspect
    cite.map ...   pools of the corpus suite, ranked by cosine: the suite's own number on fewer queries

Judges vectors of a network as it is; decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from citeweave.evaluation.ranking_metrics import average_precision, rank_as_trec
from citeweave.training.data import BatchRows, Numbers, RankingPools, TrainingData, lists_of, paper_rows
from citeweave.training.options import ACCURACY
from citeweave.training.sentence_objective import BatchVectors, document_distances, trained_distance
from citeweave.training.step import Stepper

BLOCK = 512
"""Triplets whose sentences are compared at a time."""

TRIPLETS = 5000
"""Held-back triplets that are looked at, at most; the first ones, whose anchors were drawn at random."""


@dataclass(frozen=True, slots=True)
class Validation:
    """What a network is judged by. See `judge`."""

    stepper: Stepper
    distance: str = "cosine"
    """How pools are ranked: `cosine`, as the corpus suite does, or `l2`."""

    def judge(self) -> dict[str, float]:
        """Every number that validation knows, each between 0 and 1."""
        data = self.stepper.data
        triplets, owner = held_back_triplets(data)  # (triplets, 3), (triplets,)
        pools = data.pools
        papers = np.unique(np.concatenate([triplets.ravel(), *(_papers(pool) for pool in pools.values())]))
        if not len(papers):
            return {}
        rows, layout = self._rows(papers), paper_rows(data.sentences, papers)
        found = {}
        if len(triplets):
            found[ACCURACY] = self._accuracy(rows, layout, np.searchsorted(papers, triplets), owner)
        vectors = rows[layout.own]  # (papers, dimension)
        precisions = {
            f"{name}.map": mean_precision(vectors, papers, pool, distance=self.distance) for name, pool in pools.items()
        }
        return found | precisions

    def _accuracy(self, rows: NDArray[np.float32], layout: BatchRows, triplets: Numbers, owner: Numbers) -> float:
        if self.stepper.objective.material.heads is not None:
            return self._accuracy_in_aspects(rows[layout.own], triplets, owner)
        distance = trained_distance(self.stepper.objective.terms)
        if distance is None:
            return triplet_accuracy(rows[layout.own], triplets)
        vectors = BatchVectors(torch.from_numpy(rows).to(self.stepper.network.device), layout)
        nearer = 0
        for start in range(0, len(triplets), BLOCK):
            anchors, positives, negatives = triplets[start : start + BLOCK].T
            near, far = (document_distances(vectors, anchors, others, distance) for others in (positives, negatives))
            nearer += int((near < far).sum())
        return nearer / len(triplets)

    def _accuracy_in_aspects(self, vectors: NDArray[np.float32], triplets: Numbers, owner: Numbers) -> float:
        """Every triplet in the space of its group's aspect, by cosine as its loss."""
        heads, groups = self.stepper.objective.material.heads, self.stepper.data.validation
        assert heads is not None and groups.aspects is not None
        aspects = groups.aspects[owner]  # (triplets,)
        given, right = torch.from_numpy(vectors).to(self.stepper.network.device), 0.0
        for aspect in np.unique(aspects).tolist():
            mine = triplets[aspects == aspect]
            with torch.no_grad():
                found = torch.nn.functional.normalize(heads.project(aspect, given), dim=1)  # (papers, size)
            right += triplet_accuracy(found.float().cpu().numpy(), mine) * len(mine)
        return right / len(triplets)

    def _rows(self, papers: Numbers) -> NDArray[np.float32]:
        """Rows (rows, dimension) of papers, and of their sentences where these are trained, without dropout."""
        stepper, model = self.stepper, self.stepper.network.model
        if stepper.frozen is not None:
            return stepper.rows_of(papers).cpu().numpy()
        was_training = model.training
        model.eval()
        try:
            found: NDArray[np.float32] = stepper.read(papers).cpu().numpy()
            return found
        finally:
            model.train(was_training)


def held_back_triplets(data: TrainingData) -> tuple[Numbers, Numbers]:
    """Triplets of the validation, (triplets, 3), and the group of each, (triplets,); where samples have no negatives,
    with positives of later samples."""
    groups = data.validation
    if len(groups.negatives.papers):
        return groups.triplets()[:TRIPLETS], np.repeat(np.arange(len(groups)), groups.triplet_counts())[:TRIPLETS]
    owner = np.repeat(np.arange(len(groups)), groups.positives.counts())  # (pairs,)
    anchors, positives = groups.anchors[owner], groups.positives.papers
    others = np.roll(positives, -1 - len(positives) // 2)  # of a sample that has nothing to do with this one
    known = data.relatives.take(anchors) if data.relatives is not None else lists_of([[]] * len(anchors))
    related = np.zeros(len(anchors), bool)
    np.logical_or.at(related, np.repeat(np.arange(len(anchors)), known.counts()), known.papers == np.repeat(others, known.counts()))  # fmt: skip
    keep = np.flatnonzero(~related & (others != positives) & (others != anchors))[:TRIPLETS]
    return np.stack([anchors, positives, others], axis=1)[keep], owner[keep]


def triplet_accuracy(vectors: NDArray[np.float32], triplets: Numbers) -> float:
    """Share of triplets whose positive is nearer by L2 than their negative; a tie is a miss.

    >>> triplet_accuracy(np.array([[0.0], [1.0], [3.0]], np.float32), np.array([[0, 1, 2], [0, 2, 1]]))
    0.5
    """
    anchors, positives, negatives = (vectors[column] for column in triplets.T)  # (triplets, dimension) each
    near, far = (np.linalg.norm(anchors - others, axis=1) for others in (positives, negatives))
    return float((near < far).mean())


def mean_precision(
    vectors: NDArray[np.float32], papers: Numbers, pools: RankingPools, *, distance: str = "cosine"
) -> float:
    """Mean average precision of the pools' rankings, by cosine or by `l2`."""
    candidates = np.searchsorted(papers, pools.candidates.papers)
    queries = np.repeat(np.searchsorted(papers, pools.queries), pools.candidates.counts())
    if distance == "l2":
        scores = -np.linalg.norm(vectors[queries] - vectors[candidates], axis=1)  # (pairs,)
    else:
        unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        scores = np.einsum("pd,pd->p", unit[queries], unit[candidates])  # (pairs,)
    ranked = rank_as_trec(
        scores, pools.relevant.astype(np.int64), pools.candidates.offsets, ties=np.arange(len(scores))
    )
    return float(average_precision(ranked).mean())


def _papers(pools: RankingPools) -> Numbers:
    return np.concatenate([pools.queries, pools.candidates.papers])
