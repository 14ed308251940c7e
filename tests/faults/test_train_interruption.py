"""train, killed in the middle: the next run goes on from the last checkpoint and ends with the same weights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from citeweave.artefacts.publishing import partial_folder
from citeweave.cli import main

ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}
"""Every run in a process of its own with one thread: what other tests left behind in this one would round differently."""


def command(words: list[str]) -> list[str]:
    return [sys.executable, "-m", "citeweave", *words]


def run(words: list[str]) -> None:
    try:
        main(words)
    except SystemExit as end:
        assert not end.code


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    run(f"synthesize -o {folder}/corpus --papers 120 --workers 1 --quiet".split())
    run(f"mine {folder}/corpus --recipe specter -o {folder}/samples --quiet".split())
    return folder


def arguments(made: Path, bert: Path, output: Path) -> list[str]:
    more = "training.steps=60 training.batch=4 training.checkpoint_every=5 training.validation=0.1"
    words = f"train {made}/corpus --samples {made}/samples --init {bert} -o {output} --device cpu --quiet".split()
    return words + [word for setting in more.split() for word in ("--set", setting)]


def test_a_killed_training_ends_with_the_same_weights(made: Path, bert: Path, tmp_path: Path) -> None:
    subprocess.run(command(arguments(made, bert, tmp_path / "whole")), env=ALONE, check=True)
    words = arguments(made, bert, tmp_path / "killed")
    process = subprocess.Popen(command(words), start_new_session=True, env=ALONE)
    partial = partial_folder(tmp_path / "killed")
    while process.poll() is None and not list(partial.glob(".work/*/training/checkpoints/step-000000[1-9]*")):
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it ended before it could be killed"
    assert not (tmp_path / "killed").exists()
    subprocess.run(command(words), env=ALONE, check=True)
    for name in ("model.safetensors", "training/log.jsonl"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
