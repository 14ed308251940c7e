"""What the tasks of a suite share: the corpus with its citations, the papers with text, and one order to draw by.

    order     every paper with a title, shuffled once by the seed
    sample    the first of them: random candidates of every query come from these

Tasks that need any papers at all take the first of `order`, so that they share papers, and an encoder reads few.
Does not choose queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import BLOCK
from citeweave.corpus.cleaning import fold
from citeweave.corpus.corpus import Corpus
from citeweave.evaluation.suites.making.holding_out import CorpusSuiteOptions, held_out_rows
from citeweave.graph.citations import CitationGraph, graph_from_edges
from citeweave.hashing import hash_texts
from citeweave.randomness import stream

Rows = NDArray[np.int64]
"""Rows of the corpus."""

PURPOSE = "corpus suite"
NO_CITATIONS = "the corpus has no citations"


class CannotAskError(Exception):
    """The corpus cannot give a task; the text says why. Never leaves `make_suite`."""


class Fields(NamedTuple):
    """The first field of every paper."""

    names: Sequence[str]

    codes: NDArray[np.int32]
    """(papers,) place of the field among the names, -1 where a paper has none."""


@dataclass(frozen=True)
class Material:
    """A corpus and what is made of it once, when it is first needed."""

    corpus: Corpus
    options: CorpusSuiteOptions

    def stream(self, *purpose: str | int) -> np.random.Generator:
        """Random numbers of this suite for one purpose."""
        return stream(self.options.seed, PURPOSE, *purpose)

    @property
    def has_references(self) -> bool:
        """Whether papers cite anything, in the corpus or outside."""
        return len(self.corpus.citing) > 0 or len(self.corpus.references_outside("citing")) > 0

    @cached_property
    def held(self) -> NDArray[np.bool_]:
        """(papers,) whose references are asked for."""
        if not self.has_references:
            raise CannotAskError(NO_CITATIONS)
        return held_out_rows(self.corpus, self.options)

    def require_citations(self) -> None:
        """Stop a task that needs citations between papers of the corpus."""
        if not len(self.corpus.citing):
            raise CannotAskError(NO_CITATIONS)

    @cached_property
    def graph(self) -> CitationGraph:
        """All citations."""
        return graph_from_edges(self.corpus.citing, self.corpus.cited, len(self.corpus))

    @cached_property
    def held_graph(self) -> CitationGraph:
        """Citations of held-out papers."""
        kept = self.held[self.corpus.citing]
        return graph_from_edges(self.corpus.citing[kept], self.corpus.cited[kept], len(self.corpus))

    @cached_property
    def readable(self) -> NDArray[np.bool_]:
        """(papers,) which have a title; others are neither queries nor candidates."""
        return self.corpus.titles.lengths() > 0

    @cached_property
    def order(self) -> Rows:
        """Every paper with a title, shuffled."""
        return self.stream("order").permutation(np.flatnonzero(self.readable))

    @property
    def sample(self) -> Rows:
        return self.order[: self.options.sample]

    @cached_property
    def citing_queries(self) -> Rows:
        """Held-out papers with references in the corpus, in the order in which tasks ask about them."""
        self.require_citations()
        cites = np.diff(self.graph.cited.offsets) > 0  # (papers,)
        found = np.flatnonzero(self.held & cites & self.readable)
        if not len(found):
            raise CannotAskError(
                f"no paper held out by {self.options.held_out} cites a paper of the corpus; hold out others"
            )
        return self.stream("citing papers").permutation(found)

    @cached_property
    def title_keys(self) -> NDArray[np.uint64]:
        """(papers,) hash of the folded title: papers that share it are most likely one paper under two ids."""
        titles, keys = self.corpus.titles, np.empty(len(self.corpus), np.uint64)
        for start in range(0, len(keys), BLOCK):
            keys[start : start + BLOCK] = hash_texts([fold(title) for title in titles[start : start + BLOCK]])
        return keys

    @cached_property
    def fields(self) -> Fields:
        places: dict[str, int] = {}
        firsts = (text.partition("\n")[0] for text in self.corpus.fields)
        codes = np.array([places.setdefault(name, len(places)) if name else -1 for name in firsts], np.int32)
        return Fields(list(places), codes)

    def first_distinct(self, rows: Rows, count: int, banned: NDArray[np.uint64]) -> Rows:
        """The first `count` rows that have a title, none of which is banned or given before, by `title_keys`."""
        rows = rows[self.readable[rows]]
        keys = self.title_keys[rows]
        fresh = ~np.isin(keys, banned)
        first = np.unique(keys[fresh], return_index=True)[1]
        return np.asarray(rows[fresh][np.sort(first)][:count])
