"""Losses equal, in value and gradient, those recorded (shared/fixtures/losses) and sentence-transformers' own classes."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.training import contrastive_losses as contrastive  # noqa: E402
from citeweave.training import pairwise_losses as pairwise  # noqa: E402

Tensors = dict[str, Any]
TOLERANCES = {"float64": 1e-8, "float32": 1e-4}


def whole_batch(temperature: float) -> Callable[..., Any]:
    def loss(anchor, positive, *negatives):
        others = [rival.flatten(0, -2) for rival in negatives]
        places = torch.arange(len(anchor))
        return contrastive.in_batch(anchor, torch.cat([positive, *others]), places, temperature=temperature)

    return loss


def both_directions(anchor, positive):
    loss = whole_batch(1 / 20)
    return (loss(anchor, positive) + loss(positive, anchor)) / 2


def supcon_of_the_batch(anchor, positives, negatives):
    groups = torch.arange(len(anchor))
    owner = torch.cat([groups.repeat_interleave(positives.shape[1]), torch.full((negatives[..., 0].numel(),), -1)])
    candidates = torch.cat([positives.flatten(0, 1), negatives.flatten(0, 1)])
    return contrastive.supcon_in_batch(anchor, candidates, groups[:, None] == owner)


def labels_of(loss: Callable[..., Any]) -> Callable[..., Any]:
    return lambda anchor, positive, negative: loss(*pairwise.triplets_as_pairs(anchor, positive, negative))


OURS: dict[str, Callable[..., Any]] = {
    "triplet_margin_torch_mean": lambda *vectors: pairwise.triplet(*vectors, epsilon=1e-6),
    "triplet_margin_torch_sum": lambda *vectors: pairwise.triplet(*vectors, epsilon=1e-6, reduction="sum"),
    "triplet_margin_st": pairwise.triplet,
    "triplet_margin_grouped_1_1_5": lambda a, p, n: pairwise.triplet(a[:, None], p[:, None], n),
    "infonce_own_triplet_tau0.1": lambda a, p, n: contrastive.info_nce(a, p, n[:, None], temperature=0.1),
    "infonce_own_grouped_1_1_5_tau0.1": lambda a, p, n: contrastive.info_nce(a, p, n, temperature=0.1),
    **{f"infonce_inbatch_{kind}_tau0.1": whole_batch(0.1) for kind in ("triplet", "pairs", "grouped_1_1_5")},
    "supcon_own_grouped_m_n_tau0.05": contrastive.supcon,
    "supcon_inbatch_grouped_m_n_tau0.05": supcon_of_the_batch,
    "supcon_own_grouped_1_1_5_tau0.05": lambda a, p, n: contrastive.supcon(a, p[:, None], n),
    "cosent_pairs_scale20": pairwise.cosent,
    "angle_pairs_scale20": pairwise.angle,
    "angle_pairs_odd_dim_scale20": pairwise.angle,
    "cosent_pairs_odd_dim_scale20": pairwise.cosent,
    "angle_triplets_scale20": labels_of(pairwise.angle),
    "cosent_triplets_as_pairs_scale20": labels_of(pairwise.cosent),
    **{f"mnrl_{kind}_scale20": whole_batch(1 / 20) for kind in ("pairs", "triplets", "grouped_1_1_5")},
    "mnrl_symmetric_pairs_scale20": both_directions,
}
OTHER_FORM = "supcon_L_in_own_grouped_m_n_tau0.05"


class Recorded(NamedTuple):
    inputs: dict[str, Any]
    expected: dict[str, Any]

    def vectors(self, name: str, kind: str) -> Tensors:
        """The inputs an entry has gradients for, and labels; an entry may use only some of its group."""
        group, wanted = self.inputs[self.expected[name]["inputs"]], self.expected[name]["grad"]
        found = {key: torch.tensor(group[key], dtype=getattr(torch, kind)) for key in group if key in wanted}
        for tensor in found.values():
            tensor.requires_grad_()
        return found | ({"labels": torch.tensor(group["labels"])} if "labels" in group else {})


@pytest.fixture(scope="module")
def recorded(shared) -> Recorded:
    folder = shared / "fixtures" / "losses"
    if not folder.is_dir():
        pytest.skip(f"no recorded losses at {folder}; set CITEWEAVE_SHARED to run this test")
    inputs, expected = (json.loads((folder / name).read_text()) for name in ("inputs.json", "expected.json"))
    return Recorded(inputs, expected["losses"])


def test_every_recorded_loss_is_compared(recorded):
    assert recorded.expected.keys() == OURS.keys() | {OTHER_FORM}


@pytest.mark.parametrize("kind", TOLERANCES)
@pytest.mark.parametrize("name", OURS)
def test_recorded_values_and_gradients(recorded, name, kind):
    vectors, expected = recorded.vectors(name, kind), recorded.expected[name]
    loss = OURS[name](*vectors.values())
    assert loss.dtype == getattr(torch, kind)
    assert loss.item() == pytest.approx(expected["loss"], abs=TOLERANCES[kind])
    loss.backward()
    for key, gradient in expected["grad"].items():
        assert np.allclose(vectors[key].grad, gradient, rtol=0, atol=TOLERANCES[kind]), key


def test_supcon_is_not_the_other_form(recorded):
    name = "supcon_own_grouped_m_n_tau0.05"
    ours = contrastive.supcon(*recorded.vectors(name, "float64").values()).item()
    assert abs(ours - recorded.expected[OTHER_FORM]["loss"]) > 1


def random_vectors(seed: int, *shapes: tuple[int, ...]) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def same_value_and_gradients(ours: Any, theirs: Any, vectors: list[Any]) -> None:
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-9)
    for mine, other in zip(torch.autograd.grad(ours, vectors), torch.autograd.grad(theirs, vectors), strict=True):
        assert torch.allclose(mine, other, atol=1e-9)


@pytest.fixture(scope="module")
def peers():
    return pytest.importorskip("sentence_transformers.sentence_transformer.losses", reason="an older release")


@pytest.mark.parametrize("distance", ["l2", "cosine"])
def test_triplet_as_sentence_transformers(peers, distance):
    vectors = random_vectors(1, (9, 7), (9, 7), (9, 7))
    metrics = peers.TripletDistanceMetric
    metric = metrics.EUCLIDEAN if distance == "l2" else metrics.COSINE
    theirs = peers.TripletLoss(None, metric, 0.7).compute_loss_from_embeddings(vectors, None)
    same_value_and_gradients(pairwise.triplet(*vectors, distance=distance, margin=0.7), theirs, vectors)


@pytest.mark.parametrize("dimension", [6, 7])
@pytest.mark.parametrize("name", ["CoSENTLoss", "AnglELoss"])
def test_ranking_as_sentence_transformers(peers, name, dimension):
    vectors = random_vectors(2, (11, dimension), (11, dimension))
    labels = torch.tensor([0.0, 0.5, 1.0, 0.5, 0.2, 0.2, 1.0, 0.0, 0.1, 0.9, 0.5])
    theirs = getattr(peers, name)(None, scale=13.0).compute_loss_from_embeddings(vectors, labels)
    ours = {"CoSENTLoss": pairwise.cosent, "AnglELoss": pairwise.angle}[name]
    same_value_and_gradients(ours(*vectors, labels, scale=13.0), theirs, vectors)


@pytest.mark.parametrize("negatives", [0, 1, 3])
@pytest.mark.parametrize("name", ["in_batch", "gte"])
def test_in_batch_losses_as_sentence_transformers(peers, name, negatives):
    anchors, positives, *rivals = vectors = random_vectors(3, (6, 5), (6, 5), *[(6, 5)] * negatives)
    ways = {"in_batch": ["query_to_doc"], "gte": ["query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc"]}[name]
    peer = peers.MultipleNegativesRankingLoss(None, scale=12.0, directions=tuple(ways))
    theirs = peer.compute_loss_from_embeddings(vectors, None)
    if name == "in_batch":
        ours = contrastive.in_batch(anchors, torch.cat([positives, *rivals]), torch.arange(6), temperature=1 / 12)
    else:
        stacked = torch.stack(rivals, 1) if rivals else None
        ours = contrastive.gte(anchors, positives, negatives=stacked, temperature=1 / 12)
    same_value_and_gradients(ours, theirs, vectors)


def test_triplet_as_torch():
    vectors = random_vectors(4, (9, 7), (9, 7), (9, 7))
    theirs = torch.nn.TripletMarginLoss()(*vectors)
    same_value_and_gradients(pairwise.triplet(*vectors, epsilon=1e-6), theirs, vectors)


def test_masked_language_as_transformers():
    modeling = pytest.importorskip("transformers.loss.loss_utils")
    (logits,) = vectors = random_vectors(5, (6, 9))
    labels = torch.tensor([3, -100, 1, 8, -100, 0])
    theirs = modeling.ForMaskedLMLoss(logits, labels, vocab_size=9)
    chosen = labels >= 0
    ours = pairwise.masked_language(logits[chosen], labels[chosen])
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-5)  # theirs is in float32
    (gradient,) = torch.autograd.grad(ours, vectors)
    assert not gradient[~chosen].any() and gradient[chosen].abs().sum() > 0
