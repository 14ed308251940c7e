"""What the tasks of a corpus suite share: held-out references, the training graph, one order to draw by.

    year:2016    papers from 2016 on are queries; a model may learn from the citations of earlier ones
    share:0.1    a tenth of the papers, drawn by a hash of their ids

A citation belongs to its citing paper, as in `corpus/split.py`, so that training that splits by the same rule and seed never
sees a held-out citation.

    order     every paper with a title, shuffled once by the seed
    sample    the first of them: random candidates of every query come from these

Tasks that can use any papers take the first of `order`, so that they share papers and an encoder reads few. Does not make
tasks and does not choose queries: see `from_corpus.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import BLOCK
from citeweave.core.errors import EmptyResultError
from citeweave.core.hash_keys import hash_texts
from citeweave.core.randomness import stream
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.plain_text import fold
from citeweave.corpus.split import SplitPart, split_by_share, split_by_year
from citeweave.evaluation.options import CorpusSuiteOptions
from citeweave.graph.citations import CitationGraph, graph_from_edges

Rows = NDArray[np.int64]
"""Rows of the corpus."""

PURPOSE = "corpus suite"
NO_CITATIONS = "the corpus has no citations"


def held_out_rows(corpus: Corpus, options: CorpusSuiteOptions) -> NDArray[np.bool_]:
    """Return which papers the data of a corpus suite hold out, (papers,): a model must not learn from their references."""
    year, share = options.rule
    try:
        if year:
            split = split_by_year(corpus.years, validation_from=year, test_from=year)
        else:
            split = split_by_share(corpus.ids, validation=0, test=share, seed=options.seed)
    except EmptyResultError:
        raise EmptyResultError(
            f"--held-out {options.held_out} {_explain_empty_split(corpus, year, options.seed)}"
        ) from None
    return np.asarray(split.codes == SplitPart.TEST)


def training_graph(corpus: Corpus, options: CorpusSuiteOptions | None) -> CitationGraph:
    """Return a corpus suite's citations to learn from: all but those of held-out papers; without options, all."""
    trained = slice(None) if options is None else ~held_out_rows(corpus, options)[corpus.citing]
    return graph_from_edges(
        corpus.citing[trained],
        corpus.cited[trained],
        len(corpus),
        intents=corpus.intents[trained],
        strengths=corpus.strengths[trained],
    )


def _explain_empty_split(corpus: Corpus, year: int, seed: int) -> str:
    if not year:
        return (
            f"with seed {seed} leaves nothing on one side of {len(corpus):,} papers; "
            "choose a larger share or another seed"
        )
    known = corpus.years[corpus.years > 0]
    if not len(known):
        return "cannot be applied: no paper has a year; hold out a share, such as share:0.1"
    return (
        f"leaves nothing on one side: the papers' years go from {known.min()} to {known.max()}; "
        "choose a later year than the first and none after the last"
    )


class TaskUnavailableError(Exception):
    """A task that the corpus cannot give; the text says why. Never leaves `make_suite`."""


class PaperFields(NamedTuple):
    """The first field of study of every paper, among the data of a corpus suite."""

    names: Sequence[str]

    codes: NDArray[np.int32]
    """(papers,) place of the field among the names, -1 where a paper has none."""


@dataclass(frozen=True)
class SuiteData:
    """Data of a corpus suite: the corpus and what its tasks share, each computed once, when it is first needed."""

    corpus: Corpus
    options: CorpusSuiteOptions

    def stream(self, *purpose: str | int) -> np.random.Generator:
        """Return the suite's random generator for one purpose."""
        return stream(self.options.seed, PURPOSE, *purpose)

    @property
    def has_references(self) -> bool:
        """Whether papers of the corpus cite anything, inside it or outside."""
        return len(self.corpus.citing) > 0 or len(self.corpus.references_outside("citing")) > 0

    @cached_property
    def held_out(self) -> NDArray[np.bool_]:
        """(papers,) whether a paper's references are held out."""
        if not self.has_references:
            raise TaskUnavailableError(NO_CITATIONS)
        return held_out_rows(self.corpus, self.options)

    def require_citations(self) -> None:
        """Raise TaskUnavailableError for a task that needs citations where the corpus has none."""
        if not len(self.corpus.citing):
            raise TaskUnavailableError(NO_CITATIONS)

    @cached_property
    def graph(self) -> CitationGraph:
        """All citations of the corpus."""
        return graph_from_edges(self.corpus.citing, self.corpus.cited, len(self.corpus))

    @cached_property
    def held_graph(self) -> CitationGraph:
        """The citations of held-out papers."""
        is_held = self.held_out[self.corpus.citing]
        return graph_from_edges(self.corpus.citing[is_held], self.corpus.cited[is_held], len(self.corpus))

    @cached_property
    def has_title(self) -> NDArray[np.bool_]:
        """(papers,) whether a paper has a title; others are neither queries nor candidates."""
        return self.corpus.titles.lengths() > 0

    @cached_property
    def order(self) -> Rows:
        """Every paper with a title, shuffled: the order in which tasks take papers."""
        return self.stream("order").permutation(np.flatnonzero(self.has_title))

    @property
    def sample(self) -> Rows:
        """The papers from which random candidates are drawn."""
        return self.order[: self.options.sample]

    @cached_property
    def citing_queries(self) -> Rows:
        """A corpus suite's held-out papers with references in the corpus, in the order that all its tasks share."""
        self.require_citations()
        cites = np.diff(self.graph.cited.offsets) > 0  # (papers,)
        queries = np.flatnonzero(self.held_out & cites & self.has_title)
        if not len(queries):
            raise TaskUnavailableError(
                f"no paper held out by {self.options.held_out} cites a paper of the corpus; hold out other papers"
            )
        return self.stream("citing papers").permutation(queries)

    @cached_property
    def title_keys(self) -> NDArray[np.uint64]:
        """(papers,) hash of the folded title: papers that share it are most likely one paper under two ids."""
        titles, keys = self.corpus.titles, np.empty(len(self.corpus), np.uint64)
        for start in range(0, len(keys), BLOCK):
            keys[start : start + BLOCK] = hash_texts([fold(title) for title in titles[start : start + BLOCK]])
        return keys

    @cached_property
    def fields(self) -> PaperFields:
        """The first field of every paper."""
        places: dict[str, int] = {}
        firsts = (text.partition("\n")[0] for text in self.corpus.fields)
        codes = np.array([places.setdefault(name, len(places)) if name else -1 for name in firsts], np.int32)
        return PaperFields(list(places), codes)

    def first_distinct(self, rows: Rows, count: int, banned: NDArray[np.uint64]) -> Rows:
        """Return a corpus suite's first `count` rows with a title whose `title_keys` are neither banned nor repeated."""
        rows = rows[self.has_title[rows]]
        keys = self.title_keys[rows]
        fresh = ~np.isin(keys, banned)
        first = np.unique(keys[fresh], return_index=True)[1]
        return np.asarray(rows[fresh][np.sort(first)][:count])
