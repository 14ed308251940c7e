"""The suites that judge a run: the one made from its corpus, and published ones from their folders; each read once.

suites = Suites(corpus, RunOptions(suites={"csfcube": Path("data/csfcube")}))
suites.names                ["corpus", "csfcube"]
suites.read("corpus")       a Suite
suites.key("corpus")        changes with the corpus, the options, or the files of the folder
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from citeweave.corpus.corpus import Corpus
from citeweave.errors import UserError, choose
from citeweave.evaluation.suites.corpus import make_suite
from citeweave.evaluation.suites.registry import SUITES, read_suite
from citeweave.evaluation.tasks import Suite
from citeweave.pipeline.options import CORPUS, RunOptions
from citeweave.progress import QUIET, Reporter


@dataclass
class Suites:
    """Suites by name."""

    corpus: Corpus
    options: RunOptions
    reporter: Reporter = field(default_factory=lambda: QUIET)
    _read: dict[str, Suite] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        own = [CORPUS] if self.options.suite_options is not None else []
        return [*own, *self.options.suites]

    def read(self, name: str) -> Suite:
        if name not in self._read:
            if name == CORPUS:
                self._read[name] = make_suite(self.corpus, self.options.suite_options, reporter=self.reporter)
            else:
                self._read[name] = read_suite(name, self.options.suites[name])
        return self._read[name]

    def tasks(self, name: str) -> tuple[str, ...]:
        """The tasks that were asked for of this suite; none = all."""
        known = {task.name for task in self.read(name).choose(()).tasks}
        return tuple(task for task in self.options.tasks if task in known)

    def check_tasks(self) -> None:
        """Refuse a task that no suite has."""
        if not self.options.tasks:
            return
        known = [task.name for name in self.names for task in self.read(name).choose(()).tasks]
        for task in self.options.tasks:
            choose(task, known, "--task")

    def key(self, name: str) -> Any:
        if name == CORPUS:
            assert self.options.suite_options is not None
            return [self.corpus.hash, asdict(self.options.suite_options)]
        return listing(self.options.suites[name])


def check_suites(options: RunOptions) -> None:
    """Refuse unknown suites and missing folders before anything is made."""
    for name, folder in options.suites.items():
        choose(name, SUITES, "--suite")
        if not folder.is_dir():
            raise UserError(f"--suite {name}={folder}: there is no such folder; give the one that holds its files")


def listing(folder: Path) -> list[list[Any]]:
    """Names, sizes and times of the files of a folder: another listing may be other data."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [[path.relative_to(folder).as_posix(), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
