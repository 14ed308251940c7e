"""run and recipes as they are typed; mistakes are one line with exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from citeweave import synthesize
from citeweave.corpus.synthetic.literature import SyntheticOptions

from .conftest import run

SMALL = [
    *("--set", "training.steps=2", "--set", "training.batch=4", "--set", "encoder.max_tokens=24"),
    *("--set", "mining.anchors=40", "--task", "cite", "--queries", "12", "--device", "cpu"),
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "corpus"
    synthesize(folder, SyntheticOptions(papers=200))
    return folder


def test_run_and_run_again(corpus: Path, bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tiny", "--corpus", corpus, "--init", bert, "-o", tmp_path / "run", "--cache", tmp_path / "cache", *SMALL]
    code, out, err = run(capsys, "run", *words, "--dry-run")
    assert code == 0 and "2 steps of 4 triplets" in out and not (tmp_path / "run").exists()
    code, out, err = run(capsys, "run", *words)
    assert code == 0, err
    assert "| start |" in out and "## corpus" in out and "stages that ran: corpus, graph" in err
    code, out, err = run(capsys, "run", *words)
    assert code == 0 and "all stages were already done" in out and "nothing to do" in err
    code, out, _ = run(capsys, "run", *words, "--json")
    found = json.loads(out)
    assert code == 0 and found["made"] == [] and found["models"] == [str(tmp_path / "run" / "model")]
    assert found["metrics"]["start"]["corpus"].keys() == found["metrics"]["trained"]["corpus"][0].keys()
    code, _, err = run(capsys, "run", *words, "--set", "training.batch=5")
    assert code == 2 and "holds another run (recipe.training.batch is 4 there and 5 here)" in err
    code, out, _ = run(capsys, "run", *words, "--dry-run", "--json")
    assert code == 0 and all(stage["is_there"] for stage in json.loads(out)["stages"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["scinkl"], "Did you mean 'scincl'"),
        (["aspire"], "recipe aspire has no [training] table; mine its samples"),
        (["tiny", "--set", "training.bacth=3"], "Did you mean 'batch'"),
        (["tiny", "--bands", "atuo"], "--bands is 'atuo'"),
        (["tiny", "--suite", "csfcube"], "--suite is 'csfcube'; it must be NAME=PATH"),
        (["tiny", "--suite", "csfcube=nowhere"], "no such folder"),
        (["tiny", "--held-out", "none"], "leaves nothing to evaluate on"),
        (["tiny", "--seeds", "-1"], "--seeds is -1"),
        (["tiny", "--init", "no/where/at/all"], "not a known name"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "run", *words, "--corpus", corpus, "-o", tmp_path / "run", "--dry-run")
    assert code == 2 and message in err and err.count("\n") == 1


def test_recipes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "recipes")
    assert code == 0 and "cocite_25_1000" in out and "(mining only)" in out
    code, out, _ = run(capsys, "recipes", "--json")
    found = json.loads(out)
    assert found["specter"]["trains"] and not found["aspire"]["trains"]
    assert "ACL 2020" in found["specter"]["source"]
