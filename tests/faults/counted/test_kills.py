"""kill -9 at random points of every stage: the next run completes it, with the bytes of a run that nothing disturbed.

Half of the kills come at a random step to the file system, half at a random moment; half of the runs replace an older
artifact, and in a quarter of the attempts the repetition is killed too. What is compared is everything below the
artifact's parent folder, so that nothing may be left beside it either.
"""

from __future__ import annotations

import random
import signal
from pathlib import Path

from .commands import CommandServer
from .counting import Trial
from .stages import STAGES, Undisturbed, content, differences, laboratory


def test_kills(trial: Trial, bert: Path, tmp_path: Path) -> None:
    made, kills = laboratory(bert), 0
    for seed in trial.numbers(quick=10, whole=25 * len(STAGES)):
        stage, draw = STAGES[seed % len(STAGES)], random.Random(seed)
        replacing, by_step = draw.random() < 0.5, bool(seed // len(STAGES) % 2)
        what = f"seed {seed}: {stage}, {'replacing' if replacing else 'new'}, {'step' if by_step else 'moment'}"
        with trial.attempt(what):
            whole = made.undisturbed(stage, replacing=replacing)
            kills += kill_and_complete(whole, made.server, draw, tmp_path / "tried", by_step=by_step)
    trial.facts["kills"] = kills


def kill_and_complete(
    whole: Undisturbed, server: CommandServer, draw: random.Random, folder: Path, *, by_step: bool
) -> int:
    """Kill a stage once or twice, complete it, and compare; how often it was killed."""
    out = begin_and_kill(whole, server, draw, folder, by_step=by_step)
    kills = 1
    if draw.random() < 0.25:
        kills += was_killed(whole, server, draw, out, by_step=by_step)
    assert not whole.older or whole.is_whole(folder), "neither the older artifact nor the new one is whole"
    server.run(whole.stage.words(out)).expect_success()
    assert not (found := differences(content(folder), whole.new)), f"differ: {found}"
    return kills


def begin_and_kill(
    whole: Undisturbed, server: CommandServer, draw: random.Random, folder: Path, *, by_step: bool
) -> Path:
    """A stage, begun and killed; begun again, and killed earlier, where it had ended before the kill came."""
    for share in (1, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0):
        out = whole.begin(folder)
        if was_killed(whole, server, draw, out, by_step=by_step, share=share):
            return out
    raise AssertionError("ten runs ended before they were killed: nothing was tried")


def was_killed(
    whole: Undisturbed, server: CommandServer, draw: random.Random, out: Path, *, by_step: bool, share: float = 1
) -> bool:
    """Whether a kill came before the end, at a random point of the first share of what the stage once took."""
    words = whole.stage.words(out)
    if by_step:
        ran = server.run(words, {"kind": "kill", "at": draw.randint(1, max(1, int(share * whole.steps)))})
    else:
        ran = server.run(words, kill_after=draw.uniform(0, share * whole.seconds))
    assert ran.status in (0, -signal.SIGKILL), f"it ended by itself with {ran.status}: {ran.told}"
    return ran.status == -signal.SIGKILL
