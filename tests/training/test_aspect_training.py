"""Training in aspect spaces: the loss is the formula's, heads learn, resume to the bit, and are saved with the model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.progress import QUIET
from citeweave.encoders.aspects import load_aspect_encoder, open_heads
from citeweave.encoders.encoder import load_encoder
from citeweave.training import trainer
from citeweave.training.batches import Batches, build_batch
from citeweave.training.bundle import make_bundle, train_bundle
from citeweave.training.data import AnchorGroups, TrainingData, make_groups, make_lists
from citeweave.training.distributed import ProcessGroup
from citeweave.training.load_data import DataSources, load_training_data
from citeweave.training.objective import LossInputs, Objective
from citeweave.training.options import EncoderOptions, TrainingOptions, TrainingPlan, training_options
from citeweave.training.partial import heads_to_arrays, make_heads
from citeweave.training.train import EncoderRun, load_start_model, prepare_run, train_encoder
from citeweave.training.validation import Validation

from .conftest import Literature

HYBRID = {
    "supcon": {"weight": 0.7, "negatives_by": "global"},
    "aspect_supcon": {"weight": 0.3, "negatives_by": "local"},
}
SMALL = TrainingOptions(
    losses=HYBRID,
    unit="groups",
    batch=8,
    steps=6,
    learning_rate=1e-3,
    validation=0.2,
    check_every=3,
    checkpoint_every=2,
    dropout=0.0,
)


def plan_of(aspects: Literature, heads: str = "linear", **changes: Any) -> TrainingPlan:
    return TrainingPlan(EncoderOptions(init=str(aspects.model), heads=heads), dataclasses.replace(SMALL, **changes))


def train(aspects: Literature, folder: Path, heads: str = "linear", **changes: Any) -> EncoderRun:
    plan = plan_of(aspects, heads, **changes)
    sources = DataSources(graph=aspects.graph)
    return train_encoder(aspects.corpus, aspects.samples, folder, plan, sources=sources, device="cpu")


def test_heads_learn_and_are_saved_beside_an_ordinary_encoder(aspects: Literature, tmp_path: Path) -> None:
    run = train(aspects, tmp_path / "model", steps=60, check_every=60, share=0.05, learning_rate=3e-4)
    losses = [json.loads(line).get("loss") for line in (run.folder / "training" / "log.jsonl").read_text().splitlines()]
    told = [loss for loss in losses if loss is not None]
    assert told[-1] < 0.95 * told[0] and set(run.after) == {"accuracy"}
    heads = open_heads(run.folder)
    assert heads.names == ("background", "method", "result")
    start = heads_to_arrays(make_heads(heads.names, heads.inputs, plan_of(aspects).encoder, seed=0))
    for name in heads.names:
        assert np.abs(heads.layers[name][0][0] - start.layers[name][0][0]).max() > 1e-3, name
    plain, method = load_encoder(run.folder, device="cpu"), load_aspect_encoder(run.folder, "method", device="cpu")
    texts = ["a paper shows that models learn", "the cell grows", ""]
    vectors = plain.encode(texts)
    np.testing.assert_allclose(method.encode(texts), heads.project(vectors, "method"), atol=1e-5)
    assert not method.encode(texts)[2].any() and method.revision != plain.revision
    side_by_side = load_aspect_encoder(run.folder, "all", device="cpu").encode(texts)
    assert side_by_side.shape == (3, 3 * heads.dimension("method"))
    np.testing.assert_allclose(np.linalg.norm(side_by_side[:2], axis=1), np.sqrt(3), rtol=1e-5)


def supcon(vectors: NDArray[np.float64], anchor: int, positive: int, negatives: list[int], temperature: float) -> float:
    """The thesis's equation 5.1 with one positive, written out."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = np.exp(unit[[positive, *negatives]] @ unit[anchor] / temperature)
    return float(-np.log(scores[0] / scores.sum()))


