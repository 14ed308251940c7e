"""The verb: run a whole recipe, from a corpus to trained models and their reports.

    result = run_recipe(load_recipe("specter"), "corpus/", "run/", RunOptions(init="minilm"))
    result.models, result.comparisons["corpus"].sentences

Stages: papers of published suites leave the corpus; the references that the corpus suite asks for leave it too;
intents of citations where rules need them and nobody gave any; graph and node vectors; samples, their sentences aligned
where the recipe says so; one model a seed; reports of the start model and of the trained ones. A stage whose inputs did
not change is skipped, an interrupted run goes on. A recipe whose start model or aligner is `recipe:NAME` runs that one
first.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from citeweave.corpus.corpus import Corpus
from citeweave.encoders.locating import locate
from citeweave.errors import UserError
from citeweave.evaluation.comparison import Comparison
from citeweave.evaluation.judging.aspect_spaces import ENCODER
from citeweave.evaluation.report import Report
from citeweave.files import hash_file, hash_json
from citeweave.mining.aligning.options import AlignmentOptions
from citeweave.mining.samples import Samples
from citeweave.pipeline.aligning import STAGE, align_stage
from citeweave.pipeline.data_stages import DataStages
from citeweave.pipeline.intents import key_of_intents
from citeweave.pipeline.judging import Judge, Reading, SpaceReports, compare_runs, comparison_page
from citeweave.pipeline.model_stages import ModelStages
from citeweave.pipeline.options import CHAIN, RunOptions
from citeweave.pipeline.recipe_writing import as_toml
from citeweave.pipeline.run_folder import RECIPE, RunFolder
from citeweave.pipeline.starting import chained, check_chain, keeps_pooling, options_of, with_aligner, with_start
from citeweave.pipeline.suites import Suites, check_suites
from citeweave.progress import QUIET, Reporter
from citeweave.recipe import ReadRecipe, Recipe, read_recipe
from citeweave.training.options import EncoderOptions
from citeweave.training.sentence_level.trained_distance import trained_distance

COMPARISON = "comparison.md"


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run made."""

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
    """Run a recipe into a folder; the same call again makes nothing."""
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
    reading = Reading(encoder.text_recipe, trained_distance(read.training.losses) if read.training else None)
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
    """What the record says of aspect spaces; nothing where models have none."""
    found = {
        suite: {space: [each.metrics for each in reports] for space, reports in own.items()}
        for suite, own in spaces.items()
        if own
    }
    return {"spaces": found} if found else {}


def prepare(recipe: Recipe, options: RunOptions, *, download: bool = True) -> tuple[Recipe, ReadRecipe]:
    """The recipe with its start model, its tables read and checked; one that trains nothing is refused."""
    check_chain(recipe)
    read = read_recipe(recipe)
    if read.training is None:
        raise UserError(f"recipe {recipe.name} has no [training] table; mine its samples with `citeweave mine`")
    recipe = with_aligner(with_start(recipe, options.init, download=download), options.aligner)
    return recipe, read_recipe(recipe)


def identity_of(recipe: Recipe, corpus: Corpus, options: RunOptions) -> dict[str, Any]:
    """What makes a run this one; more seeds, suites and tasks can be added to it."""
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
    """A model that is not to be had is told before samples are mined."""
    wanted = {"model": read.encoder.init, STAGE: read.alignment.encoder if read.alignment else ""}
    for stage, name in wanted.items():
        if name and stage not in run.record["stages"] and not name.startswith(CHAIN):
            locate(name)


def _run_first(
    run: RunFolder, stage: str, inner: Recipe, corpus: str | Path, options: RunOptions, reporter: Reporter
) -> Path:
    """Run a recipe whose model is needed here; its model's folder."""
    own = options_of(inner, options)
    inputs = [identity_of(inner, Corpus.open(corpus), own), sorted(options.suites)]

    def make(folder: Path) -> None:
        use = "is where this recipe starts" if stage.startswith("init-") else "aligns the sentences"
        reporter.say(f"{inner.name} comes first: its model {use}")
        run_recipe(inner, corpus, folder, own, reporter=reporter)

    return run.run(stage, inputs, make) / "model"


def _start_of(recipe: Recipe, read: ReadRecipe, first: Mapping[str, Path]) -> EncoderOptions:
    """The start model; `first` are the models of recipes that ran before, by stage."""
    found = [folder for stage, folder in first.items() if stage.startswith("init-")]
    if not found:
        return read.encoder
    # the model of the first recipe knows how it is pooled
    pooling = read.encoder.pooling if keeps_pooling(recipe) else ""
    return dataclasses.replace(read.encoder, init=str(found[0]), pooling=pooling)


def _alignment_of(read: ReadRecipe, first: Mapping[str, Path]) -> AlignmentOptions | None:
    """How sentences are aligned, with a model that is there; None where they are not."""
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
    reading: Reading,
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
