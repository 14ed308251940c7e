"""Evaluation tasks as data: the papers, queries, labels and metrics that a benchmark suite is made of.

    RankingTask   rank a query's pool of candidates, relevant ones first (SciDocs, MDCR, CSFCube, RELISH, ...)
    SearchTask    find the relevant papers of a query among all papers (BEIR)
    ProbeTask     learn classes, labels or numbers from the vectors of some papers, predict those of others
    ClickTask     learn from clicks which of the papers shown is opened next (SciDocs' recommendations)

A `Suite` is a list of tasks with its published averages. Tasks point to rows of `TaskTexts`, the ids and texts of papers;
the question of a search task is a row too, with its text as the title. Equal tasks have the same `fingerprint`.

    >>> texts = TaskTexts(ids=["p1", "p2"], titles=["A title", "Another"], abstracts=["One. Two.", ""])
    >>> texts.rows(["p2", "p3"]).tolist(), texts.paper_texts()
    ([1, -1], ['A title[SEP]One. Two.', 'Another'])

Does not read files (`suites/` does), hold vectors or score: `run_tasks.py` evaluates a system on a task.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import EmptyResultError, InputError, UserError, choose
from citeweave.core.files import hash_json
from citeweave.core.ragged import Ragged, owners_of, to_offsets
from citeweave.corpus.text import TextRecipe, paper_text, sentence_texts

QUESTION = "query:"
"""Before the ids of a search task's questions where some of them are ids of papers too."""

CLASS_LOSSES = ("squared_hinge", "hinge")
NUMBER_LOSSES = ("epsilon_insensitive", "squared_epsilon_insensitive")
SOLVERS = ("auto", "newton", "sklearn", "lightning")

_RECIPE = TextRecipe()


class NoTextsError(InputError):
    """The file with the texts of a suite is missing, so only precomputed vectors or scores can be evaluated."""


@dataclass(frozen=True)
class TaskTexts:
    """Ids, titles and abstracts of a suite's papers and questions, one row each; tasks point to rows, reports to ids."""

    ids: Sequence[str]
    titles: Sequence[str]
    abstracts: Sequence[str]

    sentences: Sequence[Sequence[str]] | None = None
    """Each abstract as the suite splits it; without it `sentences_of` splits abstracts."""

    labels: Sequence[Sequence[str]] | None = None
    """The aspect that each of those sentences is about (CSFCube's facets)."""

    lacking: str = ""
    """Name of the file with the texts where it is missing: only precomputed vectors can be evaluated then."""

    _rows: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._rows.update({name: row for row, name in reversed(list(enumerate(self.ids)))})

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of_ids(cls, ids: Sequence[str], *, lacking: str) -> TaskTexts:
        """Make the task texts of papers of which only the ids are known."""
        return cls(ids, [""] * len(ids), [""] * len(ids), lacking=lacking)

    def append(self, ids: Sequence[str], titles: Sequence[str] = ()) -> TaskTexts:
        """Return the task texts with more rows, such as questions, or papers of which only the ids are known."""
        blank: list[Any] = [[] for _ in ids]
        return TaskTexts(
            [*self.ids, *ids],
            [*self.titles, *(titles or [""] * len(ids))],
            [*self.abstracts, *[""] * len(ids)],
            None if self.sentences is None else [*self.sentences, *blank],
            None if self.labels is None else [*self.labels, *blank],
            self.lacking,
        )

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of every paper id, -1 for an unknown id; of equal ids the first row."""
        return np.array([self._rows.get(name, -1) for name in ids], np.int64)

    def paper_texts(self, recipe: TextRecipe = _RECIPE) -> list[str]:
        """Return the text that an encoder reads for each row: title and abstract by the text recipe."""
        self.require()
        return [paper_text(title, text, recipe) for title, text in zip(self.titles, self.abstracts, strict=True)]

    def sentences_of(self, row: int) -> Sequence[str]:
        """Return the sentences of one row's abstract, or its title where it has no abstract."""
        if self.sentences is not None and len(self.sentences[row]):
            return self.sentences[row]
        return sentence_texts(self.abstracts[row]) or [text for text in [self.titles[row]] if text]

    def require(self) -> None:
        """Raise NoTextsError if the file with the suite's texts is missing."""
        if self.lacking:
            raise NoTextsError(
                f"the texts of this suite are missing: {self.lacking} does not exist; add it, or evaluate vectors from a file"
            )

    @property
    def without_text(self) -> int:
        """Number of rows with neither title nor abstract; 0 where the file with the texts is missing."""
        return self.count_without_text(range(len(self)))

    def count_without_text(self, rows: Iterable[int]) -> int:
        """Count those of these rows that have neither title nor abstract."""
        return 0 if self.lacking else sum(not self.titles[row] and not self.abstracts[row] for row in rows)

    @cached_property
    def hash(self) -> str:
        """Hash of a task's texts (ids, titles, abstracts, sentences): equal for the same papers in the same order."""
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
        """(rows,) position of each row's id among all ids in string order, by which trec_eval breaks ties."""
        return np.argsort(np.argsort(np.array(self.ids, dtype=object), kind="stable"), kind="stable")


