"""The commands `train`, `bundle` and `model`: encoders."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from citeweave.cli.options import (
    Debug,
    Device,
    Json,
    Output,
    Overwrite,
    Quiet,
    Recipe,
    Set,
    print_json,
    reporter_of,
    table,
)
from citeweave.core.errors import UserError, choose

if TYPE_CHECKING:
    from citeweave.core.progress import Reporter
    from citeweave.corpus.corpus import Corpus
    from citeweave.training.load_data import DataSources
    from citeweave.training.options import TrainingPlan
    from citeweave.training.train import EncoderRun


_Corpus = Annotated[Path | None, typer.Argument(help="Corpus folder; omit it with --bundle.", show_default=False)]
_BundledCorpus = Annotated[Path, typer.Argument(help="Corpus folder.", show_default=False)]
_Samples = Annotated[
    Path | None,
    typer.Option(
        "--samples", help="Folder of samples mined from the corpus; required without --bundle.", show_default=False
    ),
]
_BundledSamples = Annotated[
    Path | None, typer.Option("--samples", help="Folder of samples mined from the corpus.", show_default=False)
]
_Init = Annotated[
    str | None,
    typer.Option(
        "--init",
        help="Start model: minilm, a folder, or a Hugging Face name; default: the recipe's.",
        show_default=False,
    ),
]
_Graph = Annotated[
    Path | None,
    typer.Option(
        "--graph",
        help="Graph folder of the corpus; it keeps related papers from being in-batch negatives.",
        show_default=False,
    ),
]
_Teacher = Annotated[
    Path | None,
    typer.Option(
        "--teacher",
        help="Teacher vectors for the distillation (student-teacher) loss, such as graph/vectors.",
        show_default=False,
    ),
]
_HeldOut = Annotated[
    str,
    typer.Option(
        "--held-out",
        help="Also validate on the citations of held-out papers: share:0.1 (a random tenth) or year:2016 (from 2016 on). Samples must be mined without those citations.",
        show_default=False,
    ),
]
_Bundle = Annotated[
    Path | None,
    typer.Option(
        "--bundle", help="Train from the output of `citeweave bundle` instead of a corpus.", show_default=False
    ),
]
_Seeds = Annotated[
    int,
    typer.Option(
        "--seeds",
        help="Number of models to train, each with its own seed, in folders seed-0, seed-1, ...; 0 = the recipe's number.",
    ),
]
_Weights = Annotated[
    str, typer.Option("--weights", help="Data type of the start model's weights in the bundle: float16 or float32.")
]


def train(
    output: Output,
    corpus: _Corpus = None,
    samples: _Samples = None,
    recipe: Recipe = None,
    init: _Init = None,
    graph: _Graph = None,
    teacher: _Teacher = None,
    held_out: _HeldOut = "",
    bundle: _Bundle = None,
    seeds: _Seeds = 0,
    set_: Set = [],  # noqa: B006
    device: Device = "auto",
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train an encoder on mined samples, starting from an existing model; an interrupted run resumes."""
    if os.environ.get("RANK", "0") != "0":  # torchrun started several: the first one tells
        quiet, json = True, False
    reporter = reporter_of(quiet or json)
    if bundle is not None:
        if corpus or samples or recipe or init or graph or teacher or held_out:
            raise UserError("--bundle holds corpus, samples and start model; give only -o, --seeds, --set and --device")
        runs = _train_bundle(bundle, output, seeds, set_, device, overwrite=overwrite, reporter=reporter)
    else:
        if corpus is None or samples is None:
            raise UserError("train needs a corpus and --samples mined from it, or --bundle; see citeweave mine")
        plan = _plan(recipe, set_, init)
        opened, sources = _sources(corpus, graph, teacher, held_out, reporter)
        runs = _train_seeds(opened, samples, output, plan, sources, seeds, device, overwrite, reporter)
    if json:
        print_json({"runs": [_run_metadata(run) for run in runs], "output": str(output)})
    elif not quiet:
        for run in runs:
            print(_text(run))


