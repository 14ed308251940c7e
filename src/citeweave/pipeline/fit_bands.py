"""A corpus without the reference lists of some papers: what a model may learn from, where those lists are asked for.

    trained_on = without_references(corpus, held_out_rows(corpus, options), "run/corpus", why="share:0.1, seed 0")

Papers and their rows stay the same, so samples and vectors of one are those of the other; files that do not change are
shared. Citations, references to outside and citing sentences of the given papers are gone, in whatever is made of it.

Rank bands for the corpus at hand: as the recipe writes them where the pool is large enough, else others.

    recipe   as written; ranks beyond the pool are an error
    auto     chosen for the pool: see `mining/bands.py`
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
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import MANIFEST, artifact_matches, new_artifact
from citeweave.core.columns import BLOCK, NumberWriter, TextColumn, TextWriter
from citeweave.core.errors import UserError
from citeweave.core.files import hash_json, link_or_copy
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import CITATION_COLUMNS, KIND, REFERENCE_COLUMNS, VERSION, Corpus
from citeweave.mining.bands import aspect_error, choose_bands_for_rules, restrict_to_aspect, with_aspect_bands
from citeweave.mining.inputs import parse_rules
from citeweave.mining.mine import MiningInputs, MiningOptions, collect_mining_data
from citeweave.mining.rules import MiningRules, Rule
from citeweave.pipeline.recipe import Recipe, load_recipe, shipped_recipes

_CHANGED = ("citations", "contexts", "references_outside", "changes")
_CONTEXT_TEXTS = ("text", "section", "extra")


def without_references(
    corpus: Corpus, held: NDArray[np.bool_], folder: str | Path, *, why: str, overwrite: bool = False
) -> Corpus:
    """Write a corpus without the citations of the held-out papers `held` (papers,); the same call again opens it."""
    folder = Path(folder)
    rows = np.flatnonzero(held)
    recipe = {"of": corpus.hash, "without references of": hash_json(rows.tolist()), "why": why}
    if not artifact_matches(folder, KIND, VERSION, recipe):
        with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
            _share(corpus.folder, writer.folder)
            lost = _write_citations(corpus, held, writer.folder)
            lost["contexts"] = _write_contexts(corpus, held, writer.folder / "contexts")
            writer.facts |= {**corpus.manifest.facts, "held out": {"papers": len(rows), "why": why, **lost}}
            writer.finish()
    return Corpus.open(folder)


def _share(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        if path.is_file() and inside.parts[0] not in (*_CHANGED, MANIFEST) and not inside.parts[0].startswith("."):
            link_or_copy(path, target / inside)


def _write_citations(corpus: Corpus, held: NDArray[np.bool_], folder: Path) -> dict[str, int]:
    """Write the remaining citations and outside references; return how many of each were removed."""
    lost = {}
    columns: dict[str, tuple[dict[str, Any], dict[str, NDArray[Any]]]] = {
        "citations": (CITATION_COLUMNS, {name: _citations(corpus, name) for name in CITATION_COLUMNS}),
        "references_outside": (
            REFERENCE_COLUMNS,
            {name: corpus.references_outside(name) for name in REFERENCE_COLUMNS},
        ),
    }
    for place, (types, values) in columns.items():
        keep = ~held[values["citing"]]  # (citations,)
        lost[place] = int((~keep).sum())
        for name, dtype in types.items():
            _write(folder / place / f"{name}.npy", dtype, values[name][keep])
    return lost


def _citations(corpus: Corpus, name: str) -> NDArray[Any]:
    found: NDArray[Any] = getattr(corpus, "strengths" if name == "strength" else name)
    return found


def _write_contexts(corpus: Corpus, held: NDArray[np.bool_], folder: Path) -> int:
    """Write the remaining contexts, including those of papers outside the corpus; return how many were removed."""
    table = corpus.contexts
    inside = table.citing >= 0
    keep = ~(inside & held[np.where(inside, table.citing, 0)]) if len(held) else ~inside  # (contexts,)
    rows = np.flatnonzero(keep)
    _write(folder / "citing.npy", np.int32, table.citing[rows])
    _write(folder / "citing_key.npy", np.uint64, table.citing_keys[rows])
    _write(folder / "intents.npy", np.uint8, table.intents[rows])
    for name in _CONTEXT_TEXTS:
        column, writer = TextColumn(corpus.folder / "contexts", name), TextWriter(folder, name)
        for start in range(0, len(rows), BLOCK):
            writer.append_bytes(*column.gather(rows[start : start + BLOCK]))
        writer.close()
    for name, values, offsets, dtype in (
        ("cited", table.cited, table.cited_offsets, np.int32),
        ("outside", table.outside, table.outside_offsets, np.uint64),
    ):
        sizes = np.diff(offsets)  # (contexts,)
        _write(folder / f"{name}.npy", dtype, values[np.repeat(keep, sizes)])
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[rows])])
        _write(folder / f"{name}_offsets.npy", np.int64, ends)
    return len(keep) - len(rows)


def _write(path: Path, dtype: Any, values: NDArray[Any]) -> None:
    writer = NumberWriter(path, dtype)
    writer.append(values)
    writer.close()


# Rank bands for the corpus at hand: as the recipe writes them where the pool is large enough, else others.

PUBLISHED_POOL = 680_967
"""Papers among which SciNCL's ranks are (Ostendorff et al., EMNLP 2022, appendix C)."""

