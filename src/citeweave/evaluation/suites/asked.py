"""The suite that somebody asked for: plain data, by which any process reads or makes the same one.

    asked = AskedSuite("scidocs", Path("data/scidocs"))
    suite = asked.read()
    AskedSuite.of_json(asked.as_json()).read()         the same suite, in another process that sees the folder

Does not judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from citeweave.corpus.corpus import Corpus
from citeweave.errors import UserError, choose
from citeweave.evaluation.suites import aspects, corpus, intents
from citeweave.evaluation.suites.corpus import CorpusSuiteOptions
from citeweave.evaluation.suites.registry import MADE, SUITES, read_suite
from citeweave.evaluation.tasks import Suite
from citeweave.progress import QUIET, Reporter


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
        if self.intents is not None and self.name != intents.NAME:
            raise UserError(
                f"--intents {self.intents} is for --suite {intents.NAME}, and this one is {self.name}; leave it out"
            )
        choose(self.name, [*SUITES, *MADE], "--suite")

    def read(self, reporter: Reporter = QUIET) -> Suite:
        """Read its files, or make it from its corpus."""
        if self.name == corpus.NAME:
            return corpus.make_suite(Corpus.open(self.data), self.made, reporter=reporter)
        if self.name == intents.NAME:
            opened = Corpus.open(self.data)
            graph = intents.intent_graph(opened, self.intents)
            return intents.make_suite(opened, self.made, graph=graph, reporter=reporter)
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
