"""The verb: train an encoder on samples, from a start model to a folder that any sentence-transformers user can load.

    plan = Plan(EncoderOptions(init="minilm"), TrainingOptions(batch=32))
    run = train_encoder(corpus, samples, "model/", plan)
    run.before["accuracy"], run.after["accuracy"]

    model/ README.md modules.json model.safetensors ...    the trained encoder, see `encoders/saving.py`
    model/delta/                                           what was trained alone, where that is not everything
    model/training/log.jsonl                               losses and validations by step
    model/manifest.json                                    what it was made of and how it went

The same inputs and options again open the folder and train nothing; an interrupted run goes on from its last
checkpoint. With torchrun every process calls it and shares the work.
"""

from __future__ import annotations

import dataclasses
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from citeweave.encoders.deltas import save_delta
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.model_card import ModelCard
from citeweave.encoders.saving import save_encoder
from citeweave.encoders.torch_encoder import TorchEncoder
from citeweave.errors import UserError
from citeweave.files import ArtefactWriter, Manifest, check_files, matches, new_artefact, read_manifest
from citeweave.progress import QUIET, Reporter
from citeweave.training.data import TrainingData
from citeweave.training.masked_language import MaskedLanguage, mask_token
from citeweave.training.objective import Material, Objective
from citeweave.training.options import EncoderOptions, TrainingOptions
from citeweave.training.partial import choose_parts
from citeweave.training.processes import Processes, join_processes, local_device
from citeweave.training.stepping import Stepper
from citeweave.training.trainer import Progress, Run, train_network
from citeweave.version import __version__

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.mining.samples import Samples
    from citeweave.training.gathering import Sources

KIND, VERSION = "encoder", 1

MICRO_TOKENS = {"cpu": 16_384, "cuda": 65_536}
"""Tokens encoded at a time where the recipe does not say."""

_NO_CHANGE = ("checkpoint_every", "micro_tokens")
"""Options that a run may be resumed with other values of."""

Gather = Callable[[TorchEncoder, Path], TrainingData]
"""Makes the data for a start model; the path is a folder for its tokens."""


@dataclass(frozen=True, slots=True)
class About:
    """What the model's card says beside what training knows itself."""

    recipe: str = ""
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    held_out: str = ""
    audit: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is trained, and how."""

    encoder: EncoderOptions = field(default_factory=EncoderOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)
    about: About = field(default_factory=About)


@dataclass(frozen=True, slots=True)
class EncoderRun:
    """A trained encoder's folder and how its training went."""

    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, folder: str | Path) -> EncoderRun:
        manifest = read_manifest(Path(folder), KIND, VERSION)
        check_files(Path(folder), manifest)
        return cls(Path(folder), manifest)

    @property
    def before(self) -> dict[str, float]:
        """Validation of the start model, each number between 0 and 1."""
        return dict(self.manifest.facts["before"])

    @property
    def after(self) -> dict[str, float]:
        """Validation of the trained one."""
        return dict(self.manifest.facts["after"])


def train_encoder(
    corpus: Corpus,
    samples: Samples,
    folder: str | Path,
    plan: Plan | None = None,
    *,
    sources: Sources | None = None,
    device: str = "auto",
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> EncoderRun:
    """Train an encoder on the samples of a corpus."""
    from citeweave.training.gathering import Sources, gather

    plan, sources = plan or Plan(), sources or Sources()
    samples.check_corpus(corpus.hash, corpus.folder)

    def gathered(start: TorchEncoder, tokens: Path) -> TrainingData:
        return gather(corpus, samples, start.reader, plan.encoder, plan.training, tokens, sources, reporter=reporter)

    made_of = {"corpus": corpus.hash, "samples": samples.hash, **sources.hashes()}
    training = Training(Path(folder), plan, made_of)
    return training.run(gathered, device=device, overwrite=overwrite, reporter=reporter)


@dataclass(frozen=True, slots=True)
class Training:
    """A training run that is to become a folder."""

    folder: Path
    plan: Plan
    made_of: Mapping[str, Any]
    """Hashes of everything that the data come from."""

    start: str = ""
    """Where the start model lies, if it is a copy of the one that the plan names."""

    def run(self, gathered: Gather, *, device: str, overwrite: bool, reporter: Reporter) -> EncoderRun:
        """Train, or open what was trained of the same."""
        processes = join_processes(local_device(device))
        encoder = self.plan.encoder
        if self.start:
            encoder = dataclasses.replace(encoder, init=self.start)
        start = load_start(encoder, local_device(device))
        recipe = self._recipe(start)
        if matches(self.folder, KIND, VERSION, recipe):
            reporter.say(f"{self.folder} is there already: same samples, start model and options")
            return EncoderRun.open(self.folder)
        reporter = reporter if processes.is_first else QUIET
        with _writer(self.folder, recipe, processes, overwrite=overwrite) as writer:
            if not processes.is_first:
                processes.wait()  # the first one tokenizes
            data = gathered(start, writer.work("data") / "tokens")
            if processes.is_first:
                processes.wait()
            manifest = self._train(start, data, writer, processes, reporter)
        processes.wait()
        return EncoderRun(self.folder, manifest) if manifest else EncoderRun.open(self.folder)

    def _train(
        self, start: TorchEncoder, data: TrainingData, writer: ArtefactWriter, processes: Processes, reporter: Reporter
    ) -> Manifest | None:
        """Train and write the folder; only the first process writes."""
        begun, work = time.monotonic(), writer.work("training")
        run = make_run(start, data, self.plan.training, processes, reporter)
        progress = train_network(run, work)
        if not processes.is_first:
            return None
        _save(self, start, data, progress, list(run.weights), writer.folder)
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
            "data": dict(data.facts),
            "trained weights": sum(weight.numel() for weight in run.weights.values()),
            "processes": processes.count,
            "device": _hardware(run.stepper.network.device),
            "seconds": round(time.monotonic() - begun, 1),
        }
        return writer.finish()

    def _recipe(self, start: TorchEncoder) -> dict[str, Any]:
        encoder, training = dataclasses.asdict(self.plan.encoder), dataclasses.asdict(self.plan.training)
        training = {name: value for name, value in training.items() if name not in _NO_CHANGE}
        encoder = {name: value for name, value in encoder.items() if name != "init"}
        encoder["text"] = list(self.plan.encoder.text)
        return {**self.made_of, "start": start.revision, "encoder": encoder, "training": training}


