"""Apply mining rules to a block of anchors: candidates, exclusions, the draw, and unmet rule counts.

    run = TaskRun(rules, data, number=0, name="", anchors=None)
    units, pairs = run.units()
    mine_block(run, units[:16_384], pairs)        bytes: the block of samples, as its file holds it

A pure function of the mining data, the rules and the anchors. Two rules never select the same paper for one sample, so
no paper is both positive and negative to one anchor in one sample. Knows no files and no workers: `mine.py` does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.hash_keys import mix_keys
from citeweave.core.ragged import count_owners, to_offsets
from citeweave.corpus.corpus import Corpus
from citeweave.mining.draw import (
    CandidateLists,
    choose_candidates,
    derive_salt,
    drop_forbidden,
    empty_lists,
    filter_entries,
    join_lists,
    repeat_to,
    share_a_value,
    shuffle,
    take_first,
)
from citeweave.mining.inputs import MiningData
from citeweave.mining.rules import MISCELLANEOUS, OF_ASPECT, SHARES, VECTOR_SOURCES, MiningRules, Rule
from citeweave.mining.samples import MiningCounts, Picks, SampleBlock, encode_part, new_block
from citeweave.mining.sources import (
    AnchorBlock,
    CocitedPairs,
    collect_cocited_pairs,
    excluded_papers,
    random_papers,
    related_papers,
    shared_papers,
    table_papers,
)
from citeweave.mining.vector_sources import (
    RankedNeighbors,
    anchor_similarities,
    beyond_neighbors,
    cell_papers,
    rank_neighbors,
    similar_papers,
    sort_by_similarity,
)

SAME_SENTENCE = "same sentence"
"""The rule name of a positive that is cited in the same sentence as its anchor."""

NO_VECTOR = "no vector, such as a paper without citations"

_SOURCES: dict[str, Callable[[Rule, AnchorBlock], CandidateLists]] = {
    "table": table_papers,
    "similar": similar_papers,
}
"""Other sources: those in `_DRAWN` and `neighbors`, which need more than rule and block; all signals."""

_DRAWN = ("random", SHARES, "cells")
"""Sources that draw no more candidates than the rule needs."""


@dataclass
class _AspectSelection:
    """The papers that rules selected in one aspect for all anchors of a block, and why anchors are unusable."""

    aspect: str
    picks: dict[str, CandidateLists]
    usable: NDArray[np.bool_]
    has_positive: NDArray[np.bool_]
    reasons: list[tuple[str, NDArray[np.bool_]]]


def rule_names(rules: MiningRules) -> tuple[str, ...]:
    """Return the rule names that selected papers refer to by number."""
    first = (SAME_SENTENCE,) if rules.anchors_per == "contexts" else ()
    return (*first, *(rule.name for rule in rules.rules))


def apply_rules(rules: MiningRules, block: AnchorBlock, *, task: int = 0) -> tuple[SampleBlock, MiningCounts]:
    """Apply mining rules to a block of anchors: return its samples, sorted by anchor and aspect, and counts."""
    aspects = rules.aspects or ("",)
    ranked = _rank_bands([rule for rule in rules.rules if rule.vectors != OF_ASPECT], block)
    groups = []
    for aspect in aspects:
        own = dataclasses.replace(block, aspect=aspect, aspects=rules.aspects)
        aspect_rules = [rule.for_aspect(aspect) for rule in rules.rules if _ranks_by_aspect(rule, aspect)]
        of_aspect = _rank_bands(aspect_rules, own)
        both = RankedNeighbors({**ranked.bands, **of_aspect.bands}, {**ranked.ends, **of_aspect.ends})
        groups.append(_select(rules.for_aspect(aspect), own, both))
    usable = np.stack([group.usable for group in groups])  # (aspects, anchors)
    counts = MiningCounts()
    for group in groups if rules.aspects else ():
        own_counts = MiningCounts()
        _count_reasons(group, group.usable, own_counts)
        counts.aspects[group.aspect] = own_counts.skipped
    if rules.every_aspect:
        needed = [group.has_positive for group in groups if group.aspect != MISCELLANEOUS]
        missing = ~np.logical_and.reduce([np.ones(len(block.anchors), bool), *needed])  # (anchors,)
        counts.skip("no positive in some aspect", int(missing.sum()))
        usable &= ~missing
        none_left = ~missing & ~usable.any(axis=0)
        counts.skip("no negative", int(none_left.sum()))
        counts.used = int((~missing & ~none_left).sum())
    else:
        used = np.asarray(usable.any(axis=0))
        counts.used = int(used.sum())
        counts.skip("no positive", _count_reasons(groups[0], used, counts))
    return _assemble(rules, groups, usable, block, counts, task), counts


def _ranks_by_aspect(rule: Rule, aspect: str) -> bool:
    """Whether a rule ranks neighbors by the node vectors of this aspect."""
    return rule.source == "neighbors" and rule.vectors == OF_ASPECT and aspect not in rule.not_for


def _rank_bands(rules: list[Rule], block: AnchorBlock) -> RankedNeighbors:
    """Search the rank bands of the rules with source neighbors."""
    by_rank = [rule for rule in rules if rule.source == "neighbors"]
    return rank_neighbors(by_rank, block) if by_rank else RankedNeighbors({}, {})


def _count_reasons(group: _AspectSelection, used: NDArray[np.bool_], counts: MiningCounts) -> int:
    """Count the anchors without a sample by the first reason of an aspect; return how many have none there."""
    left = ~used
    for reason, where in group.reasons:
        counts.skip(reason, int((where & left).sum()))
        left = left & ~where
    return int(left.sum())


def _select(rules: MiningRules, block: AnchorBlock, ranked: RankedNeighbors) -> _AspectSelection:
    """Select papers by every rule of one aspect, positives first."""
    anchors = len(block.anchors)
    usable, has_positive = np.ones(anchors, bool), np.ones(anchors, bool)
    reasons = [(NO_VECTOR, ~_has_vectors(rules, block))]
    picks: dict[str, CandidateLists] = {} if block.known_positives is None else {SAME_SENTENCE: block.known_positives}
    candidates = [empty_lists(anchors), *picks.values()]
    for side in (rules.positives, rules.negatives):
        active = [rule for rule in side if block.aspect not in rule.not_for]
        for rule in active:
            chosen = join_lists(empty_lists(anchors), *picks.values())
            available = _candidates(rule, block, ranked, chosen, candidates)
            if side is rules.positives:
                candidates.append(available)
            if rule.below_positive:
                names = {SAME_SENTENCE, *(positive.name for positive in rules.positives)}
                positives = join_lists(empty_lists(anchors), *(lists for name, lists in picks.items() if name in names))
                available = _below_positives(rule, available, positives, block)
            picks[rule.name] = _take(rule, available, block, chosen)
            short = picks[rule.name].counts() < rule.count
            if rule.if_too_few == "skip":
                reasons.append((f"fewer than {rule.count} by rule {rule.name!r}", short))
                usable &= ~short
        counts = sum((picks[rule.name].counts() for rule in active), np.zeros(anchors, np.int64))
        if active:
            what = "positive" if side is rules.positives else "negative"
            reasons.append((f"no {what}", counts == 0))
            usable &= counts > 0
        if side is rules.positives:
            has_positive = usable.copy()
    return _AspectSelection(block.aspect, picks, usable, has_positive, reasons)


def _has_vectors(rules: MiningRules, block: AnchorBlock) -> NDArray[np.bool_]:
    """Return which anchors have the vectors that all positive rules rank by."""
    complete = np.ones(len(block.anchors), bool)
    for rule in rules.positives:
        if rule.source in VECTOR_SOURCES:
            complete &= block.data.pool_vectors(rule.vectors).row_of[block.anchors] >= 0
    return complete


def _candidates(
    rule: Rule, block: AnchorBlock, ranked: RankedNeighbors, chosen: CandidateLists, positives: list[CandidateLists]
) -> CandidateLists:
    """Return all candidates of a rule after its exclusions; of papers with shared metadata only as many as it needs."""
    nodes = len(block.data.corpus)
    forbidden = join_lists(chosen, excluded_papers(rule, block, join_lists(*positives)))
    beyond = "neighbors" in rule.exclude
    if rule.source in ("random", "sorted_random"):
        return _random_candidates(rule, block, ranked, forbidden, beyond=beyond)
    if rule.source == SHARES:
        lists = shared_papers(rule, block, forbidden, _salt(rule, block))
        return beyond_neighbors(lists, block, ranked) if beyond else lists
    if rule.source == "neighbors":
        lists = ranked.bands[rule.name]
    elif rule.source == "cells":
        lists = cell_papers(rule, block, forbidden, _salt(rule, block))
    else:
        lists = _SOURCES.get(rule.source, related_papers)(rule, block)
    lists = drop_forbidden(lists, forbidden, nodes)
    if rule.excluded_relations:
        shared = block.data.shared_metadata(rule.excluded_relations)
        lists = filter_entries(lists, ~share_a_value(shared, block.anchors[lists.owners()], lists.rows))
    return beyond_neighbors(lists, block, ranked) if beyond else lists


def _random_candidates(
    rule: Rule, block: AnchorBlock, ranked: RankedNeighbors, forbidden: CandidateLists, *, beyond: bool
) -> CandidateLists:
    """Draw random candidates of a rule, more and more until enough are left beyond the neighbors."""
    salt = _salt(rule, block)
    size = rule.candidates if rule.source == "sorted_random" else rule.count
    number = size
    while True:
        lists = random_papers(rule, block, forbidden, number, salt)
        exhausted = number >= len(block.data.pool)
        if beyond:
            short = lists.counts() < number
            lists = take_first(beyond_neighbors(lists, block, ranked), size)
            exhausted = exhausted or bool((short | (lists.counts() >= size)).all())
        if not beyond or exhausted:
            return sort_by_similarity(rule, lists, block) if rule.source == "sorted_random" else lists
        number = min(4 * number + 16, len(block.data.pool))


def _below_positives(
    rule: Rule, lists: CandidateLists, positives: CandidateLists, block: AnchorBlock
) -> CandidateLists:
    """Leave out candidates that are nearly as similar as the anchor's least similar positive (Moreira et al., 2024)."""
    vectors = block.data.pool_vectors(rule.vectors)
    lowest = np.full(len(block.anchors), np.inf)
    np.fmin.at(lowest, positives.owners(), anchor_similarities(positives, block, vectors))
    own = anchor_similarities(lists, block, vectors)
    return filter_entries(lists, own <= rule.below_positive * lowest[lists.owners()])


