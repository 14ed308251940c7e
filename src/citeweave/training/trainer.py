"""The training loop: learning-rate schedule, optimizer steps, validation, early stopping, checkpoints, log.

    progress = train_network(TrainingRun(task, options, weights), Path("work/"))

A task takes the steps and validates: `encoder_task.py` of encoders, `intents/fit.py` of intent classifiers. An interrupted
run ends as an uninterrupted one would. One plain loop over torch rather than a library's trainer: a step's papers are
shared by its samples and its gradients may be cached, every random number is a function of seed and step, and a run
needs only torch, transformers and safetensors. Does not load or save encoders: `train.py` does.

Every learning-rate schedule warms up linearly; they differ in what follows:

    >>> [round(learning_rate_factor("linear", step, 10, warmup=2), 3) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.125]

The first Ctrl-C is deferred until a step is finished and saved; the second is not. Threads other than the main one, and
processes that ignore Ctrl-C, are left as they are.

The log, log.jsonl, is always written; TensorBoard and Weights & Biases get a copy where they are installed:

    --set training.track=tensorboard        events in the work folder, training/tensorboard, while it runs
    --set training.track=wandb              a run of its own; project and key come from the environment
"""

from __future__ import annotations

import importlib
import json
import math
import operator
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from citeweave.core.errors import CiteweaveError, MissingExtraError, UserError, choose
from citeweave.core.files import move, sync
from citeweave.core.progress import QUIET, Reporter
from citeweave.training.checkpoints import load_checkpoint, save_checkpoint
from citeweave.training.distributed import ProcessGroup, clip_gradients, gather_full, is_shard, place_like
from citeweave.training.options import LOSS, TrainingOptions, metric_text
from citeweave.training.partial import HEADS_PREFIX

_RATIO = 32
"""Ratio of the slanted triangle's highest to its lowest rate (Howard and Ruder 2018)."""


def warmup_steps(warmup: float, steps: int) -> int:
    """Return the trainer's number of warmup steps, given as a share of the steps if below 1, else as a number.

    >>> warmup_steps(0.1, 500), warmup_steps(100, 500), warmup_steps(1, 500)
    (50, 100, 1)
    """
    return min(steps, round(warmup * steps) if warmup < 1 else round(warmup))


def check_interval(check_every: float, per_epoch: int) -> int:
    """Return the trainer's steps between validations, given as a share of an epoch if below 1; 0 = once per epoch.

    >>> check_interval(0.25, 200), check_interval(30, 200), check_interval(0, 200)
    (50, 30, 200)
    """
    return max(1, round(check_every * per_epoch if check_every < 1 else check_every)) if check_every else per_epoch


def learning_rate_factor(schedule: str, step: int, steps: int, *, warmup: int) -> float:
    """Return the trainer's learning rate at a step as a share of the peak rate; steps count from 0."""
    if schedule == "slanted":
        return _slanted_triangle(step, steps, warmup)
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    done = (step - warmup) / max(1, steps - warmup)
    return 1 - done if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))


def _slanted_triangle(step: int, steps: int, cut: int) -> float:
    """Return the slanted triangular rate: linear up to the cut, linear down to 1/32 (Howard and Ruder 2018, equation 3).

    >>> [round(_slanted_triangle(step, 11, 1), 4) for step in (0, 1, 6, 11)]
    [0.0312, 1.0, 0.5156, 0.0312]
    """
    part = step / cut if step < cut else 1 - (step - cut) / max(1, steps - cut)
    return (1 + part * (_RATIO - 1)) / _RATIO


# Deferred Ctrl-C


@dataclass
class DeferredInterrupt:
    """Ctrl-C that the trainer defers to the end of a training step."""

    handler: Any
    """Handler of SIGINT outside training."""

    is_pending: bool = False

    def deliver(self) -> None:
        """Call the original handler of Ctrl-C."""
        self.handler(signal.SIGINT, None)

    def defer(self, number: int, frame: FrameType | None) -> None:
        """Remember the first Ctrl-C, and deliver the second at once."""
        if self.is_pending:
            self.handler(number, frame)
        self.is_pending = True


@contextmanager
def deferred_interrupts() -> Iterator[DeferredInterrupt]:
    """Defer the first Ctrl-C while the trainer's steps run."""
    deferred = DeferredInterrupt(signal.getsignal(signal.SIGINT))
    if threading.current_thread() is not threading.main_thread() or not callable(deferred.handler):
        yield deferred
        return
    signal.signal(signal.SIGINT, deferred.defer)
    try:
        yield deferred
    finally:
        signal.signal(signal.SIGINT, deferred.handler)


