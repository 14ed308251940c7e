"""Whole runs: plans, what is done already, folders that moved, every shipped recipe, sweeps."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from citeweave.core.artifact import seal_payload
from citeweave.core.errors import UserError
from citeweave.encoders.aspects import open_heads
from citeweave.pipeline.cost import plan_run
from citeweave.pipeline.recipe import load_recipe, read_recipe, shipped_recipes
from citeweave.pipeline.rule_counts import count_picks, count_triplets
from citeweave.pipeline.run import COMPARISON, SweptKey, parse_swept_key, run_recipe, sweep_recipe
from citeweave.pipeline.run_folder import RunOptions, check_identity

from ..conftest import Told, refused
from .conftest import TINY, options_for, tiny

TRAINING = [name for name in shipped_recipes() if load_recipe(name).table("training")]
"""Recipes without [training] are for mining only: tests/mining/test_mine.py runs them."""


@pytest.fixture
def own(place):
    """Options of a run that shares no stage with others."""
    return replace(place.options, shared=None)


@pytest.mark.parametrize("name", TRAINING)
def test_every_recipe_runs(name, place, bert, long_bert, tmp_path):
    recipe = tiny(name)
    read = read_recipe(recipe)
    if read.training.reads_sentences:
        bert, recipe = long_bert, tiny(name, f"encoder.init={long_bert}", "encoder.max_tokens=200")
    elif read.encoder.init.startswith("recipe:"):
        recipe = tiny(name, f"encoder.init={bert}")  # chains run in tests of their own
    elif "similarity" in read.training.losses:
        recipe = tiny(name, f"training.losses.similarity.teacher={long_bert}")
    options = replace(options_for(place, recipe), init=str(bert))
    result = run_recipe(recipe, place.corpus.folder, tmp_path / "run", options)
    assert [path.name for path in result.models] == ["model"]
    assert set(result.reports) == set(result.start) == {"corpus"}
    assert "cite.map" in result.reports["corpus"][0].metrics
    assert load_recipe(str(tmp_path / "run" / "recipe.toml")).tables == result.recipe.tables
    assert "| start |" in (tmp_path / "run" / "comparison.md").read_text()
    before, after = (load_file(folder / "model.safetensors") for folder in (bert, result.models[0]))
    moved = any((after[key] != before[key]).any() for key in after if key in before)
    if read.training.parts == "heads":
        heads = open_heads(result.models[0])  # they begin at the identity
        assert not moved, "the encoder stays as it is"
        moved = all((heads.layers[name][0][0] != np.eye(heads.inputs)).any() for name in heads.names)
    kept = json.loads((result.models[0] / "manifest.json").read_text())["facts"]["kept step"]
    assert moved == (kept > 0), "it has learned nothing"


def test_an_executor_mines_and_embeds_and_the_run_is_the_same(place, own, tmp_path):
    """Its workers hear everything as text; the driver trains."""
    results, executor = [], Told()
    for name, given in (("here", None), ("there", executor)):
        options = replace(own, cache=tmp_path / f"{name}-cache")
        results.append(run_recipe(tiny("scincl"), place.corpus.folder, tmp_path / name, options, executor=given))
    assert {work.label.partition(":")[0] for work in executor.works} == {"mining", "embedding"}
    assert [work.label for work in executor.works].count("embedding") == 2, "the start model and the trained one"
    here, there = results
    assert here.samples.hash == there.samples.hash
    assert here.record["metrics"] == there.record["metrics"]
    assert not list(tmp_path.rglob("texts.json"))


def test_a_model_of_heads_shares_the_vectors_of_its_start_model(place, own, tmp_path):
    executor = Told()
    run_recipe(tiny("intent_heads"), place.corpus.folder, tmp_path / "run", own, executor=executor)
    assert [work.label for work in executor.works].count("embedding") == 1, "the encoder is the same"


def test_the_page_and_the_card_of_a_run_name_the_bands_that_were_used(ran):
    bands = ran.record["bands"]
    near, far = bands["bands"]["positives"], bands["bands"]["hard"]
    sentence = f"Rank bands fitted to this corpus of {bands['pool']} papers: "
    sentence += f"positives at rank {near} and not 25, hard at rank {far} and not 4000."
    assert (ran.folder / COMPARISON).read_text().endswith(f"\n\n{sentence}\n")
    assert sentence.partition(": ")[2] in (ran.models[0] / "README.md").read_text()
    recipe = load_recipe(str(ran.folder / "recipe.toml"))
    assert recipe.table("mining")["negatives"]["hard"]["band"] == 4000, "as it was asked for"


def test_a_plan_makes_nothing(place, ran, own, tmp_path):
    plan = plan_run(tiny("specter"), place.corpus.folder, tmp_path / "run", place.options)
    assert not (tmp_path / "run").exists()
    names = [stage.name for stage in plan.stages]
    assert names == ["corpus", "graph", "samples", "model", "report-start/corpus", "report/corpus"]
    assert plan.seconds > 0 and plan.memory > 0 and "2 steps of 4 triplets" in str(plan)
    assert all(stage.is_there for stage in plan_run(tiny("scincl"), place.corpus.folder, ran.folder, own).stages)
    chained = plan_run(load_recipe("specter_cocite"), place.corpus.folder, tmp_path / "run", place.options)
    assert chained.stages[0].name == "init-specter"
    rules = read_recipe(load_recipe("specter")).rules
    assert (count_picks(rules), count_triplets(rules)) == (10, 5)


def test_the_same_run_again_makes_nothing_and_a_moved_one_what_is_missing(place, ran, own, tmp_path):
    def written():
        return {path: path.stat().st_mtime_ns for path in ran.folder.rglob("manifest.json")}

    assert set(ran.executed) == {"corpus", "graph", "samples", "model", "report-start/corpus", "report/corpus"}
    before = written()
    again = run_recipe(tiny("scincl"), place.corpus.folder, ran.folder, own)
    assert again.executed == () and set(again.skipped) == set(ran.executed) and written() == before
    assert again.record["metrics"] == ran.record["metrics"]
    shutil.copytree(ran.folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "report")
    result = run_recipe(tiny("scincl"), place.corpus.folder, tmp_path / "run", own)
    assert result.executed == ("report/corpus",)
    result = run_recipe(tiny("scincl"), place.corpus.folder, tmp_path / "run", replace(own, seeds=2))
    assert result.executed == ("model-1", "report-1/corpus") and len(result.reports["corpus"]) == 2
    name = result.comparisons["corpus"].metrics[0]
    low, high = sorted(report.metrics[name] for report in result.reports["corpus"])
    lines = (tmp_path / "run" / COMPARISON).read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("| 2 seeds |"))
    found = [line.split("|")[1:3] for line in lines[at + 2 : at + 5]]
    assert [one[0].strip() for one in found] == ["mean", "lowest", "highest"]
    assert [float(one[1]) for one in found] == pytest.approx([(low + high) / 2, low, high], abs=0.006)


def test_another_run_in_the_folder_is_refused(place, ran, own, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{")
    for folder, message in [
        (ran.folder, "holds another run .recipe.training.learning_rate is 2e-05 there and 0.001"),
        (tmp_path, "exists and is not a run of citeweave"),
        (tmp_path / "run", "is damaged"),
    ]:
        with pytest.raises(UserError, match=message):
            run_recipe(tiny("scincl", "training.learning_rate=1e-3"), place.corpus.folder, folder, own)


def test_a_run_that_made_no_model_gives_its_folder_free(tmp_path):
    def write(stage):
        value = seal_payload({"version": 1, "identity": {"init": "a"}, "stages": {stage: {}}})
        (tmp_path / "run.json").write_text(json.dumps(value))

    write("graph")
    check_identity(tmp_path, {"init": "b"}, overwrite=False)
    write("model")
    refused("holds another run", check_identity, tmp_path, {"init": "b"}, overwrite=False)


def test_bad_options_are_refused_before_anything_is_made(place, tmp_path, monkeypatch):
    mining_only = tmp_path / "mining_only.toml"
    mining_only.write_text('[recipe]\nbase = "specter"\nremove = ["training"]\n')
    table = {"coviews": tmp_path / "no.tsv"}
    for name, changes, message in [
        (str(mining_only), {}, "has no .training. table"),
        ("specter", {"tasks": ("cote",)}, "--task is 'cote'.*Did you mean 'c"),
        ("specter", {"suites": {"csfcub": tmp_path}}, "--suite is 'csfcub'.*Did you mean 'csfcube'"),
        ("specter", {"init": "no/such/model/here"}, "not a known name"),
        ("signal_table", {"tables": table}, "no such file"),
        ("signal_table", {}, "needs the table 'coviews'"),
    ]:
        recipe = load_recipe(name) if "/" in name else tiny(name)
        with pytest.raises(UserError, match=message):
            run_recipe(recipe, place.corpus.folder, tmp_path / message[:9], replace(place.options, **changes))
        assert not (tmp_path / message[:9] / "samples").exists()
    refused("leaves nothing to evaluate on", RunOptions, held_out="none")
    refused("--suite corpus=", RunOptions, suites={"corpus": tmp_path})
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="a run is one process"):
        run_recipe(tiny("specter"), place.corpus.folder, tmp_path / "run", place.options)


# --- sweeps ------------------------------------------------------------------------------------------


def test_a_sweep_shares_stages_and_draws(place, own, tmp_path):
    pytest.importorskip("matplotlib", reason="pip install 'citeweave[plots]'")
    over = parse_swept_key("mining.positives.band=6,20")
    arguments = ("scincl", over, place.corpus.folder, tmp_path / "sweep", own)
    result = sweep_recipe(*arguments, overrides=TINY)
    assert [run.record["bands"]["bands"]["positives"] for run in result.runs] == [6, 20]
    assert [run.folder.name for run in result.runs] == ["band-6", "band-20"]
    assert len({run.record["stages"]["graph"]["folder"] for run in result.runs}) == 1
    assert "graph" in result.runs[1].skipped and "samples" in result.runs[1].executed
    assert result.values["corpus.cite.map"].shape == (2, 3)
    found = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert found["values"] == ["6", "20"] and len(found["metrics"]["corpus.cite.map"]) == 2
    assert {path.suffix for path in result.figures if path.is_file()} == {".png", ".svg"}
    assert all(path.is_file() for path in result.figures)
    assert all(not run.executed for run in sweep_recipe(*arguments, overrides=TINY).runs)


def test_what_is_swept_must_be_clear():
    for text in ("a.b", "ab=1,2", "a.b=1,,2", "a.b=1,1", "a.b="):
        refused("--over is", parse_swept_key, text)
    assert SweptKey("a.b", ("1%", "5%")).numbers == [1.0, 5.0]
    assert SweptKey("a.b", ("cls", "mean")).numbers is None
