"""The evaluation suites by name, and `SuiteSpec`: the suite of an evaluation as plain data for any process.

    spec = SuiteSpec("scidocs", Path("data/scidocs"))
    suite = spec.read()
    SuiteSpec.of_json(spec.as_json()).read()         the same suite, in another process that sees the folder

A published suite is read by `read_suite(folder, split=...)` of its module; a generated one is drawn from a corpus by
`make_suite`. Does not evaluate.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from citeweave.core.errors import InputError, UserError, choose
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.evaluation.options import CorpusSuiteOptions
from citeweave.evaluation.tasks import Suite

SUITES = {
    "scidocs": "12 numbers: fields, MeSH, co-views, co-reads, citations, co-citations, recommendations",
    "scirepeval": "classification, regression, proximity and search tasks in SciRepEval's files",
    "mdcr": "citation recommendation in 19 fields",
    "csfcube": "faceted similarity: background, method, result; two folds",
    "relish": "biomedical similarity judged by authors, in ASPIRE's format",
    "treccovid_rf": "similarity derived from TREC-COVID, in ASPIRE's files",
    "beir": "search in any BEIR folder",
    "reviewers": "which reviewer fits a submission",
}
"""Published suites: name -> what it evaluates."""

_MODULES = {"relish": "aspire"}
"""Suite -> its module in this package, where that has another name."""

GENERATED_SUITES = {
    "corpus": "citations, fields, years, titles: tasks drawn from any corpus",
    "intents": "what a paper cites for one reason, among what it cites for others: drawn from citation intents",
    "aspects": "which papers share a problem, a method, a finding: drawn from a synthetic literature",
}
"""Suites without files: name -> what it evaluates."""


def read_suite(name: str, folder: str | Path, *, split: str = "test") -> Suite:
    """Read a published benchmark by its name, such as `csfcube`, from the folder of its files, for `evaluate`.

    See docs/evaluation.md for all names and for the files that each needs. `split` is `test` or `dev`.
    """
    choose(name, SUITES, "--suite")
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; --data is the folder with the files of {name}")
    module = importlib.import_module(f"citeweave.evaluation.suites.{_MODULES.get(name, name)}")
    suite: Suite = module.read_suite(folder, split=split)
    return suite


@dataclass(frozen=True)
class SuiteSpec:
    """Which suite to evaluate: name, folder, split and options, by which any process reads the same."""

    name: str
    data: Path
    """The folder of its files, or of the corpus that it is drawn from."""

    split: str = "test"
    corpus_options: CorpusSuiteOptions = field(default_factory=CorpusSuiteOptions)
    """How a generated suite is drawn from its corpus."""

    papers: int = 1000
    """For `aspects`: at most so many papers."""

    intents: Path | None = None
    """For `intents`: the folder of an overlay; None = the corpus's own intents."""

    def __post_init__(self) -> None:
        if self.intents is not None and self.name != "intents":
            raise UserError(
                f"--intents {self.intents} is only for --suite intents, and --suite is {self.name}; leave it out"
            )
        choose(self.name, [*SUITES, *GENERATED_SUITES], "--suite")

    def read(self, reporter: Reporter = QUIET) -> Suite:
        """Read the suite of this name from its files, or draw it from its corpus."""
        if self.name in SUITES:
            return read_suite(self.name, self.data, split=self.split)
        from citeweave.evaluation.suites import aspects, from_corpus

        corpus, options = Corpus.open(self.data), self.corpus_options
        if self.name == "corpus":
            return from_corpus.make_suite(corpus, options, reporter=reporter)
        if self.name == "intents":
            graph = from_corpus.intent_graph(corpus, self.intents)
            return from_corpus.make_intent_suite(corpus, options, graph=graph, reporter=reporter)
        drawn = aspects.AspectSuiteOptions(papers=self.papers, queries=options.queries, seed=options.seed)
        return aspects.make_suite(corpus, drawn)

    def as_json(self) -> dict[str, Any]:
        """Return which suite this is as JSON with absolute folders, for another process to read."""
        folders = {"data": self.data, "intents": self.intents}
        paths = {name: None if folder is None else str(folder.absolute()) for name, folder in folders.items()}
        return {**asdict(self), **paths}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> SuiteSpec:
        """Return the spec that `as_json` gave."""
        options = CorpusSuiteOptions(**value["corpus_options"])
        paths = {name: value[name] and Path(value[name]) for name in ("data", "intents")}
        return cls(**{**value, **paths, "corpus_options": options})
