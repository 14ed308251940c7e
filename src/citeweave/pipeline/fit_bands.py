"""The rank bands of a run: fitted to its corpus, described, and refused where a band that the user set is impossible.

How `--bands` chooses:

    recipe   as written; ranks beyond the pool are an error
    auto     chosen for the pool: see `mining/bands.py`
    share    the same share of the pool as in SciNCL's pool of 680,967 papers
    fit      as written if the farthest rank is at most a twentieth of the pool, otherwise as auto

A band that the user set (`--set mining.positives.band=25`) is always used as written. A recipe whose bands differ from
those of its base keeps their ratio when bands are chosen: cocite_25_1000 has negatives at a fifth of cocite's rank. Rules
on the graphs of aspects have bands of their own for each aspect. Chosen bands are reported and kept in the run's record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from citeweave.core.errors import UserError
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.mining.bands import aspect_error, choose_bands_for_rules, restrict_to_aspect, with_aspect_bands
from citeweave.mining.inputs import MiningInputs, collect_mining_data
from citeweave.mining.options import MiningOptions
from citeweave.mining.rules import MiningRules, Rule, parse_rules
from citeweave.pipeline.recipe import Recipe, load_recipe, shipped_recipes

PUBLISHED_POOL = 680_967
"""Papers in SciNCL's pool, to which its published ranks belong (Ostendorff et al., EMNLP 2022, appendix C)."""

LARGE_POOL_SHARE = 0.05
"""Share of the pool up to which negatives are still hard; SciNCL's are at 0.6 %."""

AS_WRITTEN = "as the recipe writes them"


@dataclass(frozen=True, slots=True)
class FittedRules:
    """Mining rules with rank bands fitted to a corpus, and a summary of the changes."""

    rules: MiningRules
    summary: dict[str, Any]
    """Mode, pool and bands, as run.json records them; empty if no rule has a band."""


def fit_bands(
    recipe: Recipe, rules: MiningRules, corpus: Corpus, inputs: MiningInputs, *, mode: str, reporter: Reporter = QUIET
) -> FittedRules:
    """Return rules whose rank bands fit the size of the pool; rules on aspect graphs fit the pool of each aspect."""
    if not rules.aspect_graphs or rules.tasks:
        return _fit(recipe, rules, corpus, inputs, mode=mode, reporter=reporter)
    fitted = {}
    for aspect in rules.aspect_graphs:
        own, restricted = rules.for_aspect(aspect), restrict_to_aspect(inputs, aspect)
        try:
            fitted[aspect] = _fit(recipe, own, corpus, restricted, mode=mode, reporter=reporter)
        except UserError as error:
            raise aspect_error(aspect, error) from None
    summaries = {aspect: each.summary for aspect, each in fitted.items() if each.summary}
    rules = with_aspect_bands(rules, {aspect: each.rules for aspect, each in fitted.items()})
    return FittedRules(rules, {"aspects": summaries} if summaries else {})


def _fit(
    recipe: Recipe, rules: MiningRules, corpus: Corpus, inputs: MiningInputs, *, mode: str, reporter: Reporter
) -> FittedRules:
    places = _band_keys(rules)
    if not places:
        return FittedRules(rules, {})
    own = {rule.name: rule for rule in rules.rules if rule.name in places}
    data = collect_mining_data(corpus, rules, inputs, MiningOptions())
    # papers of the pool that have text and a vector in the space with bands
    pools = {name: len(data.pool_vectors(rule.vectors).pool) for name, rule in own.items()}
    pool = next(iter(pools.values()))
    refitted = _refitted_rules(recipe, rules, places)
    for name in own.keys() - refitted:
        _check_set_band(own[name], recipe, places[name], pools[name])
    farthest = max(rule.ranks(pool)[1] for rule in own.values())
    written = {name: _format_band(rule) for name, rule in own.items()}
    if not refitted or (mode == "fit" and farthest <= LARGE_POOL_SHARE * pool):
        mode = "recipe"
    elif mode == "fit":
        mode = "auto"
    if mode == "recipe":
        summary: dict[str, Any] = {"how": AS_WRITTEN, "pool": pool, "bands": written}
    else:
        rules, why = (
            _scale_bands(rules, refitted, pool)
            if mode == "share"
            else _choose_bands(recipe, rules, refitted, corpus, inputs)
        )
        bands = {rule.name: _format_band(rule) for rule in rules.rules if rule.name in places}
        summary = {"how": mode, "pool": pool, "written": written, "bands": bands, "why": why}
    reporter.say(describe_bands(summary))
    return FittedRules(rules, summary)


def _check_set_band(rule: Rule, recipe: Recipe, key: str, pool: int) -> None:
    """Refuse a band that is never refitted and ends beyond the pool."""
    high = rule.ranks(pool)[1]
    if high >= pool:
        change = f"change or leave out --set {key}=..." if recipe.is_set(key) else f"change {key} in {recipe.name}"
        raise UserError(
            f"rule {rule.name!r}: its band is set and ends at rank {high:,}, but the pool has {pool:,} papers with text and "
            f"a vector, so the largest possible rank is {pool - 1:,}; {change}"
        )


def describe_bands(summary: Mapping[str, Any]) -> str:
    """Describe the rank bands of a run in one line.

    >>> describe_bands({"how": "share", "pool": 300, "written": {"hard": 4000}, "bands": {"hard": 9}, "why": "because"})
    'bands: hard at rank 9 and not 4000, in a pool of 300 papers: because'
    """
    if "aspects" in summary:
        return "\n".join(f"{aspect}: {describe_bands(each)}" for aspect, each in summary["aspects"].items())
    why = summary.get("why", summary["how"])
    return f"bands: {_describe_ranks(summary)}, in a pool of {summary['pool']:,} papers: {why}"


