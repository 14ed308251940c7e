"""Train an encoder on samples: load the start model, run the training loop, save a sentence-transformers folder.

    plan = TrainingPlan(EncoderOptions(init="minilm"), TrainingOptions(batch=32))
    run = train_encoder(corpus, samples, "model/", plan)
    run.before["accuracy"], run.after["accuracy"]

    model/ README.md modules.json model.safetensors ...    the trained encoder, see `encoders/save.py`
    model/delta/                                           the trained weights alone, where not all were trained
    model/training/log.jsonl                               losses and validations by step
    model/manifest.json                                    inputs, options and results

The same inputs and options again open the folder and train nothing; an interrupted run resumes from its last checkpoint.
With torchrun every process calls it and shares the work.

With training.parts = "heads" only the aspect heads are trained, and a frozen encoder reads every paper once: minutes on
two cores instead of hours. It uses the fastest runtime of this processor, whose int8 vectors differ a little from the
float32 ones with which the model is used later.

With `training.start_share` the saved weights are between those of the start model and the trained ones, so that the
model forgets less about other texts (Wortsman et al. 2022, robust fine-tuning). Validation is of the trained ones.
"""

from __future__ import annotations

import dataclasses
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from citeweave.core.artifact import ArtifactWriter, Manifest, artifact_matches, check_files, new_artifact, read_manifest
from citeweave.core.errors import UserError
from citeweave.core.files import resolve_output
from citeweave.core.progress import QUIET, Reporter
from citeweave.encoders.aspects import find_heads, save_heads
from citeweave.encoders.delta import save_delta
from citeweave.encoders.encoder import BATCH_TOKENS, WINDOW, TorchEncoder, batch_kind, load_encoder
from citeweave.encoders.model_card import ModelCard
from citeweave.encoders.network import pays_to_compile, speed_up
from citeweave.encoders.runtimes import fastest
from citeweave.encoders.save import save_encoder
from citeweave.training.data import TrainingData, count_tokens
from citeweave.training.distributed import (
    ProcessGroup,
    check_agreement,
    check_shardable,
    check_shared_folder,
    exiting_without_peers,
    gather_full,
    join_processes,
    local_device,
    shard_model,
)
from citeweave.training.encoder_task import EncoderTask, Stepper
from citeweave.training.objective import LossInputs, MaskedLanguage, Objective
from citeweave.training.options import LOSS, MICRO_TOKENS, EncoderOptions, TrainingOptions, TrainingPlan
from citeweave.training.partial import HEADS_PREFIX, TrainedHeads, choose_parts, heads_to_arrays, make_heads
from citeweave.training.sentence_objective import trained_reading
from citeweave.training.start_scale import measure_scales
from citeweave.training.trainer import TrainingProgress, TrainingRun, train_network
from citeweave.vectors.own_distance import write_reading
from citeweave.version import __version__

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.mining.samples import Samples
    from citeweave.training.load_data import DataSources

KIND, VERSION = "encoder", 1

_RESUMABLE = ("checkpoint_every", "compiled", "micro_tokens", "parallel", "track")
"""Options that may change when a run is resumed."""

_NEWER = {"leftovers": "keep", "scale_by": ""}
"""Options with their defaults that older models do not have and must still match."""

LoadData = Callable[[TorchEncoder, Path], TrainingData]
"""Function that loads the training data for a start model; the path is a folder for its tokens."""


@dataclass(frozen=True, slots=True)
class EncoderRun:
    """Folder of a trained encoder, with the manifest of its training."""

    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, folder: str | Path) -> EncoderRun:
        manifest = read_manifest(Path(folder), KIND, VERSION)
        check_files(Path(folder), manifest)
        return cls(Path(folder), manifest)

    @property
    def before(self) -> dict[str, float]:
        """Validation metrics of the start model, each between 0 and 1."""
        return dict(self.manifest.facts["before"])

    @property
    def after(self) -> dict[str, float]:
        """Validation metrics of the trained encoder."""
        return dict(self.manifest.facts["after"])


