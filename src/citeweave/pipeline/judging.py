"""Judging the start model and the trained ones by every suite, and saying whether training helped.

A model reads papers as it did in training: with the recipe's parts of the text, pooling and length. Parts that a suite
does not have, such as venues and authors, are left out there. A recipe whose losses read sentences is judged by the
distance between sentences that it trains, and so is its start model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from citeweave.corpus.text import TextRecipe
from citeweave.evaluation.compare import compare
from citeweave.evaluation.comparison import Comparison
from citeweave.evaluation.evaluate import EvaluationOptions, evaluate
from citeweave.evaluation.judged import Judged
from citeweave.evaluation.judging.sentence_level import SentenceLevel
from citeweave.evaluation.report import Report
from citeweave.evaluation.reporting.markdown import comparison_as_markdown
from citeweave.pipeline.narrowing import Narrowed
from citeweave.pipeline.suites import Suites
from citeweave.progress import QUIET, Reporter
from citeweave.training.options import EncoderOptions
from citeweave.training.sentence_level.trained_distance import TrainedDistance

START = "start"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a model reads of a paper, and how two papers are compared."""

    text: TextRecipe
    distance: TrainedDistance | None = None
    """Between their sentences; None = between their vectors, as the suite says."""

    @property
    def key(self) -> list[str]:
        """What a report depends on."""
        return [self.text.hash, *([repr(self.distance)] if self.distance else [])]


def judge(
    model: Path | EncoderOptions,
    name: str,
    suites: Suites,
    suite: str,
    folder: Path,
    reading: Reading,
    *,
    reporter: Reporter = QUIET,
) -> Report:
    """Judge a trained model's folder, or a start model with the recipe's settings, by one suite."""
    options, read, tasks = suites.options, suites.read(suite), suites.tasks(suite)
    encoder = dataclasses.replace(_load(model, options.device), name=name)
    judged: Judged
    if reading.distance is not None:
        temperature = reading.distance.temperature if reading.distance.name == "attention" else None
        judged = SentenceLevel(
            encoder, name=name, metric=reading.distance.metric, temperature=temperature, reporter=reporter
        )
    else:
        judged = Narrowed(
            encoder,
            read.choose(tasks),
            cache=options.cache if isinstance(model, EncoderOptions) else None,
            text_recipe=reading.text,
            reporter=reporter,
        )
    how = EvaluationOptions(distance=reading.distance.name if reading.distance else "")
    return evaluate(judged, read, folder, tasks=tasks, options=how, overwrite=options.overwrite, reporter=reporter)


def _load(model: Path | EncoderOptions, device: str) -> Any:
    if isinstance(model, EncoderOptions):
        from citeweave.training.starting import load_start

        return load_start(model, device)
    from citeweave.encoders.encoder import load_encoder

    return load_encoder(model, device=device)


def compare_runs(
    start: Mapping[str, Report], trained: Mapping[str, Sequence[Report]], name: str, *, resamples: int
) -> dict[str, Comparison]:
    """Suite -> the trained models against the start model."""
    name = name if name != START else f"{name} (trained)"
    return {
        suite: compare({START: [report], name: list(trained[suite])}, resamples=resamples)
        for suite, report in start.items()
    }


def comparison_page(comparisons: Mapping[str, Comparison]) -> str:
    """All comparisons as Markdown, one heading a suite."""
    return "\n".join(f"## {suite}\n\n{comparison_as_markdown(found)}" for suite, found in comparisons.items())
