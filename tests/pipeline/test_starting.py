"""Start models: other recipes run first, circles are refused, a model's own pooling holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from citeweave import Samples
from citeweave.core.errors import UserError
from citeweave.encoders.encoder import load_encoder
from citeweave.pipeline.recipe import as_toml, load_recipe
from citeweave.pipeline.run import RunResult, run_recipe
from citeweave.pipeline.training_stages import with_start_model

from .conftest import Place, tiny


def test_a_chain_runs_its_first_recipe(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chained recipe is shipped with its published sizes, so both links are files here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first.toml").write_text(as_toml(tiny("specter").tables))
    result = run_recipe(
        tiny("specter_cocite", "encoder.init=recipe:first.toml"), place.corpus.folder, tmp_path / "run", place.options
    )
    folder = Path(result.record["stages"]["init-first"]["folder"])
    assert (folder / "model" / "manifest.json").is_file()
    manifest = json.loads((result.models[0] / "manifest.json").read_text())
    assert manifest["facts"]["init"] == str(folder / "model")
    assert (
        result.start["corpus"].metrics["cite.map"]
        == json.loads((folder / "run.json").read_text())["metrics"]["trained"]["corpus"][0]["cite.map"]
    )


def test_an_aligner_can_be_another_recipe(
    place: Place, long_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first.toml").write_text(as_toml(tiny("aspire_context").tables))
    recipe = tiny(
        "aspire_ts", f"encoder.init={long_bert}", "alignment.encoder=recipe:first.toml", "encoder.max_tokens=200"
    )
    options = replace(place.options, init=str(long_bert))
    result = run_recipe(recipe, place.corpus.folder, tmp_path / "run", options)
    stages = result.record["stages"]
    aligner = load_encoder(Path(stages["aligner-first"]["folder"]) / "model", device="cpu")
    found = Samples.open(stages["aligned"]["folder"]).manifest.facts["alignment"]
    assert (found["by"], found["revision"]) == ("contexts", aligner.revision) and found["pairs"]["kept"] > 10
    with pytest.raises(UserError, match="--aligner is .*, but recipe specter aligns no sentences"):
        run_recipe(tiny("specter"), place.corpus.folder, tmp_path / "no", replace(options, aligner="minilm"))


def test_a_circle_of_start_models_is_refused(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, other in (("a", "b"), ("b", "a")):
        text = f'[recipe]\nbase = "specter"\n[encoder]\ninit = "recipe:./{other}.toml"\n'
        (tmp_path / f"{name}.toml").write_text(text)
    with pytest.raises(UserError, match="leads in a circle: ./a.toml -> ./b.toml -> ./a.toml"):
        run_recipe(load_recipe("./a.toml"), place.corpus.folder, tmp_path / "run", place.options)


def test_a_start_model_that_says_how_it_pools_keeps_it(place: Place, ran: RunResult, bert: Path) -> None:
    trained = str(ran.models[0])  # a sentence-transformers folder
    assert "pooling" not in with_start_model(load_recipe("loss_study_angle_mean"), trained).table("encoder")
    assert with_start_model(load_recipe("loss_study_angle_mean"), str(bert)).table("encoder")["pooling"] == "mean"
    told = load_recipe("specter", ["encoder.pooling=mean"])
    assert with_start_model(told, trained).table("encoder")["pooling"] == "mean"
    assert with_start_model(load_recipe("specter_cocite"), trained).table("encoder")["init"] == "recipe:specter"
    assert with_start_model(load_recipe("specter"), "a/b", download=False).table("encoder")["init"] == "a/b"
