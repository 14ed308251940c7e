"""How many papers and triplets the rules of a recipe ask for, as if every one found what it asks for.

    picks_of(rules)       papers chosen for an anchor
    triplets_of(rules)    triplets made of them

Chooses nothing: `mining/` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from citeweave.graph.signals import TWO_HOPS

if TYPE_CHECKING:
    from citeweave.mining.rules import MiningRules


def picks_of(rules: MiningRules) -> int:
    """Papers that are chosen for an anchor at most; of a mixture the most of a task."""
    if rules.tasks:
        return max(picks_of(inner) for _, _, inner in rules.tasks)
    return sum(rule.count for rule in rules.rules) + (rules.anchors_per == "contexts")


def triplets_of(rules: MiningRules) -> int:
    """Triplets of an anchor: the shorter list of picks begins anew."""
    if rules.tasks:
        return max(triplets_of(inner) for _, _, inner in rules.tasks)
    sides = [sum(rule.count for rule in side) for side in (rules.positives, rules.negatives)]
    return max(1, *sides)


def groups_of(rules: MiningRules) -> int:
    """Samples of an anchor: one for every aspect."""
    return max(1, len(rules.aspects))


def hops_of(rules: MiningRules) -> list[str]:
    """The signals over two hops that are counted, for picks or to leave papers out; each once."""
    found = [name for rule in _all_rules(rules) for name in (rule.source, *rule.exclude) if name in TWO_HOPS]
    return sorted(set(found))


def searches_of(rules: MiningRules) -> list[str]:
    """The vectors among which neighbours are searched; each once, and once for every aspect where each has its own."""
    found = set()
    for rule in _all_rules(rules):
        if rule.source in ("neighbours", "similar"):
            aspects = rules.aspects if rule.vectors == "aspect" else ("",)
            found |= {f"{rule.vectors} {rule.metric} {aspect}".strip() for aspect in aspects}
    return sorted(found)


def deepest_of(rules: MiningRules, pool: int) -> int:
    """The last rank among the neighbours in a pool that some rule asks for."""
    ends = [rule.ranks(pool)[1] for rule in _all_rules(rules) if rule.source == "neighbours"]
    return min(max(ends, default=1), pool)


def uses_graph_vectors(rules: MiningRules) -> bool:
    """Whether some rule ranks papers by vectors of the graph's nodes."""
    sources = ("neighbours", "similar", "cells", "sorted_random")
    return any(rule.source in sources and rule.vectors in ("graph", "aspect") for rule in _all_rules(rules))


def _all_rules(rules: MiningRules) -> Iterator[Any]:
    yield from rules.rules
    for _, _, inner in rules.tasks:
        yield from _all_rules(inner)
