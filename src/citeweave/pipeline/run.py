"""Run a recipe from a corpus to trained models and reports, and sweeps: a recipe run once for every value of one key.

    result = run_recipe(load_recipe("specter"), "corpus/", "run/", RunOptions(init="minilm"))
    result.models, result.comparisons["corpus"].sentences

The stages of a run: papers of published suites and held-out references are removed from the corpus; citation intents are
classified if rules need them; then graph and node vectors, samples with aligned sentences if the recipe aligns them, one
model per seed, and reports of the start model and of the trained ones. A stage whose inputs did not change is skipped, and
an interrupted run resumes. A recipe whose start model or aligner is `recipe:NAME` runs that one first.

    sweep_recipe("scincl", SweptKey("mining.positives.band", ("5", "25", "100")), "corpus/", "sweep/", RunOptions(...))

    sweep/shared/                    stages that the runs have in common: corpus, graph, samples, start reports
    sweep/KEY-VALUE/                 one run per value, such as band-25
    sweep/curves/SUITE.TASK.png      one curve per task and one of all tasks together, also as .svg
    sweep/sweep.json, sweep.md       all numbers

SciNCL's figures 2, 3 and 5 to 7 are such curves (Ostendorff et al., EMNLP 2022). An interrupted sweep resumes.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core import plots
from citeweave.core.errors import UserError
from citeweave.core.executor import Executor
from citeweave.core.files import hash_file, hash_json, write_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.encoders.model_names import locate, parse_random
from citeweave.evaluation.compare import Comparison
from citeweave.evaluation.encoder_systems import ENCODER
from citeweave.evaluation.report import Report, file_names
from citeweave.mining.options import AlignmentOptions
from citeweave.mining.samples import Samples
from citeweave.pipeline.fit_bands import bands_as_facts
from citeweave.pipeline.recipe import Recipe, RecipeOptions, as_toml, load_recipe, read_recipe, teacher_stages
from citeweave.pipeline.required_data import check_required_data
from citeweave.pipeline.run_folder import CHAIN, RECIPE, RunFolder, RunOptions
from citeweave.pipeline.stages import ALIGN_STAGE, DataStages, align_stage, intents_key
from citeweave.pipeline.suites import Suites, check_suites
from citeweave.pipeline.training_stages import (
    EvaluationSettings,
    ModelEvaluation,
    SpaceReports,
    chained_options,
    chained_recipes,
    check_chain,
    compare_runs,
    comparison_page,
    keeps_pooling,
    open_teacher,
    start_key,
    train_models,
    with_aligner,
    with_start_model,
)
from citeweave.training.options import EncoderOptions

COMPARISON = "comparison.md"


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of a recipe run: models, reports, comparisons, and which stages ran or were skipped."""

    folder: Path
    recipe: Recipe
    samples: Samples
    models: tuple[Path, ...]
    """One folder per seed."""

    start: Mapping[str, Report]
    """Suite -> report on the start model."""

    reports: Mapping[str, tuple[Report, ...]]
    """Suite -> reports on the trained models."""

    comparisons: Mapping[str, Comparison]
    record: Mapping[str, Any]
    """The content of run.json."""

    executed: tuple[str, ...]
    """Stages that ran."""

    skipped: tuple[str, ...]
    """Stages that were already done."""

    spaces: SpaceReports = field(default_factory=dict)
    """Suite -> aspect space -> reports on the trained models, if they have aspect heads."""


