"""Losses on sentence vectors: which sentences of a batch's papers they compare, and the distance they train.

    aligned_triplet      f(anchor, positive) - f(anchor, negative) + margin, f the distance of two aligned sentences
    sentence_triplet     the same, f a distance between papers by all their sentences: single, attention, transport
                         (both Mysore et al. 2022, ASPIRE, section 3)
    sentence_in_batch    the positive against every candidate of the batch, by how their sentences match

An in-batch negative is the positive of another group; never the anchor's own positive, nor a related paper.
`training_distances` and `match_scores` have the formulas; this file chooses the sentences that they get. A model trained with these
losses should be evaluated by the distance that they train:

>>> trained_distance({"aligned_triplet": {"metric": "l2"}})
TrainedDistance(name='single', metric='l2', temperature=1.0, mode='exact')
>>> trained_distance({"in_batch": {}}) is None
True
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citeweave.core.randomness import stream
from citeweave.training import contrastive_losses as contrastive
from citeweave.training import pairwise_losses as pairwise
from citeweave.training.batch_negatives import batch_candidates, mark_listed, mark_positives
from citeweave.training.data import (
    AlignedPairs,
    Batch,
    BatchRows,
    Numbers,
)
from citeweave.vectors.document_distance import DocumentDistance
from citeweave.vectors.own_distance import Reading
from citeweave.vectors.sentence_distances import PaperPairs
from citeweave.vectors.training_distances import training_distances


@dataclass(frozen=True, slots=True)
class TrainedDistance:
    """The distance that a sentence objective trains: name, metric and settings."""

    name: str
    metric: str
    temperature: float = 1.0
    mode: str = "exact"


def trained_distance(losses: Mapping[str, Mapping[str, Any]]) -> TrainedDistance | None:
    """Return the distance that a recipe's sentence objective trains; None where no loss reads sentences."""
    if (settings := losses.get("sentence_triplet")) is not None:
        return TrainedDistance(settings["distance"], settings["metric"], settings["temperature"], settings["mode"])
    if (settings := losses.get("aligned_triplet")) is not None:  # without alignment the nearest pair of sentences
        return TrainedDistance("single", settings["metric"])
    if (settings := losses.get("sentence_in_batch")) is not None:
        return TrainedDistance(settings["match"], "cosine", settings["sharpness"])
    return None


def trained_reading(written: Reading, losses: Mapping[str, Mapping[str, Any]]) -> Reading:
    """Return how a trained model is best read: as its recipe says, else by the distance that a sentence loss trains.

    >>> trained_reading(Reading(), {"sentence_triplet": {"distance": "transport", "metric": "l2", "temperature": 5000.0, "mode": "exact"}})
    Reading(distance='transport', metric='l2', max_tokens=0, temperature=None)
    >>> trained_reading(Reading("mean_best", "cosine"), {"in_batch": {}}).distance
    'mean_best'
    """
    distance = trained_distance(losses)
    if written or distance is None:
        return written
    temperature = distance.temperature if distance.name == "attention" else None
    return Reading(distance.name, distance.metric, temperature=temperature)


Mask = NDArray[np.bool_]
Places = NDArray[np.int64]
"""Rows of the sentences of papers in a batch, (papers, longest), -1 on padding."""

LossSettings = Mapping[str, Any]
Allowed = Callable[[Numbers, Numbers], Mask]
"""Function from positions in the batch to which papers may be negatives of which, (left, right), bool."""