def test_the_hybrid_loss_is_the_formula() -> None:
    groups = dataclasses.replace(
        make_groups([0, 0, 5], positives=[[1], [2], [1]], negatives=[[2, 3], [1, 4, 3], [4, 2]]),
        aspects=np.array([0, 1, 1]),
        rules=np.array([1, 2, 1, 2, 2, 1, 2]),  # 1 = local, 2 = global
    )
    heads = make_heads(("background", "method"), 4, EncoderOptions(heads="linear", head_size=3), seed=3)
    losses = training_options({"unit": "groups", "losses": HYBRID}).losses
    objective = Objective(losses, LossInputs(heads=heads, rules=("positive", "local", "global")))
    vectors = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 4))).float()
    batch = build_batch(groups)
    found = float(objective(vectors, batch, batch).detach())
    given, arrays = vectors.double().numpy(), heads_to_arrays(heads)
    spaces = [arrays.project(given, name).astype(float) for name in arrays.names]
    local = [supcon(spaces[0], 0, 1, [2], 0.05), supcon(spaces[1], 0, 2, [1], 0.05), supcon(spaces[1], 5, 1, [4], 0.05)]
    wide = [supcon(given, 0, 1, [3], 0.05), supcon(given, 0, 2, [4, 3], 0.05), supcon(given, 5, 1, [2], 0.05)]
    assert found == pytest.approx(0.3 * np.mean(local) + 0.7 * np.mean(wide), rel=1e-4)
    parts = [build_batch(groups.take(np.array(which))) for which in ([0, 2], [1])]
    told = sum(float(objective(vectors[part.papers], part, batch).detach()) for part in parts)
    assert told == pytest.approx(found, rel=1e-5)


def test_negatives_of_the_batch_are_those_of_the_same_aspect() -> None:
    groups = dataclasses.replace(
        make_groups([0, 2, 4], positives=[[1], [3], [5]], negatives=[[]] * 3), aspects=np.array([0, 0, 1])
    )
    heads = make_heads(("background", "method"), 4, EncoderOptions(heads="two_layers"), seed=1)
    losses = {"aspect_in_batch": {"weight": 1.0, "temperature": 0.1, "relatives": False, "negatives_by": ""}}
    objective = Objective(losses, LossInputs(heads=heads))
    batch = build_batch(groups)
    vectors = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 4))).float()
    space = heads_to_arrays(heads).project(vectors.numpy(), "background").astype(float)
    expected = [supcon(space, 0, 1, [3], 0.1), supcon(space, 2, 3, [1], 0.1), 0.0]  # 4 has nobody to differ from
    assert float(objective(vectors, batch, batch).detach()) == pytest.approx(np.mean(expected), rel=1e-4)


