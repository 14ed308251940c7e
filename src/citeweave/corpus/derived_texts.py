"""Derived texts: their records, their filters, and citing sentences that are paraphrases; `derive.py` has the other kinds.

A derived text is written as a paper without a title. Texts are related by citations and by textless hubs. Sentences that
cite exactly the same papers are paraphrases of each other:

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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import BLOCK
from citeweave.core.errors import EmptyResultError
from citeweave.core.hash_keys import Keys, hash_numbers, hash_text, hash_texts, mix_keys
from citeweave.core.progress import Reporter
from citeweave.core.ragged import Longs, number_within, owners_of, run_offsets, spans, to_offsets
from citeweave.core.randomness import stream
from citeweave.corpus.corpus import Contexts, Corpus
from citeweave.corpus.options import DerivedTexts
from citeweave.corpus.paper import CitationBlock, Paper, StagedRecord
from citeweave.corpus.readers import SOURCES_OF

Mask = NDArray[np.bool_]

STEP = 1 << 20
"""Citations per block."""


@dataclass(frozen=True, slots=True)
class DerivedRecords:
    """The records of a derived corpus, streamed, and their counts for its manifest."""

    records: Iterable[StagedRecord]
    counts: dict[str, Any]


def citation_blocks(citing: Keys, cited: Keys) -> Iterator[CitationBlock]:
    """Yield the citations between derived texts in blocks, from the keys of their ids, both (citations,)."""
    for start in range(0, len(citing), STEP):
        left, right = citing[start : start + STEP], cited[start : start + STEP]
        none = np.zeros(len(left), np.uint8)
        yield CitationBlock(left, right, none, np.ones(len(left), np.float32), none.astype(bool), lambda: ([], []))


# --- filters of texts ------------------------------------------------------------------------------

_BRACKETS = re.compile(r"\(.*?\)|\[.*?\]", re.DOTALL)
_DIGITS = re.compile(r"\d+")


def word_reason(text: str, min_words: int, max_words: int) -> str:
    """Filter of derived texts: why a sentence is rejected for its number of words, empty where it is accepted.

    >>> word_reason("We agree.", 5, 80)
    'under 5 words'
    """
    words = len(text.split())
    if words < min_words:
        return f"under {min_words} words"
    return f"over {max_words} words" if words > max_words else ""


def bracket_reason(text: str) -> str:
    """Return why a citing sentence is rejected for lacking citation brackets, empty where it has some."""
    return "" if _BRACKETS.search(text) else "no brackets"


def repeat_keys(texts: list[str]) -> Keys:
    """Filter of derived texts: keys that are equal for repeated sentences, which differ only in numbers and white space.

    >>> first, second = repeat_keys(["As in [3] we walk.", "As in [14] we walk."])
    >>> bool(first == second)
    True
    """
    return hash_texts([" ".join(_DIGITS.sub("0", text).split()) for text in texts])


def is_first(keys: Keys) -> Mask:
    """Filter of derived texts: which keys occur for the first time, to drop repeats.

    >>> is_first(np.array([5, 2, 5], np.uint64)).tolist()
    [True, True, False]
    """
    first = np.zeros(len(keys), bool)
    first[np.unique(keys, return_index=True)[1]] = True
    return first


def draw_per_group(groups: NDArray[Any], keys: Keys, number: int, seed: int, purpose: str) -> Mask:
    """Filter of derived texts: which are drawn at random, at most `number` of each group; `keys` identify the texts."""
    order = np.lexsort([random_keys(keys, seed, purpose), groups])
    drawn = np.zeros(len(order), bool)
    drawn[order] = number_within(np.diff(run_offsets(groups[order]))) < number
    return drawn


def random_keys(keys: Keys, seed: int, purpose: str) -> Keys:
    """Return a random key for every derived text, independent of the block it is in."""
    return mix_keys(keys, np.full(len(keys), stream(seed, "texts", purpose).integers(2**63, dtype=np.uint64)))


def list_rejected(rejected: Mapping[str, int]) -> str:
    """Return the reasons why derived texts were rejected as one line for an error message.

    >>> list_rejected({"under 5 words": 1200, "no brackets": 3, "over 9 words": 0})
    '1,200 under 5 words; 3 no brackets'
    """
    return "; ".join(f"{number:,} {reason}" for reason, number in rejected.items() if number)


# --- contexts: citing sentences that are paraphrases -----------------------------------------------

_MARKS = re.compile(r"\s*(?:\([^()]*\d[^()]*\)|\[[^\[\]]*\d[^\[\]]*\])")
_ALONE = "no other context cites the same papers"


def context_records(corpus: Corpus, options: DerivedTexts, before: Corpus | None, reporter: Reporter) -> DerivedRecords:
    """Return the records of a corpus of paraphrases: a text per citing sentence, hubs for sets and shared papers."""
    if not len(corpus.contexts):
        raise EmptyResultError(
            f"{corpus.folder} has no citing sentences; import a source that has them: {SOURCES_OF['context']}"
        )
    rejected: Counter[str] = Counter()
    numbers, keys = _select_contexts(corpus.contexts, options, before, rejected, reporter)
    if not len(numbers):
        raise EmptyResultError(
            f"no two contexts of {corpus.folder} are paraphrases ({list_rejected(rejected)}); import more papers with full text, or relax "
            "the filters of [texts]"
        )
    sets = np.unique(keys, return_inverse=True)[1].astype(np.int64)
    hub, member = _shared_papers(corpus.contexts, numbers, sets, options.shared)
    sizes, hubs = np.bincount(sets), int(hub.max(initial=-1)) + 1
    counts = {
        "contexts": len(numbers),
        "sets": len(sizes),
        "largest set": int(sizes.max(initial=0)),
        "pairs": int((sizes * (sizes - 1) // 2).sum()),
        "rejected": dict(+rejected),
        "shared papers": hubs,
    }

    def records() -> Iterator[StagedRecord]:
        yield from _context_papers(corpus, numbers, options)
        for kind, count in (("set", len(sizes)), ("shared", hubs)):
            yield from (Paper(f"{kind}:{number}", stub=True) for number in range(count))
        text_keys, set_keys = hash_numbers("context:", numbers), hash_numbers("set:", sets)
        yield from citation_blocks(text_keys, set_keys)
        yield from citation_blocks(set_keys, text_keys)
        yield from citation_blocks(hash_numbers("shared:", hub), text_keys[member])

    return DerivedRecords(records(), counts)


def _context_papers(corpus: Corpus, numbers: Longs, options: DerivedTexts) -> Iterator[Paper]:
    """Yield citing sentences as papers, with the id of the citing paper."""
    table = corpus.contexts
    for start in range(0, len(numbers), BLOCK):
        block = numbers[start : start + BLOCK]
        citing = table.citing[block]
        writers = corpus.ids.take(np.maximum(citing, 0)) if len(corpus) else [""] * len(block)
        columns = block.tolist(), table.texts.take(block), citing.tolist(), writers
        for number, text, row, writer in zip(*columns, strict=True):
            extra: dict[str, object] = {"citing": writer} if row >= 0 else {}
            yield Paper(f"context:{number}", abstract=_without_marks(text, options), extra=extra)


def _select_contexts(
    table: Contexts, options: DerivedTexts, before: Corpus | None, rejected: Counter[str], reporter: Reporter
) -> tuple[Longs, Keys]:
    """Return the citing sentences that have a paraphrase, by ASPIRE's filters, with the keys of their sets.

    The filters: number of cited papers, length, brackets, no repeats, one sentence per citing paper and set. `before` is
    the corpus before papers were excluded from it: citing sentences of the excluded papers are left out too.
    """
    numbers, keys = _candidates(table, options, before, rejected)

    def keep(good: Mask, reason: str) -> None:
        nonlocal numbers, keys
        rejected[reason] += int((~good).sum())
        numbers, keys = numbers[good], keys[good]

    keep(_several(keys), _ALONE)
    fits, repeats = _read_texts(table, numbers, options, rejected, reporter)
    numbers, keys = numbers[fits], keys[fits]
    keep(is_first(repeats[fits]), "repeats another sentence")
    keep(is_first(mix_keys(keys, _citing_keys(table, numbers))), "the same paper cites the same papers again")
    keep(_several(keys), _ALONE)
    drawn = draw_per_group(keys, numbers.astype(np.uint64), options.max_contexts, options.seed, "contexts of a set")
    keep(drawn, f"one of over {options.max_contexts} of a set")
    return numbers, keys


def candidate_contexts(corpus: Corpus, options: DerivedTexts) -> Longs:
    """Return the contexts that may have a paraphrase, without reading their texts; for cost estimates."""
    numbers, keys = _candidates(corpus.contexts, options, None, Counter())
    once = is_first(mix_keys(keys, _citing_keys(corpus.contexts, numbers)))
    return numbers[once][_several(keys[once])]


def _candidates(
    table: Contexts, options: DerivedTexts, before: Corpus | None, rejected: Counter[str]
) -> tuple[Longs, Keys]:
    """Return the contexts of known citing papers that cite enough papers, with the keys of their sets."""
    numbers, keys = [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)]
    for start in range(0, len(table), BLOCK):
        stop = min(start + BLOCK, len(table))
        counts, sums = _set_keys(table, start, stop)
        citing, citing_keys = table.citing[start:stop], np.ascontiguousarray(table.citing_keys[start:stop])
        reasons = {
            f"fewer than {options.min_papers} papers cited": counts < options.min_papers,
            f"more than {options.max_papers} papers cited": (counts > options.max_papers) & (options.max_papers > 0),
            "citing paper unknown": (citing < 0) & (citing_keys == 0),
        }
        if before is not None:
            reasons["citing paper left the corpus"] = (citing < 0) & (before.index.rows_of(citing_keys) >= 0)
        good = np.ones(stop - start, bool)
        for reason, is_so in reasons.items():
            rejected[reason] += int((good & is_so).sum())
            good &= ~is_so
        numbers.append(start + np.flatnonzero(good))
        keys.append(sums[good])
    return np.concatenate(numbers), np.concatenate(keys)


def _set_keys(table: Contexts, start: int, stop: int) -> tuple[Longs, Keys]:
    """Return how many papers each context of a block cites, and one key per set of cited papers, whatever its order."""
    counts, sums = np.zeros(stop - start, np.int64), np.zeros(stop - start, np.uint64)
    for offsets, paper_keys in _cited_lists(table):
        ends = np.asarray(offsets[start : stop + 1])
        keys = paper_keys(np.arange(ends[0], ends[-1]))
        total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(keys, dtype=np.uint64)])  # may wrap around
        sums += total[ends[1:] - ends[0]] - total[ends[:-1] - ends[0]]
        counts += np.diff(ends)
    return counts, sums


def _cited_lists(table: Contexts) -> list[tuple[Longs, Any]]:
    """Return the offsets of the cited papers in and outside the corpus, each with a function from positions to keys."""

    def keys_of(values: NDArray[Any], kind: str) -> Any:
        salt = hash_text(kind)
        return lambda places: mix_keys(values[places].astype(np.uint64), np.full(len(places), salt))

    inside, outside = keys_of(table.cited, "in the corpus"), keys_of(table.outside, "outside")
    return [(table.cited_offsets, inside), (table.outside_offsets, outside)]


def _read_texts(
    table: Contexts, numbers: Longs, options: DerivedTexts, rejected: Counter[str], reporter: Reporter
) -> tuple[Mask, Keys]:
    """Return which contexts pass the filters of words and brackets, and keys that are equal for repeated texts."""
    fits, repeats = np.zeros(len(numbers), bool), np.zeros(len(numbers), np.uint64)
    with reporter.task("reading", len(numbers), "contexts") as advance:
        for start in range(0, len(numbers), BLOCK):
            texts = table.texts.take(numbers[start : start + BLOCK])
            reasons = [_text_reason(text, options) for text in texts]
            rejected.update(filter(None, reasons))
            fits[start : start + BLOCK] = [not reason for reason in reasons]
            repeats[start : start + BLOCK] = repeat_keys(texts)
            advance(len(texts))
    return fits, repeats


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


def _citing_keys(table: Contexts, numbers: Longs) -> Keys:
    """Return one key per citing paper: its row where it is in the corpus, since it may have several ids."""
    rows = table.citing[numbers]
    own = mix_keys(np.maximum(rows, 0).astype(np.uint64), np.full(len(rows), hash_text("in the corpus")))
    return np.where(rows >= 0, own, table.citing_keys[numbers])


def _several(keys: Keys) -> Mask:
    """Return which keys of sets occur at least twice, so that their contexts have paraphrases.

    >>> _several(np.array([5, 2, 5], np.uint64)).tolist()
    [True, False, True]
    """
    _, place, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return counts[place] > 1


def _shared_papers(table: Contexts, numbers: Longs, sets: Longs, max_contexts: int) -> tuple[Longs, Longs]:
    """Return the cited papers that contexts of several sets share, as (hub, position of the context), both (citations,).

    Papers cited by more than `max_contexts` contexts get no hub, and neither do papers that only one set cites: its
    contexts have the hub of their set.
    """
    papers, members = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for offsets, paper_keys in _cited_lists(table):
        counts = np.diff(offsets)[numbers]
        papers.append(paper_keys(spans(offsets[numbers], counts)))
        members.append(owners_of(to_offsets(counts)))
    paper, member = np.concatenate(papers), np.concatenate(members)
    order = np.lexsort([member, paper])
    paper, member = paper[order], member[order]
    runs = run_offsets(paper)
    starts, sizes = runs[:-1], np.diff(runs)
    several = np.minimum.reduceat(sets[member], starts) < np.maximum.reduceat(sets[member], starts)
    useful = several & (sizes <= max_contexts)
    keep = np.repeat(useful, sizes)
    return np.repeat(np.cumsum(useful) - 1, sizes)[keep], member[keep]
