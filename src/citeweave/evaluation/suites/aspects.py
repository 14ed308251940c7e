"""The suite `aspects`: papers that share a problem, method or finding, in a synthetic literature.

    suite = make_suite(Corpus.open("synthetic/"), AspectSuiteOptions(papers=800, queries=200))

    problem, method, finding    a query is a paper and its sentences of that aspect; relevant are papers that share it
    all                         the queries of the three
    problem_space, ...          how many of the ten nearest papers of the whole literature share the aspect

A pool has up to 25 relevant papers, up to 25 that share each of the other two aspects but not this one, and 50 that share
nothing: about the size of CSFCube's, whose metrics these are. Candidates are complete papers. A model with one vector per
paper does not see which aspect is meant, so its best ranking of a pool cannot be right for all three. The queries of the
space tasks are complete papers: they are for a model in the space of that aspect, `--aspect matching`. Does not evaluate,
and needs the truth that only a corpus of `citeweave synthesize` has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import EmptyResultError
from citeweave.core.options import Range, check
from citeweave.core.ragged import to_offsets
from citeweave.core.randomness import stream
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.synthetic.literature import ASPECTS
from citeweave.corpus.synthetic.narration import Facet
from citeweave.corpus.synthetic.synthesize import PlantedTruth, open_truth
from citeweave.corpus.text import sentence_texts
from citeweave.evaluation.suites.aspire import REPORTED_NAMES, GradedQuery, clean_queries, make_pools
from citeweave.evaluation.tasks import Average, Pools, RankingRule, RankingTask, SearchTask, Suite, TaskTexts

NAME = "aspects"
TASKS = tuple(facet.name.lower() for facet in ASPECTS)
RULE = RankingRule(metrics=("av_precision", "ndcg%20"), family="csfcube", distance="cosine")
SPACE = "_space"
NEAREST = 10
SPACE_RULE = RankingRule(metrics=(f"P_cap_{NEAREST}",), distance="cosine")
LITERATURE = 5000
"""The space tasks search among so many papers, or among all drawn papers if those are more."""

RELEVANT, NEAR, RANDOM = 25, 25, 50
"""At most so many papers of a pool share the aspect, share each other aspect, share nothing."""

PURPOSE = "aspect suite"

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class AspectSuiteOptions:
    """How the suite `aspects` is drawn; every draw depends on the seed alone."""

    papers: Annotated[int, Range(1)] = 1000
    """At most so many papers, drawn from those with an abstract; an encoder reads no others."""

    queries: Annotated[int, Range(1)] = 200
    """At most so many queries per task, the same papers in each; those of a smaller suite are the first of a larger."""

    seed: int = 0

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class PlantedPapers:
    """Papers of the suite `aspects`, drawn from a synthetic literature, ascending, with the aspects planted in them."""

    corpus: Corpus
    truth: PlantedTruth
    rows: Rows

    @cached_property
    def codes(self) -> Mapping[str, NDArray[np.int32]]:
        """Aspect -> (papers,) codes; papers with equal codes share the aspect."""
        return {name: np.asarray(getattr(self.truth, name))[self.rows] for name in TASKS}

    @cached_property
    def facets(self) -> Sequence[NDArray[np.uint8]]:
        """The planted facet of every sentence of every paper."""
        return [self.truth.facet[slice(*self.truth.facet_offsets[row : row + 2])] for row in self.rows.tolist()]

    @cached_property
    def texts(self) -> TaskTexts:
        """The papers of the suite `aspects` in sentences, labeled with their facets."""
        corpus, rows = self.corpus, self.rows
        abstracts = corpus.abstracts.take(rows)
        sentences = [sentence_texts(abstract) for abstract in abstracts]
        assert [len(part) for part in sentences] == [len(part) for part in self.facets], "sentences are as planted"
        labels = [[Facet(code).name.lower() for code in part.tolist()] for part in self.facets]
        return TaskTexts(corpus.ids.take(rows), corpus.titles.take(rows), abstracts, sentences, labels)

    def shares(self, aspect: str, paper: int) -> NDArray[np.bool_]:
        """Return which papers share an aspect with a paper, (papers,), itself included."""
        codes = self.codes[aspect]
        return np.asarray(codes == codes[paper])


def make_suite(corpus: Corpus, options: AspectSuiteOptions | None = None) -> Suite:
    """Draw the suite `aspects` from a synthetic corpus; the same corpus and options give the same tasks."""
    options = options or AspectSuiteOptions()
    planted, without_abstract = _draw_papers(corpus, options.papers, options.seed)
    literature, _ = _draw_papers(corpus, max(options.papers, LITERATURE), options.seed)
    literature = literature if len(literature.rows) > len(planted.rows) else planted  # then papers are read once
    counts: Counter[str] = Counter()
    queries = {aspect: _draw_queries(planted, aspect, options, counts) for aspect in TASKS}
    if lost := [aspect for aspect, part in queries.items() if not part]:
        raise EmptyResultError(
            f"{corpus.folder}: no query of {', '.join(lost)} among {len(planted.rows):,} papers "
            f"({'; '.join(f'{what}: {number:,}' for what, number in counts.items()) or 'no paper has an abstract'}); "
            "take more papers (--papers) or synthesize a larger corpus"
        )
    all_queries = {**queries, "all": [query for part in queries.values() for query in part]}
    return Suite(
        NAME,
        (
            *(_make_pool_task(name, planted.texts, part) for name, part in all_queries.items()),
            *(
                _make_space_task(literature, aspect, [query.paper for query in part])
                for aspect, part in queries.items()
            ),
        ),
        averages={
            f"spaces.{metric}": Average(
                tuple(f"{aspect}{SPACE}.{metric}" for aspect in TASKS), note="mean of the three spaces"
            )
            for metric in SPACE_RULE.metrics
        },
        headline=("all.map", "all.ndcg%20"),
        notes=(
            *(f"{what}: {number:,}" for what, number in counts.items()),
            "synthetic literature: these numbers compare models and distances, they say nothing about real papers",
        ),
        data={
            "folder": str(corpus.folder),
            "corpus": corpus.hash,
            "options": asdict(options),
            "papers": len(planted.rows),
            "papers that spaces are searched for": len(literature.rows),
            "papers without abstract, never drawn": without_abstract,
            "queries": len(all_queries["all"]),
            "pairs": sum(len(query.candidates) for query in all_queries["all"]),
            "relevant pairs": sum(sum(query.grades) for query in all_queries["all"]),
        },
    )


def _draw_papers(corpus: Corpus, count: int, seed: int) -> tuple[PlantedPapers, int]:
    """Draw papers with an abstract, and count those without; a smaller draw is the first part of a larger one."""
    truth = open_truth(corpus)
    has_abstract = np.flatnonzero(np.diff(truth.facet_offsets))
    drawn = stream(seed, PURPOSE, "papers").permutation(has_abstract)[:count]
    return PlantedPapers(corpus, truth, np.sort(drawn).astype(np.int64)), len(corpus) - len(has_abstract)


def _draw_queries(
    planted: PlantedPapers, aspect: str, options: AspectSuiteOptions, counts: Counter[str]
) -> list[GradedQuery]:
    """Draw the queries of an aspect that have sentences and a pool, in an order that all aspects share."""
    queries: list[GradedQuery] = []
    order = stream(options.seed, PURPOSE, "queries").permutation(len(planted.rows))
    for paper in order.tolist():
        if len(queries) == options.queries:
            break
        rows = np.flatnonzero(planted.facets[paper] == Facet[aspect.upper()])
        right, wrong = _draw_pool(planted, aspect, paper, options.seed)
        if not len(rows):
            counts[f"{aspect}: queries left out, since no sentence of theirs is about it"] += 1
        elif not len(right) or not len(wrong):
            counts[f"{aspect}: queries left out, since no other paper, or every other, shares it"] += 1
        else:
            ids = planted.texts.ids
            name, pool = ids[paper], [ids[at] for at in (*right.tolist(), *wrong.tolist())]
            grades = [1] * len(right) + [0] * len(wrong)
            queries.append(GradedQuery(f"{name}_{aspect}", name, pool, grades, aspect, rows))
    return queries


def _draw_pool(planted: PlantedPapers, aspect: str, paper: int, seed: int) -> tuple[Rows, Rows]:
    """Draw a query's pool: papers that share the aspect, and others, first those that share another aspect."""
    rng = stream(seed, PURPOSE, aspect, int(planted.rows[paper]))
    shared = planted.shares(aspect, paper)
    taken = shared.copy()
    shared[paper] = False
    right = rng.permutation(np.flatnonzero(shared))[:RELEVANT]
    parts = []
    for other in TASKS:
        if other != aspect:
            near = planted.shares(other, paper) & ~taken
            parts.append(rng.permutation(np.flatnonzero(near))[:NEAR])
            taken |= near
    parts.append(rng.permutation(np.flatnonzero(~taken))[:RANDOM])
    return right, np.concatenate(parts)


def _make_pool_task(name: str, texts: TaskTexts, queries: Sequence[GradedQuery]) -> RankingTask:
    # sorted by id: in this family of metrics ties keep the order of candidates, which must not reveal relevance
    pools = make_pools(texts, clean_queries(queries, relevant=RULE.relevant)[0])
    return RankingTask(name, texts, pools, RULE, called=REPORTED_NAMES)


def _make_space_task(literature: PlantedPapers, aspect: str, papers: Sequence[str]) -> SearchTask:
    """Return the task of searching the literature for papers that share the aspect with each of these."""
    texts, queries = literature.texts, literature.texts.rows(papers)
    shared = [np.setdiff1d(np.flatnonzero(literature.shares(aspect, row)), row) for row in queries.tolist()]
    judged = Pools(
        queries,
        to_offsets([len(papers) for papers in shared]),
        np.concatenate(shared),
        np.ones(sum(map(len, shared)), np.int64),
        [f"{paper}_{aspect}" for paper in papers],
        groups=[aspect] * len(papers),
    )
    depth = NEAREST + 1  # the nearest of all is the paper itself, which does not count
    return SearchTask(aspect + SPACE, texts, queries, np.arange(len(texts)), judged, SPACE_RULE, depth)
