"""kill -9 at random points of every stage: the next run completes it, with the bytes of a run that nothing disturbed.

Half of the kills come at a random step to the file system, half at a random moment; half of the runs replace an older
artifact, and in a quarter of the attempts the repetition is killed too. What is compared is everything below the
artifact's parent folder, so that nothing may be left beside it either.
"""

import random
import signal
from pathlib import Path

from .stages import STAGES, Undisturbed, laboratory


def test_kills(trial, bert, tmp_path):
    made, kills, folder = laboratory(bert), 0, tmp_path / "tried"
    for seed in trial.numbers(quick=10, whole=25 * len(STAGES)):
        stage, draw = STAGES[seed % len(STAGES)], random.Random(seed)
        replacing, by_step = draw.random() < 0.5, bool(seed // len(STAGES) % 2)
        what = f"seed {seed}: {stage}, {'replacing' if replacing else 'new'}, {'step' if by_step else 'moment'}"
        with trial.attempt(what):
            whole = made.undisturbed(stage, replacing=replacing)
            begin_and_kill(whole, draw, folder, by_step=by_step)
            kills += 1
            if draw.random() < 0.25:
                kills += was_killed(whole, draw, folder, by_step=by_step)
            whole.complete(folder)
    trial.facts["kills"] = kills


def begin_and_kill(whole: Undisturbed, draw: random.Random, folder: Path, *, by_step: bool) -> None:
    """A stage, begun and killed; begun again, and killed earlier, where it had ended before the kill came."""
    for share in (1, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0):
        whole.begin(folder)
        if was_killed(whole, draw, folder, by_step=by_step, share=share):
            return
    raise AssertionError("ten runs ended before they were killed: nothing was tried")


def was_killed(whole: Undisturbed, draw: random.Random, folder: Path, *, by_step: bool, share: float = 1) -> bool:
    """Whether a kill came before the end, at a random point of the first share of what the stage once took."""
    if by_step:
        ran = whole.run(folder, {"kind": "kill", "at": draw.randint(1, max(1, int(share * whole.steps)))})
    else:
        ran = whole.run(folder, kill_after=draw.uniform(0, share * whole.seconds))
    assert ran.status in (0, -signal.SIGKILL), f"it ended by itself with {ran.status}: {ran.told}"
    return ran.status == -signal.SIGKILL
