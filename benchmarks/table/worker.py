"""One system after another: trained with every seed that is missing, judged by every suite, written as reports."""

from __future__ import annotations

import dataclasses
import fcntl
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.table.bundle import Bundle
from benchmarks.table.judging import Answering, inside_of, judge, reading_once, titles_seen, trained_titles
from benchmarks.table.reports import RunReport, is_done, write_run
from benchmarks.table.systems import MAX_TOKENS, PAPERS_SEEN, SEEDS, START, WARMUP, WEAVE
from citeweave.core.errors import CiteweaveError
from citeweave.core.progress import QUIET
from citeweave.encoders.encoder import TorchEncoder
from citeweave.evaluation.encoder_systems import MATCHING, aspect_spaces
from citeweave.evaluation.sentence_systems import SentenceSystem
from citeweave.training import options as training
from citeweave.training.data import Batches
from citeweave.training.distributed import ProcessGroup
from citeweave.training.encoder_task import EncoderTask
from citeweave.training.load_data import DataSources, load_training_data
from citeweave.training.options import EncoderOptions, TrainingOptions, encoder_options, training_options
from citeweave.training.partial import heads_to_arrays
from citeweave.training.sentence_objective import trained_distance
from citeweave.training.train import (
    copy_start_weights,
    describe_hardware,
    load_start_model,
    mix_with_start,
    prepare_run,
)
from citeweave.training.trainer import TrainingRun, train_network

NEVER = 10**9


@dataclass(frozen=True)
class Plan:
    """What is to be trained on one corpus."""

    folder: Path
    """Of the bundles; reports are written there."""

    corpus: str
    bundle: Path = Path()
    """One of the corpus's; `running.py` takes one after the other."""

    systems: tuple[str, ...] = ()
    """All that the bundle has where none is named."""

    seeds: int = SEEDS
    papers: int = PAPERS_SEEN
    device: str = "auto"
    workers: int = 1
    seconds: float = 0.0
    """Begin no run after so many seconds; 0 = no limit."""


@dataclass
class Worker:
    """A process with a bundle and the start model."""

    plan: Plan
    bundle: Bundle
    start: Path
    work: Path
    until: float
    """Time after which nothing is begun, in seconds since the epoch; 0 = never."""

    tokens: dict[Any, Any] = field(default_factory=dict)
    """Of the suites' texts: they are the same for every system that reads alike."""

    def run(self, system: str, seed: int) -> str:
        """Train and judge a system with one seed, unless it is done; what was done, in a line."""
        if self._is_done(system, seed):
            return f"{system} seed {seed}: done before"
        if self.until and time.time() > self.until:
            return f"{system} seed {seed}: not begun, the time is over"
        try:
            report = self._judge_start() if system == START else self._train(system, seed, self._gather(system))
        except Exception as error:  # other systems go on, whatever it was
            return f"FAILED: {system} seed {seed}: {error}\n{traceback.format_exc()}"
        write_run(self.plan.folder, report)
        return line_of(report)

    def _is_done(self, system: str, seed: int) -> bool:
        return is_done(self.plan.folder, RunReport(self.plan.corpus, system, seed, self.bundle.version, {}))

    def _load(self, system: str) -> tuple[Any, EncoderOptions]:
        if system == START:
            length = self.bundle.facts.get("max_tokens", MAX_TOKENS)
            encoder = EncoderOptions(init=str(self.start), max_tokens=length)
        else:
            encoder = encoder_options({**self.bundle.systems[system]["encoder"], "init": str(self.start)})
        return load_start_model(encoder, self.plan.device), encoder

    def _gather(self, system: str) -> Any:
        """Tokens are read once for all workers: the first of them that comes writes them."""
        table = self.bundle.systems[system]
        start, encoder = self._load(system)
        options = self._options(system, 0)
        sentences = "sentences" if options.reads_sentences else "papers"
        tokens = self.start.parent / f"tokens-{table['samples'][:12]}-{encoder.pooling or 'own'}-{sentences}"
        with tokens.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return load_training_data(
                self.bundle.papers,  # type: ignore[arg-type]  # it has what training reads of a corpus
                self.bundle.samples[table["samples"]],  # type: ignore[arg-type]
                start.reader,
                encoder,
                options,
                tokens,
                DataSources(graph=self.bundle.graph),
            )

    def _options(self, system: str, seed: int) -> TrainingOptions:
        table = dict(self.bundle.systems[system]["training"])
        never = {"patience": 0, "check_every": NEVER, "checkpoint_every": NEVER, "validation": 0.0}
        return training_options({**table, **never, "seed": seed, "seeds": 1, "steps": 0, "share": 1.0})

    def _train(self, system: str, seed: int, data: Any) -> RunReport:
        options, length = budgeted(self._options(system, seed), data.groups, self.plan.papers)
        start, encoder = self._load(system)
        begun = time.monotonic()
        run = train_in_place(start, data, training.TrainingPlan(encoder, options), self.work)
        trained = time.monotonic()
        views = judge(answering_of(system, start, run, options, self.bundle, self.tokens), self.bundle)
        cost = {
            **length,
            "seconds": round(trained - begun, 2),
            "seconds of judging": round(time.monotonic() - trained, 2),
            "beside": self.plan.workers,
            "device": describe_hardware(start.network.device),
        }
        saw = titles_seen(trained_titles(self.bundle.papers, data.rows), self.bundle)
        return RunReport(self.plan.corpus, system, seed, self.bundle.version, views, int(length["papers"]), cost, saw)

    def _judge_start(self) -> RunReport:
        start, _ = self._load(START)
        begun = time.monotonic()
        named = dataclasses.replace(start, name=START)
        whole = reading_once(named, self.bundle, self.tokens)
        views = judge(Answering(whole, inside=inside_of(named)), self.bundle)
        cost = {
            "seconds": 0.0,
            "seconds of judging": round(time.monotonic() - begun, 2),
            "device": describe_hardware(start.network.device),
        }
        return RunReport(self.plan.corpus, START, 0, self.bundle.version, views, 0, cost)


