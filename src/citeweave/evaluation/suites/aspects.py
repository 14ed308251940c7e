"""Papers that share a problem, a method or a finding, in a made-up literature, where it is known who shares what.

    suite = make_suite(Corpus.open("made-up/"), AspectSuiteOptions(papers=800, queries=200))

    problem, method, finding    a query is a paper and its sentences of that aspect; relevant is who shares the aspect
    all                         the queries of the three
    problem_space, ...          the ten nearest papers of the whole literature: how many share the aspect

A pool has up to 25 relevant papers, up to 25 that share each of the other two aspects but not this one, and 50 that
share nothing: about the size of CSFCube's, whose metrics these are. Candidates are whole. A model with one vector a
paper does not see which aspect is asked for, so its best ranking of a pool cannot be right for all three. The tasks of
the spaces ask with the whole paper: they are for a model in the space of that aspect, `--aspect matching`.
Does not judge, and does not know what a real paper is about: only a corpus of `citeweave synthesize` has the truth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import EmptyResultError, UserError
from citeweave.core.randomness import stream
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.synthetic.literature import ASPECTS, Facet
from citeweave.corpus.synthetic.synthesize import PlantedTruth, open_truth
from citeweave.corpus.text import sentence_texts
from citeweave.evaluation.suites.aspire import CALLED
from citeweave.evaluation.suites.benchmark_records import GradedQuery, clean_queries, make_pools
from citeweave.evaluation.tasks import Average, Pools, RankingRule, RankingTask, SearchTask, Suite, TaskTexts

NAME = "aspects"
TASKS = tuple(facet.name.lower() for facet in ASPECTS)
RULE = RankingRule(metrics=("av_precision", "ndcg%20"), family="csfcube", distance="cosine")
SPACE = "_space"
NEAREST = 10
SPACE_RULE = RankingRule(metrics=(f"P_cap_{NEAREST}",), distance="cosine")
LITERATURE = 5000
"""The tasks of the spaces search among so many papers, or among as many as are drawn if those are more."""

RELEVANT, NEAR, RANDOM = 25, 25, 50
"""At most so many papers of a pool share the aspect, share each of the others, share nothing."""

PURPOSE = "aspect suite"

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class AspectSuiteOptions:
    """How the suite is made; every draw depends on the seed alone."""

    papers: int = 1000
    """At most so many papers, drawn from those with an abstract: an encoder reads no others."""

    queries: int = 200
    """At most so many queries a task, the same papers in each; those of a smaller suite are the first of a larger."""

    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("papers", "queries"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} is {getattr(self, name)}; it must be 1 or more")


@dataclass(frozen=True)
class Planted:
    """The papers that were drawn, ascending, with what was planted in them."""

    corpus: Corpus
    truth: PlantedTruth
    rows: Rows

    @cached_property
    def codes(self) -> Mapping[str, NDArray[np.int32]]:
        """Aspect -> (papers,) equal numbers share it."""
        return {name: np.asarray(getattr(self.truth, name))[self.rows] for name in TASKS}

    @cached_property
    def facets(self) -> Sequence[NDArray[np.uint8]]:
        """The Facet of every sentence of every paper."""
        return [self.truth.facet[slice(*self.truth.facet_offsets[row : row + 2])] for row in self.rows.tolist()]

    @cached_property
    def texts(self) -> TaskTexts:
        corpus, rows = self.corpus, self.rows
        abstracts = corpus.abstracts.take(rows)
        sentences = [sentence_texts(abstract) for abstract in abstracts]
        assert [len(part) for part in sentences] == [len(part) for part in self.facets], "sentences are as planted"
        labels = [[Facet(code).name.lower() for code in part.tolist()] for part in self.facets]
        return TaskTexts(corpus.ids.take(rows), corpus.titles.take(rows), abstracts, sentences, labels)

    def shares(self, aspect: str, paper: int) -> NDArray[np.bool_]:
        """(papers,) who shares an aspect with a paper, itself too."""
        codes = self.codes[aspect]
        return np.asarray(codes == codes[paper])


def make_suite(corpus: Corpus, options: AspectSuiteOptions | None = None) -> Suite:
    """The tasks of a made-up corpus; the same corpus and options give the same tasks."""
    options = options or AspectSuiteOptions()
    planted, without_abstract = _draw_papers(corpus, options.papers, options.seed)
    whole, _ = _draw_papers(corpus, max(options.papers, LITERATURE), options.seed)
    whole = whole if len(whole.rows) > len(planted.rows) else planted  # then papers are read once
    counts: Counter[str] = Counter()
    queries = {aspect: _queries(planted, aspect, options, counts) for aspect in TASKS}
    if lost := [aspect for aspect, part in queries.items() if not part]:
        raise EmptyResultError(
            f"{corpus.folder}: no query of {', '.join(lost)} among {len(planted.rows):,} papers "
            f"({'; '.join(f'{what}: {number:,}' for what, number in counts.items()) or 'no paper has an abstract'}); "
            "take more papers (--papers) or make a larger corpus"
        )
    asked = {**queries, "all": [query for part in queries.values() for query in part]}
    return Suite(
        NAME,
        (
            *(_task(name, planted.texts, part) for name, part in asked.items()),
            *(_space_task(whole, aspect, [query.paper for query in part]) for aspect, part in queries.items()),
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
            "made up: these numbers compare models and distances, they say nothing about real papers",
        ),
        data={
            "folder": str(corpus.folder),
            "corpus": corpus.hash,
            "options": asdict(options),
            "papers": len(planted.rows),
            "papers that spaces are searched for": len(whole.rows),
            "papers without abstract, never drawn": without_abstract,
            "queries": len(asked["all"]),
            "pairs": sum(len(query.candidates) for query in asked["all"]),
            "relevant pairs": sum(sum(query.grades) for query in asked["all"]),
        },
    )


def _draw_papers(corpus: Corpus, count: int, seed: int) -> tuple[Planted, int]:
    """Some papers with an abstract, and how many have none; fewer are the first of more."""
    truth = open_truth(corpus)
    told = np.flatnonzero(np.diff(truth.facet_offsets))
    drawn = stream(seed, PURPOSE, "papers").permutation(told)[:count]
    return Planted(corpus, truth, np.sort(drawn).astype(np.int64)), len(corpus) - len(told)


def _queries(planted: Planted, aspect: str, options: AspectSuiteOptions, counts: Counter[str]) -> list[GradedQuery]:
    """Those that can be asked, the first in an order that all aspects share."""
    found: list[GradedQuery] = []
    order = stream(options.seed, PURPOSE, "queries").permutation(len(planted.rows))
    for paper in order.tolist():
        if len(found) == options.queries:
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
            found.append(GradedQuery(f"{name}_{aspect}", name, pool, grades, aspect, rows))
    return found


def _draw_pool(planted: Planted, aspect: str, paper: int, seed: int) -> tuple[Rows, Rows]:
    """Who shares the aspect, and others: first those that share another aspect, then those that share none."""
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


def _task(name: str, texts: TaskTexts, queries: Sequence[GradedQuery]) -> RankingTask:
    # sorted by id: in this family ties keep the given order, which must not tell what is relevant
    pools = make_pools(texts, clean_queries(queries, relevant=RULE.relevant).queries)
    return RankingTask(name, texts, pools, RULE, called=CALLED)


def _space_task(whole: Planted, aspect: str, papers: Sequence[str]) -> SearchTask:
    """Who shares the aspect with each of these papers, among all."""
    texts, queries = whole.texts, whole.texts.rows(papers)
    shared = [np.setdiff1d(np.flatnonzero(whole.shares(aspect, row)), row) for row in queries.tolist()]
    judged = Pools(
        queries,
        np.cumsum([0, *map(len, shared)]),
        np.concatenate(shared),
        np.ones(sum(map(len, shared)), np.int64),
        [f"{paper}_{aspect}" for paper in papers],
        groups=[aspect] * len(papers),
    )
    depth = NEAREST + 1  # the nearest of all is the paper itself, which is no answer
    return SearchTask(aspect + SPACE, texts, queries, np.arange(len(texts)), judged, SPACE_RULE, depth)
