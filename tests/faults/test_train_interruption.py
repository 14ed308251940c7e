"""train, killed in the middle: the next run goes on from the last checkpoint and ends with the same weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from citeweave.artefacts.publishing import work_folder
from citeweave.cli import main

from .killing import killed_before

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
    assert killed_before("*/training/checkpoints/step-00000015", 1, *words, env=ALONE), "the run was not killed"
    assert list(work_folder(tmp_path / "killed").glob("work/*/training/checkpoints/step-00000010"))
    assert not (tmp_path / "killed").exists()
    subprocess.run(command(words), env=ALONE, check=True)
    for name in ("model.safetensors", "training/log.jsonl"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
