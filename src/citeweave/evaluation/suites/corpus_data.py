"""What a suite made from a corpus holds out: the reference lists of some papers, by year or by share.

    year:2016    papers from 2016 on are asked about; a model may learn from the citations of earlier ones
    share:0.1    a tenth of the papers, drawn by a hash of their ids

A citation belongs to its citing paper, as in `corpus.split`, so that training that splits by the same rule and seed
never sees an answer. Does not make tasks.

What the tasks of a suite share: the corpus with its citations, the papers with text, and one order to draw by.

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

from citeweave.core.columns import BLOCK
from citeweave.core.errors import EmptyResultError, UserError
from citeweave.core.randomness import hash_texts, stream
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.plain_text import fold
from citeweave.corpus.split import SplitPart, split_by_share, split_by_year
from citeweave.graph.citations import CitationGraph, graph_from_edges


@dataclass(frozen=True)
class CorpusSuiteOptions:
    """How a suite is made from a corpus; every draw depends on the seed alone."""

    held_out: str = "share:0.1"
    """Citing papers to ask about: `year:2016` (from that year on) or `share:0.1` (of all papers)."""

    queries: int = 1000
    """At most so many queries a task; those of a smaller suite are the first of a larger one."""

    seed: int = 0

    sample: int = 5000
    """Random candidates of all tasks come from so many papers: they are encoded once, whatever the corpus's size."""

    field_papers: int = 10_000
    """At most so many papers for `field`, training and test together."""

    number_papers: int = 5000
    """The same for `year` and for `citations`, whose probe is slow."""

    search_papers: int = 10_000
    """At most so many papers to search among."""

    def __post_init__(self) -> None:
        read_rule(self.held_out)
        for name in ("queries", "sample", "field_papers", "number_papers", "search_papers"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be 1 or more")


class HoldOutRule(NamedTuple):
    """What is held out, as numbers; one of the two is 0."""

    year: int = 0
    share: float = 0.0


def read_rule(text: str) -> HoldOutRule:
    """A rule from its text.

    >>> read_rule("year:2016"), read_rule("share:0.1")
    (Rule(year=2016, share=0.0), Rule(year=0, share=0.1))
    """
    kind, _, value = text.partition(":")
    try:
        rule = (
            HoldOutRule(year=int(value))
            if kind == "year"
            else HoldOutRule(share=float(value))
            if kind == "share"
            else HoldOutRule()
        )
    except ValueError:
        rule = HoldOutRule()
    if rule.year > 0 or 0 < rule.share < 1:
        return rule
    raise UserError(
        f"--held-out is {text!r}; it must be a year such as year:2016, or a share between 0 and 1 such as share:0.1"
    )


def held_out_rows(corpus: Corpus, options: CorpusSuiteOptions) -> NDArray[np.bool_]:
    """Whether each paper is held out, (papers,): its references are asked for and must not be trained on."""
    rule = read_rule(options.held_out)
    try:
        if rule.year:
            split = split_by_year(corpus.years, validation_from=rule.year, test_from=rule.year)
        else:
            split = split_by_share(corpus.ids, validation=0, test=rule.share, seed=options.seed)
    except EmptyResultError:
        raise EmptyResultError(f"--held-out {options.held_out} {_failure(corpus, rule, options.seed)}") from None
    return np.asarray(split.codes == SplitPart.TEST)


def training_graph(corpus: Corpus, options: CorpusSuiteOptions | None) -> CitationGraph:
    """The citations that a model may learn from: all but those of held-out papers; without options, all."""
    kept = slice(None) if options is None else ~held_out_rows(corpus, options)[corpus.citing]
    return graph_from_edges(
        corpus.citing[kept],
        corpus.cited[kept],
        len(corpus),
        intents=corpus.intents[kept],
        strengths=corpus.strengths[kept],
    )


def _failure(corpus: Corpus, rule: HoldOutRule, seed: int) -> str:
    if not rule.year:
        return (
            f"with seed {seed} leaves nothing on one side of {len(corpus):,} papers; "
            "choose a larger share or another seed"
        )
    known = corpus.years[corpus.years > 0]
    if not len(known):
        return "cannot be told: no paper has a year; hold out a share, such as share:0.1"
    return (
        f"leaves nothing on one side: the papers' years go from {known.min()} to {known.max()}; "
        "choose a later year than the first and none after the last"
    )


# What the tasks of a suite share: the corpus with its citations, the papers with text, and one order to draw by.

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
class SuiteData:
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
