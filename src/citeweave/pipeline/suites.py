"""The evaluation suites of a run, from its corpus or published, and what they keep out of training: papers, references.

    suites = Suites(corpus, RunOptions(suites={"csfcube": Path("data/csfcube")}))
    suites.names                ["corpus", "csfcube"]
    suites.read("corpus")       a Suite
    suites.key("corpus")        changes with the corpus, the options, or the files of the folder

The labels of the suites can become a table of pairs for the oracle recipe, whose report is an upper bound and nothing else:

    rankings   query and candidate, with the candidate's grade
    classes    a paper with five others of its class (1) and five of other classes (0); as many papers as the rankings
               have queries on average, so that no task outweighs the others (Ostendorff et al., EMNLP 2022, appendix E)

Papers of the corpus suite are found in the corpus by id, papers of other suites by the leakage audit.

Kept out of training are papers of published suites, and references of held-out papers of the corpus:

    report = find_leaks(corpus, {"csfcube": suite})
    report.rows_to_exclude()
    trained_on = without_references(corpus, held_out_rows(corpus, options), "run/corpus", why="share:0.1, seed 0")

Papers of suites are found by the leakage audit of `corpus/leakage.py`: ids, titles and near-duplicate texts. A suite
without texts cannot be searched for, which is reported.

A corpus without references has the same papers and rows, so samples and vectors of one fit the other; unchanged files are
shared. Citations, references to papers outside and citing sentences of the held-out papers are removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import MANIFEST, artifact_matches, kind_of, new_artifact
from citeweave.core.columns import BLOCK, NumberWriter, TextColumn, TextWriter
from citeweave.core.errors import UserError, choose
from citeweave.core.files import hash_json, link_or_copy
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.ragged import owners_of, to_offsets
from citeweave.core.randomness import stream
from citeweave.corpus.corpus import CITATION_COLUMNS, KIND, REFERENCE_COLUMNS, VERSION, Corpus
from citeweave.corpus.leakage import LeakageReport, PaperTable, audit_leakage
from citeweave.evaluation.suites import SUITES, from_corpus, read_suite
from citeweave.evaluation.suites.from_corpus import make_suite
from citeweave.evaluation.tasks import ProbeTask, RankingTask, SearchTask, Suite
from citeweave.graph.citations import graph_from_edges
from citeweave.graph.intent_overlay import IntentSource
from citeweave.mining.tables import Table, build_table
from citeweave.pipeline.run_folder import CORPUS, INTENTS, RunOptions

TITLE = "title"
"""Name of the task of the corpus suite that finds an abstract by its title."""


@dataclass
class Suites:
    """The evaluation suites of a run by name, each read once: those made from its corpus and published ones."""

    corpus: Corpus
    options: RunOptions
    reporter: Reporter = field(default_factory=lambda: QUIET)
    original: Corpus | None = None
    """The user's corpus, before papers of suites were removed; an overlay of intents belongs to this one."""

    _read: dict[str, Suite] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return suite_names(self.options)

    def read(self, name: str) -> Suite:
        if name not in self._read:
            if name == CORPUS:
                self._read[name] = make_suite(self.corpus, self.options.suite_options, reporter=self.reporter)
            elif name == INTENTS:
                self._read[name] = self._make_intent_suite()
            else:
                self._read[name] = read_suite(name, self.options.suites[name])
        return self._read[name]

    def _make_intent_suite(self) -> Suite:
        corpus = self.corpus
        graph = graph_from_edges(corpus.citing, corpus.cited, len(corpus), intents=corpus.intents)
        graph = self._intent_source().annotate(graph, corpus)
        return from_corpus.make_intent_suite(corpus, self.options.suite_options, graph=graph, reporter=self.reporter)

    def _intent_source(self) -> IntentSource:
        folder, original = self.options.intent_suite, self.original or self.corpus
        assert folder is not None
        if kind_of(folder) != KIND:
            return IntentSource(str(folder), original)
        if Corpus.open(folder).hash != original.hash:
            raise UserError(f"--suite {INTENTS}={folder} is another corpus than {original.folder}; give that one")
        return IntentSource()

    def queried_titles(self) -> list[str]:
        """Return the ids of papers whose titles are queries of the corpus suite."""
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
        if name in (CORPUS, INTENTS):
            assert self.options.suite_options is not None
            key = [self.corpus.hash, asdict(self.options.suite_options)]
            return key if name == CORPUS else [*key, self._intent_source().source]
        return _list_files(self.options.suites[name])


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
            raise UserError(f"--suite {name}={folder}: no such folder; give the one that holds its files")


