"""The papers and questions that a suite asks about: ids, and what an encoder may read of them.

    >>> texts = TaskTexts(ids=["p1", "p2"], titles=["A title", "Another"], abstracts=["One. Two.", ""])
    >>> texts.rows(["p2", "p3"]).tolist(), texts.paper_texts()
    ([1, -1], ['A title[SEP]One. Two.', 'Another'])

A question of a search task is a row of its own: its text stands as the title.
Does not hold vectors, and does not know tasks.

Sums of distances: `mean_best+token_best`.

Each part's scores are standardized within a query's candidates, to mean 0 and deviation 1, and then added: z-scores, which
sum well whatever scale a distance has (Montague and Aslam, SIGIR 2001, ZMUV). A distance that is named twice counts twice.

    >>> sentences, tokens = np.array([-0.5, -0.7, -0.9]), np.array([-3.0, -1.0, -2.0])
    >>> add_up([sentences, tokens], np.array([0, 3])).round(2).tolist()
    [0.0, 1.22, -1.22]

A candidate without an answer by one part has none by the sum.

Tasks as data: what is asked, of which papers, by which metric. `running/` judges them, `suites/` makes them.

    RankingTask   order a query's pool so that what is relevant comes first (SciDocs, MDCR, CSFCube, RELISH, ...)
    SearchTask    find a question's papers among all papers (BEIR)
    ProbeTask     learn classes, labels or numbers from some papers' vectors, tell those of others
    ClickTask     learn from clicks which of the shown papers is opened next (SciDocs' recommendations)

A suite is a list of them, with the published ways of averaging. Does not read files and does not score.

The published ways of averaging a suite's numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import EmptyResultError, InputError, UserError
from citeweave.core.files import hash_json
from citeweave.corpus.text import TextRecipe, paper_text, sentence_texts

if TYPE_CHECKING:
    from citeweave.evaluation.probes import ProbeRule


_RECIPE = TextRecipe()


class NoTextsError(InputError):
    """The file with a suite's texts is not there."""


@dataclass(frozen=True)
class TaskTexts:
    """One row a paper or question. Rows are what tasks point to; ids are what reports and vector files say."""

    ids: Sequence[str]
    titles: Sequence[str]
    abstracts: Sequence[str]

    sentences: Sequence[Sequence[str]] | None = None
    """The abstract as the suite splits it; without it `sentences_of` splits."""

    labels: Sequence[Sequence[str]] | None = None
    """What each of those sentences is about (CSFCube's facets)."""

    lacking: str = ""
    """The file that would hold the texts, where it is absent: then only given vectors can be judged."""

    _rows: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._rows.update({name: row for row, name in reversed(list(enumerate(self.ids)))})

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of_ids(cls, ids: Sequence[str], *, lacking: str) -> TaskTexts:
        """Papers of which only the ids are known."""
        return cls(ids, [""] * len(ids), [""] * len(ids), lacking=lacking)

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The row of every id, -1 where it has none; of equal ids the first row."""
        return np.array([self._rows.get(name, -1) for name in ids], np.int64)

    def paper_texts(self, recipe: TextRecipe = _RECIPE) -> list[str]:
        """What an encoder reads of each row."""
        self.require()
        return [paper_text(title, text, recipe) for title, text in zip(self.titles, self.abstracts, strict=True)]

    def sentences_of(self, row: int) -> Sequence[str]:
        """The sentences of one abstract; the title where there is no abstract."""
        if self.sentences is not None and len(self.sentences[row]):
            return self.sentences[row]
        return sentence_texts(self.abstracts[row]) or [text for text in [self.titles[row]] if text]

    def require(self) -> None:
        """Stop where there are no texts to read."""
        if self.lacking:
            raise NoTextsError(
                f"the texts of this suite are missing: {self.lacking} is not there; add it, or judge vectors from a file"
            )

    @property
    def without_text(self) -> int:
        """Rows with neither title nor abstract; 0 where no texts are there at all."""
        return self.count_without_text(range(len(self)))

    def count_without_text(self, rows: Iterable[int]) -> int:
        """The same among some rows."""
        return 0 if self.lacking else sum(not self.titles[row] and not self.abstracts[row] for row in rows)

    @cached_property
    def hash(self) -> str:
        """Hash of the content: the same papers in the same order, the same hash."""
        return hash_json(
            {
                "ids": list(self.ids),
                "titles": list(self.titles),
                "abstracts": list(self.abstracts),
                "sentences": None if self.sentences is None else [list(texts) for texts in self.sentences],
            }
        )

    @cached_property
    def tie_order(self) -> NDArray[np.int64]:
        """Place of every row's id among all ids in the order of strings: how trec_eval breaks ties."""
        order = np.argsort(np.array(self.ids, dtype=object), kind="stable")
        places = np.empty(len(self.ids), np.int64)
        places[order] = np.arange(len(self.ids))
        return places