def run_recipe(
    recipe: Recipe,
    corpus: str | Path,
    output: str | Path,
    options: RunOptions | None = None,
    *,
    reporter: Reporter = QUIET,
    executor: Executor | None = None,
) -> RunResult:
    """Run a complete recipe: hold out test papers, mine samples, train, evaluate before and after, compare.

        run = run_recipe("scincl", "corpus/", "run/")
        run.models, run.reports["corpus"][0].metrics, run.comparisons["corpus"].sentences

    Each stage is a folder in `output`; finished stages are skipped, so that an interrupted run resumes.

    An executor annotates, mines and embeds in place of this process, which trains.
    """
    from citeweave.training.sentence_objective import trained_distance  # needs torch

    options, output = options or RunOptions(), Path(output)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("a run is one process, but torchrun started several; train its samples with `citeweave train`")
    check_suites(options)
    recipe, read = prepare_recipe(recipe, options)
    opened = Corpus.open(corpus)
    check_required_data(recipe, opened, options)
    run = RunFolder(output, run_identity(recipe, opened, options), options, reporter, executor)
    run.open()
    _check_models(run, read)
    (output / RECIPE).write_text(as_toml(recipe.tables), encoding="utf-8")
    data = DataStages(run, recipe, read)
    audited = data.audit(opened)
    suites = Suites(audited, options, reporter, opened)
    if not all(f"report-start/{name}" in run.record["stages"] for name in suites.names):
        suites.check()  # before hours of training
    earlier = {stage: _run_earlier(run, stage, inner, opened) for stage, inner in chained_recipes(recipe).items()}
    encoder = _start_options(recipe, read, earlier)
    inputs = data.make(audited, suites)
    if (alignment := _alignment_options(read, earlier)) is not None:
        inputs = align_stage(run, inputs, alignment)
    assert read.training is not None, "prepare_recipe requires it"
    models = train_models(run, recipe, read.training, inputs, encoder)
    distance, is_frozen = trained_distance(read.training.losses), read.training.parts == "heads"
    settings = EvaluationSettings(encoder.text_recipe, distance, is_frozen)
    start, reports, spaces = _evaluate_models(run, recipe, encoder, models, suites, settings)
    comparisons = compare_runs(start, reports, recipe.label, resamples=options.resamples)
    page = [comparison_page(comparisons, reports, spaces), *bands_as_facts(run.bands).values()]
    (output / COMPARISON).write_text("\n".join(page).rstrip() + "\n", encoding="utf-8")
    _record_results(run, start, reports, spaces)
    executed, skipped = tuple(run.executed), tuple(run.skipped)
    done = f"{output}: nothing to do, all {len(skipped)} stages are already done"
    reporter.say(f"stages that ran: {', '.join(executed)}" if executed else done)
    made = inputs.samples, tuple(models), start, reports, comparisons
    return RunResult(output, recipe, *made, run.record, executed, skipped, spaces)


def _record_results(
    run: RunFolder, start: Mapping[str, Report], reports: Mapping[str, Sequence[Report]], spaces: SpaceReports
) -> None:
    """Record the bands, the metrics before and after training, and a hash of all stages."""
    in_spaces = {
        suite: {space: [report.metrics for report in trained] for space, trained in by_space.items()}
        for suite, by_space in spaces.items()
        if by_space
    }
    run.record_values(
        bands=run.bands,
        metrics={
            "start": {suite: report.metrics for suite, report in start.items()},
            "trained": {suite: [report.metrics for report in trained] for suite, trained in reports.items()},
            **({"spaces": in_spaces} if in_spaces else {}),
        },
        result=hash_json([run.record["stages"][stage]["mark"] for stage in sorted(run.record["stages"])]),
    )


def prepare_recipe(recipe: Recipe, options: RunOptions, *, download: bool = True) -> tuple[Recipe, RecipeOptions]:
    """Resolve a recipe's start model and check its tables; a recipe that trains nothing is refused."""
    check_chain(recipe)
    read = read_recipe(recipe)
    if read.training is None:
        raise UserError(f"recipe {recipe.name} has no [training] table; mine its samples with `citeweave mine`")
    recipe = with_aligner(with_start_model(recipe, options.init, download=download), options.aligner)
    return recipe, read_recipe(recipe)


def run_identity(recipe: Recipe, corpus: Corpus, options: RunOptions) -> dict[str, Any]:
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
            name: _hash_option_file(path, f"--table {name}=", "a file of pairs")
            for name, path in sorted(options.tables.items())
        },
        **({} if options.pool is None else {"pool": _hash_option_file(options.pool, "--pool ", "one id per line")}),
        **intents_key(options),
    }


def _hash_option_file(path: Path, option: str, content: str) -> str:
    if not path.is_file():
        raise UserError(f"{option}{path}: no such file; give {content}")
    return hash_file(path)


def _check_models(run: RunFolder, read: RecipeOptions) -> None:
    """Check that the models of a run can be found, before samples are mined."""
    wanted = {"model": read.encoder.init, ALIGN_STAGE: read.alignment.encoder if read.alignment else ""}
    for stage, name in wanted.items():
        if name and stage not in run.record["stages"] and not name.startswith(CHAIN):
            locate(parse_random(name)[0])
    assert read.training is not None
    for stage, name in teacher_stages(read.training).items():
        if stage not in run.record["stages"]:
            open_teacher(name)


