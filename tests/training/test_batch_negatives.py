"""Which papers of a batch are negatives, in the encoder's space and in those of aspects."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from citeweave.graph.citations import graph_from_edges
from citeweave.mining.inputs import parse_rules
from citeweave.mining.mine import MiningInputs, mine_samples
from citeweave.pipeline.recipe import load_recipe, read_recipe
from citeweave.training.batches import Batch, Batches, batch_candidates, build_batch, mark_negatives
from citeweave.training.data import AnchorGroups, find_related_papers, make_groups, make_lists
from citeweave.training.load_data import DataSources, load_training_data
from citeweave.training.objective import LossInputs, Objective, Settings
from citeweave.training.options import EncoderOptions, training_options
from citeweave.training.partial import heads_to_arrays, make_heads
from citeweave.training.train import load_start_model

from .conftest import Literature

WITHIN_BATCH = pytest.mark.parametrize(
    ("name", "settings"), [("in_batch", {}), ("supcon", {"scope": "batch"})], ids=["in_batch", "supcon"]
)
RELATED = make_lists([[1, 2], [0], [0], [], [], []])
"""Paper 0 cites 1 as background and 2 for its method."""


def softmax_loss(vectors: NDArray[np.float64], anchor: int, positive: int, negatives: list[int]) -> float:
    """-log softmax of the positive's cosine among all, at temperature 0.05."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = np.exp(unit[[positive, *negatives]] @ unit[anchor] / 0.05)
    return float(-np.log(scores[0] / scores.sum()))


def two_reasons() -> AnchorGroups:
    """Anchor 0 once as background and once for method, each time with what it cites for the other reason as `local`."""
    return dataclasses.replace(
        make_groups([0, 0, 5], positives=[[1], [2], [4]], negatives=[[2, 3], [1, 3], [2]]),
        aspects=np.array([0, 1, 0]),
        rules=np.array([0, 1, 0, 1, 1]),  # 0 = local, 1 = global
    )


@WITHIN_BATCH
def test_the_encoders_space_pushes_nothing_away_that_is_cited_for_another_reason(
    name: str, settings: dict[str, Any]
) -> None:
    losses = training_options({"unit": "groups", "losses": {name: {**settings, "negatives_by": "global"}}}).losses
    objective = Objective(losses, LossInputs(related=RELATED, rules=("local", "global")))
    vectors = torch.from_numpy(np.random.default_rng(2).normal(size=(6, 4))).float()
    batch, given = build_batch(two_reasons()), vectors.double().numpy()
    # 2 is a candidate, being a positive of its own group and the global negative of 5; it opposes 5 alone
    expected = [
        softmax_loss(given, 0, 1, [3, 4]),
        softmax_loss(given, 0, 2, [3, 4]),
        softmax_loss(given, 5, 4, [1, 2, 3]),
    ]
    assert float(objective(vectors, batch, batch)) == pytest.approx(np.mean(expected), rel=1e-4)


@WITHIN_BATCH
def test_in_an_aspects_space_what_is_cited_for_another_reason_is_a_negative(
    name: str, settings: dict[str, Any]
) -> None:
    asked = {f"aspect_{name}": {**settings, "negatives_by": "local"}}
    heads = make_heads(("background", "method"), 4, EncoderOptions(heads="linear"), seed=1)
    losses = training_options({"unit": "groups", "losses": asked}).losses
    objective = Objective(losses, LossInputs(related=RELATED, heads=heads, rules=("local", "global")))
    vectors = torch.from_numpy(np.random.default_rng(2).normal(size=(6, 4))).float()
    batch, arrays = build_batch(two_reasons()), heads_to_arrays(heads)
    background, method = (arrays.project(vectors.numpy(), name).astype(float) for name in arrays.names)
    expected = [
        softmax_loss(background, 0, 1, [2, 4]),  # related to 2, and yet it was given as a negative
        softmax_loss(method, 0, 2, [1]),
        softmax_loss(background, 5, 4, [1, 2]),
    ]
    assert float(objective(vectors, batch, batch).detach()) == pytest.approx(np.mean(expected), rel=1e-4)


@pytest.mark.parametrize(("block", "share"), [(0, 1.0), (1, 1.0), (2, 1.0), (2, 0.5)])
def test_aspects_and_rules_stay_with_their_papers(block: int, share: float) -> None:
    rng = np.random.default_rng(block)
    counts = rng.integers(1, 6, (2, 30))
    ups, downs = ([rng.choice(90, count, replace=False).tolist() for count in row] for row in counts)
    groups = dataclasses.replace(
        make_groups(rng.integers(90, 99, 30).tolist(), ups, downs),
        aspects=rng.integers(0, 3, 30),
        rules=rng.integers(0, 4, int(counts[1].sum())),
    )
    options = training_options(
        {"unit": "groups", "batch": 4, "block": block, "share": share, "losses": {"aspect_in_batch": {}}}
    )
    batches = Batches(groups, options)
    found = [_facts(batches.at(step).groups) for step in range(batches.per_epoch)]
    pairs, rules = (sorted(fact for part in found for fact in part[kind]) for kind in (0, 1))
    wanted = _facts(groups)
    assert len(pairs) == len(wanted[0]) if share == 1 else 0 < len(pairs) < len(wanted[0])
    assert pairs == sorted(wanted[0]) if share == 1 else set(pairs) <= set(wanted[0])
    assert set(rules) == set(wanted[1]) if share == 1 else set(rules) < set(wanted[1])
    batch = batches.at(0)
    assert batch.rules is not None
    chosen = batch.with_negatives_by([1])
    told = {(int(batch.papers[a]), int(batch.papers[n])) for a, row in zip(batch.anchors, chosen.negatives, strict=True) for n in row if n >= 0}  # fmt: skip
    assert told == {(anchor, paper) for anchor, _, paper, rule in _facts(batch.groups)[1] if rule == 1}


