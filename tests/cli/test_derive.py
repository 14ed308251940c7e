"""derive as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from citeweave import Corpus, synthesize
from citeweave.corpus.synthetic.literature import SyntheticOptions

from .conftest import run


def test_derive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    synthesize(tmp_path / "corpus", SyntheticOptions(papers=300))
    code, out, err = run(capsys, "derive", tmp_path / "corpus", "--texts", "contexts", "-o", tmp_path / "contexts")
    assert code == 0, err
    assert "pairs" in out and "left out: fewer than 2 papers cited" in out
    words = ["derive", tmp_path / "corpus", "--texts", "cloze", "-o", tmp_path / "cloze", "--set", "per_paper=1"]
    code, out, _ = run(capsys, *words, "--json")
    found = json.loads(out)
    assert code == 0 and found["sentences"] == found["papers"] == len(Corpus.open(tmp_path / "cloze")) // 2
    code, out, err = run(capsys, *words)  # once more: it is there
    assert code == 0 and "merging" not in err and "sentences" in out
    code, _, err = run(capsys, "mine", tmp_path / "corpus", "--recipe", "ict", "-o", tmp_path / "samples")
    assert code == 2 and "recipe ict is for cloze, but" in err and "--texts cloze -o texts/" in err
    code, _, err = run(capsys, "mine", tmp_path / "cloze", "--recipe", "ict", "-o", tmp_path / "samples", "--quiet")
    assert code == 0, err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--texts", "context"],
            "--texts is 'context'; it must be one of cloze, contexts, titles. Did you mean 'contexts'?",
        ),
        (["--texts", "cloze", "--set", "perpaper=1"], "Did you mean 'per_paper'?"),
        (["--texts", "cloze", "--set", "per_paper"], "it must be KEY=VALUE, such as per_paper=1"),
        (["--texts", "contexts"], "has no citing sentences; import a source that has them"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    synthesize(tmp_path / "corpus", SyntheticOptions(papers=20, contexts=0.0))
    code, _, err = run(capsys, "derive", tmp_path / "corpus", "-o", tmp_path / "texts", *words)
    assert code == 2 and message in err and err.count("\n") == 1
