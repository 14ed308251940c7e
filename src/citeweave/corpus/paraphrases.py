"""Citing sentences as training texts: sentences that cite exactly the same papers are paraphrases of each other.

    paper 12: "Graphs can be matched [3, 7]."       both cite {3, 7}: context:0 and context:1 are paraphrases
    paper 31: "Matching was studied by [7], [3]."
    paper 40: "Many match graphs [3, 7, 9]."        shares papers with both: neither a paraphrase nor a negative

ASPIRE trains its context encoder on such pairs (Mysore et al., NAACL 2022, section 3.2.2, appendix A). In the derived
corpus every set of cited papers is a textless hub `set:K`, and every paper cited from several sets a hub `shared:K`:

    context:0, context:1        cite set:0, which cites both        they are `coupled`, and `cocited`
    shared:0                    cites context:0 and context:2       they share a cited paper: `cocited`

Coupled contexts are paraphrases; cocited ones are relatives, which training never takes as negatives. The number of
citations grows with the number of contexts, not with the number of their pairs.

A set is a 64-bit key, the sum of its papers' keys. Contexts are Python objects only within one block of texts at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import BLOCK
from citeweave.core.errors import EmptyResultError
from citeweave.core.hash_keys import Keys, hash_numbers, hash_text, mix_keys
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream
from citeweave.corpus.corpus import Contexts, Corpus
from citeweave.corpus.derived_texts import (
    DerivedRecords,
    bracket_reason,
    citation_blocks,
    count_rejected,
    hub_papers,
    list_rejected,
    repeat_keys,
    word_reason,
)
from citeweave.corpus.options import DerivedTexts
from citeweave.corpus.paper import Paper, StagedRecord

Numbers = NDArray[np.int64]

_MARKS = re.compile(r"\s*(?:\([^()]*\d[^()]*\)|\[[^\[\]]*\d[^\[\]]*\])")
_ALONE = "no other context cites the same papers"


@dataclass(frozen=True, slots=True)
class ContextSets:
    """The citing sentences that have a paraphrase, and the set of papers that each cites."""

    numbers: Numbers
    """Numbers of the contexts in the corpus, ascending; shape (contexts,)."""

    sets: Numbers
    """Number of the set of papers that each cites, numbered from 0 without gaps; shape (contexts,)."""

    rejected: dict[str, int] = field(default_factory=dict)
    """Number of contexts left out, each counted by its first reason."""

    def sizes(self) -> Numbers:
        """Return the number of paraphrases in every set of cited papers, (sets,)."""
        return np.bincount(self.sets)

    def counts(self) -> dict[str, Any]:
        """Return the number of contexts, sets and pairs of paraphrases, for the manifest."""
        sizes = self.sizes()
        return {
            "contexts": len(self.numbers),
            "sets": len(sizes),
            "largest set": int(sizes.max(initial=0)),
            "pairs": int((sizes * (sizes - 1) // 2).sum()),
            "rejected": self.rejected,
        }


def context_records(
    corpus: Corpus, options: DerivedTexts, *, before: Corpus | None = None, reporter: Reporter = QUIET
) -> DerivedRecords:
    """Return the records of a corpus of paraphrases: a text per citing sentence, hubs for sets and shared papers."""
    contexts = _select_contexts(corpus, options, before=before, reporter=reporter)
    hub, member = _shared_papers(corpus.contexts, contexts, options.shared)
    return DerivedRecords(
        _context_records(corpus, contexts, hub, member, options),
        {**contexts.counts(), "shared papers": _hub_count(hub)},
    )


def _context_records(
    corpus: Corpus, contexts: ContextSets, hub: Numbers, member: Numbers, options: DerivedTexts
) -> Iterator[StagedRecord]:
    """Yield citing sentences as papers, then hubs for their sets and shared papers, then the citations of the hubs."""
    table = corpus.contexts
    for start in range(0, len(contexts.numbers), BLOCK):
        block = contexts.numbers[start : start + BLOCK]
        citing = table.citing[block]
        writers = corpus.ids.take(np.maximum(citing, 0)) if len(corpus) else [""] * len(block)
        for number, text, row, writer in zip(
            block.tolist(), table.texts.take(block), citing.tolist(), writers, strict=True
        ):
            extra: dict[str, object] = {"citing": writer} if row >= 0 else {}
            yield Paper(f"context:{number}", abstract=_without_marks(text, options), extra=extra)
    yield from hub_papers("set", int(contexts.sets.max()) + 1)
    yield from hub_papers("shared", _hub_count(hub))
    texts, sets = hash_numbers("context:", contexts.numbers), hash_numbers("set:", contexts.sets)
    yield from citation_blocks(texts, sets)
    yield from citation_blocks(sets, texts)
    yield from citation_blocks(hash_numbers("shared:", hub), texts[member])


def _select_contexts(
    corpus: Corpus, options: DerivedTexts, *, before: Corpus | None = None, reporter: Reporter = QUIET
) -> ContextSets:
    """Select the citing sentences that have a paraphrase, by ASPIRE's filters.

    The filters: number of cited papers, length, brackets, no repeats, one sentence per citing paper and set. `before` is
    the corpus before papers were excluded from it: citing sentences of the excluded papers are left out too.
    """
    if not len(corpus.contexts):
        raise EmptyResultError(
            f"{corpus.folder} has no citing sentences; import a source that has them: S2ORC, unarXive, JATS, GROBID, "
            "Semantic Scholar citations, or lines of contexts"
        )
    rejected: dict[str, int] = {}
    numbers, keys = _candidates(corpus.contexts, options, before, rejected)
    numbers, keys = _keep(numbers, keys, _several(keys), _ALONE, rejected)
    numbers, keys = _readable(corpus.contexts, numbers, keys, options, rejected, reporter)
    writers = mix_keys(keys, _citing_keys(corpus.contexts, numbers))
    numbers, keys = _keep(numbers, keys, _first(writers), "the same paper cites the same papers again", rejected)
    numbers, keys = _keep(numbers, keys, _several(keys), _ALONE, rejected)
    drawn = _drawn(numbers, keys, options)
    numbers, keys = _keep(numbers, keys, drawn, f"one of over {options.max_contexts} of a set", rejected)
    if not len(numbers):
        raise EmptyResultError(
            f"no two contexts of {corpus.folder} are paraphrases ({list_rejected(rejected)}); import more papers with full text, or relax "
            "the filters of [texts]"
        )
    return ContextSets(numbers, np.unique(keys, return_inverse=True)[1].astype(np.int64), rejected)


def candidate_contexts(corpus: Corpus, options: DerivedTexts) -> Numbers:
    """Return the contexts that may have a paraphrase, without reading their texts; for cost estimates."""
    numbers, keys = _candidates(corpus.contexts, options, None, {})
    once = _first(mix_keys(keys, _citing_keys(corpus.contexts, numbers)))
    return numbers[once][_several(keys[once])]


def _candidates(
    table: Contexts, options: DerivedTexts, before: Corpus | None, rejected: dict[str, int]
) -> tuple[Numbers, Keys]:
    """Return the contexts of known citing papers that cite enough papers, with the keys of their sets."""
    numbers, keys = [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)]
    for start in range(0, len(table), BLOCK):
        stop = min(start + BLOCK, len(table))
        counts, sums = _set_keys(table, start, stop)
        citing = table.citing[start:stop]
        reasons = {
            f"fewer than {options.min_papers} papers cited": counts < options.min_papers,
            f"more than {options.max_papers} papers cited": (counts > options.max_papers) & (options.max_papers > 0),
            "citing paper unknown": (citing < 0) & (table.citing_keys[start:stop] == 0),
        }
        if before is not None:
            known = before.index.rows_of(np.ascontiguousarray(table.citing_keys[start:stop])) >= 0
            reasons["citing paper left the corpus"] = (citing < 0) & known
        good = np.ones(stop - start, bool)
        for reason, is_so in reasons.items():
            count_rejected(rejected, reason, int((good & is_so).sum()))
            good &= ~is_so
        numbers.append(start + np.flatnonzero(good))
        keys.append(sums[good])
    return np.concatenate(numbers), np.concatenate(keys)


def _set_keys(table: Contexts, start: int, stop: int) -> tuple[Numbers, Keys]:
    """Return how many papers each context of a block cites, and one key per set of cited papers, whatever its order."""
    counts, sums = np.zeros(stop - start, np.int64), np.zeros(stop - start, np.uint64)
    for offsets, paper_keys in _cited_lists(table):
        ends = np.asarray(offsets[start : stop + 1])
        keys = paper_keys(np.arange(ends[0], ends[-1]))
        total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(keys, dtype=np.uint64)])  # may wrap around
        sums += total[ends[1:] - ends[0]] - total[ends[:-1] - ends[0]]
        counts += np.diff(ends)
    return counts, sums


def _cited_lists(table: Contexts) -> list[tuple[Numbers, Any]]:
    """Return the offsets of the cited papers in and outside the corpus, each with a function from positions to keys."""
    inside, outside = hash_text("in the corpus"), hash_text("outside")

    def of_rows(places: Numbers) -> Keys:
        return mix_keys(table.cited[places].astype(np.uint64), np.full(len(places), inside))

    def of_keys(places: Numbers) -> Keys:
        return mix_keys(np.ascontiguousarray(table.outside[places]), np.full(len(places), outside))

    return [(table.cited_offsets, of_rows), (table.outside_offsets, of_keys)]


def _readable(
    table: Contexts,
    numbers: Numbers,
    keys: Keys,
    options: DerivedTexts,
    rejected: dict[str, int],
    reporter: Reporter,
) -> tuple[Numbers, Keys]:
    """Return the contexts whose text passes the filters of words and brackets, each text once."""
    good, repeats = np.zeros(len(numbers), bool), np.zeros(len(numbers), np.uint64)
    with reporter.task("reading", len(numbers), "contexts") as advance:
        for start in range(0, len(numbers), BLOCK):
            texts = table.texts.take(numbers[start : start + BLOCK])
            reasons = [_text_reason(text, options) for text in texts]
            for reason in set(reasons) - {""}:
                count_rejected(rejected, reason, reasons.count(reason))
            good[start : start + BLOCK] = [not reason for reason in reasons]
            repeats[start : start + BLOCK] = repeat_keys(texts)
            advance(len(texts))
    numbers, keys, repeats = numbers[good], keys[good], repeats[good]
    return _keep(numbers, keys, _first(repeats), "repeats another sentence", rejected)


def _text_reason(text: str, options: DerivedTexts) -> str:
    """Return why the text of a citing sentence is rejected, empty where it is accepted.

    >>> _text_reason("Graphs can be matched [3, 7].", DerivedTexts("contexts"))
    ''
    >>> _text_reason("Graphs can be matched by hand.", DerivedTexts("contexts"))
    'no brackets'
    """
    reason = word_reason(_without_marks(text, options), options.min_words, options.max_words)
    return reason or (bracket_reason(text) if options.brackets else "")


def _without_marks(text: str, options: DerivedTexts) -> str:
    """Remove the citation marks of a citing sentence unless the options keep them.

    >>> _without_marks("Graphs can be matched (Li, 2016; Wu, 2017) or not [3].", DerivedTexts("contexts", marks=False))
    'Graphs can be matched or not.'
    """
    return text if options.marks else _MARKS.sub("", text).strip()


def _citing_keys(table: Contexts, numbers: Numbers) -> Keys:
    """Return one key per citing paper: its row where it is in the corpus, since it may have several ids."""
    rows = table.citing[numbers]
    own = mix_keys(np.maximum(rows, 0).astype(np.uint64), np.full(len(rows), hash_text("in the corpus")))
    return np.where(rows >= 0, own, table.citing_keys[numbers])


def _drawn(numbers: Numbers, keys: Keys, options: DerivedTexts) -> NDArray[np.bool_]:
    """Return which contexts are drawn: at most `max_contexts` of each set, those with the lowest random keys."""
    salt = stream(options.seed, "texts", "contexts of a set").integers(2**63, dtype=np.uint64)
    order = np.lexsort([mix_keys(numbers.astype(np.uint64), np.full(len(numbers), salt)), keys])
    starts = np.flatnonzero(np.diff(keys[order], prepend=~keys[order[:1]]))
    sizes = np.diff(np.append(starts, len(order)))
    place = np.arange(len(order)) - np.repeat(starts, sizes)
    drawn = np.zeros(len(order), bool)
    drawn[order] = place < options.max_contexts
    return drawn


def _several(keys: Keys) -> NDArray[np.bool_]:
    """Return which keys of sets occur at least twice, so that their contexts have paraphrases.

    >>> _several(np.array([5, 2, 5], np.uint64)).tolist()
    [True, False, True]
    """
    _, place, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return counts[place] > 1


def _first(keys: Keys) -> NDArray[np.bool_]:
    """Return which keys of contexts occur for the first time, to drop repeated ones."""
    first = np.zeros(len(keys), bool)
    first[np.unique(keys, return_index=True)[1]] = True
    return first


def _keep(
    numbers: Numbers, keys: Keys, good: NDArray[np.bool_], reason: str, rejected: dict[str, int]
) -> tuple[Numbers, Keys]:
    """Keep the contexts marked as good and count the others as rejected."""
    count_rejected(rejected, reason, int((~good).sum()))
    return numbers[good], keys[good]


def _shared_papers(table: Contexts, contexts: ContextSets, max_contexts: int) -> tuple[Numbers, Numbers]:
    """Return the cited papers that contexts of several sets share, as (hub, position of the context), both (citations,).

    Papers cited by more than `max_contexts` contexts get no hub, and neither do papers that only one set cites: its
    contexts have the hub of their set.
    """
    papers, members = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for offsets, paper_keys in _cited_lists(table):
        counts = np.diff(offsets)[contexts.numbers]
        place = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        papers.append(paper_keys(np.repeat(offsets[contexts.numbers], counts) + place))
        members.append(np.repeat(np.arange(len(contexts.numbers)), counts))
    paper, member = np.concatenate(papers), np.concatenate(members)
    order = np.lexsort([member, paper])
    paper, member = paper[order], member[order]
    starts = np.flatnonzero(np.diff(paper, prepend=~paper[:1]))
    sizes = np.diff(np.append(starts, len(paper)))
    sets = contexts.sets[member]
    several = np.minimum.reduceat(sets, starts) < np.maximum.reduceat(sets, starts)
    useful = several & (sizes <= max_contexts)
    numbered = np.repeat(np.cumsum(useful) - 1, sizes)
    keep = np.repeat(useful, sizes)
    return numbered[keep], member[keep]


def _hub_count(hub: Numbers) -> int:
    return int(hub.max(initial=-1)) + 1
