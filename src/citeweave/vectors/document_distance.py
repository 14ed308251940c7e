"""Distances between papers by their sentence vectors (ASPIRE): nearest sentences, attention, optimal transport.

    single      the nearest pair of sentences                        top2        the two nearest pairs
    mean_best   mean over the query's sentences of the nearest       attention   mean of all pairs by softmax(-d / t)
    transport   cheapest way to move the query's mass to the candidate's, with masses softmax(-nearest / t)

    distance = DocumentDistance("transport", temperature=0.5)
    match(PaperPairs.of(queries, candidates), distance).distances         (pairs,), torch, differentiable
    document_scores(vectors, query_rows, offsets, candidate_rows, distance, query_sentences=facets)       numpy
    explain_pair(vectors, "a", "b", distance).nearest        SentencePair(left=1, right=0, mass=0.5, distance=0.0)
    PlacedSentences(vectors, "cuda").scores(query_row, candidate_rows, distance)        vectors stay on the device

A pair in which one side has no sentence has an infinite distance and a plan of zeros; every other distance is finite.
Vectors that are not finite are an error: no distance is NaN. Scores are minus the distance, so higher is better. Needs
torch (the extra minilm). Does not encode sentences and does not search a corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, choose, require
from citeweave.core.ragged import owners_of, split_rows, to_offsets
from citeweave.vectors.own_distance import SENTENCE_DISTANCES
from citeweave.vectors.sentence_distances import (
    METRICS,
    PaperPairs,
    SentenceRows,
    Tensor,
    attention_plan,
    batch_pairs,
    check_finite,
    distances_to_query,
    mean_best_plan,
    nearest_plan,
    sentence_distances,
)
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.transport import STARTS, Anneal, diameters, entropic_plan, geomloss_plan, sentence_masses
from citeweave.vectors.vectors import Provenance

DISTANCES: tuple[str, ...] = SENTENCE_DISTANCES
MODES = ("exact", "geomloss")

DEVICES = ("auto", "cpu", "cuda")

MIN_TEMPERATURE = 1e-30
"""Below it all mass is on one sentence, and gradients overflow."""


@dataclass(frozen=True, slots=True)
class DocumentDistance:
    """Which document distance of two papers to compute, with its temperature, sentence metric and transport mode."""

    name: str = "transport"
    """One of DISTANCES."""

    temperature: float = 5000.0
    """Softmax temperature for the masses of `transport` and the weights of `attention`. ASPIRE: 0.5 for facets, 5000 (all
    alike) for abstracts."""

    metric: str = "l2"
    """Distance between sentences: l2, or cosine for 1 - cosine."""

    mode: str = "exact"
    """How `transport` is solved: exact, until it converges; or geomloss, as in ASPIRE's code, which stops early."""

    start: str = "pair"
    """Start of geomloss's schedule: the diameter of each pair, or of the batch, as in ASPIRE's training."""

    def __post_init__(self) -> None:
        choose(self.name, DISTANCES, "distance")
        choose(self.metric, METRICS, "metric")
        choose(self.mode, MODES, "mode")
        choose(self.start, STARTS, "start")
        if not MIN_TEMPERATURE <= self.temperature < float("inf"):
            raise UserError(
                f"temperature is {self.temperature}; it must be at least {MIN_TEMPERATURE} and finite, such as 0.5"
            )
        if (self.mode, self.metric) == ("geomloss", "cosine"):
            raise UserError(
                "mode is 'geomloss' and metric is 'cosine'; ASPIRE's transport has l2 only, use mode 'exact'"
            )


class DocumentMatch(NamedTuple):
    """Document distances of pairs of papers, with the plans over their sentences that explain them."""

    distances: Tensor
    """(pairs,) float64: the sum of plans x sentence distances; infinite, with gradient 0, where a side has no sentence."""

    plans: Tensor
    """(pairs, n, m) how much each pair of sentences counts; 0 on padding."""

    sentences: Tensor
    """(pairs, n, m) the distances between the sentences."""

    training: Tensor
    """(pairs,) the distances that ASPIRE trains with; the same as `distances` except in mode geomloss."""


def match(pairs: PaperPairs, distance: DocumentDistance) -> DocumentMatch:
    """Compute the document distance of each pair of papers and the plan that explains it; differentiable."""
    torch = require("torch", extra="minilm")
    sentences = sentence_distances(pairs, distance.metric)  # (pairs, n, m)
    check_finite(sentences)
    empty, training = pairs.empty, None
    if (distance.name, distance.mode) == ("transport", "geomloss"):
        plans, training = geomloss_plans(pairs, sentences, distance)
    else:
        plans = make_plans(sentences, pairs.rows, pairs.columns, distance)
    distances = (plans * sentences).sum((1, 2)).masked_fill(empty, torch.inf)
    training = distances if training is None else training.masked_fill(empty, torch.inf)
    return DocumentMatch(distances, plans.masked_fill(empty[:, None, None], 0), sentences, training)


