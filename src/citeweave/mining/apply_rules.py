"""Following the rules for one block of anchors: candidates, what is excluded, the draw, and what fell short.

A pure function of the material, the rules and the anchors. Two rules never choose the same paper for one
sample, so no paper is both positive and negative to one anchor in one sample.

One task of a mining run: which anchors it has, and the samples of a block of them.

    run = TaskRun(rules, material, number=0, name="", asked=None)
    units, pairs = run.units()
    mine_block(run, units[:16_384], pairs)        bytes: the part of a run, as its file holds it

Knows no files and no workers: `mine.py` and `remote.py` do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.randomness import mix
from citeweave.corpus.corpus import Corpus
from citeweave.mining.blocks import Shortfall, part_bytes
from citeweave.mining.draw import (
    CandidateLists,
    choose_from,
    first_of,
    join_lists,
    keep_entries,
    no_lists,
    repeat_to,
    salt_of,
    shuffle,
    without,
)
from citeweave.mining.mining_data import MiningData
from citeweave.mining.rules import MISCELLANEOUS, OF_ASPECT, SHARES, VECTOR_SOURCES, MiningRules, Rule
from citeweave.mining.samples import Picks, SampleBlock
from citeweave.mining.shared_metadata import shares_any
from citeweave.mining.sources import (
    AnchorBlock,
    CocitedPairs,
    cocited_pairs,
    excluded_papers,
    random_papers,
    related_papers,
    shared_papers,
    table_papers,
)
from citeweave.mining.vector_sources import (
    RankedNeighbors,
    beyond_neighbors,
    cell_papers,
    rank_neighbors,
    similar_papers,
    similarities,
    sort_by_similarity,
)

GIVEN = "same sentence"
"""The name under which a positive cited in the same sentence as its anchor is kept."""

NO_VECTOR = "no vector, such as a paper without citations"

_SOURCES: dict[str, Callable[[Rule, AnchorBlock], CandidateLists]] = {
    "table": table_papers,
    "similar": similar_papers,
    "cells": cell_papers,
}
"""Beside these: `random`, `sorted_random`, `shares` and `neighbors`, which need more than rule and block, and all signals."""


@dataclass
class _Group:
    """The picks of one aspect for all anchors of the block."""

    aspect: str
    picks: dict[str, CandidateLists]
    usable: NDArray[np.bool_]
    has_positive: NDArray[np.bool_]
    reasons: list[tuple[str, NDArray[np.bool_]]]


def rule_names(rules: MiningRules) -> tuple[str, ...]:
    """The names that picks refer to by number."""
    given = (GIVEN,) if rules.anchors_per == "contexts" else ()
    return (*given, *(rule.name for rule in rules.rules))


def follow(rules: MiningRules, block: AnchorBlock, *, task: int = 0) -> tuple[SampleBlock, Shortfall]:
    """The samples of a block, sorted by anchor and aspect, and the account of them."""
    aspects = rules.aspects or ("",)
    ranked = _rank([rule for rule in rules.rules if rule.vectors != OF_ASPECT], block)
    groups = []
    for aspect in aspects:
        own = dataclasses.replace(block, aspect=aspect, aspects=rules.aspects)
        of_aspect = _rank([rule.for_aspect(aspect) for rule in rules.rules if _by_graph_of(rule, aspect)], own)
        both = RankedNeighbors({**ranked.bands, **of_aspect.bands}, {**ranked.ends, **of_aspect.ends})
        groups.append(_choose(rules.for_aspect(aspect), own, both))
    usable = np.stack([group.usable for group in groups])  # (aspects, anchors)
    account = Shortfall()
    if rules.aspects:
        account.aspects = {group.aspect: _reasons(group) for group in groups}
    if rules.every_aspect:
        needed = [group.has_positive for group in groups if group.aspect != MISCELLANEOUS]
        missing = ~np.logical_and.reduce([np.ones(len(block.anchors), bool), *needed])  # (anchors,)
        account.skip("no positive in some aspect", int(missing.sum()))
        usable &= ~missing
        none_left = ~missing & ~usable.any(axis=0)
        account.skip("no negative", int(none_left.sum()))
        account.used = int((~missing & ~none_left).sum())
    else:
        _count_skipped(groups, np.asarray(usable.any(axis=0)), account)
    return _assemble(rules, groups, usable, block, account, task), account


def _by_graph_of(rule: Rule, aspect: str) -> bool:
    return rule.source == "neighbors" and rule.vectors == OF_ASPECT and aspect not in rule.not_for


def _rank(rules: list[Rule], block: AnchorBlock) -> RankedNeighbors:
    by_rank = [rule for rule in rules if rule.source == "neighbors"]
    return rank_neighbors(by_rank, block) if by_rank else RankedNeighbors({}, {})


def _reasons(group: _Group) -> dict[str, int]:
    """Anchors without a sample in one aspect, each counted once by its first reason."""
    left, found = ~group.usable, Shortfall()
    for reason, where in group.reasons:
        found.skip(reason, int((where & left).sum()))
        left = left & ~where
    return found.skipped


def _count_skipped(groups: list[_Group], used: NDArray[np.bool_], account: Shortfall) -> None:
    """Count each unused anchor once, by the first reason of the first aspect."""
    account.used = int(used.sum())
    left = ~used
    for reason, where in groups[0].reasons:
        account.skip(reason, int((where & left).sum()))
        left = left & ~where
    account.skip("no positive", int(left.sum()))


def _choose(rules: MiningRules, block: AnchorBlock, ranked: RankedNeighbors) -> _Group:
    anchors = len(block.anchors)
    usable, has_positive = np.ones(anchors, bool), np.ones(anchors, bool)
    reasons = [(NO_VECTOR, ~_has_vectors(rules, block))]
    picks: dict[str, CandidateLists] = {} if block.given is None else {GIVEN: block.given}
    candidates = [no_lists(anchors), *picks.values()]
    for side in (rules.positives, rules.negatives):
        active = [rule for rule in side if block.aspect not in rule.not_for]
        for rule in active:
            chosen = join_lists(no_lists(anchors), *picks.values())
            found = _candidates(rule, block, ranked, chosen, candidates)
            if side is rules.positives:
                candidates.append(found)
            if rule.below_positive:
                above = {GIVEN, *(positive.name for positive in rules.positives)}
                positives = join_lists(no_lists(anchors), *(lists for name, lists in picks.items() if name in above))
                found = _below_positives(rule, found, positives, block)
            picks[rule.name] = _take(rule, found, block, chosen)
            short = picks[rule.name].counts() < rule.count
            if rule.few == "skip":
                reasons.append((f"fewer than {rule.count} by rule {rule.name!r}", short))
                usable &= ~short
        counts = sum((picks[rule.name].counts() for rule in active), np.zeros(anchors, np.int64))
        if active:
            what = "positive" if side is rules.positives else "negative"
            reasons.append((f"no {what}", counts == 0))
            usable &= counts > 0
        if side is rules.positives:
            has_positive = usable.copy()
    return _Group(block.aspect, picks, usable, has_positive, reasons)


def _has_vectors(rules: MiningRules, block: AnchorBlock) -> NDArray[np.bool_]:
    """Which anchors have the vectors that all positive rules rank by."""
    here = np.ones(len(block.anchors), bool)
    for rule in rules.positives:
        if rule.source in VECTOR_SOURCES:
            here &= block.material.tied(rule.vectors).row_of[block.anchors] >= 0
    return here


def _candidates(
    rule: Rule, block: AnchorBlock, ranked: RankedNeighbors, chosen: CandidateLists, positives: list[CandidateLists]
) -> CandidateLists:
    """All that the rule may choose from; of shared papers only what it chooses."""
    nodes = len(block.material.corpus)
    forbidden = join_lists(chosen, excluded_papers(rule, block, join_lists(*positives)))
    beyond = "neighbors" in rule.exclude
    if rule.source in ("random", "sorted_random"):
        return _random_candidates(rule, block, ranked, forbidden, beyond=beyond)
    if rule.source == SHARES:
        found = shared_papers(rule, block, forbidden, _salt(rule, block))
        return beyond_neighbors(found, block, ranked) if beyond else found
    if rule.source == "neighbors":
        found = ranked.bands[rule.name]
    else:
        found = _SOURCES.get(rule.source, related_papers)(rule, block)
    found = without(found, forbidden, nodes)
    if rule.unshared:
        owners = block.anchors[found.owners()]
        found = keep_entries(found, ~shares_any(block.material.sharing(rule.unshared), owners, found.rows))
    return beyond_neighbors(found, block, ranked) if beyond else found


def _random_candidates(
    rule: Rule, block: AnchorBlock, ranked: RankedNeighbors, forbidden: CandidateLists, *, beyond: bool
) -> CandidateLists:
    """Random papers, more and more of them until enough are left beyond the neighbors."""
    salt = _salt(rule, block)
    wanted = rule.candidates if rule.source == "sorted_random" else rule.count
    number = wanted
    while True:
        found = random_papers(rule, block, forbidden, number, salt)
        exhausted = number >= len(block.material.pool)
        if beyond:
            full = found.counts() < number
            found = first_of(beyond_neighbors(found, block, ranked), wanted)
            exhausted = exhausted or bool((full | (found.counts() >= wanted)).all())
        if not beyond or exhausted:
            return sort_by_similarity(rule, found, block) if rule.source == "sorted_random" else found
        number = min(4 * number + 16, len(block.material.pool))


def _below_positives(
    rule: Rule, found: CandidateLists, positives: CandidateLists, block: AnchorBlock
) -> CandidateLists:
    """Leave out candidates that are nearly as similar as the anchor's least similar positive (Moreira et al., 2024)."""
    vectors = block.material.tied(rule.vectors)
    least = np.full(len(block.anchors), np.inf)
    scores = similarities(positives, block, vectors)
    np.fmin.at(least, positives.owners(), scores)
    own = similarities(found, block, vectors)
    return keep_entries(found, own <= rule.below_positive * least[found.owners()])


