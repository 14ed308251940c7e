"""Recipes that align sentences: the aligner is trained first or given, and the stage runs once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from citeweave import Corpus, synthesize
from citeweave.core.errors import UserError
from citeweave.corpus.synthetic.literature import SyntheticOptions
from citeweave.pipeline.plan import plan_run
from citeweave.pipeline.recipe import load_recipe, read_recipe
from citeweave.pipeline.run import prepare_recipe, run_recipe
from citeweave.pipeline.run_folder import RunOptions
from citeweave.pipeline.training_stages import chained_options, chained_recipes

TRAINING = """
[encoder]
max_tokens = 24

[training]
steps = 2
batch = 4
validation = 0.02

[training.losses.triplet]
margin = 1.0
"""
FIRST = '[recipe]\nbase = "specter"\nremove = ["training"]\n[mining]\nanchors = 40\n' + TRAINING
ALIGNED = '[recipe]\nbase = "aspire"\n[alignment]\nby = "contexts"\nencoder = "recipe:first.toml"\n' + TRAINING


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return synthesize(tmp_path_factory.mktemp("aligned") / "corpus", SyntheticOptions(papers=200))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the two recipes, which is the working one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first.toml").write_text(FIRST)
    (tmp_path / "aligned.toml").write_text(ALIGNED)
    return tmp_path


@pytest.fixture
def options(bert: Path) -> RunOptions:
    return RunOptions(init=str(bert), tasks=("cite",), seeds=1, queries=12, device="cpu", resamples=100)


def test_the_aligner_is_trained_first(corpus: Corpus, here: Path, options: RunOptions) -> None:
    recipe = load_recipe("aligned.toml")
    planned = plan_run(recipe, corpus.folder, here / "run", options)
    assert [stage.name for stage in planned.stages][:5] == ["aligner-first", "corpus", "graph", "samples", "aligned"]
    assert all(stage.seconds > 0 for stage in planned.stages if stage.name.startswith("align"))
    result = run_recipe(recipe, corpus.folder, here / "run", options)
    assert result.samples.alignment is not None and result.samples.alignment.aligned.any()
    assert {"aligner-first", "samples", "aligned", "model"} <= set(result.executed)
    facts = result.record["stages"]["aligned"]["facts"]
    assert facts["model"] == "model" and facts["pairs"]["kept"] == len(result.samples)
    again = run_recipe(recipe, corpus.folder, here / "run", options)
    assert again.executed == () and "aligned" in again.skipped
    assert all(stage.is_there for stage in plan_run(recipe, corpus.folder, here / "run", options).stages)


def test_an_aligner_can_be_given(
    corpus: Corpus, here: Path, options: RunOptions, save_bert: Callable[..., Path]
) -> None:
    other = save_bert(here / "other", seed=3)
    given = replace(options, aligner=str(other))
    recipe, read = prepare_recipe(load_recipe("aligned.toml"), given)
    assert read.alignment is not None and read.alignment.encoder == str(other) and not chained_recipes(recipe)
    result = run_recipe(load_recipe("aligned.toml"), corpus.folder, here / "run", given)
    assert not any(stage.startswith("aligner") for stage in result.executed)
    assert result.record["stages"]["aligned"]["facts"]["model"] == "other"
    with pytest.raises(UserError, match=r"holds another run \(recipe.alignment.encoder is "):
        run_recipe(load_recipe("aligned.toml"), corpus.folder, here / "run", options)


def test_an_aligner_is_passed_to_recipes_that_align(here: Path, options: RunOptions) -> None:
    (here / "chain.toml").write_text('[recipe]\nbase = "specter"\n[encoder]\ninit = "recipe:aligned.toml"\n')
    given = replace(options, aligner="minilm")
    recipe, _ = prepare_recipe(load_recipe("chain.toml"), given)
    [inner] = chained_recipes(recipe).values()
    assert chained_options(inner, given).aligner == "minilm"
    assert chained_options(load_recipe("first.toml"), given).aligner == ""
    with pytest.raises(UserError, match="--aligner is 'minilm', but recipe first.toml aligns no sentences"):
        prepare_recipe(load_recipe("first.toml"), given)


def test_a_circle_through_the_aligner_is_refused(here: Path, options: RunOptions) -> None:
    (here / "first.toml").write_text('[recipe]\nbase = "specter"\n[encoder]\ninit = "recipe:aligned.toml"\n')
    with pytest.raises(UserError, match=r"in a circle: aligned.toml -> first.toml -> aligned.toml"):
        prepare_recipe(load_recipe("aligned.toml"), options)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("alignment.encodr=minilm", "Did you mean 'encoder'"),
        ("alignment.by=context", "alignment.by is 'context'.*Did you mean 'contexts'"),
        ("alignment.encoder=3", "alignment.encoder is 3; it must be a text"),
        ("mining.anchors_per=papers", "alignment.by is contexts, and no sample has any"),
    ],
)
def test_the_table_is_checked(entry: str, message: str, here: Path) -> None:
    positives = ["mining.positives.source=cited", "mining.positives.count=1"]
    with pytest.raises(UserError, match=message):
        read_recipe(load_recipe("aligned.toml", [entry, *positives]))


def test_a_model_that_is_not_there_is_told_first(corpus: Corpus, here: Path, options: RunOptions) -> None:
    with pytest.raises(UserError, match="the encoder 'nowhere' is not a folder"):
        run_recipe(load_recipe("aligned.toml"), corpus.folder, here / "run", replace(options, aligner="nowhere"))
    assert not (here / "run" / "samples").exists()
