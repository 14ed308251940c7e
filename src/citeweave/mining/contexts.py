"""Pairs of papers cited in the same sentence, with the sentences: what ASPIRE trains on.

    "... by matching [3], [7] ..."   in paper 12     ->   pair (3, 7), contexts of it: this sentence

The filters are those of ASPIRE's code (see `rules.ContextFilter`). Each unordered pair is one sample; which of
the two is the anchor is drawn. Aligning sentences through the contexts is a later step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import BLOCK
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.derived.sentence_choice import bracket_reason, repeat_keys, word_reason
from citeweave.corpus.text import sentences
from citeweave.hashing import mix
from citeweave.mining.drawing import salt_of
from citeweave.mining.rules import ContextFilter


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
