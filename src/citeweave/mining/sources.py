"""Candidate sources of mining rules: related papers, tables, random papers, papers cited in one sentence.

    cited, cocited, ...   papers related in the graph, restricted to an intent where the rule says so
    table                 pairs with counts from anywhere: co-views, co-reads, SPECTER's data.json
    random                papers of the pool
    shares                papers of the same venue, with a shared author or field: drawn by `draw.py`
    neighbors, similar, cells, sorted_random      by vectors: see `vector_sources.py`

Each source is a function from a rule and a block of anchors to candidate lists; candidates are papers of the pool and
never the anchor. Selecting among them is done by `draw.py`.

ASPIRE trains on pairs of papers cited in one sentence, with the sentences:

    "... by matching [3], [7] ..."   in paper 12     ->   pair (3, 7), contexts of it: this sentence

The filters are those of ASPIRE's code (`rules.ContextFilter`). Each unordered pair is one sample; which of the two is
the anchor is drawn. Aligning sentences through the contexts is a later step: `align.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import BLOCK
from citeweave.core.hash_keys import mix_keys
from citeweave.core.ragged import Ragged, number_within, spans, to_offsets
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.derived_texts import bracket_reason, repeat_keys, word_reason
from citeweave.corpus.text import sentences
from citeweave.graph.signals import ONE_HOP, Signal, related
from citeweave.mining.draw import (
    CandidateLists,
    derive_salt,
    draw_from_pool,
    draw_sharing_papers,
    drop_forbidden,
    empty_lists,
    filter_entries,
    join_lists,
)
from citeweave.mining.inputs import MiningData
from citeweave.mining.options import ContextFilter
from citeweave.mining.rules import MISCELLANEOUS, OTHER, SAME, Rule, intent_bits, is_relation


@dataclass(frozen=True, slots=True)
class CocitedPairs(Ragged):
    """Source of candidates by contexts: pairs of papers cited in one sentence, and the numbers of those sentences."""

    anchors: NDArray[np.int32]
    positives: NDArray[np.int32]
    contexts: NDArray[np.int64]
    """Those of each pair, by its offsets."""

    rejected: dict[str, int]
    """Contexts left out, by reason; papers with an unsuitable abstract are counted here too."""

    kept: int
    """Contexts that passed every filter."""


def collect_cocited_pairs(
    corpus: Corpus,
    in_pool: NDArray[np.bool_],
    options: ContextFilter,
    *,
    seed: int,
    before: Corpus | None = None,
) -> CocitedPairs:
    """Collect the source of cocited pairs: pool papers cited together in a sentence that passes ASPIRE's filters.

    `before` is the corpus before papers were removed: sentences of the removed papers are left out too.
    """
    rejected: dict[str, int] = {}
    numbers = _usable_contexts(corpus, options, before, rejected)
    table = corpus.contexts
    mentions = Ragged(table.cited_offsets)
    context = np.repeat(numbers, mentions.lengths()[numbers])  # (mentions,)
    cited = table.cited[mentions.places(numbers)]
    seen = np.unique(cited[in_pool[cited]])
    fits = np.zeros(len(corpus), bool)
    fits[seen] = _abstracts_fit(corpus, seen, options)
    unfit = seen[~fits[seen]]
    if len(unfit):
        rejected["paper: abstract too short, too long or of odd sentences"] = len(unfit)
    keep = fits[cited]
    first, second, where = _pairs_within(context[keep], cited[keep])
    single = len(numbers) - len(np.unique(where))
    if single:
        rejected["fewer than two papers with text"] = single
    return _group_pairs(corpus, first, second, where, options, seed, rejected)


def _usable_contexts(
    corpus: Corpus, options: ContextFilter, before: Corpus | None, rejected: dict[str, int]
) -> NDArray[np.int64]:
    """Return the contexts that pass the filters on size, words, brackets and repetition; count the others by reason."""
    table = corpus.contexts
    papers = np.diff(table.cited_offsets) + np.diff(table.outside_offsets)
    numbers = np.flatnonzero((papers >= options.min_papers) & (papers <= options.max_papers))
    too_few, too_many = int((papers < options.min_papers).sum()), int((papers > options.max_papers).sum())
    usable: list[int] = []
    keys = [repeat_keys([])]
    reasons = {f"fewer than {options.min_papers} papers cited": too_few, f"more than {options.max_papers}": too_many}
    if before is not None:
        known = before.index.rows_of(np.ascontiguousarray(table.citing_keys[numbers])) >= 0
        removed = (table.citing[numbers] < 0) & known  # (contexts,)
        reasons["citing paper left the corpus"] = int(removed.sum())
        numbers = numbers[~removed]
    for start in range(0, len(numbers), BLOCK):
        block, texts = numbers[start : start + BLOCK], []
        for number, text in zip(block.tolist(), table.texts.take(block), strict=True):
            reason = word_reason(text, options.min_words, options.max_words)
            reason = reason or (bracket_reason(text) if options.brackets else "")
            if reason:
                reasons[reason] = reasons.get(reason, 0) + 1
            else:
                usable.append(number)
                texts.append(text)
        keys.append(repeat_keys(texts))
    unique = np.sort(np.unique(np.concatenate(keys), return_index=True)[1])  # the first of each
    reasons["repeats another sentence"] = len(usable) - len(unique)
    rejected |= {reason: number for reason, number in reasons.items() if number}
    return np.array(usable, np.int64)[unique]


def _abstracts_fit(corpus: Corpus, rows: NDArray[np.integer], options: ContextFilter) -> NDArray[np.bool_]:
    fits = [
        _abstract_fits(text, options)
        for start in range(0, len(rows), BLOCK)
        for text in corpus.abstracts.take(rows[start : start + BLOCK])
    ]
    return np.array(fits, bool)


def _abstract_fits(abstract: str, options: ContextFilter) -> bool:
    """Whether an abstract passes ASPIRE's filter: 3 to 20 sentences, none over 80 words, one over three words.

    >>> _abstract_fits("We study large graphs. We walk on them. It works well.", ContextFilter())
    True
    >>> _abstract_fits("One sentence only.", ContextFilter())
    False
    """
    lengths = [len(abstract[start:end].split()) for start, end in sentences(abstract)]
    if not options.min_sentences <= len(lengths) <= options.max_sentences:
        return False
    return max(lengths) <= options.max_sentence_words and max(lengths) > 3


def _pairs_within(
    context: NDArray[np.int64], cited: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """Return all pairs of papers cited in one context, lower row first; `context` is ascending."""
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


def _group_pairs(
    corpus: Corpus,
    first: NDArray[np.int32],
    second: NDArray[np.int32],
    where: NDArray[np.int64],
    options: ContextFilter,
    seed: int,
    rejected: dict[str, int],
) -> CocitedPairs:
    """Group contexts by pair of papers: at most `max_contexts`, one of each citing paper, the earliest first."""
    table = corpus.contexts
    # a citing paper outside the corpus is known by the key of its id
    citing = np.where(table.citing[where] >= 0, table.citing[where].astype(np.int64), -1 - (table.citing_keys[where] >> np.uint64(2)).astype(np.int64))  # fmt: skip
    order = np.lexsort([where, citing, second, first])
    first, second, where, citing = first[order], second[order], where[order], citing[order]
    new_pair = np.concatenate([[True], (first[1:] != first[:-1]) | (second[1:] != second[:-1])]) if len(first) else np.zeros(0, bool)  # fmt: skip
    keep = new_pair.copy()
    keep[1:] |= citing[1:] != citing[:-1]  # another citing paper
    pair = np.cumsum(new_pair) - 1
    order = np.lexsort([where[keep], pair[keep]])
    pair, where = pair[keep][order], where[keep][order]
    counts = np.bincount(pair, minlength=int(new_pair.sum()))
    within = number_within(counts) < options.max_contexts
    low, high = first[new_pair], second[new_pair]
    keys = mix_keys(mix_keys(low.astype(np.uint64), high.astype(np.uint64)), np.full(len(low), derive_salt(seed, "mining", "anchor of a pair"), np.uint64))  # fmt: skip
    swapped = (keys & np.uint64(1)).astype(bool)
    return CocitedPairs(
        anchors=np.where(swapped, high, low).astype(np.int32),
        positives=np.where(swapped, low, high).astype(np.int32),
        offsets=to_offsets(np.minimum(counts, options.max_contexts)),
        contexts=where[within],
        rejected=rejected,
        kept=len(np.unique(where)),
    )


# The sources, one function each.


@dataclass
class AnchorBlock:
    """A block of anchors to find candidates for, with mining data and the related papers that several sources share."""

    anchors: NDArray[np.int64]
    data: MiningData
    aspect: str = ""
    aspects: tuple[str, ...] = ()
    shared: dict[Signal, CandidateLists] = field(default_factory=dict)
    """Cache of related papers by signal, for all aspects of the same anchors."""

    task: str = ""
    """The task of a mixture; the draws of two tasks are independent."""

    known_positives: CandidateLists | None = None
    """Positives known before any rule is applied: the papers cited in the same sentence."""

    @property
    def keys(self) -> NDArray[np.uint64]:
        """Keys on which draws depend: the anchor, and its known positive if there is one."""
        keys = self.anchors.astype(np.uint64)
        return keys if self.known_positives is None else mix_keys(keys, self.known_positives.rows.astype(np.uint64))

    def related(self, signal: Signal) -> CandidateLists:
        """Return a source's candidates by citations, pool papers that a signal relates to each anchor, computed once."""
        if signal not in self.shared:
            relations, workers = self.data.graph(f"source {signal.name}"), self.data.workers
            papers = related(relations, signal, self.anchors, workers=workers)
            lists = CandidateLists(papers.offsets, papers.targets, papers.strengths)
            self.shared[signal] = filter_entries(lists, self.data.in_pool[lists.rows])
        return self.shared[signal]


