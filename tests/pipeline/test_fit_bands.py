"""Bands of ranks fit the corpus, unless the user or a large pool says otherwise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.evaluation.options import CorpusSuiteOptions
from citeweave.evaluation.suites.corpus_pools import held_out_rows
from citeweave.mining.inputs import graph_inputs
from citeweave.pipeline.fit_bands import fit_bands
from citeweave.pipeline.recipe import load_recipe, read_recipe

from .conftest import mined, tiny


def test_bands_are_chosen_and_reported(ran):
    bands = ran.record["bands"]
    assert bands["how"] == "auto" and bands["written"] == {"positives": 25, "hard": 4000}
    assert bands["bands"]["positives"] < bands["bands"]["hard"] < bands["pool"] <= 300
    assert "chosen for this corpus" in bands["why"]


@pytest.mark.parametrize("how", ["share", "auto"])
def test_bands_fit_where_the_written_do_not(how, place, tmp_path):
    options = replace(place.options, bands=how)
    _, run = mined(place, tiny("scincl_wide"), tmp_path / "run", options)
    facts = run.stage_metadata("samples")["bands"]
    low, high = facts["bands"]["hard"]
    assert facts["bands"]["positives"] <= low < high < facts["pool"]
    with pytest.raises(UserError, match="band ends at rank 4,000"):
        mined(place, tiny("scincl"), tmp_path / "recipe", replace(options, bands="recipe"))


def test_bands_set_by_the_user_stay_and_variants_keep_their_ratio(place, tmp_path):
    _, run = mined(place, tiny("scincl", "mining.positives.band=20"), tmp_path / "1", place.options)
    assert run.stage_metadata("samples")["bands"]["bands"]["positives"] == 20
    far = {}
    for name in ("cocite", "cocite_25_1000"):
        _, run = mined(place, tiny(name), tmp_path / name, place.options)
        far[name] = run.stage_metadata("samples")["bands"]["bands"]["far"]
    assert far["cocite_25_1000"] == pytest.approx(far["cocite"] / 5, abs=8)
    own = tmp_path / "own.toml"
    own.write_text('[recipe]\nbase = "scincl"\n[mining.negatives.hard]\nband = 100\n[mining]\nanchors = 60\n')
    _, run = mined(place, load_recipe(str(own)), tmp_path / "own", place.options)
    assert run.stage_metadata("samples")["bands"]["bands"]["hard"] == 100


def test_large_pools_keep_the_published_ranks(place, ran):
    recipe = load_recipe("scincl", ["mining.negatives.hard.band=14", "mining.positives.band=6"])
    inputs = graph_inputs(ran.folder / "graph", recipe.table("graph"), with_vectors=True)
    small = replace(recipe, overrides=())  # as if the recipe itself wrote them
    fitted = fit_bands(small, read_recipe(small).rules, place.corpus, inputs, mode="fit")
    assert fitted.summary["how"] == "as the recipe writes them"
    assert fitted.rules == read_recipe(small).rules


def test_bands_and_samples_come_from_the_pool_that_is_given(place, tmp_path):
    pool, held = np.arange(60, 200), held_out_rows(place.corpus, CorpusSuiteOptions(held_out="share:0.1", queries=12))
    (tmp_path / "pool.txt").write_text("\n".join(place.corpus.ids.take(pool)))
    options = replace(place.options, pool=tmp_path / "pool.txt")
    samples, run = mined(place, tiny("scincl", "mining.anchors=0"), tmp_path / "run", options)
    assert run.stage_metadata("samples")["bands"]["pool"] <= len(pool)
    assert np.isin(samples.anchors, pool[~held[pool]]).all() and held[pool].any()
    assert np.isin(samples.positives.rows, pool).all() and np.isin(samples.negatives.rows, pool).all()
    with pytest.raises(UserError, match=r"--pool .*no\.txt: no such file"):
        mined(place, tiny("scincl"), tmp_path / "no", replace(options, pool=tmp_path / "no.txt"))