def _salt(rule: Rule, block: AnchorBlock, *purpose: str) -> np.uint64:
    """Return the salt of a rule's draws, which depend on seed, task, rule and aspect beside the anchor."""
    task = (block.task,) if block.task else ()
    return derive_salt(block.data.seed, "mining", *task, rule.name, block.aspect, *purpose)


def _take(rule: Rule, lists: CandidateLists, block: AnchorBlock, chosen: CandidateLists) -> CandidateLists:
    """Select `count` of a rule's candidates; where there are fewer, do what the rule's `if_too_few` says."""
    nodes = len(block.data.corpus)
    salt = _salt(rule, block)
    if rule.source in _DRAWN:
        taken = take_first(lists, rule.count)
    else:
        taken = choose_candidates(lists, block.keys, rule.count, rule.order, salt)
    if rule.if_too_few == "repeat":
        return repeat_to(taken, rule.count)
    if rule.if_too_few == "random" and (taken.counts() < rule.count).any():
        forbidden = join_lists(chosen, taken, excluded_papers(rule, block, empty_lists(len(block.anchors))))
        fill = random_papers(rule, block, forbidden, rule.count, _salt(rule, block, "fill"))
        taken = take_first(join_lists(taken, drop_forbidden(fill, taken, nodes)), rule.count)
    return taken


