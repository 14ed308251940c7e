"""estimate as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from citeweave import synthesize
from citeweave.corpus.synthetic.literature import SyntheticOptions

from .conftest import run


def test_a_literature_by_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["estimate", "scincl", "--papers", "52e6", "--citations", "463M", "--texts", "680_967", "--machine", "h200"]
    code, out, err = run(capsys, *words)
    assert code == 0, err
    assert out.startswith("scincl of 52,000,000 papers and 463,000,000 citations, on h200: 16 cores, 128 GB, 1 x h200")
    assert "680,967 papers" in out and "training (GPU)" in out and "  fastrp.gather.far: " in out
    code, out, _ = run(capsys, *words, "--quiet")
    assert code == 0 and "fastrp.gather" not in out
    code, out, _ = run(capsys, *words, "--json", "--edges", "--cores", "2", "--memory", "4GB", "--gpus", "0")
    found = json.loads(out)
    assert code == 0 and found["machine"]["cores"] == 2 and found["machine"]["gpus"] == 0
    assert found["total"]["seconds"] == pytest.approx(sum(stage["seconds"] for stage in found["stages"]))
    assert found["stages"][0]["constants"] == ["import.edge", "import.disk.edge"] and found["warnings"]


def test_a_corpus_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    synthesize(tmp_path / "corpus", SyntheticOptions(papers=100))
    code, out, err = run(capsys, "estimate", "tiny", "--corpus", tmp_path / "corpus", "--json")
    assert code == 0, err
    assert json.loads(out)["stages"][0]["size"].endswith("100 papers, 99 with text")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the size of the literature is unknown"),
        (["--papers", "-1"], "--papers is '-1'"),
        (["--papers", "2.5"], "--papers is '2.5'"),
        (["--papers", "9", "--machine", "latop"], "Did you mean 'laptop'"),
        (["--papers", "9", "--cores", "0"], "--cores is '0'"),
        (["--papers", "9", "--memory", "much"], "--memory is 'much'"),
        (["--papers", "9", "--gpu", "h900"], "--gpu is 'h900'"),
        (["--papers", "9", "--citations", "1e6"], "have at most 72"),
        (["--papers", "9", "--texts", "10"], "--texts is 10"),
        (["--papers", "9", "--tokens", "0"], "--tokens is 0"),
        (["--papers", "9", "--init", "nothing"], "--init is 'nothing'"),
        (["--papers", "9", "--corpus", "x"], "a corpus is counted"),
    ],
)
def test_bad_input(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "estimate", "scincl", *words)
    assert code == 2 and message in err and err.count("\n") == 1
