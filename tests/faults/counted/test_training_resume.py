"""Training that is stopped at a random step and resumed: the same weights to the bit, the same log, no step lost or doubled.

In one process and in two ranks under torchrun; see `resuming.py` for the moments at which processes die.
"""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ...training.conftest import Literature, aspects, literature, paired
from .counting import Trial
from .resuming import IN_CHECKPOINT, MOMENTS, cuts_of
from .stages import content, differences

__all__ = ["aspects", "literature", "paired"]

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
ENVIRONMENT["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
GROUPS = {"unit": "groups"}
LEARNED: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("samples", {"losses": {"triplet": {}}, "patience": 3, "check_every": 2, "start_share": 0.25}, {}),
    ("aspects", {"losses": {"aspect_in_batch": {}}, **GROUPS, "head_rate": 5.0}, {"heads": "linear"}),
    ("samples", {"losses": {"in_batch": {}}, "clip": 0.05, "optimizer": "adam"}, {}),
    ("pairs", {"losses": {"sentence_triplet": {}}, **GROUPS}, {}),
    ("samples", {"losses": {"in_batch": {}, "mlm": {}}, "frozen_layers": 1}, {"pooling": "mix"}),
    ("aspects", {"losses": {"aspect_supcon": {}, "triplet": {}}, **GROUPS}, {"heads": "two_layers"}),
    ("samples", {"losses": {"n_pairs": {}}, **GROUPS, "block": 2}, {}),
    ("samples", {"losses": {"gte": {}}, **GROUPS, "parts": "lora", "clip": 1.0}, {}),
    ("aspects", {"losses": {"aspect_supcon": {}}, **GROUPS, "parts": "heads"}, {"heads": "two_layers"}),
    ("pairs", {"losses": {"sentence_in_batch": {}}, **GROUPS}, {}),
    ("samples", {"losses": {"cosent": {}, "info_nce": {}}, "parts": "bias", "block": 3}, {"pooling": "mean"}),
)
"""What is learned: the samples, what training is told, what the encoder is told."""

SHARES = {"samples": 0.4, "aspects": 0.05, "pairs": 0.2}
"""Of the samples, so that an epoch has a few steps."""

NOT_IN_SHARDS = ("mlm", "heads", "mix")


@pytest.fixture
def places(literature: Literature, aspects: Literature, paired: Literature) -> dict[str, dict[str, Any]]:
    def place(one: Literature) -> dict[str, Any]:
        folders = {"corpus": one.corpus.folder, "samples": one.samples.folder, "graph": one.graph_folder}
        return {**{name: str(folder) for name, folder in folders.items()}, "encoder": {"init": str(one.model)}}

    return {name: place(one) for name, one in (("samples", literature), ("aspects", aspects), ("pairs", paired))}


def draw_job(places: Mapping[str, dict[str, Any]], number: int, *, ranks: int) -> dict[str, Any]:
    """A small training of some epochs, and one or two cuts, all by the number."""
    rng = np.random.default_rng([3, ranks, number])
    source, training, encoder = LEARNED[number % len(LEARNED)]
    told = json.dumps([training, encoder])
    usual = {
        "batch": int(rng.integers(2, 5)) if training.get("unit") else int(rng.integers(8, 16)),
        **{"epochs": 2.5, "share": SHARES[source], "learning_rate": 1e-3, "dropout": 0.1, "validation": 0.2},
        "schedule": str(rng.choice(["linear", "slanted", "cosine", "constant"])),
        "warmup": float(rng.choice([0.0, 0.2, 3])),
        "micro_tokens": int(rng.choice([300, 900, 100_000])),  # the first two read a batch in parts
        "checkpoint_every": int(rng.integers(1, 5)),
        "weight_decay": float(rng.choice([0.0, 0.01])),
        "seed": int(rng.integers(1000)),
    }
    if ranks > 1 and rng.random() < 0.4 and not any(f'"{word}"' in told for word in NOT_IN_SHARDS):
        usual["parallel"] = "fsdp"
    moments = rng.choice(MOMENTS, int(rng.integers(1, 3)), replace=False).tolist()
    in_first = any(moment in (*IN_CHECKPOINT, "log", "folder") for moment in moments)  # the first rank alone writes
    return {
        **places[source],
        "encoder": {**places[source]["encoder"], **encoder},
        "training": {**usual, **training},
        "cuts": [(float(rng.random()), moment) for moment in moments],
        "rank": 0 if in_first else int(rng.integers(ranks)),
    }


def run_jobs(launcher: list[str], jobs: Mapping[str, dict[str, Any]], folder: Path) -> str:
    """Make all runs of all jobs; what was told on the way."""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    script = Path(__file__).with_name("resuming.py")
    command = [*launcher, str(script), str(folder / "jobs.json"), str(folder / "made")]
    limit = 600 + 120 * len(jobs)  # against one that hangs, not against a slow machine
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=limit, check=False)
    return done.stderr


def check_job(job: dict[str, Any], place: Path, told: str) -> None:
    """Whether a training that was cut and resumed ended as the one that was not: weights, heads, card, log, facts."""
    assert (place / "cut" / "model").is_dir(), told[-2000:]
    whole, cut = (content(place / way / "model") for way in ("whole", "cut"))
    facts = [one.pop("manifest.json")["facts"] for one in (whole, cut)]
    assert not differences(whole, cut) and facts[0] == facts[1]
    _check_steps(job, place)


def _check_steps(job: dict[str, Any], place: Path) -> None:
    """Every process goes on from the last checkpoint before the cut, and makes one step after the other to its end."""
    every = job["training"]["checkpoint_every"]
    cuts = cuts_of(job, place / "whole")
    for path in sorted((place / "cut").glob("steps.*")):
        (whole,) = _runs(place / "whole" / path.name)
        runs = _runs(path)
        assert len(runs) == len(cuts) + 1
        assert all(run == list(range(run[0], run[-1] + 1)) for run in runs if run)
        assert runs[0][0] == 0 and runs[-1][-1] == whole[-1] and set().union(*runs) == set(whole)
        for before, after in itertools.pairwise(runs):
            lost = before[-1] + 1 - after[0]
            assert 0 <= lost <= every + 1 and after[0] % every == 0, (before, after, every)


def _runs(path: Path) -> list[list[int]]:
    """Steps of each process that worked there."""
    return [[int(number) for number in line.split()] for line in path.read_text().split("\n")[1:]]


def check_all(trial: Trial, jobs: dict[str, dict[str, Any]], launcher: list[str], folder: Path) -> None:
    told = run_jobs(launcher, jobs, folder)
    for name, job in jobs.items():
        with trial.attempt(f"seed {name}, {list(job['training']['losses'])}, cut at {job['cuts']}"):
            check_job(job, folder / "made" / name, told)


def test_training_resumed_in_one_process(trial, places, tmp_path):
    jobs = {str(number): draw_job(places, number, ranks=1) for number in trial.numbers(quick=2, whole=20)}
    check_all(trial, jobs, [sys.executable], tmp_path)


def test_training_resumed_in_two_ranks(trial, places, tmp_path):
    jobs = {str(number): draw_job(places, number, ranks=2) for number in trial.numbers(quick=1, whole=20)}
    restarts = sum(len(job["cuts"]) for job in jobs.values())
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    check_all(trial, jobs, [*torchrun, "--monitor-interval", "0.1", "--max-restarts", str(restarts)], tmp_path)
