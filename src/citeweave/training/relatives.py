"""Papers that are known to be related: they must not become negatives because they happen to be in one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from citeweave.graph.signals import Signal, related
from citeweave.hashing import hash_texts
from citeweave.training.data import Lists, Numbers

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.graph.citations import CitationGraph

RELATIVES = (Signal("connected"), Signal("cocited"), Signal("coupled", least=3))
"""Signals of the citation graph that make a paper no random negative; two shared references may be chance."""


def find_relatives(corpus: Corpus, graph: CitationGraph, rows: Numbers) -> Lists:
    """Related papers of every paper among those that take part: by citations, by co-citation, by references in
    common, and by equal titles."""
    owners, others = _same_titles(corpus, rows)
    for signal in RELATIVES:
        found = related(graph, signal, rows)
        owner = np.repeat(np.arange(len(rows)), np.diff(found.offsets))
        place = np.minimum(np.searchsorted(rows, found.targets), len(rows) - 1)
        inside = rows[place] == found.targets
        owners, others = np.concatenate([owners, owner[inside]]), np.concatenate([others, place[inside]])
    pairs = np.unique(np.stack([owners, others], axis=1), axis=0)  # (pairs, 2)
    counts = np.bincount(pairs[:, 0], minlength=len(rows))
    return Lists(np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]), pairs[:, 1])


def _same_titles(corpus: Corpus, rows: Numbers) -> tuple[Numbers, Numbers]:
    """Pairs of papers whose titles are the same but for case and blanks, both ways."""
    titles = [" ".join(title.lower().split()) for title in corpus.titles.take(rows)]
    keys = np.where([bool(title) for title in titles], hash_texts(titles), np.arange(len(rows), dtype=np.uint64))
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=~keys[order[:1]]))
    twins = [order[a:b] for a, b in zip(starts, [*starts[1:], len(order)], strict=True) if b - a > 1]
    pairs = [(int(left), int(right)) for same in twins for left in same for right in same if left != right]
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]
