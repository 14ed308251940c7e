"""What the rules of a recipe ask for, in numbers: papers and triplets per anchor, signals, searches, ranks.

    count_picks(rules), count_triplets(rules)     (10, 5) of the recipe specter
    expect_positives(rules, sizes)                the mean that a literature of these sizes has
    two_hop_signals(rules), vector_searches(rules), deepest_rank(rules, pool)     what has to be computed

Counts for estimates; mining itself reads the rules (`mining/apply_rules.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from citeweave.graph.signals import ONE_HOP, TWO_HOPS

if TYPE_CHECKING:
    from citeweave.mining.rules import MiningRules, Rule
    from citeweave.pipeline.cost_constants import Sizes


def count_picks(rules: MiningRules) -> int:
    """Return the maximum number of papers that mining rules select per anchor, for a cost estimate."""
    if rules.tasks:
        return max(count_picks(inner) for _, _, inner in rules.tasks)
    return sum(rule.count for rule in rules.rules) + (rules.anchors_per == "contexts")


def expect_positives(rules: MiningRules, sizes: Sizes) -> float:
    """Estimate the mean number of positives per anchor: a rule finds no more papers than an anchor has relatives.

    A paper without positives is no sample, so the mean may be below 1.
    """
    if rules.tasks:
        return max(expect_positives(inner, sizes) for _, _, inner in rules.tasks)
    return sum(_expect_count(rule, sizes) for rule in rules.positives)


def _expect_count(rule: Rule, sizes: Sizes) -> float:
    if rule.source in TWO_HOPS:
        paths = sizes.paths_of(rule.source)
        if rule.source == "cocited_nearby":
            paths = min(paths, sizes.contexts / sizes.papers)
        # most pairs have one path; few have as many as a minimum strength asks for
        return min(rule.count, paths) / max(1.0, rule.min_strength) ** 2
    links = sizes.references * (2 if rule.source == "connected" else 1)
    return min(rule.count, links) if rule.source in ONE_HOP else rule.count


def count_triplets(rules: MiningRules) -> int:
    """Return the estimated number of triplets per anchor; the shorter list of samples is repeated."""
    if rules.tasks:
        return max(count_triplets(inner) for _, _, inner in rules.tasks)
    sides = [sum(rule.count for rule in side) for side in (rules.positives, rules.negatives)]
    return max(1, *sides)


def count_sample_groups(rules: MiningRules) -> int:
    """Return the number of samples per anchor: one per aspect."""
    return max(1, len(rules.aspects))


def two_hop_signals(rules: MiningRules) -> list[str]:
    """List the two-hop signals that mining has to count, each once, for a cost estimate."""
    return sorted({name for rule in _all_rules(rules) for name in (rule.source, *rule.exclude) if name in TWO_HOPS})


def vector_searches(rules: MiningRules) -> list[str]:
    """List the vector searches of a recipe's rules whose cost is estimated, each once per aspect."""
    searches = set()
    for rule in _all_rules(rules):
        if rule.source in ("neighbors", "similar"):
            aspects = rules.aspects if rule.vectors == "aspect" else ("",)
            searches |= {f"{rule.vectors} {rule.metric} {aspect}".strip() for aspect in aspects}
    return sorted(searches)


def deepest_rank(rules: MiningRules, pool: int) -> int:
    """Return the deepest neighbor rank that any mining rule asks for."""
    ends = [rule.ranks(pool)[1] for rule in _all_rules(rules) if rule.source == "neighbors"]
    return min(max(ends, default=1), pool)


def uses_graph_vectors(rules: MiningRules) -> bool:
    """Return whether any mining rule ranks papers by node vectors of the graph."""
    sources = ("neighbors", "similar", "cells", "sorted_random")
    return any(rule.source in sources and rule.vectors in ("graph", "aspect") for rule in _all_rules(rules))


def _all_rules(rules: MiningRules) -> Iterator[Rule]:
    yield from rules.rules
    for _, _, inner in rules.tasks:
        yield from _all_rules(inner)
