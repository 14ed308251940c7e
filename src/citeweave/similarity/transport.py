"""Distances between papers that have one vector a sentence, and scores of many pairs of them.

    single      the nearest pair of sentences                        top2        the two nearest pairs
    mean_best   mean over the query's sentences of the nearest       attention   mean of all pairs by softmax(-d / t)
    transport   cheapest way to carry the query's mass to the candidate's, with masses softmax(-nearest / t)

    distance = DocumentDistance("transport", temperature=0.5)
    match(PaperPairs.of(queries, candidates), distance).distances                       torch, differentiable
    document_scores(vectors, query_rows, offsets, candidate_rows, distance, query_sentences=facets)       numpy

A pair of which one side has no sentence has no distance: NaN, and nowhere else. Scores are minus the distance, so that
higher is better. Needs torch (the extra minilm). Does not encode sentences and does not search a corpus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import UserError, choose
from citeweave.extras import require
from citeweave.similarity.matching.entropic import Masses, entropic_plan, sentence_masses
from citeweave.similarity.matching.pairs import METRICS, PaperPairs, Tensor, sentence_distances
from citeweave.similarity.matching.peer import STARTS, diameters, peer_plan
from citeweave.similarity.matching.plans import attention, mean_best, single, top2
from citeweave.similarity.searching.torch_scan import has_cuda
from citeweave.similarity.sentence_vectors import SentenceVectors

DISTANCES: tuple[str, ...] = ("single", "top2", "mean_best", "attention", "transport")
MODES = ("exact", "peer")
DEVICES = ("auto", "cpu", "cuda")

BATCH_PAIRS = 4096
BATCH_NUMBERS = 1 << 25
"""A batch has at most so many pairs, and so many numbers with its padding (128 MiB); neither changes a score."""


@dataclass(frozen=True, slots=True)
class DocumentDistance:
    """A distance between two papers and its settings."""

    name: str = "transport"
    """One of DISTANCES."""

    temperature: float = 5000.0
    """Of the masses of `transport`, of the weights of `attention`. ASPIRE: 0.5 for facets, 5000 (alike) for abstracts."""

    metric: str = "l2"
    """Between sentences: l2, or cosine for 1 - cosine."""

    mode: str = "exact"
    """Of `transport`: exact, solved to the end; or peer, ASPIRE's code, which stops early."""

    start: str = "pair"
    """Of the peer's schedule: from the diameter of each pair, or of the whole batch, as in ASPIRE's training."""

    def __post_init__(self) -> None:
        choose(self.name, DISTANCES, "distance")
        choose(self.metric, METRICS, "metric")
        choose(self.mode, MODES, "mode")
        choose(self.start, STARTS, "start")
        if not 0 < self.temperature < float("inf"):
            raise UserError(f"temperature is {self.temperature}; it must be above 0 and finite")
        if (self.mode, self.metric) == ("peer", "cosine"):
            raise UserError("mode is 'peer' and metric is 'cosine'; ASPIRE's transport knows l2 only, use mode 'exact'")


class Match(NamedTuple):
    """How pairs of papers match."""

    distances: Tensor
    """(pairs,) float64: the sum of plans x sentence distances; NaN where a side has no sentence."""

    plans: Tensor
    """(pairs, n, m) how much each pair of sentences counts; 0 on padding."""

    sentences: Tensor
    """(pairs, n, m) the distances between the sentences."""

    training: Tensor
    """(pairs,) what the peer trains with instead of `distances`; the same numbers except in mode peer."""


def match(pairs: PaperPairs, distance: DocumentDistance) -> Match:
    """The distance of each pair, with the plan that explains it; differentiable in the pairs' vectors."""
    torch = require("torch", extra="minilm")
    sentences = sentence_distances(pairs, distance.metric)  # (pairs, n, m)
    rows, columns, empty = pairs.rows, pairs.columns, pairs.empty
    training = None
    if distance.name == "transport":
        masses = sentence_masses(sentences, rows, columns, temperature=distance.temperature)
        if distance.mode == "peer":
            plans, training = _as_the_peer(pairs, sentences, masses, distance)
        else:
            plans = entropic_plan(sentences, masses)
    elif distance.name == "attention":
        plans = attention(sentences, rows, columns, temperature=distance.temperature)
    else:
        plans = {"single": single, "top2": top2, "mean_best": mean_best}[distance.name](sentences, rows, columns)
    found = (plans * sentences).sum((1, 2)).masked_fill(empty, torch.nan)
    training = found if training is None else training.masked_fill(empty, torch.nan)
    return Match(found, plans.masked_fill(empty[:, None, None], 0), sentences, training)


def _as_the_peer(
    pairs: PaperPairs, sentences: Tensor, masses: Masses, distance: DocumentDistance
) -> tuple[Tensor, Tensor]:
    to_queries = to_candidates = sentences
    if sentences.requires_grad:
        # the peer's last round sees the gradient of each side through its own copy of the distances
        still = replace(pairs, queries=pairs.queries.detach()), replace(pairs, candidates=pairs.candidates.detach())
        to_candidates, to_queries = (sentence_distances(part, distance.metric) for part in still)
    return peer_plan(to_queries, to_candidates, masses, diameters(pairs, distance.start))