def _salt(rule: Rule, block: AnchorBlock, *purpose: str) -> np.uint64:
    """What the draws of one rule depend on beside the anchor: seed, task, rule and aspect."""
    task = (block.task,) if block.task else ()
    return salt_of(block.material.seed, "mining", *task, rule.name, block.aspect, *purpose)


def _take(rule: Rule, found: CandidateLists, block: AnchorBlock, chosen: CandidateLists) -> CandidateLists:
    """Choose `count` of the candidates, and do what `few` says where there are fewer."""
    nodes = len(block.material.corpus)
    salt = _salt(rule, block)
    if rule.source in ("random", SHARES):
        taken = first_of(found, rule.count)
    else:
        taken = choose_from(found, block.keys, rule.count, rule.order, salt)
    if rule.few == "repeat":
        return repeat_to(taken, rule.count)
    if rule.few == "random" and (taken.counts() < rule.count).any():
        forbidden = join_lists(chosen, taken, excluded_papers(rule, block, no_lists(len(block.anchors))))
        fill = random_papers(rule, block, forbidden, rule.count, _salt(rule, block, "fill"))
        taken = first_of(join_lists(taken, without(fill, taken, nodes)), rule.count)
    return taken


def _assemble(
    rules: MiningRules,
    groups: list[_Group],
    usable: NDArray[np.bool_],
    block: AnchorBlock,
    account: Shortfall,
    task: int,
) -> SampleBlock:
    """One sample for each usable (anchor, aspect), sorted by both."""
    at_anchor, at_aspect = np.nonzero(usable.T)
    names = rule_names(rules)
    sides = []
    for side, label in ((rules.positives, "positives"), (rules.negatives, "negatives")):
        parts = []
        if label == "positives" and block.given is not None:
            parts.append((0, 0, _only(block.given, usable[0])))
        for number, group in enumerate(groups):
            for rule in side:
                if rule.name not in group.picks:
                    continue
                kept = _only(group.picks[rule.name], usable[number])
                account.asked[rule.name] = account.asked.get(rule.name, 0) + rule.count * int(usable[number].sum())
                account.got[rule.name] = account.got.get(rule.name, 0) + len(kept.rows)
                parts.append((number, names.index(rule.name), kept))
        sides.append(_picks(parts, block, len(groups), usable, label))
    samples = len(at_anchor)
    return SampleBlock(
        anchors=block.anchors[at_anchor].astype(np.int32),
        positives=sides[0],
        negatives=sides[1],
        aspects=at_aspect.astype(np.uint8),
        tasks=np.full(samples, task, np.uint8),
        context_offsets=np.zeros(samples + 1, np.int64),
        contexts=np.zeros(0, np.int64),
    )


