"""Runs that are done make nothing again; what cannot run is told before anything is made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from citeweave import Corpus
from citeweave.core.errors import UserError
from citeweave.pipeline.recipe import load_recipe
from citeweave.pipeline.run import RunResult, run_recipe
from citeweave.pipeline.run_folder import RunOptions
from citeweave.pipeline.suites import Suites

from .conftest import Place, mined, tiny


def test_the_same_run_again_makes_nothing(place: Place, ran: RunResult) -> None:
    assert set(ran.executed) == {"corpus", "graph", "samples", "model", "report-start/corpus", "report/corpus"}
    before = {path: path.stat().st_mtime_ns for path in ran.folder.rglob("manifest.json")}
    again = run_recipe(tiny("scincl"), place.corpus.folder, ran.folder, replace(place.options, shared=None))
    assert again.executed == () and set(again.skipped) == set(ran.executed)
    assert {path: path.stat().st_mtime_ns for path in ran.folder.rglob("manifest.json")} == before
    assert again.record["metrics"] == ran.record["metrics"]


def test_several_processes_are_refused(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="a run is one process"):
        run_recipe(tiny("specter"), place.corpus.folder, tmp_path / "run", place.options)


def test_bad_options_are_told_first(place: Place, tmp_path: Path) -> None:
    folder, out, mining_only = place.corpus.folder, tmp_path / "run", tmp_path / "mining_only.toml"
    mining_only.write_text('[recipe]\nbase = "specter"\nremove = ["training"]\n')
    with pytest.raises(UserError, match="has no .training. table"):
        run_recipe(load_recipe(str(mining_only)), folder, out, place.options)
    with pytest.raises(UserError, match="--task is 'cote'.*Did you mean 'c"):
        run_recipe(tiny("specter"), folder, out, replace(place.options, tasks=("cote",)))
    with pytest.raises(UserError, match="--suite is 'csfcub'.*Did you mean 'csfcube'"):
        run_recipe(tiny("specter"), folder, out, replace(place.options, suites={"csfcub": tmp_path}))
    with pytest.raises(UserError, match="not a known name"):
        run_recipe(tiny("specter"), folder, tmp_path / "run3", replace(place.options, init="no/such/model/here"))
    assert not (tmp_path / "run3" / "samples").exists()
    with pytest.raises(UserError, match="leaves nothing to evaluate on"):
        RunOptions(held_out="none")
    with pytest.raises(UserError, match="--suite corpus="):
        RunOptions(suites={"corpus": tmp_path})
    with pytest.raises(UserError, match="no such file"):
        run_recipe(tiny("signal_table"), folder, out, replace(place.options, tables={"coviews": tmp_path / "no.tsv"}))
    with pytest.raises(UserError, match="table 'coviews', which is not given"):
        run_recipe(tiny("signal_table"), folder, tmp_path / "run2", place.options)


def test_titles_that_the_suite_asks_with_are_not_learned_from(place: Place, tmp_path: Path) -> None:
    asked = Suites(place.corpus, place.options).queried_titles()
    assert len(asked) == place.options.queries and (place.corpus.rows(asked) >= 0).all()
    own = replace(place.options, shared=None)
    _, run = mined(place, tiny("weave"), tmp_path / "run", own)
    texts = Corpus.open(tmp_path / "run" / "texts")
    told = {json.loads(texts.extras[row])["paper"] for row in range(len(texts)) if texts.ids[row].startswith("title:")}
    assert told and not told & set(asked)
    assert run.stage_metadata("texts")["rejected"]["title: a question of a suite"] == len(asked)