def bundle(
    corpus: _BundledCorpus,
    output: Output,
    samples: _BundledSamples = None,
    recipe: Recipe = None,
    init: _Init = None,
    graph: _Graph = None,
    teacher: _Teacher = None,
    held_out: _HeldOut = "",
    weights: _Weights = "float16",
    set_: Set = [],  # noqa: B006
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Pack tokens, samples and the start model into one folder for training on a machine without the corpus."""
    from citeweave.mining.samples import Samples
    from citeweave.training.bundle import make_bundle

    reporter = reporter_of(quiet or json)
    choose(weights, ("float16", "float32"), "--weights")
    if samples is None:
        raise UserError("bundle needs --samples, a folder of samples mined from the corpus; see citeweave mine")
    opened, sources = _sources(corpus, graph, teacher, held_out, reporter)
    folder = make_bundle(
        opened,
        Samples.open(samples),
        output,
        _plan(recipe, set_, init),
        sources=sources,
        weights=weights,
        overwrite=overwrite,
        reporter=reporter,
    )
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if json:
        print_json({"bytes": size, "output": str(folder)})
    elif not quiet:
        print(f"{folder}: {size / 1e6:,.1f} MB\ntrain there: python -m citeweave.training.bundle {folder.name} model")


def _plan(recipe: str | None, overrides: list[str], init: str | None) -> TrainingPlan:
    """Return the encoder and training options of a recipe, or the defaults."""
    from citeweave.pipeline.recipe import load_recipe, read_overrides
    from citeweave.pipeline.training_stages import with_start_model
    from citeweave.training.options import CardNotes, TrainingPlan, encoder_options, training_options

    tables = read_overrides(overrides)
    if recipe:
        tables = with_start_model(load_recipe(recipe, overrides), init or "", chains=False).tables
    elif init:
        tables["encoder"] = {**tables.get("encoder", {}), "init": init}
    encoder = encoder_options(tables.get("encoder", {}))
    about = CardNotes(recipe or "", {name: tables[name] for name in ("graph", "mining") if name in tables})
    return TrainingPlan(encoder, training_options(tables.get("training", {})), about)


def _sources(
    corpus: Path, graph: Path | None, teacher: Path | None, held_out: str, reporter: Reporter
) -> tuple[Corpus, DataSources]:
    from citeweave.corpus.corpus import Corpus
    from citeweave.evaluation.suites.from_corpus import CorpusSuiteOptions, make_suite
    from citeweave.graph.citations import CitationGraph
    from citeweave.training.load_data import DataSources
    from citeweave.vectors.vectors import Vectors

    opened = Corpus.open(corpus)
    suite = make_suite(opened, CorpusSuiteOptions(held_out=held_out), reporter=reporter) if held_out else None
    return opened, DataSources(
        None if graph is None else CitationGraph.open(graph),
        None if teacher is None else Vectors.open(teacher),
        suite,
    )


def _train_seeds(
    corpus: Corpus,
    samples: Path,
    output: Path,
    plan: TrainingPlan,
    sources: DataSources,
    seeds: int,
    device: str,
    overwrite: bool,
    reporter: Reporter,
) -> list[EncoderRun]:
    from citeweave.mining.samples import Samples
    from citeweave.training.train import train_encoder

    opened, first = Samples.open(samples), plan.training.seed
    runs = []
    for folder, seed in _folders(output, first, seeds or plan.training.seeds):
        if folder != output:
            reporter.say(f"{folder}: seed {seed}")
        own = dataclasses.replace(plan, training=dataclasses.replace(plan.training, seed=seed))
        runs.append(
            train_encoder(
                corpus, opened, folder, own, sources=sources, device=device, overwrite=overwrite, reporter=reporter
            )
        )
    return runs


def _train_bundle(
    bundle: Path, output: Path, seeds: int, overrides: list[str], device: str, *, overwrite: bool, reporter: Reporter
) -> list[EncoderRun]:
    from citeweave.pipeline.recipe import read_overrides
    from citeweave.training.bundle import read_plan, train_bundle

    training = read_plan(bundle)[0].training
    tables = read_overrides(overrides)
    if other := set(tables) - {"training"}:
        raise UserError(f"--set {next(iter(other))}... cannot change a bundle, only [training]; build the bundle again")
    changes = tables.get("training", {})
    first = int(changes.get("seed", training.seed))
    return [
        train_bundle(
            bundle, folder, changes={**changes, "seed": seed}, device=device, overwrite=overwrite, reporter=reporter
        )
        for folder, seed in _folders(output, first, seeds or training.seeds)
    ]


def _folders(output: Path, first: int, count: int) -> list[tuple[Path, int]]:
    """Return the output folder of every seed of `train`.

    >>> _folders(Path("model"), 0, 1), _folders(Path("model"), 5, 2)
    ([(PosixPath('model'), 0)], [(PosixPath('model/seed-5'), 5), (PosixPath('model/seed-6'), 6)])
    """
    if count == 1:
        return [(output, first)]
    return [(output / f"seed-{seed}", seed) for seed in range(first, first + count)]


def _run_metadata(run: EncoderRun) -> dict[str, Any]:
    return {**run.manifest.facts, "output": str(run.folder)}


def _text(run: EncoderRun) -> str:
    metadata = run.manifest.facts
    rows: list[tuple[str, object]] = [
        ("start model", metadata["init"]),
        ("steps", metadata["steps"]),
        ("trained weights", metadata["trained weights"]),
        ("samples", metadata["data"]["samples for training"]),
        ("seconds", metadata["seconds"]),
    ]
    rows += [(name, f"{100 * before:.2f} -> {100 * run.after[name]:.2f}") for name, before in run.before.items()]
    lines = [f"{run.folder}: encoder", table(rows)]
    if left_out := metadata["data"]["left out"]:
        lines.append("left out: " + "; ".join(f"{number:,} {reason}" for reason, number in left_out.items()))
    return "\n".join(lines)


_Name = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Model: weave, minilm, a folder, or a Hugging Face name.", show_default=False),
]
_Dtype = Annotated[str, typer.Option("--dtype", help="Data type of the saved weights: float32 or float16.")]


def model(
    name: _Name,
    output: Output,
    dtype: _Dtype = "float32",
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Export a model as a complete folder for sentence-transformers and other programs; deltas are merged in."""
    from citeweave.encoders.save import write_merged_model

    manifest = write_merged_model(name, output, dtype=dtype, overwrite=overwrite)
    size = sum(described.get("bytes", 0) for described in manifest.files.values())
    metadata = {
        "model": manifest.facts["model"],
        "revision": manifest.facts["revision"],
        "bytes": size,
        "output": str(output),
    }
    if json:
        print_json(metadata)
    elif not quiet:
        print(f"{output}: {metadata['model']}\n{table([('revision', metadata['revision']), ('bytes', size)])}")