def _assemble(
    rules: MiningRules,
    groups: list[_AspectSelection],
    usable: NDArray[np.bool_],
    block: AnchorBlock,
    counts: MiningCounts,
    task: int,
) -> SampleBlock:
    """Assemble one sample for each usable (anchor, aspect), sorted by both, and count what each rule selected."""
    at_anchor, at_aspect = np.nonzero(usable.T)
    names = rule_names(rules)
    sides = []
    for side, label in ((rules.positives, "positives"), (rules.negatives, "negatives")):
        parts = []
        if label == "positives" and block.known_positives is not None:
            parts.append((0, 0, _only_usable(block.known_positives, usable[0])))
        for number, group in enumerate(groups):
            for rule in side:
                if rule.name not in group.picks:
                    continue
                selected = _only_usable(group.picks[rule.name], usable[number])
                counts.asked[rule.name] = counts.asked.get(rule.name, 0) + rule.count * int(usable[number].sum())
                counts.got[rule.name] = counts.got.get(rule.name, 0) + len(selected.rows)
                parts.append((number, names.index(rule.name), selected))
        sides.append(_mix_picks(parts, block, len(groups), usable, label))
    plain = new_block(block.anchors[at_anchor], sides[0], sides[1])
    return dataclasses.replace(plain, aspects=at_aspect.astype(np.uint8), tasks=np.full(len(plain), task, np.uint8))


def _only_usable(lists: CandidateLists, usable: NDArray[np.bool_]) -> CandidateLists:
    """Return the candidate lists of the usable anchors only."""
    return filter_entries(lists, usable[lists.owners()])


