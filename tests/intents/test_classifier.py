"""A classifier's folder may come from a stranger: what does not fit is told before anything is computed."""

import json
from typing import Any

import pytest

from citeweave.core.errors import ArtifactError
from citeweave.intents.classifier import ClassifierConfig

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.intents.network import load_delta, save_delta  # noqa: E402

SOUND: dict[str, Any] = {
    "task": "scicite",
    "labels": {"scicite": ["result", "background", "method"]},
    "base": "minilm",
    "base_revision": "1",
    "parts": "lora",
    "pooling": "mean",
    "rank": 2,
    "scale": 2.0,
    "biases": True,
    "max_tokens": 160,
    "precision": "float16",
    "temperature": 1.5,
    "thresholds": [0.5, 0.5, 0.5],
    "marking_version": 1,
}


@pytest.mark.parametrize(
    "change",
    [
        {"rank": "2"},
        {"rank": -1},
        {"max_tokens": 1},
        {"max_tokens": 1.5},
        {"scale": None},
        {"temperature": 0},
        {"temperature": 1e-320},
        {"temperature": float("nan")},
        {"thresholds": [0.5]},
        {"labels": {"scicite": []}, "thresholds": []},
        {"labels": {"scicite": ["method", "method", "result"]}},
        {"labels": {"a.b": ["x", "y", "z"]}, "task": "a.b"},
        {"labels": 3},
        {"task": "other"},
        {"base": 5},
        {"more": 1},
    ],
    ids=str,
)
def test_a_config_that_cannot_be_right_is_refused(change, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SOUND))
    assert ClassifierConfig.read(path).labels == {"scicite": ("result", "background", "method")}
    path.write_text(json.dumps({**SOUND, **change}))
    with pytest.raises(ArtifactError, match="does not describe a classifier"):
        ClassifierConfig.read(path)


def test_weights_that_cannot_be_right_are_refused(tmp_path):
    import safetensors.torch

    path = tmp_path / "delta.safetensors"
    save_delta(path, {"low.x.down": torch.ones(3, 2)}, "int8")
    stored = safetensors.torch.load_file(path)
    for scale in (torch.ones(2), torch.ones(()), torch.ones(3, 1)):
        safetensors.torch.save_file({**stored, "low.x.down.scale": scale}, path)
        with pytest.raises(ArtifactError, match="a scale of another shape than low.x.down"):
            load_delta(path)
    safetensors.torch.save_file({**stored, "low.x.down.scale": torch.tensor([1.0, float("nan"), 1.0])}, path)
    with pytest.raises(ArtifactError, match="not finite"):
        load_delta(path)
