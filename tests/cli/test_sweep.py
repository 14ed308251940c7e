"""sweep as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from citeweave import synthesize
from citeweave.corpus.synthetic.literature import SyntheticOptions

from .conftest import run


def test_sweep(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="pip install 'citeweave[plots]'")
    synthesize(tmp_path / "corpus", SyntheticOptions(papers=200))
    words = ["tiny", "--corpus", tmp_path / "corpus", "--init", bert, "-o", tmp_path / "sweep", "--task", "cite"]
    words += ["--set", "training.steps=1", "--set", "training.batch=4", "--set", "encoder.max_tokens=24"]
    words += ["--queries", "12", "--device", "cpu", "--cache", tmp_path / "cache"]
    code, out, err = run(capsys, "sweep", *words, "--over", "encoder.pooling=cls,mean")
    assert code == 0, err
    assert (
        out.startswith("| encoder.pooling | corpus.cite.map |") and "| cls |" in out and "| start model, mean |" in out
    )
    assert (tmp_path / "sweep" / "curves" / "corpus.cite.map.png").is_file()
    code, out, _ = run(capsys, "sweep", *words, "--over", "encoder.pooling=cls,mean", "--json")
    assert code == 0 and json.loads(out)["values"] == ["cls", "mean"]
    for over, message in (("training.bacth=1,2", "Did you mean 'batch'"), ("batch=1", "--over is 'batch=1'")):
        code, _, err = run(capsys, "sweep", *words, "--over", over)
        assert code == 2 and message in err
