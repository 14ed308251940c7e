"""The suites that judge a run: those made from its corpus, and published ones from their folders; each read once.

suites = Suites(corpus, RunOptions(suites={"csfcube": Path("data/csfcube")}))
suites.names                ["corpus", "csfcube"]
suites.read("corpus")       a Suite
suites.key("corpus")        changes with the corpus, the options, or the files of the folder
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from citeweave.artefacts.manifest import kind_of
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.layout import KIND
from citeweave.errors import UserError, choose
from citeweave.evaluation.suites import intents
from citeweave.evaluation.suites.corpus import make_suite
from citeweave.evaluation.suites.registry import SUITES, read_suite
from citeweave.evaluation.tasks import SearchTask, Suite
from citeweave.graph.citations import graph_from_edges
from citeweave.mining.given_intents import GivenIntents
from citeweave.pipeline.options import CORPUS, INTENTS, RunOptions
from citeweave.progress import QUIET, Reporter

TITLE = "title"
"""The task of the corpus suite in which a title asks for its abstract."""


@dataclass
class Suites:
    """Suites by name."""

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
        graph = self._intents().put(graph, corpus)
        return intents.make_suite(corpus, self.options.suite_options, graph=graph, reporter=self.reporter)

    def _intents(self) -> GivenIntents:
        folder, given = self.options.intent_suite, self.given or self.corpus
        assert folder is not None
        if kind_of(folder) != KIND:
            return GivenIntents(str(folder), given)
        if Corpus.open(folder).hash != given.hash:
            raise UserError(f"--suite {INTENTS}={folder} is another corpus than {given.folder}; give this one")
        return GivenIntents()

    def asked_titles(self) -> list[str]:
        """Ids of the papers whose abstract the suite of the corpus asks for by their title."""
        if CORPUS not in self.names:
            return []
        tasks = self.read(CORPUS).tasks
        searches = (task for task in tasks if isinstance(task, SearchTask) and task.name == TITLE)
        return sorted(task.texts.ids[row].removesuffix("#title") for task in searches for row in task.queries.tolist())

    def tasks(self, name: str) -> tuple[str, ...]:
        """The tasks that were asked for of this suite; none = all."""
        known = {task.name for task in self.read(name).choose(()).tasks}
        return tuple(task for task in self.options.tasks if task in known)

    def check(self) -> None:
        """Refuse a task that no suite has, and intents that are of another corpus or too few to ask about."""
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
    """Those that are made from the corpus first."""
    own = [CORPUS] if options.suite_options is not None else []
    return [*own, *([INTENTS] if options.intent_suite is not None else []), *options.suites]


def check_suites(options: RunOptions) -> None:
    """Refuse unknown suites and missing folders before anything is made."""
    own = {} if options.intent_suite is None else {INTENTS: options.intent_suite}
    for name, folder in {**own, **options.suites}.items():
        choose(name, [*SUITES, *own], "--suite")
        if not folder.is_dir():
            raise UserError(f"--suite {name}={folder}: there is no such folder; give the one that holds its files")


def listing(folder: Path) -> list[list[Any]]:
    """Names, sizes and times of the files of a folder: another listing may be other data."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [[path.relative_to(folder).as_posix(), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
