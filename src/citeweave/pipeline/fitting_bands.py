"""Rank bands for the corpus at hand: as the recipe writes them where the pool is large enough, else others.

    recipe   as written; ranks beyond the pool are an error
    auto     chosen for the pool: see `mining/banding/bands.py`
    share    the same share of the pool as in SciNCL's of 680,967 papers
    fit      as written where the farthest rank is at most a twentieth of the pool, else as auto

A band that the user set (`--set mining.positives.band=25`) is always taken as written. A recipe that differs from its
base by its bands differs from it in the same ratio where they are chosen: cocite_25_1000 has negatives at a fifth of
cocite's rank. Where rules draw by the graphs of aspects, each has bands of its own. Chosen bands are said, and kept in
the run's record.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from citeweave.corpus.corpus import Corpus
from citeweave.errors import UserError
from citeweave.mining.banding.aspect_bands import in_aspect, inputs_of, with_aspect_bands
from citeweave.mining.banding.bands import bands_for
from citeweave.mining.mine import Inputs, MiningOptions, material_of
from citeweave.mining.rule import Rule
from citeweave.mining.rule_reading import parse_rules
from citeweave.mining.rules import MiningRules
from citeweave.progress import QUIET, Reporter
from citeweave.recipe import Recipe, load_recipe, shipped_recipes

PUBLISHED_POOL = 680_967
"""Papers among which SciNCL's ranks are (Ostendorff et al., EMNLP 2022, appendix C)."""

LARGE_ENOUGH = 0.05
"""Share of the pool up to which hard negatives are still hard; SciNCL's are at 0.6 %."""


@dataclass(frozen=True, slots=True)
class FittedBands:
    """The rules with their bands, and what was done."""

    rules: MiningRules
    facts: dict[str, Any]
    """Empty where no rule has a band."""


def fit_bands(
    recipe: Recipe, rules: MiningRules, corpus: Corpus, inputs: Inputs, *, how: str, reporter: Reporter = QUIET
) -> FittedBands:
    """Rules whose bands fit the pool; those by the graphs of aspects fit the pool of each."""
    if not rules.aspect_graphs or rules.tasks:
        return _fit(recipe, rules, corpus, inputs, how=how, reporter=reporter)
    fitted = {}
    for aspect in rules.aspect_graphs:
        own, apart = rules.for_aspect(aspect), inputs_of(inputs, aspect)
        try:
            fitted[aspect] = _fit(recipe, own, corpus, apart, how=how, reporter=reporter)
        except UserError as error:
            raise in_aspect(aspect, error) from None
    facts = {aspect: found.facts for aspect, found in fitted.items() if found.facts}
    rules = with_aspect_bands(rules, {aspect: found.rules for aspect, found in fitted.items()})
    return FittedBands(rules, {"aspects": facts} if facts else {})


def _fit(
    recipe: Recipe, rules: MiningRules, corpus: Corpus, inputs: Inputs, *, how: str, reporter: Reporter
) -> FittedBands:
    places = _banded(recipe, rules)
    if not places:
        return FittedBands(rules, {})
    pool = _pool(corpus, rules, inputs)
    free = _free(recipe, rules, places)
    farthest = max(_high(rule, pool) for rule in rules.rules if rule.name in places)
    written = {rule.name: _shown(rule) for rule in rules.rules if rule.name in places}
    if how == "fit":
        how = "recipe" if farthest <= LARGE_ENOUGH * pool or not free else "auto"
    if how == "recipe":
        facts: dict[str, Any] = {"how": "as the recipe writes them", "pool": pool, "bands": written}
    else:
        rules, why = _shares(rules, free, pool) if how == "share" else _chosen(recipe, rules, free, corpus, inputs)
        bands = {rule.name: _shown(rule) for rule in rules.rules if rule.name in places}
        facts = {"how": how, "pool": pool, "written": written, "bands": bands, "why": why}
    reporter.say(describe(facts))
    return FittedBands(rules, facts)


