"""Papers of published suites leave the corpus before anything is learned from it.

    report = find_leaks(corpus, {"csfcube": suite})
    report.rows_to_exclude()

By the leakage audit of `corpus/leakage`: ids, titles and near-duplicate texts. A suite without texts cannot be looked
for, which is said.

The answers of suites as a table of pairs, for the oracle: what a model could reach that was told them.

    rankings   query and candidate, with the candidate's grade
    classes    a paper with five others of its class (1) and five of other classes (0); as many papers as the rankings
               have queries on average, so that no task outweighs the others (Ostendorff et al., EMNLP 2022, appendix E)

Papers are found in the corpus by id in the suite of the corpus itself, by the leakage audit in others. A model trained
on them knows the answers: its report is an upper bound and nothing else.

The suites that judge a run: those made from its corpus, and published ones from their folders; each read once.

suites = Suites(corpus, RunOptions(suites={"csfcube": Path("data/csfcube")}))
suites.names                ["corpus", "csfcube"]
suites.read("corpus")       a Suite
suites.key("corpus")        changes with the corpus, the options, or the files of the folder
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import kind_of
from citeweave.core.errors import UserError, choose
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream
from citeweave.corpus.corpus import KIND, Corpus
from citeweave.corpus.leakage import CorpusPapers, LeakageReport, ListedPapers, audit_leakage
from citeweave.evaluation.suites import from_corpus
from citeweave.evaluation.suites.from_corpus import make_suite
from citeweave.evaluation.suites.registry import SUITES, read_suite
from citeweave.evaluation.tasks import ProbeTask, RankingTask, SearchTask, Suite
from citeweave.graph.citations import graph_from_edges
from citeweave.mining.inputs import IntentSource
from citeweave.mining.tables import Table, build_table
from citeweave.pipeline.run_folder import CORPUS, INTENTS, RunOptions


def find_leaks(corpus: Corpus, suites: Mapping[str, Suite], reporter: Reporter = QUIET) -> LeakageReport:
    """Find the papers of the corpus that are papers of the evaluation suites."""
    tables = {name: suite_papers(suite) for name, suite in suites.items()}
    for name, table in tables.items():
        if not len(table.ids):
            reporter.say(f"{name} has no texts here: its papers cannot be looked for in the corpus")
    return audit_leakage(CorpusPapers(corpus), {name: table for name, table in tables.items() if len(table.ids)})


def suite_papers(suite: Suite) -> ListedPapers:
    """Collect the papers of all tasks of a suite, each id once."""
    found: dict[str, tuple[str, str]] = {}
    for task in suite.tasks:
        if not task.texts.lacking:
            rows = zip(task.texts.ids, task.texts.titles, task.texts.abstracts, strict=True)
            found |= {name: (title, abstract) for name, title, abstract in rows}
    return ListedPapers(
        ids=list(found),
        titles=[title for title, _ in found.values()],
        abstracts=[abstract for _, abstract in found.values()],
    )


# The answers of suites as a table of pairs, for the oracle: what a model could reach that was told them.

LABELS = "labels"
"""The table's name in rules."""

EACH = 5
"""Partners of a paper in a class, and as many of other classes."""


class GradedPairs(NamedTuple):
    """Pairs of text rows with a relevance grade, each (pairs,)."""

    queries: NDArray[np.int64]
    others: NDArray[np.int64]
    grades: NDArray[np.float64]


def label_table(corpus: Corpus, suites: Mapping[str, Suite], *, seed: int = 0) -> Table:
    """Build one table of labeled pairs from all suites; pairs with a paper that the corpus lacks are left out."""
    columns = [np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)]
    for name, suite in suites.items():
        rows = _rows(corpus, name, suite)
        for task, pairs in _pairs_of(suite, seed).items():
            at = np.array([rows.get(paper, -1) for paper in suite_task(suite, task).texts.ids], np.int64)
            found = [at[pairs.queries], at[pairs.others], pairs.grades]
            keep = (found[0] >= 0) & (found[1] >= 0) & (found[0] != found[1])
            columns = [np.concatenate([old, new[keep]]) for old, new in zip(columns, found, strict=True)]
    if not len(columns[0]):
        raise UserError(
            f"no label of {', '.join(suites) or 'a suite'} is about two papers of {corpus.folder}; import the suite's "
            "papers into the corpus, or give --table labels=FILE"
        )
    queries, others, grades = columns
    # of a pair that several tasks judge the best grade counts, as sums would mix their scales
    order = np.lexsort([grades, others, queries])
    last = np.ones(len(order), bool)
    last[:-1] = (np.diff(queries[order]) != 0) | (np.diff(others[order]) != 0)
    kept = order[last]
    return build_table(queries[kept], others[kept], grades[kept], papers=len(corpus))


def suite_task(suite: Suite, name: str) -> RankingTask | ProbeTask:
    return next(task for task in suite.tasks if task.name == name and isinstance(task, RankingTask | ProbeTask))


def _rows(corpus: Corpus, name: str, suite: Suite) -> dict[str, int]:
    """Map the ids of a suite to rows of the corpus."""
    papers = suite_papers(suite)
    if name == CORPUS:
        found = corpus.rows(list(papers.ids))
        return {paper: int(row) for paper, row in zip(papers.ids, found, strict=True) if row >= 0}
    leaks = find_leaks(corpus, {name: suite}).benchmarks.get(name)
    return {} if leaks is None else {papers.ids[match.benchmark_row]: match.corpus_row for match in leaks}


