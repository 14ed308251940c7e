"""Training on CPU: it learns, it resumes to the bit, it says what is wrong."""

import dataclasses
import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from citeweave.core.errors import CiteweaveError, EmptyResultError, UserError
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.publish import work_folder
from citeweave.corpus.ingest import import_papers
from citeweave.corpus.options import SyntheticOptions
from citeweave.corpus.synthetic.synthesize import synthesize
from citeweave.encoders.aspects import load_aspect_encoder, open_heads
from citeweave.encoders.encoder import load_encoder
from citeweave.evaluation.evaluate import evaluate
from citeweave.evaluation.open_system import open_system
from citeweave.evaluation.options import CorpusSuiteOptions, OpeningOptions
from citeweave.evaluation.suites.from_corpus import make_suite
from citeweave.graph.build import make_graph
from citeweave.mining.samples import SampleNames, block_from_lists, new_samples
from citeweave.pipeline.recipe import load_recipe
from citeweave.training import checkpoints
from citeweave.training.data import Batches, count_tokens
from citeweave.training.distributed import ProcessGroup
from citeweave.training.encoder_task import Stepper
from citeweave.training.load_data import DataSources, _load_teachers, load_training_data
from citeweave.training.partial import heads_to_arrays, make_heads
from citeweave.training.train import load_start_model, prepare_run
from citeweave.vectors.own_distance import Reading, read_reading
from citeweave.vectors.vectors import Vectors, new_vectors, unit_rows

from .conftest import GROUPS, HYBRID, KINDS, SENTENCES, WORDS, Literature, log_of, mine, refused, weights_of
from .several import power_cut

TEXTS = ["a paper shows that models learn", "the cell grows", ""]
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def vectors_of(folder: Path) -> np.ndarray:
    return load_encoder(folder, device="cpu").encode(TEXTS)


