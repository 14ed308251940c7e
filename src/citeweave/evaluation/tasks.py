"""Tasks as data: what is asked, of which papers, by which metric. `running/` judges them, `suites/` makes them.

    RankingTask   order a query's pool so that what is relevant comes first (SciDocs, MDCR, CSFCube, RELISH, ...)
    SearchTask    find a question's papers among all papers (BEIR)
    ProbeTask     learn classes, labels or numbers from some papers' vectors, tell those of others
    ClickTask     learn from clicks which of the shown papers is opened next (SciDocs' recommendations)

A suite is a list of them, with the published ways of averaging. Does not read files and does not score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import EmptyResultError, UserError
from citeweave.evaluation.texts import Texts

if TYPE_CHECKING:
    from citeweave.evaluation.probes import ProbeRule

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
        cls, texts: Texts, pools: Mapping[str, Mapping[str, int]], *, groups: Mapping[str, str] | None = None
    ) -> Pools:
        """From `{query id: {candidate id: grade}}`; every id must be among the texts.

        >>> texts = Texts.of_ids(["q", "a", "b"], lacking="papers.jsonl")
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
    texts: Texts
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
    texts: Texts
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
    texts: Texts
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
    texts: Texts
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