def _list_files(folder: Path) -> list[list[Any]]:
    """List the names, sizes and times of a folder's files, to notice changed suite data."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [[path.relative_to(folder).as_posix(), path.stat().st_size, path.stat().st_mtime_ns] for path in files]


# --- labels of suites as pairs ---

LABELS = "labels"
"""Name of the table of labels in mining rules."""

PER_CLASS = 5
"""Papers of the same class that a paper is paired with, and as many of other classes."""


class GradedTextPairs(NamedTuple):
    """Pairs of text rows with a relevance grade, each (pairs,)."""

    queries: NDArray[np.int64]
    others: NDArray[np.int64]
    grades: NDArray[np.float64]


def label_table(corpus: Corpus, suites: Mapping[str, Suite], *, seed: int = 0) -> Table:
    """Build one table of labeled pairs from all suites; pairs with a paper that the corpus lacks are left out."""
    columns = [np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)]
    for name, suite in suites.items():
        rows = _find_rows(corpus, name, suite)
        for task, pairs in _label_pairs(suite, seed):
            at = np.array([rows.get(paper, -1) for paper in task.texts.ids], np.int64)
            new = [at[pairs.queries], at[pairs.others], pairs.grades]
            keep = (new[0] >= 0) & (new[1] >= 0) & (new[0] != new[1])
            columns = [np.concatenate([old, added[keep]]) for old, added in zip(columns, new, strict=True)]
    if not len(columns[0]):
        raise UserError(
            f"no label of {', '.join(suites) or 'a suite'} is about two papers of {corpus.folder}; import the suite's "
            "papers into the corpus, or give --table labels=FILE"
        )
    queries, others, grades = columns
    # a pair that several tasks label gets its best grade: sums would mix their scales
    order = np.lexsort([grades, others, queries])
    last = np.ones(len(order), bool)
    last[:-1] = (np.diff(queries[order]) != 0) | (np.diff(others[order]) != 0)
    best = order[last]
    return build_table(queries[best], others[best], grades[best], papers=len(corpus))


def _find_rows(corpus: Corpus, name: str, suite: Suite) -> dict[str, int]:
    """Map the ids of a suite to rows of the corpus."""
    papers = _suite_papers(suite)
    if name == CORPUS:
        rows = corpus.rows(list(papers.ids))
        return {paper: int(row) for paper, row in zip(papers.ids, rows, strict=True) if row >= 0}
    leaks = find_leaks(corpus, {name: suite}).benchmarks.get(name)
    return {} if leaks is None else {papers.ids[match.benchmark_row]: match.corpus_row for match in leaks}


def _label_pairs(suite: Suite, seed: int) -> list[tuple[RankingTask | ProbeTask, GradedTextPairs]]:
    """Return the labeled pairs of every ranking, and of every task with classes as many as the rankings have on average."""
    tasks = [task for task in suite.tasks if isinstance(task, RankingTask) and not task.reviewers]
    rankings = [(task, _ranking_pairs(task)) for task in tasks]
    queries = [len(np.unique(pairs.queries)) for _, pairs in rankings]
    max_papers = int(np.mean(queries)) if queries else 1000
    classes = [task for task in suite.tasks if isinstance(task, ProbeTask) and task.kind == "classes"]
    return [*rankings, *((task, _class_pairs(task, max_papers, seed)) for task in classes)]


def _ranking_pairs(task: RankingTask) -> GradedTextPairs:
    pools = task.pools
    grades = np.asarray(pools.grades, np.float64)
    return GradedTextPairs(pools.queries[owners_of(pools.offsets)], pools.candidates, grades)


def _class_pairs(task: ProbeTask, max_papers: int, seed: int) -> GradedTextPairs:
    draw = stream(seed, "labels", task.name)
    papers = np.concatenate([task.train, task.test])  # (papers,)
    labels = np.concatenate([task.train_labels, task.test_labels])  # (papers,)
    queries, others = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    grades = [np.zeros(0)]
    for place in draw.permutation(len(papers))[:max_papers].tolist():
        same = labels == labels[place]
        for members, grade in ((np.flatnonzero(same), 1.0), (np.flatnonzero(~same), 0.0)):
            chosen = draw.choice(members, min(PER_CLASS, len(members)), replace=False)
            queries.append(np.full(len(chosen), papers[place], np.int64))
            others.append(papers[chosen])
            grades.append(np.full(len(chosen), grade))
    return GradedTextPairs(np.concatenate(queries), np.concatenate(others), np.concatenate(grades))


# --- what evaluation keeps out of training ---

_CHANGED_PARTS = ("citations", "contexts", "references_outside", "changes")
_CONTEXT_TEXTS = ("text", "section", "extra")


def find_leaks(corpus: Corpus, suites: Mapping[str, Suite], reporter: Reporter = QUIET) -> LeakageReport:
    """Find the papers of a run's corpus that are papers of its evaluation suites."""
    tables = {name: _suite_papers(suite) for name, suite in suites.items()}
    for name, table in tables.items():
        if not len(table.ids):
            reporter.say(f"{name} has no texts here, so its papers cannot be searched for in the corpus")
    return audit_leakage(
        PaperTable.of_corpus(corpus), {name: table for name, table in tables.items() if len(table.ids)}
    )


