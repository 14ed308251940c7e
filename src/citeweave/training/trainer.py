"""Learning rates over the steps, as shares of the highest one.

    >>> [round(factor("linear", step, 10, warmup=2), 3) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.125]

Every schedule warms up in a straight line; they differ in what follows.

Ctrl-C that waits for a good moment: a step of training is finished and saved before the run ends.

    with held_interrupts() as interrupt:
        while ...:
            step()
            if interrupt.is_waiting:
                save()
                interrupt.end()         as Ctrl-C would have ended it at once

The second Ctrl-C does not wait. Other threads than the main one, and processes that ignore Ctrl-C, are left as they are.

The log of a run in TensorBoard or Weights & Biases, for those who have them installed.

    --set training.track=tensorboard        events in the work folder, training/tensorboard, while it runs
    --set training.track=wandb              a run of its own; project and key come from the environment

The log itself, log.jsonl, is always written; this is a second reader of it and changes nothing.

The loop: batches, steps, validations and checkpoints, so that an interrupted run ends as an uninterrupted one.

    trained = train_network(run, Path("work/"))

One plain loop over torch rather than a trainer of a library: a step's papers are shared by its samples and its
gradients may be cached, every random number is a function of seed and step, and all that a run needs beside torch,
transformers and safetensors is here. Does not load or save encoders: `train.py` does.
"""

from __future__ import annotations

import importlib
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from citeweave.core.errors import CiteweaveError, MissingExtraError, UserError, choose
from citeweave.core.files import move, sync
from citeweave.core.progress import QUIET, Reporter
from citeweave.training.batches import Batches
from citeweave.training.checkpoints import load_checkpoint, save_checkpoint
from citeweave.training.distributed import clip_gradients, is_shard, like, take_whole
from citeweave.training.objective import PREFIX
from citeweave.training.options import TrainingOptions
from citeweave.training.step import Stepper
from citeweave.training.validation import Validation

_RATIO = 32
"""How much smaller the slanted triangle's lowest rate is than its highest (Howard and Ruder 2018)."""


def warmup_steps(warmup: float, steps: int) -> int:
    """A share of the steps, or a number of them.

    >>> warmup_steps(0.1, 500), warmup_steps(100, 500), warmup_steps(1, 500)
    (50, 100, 1)
    """
    return min(steps, round(warmup * steps) if warmup < 1 else round(warmup))


def factor(schedule: str, step: int, steps: int, *, warmup: int) -> float:
    """The share of the highest rate that a step uses; steps count from 0."""
    if schedule == "slanted":
        return slanted_triangle(step, steps, warmup)
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    done = (step - warmup) / max(1, steps - warmup)
    return 1 - done if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))


def slanted_triangle(step: int, steps: int, cut: int) -> float:
    """Straight up to the cut, straight down behind it, never below 1/32 (Howard and Ruder 2018, ULMFiT, equation 3).

    >>> [round(slanted_triangle(step, 11, 1), 4) for step in (0, 1, 6, 11)]
    [0.0312, 1.0, 0.5156, 0.0312]
    """
    part = step / cut if step < cut else 1 - (step - cut) / max(1, steps - cut)
    return (1 + part * (_RATIO - 1)) / _RATIO


# Ctrl-C that waits for a good moment: a step of training is finished and saved before the run ends.


@dataclass
class Interrupt:
    """Whether the user has asked for the end."""

    before: Any
    """What Ctrl-C does without us."""

    is_waiting: bool = False

    def end(self) -> None:
        """Do what was put off."""
        self.before(signal.SIGINT, None)

    def hold(self, number: int, frame: FrameType | None) -> None:
        if self.is_waiting:
            self.before(number, frame)
        self.is_waiting = True


@contextmanager
def held_interrupts() -> Iterator[Interrupt]:
    """Put off the first Ctrl-C inside."""
    held = Interrupt(signal.getsignal(signal.SIGINT))
    if threading.current_thread() is not threading.main_thread() or not callable(held.before):
        yield held
        return
    signal.signal(signal.SIGINT, held.hold)
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, held.before)