def _pairs_of(suite: Suite, seed: int) -> dict[str, GradedPairs]:
    rankings = {
        task.name: _ranked(task) for task in suite.tasks if isinstance(task, RankingTask) and not task.reviewers
    }
    queries = [len(np.unique(pairs.queries)) for pairs in rankings.values()]
    most = int(np.mean(queries)) if queries else 1000
    classes = [task for task in suite.tasks if isinstance(task, ProbeTask) and task.kind == "classes"]
    return rankings | {task.name: _classed(task, most, seed) for task in classes}


def _ranked(task: RankingTask) -> GradedPairs:
    pools = task.pools
    return GradedPairs(
        np.repeat(pools.queries, np.diff(pools.offsets)), pools.candidates, np.asarray(pools.grades, np.float64)
    )


def _classed(task: ProbeTask, most: int, seed: int) -> GradedPairs:
    draw = stream(seed, "labels", task.name)
    papers = np.concatenate([task.train, task.test])  # (papers,)
    answers = np.concatenate([task.train_labels, task.test_labels])  # (papers,)
    queries, others = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    grades = [np.zeros(0)]
    for place in draw.permutation(len(papers))[:most].tolist():
        same = answers == answers[place]
        for members, grade in ((np.flatnonzero(same), 1.0), (np.flatnonzero(~same), 0.0)):
            chosen = draw.choice(members, min(EACH, len(members)), replace=False)
            queries.append(np.full(len(chosen), papers[place], np.int64))
            others.append(papers[chosen])
            grades.append(np.full(len(chosen), grade))
    return GradedPairs(np.concatenate(queries), np.concatenate(others), np.concatenate(grades))


# The suites that judge a run: those made from its corpus, and published ones from their folders; each read once.

TITLE = "title"
"""The task of the corpus suite in which a title asks for its abstract."""


@dataclass
class Suites:
    """The evaluation suites of a run by name, each read once: those made from its corpus and published ones."""

    corpus: Corpus
    options: RunOptions
    reporter: Reporter = field(default_factory=lambda: QUIET)
    given: Corpus | None = None
    """The corpus as the user gave it, before papers left it; an overlay of intents is of that one."""

    _read: dict[str, Suite] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return suite_names(self.options)

    def read(self, name: str) -> Suite:
        if name not in self._read:
            if name == CORPUS:
                self._read[name] = make_suite(self.corpus, self.options.suite_options, reporter=self.reporter)
            elif name == INTENTS:
                self._read[name] = self._make_intents()
            else:
                self._read[name] = read_suite(name, self.options.suites[name])
        return self._read[name]

    def _make_intents(self) -> Suite:
        corpus = self.corpus
        graph = graph_from_edges(corpus.citing, corpus.cited, len(corpus), intents=corpus.intents)
        graph = self._intents().annotate(graph, corpus)
        return from_corpus.make_intent_suite(corpus, self.options.suite_options, graph=graph, reporter=self.reporter)

    def _intents(self) -> IntentSource:
        folder, given = self.options.intent_suite, self.given or self.corpus
        assert folder is not None
        if kind_of(folder) != KIND:
            return IntentSource(str(folder), given)
        if Corpus.open(folder).hash != given.hash:
            raise UserError(f"--suite {INTENTS}={folder} is another corpus than {given.folder}; give this one")
        return IntentSource()

    def asked_titles(self) -> list[str]:
        """Return the ids of papers whose abstract the corpus suite asks for by title."""
        if CORPUS not in self.names:
            return []
        tasks = self.read(CORPUS).tasks
        searches = (task for task in tasks if isinstance(task, SearchTask) and task.name == TITLE)
        return sorted(task.texts.ids[row].removesuffix("#title") for task in searches for row in task.queries.tolist())

    def tasks(self, name: str) -> tuple[str, ...]:
        """Return the selected tasks of a suite; empty = all."""
        known = {task.name for task in self.read(name).choose(()).tasks}
        return tuple(task for task in self.options.tasks if task in known)

    def check(self) -> None:
        """Refuse a task that no suite of the run has, and intents of another corpus or too few of them."""
        if self.options.intent_suite is not None:
            self.read(INTENTS)
        if not self.options.tasks:
            return
        known = [task.name for name in self.names for task in self.read(name).choose(()).tasks]
        for task in self.options.tasks:
            choose(task, known, "--task")

    def key(self, name: str) -> Any:
        if name == CORPUS:
            assert self.options.suite_options is not None
            return [self.corpus.hash, asdict(self.options.suite_options)]
        if name == INTENTS:
            assert self.options.suite_options is not None
            return [self.corpus.hash, asdict(self.options.suite_options), self._intents().source]
        return listing(self.options.suites[name])


def suite_names(options: RunOptions) -> list[str]:
    """List the names of a run's suites, those made from the corpus first."""
    own = [CORPUS] if options.suite_options is not None else []
    return [*own, *([INTENTS] if options.intent_suite is not None else []), *options.suites]


def check_suites(options: RunOptions) -> None:
    """Refuse unknown suites and missing suite folders before any stage runs."""
    own = {} if options.intent_suite is None else {INTENTS: options.intent_suite}
    for name, folder in {**own, **options.suites}.items():
        choose(name, [*SUITES, *own], "--suite")
        if not folder.is_dir():
            raise UserError(f"--suite {name}={folder}: there is no such folder; give the one that holds its files")


def listing(folder: Path) -> list[list[Any]]:
    """List the names, sizes and times of a folder's files, to notice changed suite data."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [[path.relative_to(folder).as_posix(), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