# Sums of distances: `mean_best+token_best`.

PLUS = "+"


def parts_of(distance: str) -> tuple[str, ...]:
    """
    >>> parts_of("mean_best+token_best"), parts_of("cosine"), parts_of("cosine+")
    (('mean_best', 'token_best'), ('cosine',), ('cosine', ''))
    """
    return tuple(distance.split(PLUS))


def add_up(parts: Sequence[NDArray[np.float64]], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """The sum of the standardized parts, (pairs,) each; a single part as it is."""
    if len(parts) == 1:
        return parts[0]
    total: NDArray[np.float64] = np.sum([standardized(part, offsets) for part in parts], axis=0)
    return total


def standardized(scores: NDArray[np.float64], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Scores (pairs,) of queries, each query's from offsets[i] to offsets[i + 1], with mean 0 and deviation 1.

    NaN and -inf stay what they are and do not count; where all answers are equal they become 0.

    >>> standardized(np.array([1.0, 3.0, np.nan, 5.0, 5.0]), np.array([0, 3, 5])).tolist()
    [-1.0, 1.0, nan, 0.0, 0.0]
    """
    found = scores.copy()
    for low, high in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        answered = low + np.flatnonzero(np.isfinite(scores[low:high]))
        if len(answered):
            apart = scores[answered] - scores[answered].mean()
            found[answered] = apart / (apart.std() or 1)
    return found


# Tasks as data: what is asked, of which papers, by which metric. `running/` judges them, `suites/` makes them.

DISTANCES: tuple[str, ...] = ("cosine", "l2", "dot")
"""Between two vectors. Sentence vectors have their own: `similarity.transport`."""

MISSING = ("wrong", "peers")
"""A paper without vector: a wrong answer, or whatever the peer's own code does."""


@dataclass(frozen=True)
class Pools:
    """Queries, each with its candidates and their grades; flat arrays, `offsets` says where a pool begins."""

    queries: NDArray[np.int64]
    """(queries,) rows of the texts."""

    offsets: NDArray[np.int64]
    """(queries + 1,)"""

    candidates: NDArray[np.int64]
    """(pairs,) rows of the texts."""

    grades: NDArray[np.int64]
    """(pairs,) how relevant a candidate is, 0 = not at all."""

    names: Sequence[str]
    """What reports call each query: its id, with the facet where it has one."""

    sentences: Sequence[NDArray[np.int64] | None] | None = None
    """Which sentences of each query count (aspect search), None = all."""

    groups: Sequence[str] | None = None
    """The field of each query, for tables by field; where queries ask about one aspect of a paper, that aspect."""

    scored: NDArray[np.bool_] | None = None
    """(pairs,) False for what is judged but never put to the test (reviewer matching's soft file), None = all are."""

    def __len__(self) -> int:
        return len(self.queries)

    @classmethod
    def of(
        cls, texts: TaskTexts, pools: Mapping[str, Mapping[str, int]], *, groups: Mapping[str, str] | None = None
    ) -> Pools:
        """From `{query id: {candidate id: grade}}`; every id must be among the texts.

        >>> texts = TaskTexts.of_ids(["q", "a", "b"], lacking="papers.jsonl")
        >>> Pools.of(texts, {"q": {"a": 1, "b": 0}}).candidates.tolist()
        [1, 2]
        """
        names = list(pools)
        sizes = [len(pools[name]) for name in names]
        candidates = texts.rows([paper for name in names for paper in pools[name]])
        queries = texts.rows(names)
        if (candidates < 0).any() or (queries < 0).any():
            raise UserError("a pool names papers that are not among the texts; give the texts of every id")
        return cls(
            queries=queries,
            offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            candidates=candidates,
            grades=np.array([grade for name in names for grade in pools[name].values()], np.int64),
            names=names,
            groups=None if groups is None else [groups.get(name, "") for name in names],
        )


@dataclass(frozen=True)
class RankingRule:
    """How a pool's ranking is judged; the defaults are trec_eval's."""

    metrics: tuple[str, ...]
    """Names of `evaluation.metrics`."""

    distance: str = "l2"
    """Of the protocol; the user may choose another."""

    family: str = "trec"
    """`trec`, or `csfcube` for the metrics of CSFCube's and ASPIRE's scripts."""

    relevant: int = 1
    """Lowest grade that is relevant."""

    decimals: int | None = None
    """Scores are rounded to so many decimals before they are ranked (SciDocs: 5)."""

    peers: str = "drop"
    """What the peer does with missing vectors: `drop` leaves the query or candidate out, `stop` stops."""


@dataclass(frozen=True)
class RankingTask:
    name: str
    texts: TaskTexts
    pools: Pools
    rule: RankingRule
    folds: Sequence[Sequence[str]] = ()
    """Names of queries, fold by fold: the value is the mean of the folds' means. Without folds, the mean of all."""

    reviewers: Reviewers | None = None
    """Candidates are people, each with papers: see `Reviewers`."""

    called: Mapping[str, str] = field(default_factory=dict)
    """Other names for metrics in the report."""


@dataclass(frozen=True)
class Reviewers:
    """A candidate stands for a person: the score is the mean of the `top` best scores over the person's papers."""

    offsets: NDArray[np.int64]
    """(rows of texts + 1,) where the papers of the person in this row begin."""

    papers: NDArray[np.int64]
    """Rows of the texts."""

    top: int = 3


@dataclass(frozen=True)
class SearchTask:
    """Find a question's papers among all candidates; only the best `depth` are ranked, as in BEIR."""

    name: str
    texts: TaskTexts
    queries: NDArray[np.int64]
    candidates: NDArray[np.int64]
    judged: Pools
    """Grades of the judged papers alone; every other candidate is not relevant."""

    rule: RankingRule
    depth: int = 1000
    own: NDArray[np.int64] | None = None
    """(queries,) the candidate that is the question itself, never an answer to it; -1 = none."""


@dataclass(frozen=True)
class ProbeTask:
    """A linear probe: learn from `train`, tell `test`."""

    name: str
    texts: TaskTexts
    kind: str
    """`classes` (one a paper), `labels` (several, multi-hot) or `numbers`."""

    train: NDArray[np.int64]
    train_answers: NDArray[Any]
    test: NDArray[np.int64]
    test_answers: NDArray[Any]
    rule: ProbeRule
    metrics: Mapping[str, str]
    """Name in the report -> name of the metric, such as `{"f1": "f1_macro"}`."""

    few_shot: tuple[tuple[int, int], ...] = ()
    """(sample size, iterations) of SciRepEval's few-shot protocol; each becomes a task of its own, `NAME 64-shot`."""

    shots: tuple[int, int] | None = None
    """The one of them that this task is about; None = learn from all of `train`."""

    missing_as: str = "zeros"
    """What the peer does with a paper without vector: `zeros` (SciDocs) or `left out` (SciRepEval)."""


@dataclass(frozen=True)
class ClickTask:
    """SciDocs' recommendations: a small network learns from clicks, given the papers' metadata and vectors."""

    name: str
    texts: TaskTexts
    clicks: Any
    """What `evaluation.clicks` read: the clicks of train, validation and test, the propensities, the metadata."""


Task: TypeAlias = RankingTask | SearchTask | ProbeTask | ClickTask


@dataclass(frozen=True)
class Average:
    """A published way of averaging: the mean of metrics, or of means of metrics, all of which must be there."""

    parts: tuple[str | tuple[str, ...], ...]
    """Names such as `cite.map`; those of an inner tuple are averaged first."""

    decimals: int | None = None
    """Each part is rounded before the mean, and the mean after it (MDCR: 4)."""

    note: str = ""


@dataclass(frozen=True)
class Suite:
    """A benchmark as read from a folder."""

    name: str
    tasks: tuple[Task, ...]
    averages: Mapping[str, Average] = field(default_factory=dict)
    headline: tuple[str, ...] = ()
    """The metrics that stand for the suite, such as `all.map`; those that `compare` weighs. Empty = every metric."""

    not_evaluated: Mapping[str, str] = field(default_factory=dict)
    """Task -> why it cannot be judged, such as the file that is missing."""

    notes: tuple[str, ...] = ()
    """What a careful reader must know about this data."""

    data: Mapping[str, Any] = field(default_factory=dict)
    """What was read: folder, files with their hashes, counts."""

    def choose(self, names: Sequence[str]) -> Suite:
        """Only these tasks."""
        every = tuple(part for task in self.tasks for part in _parts(task))
        known = [task.name for task in every]
        for name in names:
            if name not in known and name in self.not_evaluated:
                raise UserError(f"{self.name} cannot judge {name}: {self.not_evaluated[name]}")
            if name not in known:
                raise UserError(f"{self.name} has no task {name!r}; it has {', '.join(known)}")
        tasks = tuple(task for task in every if not names or task.name in names)
        if not tasks:
            reasons = "; ".join(f"{name}: {why}" for name, why in self.not_evaluated.items())
            raise EmptyResultError(f"no task of {self.name} can be judged ({reasons})")
        others = tuple(f"{name}:" for name in known if name not in {task.name for task in tasks})
        notes = tuple(note for note in self.notes if not note.startswith(others))
        return replace(self, tasks=tasks, notes=notes)


def _parts(task: Task) -> list[Task]:
    """A task, and after it one for each of its few-shot settings."""
    if not isinstance(task, ProbeTask) or not task.few_shot:
        return [task]
    whole = replace(task, few_shot=())
    return [
        whole,
        *(replace(whole, name=f"{task.name} {size}-shot", shots=(size, most)) for size, most in task.few_shot),
    ]


# The published ways of averaging a suite's numbers.


def averages_of(averages: Mapping[str, Average], metrics: Mapping[str, float]) -> dict[str, float]:
    """Every average whose parts are all there; an average over less would not be the published one.

    >>> averages_of({"avg": Average(("a.f1", ("b.map", "b.ndcg")))}, {"a.f1": 80.0, "b.map": 60.0, "b.ndcg": 70.0})
    {'avg': 72.5}
    >>> averages_of({"avg": Average(("a.f1", "c.f1"))}, {"a.f1": 80.0})
    {}
    """
    found = {}
    for name, average in averages.items():
        parts = [part if isinstance(part, tuple) else (part,) for part in average.parts]
        if all(metric in metrics for part in parts for metric in part):
            values = [np.mean([metrics[metric] for metric in part]) for part in parts]
            if average.decimals is not None:
                found[name] = round(float(np.mean(np.round(values, average.decimals))), average.decimals)
            else:
                found[name] = float(np.mean(values))
    return found
