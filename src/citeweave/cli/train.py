"""The commands `train`, `bundle` and `model`: encoders."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from citeweave.cli.options import CorpusFolder, Device, OutputArguments, RecipeOption, Set, table
from citeweave.core.errors import UserError
from citeweave.core.options import OneOf, Positional

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.training.load_data import DataSources
    from citeweave.training.options import TrainingPlan
    from citeweave.training.train import EncoderRun


@dataclass(frozen=True, kw_only=True)
class TrainingDataArguments(OutputArguments):
    """What `train` and `bundle` have in common."""

    recipe: RecipeOption = ""
    init: str = ""
    """Start model: minilm, a folder, or a Hugging Face name; default: the recipe's."""

    graph: Path | None = None
    """Graph folder of the corpus; it keeps related papers from being in-batch negatives."""

    teacher: Path | None = None
    """Teacher vectors for the distillation (student-teacher) loss, such as graph/vectors."""

    held_out: str = ""
    """Also validate on the citations of held-out papers: share:0.1 (a random tenth) or year:2016 (from 2016 on). Samples must be mined without those citations."""

    set_: Set = ()

    def plan(self) -> TrainingPlan:
        """Return the encoder and training options of the recipe, or the defaults."""
        from citeweave.pipeline.recipe import load_recipe, read_overrides
        from citeweave.pipeline.training_stages import with_start_model
        from citeweave.training.options import CardNotes, TrainingPlan, encoder_options, training_options

        tables = read_overrides(self.set_)
        if self.recipe:
            tables = with_start_model(load_recipe(self.recipe, self.set_), self.init, chains=False).tables
        elif self.init:
            tables["encoder"] = {**tables.get("encoder", {}), "init": self.init}
        about = CardNotes(self.recipe, {name: tables[name] for name in ("graph", "mining") if name in tables})
        encoder, training = encoder_options(tables.get("encoder", {})), training_options(tables.get("training", {}))
        return TrainingPlan(encoder, training, about)

    def sources(self, corpus: Corpus) -> DataSources:
        """Open what training reads beside the corpus and its samples."""
        from citeweave.evaluation.options import CorpusSuiteOptions
        from citeweave.evaluation.suites.from_corpus import make_suite
        from citeweave.graph.citations import CitationGraph
        from citeweave.training.load_data import DataSources
        from citeweave.vectors.vectors import Vectors

        held_out = CorpusSuiteOptions(held_out=self.held_out) if self.held_out else None
        return DataSources(
            None if self.graph is None else CitationGraph.open(self.graph),
            None if self.teacher is None else Vectors.open(self.teacher),
            None if held_out is None else make_suite(corpus, held_out, reporter=self.reporter),
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
        if args.corpus or args.samples or args.recipe or args.init or args.graph or args.teacher or args.held_out:
            raise UserError("--bundle holds corpus, samples and start model; give only -o, --seeds, --set and --device")
        runs = _train_bundle(args, args.bundle)
    elif args.corpus is None or args.samples is None:
        raise UserError("train needs a corpus and --samples mined from it, or --bundle; see citeweave mine")
    else:
        runs = _train_seeds(args, args.corpus, args.samples)
    value = {"runs": [_run_metadata(run) for run in runs], "output": str(args.output)}
    args.print(value, "\n".join(_text(run) for run in runs))


def _train_seeds(args: TrainArguments, corpus: Path, samples: Path) -> list[EncoderRun]:
    from citeweave.corpus.corpus import Corpus
    from citeweave.mining.samples import Samples
    from citeweave.training.train import train_encoder

    plan, opened = args.plan(), Corpus.open(corpus)
    mined, sources = Samples.open(samples), args.sources(opened)
    runs = []
    for folder, seed in _folders(args.output, plan.training.seed, args.seeds or plan.training.seeds):
        if folder != args.output:
            args.reporter.say(f"{folder}: seed {seed}")
        own = dataclasses.replace(plan, training=dataclasses.replace(plan.training, seed=seed))
        runs.append(train_encoder(opened, mined, folder, own, sources=sources, device=args.device, **args.writing))
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
    from citeweave.corpus.corpus import Corpus
    from citeweave.mining.samples import Samples
    from citeweave.training.bundle import make_bundle

    if args.samples is None:
        raise UserError("bundle needs --samples, a folder of samples mined from the corpus; see citeweave mine")
    opened = Corpus.open(args.corpus)
    sources, mined = args.sources(opened), Samples.open(args.samples)
    folder = make_bundle(opened, mined, args.output, args.plan(), sources=sources, weights=args.weights, **args.writing)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    args.print(
        {"bytes": size, "output": str(folder)},
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


@dataclass(frozen=True, kw_only=True)
class ModelArguments(OutputArguments):
    name: Annotated[str, Positional("MODEL")]
    """Model: weave, minilm, a folder, or a Hugging Face name."""

    dtype: str = "float32"
    """Data type of the saved weights: float32 or float16."""


def model(args: ModelArguments) -> None:
    """Export a model as a complete folder for sentence-transformers and other programs; deltas are merged in."""
    from citeweave.encoders.save import write_merged_model

    manifest = write_merged_model(args.name, args.output, dtype=args.dtype, overwrite=args.overwrite)
    size = sum(described.get("bytes", 0) for described in manifest.files.values())
    metadata = {
        "model": manifest.facts["model"],
        "revision": manifest.facts["revision"],
        "bytes": size,
        "output": str(args.output),
    }
    args.print(
        metadata, f"{args.output}: {metadata['model']}\n{table([('revision', metadata['revision']), ('bytes', size)])}"
    )