def make_plans(sentences: Tensor, rows: Tensor, columns: Tensor, distance: DocumentDistance) -> Tensor:
    """Return the plans (pairs, n, m) of a document distance, except for transport in mode geomloss."""
    if distance.name == "transport":
        return entropic_plan(sentences, sentence_masses(sentences, rows, columns, temperature=distance.temperature))
    if distance.name == "attention":
        return attention_plan(sentences, rows, columns, temperature=distance.temperature)
    if distance.name == "mean_best":
        return mean_best_plan(sentences, rows, columns)
    return nearest_plan(sentences, rows, columns, count=2 if distance.name == "top2" else 1)


def geomloss_plans(
    pairs: PaperPairs, sentences: Tensor, distance: DocumentDistance, solve: Anneal | None = None
) -> tuple[Tensor, Tensor]:
    """Return geomloss's plans (pairs, n, m) and the distances that ASPIRE trains with, (pairs,)."""
    masses = sentence_masses(sentences, pairs.rows, pairs.columns, temperature=distance.temperature)
    to_queries = to_candidates = sentences
    if sentences.requires_grad:
        # in geomloss's last round each side has its gradient through its own copy of the distances
        still = replace(pairs, queries=pairs.queries.detach()), replace(pairs, candidates=pairs.candidates.detach())
        to_candidates, to_queries = (sentence_distances(part, distance.metric) for part in still)
    return geomloss_plan(to_queries, to_candidates, masses, diameters(pairs, distance.start), solve)


class ScoringLimits(NamedTuple):
    """How much scoring by document distance computes at a time; changes no score."""

    sentences: int
    """Candidate sentences whose distances to their queries are held."""

    numbers: int
    """Numbers of vectors converted to float64 for one product."""

    padded: int
    """Size of a batch of pairs with its padding."""


LIMITS = {"cpu": ScoringLimits(1 << 17, 1 << 19, 1 << 19), "cuda": ScoringLimits(1 << 20, 1 << 26, 1 << 25)}

RESIDENT = 16 << 30
"""A matrix of at most so many bytes stays on the GPU; rows of a larger one are copied for every query."""


