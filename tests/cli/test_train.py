"""train and bundle as they are typed."""

import pytest

from .conftest import mistakes, prepare

SMALL = "--set training.steps=2 --set training.batch=4 --set training.validation=0.2"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    prepare(
        f"synthesize -o {folder}/corpus --papers 120 --workers 1",
        f"graph {folder}/corpus -o {folder}/graph",
        f"mine {folder}/corpus --recipe specter --graph {folder}/graph -o {folder}/samples",
    )
    return folder


def test_training_reports_before_and_after(made, bert, tmp_path, cli):
    command = f"train {made}/corpus --samples {made}/samples --recipe specter --init {bert} {SMALL} --device cpu"
    out = cli.text(f"{command} -o {tmp_path}/model")
    assert "accuracy" in out and "->" in out
    found = cli.json(f"{command} --seeds 2 -o {tmp_path}/models")
    assert [entry["seed"] for entry in found["runs"]] == [0, 1]
    assert (tmp_path / "models" / "seed-1" / "modules.json").is_file()


def test_a_bundle_travels(made, bert, tmp_path, cli):
    given = f"{made}/corpus --samples {made}/samples --recipe specter --init {bert} {SMALL} --held-out share:0.2"
    assert cli.json(f"bundle {given} -o {tmp_path}/bundle")["bytes"] > 0
    found = cli.json(f"train --bundle {tmp_path}/bundle --device cpu -o {tmp_path}/model")
    assert "cite.map" in found["runs"][0]["after"]


@mistakes(
    ("", "train needs a corpus and --samples"),
    ("@corpus", "train needs a corpus and --samples"),
    ("--bundle @corpus --recipe specter", "--bundle holds corpus, samples and start model"),
    ("@corpus --samples @samples --recipe spectre", "Did you mean 'specter'"),
    ("@corpus --samples @samples --set trainin.batch=4", "Did you mean 'training'"),
    ("@corpus --samples @graph", "holds graph"),
    ("@corpus --samples @samples --init no/such/model/here", "is not a folder"),
    ("@corpus --samples @samples --set training.losses.in_batch.weight=1", "give --graph"),
)
def test_mistakes_are_one_line(made, bert, tmp_path, cli, words, message):
    init = "" if "--init" in words or "--bundle" in words else f"--init {bert}"
    cli.fails(message, "train", words.replace("@", f"{made}/"), f"{init} -o {tmp_path}/model --device cpu --quiet")
    assert not (tmp_path / "model").exists()


def test_a_start_model_replaces_the_recipe_that_would_run_first(made, bert, tmp_path, cli):
    given = f"--samples {made}/samples --recipe specter_cocite {SMALL} --device cpu -o {tmp_path}/m --json"
    code, _, err = cli(f"train {made}/corpus {given}")
    assert code == 2 and "recipe:specter" in err and "--init" in err
    assert cli.json(f"train {made}/corpus {given} --init {bert}")["runs"]
