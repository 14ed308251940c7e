"""A run's folder: moved ones go on, others are refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from citeweave.core.artifact import seal_payload
from citeweave.core.errors import UserError
from citeweave.pipeline.run import RunResult, run_recipe
from citeweave.pipeline.run_folder import check_identity

from .conftest import Place, tiny


def test_a_moved_run_makes_what_is_missing(place: Place, ran: RunResult, tmp_path: Path) -> None:
    shutil.copytree(ran.folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "report")
    result = run_recipe(tiny("scincl"), place.corpus.folder, tmp_path / "run", replace(place.options, shared=None))
    assert result.executed == ("report/corpus",)
    more = replace(place.options, shared=None, seeds=2)
    result = run_recipe(tiny("scincl"), place.corpus.folder, tmp_path / "run", more)
    assert result.executed == ("model-1", "report-1/corpus")
    assert len(result.reports["corpus"]) == 2


def test_another_run_in_the_folder_is_refused(place: Place, ran: RunResult, tmp_path: Path) -> None:
    other = tiny("scincl", "training.learning_rate=1e-3")
    with pytest.raises(UserError, match="holds another run .recipe.training.learning_rate is 2e-05 there and 0.001"):
        run_recipe(other, place.corpus.folder, ran.folder, replace(place.options, shared=None))
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="exists and is not a run of citeweave"):
        run_recipe(other, place.corpus.folder, tmp_path, place.options)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        run_recipe(other, place.corpus.folder, tmp_path / "run", place.options)


def test_a_run_that_made_no_model_gives_its_folder_free(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(
        json.dumps(seal_payload({"version": 1, "identity": {"init": "a"}, "stages": {"graph": {}}}))
    )
    check_identity(tmp_path, {"init": "b"}, overwrite=False)
    (tmp_path / "run.json").write_text(
        json.dumps(seal_payload({"version": 1, "identity": {"init": "a"}, "stages": {"model": {}}}))
    )
    with pytest.raises(UserError, match="holds another run"):
        check_identity(tmp_path, {"init": "b"}, overwrite=False)
