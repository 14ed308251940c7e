"""The verb: run a whole recipe, from a corpus to trained models and their reports.

    result = run_recipe(load_recipe("specter"), "corpus/", "run/", RunOptions(init="minilm"))
    result.models, result.comparisons["corpus"].sentences

Stages: papers of published suites leave the corpus; the references that the corpus suite asks for leave it too;
intents of citations where rules need them and nobody gave any; graph and node vectors; samples, their sentences aligned
where the recipe says so; one model a seed; reports of the start model and of the trained ones. A stage whose inputs did
not change is skipped, an interrupted run goes on. A recipe whose start model or aligner is `recipe:NAME` runs that one
first.

Sweeps: a recipe run once for every value of one key, and what the reports say of each value.

    sweep_recipe("scincl", Over("mining.positives.band", ("5", "25", "100")), "corpus/", "sweep/", RunOptions(...))

    sweep/shared/                    stages that the runs have in common: corpus, graph, samples, start reports
    sweep/KEY-VALUE/                 one run a value, such as band-25
    sweep/curves/SUITE.TASK.png      a curve a task and one of all tasks together, also as .svg
    sweep/sweep.json, sweep.md       all numbers

SciNCL's figures 2, 3 and 5 to 7 are such curves (Ostendorff et al., EMNLP 2022). A sweep that was interrupted goes on.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core import plots
from citeweave.core.errors import UserError
from citeweave.core.files import hash_file, hash_json, write_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.encoders.model_names import locate
from citeweave.evaluation.compare import Comparison
from citeweave.evaluation.encoder_systems import ENCODER
from citeweave.evaluation.report import Report, file_names
from citeweave.mining.align import AlignmentOptions
from citeweave.mining.samples import Samples
from citeweave.pipeline.recipe import ReadRecipe, Recipe, as_toml, load_recipe, read_recipe
from citeweave.pipeline.run_folder import CHAIN, RECIPE, RunFolder, RunOptions
from citeweave.pipeline.stages import ALIGN_STAGE, DataStages, align_stage, key_of_intents
from citeweave.pipeline.suites import Suites, check_suites
from citeweave.pipeline.training_stages import (
    Judge,
    ModelStages,
    SpaceReports,
    SystemSettings,
    chained,
    check_chain,
    compare_runs,
    comparison_page,
    keeps_pooling,
    options_of,
    with_aligner,
    with_start,
)
from citeweave.training.options import EncoderOptions
from citeweave.training.sentence_objective import trained_distance

COMPARISON = "comparison.md"


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of a recipe run: models, reports, comparisons, and which stages were made or skipped."""

    folder: Path
    recipe: Recipe
    samples: Samples
    models: tuple[Path, ...]
    """One folder a seed."""

    start: Mapping[str, Report]
    """Suite -> report on the start model."""

    reports: Mapping[str, tuple[Report, ...]]
    """Suite -> reports on the trained models."""

    comparisons: Mapping[str, Comparison]
    record: Mapping[str, Any]
    """What run.json says."""

    made: tuple[str, ...]
    skipped: tuple[str, ...]
    """Stages that were there already."""

    spaces: SpaceReports = field(default_factory=dict)
    """Suite -> aspect space -> reports on the trained models, where they have aspect heads."""


def run_recipe(
    recipe: Recipe,
    corpus: str | Path,
    output: str | Path,
    options: RunOptions | None = None,
    *,
    reporter: Reporter = QUIET,
) -> RunResult:
    """Run a complete recipe into a folder: data, training, evaluation; finished stages are skipped."""
    options, output = options or RunOptions(), Path(output)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("a run is one process, and torchrun started several; train its samples with `citeweave train`")
    check_suites(options)
    recipe, read = prepare(recipe, options)
    opened = Corpus.open(corpus)
    run = RunFolder(output, identity_of(recipe, opened, options), reporter, options.shared, options.overwrite)
    run.open()
    _check_models(run, read)
    (output / RECIPE).write_text(as_toml(recipe.tables), encoding="utf-8")
    data = DataStages(run, recipe, read, options, reporter)
    audited = data.audit(opened)
    suites = Suites(audited, options, reporter, opened)
    if not all(f"report-start/{name}" in run.record["stages"] for name in suites.names):
        suites.check()  # what is wrong is told before hours of training
    first = {
        stage: _run_first(run, stage, inner, corpus, options, reporter) for stage, inner in chained(recipe).items()
    }
    encoder = _start_of(recipe, read, first)
    found = data.make(audited, suites)
    if (alignment := _alignment_of(read, first)) is not None:
        found = align_stage(run, found, alignment, options, reporter)
    models = ModelStages(run, recipe, read, options, reporter).train(found, encoder)
    reading = SystemSettings(encoder.text_recipe, trained_distance(read.training.losses) if read.training else None)
    start, reports, spaces = _judge(run, recipe, encoder, models, suites, reading, reporter)
    comparisons = compare_runs(start, reports, recipe.label, resamples=options.resamples)
    (output / COMPARISON).write_text(comparison_page(comparisons, spaces), encoding="utf-8")
    run.keep(
        bands=run.facts("samples").get("bands", {}),
        metrics={
            "start": {suite: report.metrics for suite, report in start.items()},
            "trained": {suite: [each.metrics for each in several] for suite, several in reports.items()},
            **_space_metrics(spaces),
        },
        result=hash_json([run.record["stages"][stage]["mark"] for stage in sorted(run.record["stages"])]),
    )
    made, skipped = tuple(run.made), tuple(run.skipped)
    reporter.say(
        f"{output}: nothing to do, all {len(skipped)} stages are there" if not made else f"made: {', '.join(made)}"
    )
    return RunResult(
        output, recipe, found.samples, tuple(models), start, reports, comparisons, run.record, made, skipped, spaces
    )