def related_papers(rule: Rule, block: AnchorBlock) -> CandidateLists:
    """Return the candidates of a rule whose source is a signal of the citation graph."""
    if rule.intent == OTHER:
        return _related_in_other_aspects(rule, block)
    return block.related(_signal(rule, rule.intent_bits(block.aspect)))


def _related_in_other_aspects(rule: Rule, block: AnchorBlock) -> CandidateLists:
    """Return papers related by the intent of another aspect and not by this one; over two hops, both are such.

    Unknown intents prove nothing: they alone do not make papers related in another aspect, and a paper that is also
    connected by an unknown one (the two cite each other) may belong to this aspect, so it is left out too.
    """
    bits = 0
    for aspect in block.aspects:
        if aspect not in (block.aspect, MISCELLANEOUS) and not is_relation(aspect):
            bits |= intent_bits(aspect, "mining.aspects")
    lists = block.related(_signal(rule, bits)) if bits else empty_lists(len(block.anchors))
    excluded = [block.related(_signal(rule, rule.intent_bits(block.aspect)))]
    if rule.source in ONE_HOP:
        excluded.append(block.related(_signal(rule, 0)))
    return drop_forbidden(lists, join_lists(*excluded), len(block.data.corpus))


def _signal(rule: Rule, intent: int | None) -> Signal:
    return Signal(rule.source, intent=intent, longest=rule.max_references, least=rule.min_strength)