def train_in_place(start: TorchEncoder, data: Any, plan: training.TrainingPlan, work: Path) -> TrainingRun[EncoderTask]:
    """Train a start model's own weights, as `train_encoder` does, and write nothing."""
    run = prepare_run(start, data, plan, ProcessGroup(), QUIET)
    before = copy_start_weights(run.weights, plan.training.start_share)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        train_network(run, Path(folder))
    mix_with_start(run.weights, before, plan.training.start_share)
    _wait(start.network.device)
    start.network.model.eval()
    return run


def answering_of(
    system: str,
    trained: TorchEncoder,
    run: TrainingRun[EncoderTask],
    options: TrainingOptions,
    bundle: Bundle,
    tokens: dict[Any, Any],
) -> Answering:
    """What answers for a trained encoder: its vectors, and its sentences or spaces where it has some."""
    named = dataclasses.replace(trained, name=system)
    whole = reading_once(named, bundle, tokens)
    sentences = facets = None
    if (distance := trained_distance(options.losses)) is not None:
        temperature = distance.temperature if distance.name == "attention" else None
        device = trained.network.device
        own = SentenceSystem(named, name=system, metric=distance.metric, temperature=temperature, device=device)
        sentences = own, distance.name
    heads = run.task.stepper.objective.inputs.heads
    if heads is not None and {"background", "method", "result"} <= set(heads.names):
        facets = aspect_spaces(whole, heads_to_arrays(heads))[MATCHING]
    return Answering(whole, sentences, facets, inside_of(named) if system.startswith(WEAVE) else None)


def budgeted(options: TrainingOptions, groups: Any, papers: int) -> tuple[TrainingOptions, dict[str, Any]]:
    """The options with as many steps as read so many papers, and how long that is; epochs are whatever they become."""
    batches = Batches(groups, options)
    if not batches.per_epoch:
        raise CiteweaveError("there is no sample to train on")
    a_step = float(np.mean([len(batches.at(step).papers) for step in range(min(20, batches.per_epoch))]))
    steps = max(1, round(papers / a_step))
    warmup = options.warmup if options.warmup < 1 else min(options.warmup, max(1, round(WARMUP * steps)))
    length = {"steps": steps, "papers": round(steps * a_step), "epochs": round(steps / batches.per_epoch, 2)}
    return dataclasses.replace(options, steps=steps, warmup=float(warmup)), length


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def line_of(report: RunReport) -> str:
    shown: dict[str, float] = {}
    for view in ("corpus", "csfcube"):
        metrics = report.views[view].as_report("").metrics
        shown |= {name: round(metrics[name], 1) for name in ("cite.map", "cocite.map", "all.map") if name in metrics}
    cost = report.cost
    seconds = f"{cost['seconds']:.0f} s + {cost['seconds of judging']:.0f} s"
    return f"{report.corpus}: {report.system} seed {report.seed}, {report.papers:,} papers, {seconds}, {shown}"