class PlacedSentences:
    """Sentence vectors that stay on a device for document distances of query after query, copied there on first use.

    On the CPU nothing is copied: rows are read where they are, in memory or in a mapped file.
    """

    def __init__(self, vectors: SentenceVectors, device: str = "auto") -> None:
        self.vectors, self.device = vectors, _device(device)
        self._matrix: Tensor | None = None

    def scores(
        self,
        query: int | NDArray[np.floating[Any]],
        candidates: NDArray[np.integer[Any]],
        distance: DocumentDistance,
    ) -> NDArray[np.float64]:
        """Score a query by document distance with these rows, (candidates,); -inf where a side has no sentence.

        The query is a row or a matrix of sentence vectors (sentences, dimension).
        """
        if isinstance(query, int | np.integer):
            return document_scores(self, np.array([query]), np.array([0, len(candidates)]), candidates, distance)
        own, owners = _checked(query, self.vectors.matrix.shape[1]), np.zeros(len(candidates), np.int64)
        return self.score_pairs(lambda _: self._place(own), np.array([len(own)]), owners, candidates, distance)

    def score_pairs(
        self,
        take: Callable[[int], Tensor],
        lengths: NDArray[np.int64],
        owners: NDArray[np.int64],
        candidates: NDArray[np.integer[Any]],
        distance: DocumentDistance,
    ) -> NDArray[np.float64]:
        """Score pairs by document distance: query owners[i], whose lengths[owners[i]] vectors `take` gives, with a row."""
        torch = require("torch", extra="minilm")
        if (distance.name, distance.mode, distance.start) == ("transport", "geomloss", "batch"):
            raise UserError(
                "start is 'batch', which makes a score depend on the other pairs; score with 'pair', or use `match`"
            )
        papers = SentenceRows.of(self.vectors.offsets, candidates)
        scores = np.full(len(candidates), -np.inf)
        known = np.flatnonzero((lengths[owners] > 0) & (papers.lengths > 0))
        with torch.inference_mode():
            for piece in split_rows(papers.lengths[known], LIMITS[self.device].sentences):
                part = known[piece]
                pool = _Pool(take, owners[part], lengths[owners[part]], papers.take(part))
                scores[part] = -self._distances(pool, distance)
        return scores

    def query_vectors(self, rows: SentenceRows) -> Callable[[int], Tensor]:
        """Return a function of a query's number that gives its sentence vectors on the device."""
        return lambda query: self._take(rows.take(slice(query, query + 1)).rows())

    def _distances(self, pool: _Pool, distance: DocumentDistance) -> NDArray[np.float64]:
        """Return the distance of each pair of the pool, (pairs,)."""
        torch = require("torch", extra="minilm")
        costs, n, m = self._costs(pool, distance.metric), pool.widths, pool.papers.lengths
        starts, is_geomloss = to_offsets(m)[:-1], (distance.name, distance.mode) == ("transport", "geomloss")
        distances, left = np.empty(len(m)), np.arange(len(m))
        if distance.name == "transport" and not is_geomloss:
            if self.device == "cpu":
                from citeweave.vectors.transport_kernels import transport_distances  # needs numba, training does not

                workers, temperature = torch.get_num_threads(), distance.temperature
                return transport_distances(costs.numpy(), starts, m, n, temperature=temperature, workers=workers)
            with suppress(ImportError):  # there may be no triton, as on Windows
                from citeweave.vectors import triton_transport

                distances = triton_transport.transport_distances(costs, starts, m, n, temperature=distance.temperature)
                left = np.flatnonzero(np.isnan(distances))  # papers too long for the kernel
        boxes = self._diameters(pool) if is_geomloss else None
        for part in (left[each] for each in batch_pairs(n[left], m[left], LIMITS[self.device].padded)):
            first, widths, heights = (torch.from_numpy(each[part]).to(self.device) for each in (starts, n, m))
            at = torch.arange(max(int(n[part].max()), int(m[part].max())), device=self.device)
            rows, columns = at[: n[part].max()] < widths[:, None], at[: m[part].max()] < heights[:, None]
            places = (first[:, None] + at[: m[part].max()]).masked_fill(~columns, 0)  # (pairs, m)
            chosen = costs[places, : rows.shape[1]].mT  # (pairs, n, m)
            if boxes is None:
                plans = make_plans(chosen, rows, columns, distance)
            else:
                masses = sentence_masses(chosen, rows, columns, temperature=distance.temperature)
                plans = geomloss_plan(chosen, chosen, masses, boxes[torch.from_numpy(part).to(self.device)]).plan
            distances[part] = (plans * chosen).sum((1, 2)).cpu().numpy()
        return distances

    def _costs(self, pool: _Pool, metric: str) -> Tensor:
        """Return the distances of all candidate sentences to those of their queries, (sentences, longest query)."""
        torch = require("torch", extra="minilm")
        rows, ends = pool.papers.rows(), np.cumsum(pool.papers.lengths)
        costs = torch.zeros((len(rows), int(pool.widths.max())), dtype=torch.float64, device=self.device)
        height = self._height()
        for low, high in pool.runs():
            query, start = pool.take(int(pool.owners[low])), int(ends[low] - pool.papers.lengths[low])
            for at in range(start, int(ends[high - 1]), height):
                upto = min(at + height, int(ends[high - 1]))
                costs[at:upto, : len(query)] = distances_to_query(query, self._take(rows[at:upto]), metric)
        if not bool(torch.isfinite(costs.sum())):
            self._refuse(torch.isfinite(costs).all(1).cpu().numpy(), ends, rows)
        return costs

    def _diameters(self, pool: _Pool) -> Tensor:
        """Return the diameters of the pairs for geomloss's schedule, (pairs,), as `transport.diameters` does."""
        torch = require("torch", extra="minilm")
        diagonals = []
        for low, high in pool.runs():
            query = pool.take(int(pool.owners[low])).double()
            papers = pool.papers.take(slice(low, high))
            for piece in split_rows(papers.lengths, self._height()):
                part = papers.take(piece)
                sentences, lengths = self._take(part.rows()).float(), torch.from_numpy(part.lengths).to(self.device)
                highest, lowest = (
                    torch.segment_reduce(sentences, kind, lengths=lengths, axis=0).double() for kind in ("max", "min")
                )  # (papers, dimension)
                box = torch.maximum(highest, query.amax(0)) - torch.minimum(lowest, query.amin(0))
                diagonals.append(box.norm(dim=1))
        return torch.cat(diagonals)

    def _height(self) -> int:
        """Return how many sentence vectors are converted to float64 at a time."""
        return max(1, LIMITS[self.device].numbers // int(self.vectors.matrix.shape[1]))

    def _take(self, rows: NDArray[np.int64]) -> Tensor:
        """Return the sentence vectors of these rows on the device, (rows, dimension), as stored."""
        matrix = self.vectors.matrix
        if self._matrix is None and self.device == "cuda" and matrix.nbytes <= RESIDENT:
            self._matrix = self._place(np.asarray(matrix))
        in_order = len(rows) > 0 and bool((np.diff(rows) == 1).all())
        if self._matrix is not None:
            if in_order:
                return self._matrix[int(rows[0]) : int(rows[-1]) + 1]
            return self._matrix[require("torch", extra="minilm").from_numpy(rows).to(self.device)]
        return self._place(np.asarray(matrix[rows[0] : rows[-1] + 1] if in_order else matrix[rows]))

    def _place(self, vectors: NDArray[Any]) -> Tensor:
        torch = require("torch", extra="minilm")
        # torch warns about a mapped file, because it is read-only
        return torch.from_numpy(vectors if vectors.flags.writeable else vectors.copy()).to(self.device)

    def _refuse(self, good: NDArray[np.bool_], ends: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        bad = np.unique(np.searchsorted(ends, np.flatnonzero(~good), side="right"))  # pairs
        first = rows[np.flatnonzero(~good)[0]]
        paper = int(np.searchsorted(self.vectors.offsets, first, side="right")) - 1
        raise UserError(
            f"{len(bad):,} pairs of papers, such as one with {self.vectors.ids[paper]!r}, have no distance: their sentence "
            "vectors hold numbers that are not finite or too large; embed them again"
        )


def document_scores(
    vectors: SentenceVectors | PlacedSentences,
    queries: NDArray[np.integer[Any]],
    offsets: NDArray[np.integer[Any]],
    candidates: NDArray[np.integer[Any]],
    distance: DocumentDistance,
    *,
    query_sentences: Sequence[NDArray[np.integer[Any]] | None] | None = None,
    device: str = "cpu",
) -> NDArray[np.float64]:
    """Score query i (row queries[i]) by document distance with the papers candidates[offsets[i]:offsets[i + 1]].

    One number per pair, minus the distance; -inf where a row is -1 or a side has no sentence. `query_sentences` restricts
    query i to these sentences of its abstract (None: to all); truncated sentences have no vector and do not take part.
    `device` is where the vectors are compared, unless they are placed already.
    """
    assert len(offsets) == len(queries) + 1 and offsets[0] == 0 and offsets[-1] == len(candidates)
    placed = vectors if isinstance(vectors, PlacedSentences) else PlacedSentences(vectors, device)
    rows = SentenceRows.of(placed.vectors.offsets, queries)
    if query_sentences is not None:
        rows = rows.restricted(placed.vectors.numbers, query_sentences)
    return placed.score_pairs(placed.query_vectors(rows), rows.lengths, owners_of(offsets), candidates, distance)


class _Pool(NamedTuple):
    """Pairs of query and candidate to score; both have sentences."""

    take: Callable[[int], Tensor]
    """The sentence vectors of a query, on the device."""

    owners: NDArray[np.int64]
    """The query of each pair, (pairs,); the pairs of a query are adjacent."""

    widths: NDArray[np.int64]
    """The number of sentences of each pair's query, (pairs,)."""

    papers: SentenceRows
    """The candidates."""

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield where the pairs of each query begin and end."""
        cuts = (np.flatnonzero(np.diff(self.owners)) + 1).tolist()
        yield from zip([0, *cuts], [*cuts, len(self.owners)], strict=True)


def _checked(query: NDArray[np.floating[Any]], dimension: int) -> NDArray[np.floating[Any]]:
    if query.ndim != 2 or query.shape[1] != dimension:
        raise UserError(f"a query of the shape {query.shape}; it must be (sentences, {dimension}), as the papers are")
    if not np.isfinite(query).all():
        raise UserError("the query's sentence vectors hold numbers that are not finite; embed it again")
    return query


def _device(device: str) -> str:
    choose(device, DEVICES, "device")
    has_cuda = bool(require("torch", extra="minilm").cuda.is_available())
    if device == "cuda" and not has_cuda:
        raise UserError("device is 'cuda', but torch finds no GPU; use device 'cpu' or 'auto'")
    return "cuda" if device != "cpu" and has_cuda else "cpu"


def rerank(
    query: NDArray[np.floating[Any]], papers: Sequence[NDArray[np.floating[Any]]], distance: DocumentDistance
) -> NDArray[np.float64]:
    """Score papers that another search returned against a query (sentences, dimension) by document distance, (papers,).

    A paper is one matrix (sentences, dimension). Scores are minus the distance, -inf where a side has no sentence.
    """
    if not papers:
        return np.empty(0)
    matrix = np.concatenate(papers)
    if matrix.dtype not in (np.float16, np.float32):
        matrix = matrix.astype(np.float32)
    # error messages name a paper by its number
    names, numbers = [f"candidate {at}" for at in range(len(papers))], np.zeros(len(matrix), np.int32)
    provenance = Provenance("", "", "", matrix.shape[1], str(matrix.dtype), "")
    vectors = SentenceVectors(names, to_offsets([len(paper) for paper in papers]), matrix, numbers, provenance)
    return PlacedSentences(vectors, "cpu").scores(query, np.arange(len(papers)), distance)


# --- why two papers are near ------------------------------------------------------------------------------


class SentencePair(NamedTuple):
    """Two matching sentences that explain why the vectors of papers are near, by their numbers in the abstracts."""

    left: int
    right: int
    mass: float
    distance: float


@dataclass(frozen=True, slots=True)
class SentenceAlignment:
    """Explanation of a distance: how the sentences of two papers match, counted from 0; truncated ones are missing."""

    left: NDArray[np.int64]
    """(n,) numbers of the first paper's sentences that took part."""

    right: NDArray[np.int64]
    """(m,) the same for the second paper."""

    plan: NDArray[np.float64]
    """(n, m) how much each pair counts."""

    distances: NDArray[np.float64]
    """(n, m) between sentences."""

    total: float
    """The distance of the papers."""

    @property
    def left_masses(self) -> NDArray[np.float64]:
        """(n,) how much each sentence of the first paper counts: with `transport` its mass."""
        return np.asarray(self.plan.sum(axis=1))

    @property
    def right_masses(self) -> NDArray[np.float64]:
        """(m,) how much each sentence of the second paper counts."""
        return np.asarray(self.plan.sum(axis=0))

    @property
    def nearest(self) -> SentencePair:
        """The nearest pair of sentences of the two papers, whatever its mass."""
        return self._pair(int(self.distances.argmin()))

    def strongest(self, count: int) -> list[SentencePair]:
        """Return the sentence pairs with the largest mass, of equal ones the nearer first; pairs without mass are left out."""
        order = np.lexsort((self.distances.ravel(), -self.plan.ravel()))[:count]
        return [self._pair(at) for at in order.tolist() if self.plan.ravel()[at] > 0]

    def _pair(self, at: int) -> SentencePair:
        i, j = divmod(at, self.plan.shape[1])
        return SentencePair(int(self.left[i]), int(self.right[j]), float(self.plan[i, j]), float(self.distances[i, j]))

    def as_json(self) -> dict[str, Any]:
        names = ("left", "right", "left_masses", "right_masses", "plan", "distances")
        return {"distance": self.total, **{name: getattr(self, name).tolist() for name in names}}


def explain_pair(
    vectors: SentenceVectors,
    left: str | int,
    right: str | int,
    distance: DocumentDistance,
    *,
    query_sentences: Sequence[int] | NDArray[np.integer[Any]] | None = None,
) -> SentenceAlignment:
    """Explain by sentence vectors how near two papers are, by id or position; `query_sentences` restricts the first."""
    torch = require("torch", extra="minilm")
    rows = [vectors.rows_of_all([paper])[0] if isinstance(paper, str) else paper for paper in (left, right)]
    numbers = [np.asarray(vectors.numbers[vectors.span(row)], np.int64) for row in rows]
    sentences = [np.array(vectors.sentences(row), np.float32) for row in rows]
    if query_sentences is not None:
        taken = np.isin(numbers[0], query_sentences)
        if len(taken) and not taken.any():
            raise UserError(
                f"none of the chosen sentences of paper {vectors.ids[rows[0]]!r} has a vector; it has vectors of the sentences "
                f"{', '.join(map(str, numbers[0].tolist()))}"
            )
        numbers[0], sentences[0] = numbers[0][taken], sentences[0][taken]
    for row, own in zip(rows, sentences, strict=True):
        if not len(own):
            raise UserError(f"paper {vectors.ids[row]!r} has no sentence vectors; there is nothing to explain")
    with torch.inference_mode():
        matched = match(PaperPairs.of(*([torch.from_numpy(own)] for own in sentences)), distance)
    plan, distances = matched.plans[0].numpy(), matched.sentences[0].numpy()
    if not np.isfinite(plan).all() or not np.isfinite(distances).all():
        raise UserError(
            f"papers {vectors.ids[rows[0]]!r} and {vectors.ids[rows[1]]!r} have no distance: their sentence vectors hold "
            "numbers that are not finite or too large; embed them again"
        )
    return SentenceAlignment(numbers[0], numbers[1], plan, distances, float(matched.distances[0]))