def bands_as_facts(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the rank bands of a run as facts for a model's card, each a sentence; one per aspect if they differ.

    >>> bands_as_facts({"how": "auto", "pool": 1912, "written": {"hard": 4000}, "bands": {"hard": 185}, "why": "because"})
    {'rank bands': 'Rank bands fitted to this corpus of 1,912 papers: hard at rank 185 and not 4000.'}
    """
    if "aspects" in summary:
        return {
            f"rank bands of {aspect}": _band_sentence(f"Rank bands of {aspect}", each)
            for aspect, each in summary["aspects"].items()
        }
    return {"rank bands": _band_sentence("Rank bands", summary)} if summary else {}


def _band_sentence(subject: str, summary: Mapping[str, Any]) -> str:
    how = "fitted to this corpus" if "written" in summary else "as written, in this corpus"
    return f"{subject} {how} of {summary['pool']:,} papers: {_describe_ranks(summary)}."


def _describe_ranks(summary: Mapping[str, Any]) -> str:
    """List the bands of a run by rule; where some were fitted, say which changed and which are as set.

    >>> _describe_ranks({"written": {"positives": 25, "hard": 90}, "bands": {"positives": 7, "hard": 90}})
    'positives at rank 7 and not 25, hard at rank 90 as set'
    """
    written = summary.get("written", {})
    changes = {
        name: "" if name not in written else " as set" if written[name] == band else f" and not {written[name]}"
        for name, band in summary["bands"].items()
    }
    return ", ".join(f"{name} at rank {band}{changes[name]}" for name, band in summary["bands"].items())


def _band_keys(rules: MiningRules) -> dict[str, str]:
    """Map the rules with rank bands to the recipe keys that hold the bands; mixtures keep theirs."""
    keys = {}
    for side, own in (("positives", rules.positives), ("negatives", rules.negatives)):
        for rule in own:
            if rule.source == "neighbors":
                keys[rule.name] = f"mining.{side}.band" if rule.name == side else f"mining.{side}.{rule.name}.band"
    return keys


def _refitted_rules(recipe: Recipe, rules: MiningRules, places: dict[str, str]) -> set[str]:
    """List the rules with published bands, which may be refitted: neither overridden nor from the user's own file."""
    free = {name for name, key in places.items() if not recipe.is_set(key)}
    if recipe.name in shipped_recipes():
        return free
    base = next((name for name in recipe.bases if name in shipped_recipes()), "")
    known = parse_rules(load_recipe(base).table("mining")).rules if base else ()
    published = {rule.name: rule.band for rule in known}
    return {rule.name for rule in rules.rules if rule.name in free and published.get(rule.name) == rule.band}


def _format_band(rule: Rule) -> Any:
    return list(rule.band) if isinstance(rule.band, tuple) else rule.band


def _scale_bands(rules: MiningRules, refitted: set[str], pool: int) -> tuple[MiningRules, str]:
    scale = pool / PUBLISHED_POOL
    ranks = {rule.name: scale * rule.ranks(pool)[1] for rule in rules.rules if rule.name in refitted}
    why = f"the same share as in a pool of {PUBLISHED_POOL:,}, as near as counts allow"
    return _move_bands(rules, ranks, pool), why


def _choose_bands(
    recipe: Recipe, rules: MiningRules, refitted: set[str], corpus: Corpus, inputs: MiningInputs
) -> tuple[MiningRules, str]:
    chosen = choose_bands_for_rules(corpus, rules, inputs)
    root = parse_rules(load_recipe(recipe.bases[-1]).table("mining")) if recipe.bases else rules
    written = {rule.name: rule.ranks(chosen.pool)[1] for rule in root.rules if rule.source == "neighbors"}
    positives = {rule.name for rule in rules.positives}
    ranks = {}
    for rule in rules.rules:
        if rule.name in refitted:
            high = rule.ranks(chosen.pool)[1]
            rank = chosen.positive_rank if rule.name in positives else chosen.negative_rank
            ranks[rule.name] = rank * high / written.get(rule.name, high)
    why = "chosen for this corpus, where the written ranks are too far"
    is_part = any(rule.name not in refitted for rule in rules.rules if rule.source == "neighbors")
    why = f"what is not set is {why}" if is_part else f"{why}; {chosen}"
    return _move_bands(rules, ranks, chosen.pool), why


def _move_bands(rules: MiningRules, ranks: dict[str, float], pool: int) -> MiningRules:
    """Return the rules with their bands moved to these ranks, negatives beyond all positives."""
    positives = tuple(_move_band(rule, ranks, 0, pool) for rule in rules.positives)
    low = max((rule.ranks(pool)[1] for rule in positives if rule.source == "neighbors"), default=0)
    negatives = tuple(_move_band(rule, ranks, low, pool) for rule in rules.negatives)
    return dataclasses.replace(rules, positives=positives, negatives=negatives)


def _move_band(rule: Rule, ranks: dict[str, float], low: int, pool: int) -> Rule:
    if rule.name not in ranks:
        return rule
    high = min(max(round(ranks[rule.name]), low + rule.count), pool - 1)
    if not isinstance(rule.band, tuple):
        return dataclasses.replace(rule, band=high)
    old_low, old_high = rule.ranks(PUBLISHED_POOL)
    start = max(low, min(round(high * old_low / old_high), high - rule.count))
    return dataclasses.replace(rule, band=(start, high))
