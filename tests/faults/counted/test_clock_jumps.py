"""A clock that is set back or forward while a command runs: nothing hangs, and the result is the same."""

import itertools
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO

import numpy as np
import pytest

from citeweave.core import progress
from citeweave.core.artifact import new_artifact
from citeweave.core.files import LockedError, hash_json, take_lock
from citeweave.encoders.batches import BatchResults, SavedBatches, run_batches
from citeweave.mining.mine import BlockFiles, BlockPace

_DURATION = r"(under 1 s|\d+ s|[\d.]+ (min|h)|[\d,.]+ days)"
_LINE = re.compile(rf"embedding: \d+ of 50 papers \(\d+ %\), [\d.,e+-]+/s, {_DURATION}( left)?")
JUMPS = (1e-9, 0.5, 31.0, 3600.0, 1e9, -0.5, -3600.0, -1e9)
"""Seconds between two looks at the clock."""


def jumping(seed: int) -> Callable[[], float]:
    """A clock that goes anywhere."""
    draw = random.Random(seed)
    return itertools.accumulate(iter(lambda: draw.choice(JUMPS), None), initial=1e9).__next__


@contextmanager
def wall_clock(clock: Callable[[], float]) -> Iterator[None]:
    """The time of day, which anybody may set; `time.monotonic` is not it, and nobody can set that."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "time", clock)
        patched.setattr(time, "time_ns", lambda: int(clock() * 1e9))
        yield


def test_saved_batches(trial, tmp_path):
    """Work that is saved by a clock that jumps, and interrupted anywhere, ends with the same numbers."""
    for seed in trial.numbers(quick=100, whole=2000):
        with trial.attempt(f"seed {seed}"):
            draw, stem = random.Random(seed), tmp_path / f"{seed}"
            texts = draw.randrange(1, 60)
            lengths = np.array([draw.randrange(0, 9) for _ in range(texts)])
            for dies_at in (draw.randrange(texts), draw.randrange(texts), -1):
                found = _squares(lengths, SavedBatches(stem, clock=jumping(draw.random())), dies_at)
            assert found is not None
            assert found.tolist() == [[row**2] if lengths[row] else [0] for row in range(texts)]


def _squares(lengths: np.ndarray, saved: SavedBatches, dies_at: int) -> np.ndarray | None:
    found = np.zeros((len(lengths), 1), np.int64)

    def encode(rows: np.ndarray) -> None:
        if dies_at in rows.tolist():
            raise InterruptedError
        found[rows, 0] = rows**2

    try:
        run_batches(lengths, 16, encode, results=BatchResults([found], lambda rows: [rows]), saved=saved)
    except InterruptedError:
        return None
    return found


def test_pieces_of_mining(trial, tmp_path):
    """BlockFiles whose size a jumping clock decides hold every unit once, also after interruptions."""
    for seed in trial.numbers(quick=40, whole=500):
        with trial.attempt(f"seed {seed}"):
            draw = random.Random(seed)
            units, place = np.arange(draw.randrange(1, 3000)), tmp_path / f"{seed}"
            place.mkdir()
            spans = [(0, len(units) // 2), (len(units) // 2, len(units))]
            for most in (draw.randrange(1, 5), 10**9):
                pace = BlockPace(30.0, jumping(seed))
                made = BlockFiles(place, units).fill(spans, lambda rows: rows.tobytes(), pace, lambda n: None)
                paths = list(itertools.islice(made, most))
            held = np.concatenate([np.frombuffer(path.read_bytes(), np.int64) for path in paths])
            assert held.tolist() == units.tolist()


def test_progress_lines(trial):
    """Lines of progress stay lines with numbers, whatever the time of day, and whatever the clock that they read."""
    for seed in trial.numbers(quick=200, whole=5000):
        with trial.attempt(f"seed {seed}"), pytest.MonkeyPatch.context() as patched:
            patched.setattr(progress.time, "monotonic", jumping(seed))
            patched.setattr(progress, "_PLAIN_EVERY", 0.0)
            stream = StringIO()
            with progress.Reporter(stream=stream).task("embedding", 50, "papers") as advance:
                for _ in range(50):
                    advance(1)
            lines = stream.getvalue().splitlines()
            assert all(_LINE.fullmatch(line) for line in lines), lines[:3]


def test_locks(trial, tmp_path):
    """A lock is refused, or waited for as long as was said, while the time of day jumps."""
    for seed in trial.numbers(quick=10, whole=100):
        with trial.attempt(f"seed {seed}"), wall_clock(jumping(seed)):
            begun = time.monotonic()
            with take_lock(tmp_path / f"{seed}.lock"), pytest.raises(LockedError):
                take_lock(tmp_path / f"{seed}.lock", wait=0.1)
            assert time.monotonic() - begun >= 0.1
            with take_lock(tmp_path / f"{seed}.lock"):
                pass


def test_artifacts(trial, tmp_path):
    """Times stand outside hashes: artifacts made at any time of day are the same."""
    hashes = set()
    for seed in trial.numbers(quick=10, whole=200):
        with trial.attempt(f"seed {seed}"), wall_clock(jumping(seed)):
            with new_artifact(tmp_path / f"{seed}", "vectors", 1, {"made of": "nothing"}) as artifact:
                (artifact.folder / "data.txt").write_text("data")
                manifest = artifact.finish()
            hashes.add(hash_json([manifest.hash, manifest.recipe]))
            assert len(hashes) == 1