def _suite_papers(suite: Suite) -> PaperTable:
    """Collect the papers of all tasks of a suite, each id once."""
    papers: dict[str, tuple[str, str]] = {}
    for task in suite.tasks:
        if not task.texts.lacking:
            rows = zip(task.texts.ids, task.texts.titles, task.texts.abstracts, strict=True)
            papers |= {name: (title, abstract) for name, title, abstract in rows}
    return PaperTable(
        ids=list(papers),
        titles=[title for title, _ in papers.values()],
        abstracts=[abstract for _, abstract in papers.values()],
    )


def without_references(
    corpus: Corpus, held: NDArray[np.bool_], folder: str | Path, *, why: str, overwrite: bool = False
) -> Corpus:
    """Keep held-out references out of a run's training: a corpus without those of the papers `held` (papers,)."""
    folder = Path(folder)
    rows = np.flatnonzero(held)
    recipe = {"of": corpus.hash, "without references of": hash_json(rows.tolist()), "why": why}
    if not artifact_matches(folder, KIND, VERSION, recipe):
        with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
            _share_files(corpus.folder, writer.folder)
            removed = _write_citations(corpus, held, writer.folder)
            removed["contexts"] = _write_contexts(corpus, held, writer.folder / "contexts")
            writer.facts |= {**corpus.manifest.facts, "held out": {"papers": len(rows), "why": why, **removed}}
            writer.finish()
    return Corpus.open(folder)


def _share_files(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        if (
            path.is_file()
            and inside.parts[0] not in (*_CHANGED_PARTS, MANIFEST)
            and not inside.parts[0].startswith(".")
        ):
            link_or_copy(path, target / inside)


def _write_citations(corpus: Corpus, held: NDArray[np.bool_], folder: Path) -> dict[str, int]:
    """Write the remaining citations and outside references; return how many of each were removed."""
    removed = {}
    names = {name: "strengths" if name == "strength" else name for name in CITATION_COLUMNS}
    columns: dict[str, tuple[dict[str, Any], dict[str, NDArray[Any]]]] = {
        "citations": (CITATION_COLUMNS, {name: getattr(corpus, own) for name, own in names.items()}),
        "references_outside": (
            REFERENCE_COLUMNS,
            {name: corpus.references_outside(name) for name in REFERENCE_COLUMNS},
        ),
    }
    for part, (types, values) in columns.items():
        keep = ~held[values["citing"]]  # (citations,)
        removed[part] = int((~keep).sum())
        for name, dtype in types.items():
            _write(folder / part / f"{name}.npy", dtype, values[name][keep])
    return removed


def _write_contexts(corpus: Corpus, held: NDArray[np.bool_], folder: Path) -> int:
    """Write the remaining contexts, including those of papers outside the corpus; return how many were removed."""
    table = corpus.contexts
    inside = table.citing >= 0
    keep = ~(inside & held[np.where(inside, table.citing, 0)]) if len(held) else ~inside  # (contexts,)
    rows = np.flatnonzero(keep)
    _write(folder / "citing.npy", np.int32, table.citing[rows])
    _write(folder / "citing_key.npy", np.uint64, table.citing_keys[rows])
    _write(folder / "intents.npy", np.uint8, table.intents[rows])
    for name in _CONTEXT_TEXTS:
        column, writer = TextColumn(corpus.folder / "contexts", name), TextWriter(folder, name)
        for start in range(0, len(rows), BLOCK):
            writer.append_bytes(*column.gather(rows[start : start + BLOCK]))
        writer.close()
    for name, values, offsets, dtype in (
        ("cited", table.cited, table.cited_offsets, np.int32),
        ("outside", table.outside, table.outside_offsets, np.uint64),
    ):
        sizes = np.diff(offsets)  # (contexts,)
        _write(folder / f"{name}.npy", dtype, values[np.repeat(keep, sizes)])
        _write(folder / f"{name}_offsets.npy", np.int64, to_offsets(sizes[rows]))
    return len(keep) - len(rows)


def _write(path: Path, dtype: Any, values: NDArray[Any]) -> None:
    writer = NumberWriter(path, dtype)
    writer.append(values)
    writer.close()