def _space_metrics(spaces: SpaceReports) -> dict[str, Any]:
    """Return the metrics in aspect spaces for the run record; empty if the models have no aspect heads."""
    found = {
        suite: {space: [each.metrics for each in reports] for space, reports in own.items()}
        for suite, own in spaces.items()
        if own
    }
    return {"spaces": found} if found else {}


def prepare(recipe: Recipe, options: RunOptions, *, download: bool = True) -> tuple[Recipe, ReadRecipe]:
    """Resolve a recipe's start model and check its tables; a recipe that trains nothing is refused."""
    check_chain(recipe)
    read = read_recipe(recipe)
    if read.training is None:
        raise UserError(f"recipe {recipe.name} has no [training] table; mine its samples with `citeweave mine`")
    recipe = with_aligner(with_start(recipe, options.init, download=download), options.aligner)
    return recipe, read_recipe(recipe)


def identity_of(recipe: Recipe, corpus: Corpus, options: RunOptions) -> dict[str, Any]:
    """Return what identifies a run; more seeds, suites and tasks can be added without changing it."""
    tables = {name: dict(table) for name, table in recipe.tables.items() if name != "recipe"}
    if "training" in tables:
        tables["training"].pop("seeds", None)
    return {
        "recipe": tables,
        "init": options.init,
        **({"aligner": options.aligner} if options.aligner else {}),
        "corpus": corpus.hash,
        "held_out": options.held_out,
        "bands": options.bands,
        "tables": {
            name: _hash_given(path, f"--table {name}=", "a file of pairs")
            for name, path in sorted(options.tables.items())
        },
        **({} if options.pool is None else {"pool": _hash_given(options.pool, "--pool ", "one id a line")}),
        **key_of_intents(options),
    }


def _hash_given(path: Path, option: str, what: str) -> str:
    if not path.is_file():
        raise UserError(f"{option}{path}: there is no such file; give {what}")
    return hash_file(path)


def _check_models(run: RunFolder, read: ReadRecipe) -> None:
    """Check that the models of a run can be found, before samples are mined."""
    wanted = {"model": read.encoder.init, ALIGN_STAGE: read.alignment.encoder if read.alignment else ""}
    for stage, name in wanted.items():
        if name and stage not in run.record["stages"] and not name.startswith(CHAIN):
            locate(name)


def _run_first(
    run: RunFolder, stage: str, inner: Recipe, corpus: str | Path, options: RunOptions, reporter: Reporter
) -> Path:
    """Run a recipe whose model this run starts from; return the folder of that model."""
    own = options_of(inner, options)
    inputs = [identity_of(inner, Corpus.open(corpus), own), sorted(options.suites)]

    def make(folder: Path) -> None:
        use = "is where this recipe starts" if stage.startswith("init-") else "aligns the sentences"
        reporter.say(f"{inner.name} comes first: its model {use}")
        run_recipe(inner, corpus, folder, own, reporter=reporter)

    return run.run(stage, inputs, make) / "model"


def _start_of(recipe: Recipe, read: ReadRecipe, first: Mapping[str, Path]) -> EncoderOptions:
    """Return the encoder options of the start model; `first` holds the models of earlier recipes by stage."""
    found = [folder for stage, folder in first.items() if stage.startswith("init-")]
    if not found:
        return read.encoder
    # the model of the first recipe knows how it is pooled
    pooling = read.encoder.pooling if keeps_pooling(recipe) else ""
    return dataclasses.replace(read.encoder, init=str(found[0]), pooling=pooling)