def _facts(groups: AnchorGroups) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Anchor, aspect and positive; anchor, aspect, negative and its rule: one after the other."""
    assert groups.aspects is not None and groups.rules is not None
    pairs: list[tuple[int, ...]] = []
    rules: list[tuple[int, ...]] = []
    for n, (anchor, aspect) in enumerate(zip(groups.anchors.tolist(), groups.aspects.tolist(), strict=True)):
        ups, downs = (slice(*lists.offsets[n : n + 2]) for lists in (groups.positives, groups.negatives))
        pairs += [(anchor, aspect, paper) for paper in groups.positives.papers[ups].tolist()]
        own = zip(groups.negatives.papers[downs].tolist(), groups.rules[downs].tolist(), strict=True)
        rules += [(anchor, aspect, paper, rule) for paper, rule in own]
    return pairs, rules


def test_what_the_recipe_intent_spaces_pushes_away(literature: Literature, tmp_path: Path) -> None:
    """Of its own batches, by the graph: nothing connected in the encoder's space, nothing of the aspect in an aspect's."""
    recipe = load_recipe("intent_spaces", ["training.batch=24", f"encoder.init={literature.model}"])
    read, graph = read_recipe(recipe), literature.graph
    assert read.training is not None
    samples = mine_samples(
        literature.corpus, parse_rules(recipe.table("mining")), tmp_path / "s", MiningInputs(graph=graph)
    )
    reader = load_start_model(read.encoder, "cpu").reader
    data = load_training_data(
        literature.corpus, samples, reader, read.encoder, read.training, tmp_path / "t", DataSources(graph=graph)
    )
    edges: dict[tuple[int, int], int] = {}
    for a, b, bits in zip(graph.sources().tolist(), graph.cited.targets.tolist(), graph.intents.tolist(), strict=True):
        for pair in ((a, b), (b, a)):
            edges[pair] = edges.get(pair, 0) | bits
    inputs = LossInputs(related=data.related, rules=data.rules)
    batches, losses = Batches(data.groups, read.training), read.training.losses
    locals_seen = 0
    for step in range(3):
        batch = batches.at(step)
        rows = data.rows[batch.papers]
        plain = batch.with_negatives_by([data.rules.index("global")])
        anchors, opposed = _pushed(plain, losses["in_batch"], inputs)
        assert not any((rows[a], rows[b]) in edges for a, b in zip(anchors, opposed, strict=True))
        for number, aspect in enumerate(data.aspects):
            own = batch.with_negatives_by([data.rules.index("local")]).of_aspect(number)
            pairs = zip(*_pushed(own, losses["aspect_in_batch"], inputs), strict=True)
            masks = [edges.get((rows[a], rows[b]), 0) for a, b in pairs]
            bit = {"background": 1, "method": 2, "result": 4}[aspect]
            assert not any(mask & bit for mask in masks)
            locals_seen += sum(mask > 0 for mask in masks)
    assert locals_seen > 20


def _pushed(batch: Batch, settings: Settings, inputs: LossInputs) -> tuple[list[int], list[int]]:
    """Anchors and the candidates that a loss pushes away from them, as places in the batch."""
    candidates = batch_candidates(batch)
    owner, column = np.nonzero(
        mark_negatives(
            batch, np.arange(len(batch.anchors)), candidates, inputs.related if settings["relatives"] else None
        )
    )
    return batch.anchors[owner].tolist(), candidates[column].tolist()


def test_relatives_share_three_references_and_not_two() -> None:
    cited = {0: [5, 6, 7], 1: [5, 6, 7], 2: [5, 6]}
    edges = [(paper, other) for paper, others in cited.items() for other in others]
    graph = graph_from_edges(*np.array(edges, np.int32).T, 8)
    titles = Column([f"title {row}" for row in range(8)])
    found = find_related_papers(SimpleNamespace(titles=titles), graph, np.arange(3))  # type: ignore[arg-type]
    assert [found.take(np.array([row])).papers.tolist() for row in range(3)] == [[1], [0], []]


class Column(list[str]):
    def take(self, rows: NDArray[np.int64]) -> list[str]:
        return [self[row] for row in rows.tolist()]