def to_tensor(values: NDArray[Any], like: Tensor) -> Tensor:
    """Copy an array to the device of a tensor, on a GPU from pinned memory, so that nothing waits."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return tensor.pin_memory().to(like.device, non_blocking=True) if like.is_cuda else tensor


class BatchVectors(NamedTuple):
    """Vectors of a batch for a sentence objective: a row for every paper, followed by the rows of its sentences."""

    matrix: Tensor
    rows: BatchRows

    def pairs(self, left: Places, right: Places) -> PaperPairs:
        """Return pairs of padded sentences by their rows, (papers, longest) each, -1 on padding; one copy, one gather."""
        left, right = (side[:, (side >= 0).any(axis=0)] for side in (left, right))
        flat = np.concatenate([left.ravel(), right.ravel()])
        # many paddings of one row would be added up one after the other in backward: they take different rows
        index = np.where(flat >= 0, flat, np.arange(len(flat)) % len(self.matrix))
        packed = to_tensor(np.stack([index, flat >= 0]), self.matrix)  # (2, sentences of both sides)
        inside = packed[1].bool()
        vectors = torch.where(inside[:, None], self.matrix[packed[0]], 0)
        cut, (queries, candidates) = left.size, (left.shape, right.shape)
        return PaperPairs(
            vectors[:cut].view(*queries, -1),
            vectors[cut:].view(*candidates, -1),
            inside[:cut].view(queries),
            inside[cut:].view(candidates),
        )


class SentenceTriplets(NamedTuple):
    """Triplets of a sentence objective by positions in a batch, (triplets,) each, with their aligned sentences."""

    anchors: Numbers
    positives: Numbers
    negatives: Numbers
    sentences: Numbers
    """Aligned sentence of each paper, shape (triplets, 3), -1 where there is none."""

    def sides(self) -> tuple[Numbers, Numbers]:
        """Return the papers of pairs, (2 triplets,) each: the anchors twice, and the positives before the negatives."""
        return np.tile(self.anchors, 2), np.concatenate([self.positives, self.negatives])


def sentence_triplet(vectors: BatchVectors, batch: Batch, settings: LossSettings, allowed: Allowed) -> Tensor:
    """Compute the triplet objective on a distance by all sentences of papers; Mysore et al. 2022, section 3.2.3."""
    triples = _choose_triplets(batch, settings, allowed, None)
    trained = TrainedDistance(settings["distance"], settings["metric"], settings["temperature"], settings["mode"])
    anchors, others = (vectors.rows.sentence_rows(papers) for papers in triples.sides())
    return _margin_loss(vectors, anchors, others, trained, settings)


def aligned_triplet(
    vectors: BatchVectors, batch: Batch, settings: LossSettings, allowed: Allowed, alignment: AlignedPairs | None
) -> Tensor:
    """Compute the triplet objective on the distance of aligned sentences; Mysore et al. 2022, section 3.2.2.

    An in-batch negative is compared by the sentence aligned to its own anchor; one without, such as a mined negative,
    by its nearest sentence. A pair without alignment is compared by its nearest sentences.
    """
    triples = _choose_triplets(batch, settings, allowed, alignment)
    aligned = triples.sentences  # (triplets, 3)
    sides = []
    for papers, own in zip(triples.sides(), (aligned[:, [0, 0]], aligned[:, 1:]), strict=True):
        rows, sentences = vectors.rows.sentence_rows(papers), own.T.reshape(-1, 1)  # (2 triplets, longest or 1)
        sides.append(np.where((np.arange(rows.shape[1]) == sentences) | (sentences < 0), rows, -1))
    return _margin_loss(vectors, sides[0], sides[1], TrainedDistance("single", settings["metric"]), settings)


def _margin_loss(
    vectors: BatchVectors, anchors: Places, others: Places, trained: TrainedDistance, settings: LossSettings
) -> Tensor:
    """Compute the margin loss of pairs: first all anchors with their positives, then with their negatives.

    A triplet with a paper without sentences does not count.
    """
    there = (anchors >= 0).any(axis=1) & (others >= 0).any(axis=1)  # (2 triplets,)
    kept = np.tile(there.reshape(2, -1).all(axis=0), 2)  # (2 triplets,)
    sides = anchors[kept], others[kept]
    if trained.mode == "geomloss":  # whose distances depend on the other pairs
        halves = zip(*(np.split(side, 2) for side in sides), strict=True)
        near, far = (_distances(vectors, left, right, trained) for left, right in halves)
    else:
        near, far = _distances(vectors, *sides, trained).chunk(2)
    return pairwise.distance_margin(near, far, margin=settings["margin"]).float()


def document_distances(vectors: BatchVectors, left: Numbers, right: Numbers, trained: TrainedDistance) -> Tensor:
    """Compute the distances of a sentence objective: of pairs of papers by all their sentences, (pairs,) float64.

    Infinite where a paper has no sentence.
    """
    sides = [vectors.rows.sentence_rows(papers) for papers in (left, right)]
    there = np.flatnonzero((vectors.rows.counts[left] > 0) & (vectors.rows.counts[right] > 0))
    found = _distances(vectors, sides[0][there], sides[1][there], trained)
    if len(there) == len(left):
        return found
    return found.new_full((len(left),), torch.inf).index_put((to_tensor(there, found),), found)


def _distances(vectors: BatchVectors, left: Places, right: Places, trained: TrainedDistance) -> Tensor:
    """Compute the distances of pairs by their sentences' rows, each with one, (pairs,) float64."""
    if not len(left):
        return vectors.matrix.sum(dtype=torch.float64)[None][:0]
    distance = DocumentDistance(trained.name, trained.temperature, trained.metric, trained.mode, start="batch")
    found: Tensor = training_distances(vectors.pairs(left, right), distance)
    return found


