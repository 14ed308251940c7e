"""How good the vectors are while they are being trained: triplets and pools that training does not see.

    accuracy       share of held-back triplets whose positive is nearer than their negative
    cite.map ...   pools of the corpus suite, ranked by cosine: the suite's own number on fewer queries

Judges vectors of a network as it is; decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from citeweave.encoders.batching import batches
from citeweave.evaluation.measuring.ranking import rank_as_trec
from citeweave.evaluation.measuring.relevance import average_precision
from citeweave.training.data import Numbers, RankingPools
from citeweave.training.options import ACCURACY
from citeweave.training.stepping import Stepper, encode_papers

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
        triplets = data.validation.triplets()[:TRIPLETS]  # (triplets, 3)
        pools = data.pools
        papers = np.unique(np.concatenate([triplets.ravel(), *(_papers(pool) for pool in pools.values())]))
        vectors = self._vectors(papers)
        found = {ACCURACY: triplet_accuracy(vectors, np.searchsorted(papers, triplets))} if len(triplets) else {}
        precisions = {
            f"{name}.map": mean_precision(vectors, papers, pool, distance=self.distance) for name, pool in pools.items()
        }
        return found | precisions

    def _vectors(self, papers: Numbers) -> NDArray[np.float32]:
        """Vectors (papers, dimension) without dropout."""
        stepper, model = self.stepper, self.stepper.network.model
        lengths = stepper.data.tokens.lengths()[papers]
        found = np.zeros((len(papers), stepper.network.dimension), np.float32)
        was_training = model.training
        model.eval()
        try:
            with torch.no_grad(), stepper.computing():
                for rows in batches(lengths, stepper.micro_tokens):
                    block = encode_papers(stepper.data, stepper.network, stepper.settings, papers[rows])
                    found[rows] = block.float().cpu().numpy()
        finally:
            model.train(was_training)
        return found


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
