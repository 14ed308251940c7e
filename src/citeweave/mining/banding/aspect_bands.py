"""Bands in the graphs of single aspects: each pool is another, so each aspect has ranks of its own.

    chosen = bands_by_aspect(corpus, rules, inputs)
    chosen["method"].positive_rank
    rules = with_aspect_bands(rules, {aspect: apply_bands(rules.for_aspect(aspect), bands) for aspect, bands in ...})

Related, in the graph of an aspect, means connected or co-cited by citations of this aspect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from citeweave.corpus.corpus import Corpus
from citeweave.errors import UserError
from citeweave.mining.aspect_names import OF_ASPECT, intent_bits
from citeweave.mining.banding.bands import Bands, apply_bands, bands_for
from citeweave.mining.mine import Inputs
from citeweave.mining.rule import Rule
from citeweave.mining.rules import MiningRules
from citeweave.progress import QUIET, Reporter


def bands_by_aspect(
    corpus: Corpus, rules: MiningRules, inputs: Inputs, *, seed: int = 0, workers: int = 0, reporter: Reporter = QUIET
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


def inputs_of(inputs: Inputs, aspect: str) -> Inputs:
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
        if rule.source != "neighbours" or rule.vectors != OF_ASPECT:
            return rule
        found = {name: {each.name: each.band for each in own.rules}[rule.name] for name, own in by_aspect.items()}
        return dataclasses.replace(rule, aspect_bands=tuple(found.items()))

    positives, negatives = (tuple(map(banded, side)) for side in (rules.positives, rules.negatives))
    return dataclasses.replace(rules, positives=positives, negatives=negatives)
