"""How a recipe is run: everything that is not the recipe itself. Does not run anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from citeweave.errors import UserError, choose
from citeweave.evaluation.suites.corpus import CorpusSuiteOptions

BANDS = ("fit", "recipe", "auto", "share")
NOTHING = "none"
CORPUS = "corpus"
"""The suite that is made from the corpus itself."""

INTENTS = "intents"
"""The suite that is made from the intents of its citations."""

AUTO = "auto"
"""Of intents: those of the corpus, or those that a classifier finds."""

CHAIN = "recipe:"
"""Before the name of a recipe whose model is the start model, or the aligner."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run a recipe."""

    init: str = ""
    """Start model in place of the recipe's; of a chain, in place of the first recipe's."""

    aligner: str = ""
    """Frozen encoder that aligns sentences, in place of the recipe's alignment.encoder."""

    suites: Mapping[str, Path] = field(default_factory=dict)
    """Published suites to judge by, with the folders of their files; their papers are not trained on."""

    intent_suite: Path | None = None
    """Judge by held-out intents too: the folder of an overlay of the corpus, or of the corpus, whose own intents count."""

    tasks: tuple[str, ...] = ()
    """Only these tasks, in the suites that have one of them; empty = all."""

    seeds: int = 0
    """So many models; 0 = as many as the recipe says."""

    held_out: str = "share:0.1"
    """Papers whose references are asked for and not trained on: share:0.1, year:2016, or `none`: no suite of the corpus."""

    queries: int = 1000
    """At most so many queries a task of the corpus suite."""

    bands: str = "fit"
    """Rank bands: `recipe` = as written, `auto` = chosen for the corpus, `share` = the same share of the pool,
    `fit` = as written where the corpus is large enough for them, else chosen."""

    tables: Mapping[str, Path] = field(default_factory=dict)
    """Files of pairs that rules name."""

    pool: Path | None = None
    """File with the ids of the papers that samples are chosen from; None = all of the corpus."""

    intents: str = AUTO
    """Of citations, where rules need them: `auto` = those of the corpus, found by a classifier where it has none;
    `corpus`, `sections`, or the folder of an overlay of the corpus."""

    classifier: Path | None = None
    """Folder of the classifier for `auto`; None = the one that comes with citeweave."""

    device: str = "auto"
    cache: Path | None = None
    """Folder for vectors of start models, shared between runs."""

    resamples: int = 10_000
    """Of the comparison with the start model."""

    overwrite: bool = False
    shared: Path | None = None
    """Folder for stages that several runs have in common (a sweep's); None = all in the run's own."""

    def __post_init__(self) -> None:
        choose(self.bands, BANDS, "--bands")
        if self.seeds < 0:
            raise UserError(f"--seeds is {self.seeds}; it must be 1 or more, or 0 for as many as the recipe says")
        if self.classifier is not None and self.intents != AUTO:
            raise UserError(
                f"--classifier finds intents, and --intents {self.intents} gives them; leave one of the two out"
            )
        if CORPUS in self.suites:
            raise UserError(
                "--suite corpus=... is made from --corpus itself; leave it out, or turn it off with --held-out none"
            )
        if self.suite_options is None and self.intent_suite is not None:
            raise UserError("--suite intents asks for held-out references; leave out --held-out none")
        if self.suite_options is None and not self.suites:
            raise UserError("--held-out none leaves nothing to judge by; give --suite NAME=FOLDER too")

    @property
    def suite_options(self) -> CorpusSuiteOptions | None:
        """How the corpus suite is made; None where nothing is held out."""
        if self.held_out == NOTHING:
            return None
        return CorpusSuiteOptions(held_out=self.held_out, queries=self.queries)