def test_accuracy_is_that_of_each_triplet_in_its_space(aspects: Literature, tmp_path: Path) -> None:
    plan = plan_of(aspects, losses={"aspect_in_batch": {}})
    start, data = gathered(aspects, tmp_path / "tokens", plan)
    without = dataclasses.replace(data.validation, negatives=make_lists([[]] * len(data.validation)))
    for validation in (data.validation, without):
        found = dataclasses.replace(data, validation=validation)
        run = prepare_run(start, found, plan, ProcessGroup(), QUIET)
        heads = run.stepper.objective.inputs.heads
        assert heads is not None and validation.aspects is not None
        papers = np.unique(
            np.concatenate([validation.anchors, validation.positives.papers, validation.negatives.papers])
        )
        vectors = Validation(run.stepper)._encode(papers)
        spaces = [heads_to_arrays(heads).project(vectors, name) for name in heads.names]
        unit = [space / np.linalg.norm(space, axis=1, keepdims=True) for space in spaces]
        right = total = 0
        if validation is data.validation:
            asked = [(n, *row) for n in range(len(validation)) for row in validation.take(np.array([n])).triplets()]
        else:  # the positives of samples half the way further on
            owners = np.repeat(np.arange(len(validation)), validation.positives.counts())
            ups = validation.positives.papers
            others = np.roll(ups, -1 - len(ups) // 2)
            assert found.related is not None
            asked = [
                (n, validation.anchors[n], up, other)
                for n, up, other in zip(owners, ups, others, strict=True)
                if other not in (up, validation.anchors[n])
                and other not in found.related.take(validation.anchors[[n]]).papers
            ]
        for n, *triplet in asked[:5000]:
            anchor, up, down = unit[validation.aspects[n]][np.searchsorted(papers, triplet)]
            right, total = right + int(anchor @ up > anchor @ down), total + 1
        assert total > 20 and Validation(run.stepper).evaluate()["accuracy"] == pytest.approx(
            right / total, abs=2 / total
        )


def gathered(aspects: Literature, folder: Path, plan: TrainingPlan) -> tuple[Any, TrainingData]:
    start = load_start_model(plan.encoder, "cpu")
    sources = DataSources(graph=aspects.graph)
    data = load_training_data(
        aspects.corpus, aspects.samples, start.reader, plan.encoder, plan.training, folder, sources
    )
    return start, data


@pytest.mark.parametrize("losses", [HYBRID, {"aspect_in_batch": {}, "in_batch": {}}], ids=["by_groups", "cached"])
def test_a_step_in_parts_is_the_step_at_once(aspects: Literature, tmp_path: Path, losses: dict[str, Any]) -> None:
    found = []
    for tokens in (100_000, 200):
        plan = plan_of(aspects, losses=losses, micro_tokens=tokens)
        start, data = gathered(aspects, tmp_path / "tokens", plan)
        run = prepare_run(start, data, plan, ProcessGroup(), QUIET)
        start.network.model.train()
        batch = Batches(data.groups, plan.training).at(0)
        loss = float(run.stepper.backward(batch, 0))
        found.append((loss, {name: weight.grad for name, weight in run.weights.items() if weight.grad is not None}))
    (at_once, gradients), (in_parts, others) = found
    assert in_parts == pytest.approx(at_once, rel=1e-5) and at_once > 0
    assert set(gradients) == set(others) and any(name.startswith("aspects.method") for name in gradients)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(others[name], gradient, rtol=1e-3, atol=1e-5 * max(1, gradient.abs().max()))


class _Power(Exception):
    """The power is cut."""


def test_an_interrupted_run_ends_as_an_uninterrupted_one(
    aspects: Literature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(aspects, tmp_path / "whole", head_rate=10.0)
    step = trainer._TrainingLoop._step

    def cut_step(loop: Any, number: int) -> None:
        if number == 3:
            raise _Power
        step(loop, number)

    with monkeypatch.context() as patched:
        patched.setattr(trainer._TrainingLoop, "_step", cut_step)
        with pytest.raises(_Power):
            train(aspects, tmp_path / "cut", head_rate=10.0)
    train(aspects, tmp_path / "cut", head_rate=10.0)
    for file in ("model.safetensors", "aspects/model.safetensors"):
        assert (tmp_path / "cut" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_a_bundle_trains_the_same_heads(aspects: Literature, tmp_path: Path) -> None:
    whole, plan = train(aspects, tmp_path / "whole"), plan_of(aspects)
    sources = DataSources(graph=aspects.graph)
    bundle = make_bundle(aspects.corpus, aspects.samples, tmp_path / "bundle", plan, sources=sources, weights="float32")
    there = train_bundle(bundle, tmp_path / "there", device="cpu")
    assert open_heads(there.folder).hash == open_heads(whole.folder).hash
    (bundle / "groups" / "aspects.npy").unlink()
    np.save(bundle / "groups" / "aspects.npy", np.full(3, 9, np.uint8))
    with pytest.raises(ArtifactError):
        train_bundle(bundle, tmp_path / "damaged", device="cpu")


def test_training_goes_on_with_the_heads_of_the_start_model(aspects: Literature, tmp_path: Path) -> None:
    first = train(aspects, tmp_path / "first")
    plan = plan_of(dataclasses.replace(aspects, model=first.folder))
    _, data = gathered(aspects, tmp_path / "tokens", plan)
    run = prepare_run(load_start_model(plan.encoder, "cpu"), data, plan, ProcessGroup(), QUIET)
    assert run.stepper.objective.inputs.heads is not None
    assert heads_to_arrays(run.stepper.objective.inputs.heads).hash == open_heads(first.folder).hash
    smaller = dataclasses.replace(plan, encoder=dataclasses.replace(plan.encoder, head_size=5))
    with pytest.raises(UserError, match="start from a model without heads"):
        prepare_run(load_start_model(smaller.encoder, "cpu"), data, smaller, ProcessGroup(), QUIET)


def test_heads_that_start_at_the_identity_are_the_encoders_own_space() -> None:
    vectors = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    heads = heads_to_arrays(make_heads(("method",), 6, EncoderOptions(heads="linear", head_start="identity"), seed=0))
    np.testing.assert_array_equal(heads.project(vectors, "method"), vectors)
    for changes in ({"heads": "two_layers"}, {"heads": "linear", "head_size": 3}):
        with pytest.raises(UserError, match="encoder.head_start is 'identity'"):
            make_heads(("method",), 6, EncoderOptions(head_start="identity", **changes), seed=0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"unit": "triplets"}, "training.unit is 'triplets'"),
        ({"losses": {"aspect_supcon": {"negatives_by": "lokal"}}}, "local"),
        ({"losses": {"supcon": {}}}, "encoder.heads is 'linear'"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    aspects: Literature, tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(UserError, match=told):
        train(aspects, tmp_path / "model", **changes)


def test_samples_without_aspects_are_refused(literature: Literature, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="mining.aspects"):
        train(literature, tmp_path / "model")


def test_groups_keep_aspects_and_rules_when_taken() -> None:
    groups = AnchorGroups(
        np.array([0, 1]),
        make_groups([0, 1], [[2], [3]], [[4, 5], [6]]).positives,
        make_groups([0, 1], [[2], [3]], [[4, 5], [6]]).negatives,
        np.array([1, 0]),
        np.array([7, 8, 9]),
    )
    taken = groups.take(np.array([1, 0]))
    assert taken.aspects is not None and taken.rules is not None
    assert taken.aspects.tolist() == [0, 1] and taken.rules.tolist() == [9, 7, 8]


def test_heads_alone_learn_over_an_encoder_that_stays(aspects: Literature, tmp_path: Path) -> None:
    losses = {"aspect_in_batch": {"negatives_by": "local"}}
    run = train(aspects, tmp_path / "model", parts="heads", losses=losses, steps=60, batch=64, learning_rate=1e-2)
    texts = ["a paper shows that models learn", "the cell grows"]
    before, after = (load_encoder(folder, device="cpu").encode(texts) for folder in (aspects.model, run.folder))
    np.testing.assert_array_equal(after, before)
    lines = [json.loads(line) for line in (run.folder / "training" / "log.jsonl").read_text().splitlines()]
    told = [line["loss"] for line in lines if "loss" in line]
    assert told[-1] < 0.97 * told[0] and not (run.folder / "delta").exists()
    assert run.manifest.facts["trained weights"] == 3 * (32 * 32 + 32)


def test_heads_alone_learn_what_they_learn_beside_a_frozen_encoder(aspects: Literature, tmp_path: Path) -> None:
    losses = {"aspect_supcon": {"negatives_by": "local"}}
    plan = plan_of(aspects, losses=losses, parts="heads")
    _, data = gathered(aspects, tmp_path / "tokens", plan)
    batch = Batches(data.groups, plan.training).at(0)
    found = []
    for parts in ("heads", "all"):
        own = dataclasses.replace(plan, training=dataclasses.replace(plan.training, parts=parts))
        run = prepare_run(load_start_model(own.encoder, "cpu"), data, own, ProcessGroup(), QUIET)
        loss = float(run.stepper.backward(batch, 0))
        found.append((loss, {name: w.grad for name, w in run.weights.items() if name.startswith("aspects.")}))
    (frozen, mine), (whole, others) = found
    assert frozen == pytest.approx(whole, rel=0.02)  # papers may have been read in int8
    for name, gradient in mine.items():
        np.testing.assert_allclose(gradient, others[name], atol=0.1 * float(others[name].abs().max()) + 1e-3)


@pytest.mark.parametrize("changes", [{"losses": {"supcon": {}, "aspect_supcon": {}}}, {"losses": {"in_batch": {}}}])
def test_heads_alone_need_losses_of_their_own(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="training.parts is 'heads'"):
        training_options({"unit": "groups", "parts": "heads", **changes})


def test_negatives_by_a_rule_that_chose_none_are_refused(aspects: Literature, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"negatives_by.*'positives'.*local"):
        train(aspects, tmp_path / "model", losses={"aspect_supcon": {"negatives_by": "positives"}})


def test_an_aspect_without_samples_gets_no_space(aspects: Literature, tmp_path: Path) -> None:
    from citeweave.mining.inputs import parse_rules
    from citeweave.mining.mine import MiningInputs, mine_samples
    from citeweave.pipeline.recipe import load_recipe

    changed = ["mining.every_aspect=false", 'mining.aspects=["background", "miscellaneous", "result"]']
    rules = parse_rules(load_recipe("sciaspect_hybrid", changed).table("mining"))
    samples = mine_samples(aspects.corpus, rules, tmp_path / "samples", MiningInputs(graph=aspects.graph))
    run = train(dataclasses.replace(aspects, samples=samples), tmp_path / "model")
    assert open_heads(run.folder).names == ("background", "result")
