"""Pairs of papers cited in the same sentence, with the sentences: what ASPIRE trains on.

    "... by matching [3], [7] ..."   in paper 12     ->   pair (3, 7), contexts of it: this sentence

The filters are those of ASPIRE's code (see `rules.ContextFilter`). Each unordered pair is one sample; which of
the two is the anchor is drawn. Aligning sentences through the contexts is a later step.

Sources: one small function for each way to find candidates; all take a block of anchors and give lists.

    cited, cocited, ...   papers related in the graph, restricted to an intent where the rule says so
    table                 pairs with counts from anywhere: co-views, co-reads, SPECTER's data.json
    random                papers of the pool
    shares                papers of the same venue, with a shared author or field: see `sharing_draws.py`
    neighbors, similar, cells, sorted_random      by vectors: see `vector_sources.py`

Candidates are papers of the pool and never the anchor. Choosing among them is `drawing.py`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import BLOCK
from citeweave.core.randomness import mix
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.derived_texts import bracket_reason, repeat_keys, word_reason
from citeweave.corpus.text import sentences
from citeweave.graph.signals import ONE_HOP, Signal, related
from citeweave.mining.draw import (
    CandidateLists,
    draw_from_pool,
    join_lists,
    keep_entries,
    no_lists,
    salt_of,
    without,
)
from citeweave.mining.mining_data import MiningData
from citeweave.mining.rules import (
    MISCELLANEOUS,
    OTHER,
    SAME,
    ContextFilter,
    Rule,
    intent_bits,
    is_relation,
)
from citeweave.mining.shared_metadata import draw_sharers


@dataclass(frozen=True, slots=True)
class CocitedPairs:
    """Pairs cited in one sentence, and the numbers of those sentences."""

    anchors: NDArray[np.int32]
    positives: NDArray[np.int32]
    offsets: NDArray[np.int64]
    """Shape (pairs + 1,): the contexts of each pair."""

    contexts: NDArray[np.int64]
    rejected: dict[str, int]
    """Contexts left out, by reason; papers with another abstract than asked are counted here too."""

    kept: int
    """Contexts that passed every filter."""


def cocited_pairs(
    corpus: Corpus,
    in_pool: NDArray[np.bool_],
    options: ContextFilter,
    *,
    seed: int,
    before: Corpus | None = None,
) -> CocitedPairs:
    """All pairs of pool papers that stand together in a sentence which passes the filters.

    `before` is the corpus before papers left it: what those wrote is left out too.
    """
    rejected: dict[str, int] = {}
    numbers = _usable_contexts(corpus, options, before, rejected)
    table = corpus.contexts
    counts = np.diff(table.cited_offsets)[numbers]
    context = np.repeat(numbers, counts)  # (mentions,)
    place = np.arange(len(context)) - np.repeat(np.cumsum(counts) - counts, counts)
    cited = table.cited[table.cited_offsets[context] + place]
    seen = np.unique(cited[in_pool[cited]])
    fits = np.zeros(len(corpus), bool)
    fits[seen] = _abstracts_fit(corpus, seen, options)
    left = seen[~fits[seen]]
    if len(left):
        rejected["paper: abstract too short, too long or of odd sentences"] = len(left)
    keep = fits[cited]
    first, second, where = _pairs_within(context[keep], cited[keep])
    single = len(numbers) - len(np.unique(where))
    if single:
        rejected["fewer than two papers with text"] = single
    return _group(corpus, first, second, where, options, seed, rejected)


def _usable_contexts(
    corpus: Corpus, options: ContextFilter, before: Corpus | None, rejected: dict[str, int]
) -> NDArray[np.int64]:
    """Contexts that pass the filters on size, words, brackets and repetition; each is rejected for its first reason."""
    table = corpus.contexts
    papers = np.diff(table.cited_offsets) + np.diff(table.outside_offsets)
    numbers = np.flatnonzero((papers >= options.least_papers) & (papers <= options.most_papers))
    few, many = int((papers < options.least_papers).sum()), int((papers > options.most_papers).sum())
    kept: list[int] = []
    keys = [repeat_keys([])]
    reasons = {f"fewer than {options.least_papers} papers cited": few, f"more than {options.most_papers}": many}
    if before is not None:
        known = before.index.rows_of(np.ascontiguousarray(table.citing_keys[numbers])) >= 0
        gone = (table.citing[numbers] < 0) & known  # (contexts,)
        reasons["citing paper left the corpus"] = int(gone.sum())
        numbers = numbers[~gone]
    for start in range(0, len(numbers), BLOCK):
        block, texts = numbers[start : start + BLOCK], []
        for number, text in zip(block.tolist(), table.texts.take(block), strict=True):
            reason = word_reason(text, options.least_words, options.most_words)
            reason = reason or (bracket_reason(text) if options.brackets else "")
            if reason:
                reasons[reason] = reasons.get(reason, 0) + 1
            else:
                kept.append(number)
                texts.append(text)
        keys.append(repeat_keys(texts))
    unique = np.sort(np.unique(np.concatenate(keys), return_index=True)[1])  # the first of each
    reasons["repeats another sentence"] = len(kept) - len(unique)
    rejected |= {reason: number for reason, number in reasons.items() if number}
    return np.array(kept, np.int64)[unique]


def _abstracts_fit(corpus: Corpus, rows: NDArray[np.integer], options: ContextFilter) -> NDArray[np.bool_]:
    fits = [
        abstract_fits(text, options)
        for start in range(0, len(rows), BLOCK)
        for text in corpus.abstracts.take(rows[start : start + BLOCK])
    ]
    return np.array(fits, bool)


def abstract_fits(abstract: str, options: ContextFilter) -> bool:
    """ASPIRE's filter of abstracts: 3 to 20 sentences, none over 80 words, not all of three words or fewer.

    >>> abstract_fits("We study large graphs. We walk on them. It works well.", ContextFilter())
    True
    >>> abstract_fits("One sentence only.", ContextFilter())
    False
    """
    lengths = [len(abstract[start:end].split()) for start, end in sentences(abstract)]
    if not options.least_sentences <= len(lengths) <= options.most_sentences:
        return False
    return max(lengths) <= options.longest_sentence and max(lengths) > 3


def _pairs_within(
    context: NDArray[np.int64], cited: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """All pairs of papers of one context, lower row first; `context` is ascending."""
    firsts, seconds, where = [], [], []
    ends = np.flatnonzero(np.diff(context)) + 1
    starts = np.concatenate([[0], ends]) if len(context) else ends
    sizes = np.diff(np.concatenate([starts, [len(context)]]))
    for size in np.unique(sizes[sizes > 1]).tolist():
        at = starts[sizes == size]  # contexts with so many papers
        for i in range(size):
            for j in range(i + 1, size):
                firsts.append(cited[at + i])
                seconds.append(cited[at + j])
                where.append(context[at])
    if not firsts:
        return np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.int64)
    first, second, numbers = np.concatenate(firsts), np.concatenate(seconds), np.concatenate(where)
    different = first != second
    low, high = np.minimum(first, second)[different], np.maximum(first, second)[different]
    return low, high, numbers[different]


def _group(
    corpus: Corpus,
    first: NDArray[np.int32],
    second: NDArray[np.int32],
    where: NDArray[np.int64],
    options: ContextFilter,
    seed: int,
    rejected: dict[str, int],
) -> CocitedPairs:
    """One entry a pair with at most so many contexts, one of each citing paper, the earliest first."""
    table = corpus.contexts
    # a citing paper outside the corpus is known by the key of its id
    citing = np.where(table.citing[where] >= 0, table.citing[where].astype(np.int64), -1 - (table.citing_keys[where] >> np.uint64(2)).astype(np.int64))  # fmt: skip
    order = np.lexsort([where, citing, second, first])
    first, second, where, citing = first[order], second[order], where[order], citing[order]
    new_pair = np.concatenate([[True], (first[1:] != first[:-1]) | (second[1:] != second[:-1])]) if len(first) else np.zeros(0, bool)  # fmt: skip
    new_paper = new_pair.copy()
    new_paper[1:] |= citing[1:] != citing[:-1]
    keep = new_paper
    pair = np.cumsum(new_pair) - 1
    order = np.lexsort([where[keep], pair[keep]])
    pair, where = pair[keep][order], where[keep][order]
    counts = np.bincount(pair, minlength=int(new_pair.sum()))
    place = np.arange(len(pair)) - np.repeat(np.cumsum(counts) - counts, counts)
    few = place < options.most_contexts
    counts = np.minimum(counts, options.most_contexts)
    low, high = first[new_pair], second[new_pair]
    keys = mix(mix(low.astype(np.uint64), high.astype(np.uint64)), np.full(len(low), salt_of(seed, "mining", "anchor of a pair"), np.uint64))  # fmt: skip
    turned = (keys & np.uint64(1)).astype(bool)
    return CocitedPairs(
        anchors=np.where(turned, high, low).astype(np.int32),
        positives=np.where(turned, low, high).astype(np.int32),
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
        contexts=where[few],
        rejected=rejected,
        kept=len(np.unique(where)),
    )


# Sources: one small function for each way to find candidates; all take a block of anchors and give lists.


@dataclass
class AnchorBlock:
    """Some anchors at a time, with what several rules share."""

    anchors: NDArray[np.int64]
    material: MiningData
    aspect: str = ""
    aspects: tuple[str, ...] = ()
    shared: dict[Signal, CandidateLists] = field(default_factory=dict)
    """Related papers that were found, for every aspect of the same anchors."""

    task: str = ""
    """The source of a mixture that is mined; two of them draw apart."""

    given: CandidateLists | None = None
    """Positives that are known before any rule is followed: the papers cited in the same sentence."""

    @property
    def keys(self) -> NDArray[np.uint64]:
        """What draws depend on: the anchor, and the given positive where there is one."""
        keys = self.anchors.astype(np.uint64)
        return keys if self.given is None else mix(keys, self.given.rows.astype(np.uint64))

    def related(self, signal: Signal) -> CandidateLists:
        """Papers of the pool related to each anchor, found once."""
        if signal not in self.shared:
            relations, workers = self.material.graph(f"source {signal.name}"), self.material.workers
            found = related(relations, signal, self.anchors, workers=workers)
            lists = CandidateLists(found.offsets, found.targets, found.strengths)
            self.shared[signal] = keep_entries(lists, self.material.in_pool[lists.rows])
        return self.shared[signal]


def related_papers(rule: Rule, block: AnchorBlock) -> CandidateLists:
    """Candidates by a signal of the graph."""
    if rule.intent == OTHER:
        return _of_other_aspects(rule, block)
    return block.related(_signal(rule, rule.intent_bits(block.aspect)))


def _of_other_aspects(rule: Rule, block: AnchorBlock) -> CandidateLists:
    """Related by an intent of another aspect and by none of this one; of two hops, both are of such intents.

    Unknown intents prove nothing: by them alone papers are not of another aspect, and a paper that is connected by one
    beside another (the two cite each other) may be of this aspect, so it is left out too.
    """
    bits = 0
    for aspect in block.aspects:
        if aspect not in (block.aspect, MISCELLANEOUS) and not is_relation(aspect):
            bits |= intent_bits(aspect, "mining.aspects")
    found = block.related(_signal(rule, bits)) if bits else no_lists(len(block.anchors))
    not_these = [block.related(_signal(rule, rule.intent_bits(block.aspect)))]
    if rule.source in ONE_HOP:
        not_these.append(block.related(_signal(rule, 0)))
    return without(found, join_lists(*not_these), len(block.material.corpus))


def _signal(rule: Rule, intent: int | None) -> Signal:
    return Signal(rule.source, intent=intent, longest=rule.longest, least=rule.least)


def table_papers(rule: Rule, block: AnchorBlock) -> CandidateLists:
    """Candidates of a table with counts; with a grade only the upper or lower ones, anchor by anchor."""
    table, material = block.material.table(rule.table), block.material
    counts = table.offsets[block.anchors + 1] - table.offsets[block.anchors]
    at = np.repeat(table.offsets[block.anchors], counts) + _places(counts)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    lists = CandidateLists(offsets, table.targets[at], table.counts[at])
    if rule.grade:
        lists = keep_entries(lists, graded(lists, rule.grade, rule.margin))
    other = lists.rows != block.anchors[lists.owners()]
    return keep_entries(lists, material.in_pool[lists.rows] & other)


def graded(lists: CandidateLists, grade: str, margin: float) -> NDArray[np.bool_]:
    """SPECTER's rule for graded candidates: a margin of half the way between the anchor's least and largest count.

    Lower are counts under largest - margin, upper those over least + margin. Where all counts are equal there
    is nothing to tell apart: all are upper, none is lower.

    >>> lists = CandidateLists(np.array([0, 3]), np.array([4, 5, 6], np.int32), np.array([5, 5, 1], np.float32))
    >>> graded(lists, "upper", 0.5).tolist(), graded(lists, "lower", 0.5).tolist()
    ([True, True, False], [False, False, True])
    """
    counts, owners = lists.counts(), lists.owners()
    largest, least = np.where(counts > 0, -np.inf, 0.0), np.where(counts > 0, np.inf, 0.0)  # (anchors,)
    np.maximum.at(largest, owners, lists.scores)
    np.minimum.at(least, owners, lists.scores)
    distance = margin * (largest - least)
    equal = (largest == least)[owners]
    if grade == "lower":
        return np.asarray(~equal & (lists.scores < (largest - distance)[owners]))
    return np.asarray(equal | (lists.scores > (least + distance)[owners]))


def random_papers(
    rule: Rule, block: AnchorBlock, forbidden: CandidateLists, count: int, salt: np.uint64
) -> CandidateLists:
    """The first `count` of an endless random row of different papers for every anchor."""
    material = block.material
    if rule.unshared:
        unwanted = material.sharing(rule.unshared)
        size = len(material.pool)
        return draw_sharers(block.anchors, block.keys, material.pool, unwanted, count, forbidden, salt, pool_size=size)
    return draw_from_pool(
        block.anchors,
        block.keys,
        material.pool,
        count,
        forbidden,
        salt,
        fields=(material.fields, rule.field) if rule.field else None,
    )


def shared_papers(rule: Rule, block: AnchorBlock, forbidden: CandidateLists, salt: np.uint64) -> CandidateLists:
    """Papers drawn from those that share something with the anchor; never more than the rule asks for."""
    material, unwanted = block.material, rule.unshared
    relations: tuple[str, ...] = (block.aspect,) if rule.relation == SAME else (rule.relation,)
    if rule.relation == OTHER:
        relations = tuple(each for each in block.aspects if is_relation(each) and each != block.aspect)
        unwanted = tuple(dict.fromkeys([block.aspect, *unwanted]))
    if not relations:
        return no_lists(len(block.anchors))
    wanted = material.sharing(relations)
    not_these = material.sharing(unwanted) if unwanted else None
    size = len(material.pool)
    return draw_sharers(block.anchors, block.keys, wanted, not_these, rule.count, forbidden, salt, pool_size=size)


def excluded_papers(rule: Rule, block: AnchorBlock, positives: CandidateLists) -> CandidateLists:
    """What the rule may never choose, by the names in its `exclude`; `neighbors` are left to `vector_sources.py`,
    what is shared to `sharing_draws.py`.

    `positives` are all candidates of the positive rules.
    """
    parts = [no_lists(len(block.anchors))]
    for name in rule.exclude:
        if name == "positives":
            parts.append(positives)
        elif name != "neighbors" and not is_relation(name):
            parts.append(block.related(Signal(name, longest=rule.longest)))
    return join_lists(*parts)


def _places(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, ... within each list.

    >>> _places(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
