"""Candidate sources that rank by vectors: rank bands, similarity thresholds, k-means cells, random draws.

    neighbors       ranks 20 < rank <= 25 around the anchor (SciNCL, Ostendorff et al., EMNLP 2022)
    similar         nearest to a similarity threshold, from above or from below (its appendix F.4 to F.6)
    cells           one paper from each of several k-means cells at a given distance of the anchor's own (F.3)
    sorted_random   the nearest or farthest of some random papers (F.7)

Anchors without a vector have no candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from citeweave.core.compiled import compiled
from citeweave.core.errors import UserError
from citeweave.core.ragged import Ragged, count_owners, to_offsets
from citeweave.core.randomness import stream
from citeweave.mining.draw import CandidateLists, draw_from_groups, empty_lists, filter_entries, take_lists
from citeweave.mining.inputs import MiningData, PoolVectors
from citeweave.mining.rules import NODES, MiningRules, Rule
from citeweave.mining.sources import AnchorBlock
from citeweave.vectors.topk import Band, Neighbors, TopkOptions, far_band, search

_KMEANS_PAPERS = 50_000
_KMEANS_ROUNDS = 15


@dataclass(frozen=True, slots=True)
class RankedNeighbors:
    """Candidates ranked by vectors: each rule's band of an anchor's neighbors, and the score of the farthest neighbor."""

    bands: dict[str, CandidateLists]
    """Candidates by the name of the rule."""

    ends: dict[str, tuple[NDArray[np.float32], str]]
    """By the name of the vectors: the score of the farthest neighbor used, NaN where there is none, and the metric."""


def check_bands(rules: MiningRules, data: MiningData) -> None:
    """Refuse vector sources whose bands of negatives are nearer than positives of the same vectors, or overlap them."""
    for aspect in rules.aspects or ("",):
        own = rules.for_aspect(aspect)
        positives, negatives = (
            [rule for rule in side if rule.source == "neighbors" and aspect not in rule.not_for]
            for side in (own.positives, own.negatives)
        )
        for up, down in product(positives, negatives):
            if up.vectors != down.vectors:
                continue
            vectors = data.pool_vectors(up.vectors)
            high, low = _check_ranks(up, vectors)[1], _check_ranks(down, vectors)[0]
            if low < high:
                raise UserError(
                    f"the band of rule {down.name!r} begins at rank {low + 1:,}, that of rule {up.name!r} ends at rank "
                    f"{high:,}; negatives must lie beyond positives: give larger ranks, or --bands auto"
                )


def rank_neighbors(rules: Sequence[Rule], block: AnchorBlock) -> RankedNeighbors:
    """Rank the candidates of the source `neighbors` by vectors, the bands of all rules once per vectors and metric."""
    bands: dict[str, CandidateLists] = {}
    ends: dict[str, tuple[NDArray[np.float32], str]] = {}
    for name, metric in dict.fromkeys((rule.vectors, rule.metric) for rule in rules):
        group = [rule for rule in rules if (rule.vectors, rule.metric) == (name, metric)]
        vectors = block.data.pool_vectors(name)
        own = vectors.row_of[block.anchors]  # (anchors,)
        here = np.flatnonzero(own >= 0)
        neighbors = _search_bands(group, vectors, own[here], block.data, metric)
        for rule in group:
            bands[rule.name] = _as_lists(neighbors[rule.name], here, vectors.paper_of, len(block.anchors))
        far = max(group, key=lambda rule: _check_ranks(rule, vectors)[1])
        score = np.full(len(block.anchors), np.nan, np.float32)
        score[here] = neighbors[far.name].scores[:, -1]
        ends[name] = score, metric
    return RankedNeighbors(bands, ends)


def _check_ranks(rule: Rule, vectors: PoolVectors) -> tuple[int, int]:
    """Return the rank band of a rule in this pool; refuse one that reaches beyond it."""
    pool = len(vectors.pool)
    low, high = rule.ranks(pool)
    if high >= pool:
        raise UserError(
            f"rule {rule.name!r}: band ends at rank {high:,}, but the pool has {pool:,} papers with text and a vector"
            f"{'' if rule.vectors == NODES else f' of {rule.vectors!r}'}; "
            "give a smaller rank, or a share such as '10%', or let the bands be chosen with --bands auto"
        )
    return low, high


def _search_bands(
    rules: Sequence[Rule], vectors: PoolVectors, own: NDArray[np.int32], data: MiningData, metric: str
) -> dict[str, Neighbors]:
    """Search the neighbors in every rule's band, exactly or in a subsample of the pool."""
    exact = [rule for rule in rules if not rule.subsample]
    queries = vectors.matrix[own]
    bands = [Band(*_check_ranks(rule, vectors)) for rule in exact]
    shared: TopkOptions = {
        "metric": metric,
        "pool_rows": vectors.pool,
        "itself": own,
        "workers": data.workers,
        "memory": data.memory,
        "device": data.device,
    }
    neighbors: dict[str, Neighbors] = {}
    if exact:
        results = search(vectors.matrix, queries, bands, **shared)
        neighbors |= dict(zip((rule.name for rule in exact), results, strict=True))
    for rule in rules:
        if rule.subsample:
            band = Band(*_check_ranks(rule, vectors))
            neighbors[rule.name] = far_band(
                vectors.matrix, queries, band, subsample=rule.subsample, seed=data.seed, **shared
            )
    return neighbors