@dataclass(frozen=True)
class Pools:
    """Queries of a task with candidates and relevance grades as flat arrays; a query's pool begins at its `offsets`."""

    queries: NDArray[np.int64]
    """(queries,) rows of the texts."""

    offsets: NDArray[np.int64]
    """(queries + 1,)"""

    candidates: NDArray[np.int64]
    """(pairs,) rows of the texts."""

    grades: NDArray[np.int64]
    """(pairs,) relevance of each candidate, 0 = not relevant."""

    names: Sequence[str]
    """Name of each query in reports: its id, with the facet where it has one."""

    sentences: Sequence[NDArray[np.int64] | None] | None = None
    """Which sentences of each query count (aspect search), None = all."""

    groups: Sequence[str] | None = None
    """Scientific field of each query, for tables by field; in aspect search, the aspect that the query asks about."""

    scored: NDArray[np.bool_] | None = None
    """(pairs,) False for candidates with a grade that are never ranked (reviewer matching's soft file), None = all are."""

    def __len__(self) -> int:
        return len(self.queries)

    def span(self, query: int) -> slice:
        """Return where the pairs of the query with this number are."""
        return Ragged(self.offsets).span(query)

    def owners(self) -> NDArray[np.int64]:
        """Return the number of the query of every pair, (pairs,)."""
        return owners_of(self.offsets)

    @classmethod
    def of(cls, texts: TaskTexts, pools: Mapping[str, Mapping[str, int]]) -> Pools:
        """Make a task's pools from `{query id: {candidate id: grade}}`; every id must be among the texts.

        >>> texts = TaskTexts.of_ids(["q", "a", "b"], lacking="papers.jsonl")
        >>> Pools.of(texts, {"q": {"a": 1, "b": 0}}).candidates.tolist()
        [1, 2]
        """
        names = list(pools)
        candidates = texts.rows([paper for name in names for paper in pools[name]])
        queries = texts.rows(names)
        if (candidates < 0).any() or (queries < 0).any():
            raise UserError("a pool names papers that are not among the texts; give the texts of every id")
        return cls(
            queries=queries,
            offsets=to_offsets([len(pools[name]) for name in names]),
            candidates=candidates,
            grades=np.array([grade for name in names for grade in pools[name].values()], np.int64),
            names=names,
        )


@dataclass(frozen=True)
class RankingRule:
    """Rule of a task with pools: metrics and distance by which rankings are scored; the defaults are trec_eval's."""

    metrics: tuple[str, ...]
    """Names of `evaluation.metrics`."""

    distance: str = "l2"
    """Distance of the protocol; the user may choose another."""

    family: str = "trec"
    """`trec`, or `csfcube` for the metrics of CSFCube's and ASPIRE's scripts."""

    relevant: int = 1
    """Lowest grade that is relevant."""

    decimals: int | None = None
    """Number of decimals that scores are rounded to before ranking (SciDocs: 5)."""

    peers: str = "drop"
    """What the original code does with missing vectors: `drop` leaves the query or candidate out, `stop` stops."""


@dataclass(frozen=True)
class RankingTask:
    """Task to rank the candidates in each query's pool so that relevant papers come first."""

    name: str
    texts: TaskTexts
    pools: Pools
    rule: RankingRule
    folds: Sequence[Sequence[str]] = ()
    """Names of queries, fold by fold: the value is the mean of the folds' means. Without folds, the mean of all."""

    reviewers: Reviewers | None = None
    """The papers of each candidate where candidates are people."""

    called: Mapping[str, str] = field(default_factory=dict)
    """Metric -> its other name in the report."""


@dataclass(frozen=True)
class Reviewers(Ragged):
    """Task data of reviewer matching: the papers of each person, who scores the mean of the `top` best ones.

    There is one list of papers for each row of the texts, empty for rows that are papers.
    """

    papers: NDArray[np.int64]
    """Rows of the texts."""

    top: int = 3


@dataclass(frozen=True)
class SearchTask:
    """Task to find the relevant papers of each question among all candidates; the best `depth` are ranked, as in BEIR."""

    name: str
    texts: TaskTexts
    queries: NDArray[np.int64]
    candidates: NDArray[np.int64]
    judgments: Pools
    """Relevance judgments; a candidate without one is not relevant."""

    rule: RankingRule
    depth: int = 1000
    own: NDArray[np.int64] | None = None
    """(queries,) the candidate that is the question itself and is never a hit for it; -1 = none."""


