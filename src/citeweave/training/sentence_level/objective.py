"""What the losses on sentences make of a batch.

    aligned_triplet      f(anchor, positive) - f(anchor, negative) + margin, f the distance of two aligned sentences
    sentence_triplet     the same, f a distance between papers by all their sentences: single, attention, transport
                         (both Mysore et al. 2022, ASPIRE, section 3)
    sentence_in_batch    the positive against every candidate of the batch, by how their sentences match

A negative of the batch is the positive of another group; never the anchor's own positive, nor a known relative.
`match` and `match_scores` have the formulas; here is which sentences they get.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citeweave.randomness import stream
from citeweave.similarity.matching.matched import DocumentDistance, match
from citeweave.similarity.matching.pairs import PaperPairs
from citeweave.training import losses
from citeweave.training.batches import Batch, are_pairs
from citeweave.training.data import Numbers
from citeweave.training.sentence_level.spans import Alignment, PaperRows
from citeweave.training.sentence_level.trained_distance import TrainedDistance

Mask = NDArray[np.bool_]
Settings = Mapping[str, Any]
Allowed = Callable[[Numbers, Numbers], Mask]
"""Which papers of the batch may be negatives of which, by their places in it: (left, right), bool."""


class Vectors(NamedTuple):
    """The vectors of a batch: a row for every paper, and behind it its sentences'."""

    matrix: Tensor
    rows: PaperRows

    def sentences(self, papers: Numbers) -> tuple[Tensor, Tensor]:
        """Sentences of papers, (papers, most, dimension), and where there is one."""
        places = self.rows.sentences(papers)  # (papers, most)
        inside = torch.from_numpy(places >= 0).to(self.matrix.device, non_blocking=True)
        index = torch.from_numpy(np.maximum(places, 0)).to(self.matrix.device, non_blocking=True)
        return torch.where(inside[:, :, None], self.matrix[index], 0), inside


class Triples(NamedTuple):
    """Places of papers in a batch, (triples,) each, and the aligned sentences of each, -1 where there are none."""

    anchors: Numbers
    positives: Numbers
    negatives: Numbers
    sentences: Numbers
    """Shape (triples, 3)."""


def sentence_triplet(vectors: Vectors, batch: Batch, settings: Settings, allowed: Allowed) -> Tensor:
    """f is a distance between papers by all their sentences; Mysore et al. 2022, section 3.2.3 and ablations."""
    triples = _triples(batch, settings, allowed, None)
    distance = TrainedDistance(settings["distance"], settings["metric"], settings["temperature"], settings["mode"])
    near = document_distances(vectors, triples.anchors, triples.positives, distance)
    far = document_distances(vectors, triples.anchors, triples.negatives, distance)
    return _margin(near, far, settings)


def aligned_triplet(
    vectors: Vectors, batch: Batch, settings: Settings, allowed: Allowed, alignment: Alignment | None
) -> Tensor:
    """f is the distance of the aligned sentences, i of the anchor and i' of the positive; section 3.2.2.

    A negative of the batch has the sentence that is aligned to its own anchor; where there is none, as in a negative
    that was mined, the nearest of its sentences counts. A pair that is not aligned is judged by its nearest sentences.
    """
    triples = _triples(batch, settings, allowed, alignment)
    near, far = (
        _aligned_distances(vectors, triples.anchors, others, triples.sentences[:, [0, at]], settings)
        for at, others in ((1, triples.positives), (2, triples.negatives))
    )
    return _margin(near, far, settings)


def _margin(near: Tensor, far: Tensor, settings: Settings) -> Tensor:
    counted = torch.isfinite(near) & torch.isfinite(far)
    return losses.distance_margin(near, far, margin=settings["margin"], mask=counted).float()


def document_distances(vectors: Vectors, left: Numbers, right: Numbers, trained: TrainedDistance) -> Tensor:
    """Distances of pairs of papers by all their sentences, (pairs,) float64; what the peer trains with in its mode."""
    if not len(left):
        return vectors.matrix.sum(dtype=torch.float64)[None][:0]
    distance = DocumentDistance(trained.name, trained.temperature, trained.metric, trained.mode, start="batch")
    (queries, query_mask), (candidates, candidate_mask) = vectors.sentences(left), vectors.sentences(right)
    found: Tensor = match(PaperPairs(queries, candidates, query_mask, candidate_mask), distance).training
    return found


def _aligned_distances(
    vectors: Vectors, left: Numbers, right: Numbers, sentences: Numbers, settings: Settings
) -> Tensor:
    """Distances of the aligned sentences; of the nearest ones on a side where none is aligned, (pairs,) float64."""
    if not len(left):
        return vectors.matrix.sum(dtype=torch.float64)[None][:0]
    sides = []
    for at, papers in enumerate((left, right)):
        vectors_of, mask = vectors.sentences(papers)  # (pairs, most, dimension), (pairs, most)
        chosen = sentences[:, at, None]  # (pairs, 1)
        only = (np.arange(mask.shape[1]) == chosen) | (chosen < 0)  # (pairs, most)
        sides.append((vectors_of, mask & torch.from_numpy(only).to(mask.device)))
    pairs = PaperPairs(sides[0][0], sides[1][0], sides[0][1], sides[1][1])
    found: Tensor = match(pairs, DocumentDistance("single", metric=settings["metric"])).training
    return found


