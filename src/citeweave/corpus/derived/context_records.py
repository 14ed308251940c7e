"""Contexts as the records of a derived corpus: a text for each, hubs for their sets and for the papers they share.

    context:0, context:1        cite set:0, which cites both        they are `coupled`, and `cocited`
    shared:0                    cites context:0 and context:2       that share a paper: `cocited`

Which contexts there are, and what a set is, says `contexts.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from citeweave.columns import BLOCK
from citeweave.corpus.corpus import Contexts, Corpus
from citeweave.corpus.derived.contexts import ContextSets, Numbers, paper_lists, select_contexts, written
from citeweave.corpus.derived.options import DerivedTexts
from citeweave.corpus.derived.records import DerivedRecords, cites, hubs
from citeweave.corpus.paper import Paper, StagedRecord
from citeweave.hashing import hash_numbers
from citeweave.progress import QUIET, Reporter


def context_records(
    corpus: Corpus, options: DerivedTexts, *, before: Corpus | None = None, reporter: Reporter = QUIET
) -> DerivedRecords:
    """The derived corpus as records: a text for every context, hubs for sets and for shared papers, citations."""
    found = select_contexts(corpus, options, before=before, reporter=reporter)
    hub, member = _shared_papers(corpus.contexts, found, options.shared)
    return DerivedRecords(
        _records(corpus, found, hub, member, options), {**found.facts(), "shared papers": _count(hub)}
    )


def _records(
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
