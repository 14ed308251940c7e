"""Sweeps: a recipe run once for every value of one key, and what the reports say of each value.

    sweep_recipe("scincl", Over("mining.positives.band", ("5", "25", "100")), "corpus/", "sweep/", RunOptions(...))

    sweep/shared/                    stages that the runs have in common: corpus, graph, samples, start reports
    sweep/KEY-VALUE/                 one run a value, such as band-25
    sweep/curves/SUITE.TASK.png      a curve a task and one of all tasks together, also as .svg
    sweep/sweep.json, sweep.md       all numbers

SciNCL's figures 2, 3 and 5 to 7 are such curves (Ostendorff et al., EMNLP 2022). A sweep that was interrupted goes on.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave import plots
from citeweave.errors import UserError
from citeweave.evaluation.report import Report, file_names
from citeweave.files import write_json
from citeweave.pipeline.options import RunOptions
from citeweave.pipeline.run import RunResult, prepare, run_recipe
from citeweave.progress import QUIET, Reporter
from citeweave.recipe import load_recipe

RECORD, PAGE, CURVES = "sweep.json", "sweep.md", "curves"
MEAN = "mean of the tasks"


@dataclass(frozen=True, slots=True)
class Over:
    """The key that is swept and its values."""

    key: str
    values: tuple[str, ...]

    @property
    def numbers(self) -> list[float] | None:
        """The values as numbers, None where one is none; a percentage counts as one."""
        try:
            return [float(value.strip().removesuffix("%")) for value in self.values]
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep found."""

    folder: Path
    over: Over
    runs: tuple[RunResult, ...]
    values: Mapping[str, NDArray[np.float64]]
    """`suite.task.metric` -> (values, 3): mean, least and largest over the seeds, in percent."""

    start: Mapping[str, NDArray[np.float64]]
    """The same of the start model, (values,); it depends on the value where that is about how texts are read."""

    pictures: tuple[Path, ...]


def parse_over(text: str) -> Over:
    """Read KEY=VALUE,VALUE,...; commas inside brackets do not part.

    >>> parse_over("mining.positives.band=5,25,[0, 25]")
    Over(key='mining.positives.band', values=('5', '25', '[0, 25]'))
    """
    key, equals, values = text.partition("=")
    parts = [part.strip() for part in re.split(r",(?![^\[{]*[\]}])", values)]
    if not equals or "." not in key or not all(parts) or len(set(parts)) < len(parts):
        raise UserError(
            f"--over is {text!r}; it must be TABLE.KEY=VALUE,VALUE,..., such as mining.positives.band=5,25,100"
        )
    return Over(key.strip(), tuple(parts))


def sweep_recipe(
    name: str,
    over: Over,
    corpus: str | Path,
    output: str | Path,
    options: RunOptions | None = None,
    *,
    overrides: Sequence[str] = (),
    reporter: Reporter = QUIET,
) -> SweepResult:
    """Run the recipe for every value, then draw the curves."""
    options, output = options or RunOptions(), Path(output)
    recipes = [load_recipe(name, [*overrides, f"{over.key}={value}"]) for value in over.values]
    for recipe in recipes:  # a value that is wrong is told before the first run
        prepare(recipe, options)
    if output.exists() and not (output / "shared").is_dir() and any(output.iterdir()):
        raise UserError(f"{output} exists and is no sweep of citeweave; choose another -o")
    (output / "shared").mkdir(parents=True, exist_ok=True)
    options = dataclasses.replace(options, shared=output / "shared")
    runs = []
    last = over.key.rpartition(".")[2]
    folders = dict(zip(over.values, file_names(f"{last}-{value}" for value in over.values).values(), strict=True))
    for recipe, value in zip(recipes, over.values, strict=True):
        reporter.say(f"{over.key} = {value}")
        runs.append(run_recipe(recipe, corpus, output / folders[value], options, reporter=reporter))
    found = _values(runs)
    before = [_start(run) for run in runs]
    start = {metric: np.array([each[metric] for each in before]) for metric in found}  # each (values,)
    pictures = _draw(output / CURVES, over, found, start)
    write_json(output / RECORD, _record(name, over, runs, found, start))
    (output / PAGE).write_text(as_table(over, found, start) + "\n", encoding="utf-8")
    return SweepResult(output, over, tuple(runs), found, start, tuple(pictures))