@dataclass(frozen=True, slots=True)
class ProbeRule:
    """Protocol of a linear probe: loss, solver, and how its C is chosen."""

    grid: tuple[float, ...]
    """The values of C, tried in this order; of equally good ones the first is taken."""

    loss: str = "squared_hinge"
    """squared_hinge | hinge for classes and labels, epsilon_insensitive | squared_epsilon_insensitive for numbers."""

    folds: int = 3
    """Number of folds of the training papers, each held out once; not shuffled."""

    intercept: bool = True
    seed: int = 42
    passes: int = 1000
    """Maximum number of passes over the papers, for sklearn and lightning."""

    solver: str = "auto"
    """auto | newton | sklearn | lightning; auto depends on loss and intercept, see `probes.py`."""

    def __post_init__(self) -> None:
        choose(self.loss, CLASS_LOSSES + NUMBER_LOSSES, "loss")
        choose(self.solver, SOLVERS, "solver")
        if not self.grid or not all(math.isfinite(c) and c > 0 for c in self.grid):
            raise UserError(f"grid is {self.grid}; it must hold values of C above 0")
        if self.folds < 2 or self.passes < 1:
            raise UserError(
                f"folds is {self.folds} and passes {self.passes}; there must be at least 2 folds and 1 pass"
            )
        if not 0 <= self.seed < 2**31:
            raise UserError(f"seed is {self.seed}; it must be from 0 to {2**31 - 1}")
        if self.solver == "newton" and self.loss != "squared_hinge":
            raise UserError(f"the solver newton has no loss {self.loss}; use squared_hinge, or another solver")
        if self.solver == "lightning" and self.intercept:
            raise UserError("the solver lightning has no intercept; set intercept to False, or use another solver")

    @property
    def chosen_solver(self) -> str:
        """Which solver the linear probes of this rule use, `auto` resolved by loss and intercept."""
        if self.solver != "auto":
            return self.solver
        if self.loss == "squared_hinge":
            return "newton"
        return "sklearn" if self.intercept else "lightning"


SCIDOCS_CLASSES = ProbeRule(tuple(np.logspace(-4, 2, 7).tolist()))
SCIREPEVAL_CLASSES = ProbeRule(tuple(np.logspace(-2, 2, 5).tolist()))
SCIREPEVAL_LABELS = ProbeRule(tuple(np.logspace(-2, 2, 5).tolist()), loss="hinge", passes=10_000)
SCIREPEVAL_NUMBERS = ProbeRule(tuple(np.logspace(-4, 2, 7).tolist()), loss="epsilon_insensitive")


@dataclass(frozen=True)
class ProbeTask:
    """Task of a linear probe: learn the labels of `train` from vectors, predict those of `test`."""

    name: str
    texts: TaskTexts
    kind: str
    """`classes` (one per paper), `labels` (several per paper, multi-hot) or `numbers`."""

    train: NDArray[np.int64]
    train_labels: NDArray[Any]
    test: NDArray[np.int64]
    test_labels: NDArray[Any]
    rule: ProbeRule
    metrics: Mapping[str, str]
    """Name in the report -> name of the metric, such as `{"f1": "f1_macro"}`."""

    few_shot: tuple[tuple[int, int], ...] = ()
    """(sample size, iterations) of SciRepEval's few-shot protocol; each becomes a task of its own, `NAME 64-shot`."""

    shots: tuple[int, int] | None = None
    """The few-shot setting of this task; None = learn from all of `train`."""

    missing_as: str = "zeros"
    """What the original code does with a paper without a vector: `zeros` (SciDocs) or `left out` (SciRepEval)."""


@dataclass(frozen=True)
class ClickTask:
    """Task of SciDocs' recommendations: learn from clicks, metadata and vectors to rank the papers shown."""

    name: str
    texts: TaskTexts
    clicks: Any
    """`clicks.ClickData`: the clicks of train, validation and test, propensities, metadata."""


Task: TypeAlias = RankingTask | SearchTask | ProbeTask | ClickTask


@dataclass(frozen=True)
class Average:
    """A published average over a suite's tasks: the mean of metrics, or of means of metrics, all of which must exist."""

    parts: tuple[str | tuple[str, ...], ...]
    """Metric names such as `cite.map`; those of an inner tuple are averaged first."""

    decimals: int | None = None
    """Each part is rounded before the mean, and the mean after it (MDCR: 4)."""

    note: str = ""


