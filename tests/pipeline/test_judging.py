"""Rankings are watched in training, and reading only the texts that are asked for changes no figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from citeweave.corpus.text import TextRecipe
from citeweave.encoders.encoder import load_encoder
from citeweave.evaluation.encoder_systems import EncoderSystem
from citeweave.evaluation.evaluate import evaluate
from citeweave.pipeline.run import run_recipe
from citeweave.pipeline.suites import Suites
from citeweave.pipeline.training_stages import TaskPapersEncoder, needed_rows

from .conftest import Place, tiny


def test_a_ranking_can_be_watched(place: Place, tmp_path: Path) -> None:
    recipe = tiny("specter", "training.watch=cite.map", "training.check_every=1")
    result = run_recipe(recipe, place.corpus.folder, tmp_path / "run", place.options)
    assert "cite.map" in result.record["stages"]["model"]["facts"]["after"]
    assert "corpus-watched" in result.record["stages"]


def test_reading_only_what_is_asked_changes_nothing(place: Place, bert: Path, tmp_path: Path) -> None:
    suite = Suites(place.corpus, place.options).read("corpus")
    encoder = load_encoder(bert, device="cpu")
    chosen = suite.choose(["cite", "field", "title"])
    narrowed = TaskPapersEncoder(encoder, chosen, cache=tmp_path / "cache", text_recipe=TextRecipe())
    tasks = [task.name for task in chosen.tasks]
    few = evaluate(narrowed, suite, tmp_path / "few", tasks=tasks)
    all_ = evaluate(EncoderSystem(encoder), suite, tmp_path / "all", tasks=tasks)
    assert few.metrics == pytest.approx(all_.metrics)
    assert few.value["coverage"] == all_.value["coverage"]
    rows = needed_rows(suite.choose(["cite"]))
    [cite] = suite.choose(["cite"]).tasks
    assert 0 < len(rows[cite.texts.hash]) < len(cite.texts)
