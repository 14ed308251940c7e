"""Choosing rank bands for a pool: positives near enough to be related, hard negatives far enough not to collide.

    bands = choose_bands(vectors, graph=graph)
    print(bands)                         positives up to rank 13, hard negatives up to rank 361 (2.1 % of 17,567 papers)
    rules = apply_bands(rules, bands)

SciNCL took 25 and 4,000 after training a model for each of many ranks (Ostendorff et al., EMNLP 2022, section 6). Here
both are read off the pool, so that a pool of 300 papers gets bands as well as one of millions:

    positives   the largest rank, at most 25 and a fortieth of the pool, at which neighbors are related to the anchor
                at least half as often as at ranks 1 to 5; never less than the number wanted
    negatives   the least rank from which on, rank by rank, (1) at most 0.05 % of the negatives are expected to collide
                and (2) neighbors are related hardly more often than random papers are: a twentieth of the way from
                random papers to ranks 1 to 5 at most; never beyond half of the pool

Related means connected or co-cited; without a graph (2) is left out. Where no rank fulfils both, (1) alone counts,
and where none fulfils that, the rank with the fewest collisions is taken; `reasons` says which.

Bands in the graphs of single aspects: each pool is another, so each aspect has ranks of its own.

    chosen = bands_by_aspect(corpus, rules, inputs)
    chosen["method"].positive_rank
    rules = with_aspect_bands(rules, {aspect: apply_bands(rules.for_aspect(aspect), bands) for aspect, bands in ...})

Related, in the graph of an aspect, means connected or co-cited by citations of this aspect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.graph.citations import CitationGraph
from citeweave.mining.audit_report import percent
from citeweave.mining.band_curves import (
    CollisionCurve,
    RelatedCurve,
    collision_shares,
    draw_anchors,
    rank_grid,
    related_curve,
    reverse_ranks,
)
from citeweave.mining.mine import MiningInputs, MiningOptions, material_of
from citeweave.mining.mining_data import PoolVectors
from citeweave.mining.rules import OF_ASPECT, MiningRules, Rule, intent_bits
from citeweave.vectors.topk import Band

NEAR = 25
"""The farthest rank of positives: SciNCL's."""

TOP = 5
LEAST_POOL = 50
_PART_OF_POOL = 40
_COMPARED = "connected or co-cited"
_WORK = 2e11
"""Multiplications that following positive pairs may cost; a large pool is asked with fewer anchors."""


@dataclass(frozen=True, slots=True)
class BandOptions:
    """What bands must fulfill, and how closely to look."""

    collisions: float = 0.0005
    """The largest share of hard negatives that may be expected to collide."""

    related: float = 0.05
    """How far above random papers negatives may be related, as a part of the way to the nearest neighbors."""

    most: float = 0.5
    """The farthest rank of negatives, as a share of the pool ..."""

    deepest: int = 50_000
    """... and as a rank."""

    sample: int = 500
    """Anchors to look at; fewer where the pool is so large that it would take long, never under 50."""

    seed: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.most <= 1 or not 0 <= self.collisions < 1 or self.related < 0:
            raise UserError(
                f"bands: most is {self.most}, collisions {self.collisions} and related {self.related}; "
                "they are shares, most over 0"
            )
        if self.sample < 1 or self.deepest < 1:
            raise UserError(f"bands: sample is {self.sample} and deepest {self.deepest}; both must be 1 or more")


@dataclass(frozen=True, slots=True)
class Bands:
    """Ranks for positives and hard negatives, and why."""

    positive_rank: int
    """Positives are taken from the ranks up to this one, as many as are wanted."""

    negative_rank: int
    pool: int
    collisions: float
    """Share of hard negatives that are expected to be positives elsewhere."""

    reasons: tuple[str, ...]
    curve: CollisionCurve
    related: RelatedCurve | None = None
    positives: int = 5
    negatives: int = 2
    vectors: str = "graph"

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "positive_rank": self.positive_rank,
            "negative_rank": self.negative_rank,
            "pool": self.pool,
            "positive_share": self.positive_rank / self.pool,
            "negative_share": self.negative_rank / self.pool,
            "collisions_expected": self.collisions,
            "vectors": self.vectors,
            "why": str(self),
            "reasons": list(self.reasons),
            "collision_curve": {"ranks": self.curve.ranks.tolist(), "shares": self.curve.shares.tolist()},
        }
        if self.related is not None:
            shares = {name: values.tolist() for name, values in self.related.shares.items()}
            background = dict(self.related.background)
            found["related_curve"] = {"ranks": self.related.ranks.tolist(), "shares": shares, "background": background}
        return found

    def __str__(self) -> str:
        share = percent(self.negative_rank / self.pool)
        ranks = f"positives up to rank {self.positive_rank}, hard negatives up to rank {self.negative_rank:,}"
        return f"{ranks} ({share} of {self.pool:,} papers); {'; '.join(self.reasons)}"


