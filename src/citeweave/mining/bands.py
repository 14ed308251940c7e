"""Automatic rank bands: positives near enough to be related, hard negatives far enough not to collide.

    bands = choose_bands(vectors, graph=graph)
    print(bands)                         positives up to rank 13, hard negatives up to rank 361 (2.1 % of 17,567 papers)
    rules = apply_bands(rules, bands)
    draw_bands(bands, "bands/")          collisions.png, related.png

SciNCL took 25 and 4,000 after training a model for each of many ranks (Ostendorff et al., EMNLP 2022, section 6). Here
both are derived from the pool, so that a pool of 300 papers gets bands as well as one of millions:

    positives   the largest rank, at most 25 and a fortieth of the pool, at which neighbors are related to the anchor
                at least half as often as at ranks 1 to 5; never less than the number wanted
    negatives   the lowest rank from which on, rank by rank, (1) at most 0.05 % of the negatives are expected to collide
                and (2) neighbors are related hardly more often than random papers are: a twentieth of the way from
                random papers to ranks 1 to 5 at most; never beyond half of the pool

Related means connected or co-cited; without a graph (2) is left out. If no rank fulfills both, (1) alone counts, and if
none fulfills that, the rank with the fewest collisions is taken; `reasons` says which.

The graph of each aspect has a pool of its own, so each aspect has ranks of its own; related then means connected or
co-cited by citations of this aspect:

    chosen = choose_aspect_bands(corpus, rules, inputs)
    chosen["method"].positive_rank
    rules = with_aspect_bands(rules, {aspect: apply_bands(rules.for_aspect(aspect), bands) for aspect, bands in ...})
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core import plots
from citeweave.core.errors import UserError
from citeweave.core.options import Range, check
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
from citeweave.mining.inputs import MiningInputs, PoolVectors, collect_mining_data
from citeweave.mining.options import MiningOptions
from citeweave.mining.rules import OF_ASPECT, MiningRules, Rule, intent_bits
from citeweave.vectors.topk import Band

MAX_POSITIVE_RANK = 25
"""The farthest rank of positives: SciNCL's."""

TOP = 5
MIN_POOL = 50
_POOL_FRACTION = 40
_RANK_FACTOR = 10
"""How far beyond the rank of the negatives curves are drawn: beyond that they are flat."""

_COMPARED = "connected or co-cited"
_WORK = 2e11
"""Multiplications that ranking positive pairs may cost; a large pool is measured with fewer anchors."""


@dataclass(frozen=True, slots=True)
class BandOptions:
    """Conditions that chosen rank bands must fulfill, and the size of the sample that is measured."""

    collisions: Annotated[float, Range(0, below=1)] = 0.0005
    """Maximum expected share of hard negatives that collide."""

    related: Annotated[float, Range(0)] = 0.05
    """How much more often than random papers negatives may be related, as a part of the way to the nearest neighbors."""

    max_share: Annotated[float, Range(above=0, max=1)] = 0.5
    """The farthest rank of negatives, as a share of the pool ..."""

    max_rank: Annotated[int, Range(1)] = 50_000
    """... and as a rank."""

    sample: Annotated[int, Range(1)] = 500
    """Anchors to measure; fewer if the pool is so large that it would take long, never under 50."""

    seed: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        check(self, "bands")