LARGE_ENOUGH = 0.05
"""Share of the pool up to which hard negatives are still hard; SciNCL's are at 0.6 %."""


@dataclass(frozen=True, slots=True)
class FittedBands:
    """The mining rules with rank bands fitted to the corpus, and a note on each change."""

    rules: MiningRules
    facts: dict[str, Any]
    """Empty where no rule has a band."""


def fit_bands(
    recipe: Recipe, rules: MiningRules, corpus: Corpus, inputs: MiningInputs, *, how: str, reporter: Reporter = QUIET
) -> FittedBands:
    """Return rules whose rank bands fit the size of the pool; rules on aspect graphs fit the pool of each aspect."""
    if not rules.aspect_graphs or rules.tasks:
        return _fit(recipe, rules, corpus, inputs, how=how, reporter=reporter)
    fitted = {}
    for aspect in rules.aspect_graphs:
        own, apart = rules.for_aspect(aspect), restrict_to_aspect(inputs, aspect)
        try:
            fitted[aspect] = _fit(recipe, own, corpus, apart, how=how, reporter=reporter)
        except UserError as error:
            raise aspect_error(aspect, error) from None
    facts = {aspect: found.facts for aspect, found in fitted.items() if found.facts}
    rules = with_aspect_bands(rules, {aspect: found.rules for aspect, found in fitted.items()})
    return FittedBands(rules, {"aspects": facts} if facts else {})


def _fit(
    recipe: Recipe, rules: MiningRules, corpus: Corpus, inputs: MiningInputs, *, how: str, reporter: Reporter
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
    """Describe the rank bands of a run in one line.

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
    """Map the rules with rank bands to the recipe keys that hold the bands; mixtures keep theirs."""
    found = {}
    for side, own in (("positives", rules.positives), ("negatives", rules.negatives)):
        for rule in own:
            if rule.source == "neighbors":
                found[rule.name] = f"mining.{side}.band" if rule.name == side else f"mining.{side}.{rule.name}.band"
    return found


def _free(recipe: Recipe, rules: MiningRules, places: dict[str, str]) -> set[str]:
    """List the rules with published bands, which may be refitted: neither overridden nor from the user's own file."""
    free = {name for name, key in places.items() if not recipe.is_set(key)}
    if recipe.name in shipped_recipes():
        return free
    base = next((name for name in recipe.bases if name in shipped_recipes()), "")
    known = parse_rules(load_recipe(base).table("mining")).rules if base else ()
    published = {rule.name: rule.band for rule in known}
    return {rule.name for rule in rules.rules if rule.name in free and published.get(rule.name) == rule.band}


def _pool(corpus: Corpus, rules: MiningRules, inputs: MiningInputs) -> int:
    """Return the papers of the pool that have text and a vector in every space with bands."""
    name = next(rule.vectors for rule in rules.rules if rule.source == "neighbors")
    return len(collect_mining_data(corpus, rules, inputs, MiningOptions()).pool_vectors(name).pool)


def _high(rule: Rule, pool: int) -> int:
    return rule.ranks(pool)[1]


def _shown(rule: Rule) -> Any:
    return list(rule.band) if isinstance(rule.band, tuple) else rule.band


def _shares(rules: MiningRules, free: set[str], pool: int) -> tuple[MiningRules, str]:
    scale = pool / PUBLISHED_POOL
    ranks = {rule.name: scale * _high(rule, pool) for rule in rules.rules if rule.name in free}
    return _moved(rules, ranks, pool), f"the same share as in a pool of {PUBLISHED_POOL:,}, as near as counts allow"


def _chosen(
    recipe: Recipe, rules: MiningRules, free: set[str], corpus: Corpus, inputs: MiningInputs
) -> tuple[MiningRules, str]:
    found = choose_bands_for_rules(corpus, rules, inputs)
    root = parse_rules(load_recipe(recipe.bases[-1]).table("mining")) if recipe.bases else rules
    written = {rule.name: _high(rule, found.pool) for rule in root.rules if rule.source == "neighbors"}
    positives = {rule.name for rule in rules.positives}
    ranks = {}
    for rule in rules.rules:
        if rule.name in free:
            high = _high(rule, found.pool)
            rank = found.positive_rank if rule.name in positives else found.negative_rank
            ranks[rule.name] = rank * high / written.get(rule.name, high)
    return _moved(rules, ranks, found.pool), f"chosen for this corpus, where the written ranks are too far; {found}"


def _moved(rules: MiningRules, ranks: dict[str, float], pool: int) -> MiningRules:
    """Return the rules with their bands moved to these ranks, negatives beyond all positives."""
    positives = tuple(_at(rule, ranks, 0, pool) for rule in rules.positives)
    low = max((_high(rule, pool) for rule in positives if rule.source == "neighbors"), default=0)
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