def _only(lists: CandidateLists, usable: NDArray[np.bool_]) -> CandidateLists:
    return keep_entries(lists, usable[lists.owners()])


def _picks(
    parts: list[tuple[int, int, CandidateLists]],
    block: AnchorBlock,
    aspects: int,
    usable: NDArray[np.bool_],
    label: str,
) -> Picks:
    """All rules' picks as one ragged list a sample, mixed, so that pairing the first with the first favors no rule."""
    number = len(block.anchors) * aspects
    owner = np.concatenate([np.zeros(0, np.int64), *(lists.owners() * aspects + aspect for aspect, _, lists in parts)])
    rows = np.concatenate([np.zeros(0, np.int32), *(lists.rows for _, _, lists in parts)])
    scores = np.concatenate([np.zeros(0, np.float32), *(lists.scores for _, _, lists in parts)])
    rule = np.concatenate([np.zeros(0, np.uint8), *(np.full(len(lists.rows), r, np.uint8) for _, r, lists in parts)])
    order = np.argsort(owner, kind="stable")
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(owner, minlength=number))])
    ragged = CandidateLists(offsets, rows[order], scores[order])
    salt = salt_of(block.material.seed, "mining", "mix", label)
    mixed = order[shuffle(ragged, np.repeat(block.keys, aspects), salt)]
    samples = usable.T.ravel()  # (anchors * aspects,)
    kept = np.concatenate([np.zeros(1, np.int64), np.cumsum(ragged.counts()[samples])])
    return Picks(kept, rows[mixed], rule[mixed], scores[mixed])


