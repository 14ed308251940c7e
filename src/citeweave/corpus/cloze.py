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

Contexts as the records of a derived corpus: a text for each, hubs for their sets and for the papers they share.

    context:0, context:1        cite set:0, which cites both        they are `coupled`, and `cocited`
    shared:0                    cites context:0 and context:2       that share a paper: `cocited`

Which contexts there are, and what a set is, says `contexts.py`.

The inverse cloze task: a sentence of an abstract against the rest of it (Lee et al., ACL 2019, section 4).

    paper 7: "We walk on graphs. It is fast. It is simple."
    sentence:7.1 = "It is fast."        cites        rest:7.1 = "We walk on graphs. It is simple."

A tenth of the rests keep their sentence, so that shared words count too. All texts of one paper are cited by a textless
hub, `paper:7`, and so are `cocited`: the rest of one sentence is no negative of another one.

A sentence that other abstracts have too says nothing of its own: the first one counts. Abstracts given twice count once.
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
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import Keys, hash_numbers, hash_text, hash_texts, mix, stream
from citeweave.corpus.corpus import Contexts, Corpus
from citeweave.corpus.derived_texts import (
    DerivedRecords,
    DerivedTexts,
    bracket_reason,
    cites,
    hubs,
    repeat_keys,
    word_reason,
)
from citeweave.corpus.paper import Paper, StagedRecord
from citeweave.corpus.text import sentences

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


# Contexts as the records of a derived corpus: a text for each, hubs for their sets and for the papers they share.


def context_records(
    corpus: Corpus, options: DerivedTexts, *, before: Corpus | None = None, reporter: Reporter = QUIET
) -> DerivedRecords:
    """The derived corpus as records: a text for every context, hubs for sets and for shared papers, citations."""
    found = select_contexts(corpus, options, before=before, reporter=reporter)
    hub, member = _shared_papers(corpus.contexts, found, options.shared)
    return DerivedRecords(
        _context_records(corpus, found, hub, member, options), {**found.facts(), "shared papers": _count(hub)}
    )


def _context_records(
    corpus: Corpus, found: ContextSets, hub: Numbers, member: Numbers, options: DerivedTexts
) -> Iterator[StagedRecord]:
    table = corpus.contexts
    for start in range(0, len(found.numbers), BLOCK):
        block = found.numbers[start : start + BLOCK]
        citing = table.citing[block]
        writers = corpus.ids.take(np.maximum(citing, 0)) if len(corpus) else [""] * len(block)
        for number, text, row, writer in zip(
            block.tolist(), table.texts.take(block), citing.tolist(), writers, strict=True
        ):
            extra: dict[str, object] = {"citing": writer} if row >= 0 else {}
            yield Paper(f"context:{number}", abstract=written(text, options), extra=extra)
    yield from hubs("set", int(found.sets.max()) + 1)
    yield from hubs("shared", _count(hub))
    texts, sets = hash_numbers("context:", found.numbers), hash_numbers("set:", found.sets)
    yield from cites(texts, sets)
    yield from cites(sets, texts)
    yield from cites(hash_numbers("shared:", hub), texts[member])


def _shared_papers(table: Contexts, found: ContextSets, most: int) -> tuple[Numbers, Numbers]:
    """Papers that contexts of several sets cite, at most `most` of them: (hub, place of the context), both (citations,).

    Contexts of one set have its hub already, so a paper that only they cite needs none.
    """
    papers, members = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for offsets, paper_keys in paper_lists(table):
        counts = np.diff(offsets)[found.numbers]
        place = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        papers.append(paper_keys(np.repeat(offsets[found.numbers], counts) + place))
        members.append(np.repeat(np.arange(len(found.numbers)), counts))
    paper, member = np.concatenate(papers), np.concatenate(members)
    order = np.lexsort([member, paper])
    paper, member = paper[order], member[order]
    starts = np.flatnonzero(np.diff(paper, prepend=~paper[:1]))
    sizes = np.diff(np.append(starts, len(paper)))
    sets = found.sets[member]
    several = np.minimum.reduceat(sets, starts) < np.maximum.reduceat(sets, starts)
    useful = several & (sizes <= most)
    numbered = np.repeat(np.cumsum(useful) - 1, sizes)
    keep = np.repeat(useful, sizes)
    return numbered[keep], member[keep]


