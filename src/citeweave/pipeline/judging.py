"""Judging the start model and the trained ones by every suite, and saying whether training helped.

A model reads papers as it did in training: with the recipe's parts of the text, pooling and length. Parts that a suite
does not have, such as venues and authors, are left out there. A recipe whose losses read sentences is judged by the
distance between sentences that it trains, and so is its start model. A model with aspect heads is judged by its own
vector, as any other, and beside that in every space.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from citeweave.corpus.text import TextRecipe
from citeweave.encoders.aspects import ALL, AspectHeads, find_heads
from citeweave.evaluation.compare import compare
from citeweave.evaluation.comparison import Comparison
from citeweave.evaluation.evaluate import EvaluationOptions, evaluate
from citeweave.evaluation.judged import Judged
from citeweave.evaluation.judging.aspect_spaces import ENCODER, MATCHING, spaces_of
from citeweave.evaluation.judging.sentence_level import SentenceLevel
from citeweave.evaluation.report import Report
from citeweave.evaluation.reporting.markdown import comparison_as_markdown
from citeweave.pipeline.narrowing import Narrowed
from citeweave.pipeline.options import INTENTS
from citeweave.pipeline.suites import Suites
from citeweave.progress import QUIET, Reporter
from citeweave.training.options import EncoderOptions
from citeweave.training.sentence_level.trained_distance import TrainedDistance

START = "start"
FACETED = ("csfcube", INTENTS)
"""Suites whose queries ask about one of these aspects."""

FACETS = ("background", "method", "result")

SpaceReports = Mapping[str, Mapping[str, Sequence[Report]]]
"""Suite -> aspect space -> reports on the trained models."""


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


@dataclass
class Judge:
    """A trained model's folder, or a start model with the recipe's settings, by one suite.

    The model is loaded when it is first needed, and reads every paper once, in however many spaces it is judged.
    """

    model: Path | EncoderOptions
    name: str
    suites: Suites
    suite: str
    reading: Reading
    reporter: Reporter = field(default_factory=lambda: QUIET)

    def spaces(self) -> tuple[str, ...]:
        """Aspect spaces to judge beside the encoder's own vector; none of a start model."""
        heads = self._heads()
        if heads is None:
            return ()
        return (*heads.names, ALL, *((MATCHING,) if self.suite in FACETED and set(FACETS) <= set(heads.names) else ()))

    def judge(self, folder: Path, space: str = ENCODER) -> Report:
        """Write the report of one space."""
        options, read, tasks = self.suites.options, self.suites.read(self.suite), self.suites.tasks(self.suite)
        how = EvaluationOptions(distance=self.reading.distance.name if self.reading.distance else "")
        return evaluate(
            self._judged[space],
            read,
            folder,
            tasks=tasks,
            options=how,
            overwrite=options.overwrite,
            reporter=self.reporter,
        )

    def _heads(self) -> AspectHeads | None:
        if isinstance(self.model, EncoderOptions) or self.reading.distance is not None:
            return None
        return find_heads(self.model)

    @cached_property
    def _judged(self) -> dict[str, Judged]:
        options, distance = self.suites.options, self.reading.distance
        encoder = dataclasses.replace(_load(self.model, options.device), name=self.name)
        if distance is not None:
            temperature = distance.temperature if distance.name == "attention" else None
            by_sentence = SentenceLevel(
                encoder, name=self.name, metric=distance.metric, temperature=temperature, reporter=self.reporter
            )
            return {ENCODER: by_sentence}
        whole = Narrowed(
            encoder,
            self.suites.read(self.suite).choose(self.suites.tasks(self.suite)),
            cache=options.cache if isinstance(self.model, EncoderOptions) else None,
            text_recipe=self.reading.text,
            reporter=self.reporter,
        )
        heads = self._heads()
        return {ENCODER: whole} if heads is None else spaces_of(whole, heads)


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


def comparison_page(comparisons: Mapping[str, Comparison], spaces: SpaceReports | None = None) -> str:
    """All comparisons as Markdown, one heading a suite; under it the aspect spaces, where models have some."""
    parts = []
    for suite, found in comparisons.items():
        parts.append(f"## {suite}\n\n{comparison_as_markdown(found)}")
        if spaces and spaces.get(suite):
            parts.append(_space_table(found, spaces[suite]))
    return "\n".join(parts)


def _space_table(comparison: Comparison, spaces: Mapping[str, Sequence[Report]]) -> str:
    """Means over seeds; a space that cannot answer a task has a dash."""
    names = [name for name in comparison.metrics if name in comparison.queries]
    own = comparison.values[comparison.systems[-1]]
    lines = [["space", *names], ["---"] * (len(names) + 1)]
    lines.append(["the encoder's vector", *(f"{own[name]:.2f}" for name in names)])
    for space, reports in spaces.items():
        known = [[report.metrics[name] for report in reports if name in report.metrics] for name in names]
        lines.append([space, *(f"{sum(values) / len(values):.2f}" if values else "-" for values in known)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
