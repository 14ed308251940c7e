"""What a suite made from a corpus holds out: the reference lists of some papers, by year or by share.

    year:2016    papers from 2016 on are asked about; a model may learn from the citations of earlier ones
    share:0.1    a tenth of the papers, drawn by a hash of their ids

A citation belongs to its citing paper, as in `corpus.split`, so that training that splits by the same rule and seed
never sees an answer. Does not make tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.corpus import Corpus
from citeweave.corpus.split import Part, split_by_share, split_by_year
from citeweave.errors import EmptyResultError, UserError
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


class Rule(NamedTuple):
    """What is held out, as numbers; one of the two is 0."""

    year: int = 0
    share: float = 0.0


def read_rule(text: str) -> Rule:
    """A rule from its text.

    >>> read_rule("year:2016"), read_rule("share:0.1")
    (Rule(year=2016, share=0.0), Rule(year=0, share=0.1))
    """
    kind, _, value = text.partition(":")
    try:
        rule = Rule(year=int(value)) if kind == "year" else Rule(share=float(value)) if kind == "share" else Rule()
    except ValueError:
        rule = Rule()
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
    return np.asarray(split.codes == Part.TEST)


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


def _failure(corpus: Corpus, rule: Rule, seed: int) -> str:
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
