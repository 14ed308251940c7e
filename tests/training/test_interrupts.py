"""Ctrl-C in the middle of training costs nothing, and short runs have their checkpoints."""

from __future__ import annotations

import dataclasses
import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from citeweave.core.publish import work_folder
from citeweave.training import trainer
from citeweave.training.step import Stepper
from citeweave.training.trainer import deferred_interrupts

from .conftest import Literature
from .test_train import train, weights_of

SHORT = {"steps": 24, "checkpoint_every": 0, "check_every": 7, "patience": 9}


@pytest.fixture(autouse=True)
def heard_interrupts() -> Iterator[None]:
    """Ctrl-C as in a terminal: shells let their background jobs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def checkpoints_of(folder: Path) -> list[str]:
    return sorted(path.name for path in work_folder(folder).glob("kept/*/training/checkpoints/*"))


@pytest.mark.parametrize("step", [0, 8, 23])
def test_ctrl_c_writes_a_checkpoint(
    literature: Literature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    whole = train(literature, tmp_path / "whole", **SHORT)
    backward, steps = Stepper.backward, list[int]()

    def interrupted(self: Any, batch: Any, number: int) -> Any:
        steps.append(number)
        if len(steps) == step + 1:
            signal.raise_signal(signal.SIGINT)
        return backward(self, batch, number)

    monkeypatch.setattr(Stepper, "backward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(literature, tmp_path / "broken", **{**SHORT, "checkpoint_every": 1000})
    assert checkpoints_of(tmp_path / "broken") == [f"step-{step + 1:08d}"]
    resumed = train(literature, tmp_path / "broken", **SHORT)
    assert steps == list(range(24)), "no step is made twice"
    assert weights_of(resumed.folder) == weights_of(whole.folder)
    log = Path("training/log.jsonl")
    assert (resumed.folder / log).read_bytes() == (whole.folder / log).read_bytes()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def saved_steps(
    literature: Literature, folder: Path, monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float], **changes: Any
) -> list[int]:
    """The steps after which a run by this clock writes a checkpoint."""
    save, saved = trainer.save_checkpoint, list[int]()

    def noting(place: Path, step: int, *given: Any, **more: Any) -> None:
        saved.append(step)
        save(place, step, *given, **more)

    make = trainer.train_network
    with monkeypatch.context() as patched:
        patched.setattr(trainer, "save_checkpoint", noting)
        patched.setattr(
            "citeweave.training.train.train_network",
            lambda run, work: make(dataclasses.replace(run, clock=clock), work),
        )
        train(literature, folder, **{**SHORT, **changes})
    return saved


def test_short_runs_have_their_checkpoints(
    literature: Literature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, slow = lambda: 0.0, itertools.count(0.0, 1.0)  # writing takes no time, or as long as a step
    assert saved_steps(literature, tmp_path / "a", monkeypatch, free) == list(range(2, 24, 2))
    assert saved_steps(literature, tmp_path / "b", monkeypatch, free, steps=6) == [1, 2, 3, 4, 5]
    seldom = saved_steps(literature, tmp_path / "c", monkeypatch, lambda: next(slow))
    assert seldom[0] == 2 and 1 < len(seldom) < 6
    every = saved_steps(literature, tmp_path / "d", monkeypatch, lambda: next(slow), checkpoint_every=3)
    assert every == list(range(3, 24, 3)), "who names a number gets it"
    assert weights_of(tmp_path / "a") == weights_of(tmp_path / "c") == weights_of(tmp_path / "d")
    logs = {(tmp_path / name / "training" / "log.jsonl").read_bytes() for name in "acd"}
    assert len(logs) == 1, "checkpoints leave no trace in the log"


@pytest.mark.parametrize("step", [1e9, -1e9])
def test_a_clock_that_jumps_changes_no_weight(
    literature: Literature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    jumping = itertools.count(0.0, step)
    saved_steps(literature, tmp_path / "jumping", monkeypatch, lambda: next(jumping), steps=6)
    assert weights_of(tmp_path / "jumping") == weights_of(
        train(literature, tmp_path / "whole", **{**SHORT, "steps": 6}).folder
    )


def test_the_second_ctrl_c_does_not_wait() -> None:
    with pytest.raises(KeyboardInterrupt), deferred_interrupts() as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert interrupt.is_pending
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_and_those_who_ignore_ctrl_c_are_left_alone() -> None:
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