def _alignment_of(read: ReadRecipe, first: Mapping[str, Path]) -> AlignmentOptions | None:
    """Return how sentences are aligned, with a local aligner model; None if the recipe aligns nothing."""
    found = [folder for stage, folder in first.items() if stage.startswith("aligner-")]
    if read.alignment is None or not found:
        return read.alignment
    return dataclasses.replace(read.alignment, encoder=str(found[0]))


def _judge(
    run: RunFolder,
    recipe: Recipe,
    encoder: EncoderOptions,
    models: list[Path],
    suites: Suites,
    reading: SystemSettings,
    reporter: Reporter,
) -> tuple[dict[str, Report], dict[str, tuple[Report, ...]], SpaceReports]:
    """Reports of the start model and of every trained one, by suite; those in aspect spaces apart."""
    start: dict[str, Report] = {}
    trained: dict[str, list[Report]] = {name: [] for name in suites.names}
    spaces: dict[str, dict[str, list[Report]]] = {name: {} for name in suites.names}
    wanted = sorted(suites.options.tasks)
    settings = ModelStages.start_key(encoder)
    judged: list[tuple[str, Path | EncoderOptions, str, Any]] = [("report-start", encoder, encoder.init, settings)]
    for number, model in enumerate(models):
        suffix = f"-{number}" if number else ""
        judged.append((f"report{suffix}", model, recipe.label, run.record["stages"][f"model{suffix}"]["mark"]))
    for place, model_, name, key in judged:
        for suite in suites.names:
            judge = Judge(model_, name, suites, suite, reading, reporter)
            inputs = [key, suites.key(suite), wanted, *reading.key]
            folder = run.run(f"{place}/{suite}", inputs, _maker(judge))
            if place == "report-start":
                start[suite] = Report.open(folder)
            else:
                trained[suite].append(Report.open(folder))
            for space in judge.spaces():
                folder = run.run(f"{place}/{suite} ({space})", [*inputs, space], _maker(judge, space))
                spaces[suite].setdefault(space, []).append(Report.open(folder))
    return start, {suite: tuple(several) for suite, several in trained.items()}, spaces


def _maker(judge: Judge, space: str = ENCODER) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        judge.judge(folder, space)

    return make


# Sweeps: a recipe run once for every value of one key, and what the reports say of each value.

RECORD, PAGE, CURVES = "sweep.json", "sweep.md", "curves"
MEAN = "mean of the tasks"


@dataclass(frozen=True, slots=True)
class Over:
    """The recipe key that a sweep varies, and its values."""

    key: str
    values: tuple[str, ...]

    @property
    def numbers(self) -> list[float] | None:
        """Return the swept values as numbers, percentages included; None if one is not a number."""
        try:
            return [float(value.strip().removesuffix("%")) for value in self.values]
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The outcome of a sweep: its runs, and metrics by value with curves."""

    folder: Path
    over: Over
    runs: tuple[RunResult, ...]
    values: Mapping[str, NDArray[np.float64]]
    """`suite.task.metric` -> (values, 3): mean, least and largest over the seeds, in percent."""

    start: Mapping[str, NDArray[np.float64]]
    """The same of the start model, (values,); it depends on the value where that is about how texts are read."""

    pictures: tuple[Path, ...]


def parse_over(text: str) -> Over:
    """Parse --over KEY=VALUE,VALUE,...; commas inside brackets do not separate.

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
    """Run a recipe once for every value of one key, then plot the metrics over the values."""
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
    """Format a sweep as a Markdown table: one row per value, one column per metric, and the start model."""
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
    """Collect the metrics that all runs of a sweep share."""
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
    """Plot one figure per metric of a sweep, as .png and .svg."""
    folder.mkdir(exist_ok=True)
    names, drawn = file_names(values), []
    numbers = over.numbers
    for metric, line in values.items():
        for suffix in (".png", ".svg"):
            path = folder / f"{names[metric]}{suffix}"
            if numbers is None or len(numbers) < 2:
                lengths = dict(zip(over.values, line[:, 0].tolist(), strict=True))
                plots.draw_bars(path, {**lengths, "start model": start[metric][0]}, title=metric, x_label="percent")
            else:
                order = np.argsort(numbers)
                across = np.array(numbers)[order]
                series = {"trained": line[order], "start model": start[metric][order]}
                log = bool(across[0] > 0 and across[-1] / across[0] >= 20)
                plots.draw_curves(path, across, series, title=metric, x_label=over.key, y_label="percent", log_x=log)
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