def document_scores(
    vectors: SentenceVectors,
    queries: NDArray[np.integer[Any]],
    offsets: NDArray[np.integer[Any]],
    candidates: NDArray[np.integer[Any]],
    distance: DocumentDistance,
    *,
    query_sentences: Sequence[NDArray[np.integer[Any]] | None] | None = None,
    device: str = "cpu",
) -> NDArray[np.float64]:
    """Score query i (row queries[i] of `vectors`) with the rows candidates[offsets[i]:offsets[i + 1]].

    One number a pair, minus the distance; NaN where a row is -1 or a side has no sentence. `query_sentences` restricts
    query i to these sentences of its abstract (None: to all); those that were cut have no vector and do not take part.
    """
    torch = require("torch", extra="minilm")
    place = _device(device)
    assert len(offsets) == len(queries) + 1 and offsets[0] == 0 and offsets[-1] == len(candidates)
    left = _whole(vectors, queries) if query_sentences is None else _restricted(vectors, queries, query_sentences)
    right = _whole(vectors, candidates)
    owners = np.repeat(np.arange(len(queries)), np.diff(offsets))  # (pairs,)
    scores = np.full(len(candidates), np.nan)
    for part in _batches(left.lengths[owners], right.lengths, vectors.matrix.shape[1]):
        rows = left.padded(owners[part]), right.padded(part)
        masks = [torch.from_numpy(side >= 0).to(place) for side in rows]
        sides = [torch.from_numpy(_gathered(vectors, side)).to(place) for side in rows]
        with torch.inference_mode():
            scores[part] = -match(PaperPairs(*sides, *masks), distance).distances.cpu().numpy()
        _refuse_nan(scores[part], vectors, right.padded(part))
    return scores


def _refuse_nan(scores: NDArray[np.float64], vectors: SentenceVectors, rows: NDArray[np.int64]) -> None:
    """Both sides of these pairs have sentences, so that only their numbers can be at fault."""
    bad = np.flatnonzero(np.isnan(scores))
    if len(bad):
        paper = int(np.searchsorted(vectors.offsets, rows[bad[0], 0], side="right")) - 1
        raise UserError(
            f"{len(bad):,} pairs of papers, such as one with {vectors.ids[paper]!r}, have no distance: their sentence "
            "vectors hold numbers that are not finite or too large; embed them again"
        )


def _device(device: str) -> str:
    choose(device, DEVICES, "device")
    if device == "cuda" and not has_cuda():
        raise UserError("device is 'cuda', but torch finds no graphics card; use device 'cpu' or 'auto'")
    return "cuda" if device != "cpu" and has_cuda() else "cpu"


class _Rows(NamedTuple):
    """Rows of the matrix by paper: paper i has flat[starts[i]:starts[i] + lengths[i]]."""

    flat: NDArray[np.int64] | None
    """None: the rows themselves, so that nothing is copied where papers take part whole."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def padded(self, papers: NDArray[np.int64]) -> NDArray[np.int64]:
        """(papers, longest), -1 behind the end of a paper."""
        lengths = self.lengths[papers, None]
        at = np.arange(lengths.max())
        places = np.where(at < lengths, self.starts[papers, None] + at, 0)
        return np.where(at < lengths, places if self.flat is None else self.flat[places], -1)


def _whole(vectors: SentenceVectors, papers: NDArray[np.integer[Any]]) -> _Rows:
    known = np.maximum(papers, 0)
    starts = vectors.offsets[known]
    return _Rows(None, starts, np.where(papers >= 0, vectors.offsets[known + 1] - starts, 0))


def _restricted(
    vectors: SentenceVectors,
    papers: NDArray[np.integer[Any]],
    sentences: Sequence[NDArray[np.integer[Any]] | None],
) -> _Rows:
    """Only the rows that have the wanted numbers."""
    assert len(sentences) == len(papers)
    chosen = [np.empty(0, np.int64)]
    for start, length, wanted in zip(*_whole(vectors, papers)[1:], sentences, strict=True):
        rows = np.arange(start, start + length)
        chosen.append(rows if wanted is None else rows[np.isin(vectors.numbers[rows], wanted)])
    lengths = np.array([len(rows) for rows in chosen[1:]], np.int64)
    return _Rows(np.concatenate(chosen), np.cumsum(lengths) - lengths, lengths)


def _gathered(vectors: SentenceVectors, rows: NDArray[np.int64]) -> NDArray[Any]:
    """(papers, longest, dimension), zeros on padding."""
    block = np.asarray(vectors.matrix[np.maximum(rows, 0)])
    block[rows < 0] = 0
    return block


def _batches(n: NDArray[np.int64], m: NDArray[np.int64], dimension: int) -> Iterator[NDArray[np.int64]]:
    """Positions of pairs of about the same size, the largest first; pairs with an empty side are left out."""
    order = np.lexsort((m, n))[::-1]
    order = order[(n[order] > 0) & (m[order] > 0)]
    start = 0
    while start < len(order):
        ahead = order[start : start + BATCH_PAIRS]
        # the widest that the batch may become, the more pairs it has
        width = np.maximum.accumulate(n[ahead]) + np.maximum.accumulate(m[ahead])
        fits = np.arange(1, len(ahead) + 1) * width * dimension <= BATCH_NUMBERS
        size = max(1, int(fits.sum()))
        yield ahead[:size]
        start += size