def _run_earlier(run: RunFolder, stage: str, inner: Recipe, corpus: Corpus) -> Path:
    """Run a recipe whose model this run starts from; return the folder of that model."""
    options = chained_options(inner, run.options)
    inputs = [run_identity(inner, corpus, options), sorted(options.suites)]

    def make(folder: Path) -> None:
        use = "is the start model" if stage.startswith("init-") else "aligns the sentences"
        run.reporter.say(f"{inner.name} runs first: its model {use}")
        run_recipe(inner, corpus.folder, folder, options, reporter=run.reporter, executor=run.executor)

    return run.run(stage, inputs, make) / "model"


def _start_options(recipe: Recipe, read: RecipeOptions, earlier: Mapping[str, Path]) -> EncoderOptions:
    """Return the encoder options of the start model; `earlier` holds the models of earlier recipes by stage."""
    models = [folder for stage, folder in earlier.items() if stage.startswith("init-")]
    if not models:
        return read.encoder
    # the folder of an earlier model defines its pooling
    pooling = read.encoder.pooling if keeps_pooling(recipe) else ""
    return dataclasses.replace(read.encoder, init=str(models[0]), pooling=pooling)


def _alignment_options(read: RecipeOptions, earlier: Mapping[str, Path]) -> AlignmentOptions | None:
    """Return how sentences are aligned, with a local aligner model; None if the recipe aligns nothing."""
    models = [folder for stage, folder in earlier.items() if stage.startswith("aligner-")]
    if read.alignment is None or not models:
        return read.alignment
    return dataclasses.replace(read.alignment, encoder=str(models[0]))


def _evaluate_models(
    run: RunFolder,
    recipe: Recipe,
    encoder: EncoderOptions,
    models: list[Path],
    suites: Suites,
    settings: EvaluationSettings,
) -> tuple[dict[str, Report], dict[str, tuple[Report, ...]], SpaceReports]:
    """Evaluate the start model and every trained one on every suite; reports in aspect spaces are apart."""
    start: dict[str, Report] = {}
    trained: dict[str, list[Report]] = {name: [] for name in suites.names}
    spaces: dict[str, dict[str, list[Report]]] = {name: {} for name in suites.names}
    wanted = sorted(suites.options.tasks)
    start_evaluations: dict[str, ModelEvaluation] = {}
    systems: list[tuple[str, Path | EncoderOptions, str, Any]] = [
        ("report-start", encoder, encoder.init, start_key(encoder))
    ]
    for number, folder in enumerate(models):
        suffix = f"-{number}" if number else ""
        systems.append((f"report{suffix}", folder, recipe.label, run.record["stages"][f"model{suffix}"]["mark"]))
    for place, model, name, key in systems:
        for suite in suites.names:
            evaluation = ModelEvaluation(model, name, suites, suite, settings, run.reporter, run.executor)
            if place == "report-start":
                start_evaluations[suite] = evaluation
            elif settings.is_frozen:
                evaluation.same_as = start_evaluations[suite]
            inputs = [key, suites.key(suite), wanted, *settings.key]
            for space in (ENCODER, *evaluation.spaces()):
                is_own = space == ENCODER
                make = partial(evaluation.write_report, space=space)
                name_of_stage = f"{place}/{suite}" if is_own else f"{place}/{suite} ({space})"
                report = Report.open(run.run(name_of_stage, inputs if is_own else [*inputs, space], make))
                if not is_own:
                    spaces[suite].setdefault(space, []).append(report)
                elif place == "report-start":
                    start[suite] = report
                else:
                    trained[suite].append(report)
    return start, {suite: tuple(reports) for suite, reports in trained.items()}, spaces


# --- sweeps ---

RECORD, PAGE, CURVES = "sweep.json", "sweep.md", "curves"
MEAN = "mean of the tasks"


@dataclass(frozen=True, slots=True)
class SweptKey:
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
    """The outcome of a sweep: the runs of its recipe, and metrics by value with curves."""

    folder: Path
    over: SweptKey
    runs: tuple[RunResult, ...]
    values: Mapping[str, NDArray[np.float64]]
    """`suite.task.metric` -> (values, 3): mean, minimum and maximum over the seeds, in percent."""

    start: Mapping[str, NDArray[np.float64]]
    """`suite.task.metric` -> (values,) of the start model; they differ if the swept key changes how texts are read."""

    figures: tuple[Path, ...]