def load_start(options: EncoderOptions, device: str) -> TorchEncoder:
    """The start model with the recipe's pooling and length."""
    if options.init.startswith("recipe:"):
        raise UserError(
            f"encoder.init is {options.init!r}, the model of another recipe; `citeweave run` trains that one first. "
            "Here give its folder with --init"
        )
    found = load_encoder(options.init, pooling=options.pooling or None, normalize=options.normalize, device=device)
    limit = found.network.longest
    length = options.max_tokens if limit is None else min(options.max_tokens, limit)
    settings = dataclasses.replace(found.settings, max_tokens=length)
    return dataclasses.replace(found, settings=settings, reader=dataclasses.replace(found.reader, max_tokens=length))


def make_run(
    start: TorchEncoder, data: TrainingData, options: TrainingOptions, processes: Processes, reporter: Reporter
) -> Run:
    """Everything that the loop needs, with the parts of the network chosen that are to be trained."""
    network = start.network
    kind = network.device.partition(":")[0]
    chosen = choose_parts(
        network.model,
        options.parts,
        frozen_layers=options.frozen_layers,
        lora_rank=options.lora_rank,
        seed=options.seed,
    )
    if options.dropout is not None:
        set_dropout(network.model, options.dropout)
    language = _language(start, data, options)
    weights = dict(chosen)
    if language is not None:
        weights |= {f"language.{name}": weight for name, weight in language.head.named_parameters()}
    teacher = None if data.teacher is None else torch.from_numpy(data.teacher).to(network.device)
    stepper = Stepper(
        data,
        network,
        start.settings,
        Objective(options.losses, Material(data.relatives, teacher)),
        options.micro_tokens or MICRO_TOKENS[kind],
        _in_half(options.precision, kind),
        options.seed,
        processes,
        language,
    )
    return Run(stepper, options, weights, reporter)


def set_dropout(model: Any, rate: float) -> None:
    """Every dropout of a network gets this rate."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = rate
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = rate


def _language(start: TorchEncoder, data: TrainingData, options: TrainingOptions) -> MaskedLanguage | None:
    if "mlm" not in options.losses:
        return None
    tokenizer, settings = start.reader.tokenizer, options.losses["mlm"]
    return MaskedLanguage(
        data,
        start.network,
        special=list(tokenizer.all_special_ids),
        mask=mask_token(tokenizer, start.name),
        weight=settings["weight"],
        share=settings["share"],
        seed=options.seed,
    )


def _in_half(precision: str, kind: str) -> bool:
    if precision == "bfloat16" and kind == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        raise UserError("training.precision is bfloat16, for which this processor has no fast arithmetic; take float32")
    return precision == "bfloat16" or (precision == "auto" and kind == "cuda")


def _save(
    training: Training, start: TorchEncoder, data: TrainingData, progress: Progress, names: list[str], folder: Path
) -> None:
    """The whole encoder, and where only parts were trained also these alone."""
    encoder, options, about = training.plan.encoder, training.plan.training, training.plan.about
    card = ModelCard(
        name=training.folder.resolve().name,
        base=encoder.init,
        base_revision=start.revision,
        recipe=about.recipe,
        tables=about.tables,
        data={**{name: value for name, value in data.facts.items() if name != "left out"}, **data.facts["left out"]},
        held_out=about.held_out,
        seeds=[options.seed],
        options=dataclasses.asdict(options),
        audit=about.audit,
        results={name: (100 * progress.before[name], 100 * value) for name, value in progress.last.items()},
        hardware=_hardware(start.network.device),
        versions={"citeweave": __version__, "torch": torch.__version__, "python": platform.python_version()},
    )
    model, tokenizer = start.network.model, start.reader.tokenizer
    model.eval()
    save_encoder(folder, start.network, tokenizer, start.settings, card=card)
    if options.parts != "all" or options.frozen_layers:
        (folder / "delta").mkdir()
        own = [name for name in names if not name.startswith("language.")]
        save_delta(
            folder / "delta",
            model,
            start.settings,
            base=encoder.init,
            changed=own,
            kind=options.parts,
            card=card,
        )


def _hardware(device: str) -> str:
    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    return f"CPU, {platform.machine()}, {torch.get_num_threads()} threads"


@contextmanager
def _writer(folder: Path, recipe: dict[str, Any], processes: Processes, *, overwrite: bool) -> Iterator[ArtefactWriter]:
    """The folder that is being made; only the first process may make and name it."""
    if processes.is_first:
        with new_artefact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
            yield writer
    else:
        yield ArtefactWriter(folder, KIND, VERSION, recipe)