def table_papers(rule: Rule, block: AnchorBlock) -> CandidateLists:
    """The source `table`: candidates of a rule from a table of pairs, optionally only an upper or lower grade."""
    table, data = block.data.table(rule.table), block.data
    starts, ends = table.offsets[block.anchors], table.offsets[block.anchors + 1]
    at = spans(starts, ends - starts)
    lists = CandidateLists(to_offsets(ends - starts), table.targets[at], table.counts[at])
    if rule.grade:
        lists = filter_entries(lists, _has_grade(lists, rule.grade, rule.margin))
    other = lists.rows != block.anchors[lists.owners()]
    return filter_entries(lists, data.in_pool[lists.rows] & other)


def _has_grade(lists: CandidateLists, grade: str, margin: float) -> NDArray[np.bool_]:
    """Return which candidates of a table are of the upper or lower grade, by SPECTER's rule for counts.

    The margin is a share, usually half, of the distance between the anchor's smallest and largest count. Lower are
    counts under largest - margin, upper those over smallest + margin. If all counts are equal, all are upper.

    >>> lists = CandidateLists(np.array([0, 3]), np.array([4, 5, 6], np.int32), np.array([5, 5, 1], np.float32))
    >>> _has_grade(lists, "upper", 0.5).tolist(), _has_grade(lists, "lower", 0.5).tolist()
    ([True, True, False], [False, False, True])
    """
    counts, owners = lists.counts(), lists.owners()
    largest, smallest = np.where(counts > 0, -np.inf, 0.0), np.where(counts > 0, np.inf, 0.0)  # (anchors,)
    np.maximum.at(largest, owners, lists.scores)
    np.minimum.at(smallest, owners, lists.scores)
    distance = margin * (largest - smallest)
    equal = (largest == smallest)[owners]
    if grade == "lower":
        return np.asarray(~equal & (lists.scores < (largest - distance)[owners]))
    return np.asarray(equal | (lists.scores > (smallest + distance)[owners]))


