"""Every shipped recipe that trains runs whole, on a small made-up literature with a tiny start model.

Recipes without [training] are for mining only: tests/mining/test_mine.py runs them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from citeweave.encoders.aspects import open_heads
from citeweave.pipeline.recipe import load_recipe, read_recipe, shipped_recipes
from citeweave.pipeline.run import run_recipe

from .conftest import Place, options_for, tiny

TRAINING = [name for name in shipped_recipes() if load_recipe(name).table("training")]


@pytest.mark.parametrize("name", TRAINING)
def test_every_recipe_runs(name: str, place: Place, bert: Path, long_bert: Path, tmp_path: Path) -> None:
    recipe = tiny(name)
    read = read_recipe(recipe)
    assert read.training is not None
    if read.training.reads_sentences:
        bert, recipe = long_bert, tiny(name, f"encoder.init={long_bert}", "encoder.max_tokens=200")
    elif read.encoder.init.startswith("recipe:"):
        recipe = tiny(name, f"encoder.init={bert}")  # chains run in tests of their own
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
