"""Options of a run: what the recipe itself does not say.

    RunOptions(suites={"csfcube": Path("data/csfcube")}, seeds=3)

Declares and checks values; imports nothing heavy, so that `--help` is fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from citeweave.core.errors import UserError
from citeweave.core.options import INTERNAL, Flag, Named, OneOf, Range, check
from citeweave.evaluation.options import CorpusSuiteOptions

BANDS = ("fit", "recipe", "auto", "share")
NOTHING = "none"
CORPUS = "corpus"
"""Name of the suite that is made from the corpus itself."""

INTENTS = "intents"
"""Name of the suite that is made from the intents of its citations."""

AUTO = "auto"
"""Value of --intents: those of the corpus, or those that a classifier finds."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run, kept in its folder: everything that the recipe itself does not say."""

    init: str = ""
    """Start model instead of the recipe's: minilm, a folder, or a Hugging Face name; in a chain of recipes, instead of
    the first one's."""

    aligner: str = ""
    """Encoder that aligns sentences, instead of the recipe's; takes the same values as --init."""

    suites: Annotated[Mapping[str, Path], Flag("--suite"), Named("csfcube=data/csfcube")] = field(default_factory=dict)
    """NAME=FOLDER: additional suite to evaluate on, whose papers are not trained on; for intents=FOLDER, the output of
    `citeweave annotate`, or a corpus with intents. May be repeated."""

    intent_suite: Annotated[Path | None, INTERNAL] = None
    """Evaluate on held-out intents too: the folder of an overlay of the corpus, or of the corpus for its own intents."""

    tasks: Annotated[tuple[str, ...], Flag("--task")] = ()
    """Evaluate on this task only; may be repeated."""

    seeds: Annotated[int, Range(0)] = 0
    """Number of models to train, with consecutive seeds; 0 = the recipe's number."""

    held_out: str = "share:0.1"
    """Papers whose references are held out for evaluation: share:0.1 (a random tenth), year:2016 (from 2016 on), or
    none."""

    queries: Annotated[int, Range(1)] = 1000
    """Maximum number of queries for each task built from the corpus."""

    bands: Annotated[str, OneOf(*BANDS)] = "fit"
    """Neighbor ranks to select from: recipe (the recipe's), auto (chosen for the corpus), share (the recipe's, scaled to
    the corpus), or fit (the recipe's if there are enough papers, otherwise auto)."""

    tables: Annotated[Mapping[str, Path], Flag("--table"), Named("coviews=pairs.tsv")] = field(default_factory=dict)
    """NAME=FILE: table of paper pairs and their counts that the recipe calls NAME; may be repeated."""

    pool: Path | None = None
    """File with the ids of papers that may be positives or negatives, one per line."""

    intents: str = AUTO
    """Citation intents: auto (those in the corpus, or predicted if it has none), corpus (only those), sections (also those
    inferred from section headings), or a folder from `citeweave annotate`."""

    classifier: Path | None = None
    """Folder of an intent classifier to use instead of the built-in one."""

    device: str = "auto"
    """Device: cpu, cuda or auto."""

    cache: Path | None = None
    """Cache folder for vectors of start models; default: $CITEWEAVE_CACHE or ~/.cache/citeweave."""

    resamples: Annotated[int, INTERNAL] = 10_000
    """Bootstrap resamples of the comparison with the start model."""

    overwrite: bool = False
    """Replace an output folder made from different inputs or options."""

    shared: Annotated[Path | None, INTERNAL] = None
    """Folder for stages that several runs of a sweep have in common; None = all stages are in the run folder."""

    def __post_init__(self) -> None:
        check(self)
        if self.classifier is not None and self.intents != AUTO:
            raise UserError(
                f"--classifier finds intents, but --intents {self.intents} provides them; leave out one of the two"
            )
        if CORPUS in self.suites:
            raise UserError(
                "--suite corpus=... is made from --corpus itself; leave it out, or turn it off with --held-out none"
            )
        if self.suite_options is None and self.intent_suite is not None:
            raise UserError("--suite intents needs held-out references; leave out --held-out none")
        if self.suite_options is None and not self.suites:
            raise UserError("--held-out none leaves nothing to evaluate on; give --suite NAME=FOLDER too")

    @property
    def suite_options(self) -> CorpusSuiteOptions | None:
        """Return how the corpus suite is made; None if nothing is held out."""
        if self.held_out == NOTHING:
            return None
        return CorpusSuiteOptions(held_out=self.held_out, queries=self.queries)