# One task of a mining run: which anchors it has, and the samples of a block of them.


@dataclass
class TaskRun:
    """One task: its rules followed over all its anchors."""

    rules: MiningRules
    material: MiningData
    number: int
    name: str
    asked: NDArray[np.int64] | None
    before: Corpus | None = None
    account: Shortfall = field(default_factory=Shortfall)
    parts: list[Path] = field(default_factory=list)
    samples: int = 0
    contexts: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"mining {self.name}".strip()

    def units(self) -> tuple[NDArray[np.int64], CocitedPairs | None]:
        """The anchors in order; with the pairs where they come from contexts."""
        material, rules = self.material, self.rules
        if rules.anchors_per == "contexts":
            pairs = cocited_pairs(
                material.corpus, material.in_pool, rules.contexts, seed=material.seed, before=self.before
            )
            self.contexts = {"contexts kept": pairs.kept, "contexts rejected": pairs.rejected}
            keep = np.arange(len(pairs.anchors)) if self.asked is None else np.flatnonzero(np.isin(pairs.anchors, self.asked))  # fmt: skip
            self.account.skip("anchor was not asked for", len(pairs.anchors) - len(keep))
            return self._drawn(keep), pairs
        if self.asked is None:
            anchors = material.pool.astype(np.int64)
            self.account.skip("no text", material.asked_for - len(anchors))
        else:
            anchors = self.asked[material.has_text[self.asked]]
            self.account.skip("no text", len(self.asked) - len(anchors))
        return self._drawn(anchors), None

    def _drawn(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """As many as the rules ask for."""
        drawn = _draw_units(units, self.rules.anchors, self.material.seed)
        self.account.skip("not drawn: mining.anchors has a number", len(units) - len(drawn))
        return drawn


def _draw_units(units: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """All of them, or so many drawn by key, in ascending order."""
    units = np.sort(units)
    if not count or count >= len(units):
        return units
    keys = mix(units.astype(np.uint64), np.full(len(units), salt_of(seed, "mining", "anchors"), np.uint64))
    return np.sort(units[np.argsort(keys, kind="stable")[:count]])


def mine_block(run: TaskRun, units: NDArray[np.int64], pairs: CocitedPairs | None) -> bytes:
    """Follow a task's rules for some of its anchors, or of its pairs: a part as its file holds it."""
    return part_bytes(*_follow_span(run, units, pairs))


def _follow_span(run: TaskRun, units: NDArray[np.int64], pairs: CocitedPairs | None) -> tuple[SampleBlock, Shortfall]:
    if pairs is None:
        return follow(run.rules, AnchorBlock(units, run.material, task=run.name), task=run.number)
    positives = pairs.positives[units]
    given = CandidateLists(
        np.arange(len(units) + 1, dtype=np.int64), positives, np.diff(pairs.offsets)[units].astype(np.float32)
    )
    block, account = follow(
        run.rules,
        AnchorBlock(pairs.anchors[units].astype(np.int64), run.material, task=run.name, given=given),
        task=run.number,
    )
    return _with_contexts(block, units, pairs), account


def _with_contexts(block: SampleBlock, units: NDArray[np.int64], pairs: CocitedPairs) -> SampleBlock:
    """Put the citing sentences of each pair beside its sample; samples keep the order of their pairs."""
    ends = {(int(pairs.anchors[unit]), int(pairs.positives[unit])): int(unit) for unit in units}
    found = [
        ends[int(anchor), int(block.positives.rows[block.positives.offsets[i]])]
        for i, anchor in enumerate(block.anchors)
    ]
    used = np.array(found, np.int64)
    counts = np.diff(pairs.offsets)[used]
    places = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return dataclasses.replace(
        block,
        context_offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
        contexts=pairs.contexts[np.repeat(pairs.offsets[used], counts) + places],
    )
