"""Training with the pooling aspect_words: its layer learns, a cut run ends as a whole one, a bundle carries the words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from citeweave.core.errors import UserError
from citeweave.encoders.encoder import load_encoder
from citeweave.training import trainer
from citeweave.training.bundle import make_bundle, train_bundle
from citeweave.training.load_data import DataSources
from citeweave.training.options import EncoderOptions, TrainingOptions, TrainingPlan
from citeweave.training.train import EncoderRun, train_encoder

from .conftest import Literature

FILES = ("model.safetensors", "aspect_words/model.safetensors")


def plan_of(paired: Literature, **changes: Any) -> TrainingPlan:
    training = TrainingOptions(
        **{
            "losses": {"in_batch": {}},
            "unit": "groups",
            "batch": 8,
            "steps": 4,
            "learning_rate": 1e-3,
            "validation": 0.2,
            "checkpoint_every": 2,
            **changes,
        }
    )
    return TrainingPlan(EncoderOptions(init=str(paired.model), pooling="aspect_words"), training)


def train(paired: Literature, folder: Path, **changes: Any) -> EncoderRun:
    sources, plan = DataSources(graph=paired.graph), plan_of(paired, **changes)
    return train_encoder(paired.corpus, paired.samples, folder, plan, sources=sources, device="cpu")


class _Power(Exception):
    """The power is cut."""


def test_the_layer_learns_and_a_cut_run_or_a_bundle_ends_the_same(
    paired: Literature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(paired, tmp_path / "whole").folder
    words = load_file(whole / FILES[1])
    assert np.abs(words["weight"] - np.eye(32)).max() > 1e-3 and np.abs(words["bias"]).max() > 1e-3
    start = load_encoder(paired.model, pooling="aspect_words", device="cpu")
    np.testing.assert_array_equal(words["queries"], start.network.model.aspect_words.queries.numpy())
    assert load_encoder(whole, device="cpu").settings.pooling == "aspect_words"

    step = trainer._TrainingLoop._step

    def cut_step(loop: Any, number: int) -> None:
        if number == 3:
            raise _Power
        step(loop, number)

    with monkeypatch.context() as patched:
        patched.setattr(trainer._TrainingLoop, "_step", cut_step)
        with pytest.raises(_Power):
            train(paired, tmp_path / "cut")
    sources = DataSources(graph=paired.graph)
    plan = plan_of(paired)
    bundle = make_bundle(paired.corpus, paired.samples, tmp_path / "bundle", plan, sources=sources, weights="float32")
    runs = (train(paired, tmp_path / "cut"), train_bundle(bundle, tmp_path / "bundled", device="cpu"))
    for name in FILES:
        for run in runs:
            assert (run.folder / name).read_bytes() == (whole / name).read_bytes()


def test_a_delta_has_the_words_and_losses_on_sentences_are_refused(paired: Literature, tmp_path: Path) -> None:
    whole = train(paired, tmp_path / "bias", parts="bias", steps=2).folder
    texts = ["a paper shows[SEP]We find how. The cell grows."]
    found = [load_encoder(place, device="cpu").encode(texts) for place in (whole, whole / "delta")]
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
    with pytest.raises(UserError, match="encoder.pooling is 'aspect_words', and losses on sentences"):
        train(paired, tmp_path / "sentences", losses={"sentence_in_batch": {}})
