"""From papers to the rows that losses read: a paper's own vector, and behind it the vectors of its sentences.

The paper is read once: its own vector is pooled as the encoder's settings say, a sentence's is the mean of the states
of its tokens, raw, as in `encoders/sentence_encoder.py`. Without sentences in the data there is one row a paper.

The distance between papers that losses on sentences train: what a model trained with them should be judged by.

>>> trained_distance({"aligned_triplet": {"metric": "l2"}})
TrainedDistance(name='single', metric='l2', temperature=1.0, mode='exact')
>>> trained_distance({"in_batch": {}}) is None
True

What the losses on sentences make of a batch.

    aligned_triplet      f(anchor, positive) - f(anchor, negative) + margin, f the distance of two aligned sentences
    sentence_triplet     the same, f a distance between papers by all their sentences: single, attention, transport
                         (both Mysore et al. 2022, ASPIRE, section 3)
    sentence_in_batch    the positive against every candidate of the batch, by how their sentences match

A negative of the batch is the positive of another group; never the anchor's own positive, nor a known relative.
`match` and `match_scores` have the formulas; here is which sentences they get.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citeweave.core.randomness import stream
from citeweave.encoders.batches import batches
from citeweave.encoders.model_folder import Settings
from citeweave.encoders.network import Network
from citeweave.encoders.sentence_encoder import span_vectors
from citeweave.encoders.text_vectors import text_vectors
from citeweave.encoders.tokens import Tokens
from citeweave.training import losses
from citeweave.training.batches import Batch, are_pairs
from citeweave.training.data import AlignedPairs, BatchRows, Numbers, SentenceSpans, TrainingData, paper_rows
from citeweave.vectors.document_distance import DocumentDistance, match
from citeweave.vectors.pair_scores import PaperPairs

PADDED_TOKENS = 4096
"""Tokens of a padded forward, padding included: texts of like length go together."""


def encode_rows(
    data: TrainingData, network: Network, settings: Settings, papers: Numbers, *, readings: int = 0
) -> Tensor:
    """Rows (rows, dimension) of papers; texts alike in length are padded together where the network needs padding.

    The network reads `readings` times at least: of a sharded one all processes must read equally often. What is read
    too much counts nothing.
    """
    tokens = data.tokens.take(papers)
    lengths = np.array([len(ids) for ids in tokens], np.int64)  # (papers,)
    if network.packs:
        rows, done = _rows(data.sentences, network, settings, papers, tokens), 1
    else:
        layout, found, order = paper_rows(data.sentences, papers), [], []
        for part in batches(lengths, PADDED_TOKENS):
            found.append(_rows(data.sentences, network, settings, papers[part], [tokens[row] for row in part.tolist()]))
            order.append(layout.of(part))
        back = np.argsort(np.concatenate(order))  # (rows,)
        rows, done = torch.cat(found)[torch.from_numpy(back).to(network.device)], len(found)
    shortest = int(np.argmin(lengths))
    for _ in range(readings - done):
        rows = rows + 0 * _rows(data.sentences, network, settings, papers[[shortest]], [tokens[shortest]]).sum()
    return rows


def count_readings(data: TrainingData, network: Network, papers: Numbers) -> int:
    """How often `encode_rows` calls the network for some papers."""
    return 1 if network.packs else len(list(batches(data.tokens.lengths()[papers], PADDED_TOKENS)))


def _rows(
    spans: SentenceSpans | None, network: Network, settings: Settings, papers: Numbers, tokens: Sequence[Tokens]
) -> Tensor:
    if spans is None:
        return text_vectors(network, tokens, settings)
    wanted = spans.places(papers)  # (sentences,)
    return span_vectors(network, tokens, spans.counts()[papers], spans.starts[wanted], spans.ends[wanted], settings)


# The distance between papers that losses on sentences train: what a model trained with them should be judged by.


@dataclass(frozen=True, slots=True)
class TrainedDistance:
    """A name of `similarity.transport.DISTANCES` and its settings."""

    name: str
    metric: str
    temperature: float = 1.0
    mode: str = "exact"


def trained_distance(losses: Mapping[str, Mapping[str, Any]]) -> TrainedDistance | None:
    """The distance of a recipe's losses; None where none of them reads sentences."""
    if (settings := losses.get("sentence_triplet")) is not None:
        return TrainedDistance(settings["distance"], settings["metric"], settings["temperature"], settings["mode"])
    if (settings := losses.get("aligned_triplet")) is not None:  # without contexts the nearest pair of sentences counts
        return TrainedDistance("single", settings["metric"])
    if (settings := losses.get("sentence_in_batch")) is not None:
        return TrainedDistance(settings["match"], "cosine", settings["sharpness"])
    return None


