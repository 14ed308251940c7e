"""The suites by name; each is read by `read_suite(folder, split=...)` of its module.

The suite that somebody asked for: plain data, by which any process reads or makes the same one.

    asked = AskedSuite("scidocs", Path("data/scidocs"))
    suite = asked.read()
    AskedSuite.of_json(asked.as_json()).read()         the same suite, in another process that sees the folder

Does not judge.
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
from citeweave.evaluation.suites import aspects, from_corpus
from citeweave.evaluation.suites.from_corpus import CorpusSuiteOptions
from citeweave.evaluation.tasks import Suite

SUITES = {
    "scidocs": "12 numbers: fields, MeSH, co-views, co-reads, citations, co-citations, recommendations",
    "scirepeval": "classification, regression, proximity and search tasks in SciRepEval's files",
    "mdcr": "citation recommendation in 19 fields",
    "csfcube": "faceted similarity: background, method, result; two folds",
    "relish": "biomedical similarity judged by authors, in ASPIRE's files",
    "treccovid_rf": "similarity made from TREC-COVID, in ASPIRE's files",
    "beir": "search in any BEIR folder",
    "reviewers": "which reviewer fits a submission",
}
"""Name -> what it asks."""

MADE = {
    "corpus": "citations, fields, years, titles: tasks made from any corpus",
    "intents": "what a paper cites for one reason, told from what it cites for another: made from citation intents",
    "aspects": "who shares a problem, a method, a finding: made from a made-up literature",
}
"""Suites that have no files: `make_suite(corpus, options)` of their module makes them."""


def read_suite(name: str, folder: str | Path, *, split: str = "test") -> Suite:
    """Read a suite from the folder that holds its published files."""
    choose(name, SUITES, "--suite")
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; --data names the folder that holds the files of {name}")
    module = importlib.import_module(f"citeweave.evaluation.suites.{name}")
    suite: Suite = module.read_suite(folder, split=split)
    return suite


# The suite that somebody asked for: plain data, by which any process reads or makes the same one.


@dataclass(frozen=True)
class AskedSuite:
    """What `citeweave evaluate` says of a suite."""

    name: str
    data: Path
    """The folder of its files, or of the corpus that it is made from."""

    split: str = "test"
    made: CorpusSuiteOptions = field(default_factory=CorpusSuiteOptions)
    """How one that is made from a corpus is made."""

    papers: int = 1000
    """Of `aspects`: at most so many papers."""

    intents: Path | None = None
    """Of `intents`: the folder of an overlay; None = the corpus's own."""

    def __post_init__(self) -> None:
        if self.intents is not None and self.name != from_corpus.INTENT_SUITE:
            raise UserError(
                f"--intents {self.intents} is for --suite {from_corpus.INTENT_SUITE}, and this one is {self.name}; leave it out"
            )
        choose(self.name, [*SUITES, *MADE], "--suite")

    def read(self, reporter: Reporter = QUIET) -> Suite:
        """Read its files, or make it from its corpus."""
        if self.name == from_corpus.NAME:
            return from_corpus.make_suite(Corpus.open(self.data), self.made, reporter=reporter)
        if self.name == from_corpus.INTENT_SUITE:
            opened = Corpus.open(self.data)
            graph = from_corpus.intent_graph(opened, self.intents)
            return from_corpus.make_intent_suite(opened, self.made, graph=graph, reporter=reporter)
        if self.name == aspects.NAME:
            drawn = aspects.AspectSuiteOptions(papers=self.papers, queries=self.made.queries, seed=self.made.seed)
            return aspects.make_suite(Corpus.open(self.data), drawn)
        return read_suite(self.name, self.data, split=self.split)

    def as_json(self) -> dict[str, Any]:
        """With absolute folders."""
        overlay = None if self.intents is None else str(self.intents.absolute())
        return {**asdict(self), "data": str(self.data.absolute()), "intents": overlay}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> AskedSuite:
        overlay = value["intents"]
        return cls(
            **{
                **value,
                "data": Path(value["data"]),
                "made": CorpusSuiteOptions(**value["made"]),
                "intents": None if overlay is None else Path(overlay),
            }
        )
