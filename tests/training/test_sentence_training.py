"""Training on sentences, on CPU: pairs without negatives suffice, parts give the same step, it resumes to the bit."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from safetensors.numpy import load_file  # noqa: E402

from citeweave.core.errors import UserError  # noqa: E402
from citeweave.core.progress import QUIET  # noqa: E402
from citeweave.training import trainer  # noqa: E402
from citeweave.training.batches import Batches  # noqa: E402
from citeweave.training.data import TrainingData, make_groups, make_lists  # noqa: E402
from citeweave.training.distributed import ProcessGroup  # noqa: E402
from citeweave.training.load_data import DataSources, load_training_data  # noqa: E402
from citeweave.training.options import (  # noqa: E402
    EncoderOptions,
    TrainingOptions,
    TrainingPlan,
)
from citeweave.training.train import EncoderRun, load_start_model, prepare_run, train_encoder  # noqa: E402  # noqa: E402
from citeweave.training.validation import held_out_triplets  # noqa: E402

from .conftest import Literature  # noqa: E402

SMALL = TrainingOptions(batch=6, unit="groups", steps=3, learning_rate=1e-3, validation=0.2, checkpoint_every=1)
LOSSES: dict[str, dict[str, Any]] = {
    "single": {"sentence_triplet": {"distance": "single"}},
    "attention": {"sentence_triplet": {"distance": "attention"}},
    "transport": {"sentence_triplet": {}},
    "peer": {"sentence_triplet": {"mode": "geomloss"}},
    "aligned": {"aligned_triplet": {}},
    "both": {"aligned_triplet": {}, "sentence_triplet": {}},
    "matches": {"sentence_in_batch": {"facets": 0.5, "whole": 0.3}},
    "papers": {"in_batch": {}},
}


def train(paired: Literature, folder: Path, **changes: Any) -> EncoderRun:
    plan = TrainingPlan(EncoderOptions(init=str(paired.model)), dataclasses.replace(SMALL, **changes))
    return train_encoder(
        paired.corpus, paired.samples, folder, plan, sources=DataSources(graph=paired.graph), device="cpu"
    )


@pytest.mark.parametrize("name", LOSSES)
def test_pairs_without_negatives_train(paired: Literature, tmp_path: Path, name: str) -> None:
    assert not len(paired.samples.negatives.rows)
    run = train(paired, tmp_path / "model", losses=LOSSES[name], block=1, dropout=0.0)
    before, after = (load_file(folder / "model.safetensors") for folder in (paired.model, run.folder))
    moved = [key for key in after if key in before and np.abs(after[key] - before[key]).max() > 1e-4]
    assert len(moved) > 10, "the loss has no gradient"
    assert 0 < run.before["accuracy"] < 1 and 0 < run.after["accuracy"] < 1
    lines = [json.loads(line) for line in (run.folder / "training" / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses and all(0 < loss < 100 for loss in losses)


def test_learning_by_sentences_lowers_the_loss(paired: Literature, tmp_path: Path) -> None:
    run = train(
        paired, tmp_path / "model", losses=LOSSES["single"], steps=40, batch=12, checkpoint_every=0, dropout=0.0
    )
    lines = [json.loads(line) for line in (run.folder / "training" / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < 0.9 * losses[0]


def gathered(paired: Literature, folder: Path, options: TrainingOptions) -> tuple[Any, TrainingData]:
    encoder = EncoderOptions(init=str(paired.model))
    start, sources = load_start_model(encoder, "cpu"), DataSources(graph=paired.graph)
    return start, load_training_data(paired.corpus, paired.samples, start.reader, encoder, options, folder, sources)


@pytest.mark.parametrize("name", ["transport", "both", "matches"])
def test_a_step_in_parts_is_the_step_at_once(paired: Literature, tmp_path: Path, name: str) -> None:
    whole = TrainingOptions(losses=LOSSES[name], batch=8, unit="groups", dropout=0.0, micro_tokens=100_000)
    found = []
    for options in (whole, dataclasses.replace(whole, micro_tokens=200)):
        start, data = gathered(paired, tmp_path / "tokens", options)
        run = prepare_run(start, data, TrainingPlan(training=options), ProcessGroup(), QUIET)
        start.network.model.train()
        batch = Batches(data.groups, options).at(0)
        assert int(data.tokens.lengths()[batch.papers].sum()) > 400
        loss = float(run.stepper.backward(batch, 0))
        found.append((loss, [weight.grad.numpy() for weight in run.weights.values() if weight.grad is not None]))
    (at_once, gradients), (in_parts, others) = found
    assert in_parts == pytest.approx(at_once, rel=1e-5) and at_once > 0
    assert len(gradients) == len(others) > 10 and max(np.abs(gradient).max() for gradient in gradients) > 1e-3
    for one, other in zip(gradients, others, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-5 * max(1, np.abs(one).max()))


class _Power(Exception):
    """The power is cut."""


def test_an_interrupted_run_ends_as_an_uninterrupted_one(
    paired: Literature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(paired, tmp_path / "whole", losses=LOSSES["both"])
    step = trainer._TrainingLoop._step

    def cut_step(loop: Any, number: int) -> None:
        if number == 2:
            raise _Power
        step(loop, number)

    with monkeypatch.context() as patched:
        patched.setattr(trainer._TrainingLoop, "_step", cut_step)
        with pytest.raises(_Power):
            train(paired, tmp_path / "cut", losses=LOSSES["both"])
    again = train(paired, tmp_path / "cut", losses=LOSSES["both"])
    weights = [(folder / "model.safetensors").read_bytes() for folder in (tmp_path / "whole", tmp_path / "cut")]
    assert weights[0] == weights[1] and again.after == whole.after


def test_aligned_sentences_are_those_of_the_samples(paired: Literature, tmp_path: Path) -> None:
    _, data = gathered(paired, tmp_path / "tokens", dataclasses.replace(SMALL, losses=LOSSES["aligned"]))
    known, spans = paired.samples.alignment, data.sentences
    assert known is not None and spans is not None and data.alignment is not None
    anchors = np.searchsorted(data.rows, paired.samples.anchors[paired.samples.positives.owners()])
    positives = np.searchsorted(data.rows, paired.samples.positives.rows)
    found = data.alignment.find(anchors, positives)
    inside = found[:, 0] >= 0
    assert 0.3 < inside.mean() <= 1
    first: dict[tuple[int, int], tuple[int, int]] = {}
    for pair, *numbers in zip(zip(anchors.tolist(), positives.tolist(), strict=True), known.anchor_sentences, known.sentences, strict=True):  # fmt: skip
        own = [spans.numbers[spans.offsets[paper] : spans.offsets[paper + 1]].tolist() for paper in pair]
        if all(number in there for number, there in zip(numbers, own, strict=True)):
            first.setdefault(pair, (own[0].index(numbers[0]), own[1].index(numbers[1])))
    pairs = zip(anchors.tolist(), positives.tolist(), strict=True)
    assert [tuple(row) for row in found.tolist()] == [first.get(pair, (-1, -1)) for pair in pairs]


def test_pairs_that_are_held_back_meet_papers_of_others() -> None:
    groups = make_groups([0, 1, 2, 3], [[4], [5, 6], [7], [8, 9]], [[]] * 4)
    known = make_lists([[8], [], [], [], *[[]] * 6])
    data: Any = TrainingData(np.arange(10), None, groups, groups, related=known)  # type: ignore[arg-type]
    triplets = held_out_triplets(data)[0].tolist()
    assert len(triplets) == 5
    for anchor, positive, negative in triplets:
        assert negative not in (anchor, positive, *known.take(np.array([anchor])).papers)
    alone = dataclasses.replace(data, validation=groups.take(np.array([0])))
    assert held_out_triplets(alone)[0].shape == (0, 3)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [({"pooling": "mix"}, "pooling is 'mix', and losses on sentences"), ({"text": ("title",)}, "encoder.text is")],
)
def test_what_has_no_sentences_is_told(
    paired: Literature, tmp_path: Path, encoder: dict[str, Any], message: str
) -> None:
    plan = TrainingPlan(
        EncoderOptions(str(paired.model), **encoder), dataclasses.replace(SMALL, losses=LOSSES["single"])
    )
    with pytest.raises(UserError, match=message):
        train_encoder(
            paired.corpus, paired.samples, tmp_path / "m", plan, sources=DataSources(graph=paired.graph), device="cpu"
        )
