"""The verb: train an encoder on samples, from a start model to a folder that any sentence-transformers user can load.

    plan = Plan(EncoderOptions(init="minilm"), TrainingOptions(batch=32))
    run = train_encoder(corpus, samples, "model/", plan)
    run.before["accuracy"], run.after["accuracy"]

    model/ README.md modules.json model.safetensors ...    the trained encoder, see `encoders/save.py`
    model/delta/                                           what was trained alone, where that is not everything
    model/training/log.jsonl                               losses and validations by step
    model/manifest.json                                    what it was made of and how it went

The same inputs and options again open the folder and train nothing; an interrupted run goes on from its last
checkpoint. With torchrun every process calls it and shares the work.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from citeweave.core.artifact import ArtifactWriter, Manifest, check_files, matches, new_artifact, read_manifest
from citeweave.core.files import output_place
from citeweave.core.progress import QUIET, Reporter
from citeweave.encoders.aspects import find_heads, save_heads
from citeweave.encoders.encoder import TorchEncoder
from citeweave.training.data import TrainingData
from citeweave.training.distributed import (
    Processes,
    check_agreement,
    check_shards,
    check_shared,
    ending_at_once,
    join_processes,
    local_device,
)
from citeweave.training.objective import as_arrays
from citeweave.training.options import EncoderOptions, TrainingPlan
from citeweave.training.trained_model import (
    hardware,
    load_start,
    make_run,
    mix_with_start,
    remember,
    whole_encoder,
    write_encoder,
)
from citeweave.training.trainer import train_network

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.mining.samples import Samples
    from citeweave.training.load_data import Sources

KIND, VERSION = "encoder", 1

_NO_CHANGE = ("checkpoint_every", "compiled", "micro_tokens", "parallel", "track")
"""Options that a run may be resumed with other values of."""

Gather = Callable[[TorchEncoder, Path], TrainingData]
"""Makes the data for a start model; the path is a folder for its tokens."""


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
    plan: TrainingPlan | None = None,
    *,
    sources: Sources | None = None,
    device: str = "auto",
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> EncoderRun:
    """Train an encoder on the samples of a corpus."""
    from citeweave.training.load_data import Sources, gather

    plan, sources = plan or TrainingPlan(), sources or Sources()
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
    plan: TrainingPlan
    made_of: Mapping[str, Any]
    """Hashes of everything that the data come from."""

    start: str = ""
    """Where the start model lies, if it is a copy of the one that the plan names."""

    @property
    def _encoder(self) -> EncoderOptions:
        """The start model where it lies."""
        found = self.plan.encoder
        return dataclasses.replace(found, init=self.start) if self.start else found

    def run(self, gathered: Gather, *, device: str, overwrite: bool, reporter: Reporter) -> EncoderRun:
        """Train, or open what was trained of the same."""
        device = local_device(device)
        processes = join_processes(device)
        with ending_at_once(processes):
            return self._run(gathered, processes, device=device, overwrite=overwrite, reporter=reporter)

    def _run(
        self, gathered: Gather, processes: Processes, *, device: str, overwrite: bool, reporter: Reporter
    ) -> EncoderRun:
        start = load_start(self._encoder, device)
        recipe = self._recipe(start)
        is_there = matches(self.folder, KIND, VERSION, recipe)
        parallel = self.plan.training.parallel
        check_agreement(processes, {**recipe, "-o": str(self.folder), "parallel": parallel, "finished": is_there})
        if processes.count > 1 and parallel == "fsdp":
            check_shards(self.plan.training, start.settings.pooling)
        if is_there:
            reporter.say(f"{self.folder} is there already: same samples, start model and options")
            return EncoderRun.open(self.folder)
        reporter = reporter if processes.is_first else QUIET
        with _writer(self.folder, recipe, processes, overwrite=overwrite) as writer:
            check_shared(processes, writer.work("data"))
            if not processes.is_first:
                processes.wait()  # the first one tokenizes
            data = gathered(start, writer.work("data") / "tokens")
            if processes.is_first:
                processes.wait()
            self._train(start, data, writer, processes, reporter)
            del data  # its tokens are mapped, and Windows gives no name to a folder that is in use
            manifest = writer.finish() if processes.is_first else None
        processes.wait()
        return EncoderRun(self.folder, manifest) if manifest else EncoderRun.open(self.folder)

    def _train(
        self, start: TorchEncoder, data: TrainingData, writer: ArtifactWriter, processes: Processes, reporter: Reporter
    ) -> None:
        """Train and fill the folder; only the first process writes."""
        begun, work = time.monotonic(), writer.work("training")
        plan = dataclasses.replace(self.plan, encoder=self._encoder)
        run = make_run(start, data, plan, processes, reporter)
        before = remember(run.weights, self.plan.training.start_share)
        progress = train_network(run, work)
        mix_with_start(run.weights, before, self.plan.training.start_share)
        start = whole_encoder(start, run, plan) if run.stepper.sharded else start
        if not processes.is_first:
            return
        name = self.folder.resolve().name
        write_encoder(writer.folder, name, self.plan, start, data, progress, list(run.weights))
        if (heads := run.stepper.objective.material.heads) is not None:
            save_heads(writer.folder, as_arrays(heads))
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
            "device": hardware(run.stepper.network.device),
            "seconds": round(time.monotonic() - begun, 1),
        }

    def _recipe(self, start: TorchEncoder) -> dict[str, Any]:
        encoder, training = dataclasses.asdict(self.plan.encoder), dataclasses.asdict(self.plan.training)
        training = {name: value for name, value in training.items() if name not in _NO_CHANGE}
        encoder = {name: value for name, value in encoder.items() if name != "init"}
        encoder["text"] = list(self.plan.encoder.text)
        heads = find_heads(self._encoder.init) if self.plan.encoder.heads else None
        begun_with = {} if heads is None else {"heads": heads.hash}
        return {**self.made_of, "start": start.revision, **begun_with, "encoder": encoder, "training": training}


@contextmanager
def _writer(folder: Path, recipe: dict[str, Any], processes: Processes, *, overwrite: bool) -> Iterator[ArtifactWriter]:
    """The folder that is being made; only the first process may make and name it."""
    if processes.is_first:
        with new_artifact(folder, KIND, VERSION, recipe, overwrite=overwrite) as writer:
            processes.tell(writer.place.name)
            yield writer
    else:
        folder = output_place(folder)
        yield ArtifactWriter(folder, KIND, VERSION, recipe, place=folder.with_name(processes.tell("")[0]))