# TensorBoard and Weights & Biases

Write = Callable[[Mapping[str, Any]], None]


def _open_tracker(name: str, folder: Path) -> Write:
    """Return a function that sends lines of the training log to TensorBoard or Weights & Biases, or nowhere."""
    if name == "tensorboard":
        writer = _import_tracker("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder / "tensorboard"))

        def to_tensorboard(line: Mapping[str, Any]) -> None:
            for key, value in line.items():
                if key != "step":
                    writer.add_scalar(key, value, line["step"])
            writer.flush()

        return to_tensorboard
    if name == "wandb":
        run = _import_tracker("wandb", "wandb").init(dir=str(folder))
        return lambda line: run.log({key: value for key, value in line.items() if key != "step"}, step=line["step"])
    return lambda line: None


def _import_tracker(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(
            f"training.track is {package!r}, which is not installed; pip install {package}, or leave out training.track"
        ) from None


# The loop

LOG_EVERY = 10
"""Steps between two lines of the log, where losses are fetched from the device."""

CHECKPOINTS = 20
"""Default number of checkpoints of a run."""

SAVE_INTERVAL = 9
"""Minimum time between checkpoints, as a multiple of the time that writing the last one took."""


_LOG_NAMES = {LOSS: "validation_loss"}


class TrainingTask(Protocol):
    """What the trainer's loop trains: steps with their gradients, and a validation."""

    @property
    def processes(self) -> ProcessGroup: ...
    @property
    def steps_per_epoch(self) -> int: ...
    @property
    def memory_advice(self) -> str:
        """What to do where memory does not suffice."""

    def backward(self, step: int) -> Tensor:
        """Return the loss of a step, counted from 0, and add its gradient to the weights; a function of seed and step."""

    def validate(self) -> dict[str, float]:
        """Evaluate the network as it is; metrics between 0 and 1 and `loss`, none where there is nothing to validate on."""


_Task = TypeVar("_Task", bound=TrainingTask, covariant=True)


@dataclass(frozen=True, slots=True)
class TrainingRun(Generic[_Task]):
    """Everything the trainer's loop needs: task, options, trained weights."""

    task: _Task
    options: TrainingOptions
    weights: Mapping[str, Tensor]
    """Trained weights by name."""

    reporter: Reporter = field(default_factory=lambda: QUIET)
    clock: Callable[[], float] = time.monotonic
    measured: Mapping[str, float] = field(default_factory=dict)
    """What was measured before the first step, by name; the first line of the log."""


@dataclass(slots=True)
class TrainingProgress:
    """Progress of the trainer: step, validation results and log, saved in checkpoints besides the weights."""

    step: int = 0
    log_bytes: int = 0
    before: dict[str, float] = field(default_factory=dict)
    """Validation of the start model."""

    last: dict[str, float] = field(default_factory=dict)
    best: float | None = None
    best_step: int = 0
    without_gain: int = 0
    stopped: bool = False
    pending: list[float] = field(default_factory=list)
    """Losses that are not in the log yet, so that the log does not depend on checkpoints."""

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__ if name != "step"}


def train_network(run: TrainingRun[TrainingTask], work: Path) -> TrainingProgress:
    """Train the weights of a run in place, resuming from its last checkpoint; `work` has checkpoints and log.jsonl."""
    return _TrainingLoop(run, work).finish()


class _TrainingLoop:
    """State of the training loop between steps: optimizer, progress and log."""

    def __init__(self, run: TrainingRun[TrainingTask], work: Path) -> None:
        options, per_epoch = run.options, run.task.steps_per_epoch
        self.run, self.work = run, work
        self.steps = options.steps or max(1, round(options.epochs * per_epoch))
        self.warmup = warmup_steps(options.warmup, self.steps)
        self.check_every = check_interval(options.check_every, per_epoch)
        self.checkpoint_every = options.checkpoint_every or -(-self.steps // CHECKPOINTS)
        self.saved_step, self.saved_at, self.saving = -1, run.clock(), 0.0
        self.optimizer = _make_optimizer(run)
        self.pending: list[Tensor] = []
        self.track = _open_tracker(options.track if run.task.processes.is_first else "", work)
        work.mkdir(parents=True, exist_ok=True)

    def finish(self) -> TrainingProgress:
        """Run the trainer's loop to the last step, and leave the last or the best weights in place."""
        state = load_checkpoint(self.work / "checkpoints", self.run.weights, self.optimizer)
        known = {name: value for name, value in (state or {}).items() if name in TrainingProgress.__slots__}
        self.progress = TrainingProgress(**known)
        self._check_same_step()
        self._truncate_log()
        if state:
            self.run.reporter.say(f"resuming after step {self.progress.step:,} of {self.steps:,}")
        else:
            if self.run.measured:
                self._log({"step": 0, **self.run.measured})
            self._validate()
            self.progress.before = dict(self.progress.last)
        with self.run.reporter.task("training", self.steps, "steps") as advance, self._interrupts() as interrupt:
            advance(self.progress.step)
            while self.progress.step < self.steps and not self.progress.stopped:
                self._step(self.progress.step)
                self.progress.step += 1
                self._after_step()
                advance(1)
                if interrupt.is_pending:
                    self._save_and_stop(interrupt)
        if self.run.options.patience and self.progress.best_step < self.progress.step:
            self._load_best()
        return self.progress

    def _interrupts(self) -> AbstractContextManager[DeferredInterrupt]:
        """Defer Ctrl-C in a single process; several would see it at different steps and wait for each other."""
        single = self.run.task.processes.count == 1
        return deferred_interrupts() if single else nullcontext(DeferredInterrupt(None))

    def _save_and_stop(self, interrupt: DeferredInterrupt) -> None:
        """Save a checkpoint, then deliver the deferred Ctrl-C."""
        if self.saved_step != self.progress.step:
            self._save()
        self.run.reporter.say(f"step {self.progress.step:,} is saved")
        interrupt.deliver()

    def _check_same_step(self) -> None:
        """Check that all processes resume from the same step."""
        steps = self.run.task.processes.exchange(self.progress.step)
        if len(set(steps)) > 1:
            other = next(rank for rank, step in enumerate(steps) if step != steps[0])
            raise UserError(
                f"process {other} found the checkpoint of step {steps[other]} in {self.work}, and process 0 that of step "
                f"{steps[0]}; -o must be one folder that all machines share"
            )

    def _step(self, step: int) -> None:
        """Take one optimizer step on the batch of this step."""
        run, rate = self.run, self._rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        with self._explaining_memory():
            self.pending.append(run.task.backward(step))
        parameters = list(run.weights.values())
        run.task.processes.sum_gradients(parameters)
        if run.options.clip:
            clip_gradients(parameters, run.options.clip, run.task.processes)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _after_step(self) -> None:
        """Log, validate and save a checkpoint, each when it is due."""
        step, options = self.progress.step, self.run.options
        is_last = step == self.steps
        checks = step % self.check_every == 0 or is_last
        saves = step % self.checkpoint_every == 0 and not is_last and self._is_worth_saving()
        if checks or len(self.progress.pending) + len(self.pending) >= LOG_EVERY:
            self._write_losses()
        if checks:
            self._validate()
            self.progress.stopped = bool(options.patience and self.progress.without_gain >= options.patience)
        if saves:
            self._save()

    def _is_worth_saving(self) -> bool:
        """Return whether a checkpoint is cheap compared to the steps since the last one, or the user set the interval."""
        if self.run.options.checkpoint_every or self.run.task.processes.count > 1:
            return True
        return self.run.clock() - self.saved_at >= SAVE_INTERVAL * self.saving

    def _save(self) -> None:
        """Write a checkpoint, after the log and the best weights that it refers to are on disk."""
        begun = self.run.clock()
        self.progress.pending = self._fetch_losses()
        self.pending.clear()
        first, state = self.run.task.processes.is_first, self.progress.as_json()
        for path in (self.work / "log.jsonl", self.work / "best.safetensors"):
            if first and path.exists():
                sync(path)
        folder = self.work / "checkpoints"
        save_checkpoint(folder, self.progress.step, self.run.weights, self.optimizer, state, writes=first)
        self.saved_step, self.saved_at = self.progress.step, self.run.clock()
        self.saving = self.saved_at - begun

    def _fetch_losses(self) -> list[float]:
        """Fetch the losses since the last line of the log; one that is not finite ends the run."""
        fetched = torch.stack(self.pending).cpu().double().tolist() if self.pending else []
        losses, step = [*self.progress.pending, *fetched], self.progress.step
        for number, loss in enumerate(losses, step - len(losses)):
            if not math.isfinite(loss):
                raise CiteweaveError(
                    f"the loss of step {number} is {loss:g}, which cannot be trained on; {self._describe_checkpoint()} "
                    "Try a lower training.learning_rate, training.clip=1.0 or training.precision=float32"
                )
        return losses

    def _write_losses(self) -> None:
        """Write the mean of the losses since the last line to the log."""
        losses, step = torch.tensor(self._fetch_losses(), dtype=torch.float64), self.progress.step
        self.progress.pending = []
        self.pending.clear()
        self._log({"step": step, "loss": float(losses.mean()), "learning_rate": self._rate(step - 1)})

    def _validate(self) -> None:
        """Validate the network, log its metrics, and keep the best weights where early stopping is on."""
        with self._explaining_memory():
            metrics = self.run.task.validate()
        options, progress = self.run.options, self.progress
        progress.last = metrics
        if not metrics:
            if options.patience:
                raise UserError("training.patience needs validation; set training.validation to more than 0")
            return
        watched = metrics[choose(options.watch, metrics, "training.watch")]
        is_better = operator.lt if options.watch == LOSS else operator.gt
        if progress.best is None or is_better(watched, progress.best):
            progress.best, progress.best_step, progress.without_gain = watched, progress.step, 0
            if options.patience:
                self._save_best()
        else:
            progress.without_gain += 1
        # "loss" in the log is that of training
        self._log({"step": progress.step} | {_LOG_NAMES.get(name, name): value for name, value in metrics.items()})
        line = ", ".join(f"{name} {metric_text(name, value)}" for name, value in metrics.items())
        self.run.reporter.say(f"step {progress.step:,}: {line}")

    @contextmanager
    def _explaining_memory(self) -> Iterator[None]:
        """Turn an out-of-memory error into one that names a smaller training.micro_tokens."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise CiteweaveError(
                f"out of memory at step {self.progress.step}; {self._describe_checkpoint()} {self.run.task.memory_advice}"
            ) from None

    def _rate(self, step: int) -> float:
        options = self.run.options
        return options.learning_rate * learning_rate_factor(options.schedule, step, self.steps, warmup=self.warmup)

    def _describe_checkpoint(self) -> str:
        """Return a sentence on the last checkpoint, for errors."""
        paths = sorted((self.work / "checkpoints").glob("step-????????"))
        return f"the checkpoint of step {int(paths[-1].name[5:])} is kept." if paths else "there is no checkpoint yet."

    def _save_best(self) -> None:
        """Save the weights of the best validation so far."""
        path, first = self.work / "best.safetensors", self.run.task.processes.is_first
        weights = gather_full(self.run.weights, keep=first)
        if first:
            save_file(weights, path.with_suffix(".new"))
            move(path.with_suffix(".new"), path)

    def _load_best(self) -> None:
        self.run.task.processes.wait()
        with torch.no_grad():
            for name, weight in load_file(self.work / "best.safetensors").items():
                self.run.weights[name].copy_(place_like(self.run.weights[name], weight))

    def _log(self, line: Mapping[str, Any]) -> None:
        if not self.run.task.processes.is_first:
            return
        with (self.work / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            self.progress.log_bytes = file.tell()
        self.track(line)

    def _truncate_log(self) -> None:
        """Truncate the log to the checkpoint, since later lines will be written again."""
        path = self.work / "log.jsonl"
        if self.run.task.processes.is_first and path.exists():
            with path.open("r+b") as file:
                # truncating to more than its size would fill it with zeros
                file.truncate(min(self.progress.log_bytes, path.stat().st_size))


def _make_optimizer(run: TrainingRun[TrainingTask]) -> torch.optim.Optimizer:
    """Make the optimizer, with parameter groups for shards, other weights and heads."""
    options = run.options
    kind = torch.optim.AdamW if options.optimizer == "adamw" else torch.optim.Adam
    groups = []
    for of_heads, sharded in ((False, True), (False, False), (True, False)):  # one kind of tensor per group
        own = [
            weight
            for name, weight in run.weights.items()
            if (name.startswith(HEADS_PREFIX), is_shard(weight)) == (of_heads, sharded)
        ]
        groups.append({"params": own, "factor": options.head_rate if of_heads else 1.0})
    groups = [group for group in groups if group["params"]]
    fused = next(iter(run.weights.values())).is_cuda
    return kind(groups, lr=options.learning_rate, eps=options.epsilon, weight_decay=options.weight_decay, fused=fused)