def _triples(batch: Batch, settings: Settings, allowed: Allowed, alignment: Alignment | None) -> Triples:
    """Triplets of the samples, or pairs with negatives of the batch."""
    if settings["negatives"] == "own":
        return _own_triples(batch, alignment)
    return _batch_triples(batch, allowed, alignment)


def _own_triples(batch: Batch, alignment: Alignment | None) -> Triples:
    anchors, positives, negatives = batch.triplets.T
    found = _aligned(batch, anchors, positives, alignment)  # (triples, 2)
    return Triples(anchors, positives, negatives, np.concatenate([found, np.full((len(found), 1), -1)], axis=1))


def _batch_triples(batch: Batch, allowed: Allowed, alignment: Alignment | None) -> Triples:
    """Each pair with the positive of the next pair that may be its negative; a pair for which there is none is left out."""
    owner, place = np.nonzero(batch.positives >= 0)  # (pairs,)
    anchors, positives = batch.anchors[owner], batch.positives[owner, place]
    fits = allowed(anchors, positives) & allowed(positives, positives)  # (pairs, pairs)
    fits &= ~are_pairs(batch, anchors, positives)  # other positives of the anchor are no negatives
    pairs = np.arange(len(owner))
    turned = (pairs[:, None] + 1 + pairs) % max(1, len(owner))  # (pairs, pairs): the others, from the next one on
    first = np.take_along_axis(fits, turned, axis=1).argmax(axis=1) if len(owner) else pairs
    others = turned[pairs, first] if len(owner) else pairs
    keep = np.flatnonzero(fits[pairs, others])
    found = _aligned(batch, anchors, positives, alignment)  # (pairs, 2)
    sentences = np.concatenate([found, found[others][:, 1:]], axis=1)  # (pairs, 3)
    return Triples(anchors[keep], positives[keep], positives[others[keep]], sentences[keep])


def _aligned(batch: Batch, anchors: Numbers, positives: Numbers, alignment: Alignment | None) -> Numbers:
    if alignment is None:
        return np.full((len(anchors), 2), -1, np.int64)
    return alignment.find(batch.papers[anchors], batch.papers[positives])


def sentence_in_batch(vectors: Vectors, batch: Batch, settings: Settings, allowed: Allowed) -> Tensor:
    owner, place = np.nonzero(batch.positives >= 0)  # (pairs,)
    named = np.concatenate([batch.positives.ravel(), batch.negatives.ravel()])
    candidates = np.unique(named[named >= 0])
    anchors = batch.anchors[owner]
    fits = allowed(anchors, candidates)  # (pairs, candidates)
    fits &= ~are_pairs(batch, anchors, candidates)  # other positives are no negatives
    fits |= _names(batch.negatives, candidates)[owner]  # its own negatives always are
    (queries, query_mask), (others, other_mask) = vectors.sentences(anchors), vectors.sentences(candidates)
    if settings["facets"]:
        counts = vectors.rows.counts[anchors]
        chosen = torch.from_numpy(_runs(counts, settings["facets"], zlib.crc32(batch.papers.tobytes())))
        query_mask = query_mask & chosen.to(query_mask.device)
    scores = losses.match_scores(
        queries, others, query_mask, other_mask, match=settings["match"], sharpness=settings["sharpness"]
    )  # (pairs, candidates)
    if settings["whole"]:
        own = [
            vectors.matrix[torch.from_numpy(vectors.rows.own[side]).to(scores.device)] for side in (anchors, candidates)
        ]
        scores = (1 - settings["whole"]) * scores + settings["whole"] * losses.cosines(own[0], own[1])
    targets = batch.positives[owner, place][:, None] == candidates  # (pairs, candidates)
    return losses.scores_in_batch(
        scores,
        torch.from_numpy(targets).to(scores.device),
        allowed=torch.from_numpy(fits).to(scores.device),
        temperature=settings["temperature"],
    )


def _names(lists: Numbers, candidates: Numbers) -> Mask:
    """Which candidates a list names, (lists, candidates), bool."""
    found: Mask = (lists[:, :, None] == candidates).any(axis=1)
    return found


def _runs(counts: Numbers, share: float, key: int) -> Mask:
    """Some neighbouring sentences of this share of the papers, all of the others; (papers, most), bool.

    A paper of which a part is asked for learns to be found by its aspects. The draw is a function of the key.
    """
    draw = stream(key, "training", "facets")
    partly = draw.random(len(counts)) < share
    lengths = np.where(partly, 1 + (draw.random(len(counts)) * counts).astype(np.int64), counts)
    starts = (draw.random(len(counts)) * (counts - lengths + 1)).astype(np.int64)
    at = np.arange(int(counts.max(initial=0)))
    found: Mask = (at >= starts[:, None]) & (at < (starts + lengths)[:, None])
    return found