def test_training_learns_and_writes_an_encoder(literature, tmp_path):
    run = literature.train(tmp_path / "model", steps=100, check_every=100, dropout=0.0)
    assert 0 < run.before["accuracy"] < 1 and 0 < run.after["accuracy"] < 1  # of 24 triplets: which is higher is luck
    assert np.abs(vectors_of(run.folder) - vectors_of(literature.model)).max() > 1e-3
    losses = log_of(run.folder, "loss")
    assert len(losses) == 10 and np.mean(losses[-2:]) < 0.6 * losses[0]  # a line is the mean of ten steps
    lines = [json.loads(line) for line in (run.folder / "training/log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "accuracy" in line] == [0, 100]
    card = (run.folder / "README.md").read_text()
    assert "No leakage audit was made" in card and "accuracy" in card


def test_heads_learn_and_are_saved_beside_an_ordinary_encoder(aspects, tmp_path):
    run = aspects.train(tmp_path / "model", steps=60, check_every=60, share=0.05, learning_rate=3e-4)
    losses = log_of(run.folder, "loss")
    assert losses[-1] < 0.95 * losses[0] and set(run.after) == {"accuracy"}
    heads = open_heads(run.folder)
    assert heads.names == ("background", "method", "result")
    start = heads_to_arrays(make_heads(heads.names, heads.inputs, aspects.plan().encoder, seed=0))
    for name in heads.names:
        assert np.abs(heads.layers[name][0][0] - start.layers[name][0][0]).max() > 1e-3, name
    plain, method = load_encoder(run.folder, device="cpu"), load_aspect_encoder(run.folder, "method", device="cpu")
    np.testing.assert_allclose(method.encode(TEXTS), heads.project(plain.encode(TEXTS), "method"), atol=1e-5)
    assert not method.encode(TEXTS)[2].any() and method.revision != plain.revision
    side_by_side = load_aspect_encoder(run.folder, "all", device="cpu").encode(TEXTS)
    assert side_by_side.shape == (3, 3 * heads.dimension("method"))
    np.testing.assert_allclose(np.linalg.norm(side_by_side[:2], axis=1), np.sqrt(3), rtol=1e-5)


def test_heads_alone_learn_over_an_encoder_that_stays(aspects, tmp_path):
    losses = {"aspect_in_batch": {"negatives_by": "local"}}
    run = aspects.train(tmp_path / "model", parts="heads", losses=losses, steps=60, batch=64, learning_rate=1e-2)
    np.testing.assert_array_equal(vectors_of(run.folder), vectors_of(aspects.model))
    found = log_of(run.folder, "loss")
    assert found[-1] < 0.97 * found[0] and not (run.folder / "delta").exists()
    assert run.manifest.facts["trained weights"] == 3 * (32 * 32 + 32)


def test_heads_alone_learn_what_they_learn_beside_a_frozen_encoder(aspects, tmp_path):
    losses = {"aspect_supcon": {"negatives_by": "local"}}
    (frozen, mine), (full, others) = (
        aspects.first_step(tmp_path / "tokens", aspects.plan(losses=losses, parts=parts)) for parts in ("heads", "all")
    )
    assert frozen == pytest.approx(full, rel=0.02)  # papers may have been read in int8
    assert mine and all(name.startswith("aspects.") for name in mine)
    for name, gradient in mine.items():
        np.testing.assert_allclose(gradient, others[name], atol=0.1 * float(np.abs(others[name]).max()) + 1e-3)


def test_training_resumes_with_the_heads_of_the_start_model(aspects, uninterrupted, tmp_path):
    first = uninterrupted["aspects"].folder
    plan = dataclasses.replace(aspects, model=first).plan()
    start, data = aspects.load(tmp_path / "tokens", plan)
    run = prepare_run(start, data, plan, ProcessGroup(), QUIET)
    assert heads_to_arrays(run.task.stepper.objective.inputs.heads).hash == open_heads(first).hash
    smaller = dataclasses.replace(plan, encoder=dataclasses.replace(plan.encoder, head_size=5))
    with pytest.raises(UserError, match="start from a model without heads"):
        prepare_run(load_start_model(smaller.encoder, "cpu"), data, smaller, ProcessGroup(), QUIET)


def test_an_aspect_without_samples_gets_no_space(aspects, tmp_path):
    changes = ["mining.every_aspect=false", 'mining.aspects=["background", "miscellaneous", "result"]']
    samples = mine("sciaspect_hybrid", changes, aspects.corpus, aspects.graph, tmp_path / "samples")
    run = dataclasses.replace(aspects, samples=samples).train(tmp_path / "model")
    assert open_heads(run.folder).names == ("background", "result")


@pytest.mark.parametrize("name", SENTENCES)
def test_pairs_without_negatives_train(paired, tmp_path, name):
    assert not len(paired.samples.negatives.rows)
    run = paired.train(tmp_path / "model", losses=SENTENCES[name], block=1, dropout=0.0)
    before, after = (load_file(folder / "model.safetensors") for folder in (paired.model, run.folder))
    moved = [key for key in after if key in before and (after[key] - before[key]).abs().max() > 1e-4]
    assert len(moved) > 10, "the loss has no gradient"
    assert 0 < run.before["accuracy"] < 1 and 0 < run.after["accuracy"] < 1
    losses = log_of(run.folder, "loss")
    assert losses and all(0 < loss < 100 for loss in losses)


def test_learning_by_sentences_lowers_the_loss(paired, tmp_path):
    options = {"losses": SENTENCES["single"], "steps": 40, "batch": 12, "checkpoint_every": 0, "dropout": 0.0}
    losses = log_of(paired.train(tmp_path / "model", **options).folder, "loss")
    assert losses[-1] < 0.9 * losses[0]


def test_a_trained_model_carries_the_distance_that_its_loss_trains(paired, uninterrupted, tmp_path):
    assert read_reading(uninterrupted["sentences"].folder) == Reading("transport", "l2")
    assert not read_reading(uninterrupted["triplets"].folder)
    attention = {"losses": SENTENCES["attention"], "parts": "bias", "steps": 1}
    folder = paired.train(tmp_path / "attention", **attention).folder
    assert read_reading(folder).temperature == read_reading(folder / "delta").temperature > 0
    written = {"encoder": {"reading": {"distance": "mean_best", "metric": "cosine"}}, **attention}
    assert read_reading(paired.train(tmp_path / "written", **written).folder) == Reading("mean_best", "cosine")


def test_aspect_words_learn_and_their_delta_has_them(paired, uninterrupted, tmp_path):
    folder = uninterrupted["aspect_words"].folder
    words = load_file(folder / "aspect_words/model.safetensors")
    assert (words["weight"] - torch.eye(32)).abs().max() > 1e-3 and words["bias"].abs().max() > 1e-3
    start = load_encoder(paired.model, pooling="aspect_words", device="cpu")
    assert torch.equal(words["queries"], start.network.model.aspect_words.queries)
    assert load_encoder(folder, device="cpu").settings.pooling == "aspect_words"
    bias = paired.train(tmp_path / "bias", **{**WORDS, "parts": "bias", "steps": 2}).folder
    texts = ["a paper shows[SEP]We find how. The cell grows."]
    found = [load_encoder(place, device="cpu").encode(texts) for place in (bias, bias / "delta")]
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


def test_the_same_again_trains_nothing(literature, tmp_path):
    first = literature.train(tmp_path / "model")
    changed = (tmp_path / "model/manifest.json").stat().st_mtime_ns
    assert literature.train(tmp_path / "model").manifest.hash == first.manifest.hash
    assert (tmp_path / "model/manifest.json").stat().st_mtime_ns == changed
    refused("made from other inputs or options", literature.train, tmp_path / "model", learning_rate=2e-3)


def test_saved_weights_lie_between_the_start_and_the_trained_ones(literature, tmp_path):
    trained, between, back = (
        load_file(literature.train(tmp_path / f"m{share}", start_share=share).folder / "model.safetensors")
        for share in (0.0, 0.25, 1.0)
    )
    moved = 0.0
    for name, start in back.items():  # all of the start model's
        torch.testing.assert_close(between[name], 0.25 * start + 0.75 * trained[name], rtol=0, atol=1e-6)
        moved = max(moved, float((start - trained[name]).abs().max()))
    assert moved > 1e-4


def test_a_log_that_lost_its_end_is_not_filled_up(literature, tmp_path):
    with power_cut(5):
        literature.train(tmp_path / "cut", patience=5)
    (log,) = work_folder(tmp_path / "cut").rglob("log.jsonl")
    log.write_text('{"step": 1}\n')
    literature.train(tmp_path / "cut", patience=5)
    lines = (tmp_path / "cut/training/log.jsonl").read_text().splitlines()
    assert lines[0] == '{"step": 1}' and all("step" in json.loads(line) for line in lines)


@pytest.mark.parametrize(
    ("kind", "cut"),
    [
        *(("triplets", cut) for cut in (1, 2, 3, 5)),
        ("shuffled", 3),
        ("aspects", 3),
        ("sentences", 2),
        ("aspect_words", 3),
    ],
)
def test_an_interrupted_run_ends_as_an_uninterrupted_one(request, uninterrupted, tmp_path, kind, cut):
    source, options = KINDS[kind]
    literature, whole = request.getfixturevalue(source), uninterrupted[kind]
    with power_cut(cut):
        literature.train(tmp_path / "cut", **options)
    assert not (tmp_path / "cut").exists()
    again = literature.train(tmp_path / "cut", **options)
    assert weights_of(again.folder) == weights_of(whole.folder) and again.after == whole.after
    logs = {(run.folder / "training/log.jsonl").read_bytes() for run in (again, whole)}
    assert len(logs) == 1


def test_masked_language_modeling_alone_learns_from_random_weights(literature, tmp_path):
    table = load_recipe("mlm_start").table("training")
    changes = {"batch": 8, "epochs": 100.0, "steps": 60, "learning_rate": 1e-2}
    options = {**table, **changes, "checkpoint_every": 0, "check_every": 0}
    run = literature.train(tmp_path / "model", encoder={"init": f"random:{literature.model}"}, **options)
    losses = log_of(run.folder, "loss")
    assert losses[-1] < losses[0] - 0.5  # nats per masked token; a line is the mean of ten steps
    assert run.before == run.after == {}
    assert load_encoder(run.folder, device="cpu").revision != load_encoder(literature.model, device="cpu").revision


def test_masked_language_modeling_alone_in_parts_is_the_step_at_once(literature, tmp_path):
    options = {**GROUPS, "losses": {"mlm": {}}, "dropout": 0.0}
    (at_once, gradients), (in_parts, others) = (
        literature.first_step(tmp_path / "tokens", literature.plan(**options, micro_tokens=tokens))
        for tokens in (100_000, 300)
    )
    assert at_once == pytest.approx(in_parts, rel=1e-5)
    assert gradients.keys() == others.keys() and all(np.abs(gradients[name]).max() > 0 for name in gradients)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(others[name], gradient, atol=1e-5)


def test_random_weights_are_trained_completely(literature):
    for part in ({"parts": "bias"}, {"frozen_layers": 1}):
        with pytest.raises(UserError, match="random weights, and training.parts is"):
            literature.plan(encoder={"init": "random:minilm"}, **part)


LOSSES = ("triplet", "n_pairs", "supcon", "info_nce", "in_batch", "cosent", "angle", "angle_sum", "gte", "mlm")
TRIPLET = {"triplet": {"weight": 0.5}}
STEPS = [
    *(("literature", TRIPLET | {name: {"temperature": 0.05} if name == "gte" else {}}) for name in LOSSES),
    *(("aspects", losses) for losses in (HYBRID, {"aspect_in_batch": {}, "in_batch": {}})),
    *(("paired", SENTENCES[name]) for name in ("transport", "both", "matches")),
]


@pytest.mark.parametrize(
    ("source", "losses"), STEPS, ids=lambda given: given if isinstance(given, str) else "+".join(given)
)
def test_a_step_in_parts_is_the_step_at_once(request, tmp_path, source, losses):
    """Gradient caching and accumulation: the same loss and gradients whatever fits at a time."""
    literature: Literature = request.getfixturevalue(source)
    options = {**GROUPS, "losses": losses, "batch": 8, "dropout": 0.0}
    (at_once, gradients), (in_parts, others) = (
        literature.first_step(tmp_path / "tokens", literature.plan(**options, micro_tokens=tokens))
        for tokens in (100_000, 300 if source == "literature" else 200)
    )
    assert in_parts == pytest.approx(at_once, rel=1e-5) and at_once > 0
    largest = max(float(np.abs(gradient).max()) for gradient in gradients.values())
    assert gradients.keys() == others.keys() and len(gradients) > 10 and largest > 1e-3
    assert any(name.startswith("aspects.method") for name in gradients) == (source == "aspects")
    for name, one in gradients.items():
        scale = largest if source == "literature" else max(1, np.abs(one).max())
        np.testing.assert_allclose(others[name], one, rtol=1e-3, atol=1e-5 * scale)


def test_dropout_of_a_part_is_the_same_both_times(literature, tmp_path):
    options = {**GROUPS, "losses": {"in_batch": {}}, "dropout": 0.3, "micro_tokens": 300}
    first, again, other = (
        literature.first_step(tmp_path / "tokens", literature.plan(**options, seed=seed)) for seed in (0, 0, 1)
    )
    assert first[0] == again[0] != other[0]
    assert all((one == again[1][name]).all() for name, one in first[1].items())


def test_the_tokens_of_a_run_decide_if_layers_are_compiled(literature, tmp_path):
    plan = literature.plan(steps=0, epochs=2.0, batch=8)
    _, data = literature.load(tmp_path / "tokens", plan)
    two = count_tokens(data, plan.training)
    read = Batches(data.groups, plan.training)
    assert two == 2 * read.per_epoch * int(data.tokens.lengths()[read.at(0).papers].sum()) > 0
    assert count_tokens(data, dataclasses.replace(plan.training, steps=5)) == two / (2 * read.per_epoch) * 5
    assert plan.training.compiles_by_length
    for settings in ({"compiled": False}, {"parallel": "fsdp"}, {"compiled": True}):
        assert not dataclasses.replace(plan.training, **settings).compiles_by_length


def test_the_best_weights_are_kept_and_training_stops_early(literature, tmp_path):
    run = literature.train(tmp_path / "model", steps=40, check_every=2, patience=2, learning_rate=0.05)
    facts = run.manifest.facts
    assert facts["stopped early"] and facts["steps"] == facts["kept step"] + 4
    lines = [json.loads(line) for line in (run.folder / "training/log.jsonl").read_text().splitlines()]
    best = max((line["accuracy"], -line["step"]) for line in lines if "accuracy" in line)
    assert facts["kept step"] == -best[1]


def test_the_lowest_validation_loss_is_kept(literature, tmp_path):
    options = {"watch": "loss", "patience": 2, "check_every": 2, "learning_rate": 0.05}
    run = literature.train(tmp_path / "model", steps=40, **options)
    facts, losses = run.manifest.facts, log_of(run.folder, "validation_loss")
    assert facts["stopped early"] and facts["kept step"] == 2 * int(np.argmin(losses)) < facts["steps"]
    assert run.before["loss"] == losses[0] and run.after["loss"] == losses[-1] > min(losses)
    assert f"| loss | {losses[0]:.4g} | {losses[-1]:.4g} |" in (run.folder / "README.md").read_text()
    refused("training.patience needs validation", literature.train, tmp_path / "none", validation=0.0, **options)


@pytest.mark.parametrize("block", [0, 1])
def test_the_validation_loss_is_that_of_held_out_triplets_for_every_seed(literature, tmp_path, block):
    for seed in (0, 1):
        plan = literature.plan(watch="loss", block=block, seed=seed, dropout=0.5)
        start, data = literature.load(tmp_path / "tokens", plan)
        run = prepare_run(start, data, plan, ProcessGroup(), QUIET)
        start.network.model.eval()
        triplets = data.validation.triplets()  # (triplets, 3)
        vectors = start.encode_tokens(data.tokens.take(np.arange(len(data.tokens))))
        start.network.model.train()  # validation turns dropout off by itself
        near, far = (np.linalg.norm(vectors[triplets[:, 0]] - vectors[triplets[:, at]], axis=1) for at in (1, 2))
        assert run.task.validate()["loss"] == pytest.approx(np.maximum(near - far + 1, 0).mean(), rel=1e-4)


@pytest.mark.parametrize("source", ["literature", "paired", "aspects"])
def test_every_kind_of_loss_has_a_validation_loss(request, tmp_path, source):
    literature: Literature = request.getfixturevalue(source)
    losses = {"literature": {"in_batch": {}, "mlm": {}}, "paired": SENTENCES["both"], "aspects": HYBRID}[source]
    plan = literature.plan(**{**GROUPS, "losses": losses, "watch": "loss", "dropout": 0.5, "micro_tokens": 300})
    start, data = literature.load(tmp_path / "tokens", plan)
    task = prepare_run(start, data, plan, ProcessGroup(), QUIET).task
    first, again = task.validate()["loss"], task.validate()["loss"]
    assert first == again and 0 < first < 100
    if source == "literature":
        alone = dataclasses.replace(plan, training=dataclasses.replace(plan.training, losses={"in_batch": {}}))
        without = prepare_run(start, data, alone, ProcessGroup(), QUIET).task.validate()["loss"]
        assert first > without + 1, "masked words are part of the loss"


def test_models_of_different_samples_are_validated_on_one_set(literature, tmp_path):
    other = mine("specter", ["mining.anchors=60"], literature.corpus, literature.graph, tmp_path / "samples")
    start = load_start_model(literature.plan().encoder, "cpu")
    found = []
    for own, more in ((literature.samples, other), (other, literature.samples)):
        plan, sources = literature.plan(), DataSources(graph=literature.graph, validation=(more,))
        arguments = (start.reader, plan.encoder, plan.training, tmp_path / f"tokens{len(found)}")
        data = load_training_data(literature.corpus, own, *arguments, sources)
        alone = load_training_data(literature.corpus, own, *arguments, dataclasses.replace(sources, validation=()))
        found.append(sorted(map(tuple, data.rows[data.validation.triplets()].tolist())))
        assert len(found[-1]) > len(alone.validation.triplets()) > 0
        assert not set(data.rows[data.groups.anchors]) & set(data.rows[data.validation.anchors])
    assert found[0] == found[1]
    hashes = [DataSources(validation=samples).hashes() for samples in ((), (other,))]
    assert "validation" not in hashes[0] and hashes[1]["validation"] == [other.hash]


def test_title_and_abstract_apart_are_trained(literature, tmp_path):
    run = literature.train(tmp_path / "model", encoder={"pooling": "title_abstract"}, steps=40, dropout=0.0)
    losses = log_of(run.folder, "loss")
    assert losses[-1] < 0.9 * losses[0] and load_encoder(run.folder).settings.pooling == "title_abstract"


def test_incomplete_blocks_are_dropped_and_counted(literature, tmp_path):
    run = literature.train(tmp_path / "model", losses={"info_nce": {}}, block=4, leftovers="drop", validation=0.0)
    samples = literature.samples
    counts = np.maximum(*(np.diff(picks.offsets) for picks in (samples.positives, samples.negatives)))
    dropped = int((counts % 4).sum())
    assert dropped and log_of(run.folder, "triplets in incomplete blocks, dropped") == [dropped]
    assert "triplets in incomplete blocks, dropped" in (run.folder / "README.md").read_text()
    refused("no complete block of triplets", literature.train, tmp_path / "other", block=8, leftovers="drop")


SCALED = [
    ("literature", "papers", "triplet", {}),
    ("paired", "sentences", "aligned_triplet", {}),
    ("paired", "sentences", "sentence_triplet", {"distance": "attention", "temperature": 0.5}),
]


@pytest.mark.parametrize(("source", "unit", "loss", "settings"), SCALED)
def test_distances_in_units_of_the_start_model(request, tmp_path, source, unit, loss, settings):
    """Margin and temperature in units of a distance are those in plain numbers times the distance."""
    literature: Literature = request.getfixturevalue(source)
    plan = literature.plan(losses={loss: settings}, scale_by="start", dropout=0.0, batch=8)
    start, data = literature.load(tmp_path / "tokens", plan)
    measured = prepare_run(start, data, plan, ProcessGroup(), QUIET).measured[f"start distance of {unit}"]
    if unit == "papers":
        papers = np.unique(data.groups.papers())
        vectors = start.encode_tokens(data.tokens.take(papers))
        apart = np.linalg.norm(vectors[:, None] - vectors, axis=2)
        assert measured == pytest.approx(apart.sum() / (len(papers) * (len(papers) - 1)), rel=0.01)
    larger = {
        name: value * measured
        for name, value in {"margin": 1.0, "temperature": settings.get("temperature")}.items()
        if value
    }
    plain = dataclasses.replace(plan.training, scale_by="", losses={loss: {**settings, **larger}})
    scaled, unscaled = (
        literature.first_step(tmp_path / "tokens", dataclasses.replace(plan, training=training))[0]
        for training in (plan.training, plain)
    )
    assert 0.1 < scaled == pytest.approx(unscaled / measured, rel=1e-4)


def test_parts_of_the_network_are_saved_as_a_delta_and_frozen_layers_stay(literature, tmp_path):
    run = literature.train(tmp_path / "bias", parts="bias")
    assert run.manifest.facts["trained weights"] < 2000
    np.testing.assert_allclose(vectors_of(run.folder / "delta"), vectors_of(run.folder), atol=1e-5)
    assert (run.folder / "delta/delta.safetensors").stat().st_size < 20_000
    run = literature.train(tmp_path / "frozen", frozen_layers=1)
    before, after = (load_file(folder / "model.safetensors") for folder in (literature.model, run.folder))
    moved = {name for name in after if name in before and (before[name] != after[name]).any()}
    assert any(name.startswith("encoder.layer.1.") for name in moved)
    assert not any(name.startswith(("embeddings.", "encoder.layer.0.")) for name in moved)


@pytest.mark.parametrize("name", ["student_teacher", "similarity"])
def test_a_teacher_can_be_followed(literature, tmp_path, name):
    make_graph(literature.corpus, tmp_path / "graph")
    sources = DataSources(teachers=(Vectors.open(tmp_path / "graph/vectors"),))
    changes = {"steps": 100, "batch": 16, "check_every": 100, "checkpoint_every": 0, "dropout": 0.0}
    run = literature.train(tmp_path / "model", losses={name: {}}, sources=sources, **changes)
    losses = log_of(run.folder, "loss")
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
    with pytest.raises(UserError, match="--teacher"):
        literature.train(tmp_path / "other", losses={name: {}}, sources=DataSources(), **changes)
    with pytest.raises(UserError, match="there is one teacher; leave one out"):
        literature.train(tmp_path / "both", losses={"student_teacher": {}, "similarity": {}}, **changes)


def test_of_several_teachers_the_mean_cosine_is_followed(literature, tmp_path):
    """Vectors of other lengths and dimensions, and papers that only one teacher knows."""
    ids, random = list(literature.corpus.ids), np.random.default_rng(0)
    matrices = [random.normal(size=(len(ids), size)).astype(np.float32) * size for size in (3, 8)]
    teachers = []
    for matrix, known in zip(matrices, (ids, ids[:-1]), strict=True):
        with new_vectors(tmp_path / f"{matrix.shape[1]}") as writer:
            writer.append(known, matrix[: len(known)])
            writer.finish()
        teachers.append(Vectors.open(tmp_path / f"{matrix.shape[1]}"))
    rows = np.arange(len(ids))
    joined = _load_teachers(literature.corpus, teachers, rows, Reporter(stream=(lines := io.StringIO())))
    assert joined is not None and joined.shape == (len(ids), 11)
    cosines = [unit_rows(matrix) @ unit_rows(matrix).T for matrix in matrices]
    found = unit_rows(joined) @ unit_rows(joined).T
    np.testing.assert_allclose(found[:-1, :-1], np.mean(cosines, axis=0)[:-1, :-1], atol=2e-3)  # stored in float16
    assert not joined[-1].any() and f"no vector of 1 of {len(ids)} papers" in lines.getvalue()
    one = _load_teachers(literature.corpus, teachers[:1], rows, QUIET)
    np.testing.assert_allclose(one, matrices[0], atol=0.01)
    assert _load_teachers(literature.corpus, (), rows, QUIET) is None


def test_pools_of_the_corpus_suite_are_watched_and_give_its_own_number(literature, tmp_path):
    suite = make_suite(literature.corpus, CorpusSuiteOptions(held_out="share:0.2", queries=20))
    sources = DataSources(suite=suite)
    run = literature.train(tmp_path / "model", watch="cite.map", patience=1, sources=sources)
    assert 0 < run.before["cite.map"] < 1
    refused("Did you mean 'cite.map'", literature.train, tmp_path / "other", watch="site.map", sources=sources)
    system = open_system(str(run.folder), OpeningOptions(device="cpu"))
    report = evaluate(system, suite, tmp_path / "report", tasks=["cite"])
    # in one of the 20 queries, two papers that are all but equally near may change places
    assert 100 * run.after["cite.map"] == pytest.approx(report.metrics["cite.map"], abs=2.5)


def test_a_loss_that_is_no_number_and_a_full_memory_end_the_run(literature, tmp_path, monkeypatch):
    def full(*_: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patched:
        patched.setattr(Stepper, "encode", full)
        with pytest.raises(CiteweaveError, match="out of memory at step 0.*training.micro_tokens=8192"):
            literature.train(tmp_path / "model")
    monkeypatch.setattr(Stepper, "backward", lambda _, batch, step: torch.tensor(torch.nan if step == 4 else 1.0))
    with pytest.raises(CiteweaveError, match="loss of step 4 is nan.*checkpoint of step 4 is kept.*learning_rate"):
        literature.train(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_full_disk_leaves_the_last_checkpoint(literature, tmp_path, monkeypatch):
    save, calls = checkpoints._save_tensors, []

    def full(path: Path, tensors: Any) -> None:
        calls.append(path)
        if len(calls) > 3:
            raise OSError(28, "No space left on device")
        save(path, tensors)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "_save_tensors", full)
        with pytest.raises(CiteweaveError, match="No space left on device.*last checkpoint is step-00000002"):
            literature.train(tmp_path / "model")
    resumed, whole = literature.train(tmp_path / "model"), literature.train(tmp_path / "whole")
    assert weights_of(resumed.folder) == weights_of(whole.folder)


NOT_TRAINED = [
    pytest.param("literature", {"device": "cuda"}, "torch sees 0 GPUs", marks=NO_GPU),
    ("literature", {"start_share": 0.5, "parts": "lora"}, "start_share"),
    ("literature", {"encoder": {"init": "recipe:specter"}}, "citeweave run"),
    ("literature", {"encoder": {"heads": "linear"}, "losses": HYBRID, **GROUPS}, "mining.aspects"),
    ("aspects", {"unit": "triplets"}, "training.unit is 'triplets'"),
    ("aspects", {"losses": {"aspect_supcon": {"negatives_by": "lokal"}}}, "local"),
    ("aspects", {"losses": {"aspect_supcon": {"negatives_by": "positives"}}}, r"negatives_by.*'positives'.*local"),
    ("aspects", {"losses": {"supcon": {}}}, "encoder.heads is 'linear'"),
    ("paired", {"losses": SENTENCES["single"], "encoder": {"pooling": "mix"}}, "pooling is 'mix', and losses on sentences"),
    ("paired", {"losses": SENTENCES["single"], "encoder": {"text": ("title",)}}, "encoder.text is"),
    ("paired", {**WORDS, "losses": SENTENCES["matches"]}, "encoder.pooling is 'aspect_words', and losses on sentences"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "options", "message"), NOT_TRAINED)
def test_what_cannot_be_trained_is_refused(request, tmp_path, source, options, message):
    with pytest.raises(UserError, match=message):
        request.getfixturevalue(source).train(tmp_path / "model", **options)


def test_samples_of_another_corpus_or_without_text_are_refused(literature, tmp_path):
    other = synthesize(tmp_path / "other", SyntheticOptions(papers=40, seed=1), workers=1)
    with pytest.raises(UserError, match="mined from another corpus"):
        dataclasses.replace(literature, corpus=other).train(tmp_path / "model", sources=DataSources())
    lines = [{"id": str(n), "title": f"paper {n}", "abstract": "we find how", "references": ["0"]} for n in range(9)]
    (tmp_path / "papers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    bare = import_papers([tmp_path / "papers.jsonl"], tmp_path / "bare").corpus
    with new_samples(tmp_path / "samples", SampleNames(rules=("a", "b")), corpus=bare.hash) as writer:
        writer.append(block_from_lists([1, 2], positives=[[0], [0]], negatives=[[3], [4]]))
        samples = writer.finish()
    with pytest.raises(EmptyResultError, match="none of the .* samples can be trained on"):
        dataclasses.replace(literature, corpus=bare, samples=samples).train(
            tmp_path / "model", encoder={"text": ("venue",)}, sources=DataSources()
        )


def test_a_tracker_gets_the_log(literature, tmp_path):
    if importlib.util.find_spec("tensorboard"):
        literature.train(tmp_path / "model", track="tensorboard", steps=1)
    else:
        refused("pip install tensorboard", literature.train, tmp_path / "model", track="tensorboard")
