"""Sweeps: one run for each value, stages shared, curves drawn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from citeweave.core.errors import UserError
from citeweave.pipeline.run import SweptKey, parse_swept_key, sweep_recipe

from .conftest import TINY, Place


def test_a_sweep_shares_stages_and_draws(place: Place, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pip install 'citeweave[plots]'")
    over = parse_swept_key("mining.positives.band=6,20")
    small = [entry for entry in TINY if not entry.startswith("mining.positives")]
    arguments = ("scincl", over, place.corpus.folder, tmp_path / "sweep", replace(place.options, shared=None))
    result = sweep_recipe(*arguments, overrides=small)
    assert [run.record["bands"]["bands"]["positives"] for run in result.runs] == [6, 20]
    graphs = {run.record["stages"]["graph"]["folder"] for run in result.runs}
    assert [run.folder.name for run in result.runs] == ["band-6", "band-20"]
    assert len(graphs) == 1 and "graph" in result.runs[1].skipped and "samples" in result.runs[1].executed
    assert result.values["corpus.cite.map"].shape == (2, 3)
    found = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert found["values"] == ["6", "20"] and len(found["metrics"]["corpus.cite.map"]) == 2
    assert {path.suffix for path in result.figures} == {".png", ".svg"} and all(
        path.is_file() for path in result.figures
    )
    again = sweep_recipe(*arguments, overrides=small)
    assert all(not run.executed for run in again.runs)


@pytest.mark.parametrize("text", ["a.b", "ab=1,2", "a.b=1,,2", "a.b=1,1", "a.b="])
def test_what_is_swept_must_be_clear(text: str) -> None:
    with pytest.raises(UserError, match="--over is"):
        parse_swept_key(text)


def test_values_of_a_sweep() -> None:
    assert SweptKey("a.b", ("1%", "5%")).numbers == [1.0, 5.0]
    assert SweptKey("a.b", ("cls", "mean")).numbers is None