def parse_swept_key(text: str) -> SweptKey:
    """Parse the values of a sweep, KEY=VALUE,VALUE,...; commas inside brackets do not separate.

    >>> parse_swept_key("mining.positives.band=5,25,[0, 25]")
    SweptKey(key='mining.positives.band', values=('5', '25', '[0, 25]'))
    """
    key, equals, values = text.partition("=")
    parts = [part.strip() for part in re.split(r",(?![^\[{]*[\]}])", values)]
    if not equals or "." not in key or not all(parts) or len(set(parts)) < len(parts):
        raise UserError(
            f"--over is {text!r}; it must be TABLE.KEY=VALUE,VALUE,..., such as mining.positives.band=5,25,100"
        )
    return SweptKey(key.strip(), tuple(parts))


def sweep_recipe(
    name: str,
    over: SweptKey,
    corpus: str | Path,
    output: str | Path,
    options: RunOptions | None = None,
    *,
    overrides: Sequence[str] = (),
    reporter: Reporter = QUIET,
    executor: Executor | None = None,
) -> SweepResult:
    """Run a recipe once for every value of one key, then plot the metrics over the values."""
    options, output = options or RunOptions(), Path(output)
    recipes = [load_recipe(name, [*overrides, f"{over.key}={value}"]) for value in over.values]
    for recipe in recipes:  # a wrong value is refused before the first run
        prepare_recipe(recipe, options)
    if output.exists() and not (output / "shared").is_dir() and any(output.iterdir()):
        raise UserError(f"{output} exists and is not a sweep of citeweave; choose another -o")
    (output / "shared").mkdir(parents=True, exist_ok=True)
    options = dataclasses.replace(options, shared=output / "shared")
    runs = []
    last = over.key.rpartition(".")[2]
    folders = dict(zip(over.values, file_names(f"{last}-{value}" for value in over.values).values(), strict=True))
    for recipe, value in zip(recipes, over.values, strict=True):
        reporter.say(f"{over.key} = {value}")
        folder = output / folders[value]
        runs.append(run_recipe(recipe, corpus, folder, options, reporter=reporter, executor=executor))
    values = _trained_metrics(runs)
    start_rows = [_start_metrics(run) for run in runs]
    start = {metric: np.array([row[metric] for row in start_rows]) for metric in values}  # each (values,)
    figures = _plot_sweep(output / CURVES, over, values, start)
    write_json(output / RECORD, _sweep_record(name, over, runs, values, start))
    (output / PAGE).write_text(as_table(over, values, start) + "\n", encoding="utf-8")
    return SweepResult(output, over, tuple(runs), values, start, tuple(figures))


def as_table(
    over: SweptKey, values: Mapping[str, NDArray[np.float64]], start: Mapping[str, NDArray[np.float64]]
) -> str:
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


def _start_metrics(run: RunResult) -> dict[str, float]:
    """Return the headline metrics of the start model of a sweep's run, and their mean."""
    metrics = {
        f"{suite}.{metric}": value for suite, report in run.start.items() for metric, value in _headline(report).items()
    }
    return {**metrics, MEAN: float(np.mean(list(metrics.values())))}


def _trained_metrics(runs: Sequence[RunResult]) -> dict[str, NDArray[np.float64]]:
    """Collect the metrics that all runs of a sweep share."""
    rows: list[dict[str, NDArray[np.float64]]] = []
    for run in runs:
        by_seed: dict[str, list[float]] = {}
        for suite, reports in run.reports.items():
            for report in reports:
                for metric, value in _headline(report).items():
                    by_seed.setdefault(f"{suite}.{metric}", []).append(value)
        mean = np.mean(list(by_seed.values()), axis=0)  # (seeds,)
        by_seed[MEAN] = list(mean)
        rows.append({metric: np.array([np.mean(x), np.min(x), np.max(x)]) for metric, x in by_seed.items()})
    shared = [metric for metric in rows[0] if all(metric in row for row in rows)]
    return {metric: np.stack([row[metric] for row in rows]) for metric in shared}  # each (values, 3)


def _plot_sweep(
    folder: Path, over: SweptKey, values: Mapping[str, NDArray[np.float64]], start: Mapping[str, NDArray[np.float64]]
) -> list[Path]:
    """Plot one figure per metric of a sweep, as .png and .svg."""
    folder.mkdir(exist_ok=True)
    names, paths = file_names(values), []
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
            paths.append(path)
    return paths


def _sweep_record(
    name: str,
    over: SweptKey,
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
