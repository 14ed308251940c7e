"""Citing sentences as texts of their own: those that cite exactly the same papers are paraphrases.

    paper 12: "Graphs can be matched [3, 7]."       both cite {3, 7}: context:0 and context:1 are paraphrases
    paper 31: "Matching was studied by [7], [3]."
    paper 40: "Many match graphs [3, 7, 9]."        shares papers with both: no paraphrase, and no negative either

This is what ASPIRE trains its context encoder on (Mysore et al., NAACL 2022, section 3.2.2, appendix A). In the derived
corpus every set of papers is a textless hub, `set:K`, that its contexts cite, so that paraphrases are `coupled`; and
that cites them, so that they are `cocited`, as relatives of each other are, which training never takes as negatives. A
hub `shared:K` cites the contexts that share one paper. Citations grow with the contexts, not with the pairs of them.

A set is a 64-bit key, the sum of its papers' keys: nothing here is a Python object a context, except in one block of
texts at a time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import BLOCK
from citeweave.corpus.corpus import Contexts, Corpus
from citeweave.corpus.derived.options import DerivedTexts
from citeweave.corpus.derived.sentence_choice import bracket_reason, repeat_keys, word_reason
from citeweave.errors import EmptyResultError
from citeweave.hashing import Keys, hash_text, mix
from citeweave.progress import QUIET, Reporter
from citeweave.randomness import stream

Numbers = NDArray[np.int64]

_MARKS = re.compile(r"\s*(?:\([^()]*\d[^()]*\)|\[[^\[\]]*\d[^\[\]]*\])")
_ALONE = "no other context cites the same papers"


@dataclass(frozen=True, slots=True)
class ContextSets:
    """The contexts that have a paraphrase."""

    numbers: Numbers
    """Numbers of the contexts, ascending; shape (contexts,)."""

    sets: Numbers
    """The set of papers that each cites, from 0 on without a gap; shape (contexts,)."""

    rejected: dict[str, int] = field(default_factory=dict)
    """Contexts left out, each for its first reason."""

    def sizes(self) -> Numbers:
        """Contexts of every set, (sets,)."""
        return np.bincount(self.sets)

    def facts(self) -> dict[str, Any]:
        """What there is of it, in numbers."""
        sizes = self.sizes()
        return {
            "contexts": len(self.numbers),
            "sets": len(sizes),
            "largest set": int(sizes.max(initial=0)),
            "pairs": int((sizes * (sizes - 1) // 2).sum()),
            "rejected": self.rejected,
        }


def select_contexts(
    corpus: Corpus, options: DerivedTexts, *, before: Corpus | None = None, reporter: Reporter = QUIET
) -> ContextSets:
    """Contexts by the published filters: size, length, brackets, no repeats, one of each citing paper and set.

    `before` is the corpus before papers left it: contexts that those papers wrote are left out too.
    """
    if not len(corpus.contexts):
        raise EmptyResultError(
            f"{corpus.folder} has no citing sentences; import a source that has them: S2ORC, unarXive, JATS, GROBID, "
            "Semantic Scholar citations, or lines of contexts"
        )
    rejected: dict[str, int] = {}
    numbers, keys = _candidates(corpus.contexts, options, before, rejected)
    numbers, keys = _kept(numbers, keys, _several(keys), _ALONE, rejected)
    numbers, keys = _readable(corpus.contexts, numbers, keys, options, rejected, reporter)
    writers = mix(keys, _citing_keys(corpus.contexts, numbers))
    numbers, keys = _kept(numbers, keys, _first(writers), "the same paper cites the same papers again", rejected)
    numbers, keys = _kept(numbers, keys, _several(keys), _ALONE, rejected)
    drawn = _drawn(numbers, keys, options)
    numbers, keys = _kept(numbers, keys, drawn, f"one of over {options.most_contexts} of a set", rejected)
    if not len(numbers):
        told = "; ".join(f"{number:,} {reason}" for reason, number in rejected.items())
        raise EmptyResultError(
            f"no two contexts of {corpus.folder} are paraphrases ({told}); import more papers with full text, or relax "
            "the filters of [texts]"
        )
    return ContextSets(numbers, np.unique(keys, return_inverse=True)[1].astype(np.int64), rejected)


def possible_contexts(corpus: Corpus, options: DerivedTexts) -> Numbers:
    """Numbers of the contexts that may have a paraphrase, before their texts are read; for a guess of costs."""
    numbers, keys = _candidates(corpus.contexts, options, None, {})
    once = _first(mix(keys, _citing_keys(corpus.contexts, numbers)))
    return numbers[once][_several(keys[once])]


def _candidates(
    table: Contexts, options: DerivedTexts, before: Corpus | None, rejected: dict[str, int]
) -> tuple[Numbers, Keys]:
    """Contexts of known citing papers that cite enough papers, with the keys of their sets."""
    kept, keys = [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)]
    for start in range(0, len(table), BLOCK):
        stop = min(start + BLOCK, len(table))
        counts, sums = _set_keys(table, start, stop)
        citing = table.citing[start:stop]
        reasons = {
            f"fewer than {options.least_papers} papers cited": counts < options.least_papers,
            f"more than {options.most_papers} papers cited": (counts > options.most_papers) & (options.most_papers > 0),
            "citing paper unknown": (citing < 0) & (table.citing_keys[start:stop] == 0),
        }
        if before is not None:
            known = before.index.rows_of(np.ascontiguousarray(table.citing_keys[start:stop])) >= 0
            reasons["citing paper left the corpus"] = (citing < 0) & known
        good = np.ones(stop - start, bool)
        for reason, is_so in reasons.items():
            _reject(rejected, reason, int((good & is_so).sum()))
            good &= ~is_so
        kept.append(start + np.flatnonzero(good))
        keys.append(sums[good])
    return np.concatenate(kept), np.concatenate(keys)


def _set_keys(table: Contexts, start: int, stop: int) -> tuple[Numbers, Keys]:
    """How many papers each context of a block cites, and one key for the set of them, whatever their order."""
    counts, sums = np.zeros(stop - start, np.int64), np.zeros(stop - start, np.uint64)
    for offsets, paper_keys in paper_lists(table):
        ends = np.asarray(offsets[start : stop + 1])
        keys = paper_keys(np.arange(ends[0], ends[-1]))
        total = np.concatenate(
            [np.zeros(1, np.uint64), np.cumsum(keys, dtype=np.uint64)]
        )  # wraps around, as the key may
        sums += total[ends[1:] - ends[0]] - total[ends[:-1] - ends[0]]
        counts += np.diff(ends)
    return counts, sums


def paper_lists(table: Contexts) -> list[tuple[Numbers, Any]]:
    """Offsets of both lists of cited papers, each with what gives the keys of the papers at some places."""
    inside, outside = hash_text("in the corpus"), hash_text("outside")

    def of_rows(places: Numbers) -> Keys:
        return mix(table.cited[places].astype(np.uint64), np.full(len(places), inside))

    def of_keys(places: Numbers) -> Keys:
        return mix(np.ascontiguousarray(table.outside[places]), np.full(len(places), outside))

    return [(table.cited_offsets, of_rows), (table.outside_offsets, of_keys)]


def _readable(
    table: Contexts,
    numbers: Numbers,
    keys: Keys,
    options: DerivedTexts,
    rejected: dict[str, int],
    reporter: Reporter,
) -> tuple[Numbers, Keys]:
    """Contexts whose text passes the filters, each text once."""
    good, repeats = np.zeros(len(numbers), bool), np.zeros(len(numbers), np.uint64)
    with reporter.task("reading", len(numbers), "contexts") as advance:
        for start in range(0, len(numbers), BLOCK):
            texts = table.texts.take(numbers[start : start + BLOCK])
            reasons = [_why_not(text, options) for text in texts]
            for reason in set(reasons) - {""}:
                _reject(rejected, reason, reasons.count(reason))
            good[start : start + BLOCK] = [not reason for reason in reasons]
            repeats[start : start + BLOCK] = repeat_keys(texts)
            advance(len(texts))
    numbers, keys, repeats = numbers[good], keys[good], repeats[good]
    return _kept(numbers, keys, _first(repeats), "repeats another sentence", rejected)


def _why_not(text: str, options: DerivedTexts) -> str:
    """
    >>> _why_not("Graphs can be matched [3, 7].", DerivedTexts("contexts"))
    ''
    >>> _why_not("Graphs can be matched by hand.", DerivedTexts("contexts"))
    'no brackets'
    """
    reason = word_reason(written(text, options), options.least_words, options.most_words)
    return reason or (bracket_reason(text) if options.brackets else "")


def written(text: str, options: DerivedTexts) -> str:
    """
    >>> written("Graphs can be matched (Li, 2016; Wu, 2017) or not [3].", DerivedTexts("contexts", marks=False))
    'Graphs can be matched or not.'
    """
    return text if options.marks else _MARKS.sub("", text).strip()


def _citing_keys(table: Contexts, numbers: Numbers) -> Keys:
    """One key for each citing paper; those in the corpus are known by their row, as they may have several ids."""
    rows = table.citing[numbers]
    own = mix(np.maximum(rows, 0).astype(np.uint64), np.full(len(rows), hash_text("in the corpus")))
    return np.where(rows >= 0, own, table.citing_keys[numbers])


def _drawn(numbers: Numbers, keys: Keys, options: DerivedTexts) -> NDArray[np.bool_]:
    """At most so many of each set, whichever have the lowest random keys."""
    salt = stream(options.seed, "texts", "contexts of a set").integers(2**63, dtype=np.uint64)
    order = np.lexsort([mix(numbers.astype(np.uint64), np.full(len(numbers), salt)), keys])
    starts = np.flatnonzero(np.diff(keys[order], prepend=~keys[order[:1]]))
    sizes = np.diff(np.append(starts, len(order)))
    place = np.arange(len(order)) - np.repeat(starts, sizes)
    drawn = np.zeros(len(order), bool)
    drawn[order] = place < options.most_contexts
    return drawn


def _several(keys: Keys) -> NDArray[np.bool_]:
    """Which keys there are at least twice.

    >>> _several(np.array([5, 2, 5], np.uint64)).tolist()
    [True, False, True]
    """
    _, place, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return counts[place] > 1


def _first(keys: Keys) -> NDArray[np.bool_]:
    """Which keys are there for the first time."""
    first = np.zeros(len(keys), bool)
    first[np.unique(keys, return_index=True)[1]] = True
    return first


def _kept(
    numbers: Numbers, keys: Keys, good: NDArray[np.bool_], reason: str, rejected: dict[str, int]
) -> tuple[Numbers, Keys]:
    _reject(rejected, reason, int((~good).sum()))
    return numbers[good], keys[good]


def _reject(rejected: dict[str, int], reason: str, number: int) -> None:
    if number:
        rejected[reason] = rejected.get(reason, 0) + number