@dataclass(frozen=True)
class Suite:
    """A benchmark suite as data: its tasks, published averages, headline metrics and notes."""

    name: str
    tasks: tuple[Task, ...]
    averages: Mapping[str, Average] = field(default_factory=dict)
    headline: tuple[str, ...] = ()
    """Metrics that stand for the suite, such as `all.map`, and that `compare` tests. Empty = every metric."""

    not_evaluated: Mapping[str, str] = field(default_factory=dict)
    """Task -> why it cannot be evaluated, such as the file that is missing."""

    notes: tuple[str, ...] = ()
    """Notes for the report: what a careful reader must know about this data."""

    data: Mapping[str, Any] = field(default_factory=dict)
    """Provenance of the data: folder, files with their hashes, counts."""

    def choose(self, names: Sequence[str]) -> Suite:
        """Return the suite with the named tasks only, or with every task where none is named."""
        every = tuple(part for task in self.tasks for part in _with_few_shot(task))
        known = [task.name for task in every]
        for name in names:
            if name not in known and name in self.not_evaluated:
                raise UserError(f"{self.name} cannot evaluate {name}: {self.not_evaluated[name]}")
            if name not in known:
                raise UserError(f"{self.name} has no task {name!r}; it has {', '.join(known)}")
        tasks = tuple(task for task in every if not names or task.name in names)
        if not tasks:
            reasons = "; ".join(f"{name}: {why}" for name, why in self.not_evaluated.items())
            raise EmptyResultError(f"no task of {self.name} can be evaluated ({reasons})")
        others = tuple(f"{name}:" for name in known if name not in {task.name for task in tasks})
        notes = tuple(note for note in self.notes if not note.startswith(others))
        return replace(self, tasks=tasks, notes=notes)


def _with_few_shot(task: Task) -> list[Task]:
    """Return a task followed by one task for each of its few-shot settings."""
    if not isinstance(task, ProbeTask) or not task.few_shot:
        return [task]
    full = replace(task, few_shot=())
    return [full, *(replace(full, name=f"{task.name} {shots[0]}-shot", shots=shots) for shots in task.few_shot)]


def compute_averages(averages: Mapping[str, Average], metrics: Mapping[str, float]) -> dict[str, float]:
    """Compute the published averages over a suite's tasks from its metrics; one whose parts are incomplete is left out.

    >>> compute_averages({"avg": Average(("a.f1", ("b.map", "b.ndcg")))}, {"a.f1": 80.0, "b.map": 60.0, "b.ndcg": 70.0})
    {'avg': 72.5}
    >>> compute_averages({"avg": Average(("a.f1", "c.f1"))}, {"a.f1": 80.0})
    {}
    """
    means = {}
    for name, average in averages.items():
        parts = [part if isinstance(part, tuple) else (part,) for part in average.parts]
        if all(metric in metrics for part in parts for metric in part):
            values = [np.mean([metrics[metric] for metric in part]) for part in parts]
            if average.decimals is not None:
                means[name] = round(float(np.mean(np.round(values, average.decimals))), average.decimals)
            else:
                means[name] = float(np.mean(values))
    return means


def fingerprint(value: object) -> str:
    """Hash a task by its content (SHA-256): the same task has the same fingerprint wherever its files are.

    Dataclasses count by name and fields, arrays by type, shape and bytes.

    >>> fingerprint({"a": np.arange(3)}) == fingerprint({"a": np.arange(3)}), fingerprint([1]) == fingerprint([1.5])
    (True, False)
    """
    digest = hashlib.sha256()
    _feed(digest, value)
    return digest.hexdigest()


def _feed(digest: Any, value: object) -> None:
    """Feed a part of a task into the digest of its fingerprint."""
    if isinstance(value, TaskTexts):
        digest.update(value.hash.encode())
    elif isinstance(value, np.ndarray):
        digest.update(f"array {value.dtype} {value.shape}".encode())
        if value.dtype == object:
            _feed(digest, value.tolist())
        else:
            digest.update(np.ascontiguousarray(value).tobytes())
    elif is_dataclass(value) and not isinstance(value, type):
        digest.update(type(value).__name__.encode())
        for each in fields(value):
            _feed(digest, getattr(value, each.name))
    elif isinstance(value, Mapping):
        for key in value:
            digest.update(f"key {key!r}".encode())
            _feed(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(f"list {len(value)}".encode())
        for part in value:
            _feed(digest, part)
    elif isinstance(value, (set, frozenset)):
        _feed(digest, sorted(value, key=repr))
    elif value is None or isinstance(value, (str, int, float, bool, np.generic)):
        digest.update(f"{type(value).__name__} {value!r}".encode())
    else:
        raise TypeError(f"a task holds a {type(value).__name__}, which has no fingerprint")