def _as_lists(neighbors: Neighbors, here: NDArray[np.int64], papers: NDArray[np.int32], anchors: int) -> CandidateLists:
    """Turn neighbors of the anchors that have a vector into candidate lists of all; `papers` are those of their rows."""
    counts = np.zeros(anchors, np.int64)
    counts[here] = (neighbors.rows >= 0).sum(axis=1)
    known = neighbors.rows >= 0
    return CandidateLists(to_offsets(counts), papers[neighbors.rows[known]], neighbors.scores[known])


def beyond_neighbors(lists: CandidateLists, block: AnchorBlock, ranked: RankedNeighbors) -> CandidateLists:
    """Leave out candidates of a random source that are near by vectors for some rule (SciNCL's filtered random)."""
    for name, (ends, metric) in ranked.ends.items():
        scores = anchor_similarities(lists, block, block.data.pool_vectors(name), metric)
        with np.errstate(invalid="ignore"):
            # a small tolerance: the search sums in another order than this does
            near = scores >= ends[lists.owners()] - 1e-5 * np.maximum(1, np.abs(ends[lists.owners()]))
        lists = filter_entries(lists, ~near)
    return lists


def anchor_similarities(
    lists: CandidateLists, block: AnchorBlock, vectors: PoolVectors, metric: str = "cosine"
) -> NDArray[np.float32]:
    """Return every candidate's similarity to its anchor by vectors, NaN if one has none; minus the distance for l2."""
    owners = lists.owners()
    out = np.full(len(owners), np.nan, np.float32)
    known = np.flatnonzero((vectors.row_of[block.anchors[owners]] >= 0) & (vectors.row_of[lists.rows] >= 0))
    step = max(1, (64 << 20) // (4 * vectors.matrix.shape[1]))
    for start in range(0, len(known), step):
        at = known[start : start + step]
        first, second = (
            np.asarray(vectors.matrix[vectors.row_of[papers]], np.float32)
            for papers in (block.anchors[owners[at]], lists.rows[at])
        )  # both (entries, dimension)
        if metric == "l2":
            out[at] = -np.linalg.norm(first - second, axis=1)
            continue
        dots = np.einsum("ij,ij->i", first, second)
        lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        out[at] = dots if metric == "dot" else dots / np.maximum(lengths, 1e-30)
    return out


def similar_papers(rule: Rule, block: AnchorBlock) -> CandidateLists:
    """The vector source of a cosine threshold: the `count` least similar papers above it, or most similar below."""
    vectors = block.data.pool_vectors(rule.vectors)
    own = vectors.row_of[block.anchors]
    here = np.flatnonzero(own >= 0)
    papers = vectors.paper_of[vectors.pool]  # (pool,)
    pool = vectors.unit(papers)  # (pool, dimension)
    limit = np.float32(rule.above if rule.above is not None else rule.below)
    rows = np.full((len(here), rule.count), -1, np.int32)  # positions in `papers`
    scores = np.full((len(here), rule.count), np.nan, np.float32)
    step = 64  # fixed, so that sums are made in one order whatever the memory
    for start in range(0, len(here), step):
        part = here[start : start + step]
        cosines = vectors.unit(block.anchors[part]) @ pool.T  # (anchors, pool)
        span = slice(start, start + step)
        _nearest_to_limit(cosines, papers, block.anchors[part], limit, rule.above is not None, rows[span], scores[span])
    return _as_lists(Neighbors(rows, scores), here, papers, len(block.anchors))


@compiled()
def _nearest_to_limit(cosines, papers, anchors, limit, above, rows, scores):  # type: ignore[no-untyped-def]
    """Find for every anchor the papers on one side of the similarity limit that are nearest to it, nearest first."""
    count = rows.shape[1]
    for number in range(len(cosines)):
        size = 0
        for i in range(len(papers)):
            score = cosines[number, i]
            if papers[i] == anchors[number] or (score >= limit) != above:
                continue
            distance = abs(score - limit)
            if size == count and distance >= abs(scores[number, size - 1] - limit):
                continue
            at = size if size < count else size - 1
            while at > 0 and distance < abs(scores[number, at - 1] - limit):
                if at < count:
                    rows[number, at], scores[number, at] = rows[number, at - 1], scores[number, at - 1]
                at -= 1
            rows[number, at], scores[number, at] = i, score
            if size < count:
                size += 1


def cell_papers(rule: Rule, block: AnchorBlock, forbidden: CandidateLists, salt: np.uint64) -> CandidateLists:
    """The vector source of k-means cells: one paper of each of the `count` cells up to the n-th nearest, n being `cell`.

    SciNCL's released code draws like this from the centroids sorted by their similarity to the anchor's own.
    """
    vectors = block.data.pool_vectors(rule.vectors)
    cells = _cluster_pool(block.data, rule)
    here = np.flatnonzero(vectors.row_of[block.anchors] >= 0)
    nearest = np.argsort(-(cells.centers @ cells.centers.T), axis=1, kind="stable")  # (cells, cells)
    home = np.argmax(vectors.unit(block.anchors[here]) @ cells.centers.T, axis=1)  # (anchors here,)
    last = min(rule.cell, len(cells.centers) - 1) + 1
    rows = np.full((len(block.anchors), rule.count), -1, np.int32)
    rows[here] = draw_from_groups(
        block.anchors[here], block.keys[here], nearest[home, last - rule.count : last], cells.offsets, cells.papers,
        take_lists(forbidden, here), salt,
    )  # fmt: skip
    drawn = rows >= 0
    return CandidateLists(to_offsets(drawn.sum(axis=1)), rows[drawn], np.full(int(drawn.sum()), np.nan, np.float32))


@dataclass(frozen=True, slots=True)
class Cells(Ragged):
    """k-means cells that a vector source takes candidates from: the papers of each, and their centers."""

    papers: NDArray[np.int32]
    centers: NDArray[np.float32]
    """Shape (cells, dimension), of length 1."""


def _cluster_pool(data: MiningData, rule: Rule) -> Cells:
    """Cluster the pool by spherical k-means over unit vectors (Dhillon and Modha, 2001), fitted on at most 50,000."""
    vectors = data.pool_vectors(rule.vectors)
    papers = vectors.paper_of[vectors.pool]
    if rule.cells > len(papers):
        raise UserError(f"rule {rule.name!r}: {rule.cells} cells for a pool of {len(papers):,} papers; ask for fewer")
    key = (rule.vectors, rule.cells)
    if key not in data.cells:
        random = stream(data.seed, "mining", "cells", rule.vectors)
        learn = vectors.unit(np.sort(random.choice(papers, min(len(papers), _KMEANS_PAPERS), replace=False)))
        centers = learn[random.choice(len(learn), rule.cells, replace=False)]  # (cells, dimension)
        for _ in range(_KMEANS_ROUNDS):
            home = np.argmax(learn @ centers.T, axis=1)
            sums = np.zeros_like(centers)
            np.add.at(sums, home, learn)
            lengths = np.linalg.norm(sums, axis=1, keepdims=True)
            centers = np.where(lengths > 0, sums / np.maximum(lengths, 1e-30), centers)
        data.cells[key] = _assign_cells(vectors, papers, centers)
    return data.cells[key]  # type: ignore[return-value]


def _assign_cells(vectors: PoolVectors, papers: NDArray[np.int32], centers: NDArray[np.float32]) -> Cells:
    """Assign every paper of the pool to its nearest cell."""
    home = np.empty(len(papers), np.int64)
    for start in range(0, len(papers), 1 << 16):
        home[start : start + (1 << 16)] = np.argmax(vectors.unit(papers[start : start + (1 << 16)]) @ centers.T, axis=1)
    order = np.argsort(home, kind="stable")
    return Cells(count_owners(home, len(centers)), papers[order], centers)


def sort_by_similarity(rule: Rule, lists: CandidateLists, block: AnchorBlock) -> CandidateLists:
    """Score random candidates by their similarity to the anchor; drop those without a vector."""
    vectors = block.data.pool_vectors(rule.vectors)
    scored = CandidateLists(lists.offsets, lists.rows, anchor_similarities(lists, block, vectors, rule.metric))
    return filter_entries(scored, ~np.isnan(scored.scores)) if len(scored.rows) else empty_lists(len(block.anchors))