def random_papers(
    rule: Rule, block: AnchorBlock, forbidden: CandidateLists, count: int, salt: np.uint64
) -> CandidateLists:
    """The source `random`: `count` random papers of the pool per anchor; the first ones do not depend on the count."""
    data = block.data
    if rule.excluded_relations:
        excluded = data.shared_metadata(rule.excluded_relations)
        size = len(data.pool)
        return draw_sharing_papers(
            block.anchors, block.keys, data.pool, excluded, count, forbidden, salt, pool_size=size
        )
    return draw_from_pool(
        block.anchors,
        block.keys,
        data.pool,
        count,
        forbidden,
        salt,
        fields=(data.fields, rule.field) if rule.field else None,
    )


def shared_papers(rule: Rule, block: AnchorBlock, forbidden: CandidateLists, salt: np.uint64) -> CandidateLists:
    """The sources of shared metadata (venue, author, field): draw the candidates of a rule, at most `count`."""
    data, excluded = block.data, rule.excluded_relations
    relations: tuple[str, ...] = (block.aspect,) if rule.relation == SAME else (rule.relation,)
    if rule.relation == OTHER:
        relations = tuple(each for each in block.aspects if is_relation(each) and each != block.aspect)
        excluded = tuple(dict.fromkeys([block.aspect, *excluded]))
    if not relations:
        return empty_lists(len(block.anchors))
    shared = data.shared_metadata(relations)
    not_shared = data.shared_metadata(excluded) if excluded else None
    size = len(data.pool)
    return draw_sharing_papers(
        block.anchors, block.keys, shared, not_shared, rule.count, forbidden, salt, pool_size=size
    )


def excluded_papers(rule: Rule, block: AnchorBlock, positives: CandidateLists) -> CandidateLists:
    """Return the papers that a rule's source must never give, by the signals and positives in its `exclude`.

    Neighbors are excluded in `vector_sources.py`, shared metadata by `draw.py`. `positives` are all
    candidates of the positive rules.
    """
    parts = [empty_lists(len(block.anchors))]
    for name in rule.exclude:
        if name == "positives":
            parts.append(positives)
        elif name != "neighbors" and not is_relation(name):
            parts.append(block.related(Signal(name, longest=rule.max_references)))
    return join_lists(*parts)