def choose_bands(
    vectors: PoolVectors,
    *,
    graph: CitationGraph | None = None,
    anchors: NDArray[np.integer[Any]] | None = None,
    positives: int = 5,
    negatives: int = 2,
    metric: str = "cosine",
    options: BandOptions | None = None,
    reporter: Reporter = QUIET,
) -> Bands:
    """Bands for so many positives and hard negatives an anchor; anchors are papers, all of the pool if left out."""
    options = options or BandOptions()
    pool = len(vectors.pool)
    last = min(int(options.most * pool), options.deepest)
    _check(pool, last, positives, negatives)
    anchors = vectors.paper_of[vectors.pool] if anchors is None else anchors
    rows = draw_anchors(vectors, anchors, _sample(vectors, positives, options), options.seed)
    if not len(rows):
        raise UserError("none of the anchors has text and a vector; give anchors that have, or embed them")
    grid = rank_grid(1, last)
    related = None
    if graph is not None:
        near = min(max(NEAR, positives), last)
        related = related_curve(
            vectors, graph, rows, near=near, ranks=grid, metric=metric, seed=options.seed, workers=options.workers
        )
    first = _positive_rank(pool, positives, last - negatives, related)
    band = Band(first - positives, first)
    seen = reverse_ranks(vectors, rows, anchors, band, metric=metric, workers=options.workers, reporter=reporter)
    ranks = grid[grid >= first + negatives]
    curve = CollisionCurve(ranks, collision_shares(seen, len(rows), band, ranks, pool), len(seen))
    at, reasons = _negative_rank(curve, related, options)
    share = float(curve.shares[at])
    return Bands(first, int(ranks[at]), pool, share, reasons, curve, related, positives, negatives)


def bands_for(
    corpus: Corpus,
    rules: MiningRules,
    inputs: MiningInputs,
    *,
    seed: int = 0,
    workers: int = 0,
    reporter: Reporter = QUIET,
) -> Bands:
    """Bands for the `neighbors` rules of a recipe; of a mixture, for the task that asks for most."""
    tasks = [inner for _, _, inner in rules.tasks] or [rules]
    tasks = [task for task in tasks if any(rule.source == "neighbors" for rule in task.rules)]
    asked = {(rule.vectors, rule.metric) for task in tasks for rule in task.rules if rule.source == "neighbors"}
    if len(asked) != 1:
        names = ", ".join(sorted(f"{name} ({metric})" for name, metric in asked)) or "none"
        raise UserError(
            f"bands can be chosen for rules with source neighbors of one kind of vectors, but they are of {names}; "
            "write the bands into the recipe and leave out --bands auto"
        )
    [(name, metric)] = asked
    chosen = choose_bands(
        material_of(corpus, tasks[0], inputs, MiningOptions()).tied(name),
        graph=inputs.graph,
        anchors=inputs.anchors,
        positives=max(1, *(_wanted(task.positives) for task in tasks)),
        negatives=max(1, *(_wanted(task.negatives) for task in tasks)),
        metric=metric,
        options=BandOptions(seed=seed, workers=workers),
        reporter=reporter,
    )
    return dataclasses.replace(chosen, vectors=name)


def apply_bands(rules: MiningRules, bands: Bands) -> MiningRules:
    """The rules with these bands in every `neighbors` rule of the same vectors.

    Several such rules of one side stand side by side: positives inwards from their rank, negatives outwards.
    """
    if rules.tasks:
        tasks = tuple((name, weight, apply_bands(inner, bands)) for name, weight, inner in rules.tasks)
        return dataclasses.replace(rules, tasks=tasks)
    positives, negatives = list(rules.positives), list(rules.negatives)
    end = bands.positive_rank
    for at in _places(rules.positives, bands):
        positives[at] = dataclasses.replace(positives[at], band=end)
        end -= positives[at].count
    end = 0
    for at in _places(rules.negatives, bands):
        end = end + negatives[at].count if end else bands.negative_rank
        negatives[at] = dataclasses.replace(negatives[at], band=end)
    return dataclasses.replace(rules, positives=tuple(positives), negatives=tuple(negatives))


def _wanted(rules: Sequence[Rule]) -> int:
    return sum(rule.count for rule in rules if rule.source == "neighbors")


def _places(rules: Sequence[Rule], bands: Bands) -> list[int]:
    return [at for at, rule in enumerate(rules) if rule.source == "neighbors" and rule.vectors == bands.vectors]


def _check(pool: int, last: int, positives: int, negatives: int) -> None:
    step = "give more papers, or take negatives at random and leave out what the anchor is connected with"
    if pool < LEAST_POOL:
        raise UserError(f"the pool has {pool} papers with text and a vector; bands need {LEAST_POOL} or more: {step}")
    if positives < 1 or negatives < 1:
        raise UserError(f"bands for {positives} positives and {negatives} hard negatives: both must be 1 or more")
    if positives + negatives > last:
        raise UserError(
            f"{positives} positives and {negatives} hard negatives do not fit apart into the nearest {last} of "
            f"{pool:,} papers; ask for fewer, or {step}"
        )


