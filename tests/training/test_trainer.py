"""Ctrl-C in the middle of training costs nothing, short runs have their checkpoints, and learning rates have their shape."""

import dataclasses
import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from citeweave.core.publish import work_folder
from citeweave.training import trainer
from citeweave.training.encoder_task import Stepper
from citeweave.training.trainer import deferred_interrupts, learning_rate_factor, warmup_steps

from .conftest import weights_of

SHORT = {"steps": 24, "checkpoint_every": 0, "check_every": 7, "patience": 9}
LOG = "training/log.jsonl"


@pytest.fixture(autouse=True)
def heard_interrupts() -> Iterator[None]:
    """Ctrl-C as in a terminal: shells let their background jobs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("step", [0, 8, 23])
def test_ctrl_c_writes_a_checkpoint(literature, tmp_path, monkeypatch, step):
    whole = literature.train(tmp_path / "whole", **SHORT)
    backward, steps = Stepper.backward, list[int]()

    def interrupted(self: Any, batch: Any, number: int) -> Any:
        steps.append(number)
        if len(steps) == step + 1:
            signal.raise_signal(signal.SIGINT)
        return backward(self, batch, number)

    monkeypatch.setattr(Stepper, "backward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        literature.train(tmp_path / "broken", **{**SHORT, "checkpoint_every": 1000})
    kept = sorted(path.name for path in work_folder(tmp_path / "broken").glob("kept/*/training/checkpoints/*"))
    assert kept == [f"step-{step + 1:08d}"]
    resumed = literature.train(tmp_path / "broken", **SHORT)
    assert steps == list(range(24)), "no step is made twice"
    assert weights_of(resumed.folder) == weights_of(whole.folder)
    assert (resumed.folder / LOG).read_bytes() == (whole.folder / LOG).read_bytes()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.fixture
def saved_steps(literature, tmp_path) -> Callable[..., list[int]]:
    """The steps after which a run by this clock writes a checkpoint."""

    def saved_steps(name: str, clock: Callable[[], float], **changes: Any) -> list[int]:
        save, saved, make = trainer.save_checkpoint, list[int](), trainer.train_network

        def noting(place: Path, step: int, *given: Any, **more: Any) -> None:
            saved.append(step)
            save(place, step, *given, **more)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(trainer, "save_checkpoint", noting)
            patched.setattr(
                "citeweave.training.train.train_network",
                lambda run, work: make(dataclasses.replace(run, clock=clock), work),
            )
            literature.train(tmp_path / name, **{**SHORT, **changes})
        return saved

    return saved_steps


def test_short_runs_have_their_checkpoints(saved_steps, tmp_path):
    free, slow = lambda: 0.0, itertools.count(0.0, 1.0)  # writing takes no time, or as long as a step
    assert saved_steps("a", free) == list(range(2, 24, 2))
    assert saved_steps("b", free, steps=6) == [1, 2, 3, 4, 5]
    seldom = saved_steps("c", lambda: next(slow))
    assert seldom[0] == 2 and 1 < len(seldom) < 6
    every = saved_steps("d", lambda: next(slow), checkpoint_every=3)
    assert every == list(range(3, 24, 3)), "who names a number gets it"
    assert weights_of(tmp_path / "a") == weights_of(tmp_path / "c") == weights_of(tmp_path / "d")
    assert len({(tmp_path / name / LOG).read_bytes() for name in "acd"}) == 1, "checkpoints leave no trace in the log"
    for step in (1e9, -1e9):  # a clock that jumps
        jumping = itertools.count(0.0, step)
        saved_steps(str(step), lambda clock=jumping: next(clock), steps=6)
        assert weights_of(tmp_path / str(step)) == weights_of(tmp_path / "b")


def test_the_second_ctrl_c_does_not_wait():
    with pytest.raises(KeyboardInterrupt), deferred_interrupts() as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert interrupt.is_pending
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_and_those_who_ignore_ctrl_c_are_left_alone():
    def held() -> None:
        with deferred_interrupts() as interrupt:
            assert not interrupt.is_pending
            assert signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_IGN)
            done.append(True)

    done = list[bool]()
    thread = threading.Thread(target=held)
    thread.start()
    thread.join()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        held()
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == [True, True]


@pytest.mark.parametrize("schedule", ["slanted", "linear", "cosine", "constant"])
def test_schedules_rise_to_the_peak_and_never_below_nothing(schedule):
    warmup = warmup_steps(0.1, 100)
    rates = [learning_rate_factor(schedule, step, 100, warmup=warmup) for step in range(100)]
    assert max(rates) == pytest.approx(1.0, abs=0.02) and all(0 < rate <= 1 for rate in rates)
    assert rates[:10] == sorted(rates[:10]) and rates[10:] == sorted(rates[10:], reverse=True)
    assert schedule == "constant" or rates[-1] < 0.05
