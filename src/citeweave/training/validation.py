"""Validation during training: accuracy on held-out triplets, and mean average precision on pools of the suite.

    accuracy       share of held-out triplets whose positive is nearer than their negative, by L2 of their vectors, or
                   by the distance between papers that a loss on sentences trains; of samples with aspects, by cosine in
                   the space of their aspect
    cite.map ...   pools of the corpus suite, ranked by cosine: the suite's own metric on fewer queries

Measures the network as it is; stopping early is decided in `trainer.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from citeweave.evaluation.ranking_metrics import average_precision, rank_as_trec
from citeweave.training.data import BatchRows, Numbers, RankingPools, TrainingData, make_lists, paper_rows
from citeweave.training.options import ACCURACY
from citeweave.training.sentence_objective import BatchVectors, document_distances, trained_distance
from citeweave.training.step import Stepper
from citeweave.vectors.vectors import unit_rows

BLOCK = 512
"""Triplets whose sentences are compared at a time."""

TRIPLETS = 5000
"""Maximum number of held-out triplets; the first ones, whose anchors were drawn at random."""


@dataclass(frozen=True, slots=True)
class Validation:
    """Validation of the network of a stepper on held-out triplets and pools."""

    stepper: Stepper
    distance: str = "cosine"
    """Distance by which pools are ranked: `cosine`, as in the corpus suite, or `l2`."""

    def evaluate(self) -> dict[str, float]:
        """Evaluate the network as it is; return every metric of the validation, each between 0 and 1."""
        data = self.stepper.data
        triplets, owner = held_out_triplets(data)  # (triplets, 3), (triplets,)
        pools = data.pools
        papers = np.unique(np.concatenate([triplets.ravel(), *(_papers(pool) for pool in pools.values())]))
        if not len(papers):
            return {}
        rows, layout = self._encode(papers), paper_rows(data.sentences, papers)
        metrics = {}
        if len(triplets):
            metrics[ACCURACY] = self._measure_accuracy(rows, layout, np.searchsorted(papers, triplets), owner)
        vectors = rows[layout.own]  # (papers, dimension)
        precisions = {
            f"{name}.map": _mean_precision(vectors, papers, pool, distance=self.distance)
            for name, pool in pools.items()
        }
        return metrics | precisions

    def _measure_accuracy(
        self, rows: NDArray[np.float32], layout: BatchRows, triplets: Numbers, owner: Numbers
    ) -> float:
        """Measure the accuracy of triplets by the distance that the losses train."""
        if self.stepper.objective.inputs.heads is not None:
            return self._measure_accuracy_in_aspects(rows[layout.own], triplets, owner)
        distance = trained_distance(self.stepper.objective.terms)
        if distance is None:
            return _triplet_accuracy(rows[layout.own], triplets)
        vectors = BatchVectors(torch.from_numpy(rows).to(self.stepper.network.device), layout)
        nearer = 0
        for start in range(0, len(triplets), BLOCK):
            anchors, positives, negatives = triplets[start : start + BLOCK].T
            near, far = (document_distances(vectors, anchors, others, distance) for others in (positives, negatives))
            nearer += int((near < far).sum())
        return nearer / len(triplets)

    def _measure_accuracy_in_aspects(self, vectors: NDArray[np.float32], triplets: Numbers, owner: Numbers) -> float:
        """Measure the accuracy of triplets in the space of their group's aspect, by cosine like their loss."""
        heads, groups = self.stepper.objective.inputs.heads, self.stepper.data.validation
        assert heads is not None and groups.aspects is not None
        aspects = groups.aspects[owner]  # (triplets,)
        tensor, correct = torch.from_numpy(vectors).to(self.stepper.network.device), 0.0
        for aspect in np.unique(aspects).tolist():
            mine = triplets[aspects == aspect]
            with torch.no_grad():
                projected = torch.nn.functional.normalize(heads.project(aspect, tensor), dim=1)  # (papers, size)
            correct += _triplet_accuracy(projected.float().cpu().numpy(), mine) * len(mine)
        return correct / len(triplets)

    def _encode(self, papers: Numbers) -> NDArray[np.float32]:
        """Encode papers, and their sentences where a loss reads them, without dropout; (rows, dimension)."""
        stepper, model = self.stepper, self.stepper.network.model
        if stepper.frozen is not None:
            return stepper.frozen_rows(papers).cpu().numpy()
        was_training = model.training
        model.eval()
        try:
            rows: NDArray[np.float32] = stepper.encode_all(papers).cpu().numpy()
            return rows
        finally:
            model.train(was_training)


def held_out_triplets(data: TrainingData) -> tuple[Numbers, Numbers]:
    """Return the held-out triplets of validation, (triplets, 3), and the group of each, (triplets,).

    Samples without negatives get positives of other samples as negatives.
    """
    groups = data.validation
    if len(groups.negatives.papers):
        return groups.triplets()[:TRIPLETS], np.repeat(np.arange(len(groups)), groups.triplet_counts())[:TRIPLETS]
    owner = np.repeat(np.arange(len(groups)), groups.positives.counts())  # (pairs,)
    anchors, positives = groups.anchors[owner], groups.positives.papers
    others = np.roll(positives, -1 - len(positives) // 2)  # positives of an unrelated sample
    known = data.related.take(anchors) if data.related is not None else make_lists([[]] * len(anchors))
    related = np.zeros(len(anchors), bool)
    np.logical_or.at(related, np.repeat(np.arange(len(anchors)), known.counts()), known.papers == np.repeat(others, known.counts()))  # fmt: skip
    keep = np.flatnonzero(~related & (others != positives) & (others != anchors))[:TRIPLETS]
    return np.stack([anchors, positives, others], axis=1)[keep], owner[keep]


def _triplet_accuracy(vectors: NDArray[np.float32], triplets: Numbers) -> float:
    """Return the share of triplets whose positive is nearer by L2 than their negative; a tie is a miss.

    >>> _triplet_accuracy(np.array([[0.0], [1.0], [3.0]], np.float32), np.array([[0, 1, 2], [0, 2, 1]]))
    0.5
    """
    anchors, positives, negatives = (vectors[column] for column in triplets.T)  # (triplets, dimension) each
    near, far = (np.linalg.norm(anchors - others, axis=1) for others in (positives, negatives))
    return float((near < far).mean())


def _mean_precision(
    vectors: NDArray[np.float32], papers: Numbers, pools: RankingPools, *, distance: str = "cosine"
) -> float:
    """Return the mean average precision of the pools' rankings, by cosine or by `l2`."""
    candidates = np.searchsorted(papers, pools.candidates.papers)
    queries = np.repeat(np.searchsorted(papers, pools.queries), pools.candidates.counts())
    if distance == "l2":
        scores = -np.linalg.norm(vectors[queries] - vectors[candidates], axis=1)  # (pairs,)
    else:
        unit = unit_rows(vectors)
        scores = np.einsum("pd,pd->p", unit[queries], unit[candidates])  # (pairs,)
    ranked = rank_as_trec(
        scores, pools.relevant.astype(np.int64), pools.candidates.offsets, ties=np.arange(len(scores))
    )
    return float(average_precision(ranked).mean())


def _papers(pools: RankingPools) -> Numbers:
    return np.concatenate([pools.queries, pools.candidates.papers])