def describe(facts: dict[str, Any]) -> str:
    """One line on bands.

    >>> describe({"how": "share", "pool": 300, "written": {"hard": 4000}, "bands": {"hard": 9}, "why": "because"})
    'bands: hard at rank 9 and not 4000, in a pool of 300 papers: because'
    """
    if "aspects" in facts:
        return "\n".join(f"{aspect}: {describe(each)}" for aspect, each in facts["aspects"].items())
    ranks = ", ".join(
        f"{name} at rank {rank}" + (f" and not {facts['written'][name]}" if "written" in facts else "")
        for name, rank in facts["bands"].items()
    )
    return f"bands: {ranks}, in a pool of {facts['pool']:,} papers: {facts.get('why', facts['how'])}"


def _banded(recipe: Recipe, rules: MiningRules) -> dict[str, str]:
    """Rules with a band -> the key of the recipe that holds it; mixtures keep theirs."""
    found = {}
    for side, own in (("positives", rules.positives), ("negatives", rules.negatives)):
        for rule in own:
            if rule.source == "neighbours":
                found[rule.name] = f"mining.{side}.band" if rule.name == side else f"mining.{side}.{rule.name}.band"
    return found


def _free(recipe: Recipe, rules: MiningRules, places: dict[str, str]) -> set[str]:
    """Rules whose band is a published one: not set from outside, and not of the user's own file."""
    free = {name for name, key in places.items() if not recipe.is_set(key)}
    if recipe.name in shipped_recipes():
        return free
    base = next((name for name in recipe.bases if name in shipped_recipes()), "")
    known = parse_rules(load_recipe(base).table("mining")).rules if base else ()
    published = {rule.name: rule.band for rule in known}
    return {rule.name for rule in rules.rules if rule.name in free and published.get(rule.name) == rule.band}


def _pool(corpus: Corpus, rules: MiningRules, inputs: Inputs) -> int:
    """Papers of the pool with text and a vector, of the vectors that rules with bands use."""
    name = next(rule.vectors for rule in rules.rules if rule.source == "neighbours")
    return len(material_of(corpus, rules, inputs, MiningOptions()).tied(name).pool)


def _high(rule: Rule, pool: int) -> int:
    return rule.ranks(pool)[1]


def _shown(rule: Rule) -> Any:
    return list(rule.band) if isinstance(rule.band, tuple) else rule.band


def _shares(rules: MiningRules, free: set[str], pool: int) -> tuple[MiningRules, str]:
    scale = pool / PUBLISHED_POOL
    ranks = {rule.name: scale * _high(rule, pool) for rule in rules.rules if rule.name in free}
    return _moved(rules, ranks, pool), f"the same share as in a pool of {PUBLISHED_POOL:,}, as near as counts allow"


def _chosen(
    recipe: Recipe, rules: MiningRules, free: set[str], corpus: Corpus, inputs: Inputs
) -> tuple[MiningRules, str]:
    found = bands_for(corpus, rules, inputs)
    root = parse_rules(load_recipe(recipe.bases[-1]).table("mining")) if recipe.bases else rules
    written = {rule.name: _high(rule, found.pool) for rule in root.rules if rule.source == "neighbours"}
    positives = {rule.name for rule in rules.positives}
    ranks = {}
    for rule in rules.rules:
        if rule.name in free:
            high = _high(rule, found.pool)
            rank = found.positive_rank if rule.name in positives else found.negative_rank
            ranks[rule.name] = rank * high / written.get(rule.name, high)
    return _moved(rules, ranks, found.pool), f"chosen for this corpus, where the written ranks are too far; {found}"


def _moved(rules: MiningRules, ranks: dict[str, float], pool: int) -> MiningRules:
    """The rules with their bands at these ranks: as wide as they must be, negatives beyond all positives."""
    positives = tuple(_at(rule, ranks, 0, pool) for rule in rules.positives)
    low = max((_high(rule, pool) for rule in positives if rule.source == "neighbours"), default=0)
    negatives = tuple(_at(rule, ranks, low, pool) for rule in rules.negatives)
    return dataclasses.replace(rules, positives=positives, negatives=negatives)


def _at(rule: Rule, ranks: dict[str, float], low: int, pool: int) -> Rule:
    if rule.name not in ranks:
        return rule
    high = min(max(round(ranks[rule.name]), low + rule.count), pool - 1)
    if not isinstance(rule.band, tuple):
        return dataclasses.replace(rule, band=high)
    old_low, old_high = rule.ranks(PUBLISHED_POOL)
    start = max(low, min(round(high * old_low / old_high), high - rule.count))
    return dataclasses.replace(rule, band=(start, high))