def train_encoder(
    corpus: Corpus,
    samples: Samples,
    folder: str | Path,
    plan: TrainingPlan | None = None,
    *,
    sources: DataSources | None = None,
    device: str = "auto",
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> EncoderRun:
    """Train an encoder on samples mined from a corpus and save it as a folder that `load_encoder` opens.

    `plan` holds the options of encoder and training. An interrupted training resumes from its last checkpoint; a model
    that already exists for the same inputs is opened.
    """
    from citeweave.training.load_data import DataSources, load_training_data

    plan, sources = plan or TrainingPlan(), sources or DataSources()
    samples.check_corpus(corpus.hash, corpus.folder)

    def load(start: TorchEncoder, tokens: Path) -> TrainingData:
        return load_training_data(
            corpus, samples, start.reader, plan.encoder, plan.training, tokens, sources, reporter=reporter
        )

    hashes = {"corpus": corpus.hash, "samples": samples.hash, **sources.hashes()}
    training = TrainingJob(Path(folder), plan, hashes)
    return training.run(load, device=device, overwrite=overwrite, reporter=reporter)


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """Training run that writes one model folder: plan, hashes of its inputs, start model."""

    folder: Path
    plan: TrainingPlan
    hashes: Mapping[str, Any]
    """Hashes of the inputs of the training data."""

    start: str = ""
    """Folder of the start model, if it is a copy of the one that the plan names."""

    @property
    def _encoder(self) -> EncoderOptions:
        """Options of the encoder, with the folder of the start model."""
        options = self.plan.encoder
        return dataclasses.replace(options, init=self.start) if self.start else options

    def run(self, load: LoadData, *, device: str, overwrite: bool, reporter: Reporter) -> EncoderRun:
        """Train the encoder in this process or in all that torchrun started, or open an existing result."""
        device = local_device(device)
        processes = join_processes(device)
        with exiting_without_peers(processes):
            start = load_start_model(self._encoder, device)
            recipe = self._recipe(start)
            exists, parallel = artifact_matches(self.folder, KIND, VERSION, recipe), self.plan.training.parallel
            check_agreement(processes, {**recipe, "-o": str(self.folder), "parallel": parallel, "finished": exists})
            if processes.count > 1 and parallel == "fsdp":
                check_shardable(self.plan.training, start.settings.pooling)
            if exists:
                reporter.say(f"{self.folder} already exists: same samples, start model and options")
                return EncoderRun.open(self.folder)
            with _writer(self.folder, recipe, processes, overwrite=overwrite) as writer:
                manifest = self._write(start, load, writer, processes, reporter if processes.is_first else QUIET)
            processes.wait()
            return EncoderRun(self.folder, manifest) if manifest else EncoderRun.open(self.folder)

    def _write(
        self, start: TorchEncoder, load: LoadData, writer: ArtifactWriter, processes: ProcessGroup, reporter: Reporter
    ) -> Manifest | None:
        """Load the data, train and write the model folder; None where another process writes it."""
        check_shared_folder(processes, writer.scratch_folder("data"))
        if not processes.is_first:
            processes.wait()  # the first one tokenizes
        data = load(start, writer.scratch_folder("data") / "tokens")
        if processes.is_first:
            processes.wait()
        self._train(start, data, writer, processes, reporter)
        del data  # unmaps its tokens, since Windows cannot rename a folder in use
        return writer.finish() if processes.is_first else None

    def _train(
        self,
        start: TorchEncoder,
        data: TrainingData,
        writer: ArtifactWriter,
        processes: ProcessGroup,
        reporter: Reporter,
    ) -> None:
        """Train and write the model folder; only the first process writes."""
        begun, work = time.monotonic(), writer.scratch_folder("training")
        plan = dataclasses.replace(self.plan, encoder=self._encoder)
        run = prepare_run(start, data, plan, processes, reporter)
        before = copy_start_weights(run.weights, self.plan.training.start_share)
        progress = train_network(run, work)
        mix_with_start(run.weights, before, self.plan.training.start_share)
        start = _gather_encoder(start, run, plan) if run.task.stepper.sharded else start
        if not processes.is_first:
            return
        name = self.folder.resolve().name
        data = dataclasses.replace(data, metadata={**data.metadata, **run.measured})
        write_encoder(writer.folder, name, self.plan, start, data, progress, list(run.weights))
        if (heads := run.task.stepper.objective.inputs.heads) is not None:
            save_heads(writer.folder, heads_to_arrays(heads))
        (writer.folder / "training").mkdir()
        shutil.copyfile(work / "log.jsonl", writer.folder / "training" / "log.jsonl")
        writer.facts = {
            "init": self.plan.encoder.init,
            "recipe": self.plan.about.recipe,
            "seed": self.plan.training.seed,
            "steps": progress.step,
            "stopped early": progress.stopped,
            "kept step": progress.best_step if self.plan.training.patience else progress.step,
            "before": progress.before,
            "after": progress.last,
            "data": dict(data.metadata),
            "trained weights": sum(weight.numel() for weight in run.weights.values()),
            "processes": processes.count,
            "device": describe_hardware(run.task.stepper.network.device),
            "seconds": round(time.monotonic() - begun, 1),
        }

    def _recipe(self, start: TorchEncoder) -> dict[str, Any]:
        encoder, training = dataclasses.asdict(self.plan.encoder), dataclasses.asdict(self.plan.training)
        training = {name: value for name, value in training.items() if name not in _RESUMABLE}
        training = {name: value for name, value in training.items() if name not in _NEWER or value != _NEWER[name]}
        if training["check_every"] == int(training["check_every"]):  # a whole number in older models
            training["check_every"] = int(training["check_every"])
        encoder = {name: value for name, value in encoder.items() if name != "init"}
        encoder["text"] = list(self.plan.encoder.text)
        heads = find_heads(self._encoder.init) if self.plan.encoder.heads else None
        initial_heads = {} if heads is None else {"heads": heads.hash}
        return {**self.hashes, "start": start.revision, **initial_heads, "encoder": encoder, "training": training}


@contextmanager
def _writer(
    folder: Path, recipe: dict[str, Any], processes: ProcessGroup, *, overwrite: bool
) -> Iterator[ArtifactWriter]:
    """Open the partial folder of the model; only the first process creates and publishes it."""
    if processes.is_first:
        with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
            processes.exchange(writer.place.name)
            yield writer
    else:
        folder = resolve_output(folder)
        yield ArtifactWriter(folder, KIND, VERSION, recipe, place=folder.with_name(processes.exchange("")[0]))


# The start model and the run


def _frozen_vectors(start: TorchEncoder, data: TrainingData, reporter: Reporter) -> Tensor:
    """Encode all papers once with the frozen start model, (papers, dimension), on its device."""
    encoder, papers = _in_fastest_runtime(start), len(data.tokens)
    vectors = np.zeros((papers, start.dimension), np.float32)
    for first in range(0, papers, WINDOW):
        rows = np.arange(first, min(first + WINDOW, papers))
        vectors[rows] = encoder.encode_tokens(data.tokens.take(rows), reporter=reporter)
    return torch.from_numpy(vectors).to(start.network.device)


def _in_fastest_runtime(start: TorchEncoder) -> TorchEncoder:
    """Return the start model in the fastest runtime of this processor."""
    start.network.model.eval()
    runtime, network = fastest(start.network, start.reader, start.settings, start.name)
    if runtime.name == "torch":
        return start
    return dataclasses.replace(start, network=network, batch_tokens=BATCH_TOKENS[batch_kind(network)])


def load_start_model(options: EncoderOptions, device: str) -> TorchEncoder:
    """Load the start model of training with the recipe's pooling and length; a pooling it did not have starts untrained."""
    if options.init.startswith("recipe:"):
        raise UserError(
            f"encoder.init is {options.init!r}, the model of another recipe; `citeweave run` trains that one first. "
            "Give its folder here with --init"
        )
    start = load_encoder(options.init, pooling=options.pooling or None, normalize=options.normalize, device=device)
    limit = start.network.longest
    length = options.max_tokens if limit is None else min(options.max_tokens, limit)
    settings = dataclasses.replace(start.settings, max_tokens=length)
    return dataclasses.replace(start, settings=settings, reader=dataclasses.replace(start.reader, max_tokens=length))


def prepare_run(
    start: TorchEncoder, data: TrainingData, plan: TrainingPlan, processes: ProcessGroup, reporter: Reporter
) -> TrainingRun[EncoderTask]:
    """Prepare to train an encoder: choose the trained weights, make heads and objective, shard the network."""
    options = plan.training
    by_length = options.compiles_by_length and start.network.device != "cpu"
    is_long = by_length and pays_to_compile("training", count_tokens(data, options), reporter)
    network = speed_up(start.network) if options.compiled or is_long else start.network
    if options.reads_sentences and start.settings.pooling not in ("cls", "mean"):
        raise UserError(
            f"encoder.pooling is {start.settings.pooling!r}, and losses on sentences read only the last layer; use cls or mean"
        )
    kind = network.device.partition(":")[0]
    chosen = _choose_weights(network.model, options)
    if options.dropout is not None:
        _set_dropout(network.model, options.dropout)
    mlm, heads = options.losses.get("mlm"), _make_aspect_heads(start, data, plan)
    language = None if mlm is None else MaskedLanguage(data, start, mlm, options.seed)
    sharded = options.parallel == "fsdp" and processes.count > 1
    if sharded:
        shard_model(network.model, processes, network.device)
        sharded_parameters = dict(network.model.named_parameters())
        chosen = [(name, sharded_parameters[name]) for name, _ in chosen]
    weights = dict(chosen)
    if heads is not None:
        weights |= heads.weights()
    if language is not None:
        weights |= {f"language.{name}": weight for name, weight in language.head.named_parameters()}
    teacher = None if data.teacher is None else torch.from_numpy(data.teacher).to(network.device)
    frozen = _frozen_vectors(start, data, reporter) if options.parts == "heads" else None
    stepper = Stepper(
        data,
        network,
        start.settings,
        Objective(options.losses, LossInputs(data.related, teacher, data.sentences, data.alignment, heads, data.rules)),
        options.micro_tokens or MICRO_TOKENS[kind],
        _uses_half(options.precision, kind),
        options.seed,
        processes,
        language,
        frozen,
        sharded,
    )
    task = EncoderTask(stepper, options)
    return TrainingRun(task, options, weights, reporter, measured=_measure_before_training(task, options, reporter))


def _measure_before_training(task: EncoderTask, options: TrainingOptions, reporter: Reporter) -> dict[str, float]:
    """Measure what the log and the card name beside the validation: the start model's scale, dropped triplets."""
    measured, stepper = {}, task.stepper
    if options.scale_by:
        scales = measure_scales(stepper.data, stepper.encode_all)
        stepper.objective.inputs = dataclasses.replace(stepper.objective.inputs, scales=scales)
        measured["start distance of papers"] = scales.papers
        if stepper.data.sentences is not None:
            measured["start distance of sentences"] = scales.sentences
    if options.leftovers == "drop":
        measured["triplets in incomplete blocks, dropped"] = task.dropped
    for name, value in measured.items():
        reporter.say(f"{name}: {value:,g}")
    return measured


def _gather_encoder(start: TorchEncoder, run: TrainingRun[EncoderTask], plan: TrainingPlan) -> TorchEncoder:
    """Gather the trained encoder of a sharded run: the start model, loaded again, with the trained weights.

    All processes must call it; only the first one gets the trained encoder.
    """
    processes, options = run.task.stepper.processes, plan.training
    trained = gather_full(run.weights, keep=processes.is_first)
    if not processes.is_first:
        return start
    gathered = load_start_model(plan.encoder, "cpu")
    model = gathered.network.model
    _choose_weights(model, options)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name in trained:
                weight.copy_(trained[name])
    # the card names the device of the training
    network = dataclasses.replace(gathered.network, device=start.network.device)
    return dataclasses.replace(gathered, network=network)


def _make_aspect_heads(start: TorchEncoder, data: TrainingData, plan: TrainingPlan) -> TrainedHeads | None:
    """Make heads for the aspects of the samples, where the recipe has heads."""
    if bool(plan.encoder.heads) != plan.training.reads_aspects:
        raise UserError(
            f"encoder.heads is {plan.encoder.heads!r} and the losses are {', '.join(plan.training.losses)}; heads are "
            "trained by losses such as aspect_supcon, and these losses need heads: set both or neither"
        )
    if not plan.encoder.heads:
        return None
    initial = find_heads(plan.encoder.init)
    heads = make_heads(data.aspects, start.dimension, plan.encoder, seed=plan.training.seed, start=initial)
    return heads.to(start.network.device)


def _choose_weights(model: Any, options: TrainingOptions) -> list[tuple[str, Any]]:
    """Choose the weights of the start model's network to train."""
    frozen, rank = options.frozen_layers, options.lora_rank
    return choose_parts(model, options.parts, frozen_layers=frozen, lora_rank=rank, seed=options.seed)


def _set_dropout(model: Any, rate: float) -> None:
    """Set the rate of every dropout of the start model's network."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = rate
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = rate


def _uses_half(precision: str, kind: str) -> bool:
    """Return whether training computes in bfloat16 on this kind of device."""
    if precision == "bfloat16" and kind == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        raise UserError("training.precision is bfloat16, for which this processor has no fast arithmetic; use float32")
    return precision == "bfloat16" or (precision == "auto" and kind == "cuda")


# The saved folder


def write_encoder(
    folder: Path,
    name: str,
    plan: TrainingPlan,
    start: TorchEncoder,
    data: TrainingData,
    progress: TrainingProgress,
    trained: list[str],
) -> None:
    """Write the trained encoder with its card, and the weights named by `trained` alone where not all were trained."""
    encoder, options, about = plan.encoder, plan.training, plan.about
    card = ModelCard(
        name=name,
        base=encoder.init,
        base_revision=start.revision,
        recipe=about.recipe,
        tables=about.tables,
        data={
            **{name: value for name, value in data.metadata.items() if name != "left out"},
            **data.metadata["left out"],
            **about.bands,
        },
        held_out=about.held_out,
        seeds=[options.seed],
        options=dataclasses.asdict(options),
        audit=about.audit,
        results={
            name: (progress.before[name], value) if name == LOSS else (100 * progress.before[name], 100 * value)
            for name, value in progress.last.items()
        },
        hardware=describe_hardware(start.network.device),
        versions={"citeweave": __version__, "torch": torch.__version__, "python": platform.python_version()},
    )
    model, tokenizer = start.network.model, start.reader.tokenizer
    model.eval()
    save_encoder(folder, start.network, tokenizer, start.settings, card=card)
    write_reading(folder, reading := trained_reading(encoder.reading, options.losses))
    if options.parts != "heads" and (options.parts != "all" or options.frozen_layers):
        (folder / "delta").mkdir()
        own = [name for name in trained if not name.startswith(("language.", HEADS_PREFIX))]
        save_delta(
            folder / "delta",
            model,
            start.settings,
            base=encoder.init,
            changed=own,
            kind=options.parts,
            card=card,
        )
        write_reading(folder / "delta", reading)


def copy_start_weights(weights: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """Copy the start model's weights, where a share of them goes into the saved ones; none for a share of 0."""
    own = {
        name: weight for name, weight in weights.items() if not name.startswith(HEADS_PREFIX)
    }  # heads start at random
    return {name: weight.detach().clone() for name, weight in own.items()} if share else {}


def mix_with_start(weights: Mapping[str, Tensor], before: Mapping[str, Tensor], share: float) -> None:
    """Mix the start model into a trained encoder's weights in place: share * start + (1 - share) * trained.

    >>> weights = {"w": torch.tensor([4.0])}
    >>> mix_with_start(weights, {"w": torch.tensor([2.0])}, 0.25)
    >>> weights["w"].item()
    3.5
    """
    with torch.no_grad():
        for name, start in before.items():
            weights[name].mul_(1 - share).add_(start, alpha=share)


def describe_hardware(device: str) -> str:
    """Describe the device of a training run for its card."""
    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    return f"CPU, {platform.machine()}, {torch.get_num_threads()} threads"