def _count(hub: Numbers) -> int:
    return int(hub.max(initial=-1)) + 1


# The inverse cloze task: a sentence of an abstract against the rest of it (Lee et al., ACL 2019, section 4).

_SPAN = np.dtype([("row", "<i8"), ("number", "<i4"), ("start", "<i4"), ("end", "<i4")])


@dataclass(frozen=True, slots=True)
class DrawnSentences:
    """Sentences of abstracts, by paper and place in its abstract."""

    spans: NDArray[np.void]
    """`row` of the paper, `number` of the sentence, its `start` and `end` in characters; shape (sentences,)."""

    rejected: dict[str, int] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """What there is of it, in numbers."""
        papers = len(np.unique(self.spans["row"]))
        return {"sentences": len(self.spans), "papers": papers, "rejected": self.rejected}


def draw_sentences(corpus: Corpus, options: DerivedTexts, *, reporter: Reporter = QUIET) -> DrawnSentences:
    """Up to `per_paper` sentences of every abstract that has enough of them, drawn by the seed."""
    rejected: dict[str, int] = {}
    rows = _abstracts(corpus, rejected)
    found, keys = [np.zeros(0, _SPAN)], [np.zeros(0, np.uint64)]
    with reporter.task("reading", len(rows), "abstracts") as advance:
        for start in range(0, len(rows), BLOCK):
            block = rows[start : start + BLOCK]
            texts = corpus.abstracts.take(block)
            usable = _spans(block, texts, options, rejected)
            spans = _drawn_sentences(usable, options)
            _reject_sentences(
                rejected, f"sentence: more than {options.per_paper} of an abstract", len(usable) - len(spans)
            )
            own = dict(zip(block.tolist(), texts, strict=True))
            found.append(spans)
            keys.append(repeat_keys([own[row][a:b] for row, _, a, b in spans.tolist()]))
            advance(len(block))
    spans, key = np.concatenate(found), np.concatenate(keys)
    first = np.sort(np.unique(key, return_index=True)[1])
    papers, left = (len(np.unique(rows)) for rows in (spans["row"], spans["row"][first]))
    _reject_sentences(rejected, "sentence: repeats another one", len(spans) - len(first))
    _reject_sentences(rejected, "abstract: what was drawn of it repeats others", papers - left)
    if not len(first):
        told = "; ".join(f"{number:,} {reason}" for reason, number in rejected.items())
        raise EmptyResultError(
            f"no abstract of {corpus.folder} has a sentence and a rest ({told}); import papers with abstracts of at "
            f"least {options.least_sentences} sentences, or lower texts.least_sentences"
        )
    return DrawnSentences(spans[first], rejected)


def cloze_records(corpus: Corpus, options: DerivedTexts, *, reporter: Reporter = QUIET) -> DerivedRecords:
    """The derived corpus as records: sentences, rests, hubs for papers with several of them, citations."""
    drawn = draw_sentences(corpus, options, reporter=reporter)
    return DerivedRecords(_cloze_records(corpus, drawn.spans, options), drawn.facts())