def _choose_triplets(
    batch: Batch, settings: LossSettings, allowed: Allowed, alignment: AlignedPairs | None
) -> SentenceTriplets:
    """Choose the triplets of a sentence loss: those of the samples, or pairs with in-batch negatives."""
    if settings["negatives"] != "own":
        return _in_batch_triplets(batch, allowed, alignment)
    anchors, positives, negatives = batch.triplets.T
    aligned = _find_aligned(batch, anchors, positives, alignment)  # (triplets, 2)
    sentences = np.concatenate([aligned, np.full((len(aligned), 1), -1)], axis=1)  # (triplets, 3)
    return SentenceTriplets(anchors, positives, negatives, sentences)


def _in_batch_triplets(batch: Batch, allowed: Allowed, alignment: AlignedPairs | None) -> SentenceTriplets:
    """Pair each anchor and positive with the next pair's positive that may be a negative; others are left out."""
    owner, place = np.nonzero(batch.positives >= 0)  # (pairs,)
    anchors, positives = batch.anchors[owner], batch.positives[owner, place]
    fits = allowed(anchors, positives) & allowed(positives, positives)  # (pairs, pairs)
    fits &= ~mark_positives(batch, anchors, positives)  # other positives of the anchor are not negatives
    pairs = np.arange(len(owner))
    rotated = (pairs[:, None] + 1 + pairs) % max(1, len(owner))  # (pairs, pairs): all others, starting with the next
    first = np.take_along_axis(fits, rotated, axis=1).argmax(axis=1) if len(owner) else pairs
    others = rotated[pairs, first] if len(owner) else pairs
    keep = np.flatnonzero(fits[pairs, others])
    aligned = _find_aligned(batch, anchors, positives, alignment)  # (pairs, 2)
    sentences = np.concatenate([aligned, aligned[others][:, 1:]], axis=1)  # (pairs, 3)
    return SentenceTriplets(anchors[keep], positives[keep], positives[others[keep]], sentences[keep])


def _find_aligned(batch: Batch, anchors: Numbers, positives: Numbers, alignment: AlignedPairs | None) -> Numbers:
    """Find the aligned sentences of pairs of a batch, (pairs, 2), -1 where there are none."""
    if alignment is None:
        return np.full((len(anchors), 2), -1, np.int64)
    return alignment.find(batch.papers[anchors], batch.papers[positives])


def sentence_in_batch(vectors: BatchVectors, batch: Batch, settings: LossSettings, allowed: Allowed) -> Tensor:
    """Compute the in-batch softmax objective on scores by which the sentences of papers match."""
    owner, place = np.nonzero(batch.positives >= 0)  # (pairs,)
    candidates = batch_candidates(batch)
    anchors = batch.anchors[owner]
    fits = allowed(anchors, candidates)  # (pairs, candidates)
    fits &= ~mark_positives(batch, anchors, candidates)  # other positives are not negatives
    fits |= mark_listed(batch.negatives, candidates, len(batch.papers))[owner]  # its own negatives always are
    own, others = (vectors.rows.sentence_rows(papers) for papers in (anchors, candidates))
    if settings["facets"]:
        counts = vectors.rows.counts[anchors]
        own = np.where(_draw_sentence_runs(counts, settings["facets"], zlib.crc32(batch.papers.tobytes())), own, -1)
    pairs = vectors.pairs(own, others)
    scores = pairwise.match_scores(
        pairs.queries,
        pairs.candidates,
        pairs.query_mask,
        pairs.candidate_mask,
        match=settings["match"],
        sharpness=settings["sharpness"],
    )  # (pairs, candidates)
    if settings["whole"]:
        sides = [to_tensor(vectors.rows.own[side], scores) for side in (anchors, candidates)]
        cosines = contrastive.cosines(vectors.matrix[sides[0]], vectors.matrix[sides[1]])
        scores = (1 - settings["whole"]) * scores + settings["whole"] * cosines
    targets = batch.positives[owner, place][:, None] == candidates  # (pairs, candidates)
    marked = to_tensor(np.stack([targets, fits]), scores)  # (2, pairs, candidates)
    return contrastive.scores_in_batch(scores, marked[0], allowed=marked[1], temperature=settings["temperature"])


def _draw_sentence_runs(counts: Numbers, share: float, key: int) -> Mask:
    """Draw a run of neighboring sentences for a share of the papers, all sentences of the others; (papers, longest).

    Queries by a part of a paper train it to be found by its aspects. The draw is a function of the key.
    """
    draw = stream(key, "training", "facets")
    partly = draw.random(len(counts)) < share
    lengths = np.where(partly, 1 + (draw.random(len(counts)) * counts).astype(np.int64), counts)
    starts = (draw.random(len(counts)) * (counts - lengths + 1)).astype(np.int64)
    at = np.arange(int(counts.max(initial=0)))
    mask: Mask = (at >= starts[:, None]) & (at < (starts + lengths)[:, None])
    return mask
