"""citeweave train and bundle through the real command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from citeweave.cli import main

SMALL = "--set training.steps=2 --set training.batch=4 --set training.validation=0.2 --device cpu"


def run(text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = 0
    try:
        main(text.split())
    except SystemExit as end:
        code = int(end.code or 0)
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    for command in (
        f"synthesize -o {folder}/corpus --papers 120 --workers 1 --quiet",
        f"graph {folder}/corpus -o {folder}/graph --quiet",
        f"mine {folder}/corpus --recipe specter --graph {folder}/graph -o {folder}/samples --quiet",
    ):
        with pytest.raises(SystemExit) as end:
            main(command.split())
        assert not end.value.code
    return folder


def test_training_tells_before_and_after(
    made: Path, bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = f"train {made}/corpus --samples {made}/samples --recipe specter --init {bert} {SMALL}"
    code, out, _ = run(f"{given} -o {tmp_path}/model", capsys)
    assert code == 0
    assert "accuracy" in out and "->" in out
    code, out, _ = run(f"{given} --seeds 2 -o {tmp_path}/models --json", capsys)
    told = json.loads(out)
    assert [entry["seed"] for entry in told["runs"]] == [0, 1]
    assert (tmp_path / "models" / "seed-1" / "modules.json").is_file()


def test_a_bundle_travels(made: Path, bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = SMALL.removesuffix(" --device cpu")
    given = f"bundle {made}/corpus --samples {made}/samples --recipe specter --init {bert} {small}"
    code, out, _ = run(f"{given} --held-out share:0.2 -o {tmp_path}/bundle --json", capsys)
    assert code == 0 and json.loads(out)["bytes"] > 0
    code, out, _ = run(f"train --bundle {tmp_path}/bundle --device cpu -o {tmp_path}/model --json", capsys)
    assert code == 0
    assert "cite.map" in json.loads(out)["runs"][0]["after"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("", "train needs a corpus and --samples"),
        ("{made}/corpus", "train needs a corpus and --samples"),
        ("--bundle {made}/corpus --recipe specter", "--bundle holds corpus, samples and start model"),
        ("{made}/corpus --samples {made}/samples --recipe spectre", "Did you mean 'specter'"),
        ("{made}/corpus --samples {made}/samples --set training.bach=4", "Did you mean 'batch'"),
        ("{made}/corpus --samples {made}/samples --set trainin.batch=4", "Did you mean 'training'"),
        ("{made}/corpus --samples {made}/graph", "holds graph"),
        ("{made}/corpus --samples {made}/samples --init no/such/model/here", "is not a folder"),
        ("{made}/corpus --samples {made}/samples --set training.losses.in_batch.weight=1", "give --graph"),
        ("{made}/corpus --samples {made}/samples --set training.losses.student_teacher.weight=1", "--teacher"),
    ],
)
def test_mistakes_are_told_in_one_line(
    made: Path, bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, message: str
) -> None:
    init = "" if "--init" in more or "--bundle" in more else f"--init {bert}"
    code, out, err = run(f"train {more.format(made=made)} {init} -o {tmp_path}/model --device cpu --quiet", capsys)
    assert code == 2
    assert not out
    assert message in err and err.count("\n") == 1
    assert not (tmp_path / "model").exists()


def test_a_start_model_replaces_the_recipe_that_would_run_first(
    made: Path, bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = f"train {made}/corpus --samples {made}/samples --recipe specter_cocite {SMALL} -o {tmp_path}/m --json"
    code, _, err = run(given, capsys)
    assert code == 2 and "recipe:specter" in err and "--init" in err
    code, out, err = run(f"{given} --init {bert}", capsys)
    assert code == 0, err
    assert json.loads(out)["runs"]