# What the losses on sentences make of a batch.

Mask = NDArray[np.bool_]
LossSettings = Mapping[str, Any]
Allowed = Callable[[Numbers, Numbers], Mask]
"""Which papers of the batch may be negatives of which, by their places in it: (left, right), bool."""


class BatchVectors(NamedTuple):
    """The vectors of a batch: a row for every paper, and behind it its sentences'."""

    matrix: Tensor
    rows: BatchRows

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


def sentence_triplet(vectors: BatchVectors, batch: Batch, settings: LossSettings, allowed: Allowed) -> Tensor:
    """f is a distance between papers by all their sentences; Mysore et al. 2022, section 3.2.3 and ablations."""
    triples = _triples(batch, settings, allowed, None)
    distance = TrainedDistance(settings["distance"], settings["metric"], settings["temperature"], settings["mode"])
    near = document_distances(vectors, triples.anchors, triples.positives, distance)
    far = document_distances(vectors, triples.anchors, triples.negatives, distance)
    return _margin(near, far, settings)


def aligned_triplet(
    vectors: BatchVectors, batch: Batch, settings: LossSettings, allowed: Allowed, alignment: AlignedPairs | None
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


def _margin(near: Tensor, far: Tensor, settings: LossSettings) -> Tensor:
    counted = torch.isfinite(near) & torch.isfinite(far)
    return losses.distance_margin(near, far, margin=settings["margin"], mask=counted).float()


def document_distances(vectors: BatchVectors, left: Numbers, right: Numbers, trained: TrainedDistance) -> Tensor:
    """Distances of pairs of papers by all their sentences, (pairs,) float64; what the peer trains with in its mode."""
    if not len(left):
        return vectors.matrix.sum(dtype=torch.float64)[None][:0]
    distance = DocumentDistance(trained.name, trained.temperature, trained.metric, trained.mode, start="batch")
    (queries, query_mask), (candidates, candidate_mask) = vectors.sentences(left), vectors.sentences(right)
    found: Tensor = match(PaperPairs(queries, candidates, query_mask, candidate_mask), distance).training
    return found


def _aligned_distances(
    vectors: BatchVectors, left: Numbers, right: Numbers, sentences: Numbers, settings: LossSettings
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


def _triples(batch: Batch, settings: LossSettings, allowed: Allowed, alignment: AlignedPairs | None) -> Triples:
    """Triplets of the samples, or pairs with negatives of the batch."""
    if settings["negatives"] == "own":
        return _own_triples(batch, alignment)
    return _batch_triples(batch, allowed, alignment)


def _own_triples(batch: Batch, alignment: AlignedPairs | None) -> Triples:
    anchors, positives, negatives = batch.triplets.T
    found = _aligned(batch, anchors, positives, alignment)  # (triples, 2)
    return Triples(anchors, positives, negatives, np.concatenate([found, np.full((len(found), 1), -1)], axis=1))


def _batch_triples(batch: Batch, allowed: Allowed, alignment: AlignedPairs | None) -> Triples:
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


def _aligned(batch: Batch, anchors: Numbers, positives: Numbers, alignment: AlignedPairs | None) -> Numbers:
    if alignment is None:
        return np.full((len(anchors), 2), -1, np.int64)
    return alignment.find(batch.papers[anchors], batch.papers[positives])


def sentence_in_batch(vectors: BatchVectors, batch: Batch, settings: LossSettings, allowed: Allowed) -> Tensor:
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
    """Some neighboring sentences of this share of the papers, all of the others; (papers, most), bool.

    A paper of which a part is asked for learns to be found by its aspects. The draw is a function of the key.
    """
    draw = stream(key, "training", "facets")
    partly = draw.random(len(counts)) < share
    lengths = np.where(partly, 1 + (draw.random(len(counts)) * counts).astype(np.int64), counts)
    starts = (draw.random(len(counts)) * (counts - lengths + 1)).astype(np.int64)
    at = np.arange(int(counts.max(initial=0)))
    found: Mask = (at >= starts[:, None]) & (at < (starts + lengths)[:, None])
    return found