def as_table(over: Over, values: Mapping[str, NDArray[np.float64]], start: Mapping[str, NDArray[np.float64]]) -> str:
    """A row a value, a column a metric, and a row of the start model."""
    head = [over.key, *values]
    rows = [[value, *(f"{values[metric][at, 0]:.2f}" for metric in values)] for at, value in enumerate(over.values)]
    same = all(np.ptp(numbers) == 0 for numbers in start.values())
    for at, value in enumerate(over.values[:1] if same else over.values):
        name = "start model" if same else f"start model, {value}"
        rows.append([name, *(f"{start[metric][at]:.2f}" for metric in values)])
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def _headline(report: Report) -> dict[str, float]:
    names = report.value["headline"] or list(report.metrics)
    return {name: report.metrics[name] for name in names if name in report.metrics}


def _start(run: RunResult) -> dict[str, float]:
    found = {
        f"{suite}.{metric}": value for suite, report in run.start.items() for metric, value in _headline(report).items()
    }
    return {**found, MEAN: float(np.mean(list(found.values())))}


def _values(runs: Sequence[RunResult]) -> dict[str, NDArray[np.float64]]:
    """Metrics that every run has."""
    rows: list[dict[str, NDArray[np.float64]]] = []
    for run in runs:
        of_seeds: dict[str, list[float]] = {}
        for suite, reports in run.reports.items():
            for report in reports:
                for metric, value in _headline(report).items():
                    of_seeds.setdefault(f"{suite}.{metric}", []).append(value)
        mean = np.mean(list(of_seeds.values()), axis=0)  # (seeds,)
        of_seeds[MEAN] = list(mean)
        rows.append({metric: np.array([np.mean(x), np.min(x), np.max(x)]) for metric, x in of_seeds.items()})
    shared = [metric for metric in rows[0] if all(metric in row for row in rows)]
    return {metric: np.stack([row[metric] for row in rows]) for metric in shared}  # each (values, 3)


def _draw(
    folder: Path, over: Over, values: Mapping[str, NDArray[np.float64]], start: Mapping[str, NDArray[np.float64]]
) -> list[Path]:
    """A picture a metric, as .png and .svg."""
    folder.mkdir(exist_ok=True)
    names, drawn = file_names(values), []
    numbers = over.numbers
    for metric, line in values.items():
        for suffix in (".png", ".svg"):
            path = folder / f"{names[metric]}{suffix}"
            if numbers is None or len(numbers) < 2:
                lengths = dict(zip(over.values, line[:, 0].tolist(), strict=True))
                plots.bars(path, {**lengths, "start model": start[metric][0]}, title=metric, x_label="percent")
            else:
                order = np.argsort(numbers)
                across = np.array(numbers)[order]
                series = {"trained": line[order], "start model": start[metric][order]}
                log = bool(across[0] > 0 and across[-1] / across[0] >= 20)
                plots.curve(path, across, series, title=metric, x_label=over.key, y_label="percent", log_x=log)
            drawn.append(path)
    return drawn


def _record(
    name: str,
    over: Over,
    runs: Sequence[RunResult],
    values: Mapping[str, NDArray[np.float64]],
    start: Mapping[str, NDArray[np.float64]],
) -> dict[str, Any]:
    return {
        "recipe": name,
        "over": over.key,
        "values": list(over.values),
        "runs": [str(run.folder) for run in runs],
        "bands": [run.record.get("bands", {}) for run in runs],
        "metrics": {
            metric: [{"mean": a, "least": b, "largest": c} for a, b, c in line.tolist()]
            for metric, line in values.items()
        },
        "start": {metric: numbers.tolist() for metric, numbers in start.items()},
    }
