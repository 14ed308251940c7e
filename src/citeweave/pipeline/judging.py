"""Judging the start model and the trained ones by every suite, and saying whether training helped.

A model reads papers as it did in training: with the recipe's parts of the text, pooling and length. Parts that a suite
does not have, such as venues and authors, are left out there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from citeweave.corpus.text import TextRecipe
from citeweave.evaluation.compare import compare
from citeweave.evaluation.comparison import Comparison
from citeweave.evaluation.evaluate import evaluate
from citeweave.evaluation.report import Report
from citeweave.evaluation.reporting.markdown import comparison_as_markdown
from citeweave.pipeline.narrowing import Narrowed
from citeweave.pipeline.suites import Suites
from citeweave.progress import QUIET, Reporter
from citeweave.training.options import EncoderOptions

START = "start"


def judge(
    model: Path | EncoderOptions,
    name: str,
    suites: Suites,
    suite: str,
    folder: Path,
    text: TextRecipe,
    *,
    reporter: Reporter = QUIET,
) -> Report:
    """Judge a trained model's folder, or a start model with the recipe's settings, by one suite."""
    options, read, tasks = suites.options, suites.read(suite), suites.tasks(suite)
    judged = Narrowed(
        dataclasses.replace(_load(model, options.device), name=name),
        read.choose(tasks),
        cache=options.cache if isinstance(model, EncoderOptions) else None,
        text_recipe=text,
        reporter=reporter,
    )
    return evaluate(judged, read, folder, tasks=tasks, overwrite=options.overwrite, reporter=reporter)


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