def _cloze_records(corpus: Corpus, spans: NDArray[np.void], options: DerivedTexts) -> Iterator[StagedRecord]:
    whole = _keys(spans, options, "rest") >= np.uint64(min(options.removed * 2.0**64, 2.0**64 - 2048))
    several = np.zeros(len(corpus), bool)
    several[spans["row"][1:][spans["row"][1:] == spans["row"][:-1]]] = True
    for start in range(0, len(spans), BLOCK):
        block = spans[start : start + BLOCK]
        names = [f"{row}.{number}" for row, number in zip(block["row"].tolist(), block["number"].tolist(), strict=True)]
        texts, ids = corpus.abstracts.take(block["row"]), corpus.ids.take(block["row"])
        for name, text, id, (_, _, a, b), keep in zip(
            names, texts, ids, block.tolist(), whole[start : start + BLOCK].tolist(), strict=True
        ):
            rest = text if keep else f"{text[:a].rstrip()} {text[b:].lstrip()}"
            yield Paper(f"sentence:{name}", abstract=text[a:b].strip(), extra={"paper": id})
            yield Paper(f"rest:{name}", abstract=rest.strip(), extra={"paper": id})
        sentence, rest_of = (hash_texts([f"{kind}:{name}" for name in names]) for kind in ("sentence", "rest"))
        yield from cites(sentence, rest_of)
        hub = several[block["row"]]
        keys = hash_texts([f"paper:{row}" for row in block["row"].tolist()])
        for side in (sentence, rest_of):
            yield from cites(keys[hub], side[hub])
    for row in np.flatnonzero(several).tolist():
        yield Paper(f"paper:{row}", stub=True)


def _reject_sentences(rejected: dict[str, int], reason: str, number: int) -> None:
    if number:
        rejected[reason] = rejected.get(reason, 0) + number


def _abstracts(corpus: Corpus, rejected: dict[str, int]) -> NDArray[np.int64]:
    """Rows with an abstract, each text once."""
    filled = np.flatnonzero(corpus.abstracts.lengths() > 0)
    if not len(filled):
        raise EmptyResultError(
            f"{corpus.folder} has no abstracts; import a source that has them, such as S2ORC or PubMed"
        )
    rows = filled[np.sort(np.unique(corpus.abstracts.keys()[filled], return_index=True)[1])]
    counts = {"abstract: none": len(corpus) - len(filled), "abstract: repeats another one": len(filled) - len(rows)}
    rejected |= {reason: number for reason, number in counts.items() if number}
    return rows


def _spans(
    rows: NDArray[np.int64], texts: list[str], options: DerivedTexts, rejected: dict[str, int]
) -> NDArray[np.void]:
    """Every sentence that may be drawn, in order."""
    found: list[tuple[int, int, int, int]] = []
    short = f"abstract: under {options.least_sentences} sentences"
    for row, text in zip(rows.tolist(), texts, strict=True):
        places = [(a, b) for a, b in sentences(text) if text[a:b].strip()]
        if len(places) < options.least_sentences:
            _reject_sentences(rejected, short, 1)
            _reject_sentences(rejected, f"sentence: of an abstract {short.removeprefix('abstract: ')}", len(places))
            continue
        reasons = [word_reason(text[a:b], options.least_words, options.most_words) for a, b in places]
        for reason in filter(None, reasons):
            _reject_sentences(rejected, f"sentence: {reason}", 1)
        _reject_sentences(rejected, "abstract: no sentence of fitting length", int(all(reasons)))
        found += [(row, n, a, b) for n, (a, b) in enumerate(places) if not reasons[n]]
    return np.array(found, _SPAN)


def _drawn_sentences(spans: NDArray[np.void], options: DerivedTexts) -> NDArray[np.void]:
    """At most `per_paper` of every paper, those of the lowest random keys; in order of paper and place."""
    order = np.lexsort([_keys(spans, options, "sentence"), spans["row"]])
    row = spans["row"][order]
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    place = np.arange(len(row)) - np.repeat(starts, np.diff(np.append(starts, len(row))))
    return spans[np.sort(order[place < options.per_paper])]


def _keys(spans: NDArray[np.void], options: DerivedTexts, purpose: str) -> NDArray[np.uint64]:
    """A random number for every sentence, the same in any block."""
    salt = stream(options.seed, "texts", purpose).integers(2**63, dtype=np.uint64)
    rows, numbers = spans["row"].astype(np.uint64), spans["number"].astype(np.uint64)
    return mix(mix(rows, numbers), np.full(len(spans), salt))