@dataclass(frozen=True, slots=True)
class Bands:
    """Chosen rank bands for positives and hard negatives, and the reasons for them."""

    positive_rank: int
    """Positives are taken from the ranks up to this one, as many as the rules need."""

    negative_rank: int
    pool: int
    collisions: float
    """Expected share of hard negatives that are positives elsewhere."""

    reasons: tuple[str, ...]
    curve: CollisionCurve
    related: RelatedCurve | None = None
    positives: int = 5
    negatives: int = 2
    vectors: str = "graph"

    def as_json(self) -> dict[str, Any]:
        """Return the rank bands and the curves behind them as JSON."""
        payload: dict[str, Any] = {
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
            payload["related_curve"] = {
                "ranks": self.related.ranks.tolist(),
                "shares": {name: values.tolist() for name, values in self.related.shares.items()},
                "background": dict(self.related.background),
            }
        return payload

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
    """Choose rank bands for so many positives and hard negatives per anchor; anchors are papers, by default the pool."""
    options = options or BandOptions()
    pool = len(vectors.pool)
    last = min(int(options.max_share * pool), options.max_rank)
    _check_sizes(pool, last, positives, negatives)
    anchors = vectors.paper_of[vectors.pool] if anchors is None else anchors
    rows = draw_anchors(vectors, anchors, _sample_size(vectors, positives, options), options.seed)
    if not len(rows):
        raise UserError("none of the anchors has text and a vector; give anchors that have, or embed them")
    grid = rank_grid(1, last)
    related = None
    if graph is not None:
        near = min(max(MAX_POSITIVE_RANK, positives), last)
        related = related_curve(
            vectors, graph, rows, near=near, ranks=grid, metric=metric, seed=options.seed, workers=options.workers
        )
    first = _positive_rank(pool, positives, last - negatives, related)
    band = Band(first - positives, first)
    reverse = reverse_ranks(vectors, rows, anchors, band, metric=metric, workers=options.workers, reporter=reporter)
    ranks = grid[grid >= first + negatives]
    curve = CollisionCurve(ranks, collision_shares(reverse, len(rows), ranks, pool), len(reverse))
    at, reasons = _negative_rank(curve, related, options)
    share = float(curve.shares[at])
    return Bands(first, int(ranks[at]), pool, share, reasons, curve, related, positives, negatives)


def choose_bands_for_rules(
    corpus: Corpus,
    rules: MiningRules,
    inputs: MiningInputs,
    *,
    seed: int = 0,
    reporter: Reporter = QUIET,
) -> Bands:
    """Choose rank bands for the `neighbors` rules of a recipe; of a mixture, for the task that needs most."""
    tasks = [task for task in rules.parts if any(rule.source == "neighbors" for rule in task.rules)]
    kinds = {(rule.vectors, rule.metric) for task in tasks for rule in task.rules if rule.source == "neighbors"}
    if len(kinds) != 1:
        names = ", ".join(sorted(f"{name} ({metric})" for name, metric in kinds)) or "none"
        raise UserError(
            f"bands can be chosen for rules with source neighbors of one kind of vectors, but they are of {names}; "
            "write the bands into the recipe and leave out --bands auto"
        )
    [(name, metric)] = kinds
    chosen = choose_bands(
        collect_mining_data(corpus, tasks[0], inputs, MiningOptions()).pool_vectors(name),
        graph=inputs.graph,
        anchors=inputs.anchors,
        positives=max(1, *(_count_neighbors(task.positives) for task in tasks)),
        negatives=max(1, *(_count_neighbors(task.negatives) for task in tasks)),
        metric=metric,
        options=BandOptions(seed=seed),
        reporter=reporter,
    )
    return dataclasses.replace(chosen, vectors=name)


def apply_bands(rules: MiningRules, bands: Bands) -> MiningRules:
    """Return the rules with these rank bands in every `neighbors` rule of the same vectors.

    Several such rules of one side get adjacent bands: positives inwards from their rank, negatives outwards.
    """
    if rules.tasks:
        tasks = tuple((name, weight, apply_bands(inner, bands)) for name, weight, inner in rules.tasks)
        return dataclasses.replace(rules, tasks=tasks)
    positives, negatives = list(rules.positives), list(rules.negatives)
    end = bands.positive_rank
    for at in _band_rules(rules.positives, bands):
        positives[at] = dataclasses.replace(positives[at], band=end)
        end -= positives[at].count
    end = 0
    for at in _band_rules(rules.negatives, bands):
        end = end + negatives[at].count if end else bands.negative_rank
        negatives[at] = dataclasses.replace(negatives[at], band=end)
    return dataclasses.replace(rules, positives=tuple(positives), negatives=tuple(negatives))


def _count_neighbors(rules: Sequence[Rule]) -> int:
    """Count the papers that all `neighbors` rules select together."""
    return sum(rule.count for rule in rules if rule.source == "neighbors")


def _band_rules(rules: Sequence[Rule], bands: Bands) -> list[int]:
    """Return the positions of the rules to which the rank bands apply."""
    return [at for at, rule in enumerate(rules) if rule.source == "neighbors" and rule.vectors == bands.vectors]


def _check_sizes(pool: int, last: int, positives: int, negatives: int) -> None:
    """Refuse a pool that is too small for two rank bands."""
    step = "give more papers, or take random negatives that are not connected with the anchor"
    if pool < MIN_POOL:
        raise UserError(f"the pool has {pool} papers with text and a vector; bands need {MIN_POOL} or more: {step}")
    if positives < 1 or negatives < 1:
        raise UserError(f"bands for {positives} positives and {negatives} hard negatives: both must be 1 or more")
    if positives + negatives > last:
        raise UserError(
            f"{positives} positives and {negatives} hard negatives do not fit side by side into the nearest {last} of "
            f"{pool:,} papers; ask for fewer, or {step}"
        )


def _sample_size(vectors: PoolVectors, positives: int, options: BandOptions) -> int:
    """Return how many anchors to measure for rank bands: fewer if each costs more."""
    cost = positives * len(vectors.pool) * vectors.matrix.shape[1]
    return min(options.sample, max(50, int(_WORK / cost)))


def _positive_rank(pool: int, positives: int, limit: int, related: RelatedCurve | None) -> int:
    """Return the largest rank at which neighbors are still half as often related as the nearest ones."""
    last = min(max(positives, min(MAX_POSITIVE_RANK, pool // _POOL_FRACTION)), limit)
    if related is None:
        return last
    shares = related.shares[_COMPARED]
    half = 0.5 * shares[:TOP].mean()
    fitting = [rank for rank in range(positives, last + 1) if shares[rank - positives : rank].mean() >= half]
    return max(fitting, default=positives)


def _negative_rank(
    curve: CollisionCurve, related: RelatedCurve | None, options: BandOptions
) -> tuple[int, tuple[str, ...]]:
    """Choose the point of the collision curve for hard negatives, and say why."""
    apart = _holds_from_here(curve.shares <= options.collisions)
    reasons = []
    fitting = apart
    if related is not None:
        shares = related.shares[_COMPARED][np.searchsorted(related.ranks, curve.ranks)]  # of the shape of curve.ranks
        random = related.background[_COMPARED]
        limit = random + options.related * max(0.0, related.shares[_COMPARED][:TOP].mean() - random)
        fitting = apart & _holds_from_here(shares <= limit)
    if fitting.any():
        at = int(np.argmax(fitting))
    elif apart.any():
        at = int(np.argmax(apart))
        reasons.append("all ranks up to the farthest allowed one hold more related papers than they should")
    else:
        at = int(np.argmin(curve.shares))
        reasons.append(f"no rank has collisions under {percent(options.collisions)}, this one has fewest")
    reasons.insert(0, f"{percent(float(curve.shares[at]))} of the hard negatives are expected to collide")
    if related is not None:
        reasons.insert(1, f"{percent(float(shares[at]))} of them are {_COMPARED}, of random papers {percent(random)}")
    return at, tuple(reasons)


def _holds_from_here(good: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return where a condition holds at this rank and at all farther ones.

    >>> _holds_from_here(np.array([True, False, True, True])).tolist()
    [False, False, True, True]
    """
    return np.logical_and.accumulate(good[::-1])[::-1]


# Bands of single aspects.


def choose_aspect_bands(
    corpus: Corpus, rules: MiningRules, inputs: MiningInputs, *, seed: int = 0, reporter: Reporter = QUIET
) -> dict[str, Bands]:
    """Choose rank bands for every aspect by whose node vectors some rule ranks."""
    chosen = {}
    for aspect in rules.aspect_graphs:
        try:
            own, restricted = rules.for_aspect(aspect), restrict_to_aspect(inputs, aspect)
            chosen[aspect] = choose_bands_for_rules(corpus, own, restricted, seed=seed, reporter=reporter)
        except UserError as error:
            raise aspect_error(aspect, error) from None
    return chosen


def restrict_to_aspect(inputs: MiningInputs, aspect: str) -> MiningInputs:
    """Return the mining inputs with the graph that has only the citations of one aspect."""
    if inputs.graph is None:
        return inputs
    return dataclasses.replace(inputs, graph=inputs.graph.restricted(intent_bits(aspect, "mining.aspects")))


def aspect_error(aspect: str, error: UserError) -> UserError:
    """Return an error of choosing bands with the name of the aspect it is about."""
    return UserError(f"aspect {aspect}: {error}; or leave the aspect out of mining.aspects")


def apply_aspect_bands(rules: MiningRules, chosen: Mapping[str, Bands]) -> MiningRules:
    """Return the rules with the rank bands that were chosen for each aspect."""
    return with_aspect_bands(
        rules, {name: apply_bands(rules.for_aspect(name), bands) for name, bands in chosen.items()}
    )


def with_aspect_bands(rules: MiningRules, by_aspect: Mapping[str, MiningRules]) -> MiningRules:
    """Return the rules with rank bands chosen for each aspect separately."""

    def banded(rule: Rule) -> Rule:
        if rule.source != "neighbors" or rule.vectors != OF_ASPECT:
            return rule
        bands = {name: {each.name: each.band for each in own.rules}[rule.name] for name, own in by_aspect.items()}
        return dataclasses.replace(rule, aspect_bands=tuple(bands.items()))

    return rules.change_sides(lambda side: tuple(map(banded, side)))


def draw_bands(bands: Bands, folder: str | Path) -> list[Path]:
    """Plot chosen rank bands over the expected collisions and related papers by rank: collisions.png, related.png."""
    folder, drawn = Path(folder), [Path(folder) / "collisions.png"]
    marks: dict[str, float | tuple[float, float]] = {
        "positives": (max(bands.positive_rank - bands.positives, 0.8), bands.positive_rank),
        "hard negatives": float(bands.negative_rank),
    }
    last = _RANK_FACTOR * bands.negative_rank
    shown = bands.curve.ranks <= last
    plots.draw_curves(
        drawn[0],
        bands.curve.ranks[shown],
        {"expected": 100 * bands.curve.shares[shown]},
        title="Hard negatives that are positives elsewhere, by their rank",
        x_label=f"rank of the hard negatives among {bands.pool:,} papers",
        y_label="% of them that collide",
        log_x=True,
        marks=marks,
    )
    if bands.related is not None:
        drawn.append(folder / "related.png")
        related = bands.related
        shown = related.ranks <= last
        series = {name: 100 * related.shares[name][shown] for name in ("connected", "co-cited", "coupled")}
        random = 100 * related.background["connected or co-cited"]
        plots.draw_curves(
            drawn[1],
            related.ranks[shown],
            {**series, "random papers, either": np.full(int(shown.sum()), random)},
            title="Neighbors that citations relate to the anchor, by their rank",
            x_label=f"rank among {bands.pool:,} papers",
            y_label="% of the neighbors",
            log_x=True,
            marks=marks,
        )
    return drawn
