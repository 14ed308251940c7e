"""Start models and aligners: other recipes run first, circles are refused, a model's own pooling holds."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from citeweave import Samples, Vectors
from citeweave.core.errors import UserError
from citeweave.corpus.text import TextRecipe
from citeweave.encoders.encoder import load_encoder
from citeweave.evaluation.encoder_systems import EncoderSystem
from citeweave.evaluation.evaluate import evaluate
from citeweave.pipeline.cost import plan_run
from citeweave.pipeline.recipe import as_toml, load_recipe, read_recipe
from citeweave.pipeline.run import prepare_recipe, run_recipe
from citeweave.pipeline.suites import Suites
from citeweave.pipeline.training_stages import (
    TaskPapersEncoder,
    chained_options,
    chained_recipes,
    needed_rows,
    with_start_model,
)

from .conftest import tiny

TRAINING = "[encoder]\nmax_tokens = 24\n[training]\nsteps = 2\nbatch = 4\nvalidation = 0.02\n"
TRAINING += "[training.losses.triplet]\nmargin = 1.0\n"
FIRST = '[recipe]\nbase = "specter"\nremove = ["training"]\n[mining]\nanchors = 40\n' + TRAINING
ALIGNED = '[recipe]\nbase = "aspire"\n[alignment]\nby = "contexts"\nencoder = "recipe:first.toml"\n' + TRAINING
STARTS_FROM = '[recipe]\nbase = "specter"\n[encoder]\ninit = "recipe:{}.toml"\n'


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with two recipes, which is the working one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first.toml").write_text(FIRST)
    (tmp_path / "aligned.toml").write_text(ALIGNED)
    return tmp_path


@pytest.fixture
def options(place):
    return replace(place.options, shared=None)


def test_a_chain_runs_its_first_recipe(place, here):
    """A chained recipe is shipped with its published sizes, so both links are files here."""
    (here / "first.toml").write_text(as_toml(tiny("specter").tables))
    recipe = tiny("specter_cocite", "encoder.init=recipe:first.toml")
    result = run_recipe(recipe, place.corpus.folder, here / "run", place.options)
    folder = Path(result.record["stages"]["init-first"]["folder"])
    assert (folder / "model" / "manifest.json").is_file()
    manifest = json.loads((result.models[0] / "manifest.json").read_text())
    assert manifest["facts"]["init"] == str(folder / "model")
    first = json.loads((folder / "run.json").read_text())["metrics"]["trained"]["corpus"][0]
    assert result.start["corpus"].metrics["cite.map"] == first["cite.map"]


def test_a_model_learns_from_the_vectors_of_a_teacher_that_the_run_makes_once(place, bert, here):
    losses = ("training.losses.triplet=", "training.losses.similarity.temperature=0.1")
    taught = tiny("specter", *losses, f"training.losses.similarity.teacher={bert}")
    result = run_recipe(taught, place.corpus.folder, here / "run", replace(place.options, seeds=2))
    vectors = Vectors.open(here / "run" / "teacher")
    assert len(vectors) == len(place.corpus) and vectors.provenance.dtype == "float16"
    assert result.executed.count("teacher") == 1 and len(result.models) == 2
    two = tiny("specter", *losses, f"training.losses.similarity.teacher={bert}, minilm")
    result = run_recipe(two, place.corpus.folder, here / "two", place.options)
    assert {"teacher", "teacher-1"} <= set(result.executed) and Vectors.open(here / "two/teacher-1").matrix.shape[
        1
    ] == 384
    with pytest.raises(UserError, match="training.losses.similarity.teacher is empty; name the model"):
        run_recipe(tiny("specter", *losses), place.corpus.folder, here / "none", place.options)


@pytest.mark.parametrize("first", ["recipe", "chain"])
def test_a_circle_is_refused(first, place, here):
    (here / "first.toml").write_text(STARTS_FROM.format("aligned"))
    if first == "chain":
        (here / "aligned.toml").write_text(STARTS_FROM.format("first"))
    with pytest.raises(UserError, match=r"in a circle: aligned.toml -> first.toml -> aligned.toml"):
        run_recipe(load_recipe("aligned.toml"), place.corpus.folder, here / "run", place.options)


def test_a_start_model_that_says_how_it_pools_keeps_it(ran, bert):
    trained = str(ran.models[0])  # a sentence-transformers folder
    assert "pooling" not in with_start_model(load_recipe("loss_study_angle_mean"), trained).table("encoder")
    assert with_start_model(load_recipe("loss_study_angle_mean"), str(bert)).table("encoder")["pooling"] == "mean"
    overridden = load_recipe("specter", ["encoder.pooling=mean"])
    assert with_start_model(overridden, trained).table("encoder")["pooling"] == "mean"
    assert with_start_model(load_recipe("specter_cocite"), trained).table("encoder")["init"] == "recipe:specter"
    assert with_start_model(load_recipe("specter"), "a/b", download=False).table("encoder")["init"] == "a/b"


# --- aligners ----------------------------------------------------------------------------------------


def test_the_aligner_is_trained_first(place, here, options):
    recipe, folder = load_recipe("aligned.toml"), place.corpus.folder
    planned = plan_run(recipe, folder, here / "run", options)
    assert [stage.name for stage in planned.stages][:5] == ["aligner-first", "corpus", "graph", "samples", "aligned"]
    assert all(stage.seconds > 0 for stage in planned.stages if stage.name.startswith("align"))
    result = run_recipe(recipe, folder, here / "run", options)
    assert result.samples.alignment is not None and result.samples.alignment.aligned.any()
    assert {"aligner-first", "samples", "aligned", "model"} <= set(result.executed)
    facts = result.record["stages"]["aligned"]["facts"]
    assert facts["model"] == "model" and facts["pairs"]["kept"] == len(result.samples)
    again = run_recipe(recipe, folder, here / "run", options)
    assert again.executed == () and "aligned" in again.skipped
    assert all(stage.is_there for stage in plan_run(recipe, folder, here / "run", options).stages)


def test_an_aligner_can_be_given(place, here, options, save_bert):
    other, folder = save_bert(here / "other", seed=3), place.corpus.folder
    given = replace(options, aligner=str(other))
    recipe, read = prepare_recipe(load_recipe("aligned.toml"), given)
    assert read.alignment is not None and read.alignment.encoder == str(other) and not chained_recipes(recipe)
    result = run_recipe(load_recipe("aligned.toml"), folder, here / "run", given)
    assert not any(stage.startswith("aligner") for stage in result.executed)
    assert result.record["stages"]["aligned"]["facts"]["model"] == "other"
    with pytest.raises(UserError, match=r"holds another run \(recipe.alignment.encoder is "):
        run_recipe(load_recipe("aligned.toml"), folder, here / "run", options)
    with pytest.raises(UserError, match="the encoder 'nowhere' is not a folder"):
        run_recipe(load_recipe("aligned.toml"), folder, here / "no", replace(options, aligner="nowhere"))
    assert not (here / "no" / "samples").exists()


def test_an_aligner_can_be_another_recipe(place, long_bert, here):
    (here / "first.toml").write_text(as_toml(tiny("aspire_context").tables))
    changes = (f"encoder.init={long_bert}", "alignment.encoder=recipe:first.toml", "encoder.max_tokens=200")
    options = replace(place.options, init=str(long_bert))
    result = run_recipe(tiny("aspire_ts", *changes), place.corpus.folder, here / "run", options)
    stages = result.record["stages"]
    aligner = load_encoder(Path(stages["aligner-first"]["folder"]) / "model", device="cpu")
    found = Samples.open(stages["aligned"]["folder"]).manifest.facts["alignment"]
    assert (found["by"], found["revision"]) == ("contexts", aligner.revision) and found["pairs"]["kept"] > 10


def test_an_aligner_is_passed_to_recipes_that_align(here, options):
    (here / "chain.toml").write_text(STARTS_FROM.format("aligned"))
    given = replace(options, aligner="minilm")
    recipe, _ = prepare_recipe(load_recipe("chain.toml"), given)
    [inner] = chained_recipes(recipe).values()
    assert chained_options(inner, given).aligner == "minilm"
    assert chained_options(load_recipe("first.toml"), given).aligner == ""
    with pytest.raises(UserError, match="--aligner is 'minilm', but recipe first.toml aligns no sentences"):
        prepare_recipe(load_recipe("first.toml"), given)


WRONG_ALIGNMENTS = [
    ("alignment.encodr=minilm", "Did you mean 'encoder'"),
    ("alignment.by=context", "alignment.by is 'context'.*Did you mean 'contexts'"),
    ("alignment.encoder=3", "alignment.encoder is 3; it must be a text"),
    ("mining.anchors_per=papers", "alignment.by is contexts, and no sample has any"),
]


@pytest.mark.parametrize(("entry", "message"), WRONG_ALIGNMENTS)
def test_the_table_of_the_alignment_is_checked(entry, message, here):
    positives = ["mining.positives.source=cited", "mining.positives.count=1"]
    with pytest.raises(UserError, match=message):
        read_recipe(load_recipe("aligned.toml", [entry, *positives]))


# --- metrics that are watched in training ------------------------------------------------------------


def test_a_ranking_can_be_watched(place, tmp_path):
    recipe = tiny("specter", "training.watch=cite.map", "training.check_every=1")
    result = run_recipe(recipe, place.corpus.folder, tmp_path / "run", place.options)
    assert "cite.map" in result.record["stages"]["model"]["facts"]["after"]
    assert "corpus-watched" in result.record["stages"]


def test_embedding_only_the_papers_of_the_tasks_changes_no_metric(place, bert, tmp_path):
    suite = Suites(place.corpus, place.options).read("corpus")
    encoder = load_encoder(bert, device="cpu")
    chosen = suite.choose(["cite", "field", "title"])
    narrowed = TaskPapersEncoder(encoder, chosen, cache=tmp_path / "cache", text_recipe=TextRecipe())
    tasks = [task.name for task in chosen.tasks]
    few = evaluate(narrowed, suite, tmp_path / "few", tasks=tasks)
    all_ = evaluate(EncoderSystem(encoder), suite, tmp_path / "all", tasks=tasks)
    assert few.metrics == pytest.approx(all_.metrics) and few.value["coverage"] == all_.value["coverage"]
    rows = needed_rows(suite.choose(["cite"]))
    [cite] = suite.choose(["cite"]).tasks
    assert 0 < len(rows[cite.texts.hash]) < len(cite.texts)