def _mix_picks(
    parts: list[tuple[int, int, CandidateLists]],
    block: AnchorBlock,
    aspects: int,
    usable: NDArray[np.bool_],
    label: str,
) -> Picks:
    """Join the papers selected by all rules into one shuffled list per sample, so that pairing favors no rule."""
    number = len(block.anchors) * aspects
    owner = np.concatenate([np.zeros(0, np.int64), *(lists.owners() * aspects + aspect for aspect, _, lists in parts)])
    rows = np.concatenate([np.zeros(0, np.int32), *(lists.rows for _, _, lists in parts)])
    scores = np.concatenate([np.zeros(0, np.float32), *(lists.scores for _, _, lists in parts)])
    rule = np.concatenate([np.zeros(0, np.uint8), *(np.full(len(lists.rows), r, np.uint8) for _, r, lists in parts)])
    order = np.argsort(owner, kind="stable")
    ragged = CandidateLists(count_owners(owner, number), rows[order], scores[order])
    salt = derive_salt(block.data.seed, "mining", "mix", label)
    mixed = order[shuffle(ragged, np.repeat(block.keys, aspects), salt)]
    samples = usable.T.ravel()  # (anchors * aspects,)
    return Picks(to_offsets(ragged.counts()[samples]), rows[mixed], rule[mixed], scores[mixed])


# One task of a mining run.


@dataclass
class TaskRun:
    """One task whose rules are applied to anchors: its rules, its anchors, and the counts and parts it has produced."""

    rules: MiningRules
    data: MiningData
    number: int
    name: str
    anchors: NDArray[np.int64] | None
    """Rows that may be anchors; None = all of the pool."""

    before: Corpus | None = None
    counts: MiningCounts = field(default_factory=MiningCounts)
    parts: list[Path] = field(default_factory=list)
    samples: int = 0
    contexts: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name of the mining task for progress messages."""
        return f"mining {self.name}".strip()

    def units(self) -> tuple[NDArray[np.int64], CocitedPairs | None]:
        """Return the anchors to apply a task's rules to, in order, or numbers of pairs and the pairs if from contexts."""
        data, rules = self.data, self.rules
        if rules.anchors_per == "contexts":
            pairs = collect_cocited_pairs(data.corpus, data.in_pool, rules.contexts, seed=data.seed, before=self.before)
            self.contexts = {"contexts kept": pairs.kept, "contexts rejected": pairs.rejected}
            keep = np.arange(len(pairs.anchors))
            if self.anchors is not None:
                keep = np.flatnonzero(np.isin(pairs.anchors, self.anchors))
            self.counts.skip("anchor was not asked for", len(pairs.anchors) - len(keep))
            return self._draw(keep), pairs
        if self.anchors is None:
            anchors = data.pool.astype(np.int64)
            self.counts.skip("no text", data.max_pool_size - len(anchors))
        else:
            anchors = self.anchors[data.has_text[self.anchors]]
            self.counts.skip("no text", len(self.anchors) - len(anchors))
        return self._draw(anchors), None

    def _draw(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draw as many anchors as mining.anchors says, by key and in ascending order, and count the others."""
        units, count = np.sort(units), self.rules.anchors
        if not count or count >= len(units):
            return units
        salt = np.full(len(units), derive_salt(self.data.seed, "mining", "anchors"), np.uint64)
        order = np.argsort(mix_keys(units.astype(np.uint64), salt), kind="stable")
        self.counts.skip("not drawn: mining.anchors has a number", len(units) - count)
        return np.sort(units[order[:count]])


def mine_block(run: TaskRun, units: NDArray[np.int64], pairs: CocitedPairs | None) -> bytes:
    """Apply the rules of a task to a block of anchors, or pairs; return the mined samples as the bytes of a file."""
    if pairs is None:
        return encode_part(*apply_rules(run.rules, AnchorBlock(units, run.data, task=run.name), task=run.number))
    context_counts = pairs.lengths()[units].astype(np.float32)
    positives = CandidateLists(np.arange(len(units) + 1, dtype=np.int64), pairs.positives[units], context_counts)
    anchors = pairs.anchors[units].astype(np.int64)
    anchor_block = AnchorBlock(anchors, run.data, task=run.name, known_positives=positives)
    block, counts = apply_rules(run.rules, anchor_block, task=run.number)
    return encode_part(_with_contexts(block, units, pairs), counts)


def _with_contexts(block: SampleBlock, units: NDArray[np.int64], pairs: CocitedPairs) -> SampleBlock:
    """Add the citing sentences of each pair to its sample; samples keep the order of their pairs."""
    number_of = {(int(pairs.anchors[unit]), int(pairs.positives[unit])): int(unit) for unit in units}
    numbers = [number_of[int(anchor), int(block.positives.of(i)[0])] for i, anchor in enumerate(block.anchors)]
    used = np.array(numbers, np.int64)
    contexts = pairs.contexts[pairs.places(used)]
    return dataclasses.replace(block, context_offsets=to_offsets(pairs.lengths()[used]), contexts=contexts)