# The log of a run in TensorBoard or Weights & Biases, for those who have them installed.

Write = Callable[[Mapping[str, Any]], None]


def open_tracker(name: str, folder: Path) -> Write:
    """A function that takes the lines of the log."""
    if name == "tensorboard":
        writer = _load("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder / "tensorboard"))

        def to_tensorboard(line: Mapping[str, Any]) -> None:
            for key, value in line.items():
                if key != "step":
                    writer.add_scalar(key, value, line["step"])
            writer.flush()

        return to_tensorboard
    if name == "wandb":
        run = _load("wandb", "wandb").init(dir=str(folder))
        return lambda line: run.log({key: value for key, value in line.items() if key != "step"}, step=line["step"])
    return lambda line: None


def _load(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(
            f"training.track is {package!r}, which is not installed; pip install {package}, or leave it out"
        ) from None


# The loop: batches, steps, validations and checkpoints, so that an interrupted run ends as an uninterrupted one.

LOG_EVERY = 10
"""Steps between two lines of the log; losses are fetched from the device as seldom."""

CHECKPOINTS = 20
"""In all, where the options do not say."""

SHARE = 9
"""They are written only after so many times the time that writing the last one took."""


@dataclass(frozen=True, slots=True)
class Run:
    """All that a training run needs."""

    stepper: Stepper
    options: TrainingOptions
    weights: Mapping[str, Tensor]
    """What is trained, by name."""

    reporter: Reporter = field(default_factory=lambda: QUIET)
    clock: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class Progress:
    """Where a run stands; what a checkpoint keeps beside the weights."""

    step: int = 0
    log_bytes: int = 0
    before: dict[str, float] = field(default_factory=dict)
    """Validation of the start model."""

    last: dict[str, float] = field(default_factory=dict)
    best: float = -math.inf
    best_step: int = 0
    without_gain: int = 0
    stopped: bool = False
    pending: list[float] = field(default_factory=list)
    """Losses that are not in the log yet; where checkpoints are written does not show there."""

    def as_json(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in self.__slots__ if name != "step"}
        return {**state, "best": None if self.best == -math.inf else self.best}


def train_network(run: Run, work: Path) -> Progress:
    """Train the weights of a run in place; `work` keeps checkpoints and the log, log.jsonl."""
    return _Loop(run, work).finish()


class _Loop:
    def __init__(self, run: Run, work: Path) -> None:
        options, stepper = run.options, run.stepper
        self.run, self.work = run, work
        self.batches = Batches(stepper.data.groups, options)
        if not self.batches.units:
            raise UserError("there is no sample with a positive and a negative to train on; mine with other rules")
        whole = max(1, round(options.epochs * self.batches.per_epoch))
        self.steps = options.steps or whole
        self.warmup = warmup_steps(options.warmup, self.steps)
        self.check_every = options.check_every or self.batches.per_epoch
        self.checkpoint_every = options.checkpoint_every or -(-self.steps // CHECKPOINTS)
        self.saved_step, self.saved_at, self.saving = -1, run.clock(), 0.0
        self.optimizer = _optimizer(run)
        self.validation = Validation(stepper)
        self.pending: list[Tensor] = []
        self.track = open_tracker(options.track if stepper.processes.is_first else "", work)
        work.mkdir(parents=True, exist_ok=True)

    def finish(self) -> Progress:
        """Train to the end and leave the weights that are to be kept."""
        state = load_checkpoint(self.work / "checkpoints", self.run.weights, self.optimizer)
        self.progress = _read(state) if state else Progress()
        self._check_together()
        self._cut_log()
        if state:
            self.run.reporter.say(f"going on after step {self.progress.step:,} of {self.steps:,}")
        else:
            self._check()
            self.progress.before = dict(self.progress.last)
        with self.run.reporter.task("training", self.steps, "steps") as advance, self._interrupts() as interrupt:
            advance(self.progress.step)
            while self.progress.step < self.steps and not self.progress.stopped:
                self._step(self.progress.step)
                self.progress.step += 1
                self._after_step()
                advance(1)
                if interrupt.is_waiting:
                    self._end(interrupt)
        if self.run.options.patience and self.progress.best_step < self.progress.step:
            self._take_best()
        return self.progress

    def _interrupts(self) -> AbstractContextManager[Interrupt]:
        """Several processes do not hear of Ctrl-C at the same step, and each needs the others to finish one."""
        alone = self.run.stepper.processes.count == 1
        return held_interrupts() if alone else nullcontext(Interrupt(None))

    def _end(self, interrupt: Interrupt) -> None:
        if self.saved_step != self.progress.step:
            self._save()
        self.run.reporter.say(f"step {self.progress.step:,} is saved")
        interrupt.end()

    def _check_together(self) -> None:
        """All processes must go on from the same step."""
        steps = self.run.stepper.processes.tell(self.progress.step)
        if len(set(steps)) > 1:
            other = next(rank for rank, step in enumerate(steps) if step != steps[0])
            raise UserError(
                f"process {other} found the checkpoint of step {steps[other]} in {self.work}, and process 0 that of step "
                f"{steps[0]}; -o must be one folder that all machines see as it is"
            )

    def _step(self, step: int) -> None:
        run, rate = self.run, self._rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["times"]
        batch = self.batches.at(step)
        run.stepper.network.model.train()
        with self._within_memory():
            self.pending.append(run.stepper.backward(batch, step))
        parameters = list(run.weights.values())
        run.stepper.processes.sum_gradients(parameters)
        if run.options.clip:
            clip_gradients(parameters, run.options.clip, run.stepper.processes)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _after_step(self) -> None:
        step, options = self.progress.step, self.run.options
        is_last = step == self.steps
        checks = step % self.check_every == 0 or is_last
        saves = step % self.checkpoint_every == 0 and not is_last and self._is_worth_saving()
        if checks or len(self.progress.pending) + len(self.pending) >= LOG_EVERY:
            self._write_losses()
        if checks:
            self._check()
            self.progress.stopped = bool(options.patience and self.progress.without_gain >= options.patience)
        if saves:
            self._save()

    def _is_worth_saving(self) -> bool:
        """Whether a checkpoint costs little beside the steps since the last one; who names a number gets that."""
        if self.run.options.checkpoint_every or self.run.stepper.processes.count > 1:
            return True
        return self.run.clock() - self.saved_at >= SHARE * self.saving

    def _save(self) -> None:
        """Write a checkpoint, once what it speaks of is on the disk: the log and the best weights."""
        begun = self.run.clock()
        self.progress.pending = self._losses()
        self.pending.clear()
        first, state = self.run.stepper.processes.is_first, self.progress.as_json()
        for path in (self.work / "log.jsonl", self.work / "best.safetensors"):
            if first and path.exists():
                sync(path)
        folder = self.work / "checkpoints"
        save_checkpoint(folder, self.progress.step, self.run.weights, self.optimizer, state, writes=first)
        self.saved_step, self.saved_at = self.progress.step, self.run.clock()
        self.saving = self.saved_at - begun

    def _losses(self) -> list[float]:
        """Fetch the losses since the last line of the log; one that is no number ends the run."""
        fetched = torch.stack(self.pending).cpu().double().tolist() if self.pending else []
        losses, step = [*self.progress.pending, *fetched], self.progress.step
        for number, loss in enumerate(losses, step - len(losses)):
            if not math.isfinite(loss):
                raise CiteweaveError(
                    f"the loss of step {number} is {loss:g}, not a number to learn from; {self._kept()} "
                    "Try a lower training.learning_rate, training.clip=1.0 or training.precision=float32"
                )
        return losses

    def _write_losses(self) -> None:
        """Write the mean of the losses since the last line."""
        losses, step = torch.tensor(self._losses(), dtype=torch.float64), self.progress.step
        self.progress.pending = []
        self.pending.clear()
        self._log({"step": step, "loss": float(losses.mean()), "learning_rate": self._rate(step - 1)})

    def _check(self) -> None:
        """Judge the network as it is, and remember whether it gained."""
        with self._within_memory():
            found = self.validation.judge()
        options, progress = self.run.options, self.progress
        progress.last = found
        if not found:
            if options.patience:
                raise UserError("training.patience needs a validation; set training.validation above 0")
            return
        watched = found[choose(options.watch, found, "training.watch")]
        if watched > progress.best:
            progress.best, progress.best_step, progress.without_gain = watched, progress.step, 0
            if options.patience:
                self._keep_best()
        else:
            progress.without_gain += 1
        self._log({"step": progress.step, **found})
        told = ", ".join(f"{name} {100 * value:.2f}" for name, value in found.items())
        self.run.reporter.say(f"step {progress.step:,}: {told}")

    @contextmanager
    def _within_memory(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            tokens = self.run.stepper.micro_tokens
            raise CiteweaveError(
                f"out of memory at step {self.progress.step} with {tokens:,} tokens at a time; "
                f"{self._kept()} Go on with --set training.micro_tokens={tokens // 2}"
            ) from None

    def _rate(self, step: int) -> float:
        options = self.run.options
        return options.learning_rate * factor(options.schedule, step, self.steps, warmup=self.warmup)

    def _kept(self) -> str:
        found = sorted((self.work / "checkpoints").glob("step-????????"))
        return f"the checkpoint of step {int(found[-1].name[5:])} is kept." if found else "there is no checkpoint yet."

    def _keep_best(self) -> None:
        path, first = self.work / "best.safetensors", self.run.stepper.processes.is_first
        kept = take_whole(self.run.weights, keep=first)
        if first:
            save_file(kept, path.with_suffix(".new"))
            move(path.with_suffix(".new"), path)

    def _take_best(self) -> None:
        self.run.stepper.processes.wait()
        with torch.no_grad():
            for name, weight in load_file(self.work / "best.safetensors").items():
                self.run.weights[name].copy_(like(self.run.weights[name], weight))

    def _log(self, line: Mapping[str, Any]) -> None:
        if not self.run.stepper.processes.is_first:
            return
        with (self.work / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            self.progress.log_bytes = file.tell()
        self.track(line)

    def _cut_log(self) -> None:
        """Lines written after the checkpoint will be written again."""
        path = self.work / "log.jsonl"
        if self.run.stepper.processes.is_first and path.exists():
            with path.open("r+b") as file:
                file.truncate(
                    min(self.progress.log_bytes, path.stat().st_size)
                )  # a longer one would be filled with zeros


def _optimizer(run: Run) -> torch.optim.Optimizer:
    options = run.options
    kind = torch.optim.AdamW if options.optimizer == "adamw" else torch.optim.Adam
    groups = []
    for of_heads, sharded in ((False, True), (False, False), (True, False)):  # one kind of tensor a group
        own = [
            weight
            for name, weight in run.weights.items()
            if (name.startswith(PREFIX), is_shard(weight)) == (of_heads, sharded)
        ]
        groups.append({"params": own, "times": options.head_rate if of_heads else 1.0})
    groups = [group for group in groups if group["params"]]
    fused = next(iter(run.weights.values())).is_cuda
    return kind(groups, lr=options.learning_rate, eps=options.epsilon, weight_decay=options.weight_decay, fused=fused)


def _read(state: Mapping[str, Any]) -> Progress:
    best = -math.inf if state["best"] is None else float(state["best"])
    return Progress(**{name: state[name] for name in Progress.__slots__ if name in state} | {"best": best})