def _sample(vectors: PoolVectors, positives: int, options: BandOptions) -> int:
    """How many anchors to draw: fewer where each costs more."""
    cost = positives * len(vectors.pool) * vectors.matrix.shape[1]
    return min(options.sample, max(50, int(_WORK / cost)))


def _positive_rank(pool: int, positives: int, last: int, related: RelatedCurve | None) -> int:
    """The largest rank at which neighbors are still half as often related as the nearest ones."""
    most = min(max(positives, min(NEAR, pool // _PART_OF_POOL)), last)
    if related is None:
        return most
    shares = related.shares[_COMPARED]
    half = 0.5 * shares[:TOP].mean()
    fitting = [rank for rank in range(positives, most + 1) if shares[rank - positives : rank].mean() >= half]
    return max(fitting, default=positives)


def _negative_rank(
    curve: CollisionCurve, related: RelatedCurve | None, options: BandOptions
) -> tuple[int, tuple[str, ...]]:
    """Which point of the curve to take, and why."""
    apart = _from_here_on(curve.shares <= options.collisions)
    reasons = []
    fitting = apart
    if related is not None:
        shares = related.shares[_COMPARED][np.searchsorted(related.ranks, curve.ranks)]  # of the shape of curve.ranks
        random = related.background[_COMPARED]
        limit = random + options.related * max(0.0, related.shares[_COMPARED][:TOP].mean() - random)
        fitting = apart & _from_here_on(shares <= limit)
    if fitting.any():
        at = int(np.argmax(fitting))
    elif apart.any():
        at = int(np.argmax(apart))
        reasons.append("all ranks up to the farthest allowed hold more related papers than they should")
    else:
        at = int(np.argmin(curve.shares))
        reasons.append(f"no rank has collisions under {percent(options.collisions)}, this one has fewest")
    reasons.insert(0, f"{percent(float(curve.shares[at]))} of the hard negatives are expected to collide")
    if related is not None:
        reasons.insert(1, f"{percent(float(shares[at]))} of them are {_COMPARED}, of random papers {percent(random)}")
    return at, tuple(reasons)


def _from_here_on(good: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Where it holds and holds for all that follow.

    >>> _from_here_on(np.array([True, False, True, True])).tolist()
    [False, False, True, True]
    """
    return np.logical_and.accumulate(good[::-1])[::-1]


# Bands in the graphs of single aspects: each pool is another, so each aspect has ranks of its own.


def bands_by_aspect(
    corpus: Corpus,
    rules: MiningRules,
    inputs: MiningInputs,
    *,
    seed: int = 0,
    workers: int = 0,
    reporter: Reporter = QUIET,
) -> dict[str, Bands]:
    """Bands for every aspect whose graph some rule draws by."""
    found = {}
    for aspect in rules.aspect_graphs:
        try:
            found[aspect] = bands_for(
                corpus,
                rules.for_aspect(aspect),
                inputs_of(inputs, aspect),
                seed=seed,
                workers=workers,
                reporter=reporter,
            )
        except UserError as error:
            raise in_aspect(aspect, error) from None
    return found


def inputs_of(inputs: MiningInputs, aspect: str) -> MiningInputs:
    """The inputs with the graph that has only the citations of one aspect."""
    if inputs.graph is None:
        return inputs
    return dataclasses.replace(inputs, graph=inputs.graph.restricted(intent_bits(aspect, "mining.aspects")))


def in_aspect(aspect: str, error: UserError) -> UserError:
    """The same error, told of an aspect."""
    return UserError(f"aspect {aspect}: {error}; or leave the aspect out of mining.aspects")


def apply_aspect_bands(rules: MiningRules, chosen: Mapping[str, Bands]) -> MiningRules:
    """The rules with the bands chosen for each aspect."""
    return with_aspect_bands(
        rules, {name: apply_bands(rules.for_aspect(name), bands) for name, bands in chosen.items()}
    )


def with_aspect_bands(rules: MiningRules, by_aspect: Mapping[str, MiningRules]) -> MiningRules:
    """The rules with the bands that rules of single aspects have."""

    def banded(rule: Rule) -> Rule:
        if rule.source != "neighbors" or rule.vectors != OF_ASPECT:
            return rule
        found = {name: {each.name: each.band for each in own.rules}[rule.name] for name, own in by_aspect.items()}
        return dataclasses.replace(rule, aspect_bands=tuple(found.items()))

    positives, negatives = (tuple(map(banded, side)) for side in (rules.positives, rules.negatives))
    return dataclasses.replace(rules, positives=positives, negatives=negatives)
