"""Checkpoints: weights and moments come back to the bit; those of another model are refused."""

import pytest
import torch

from citeweave.core.errors import ArtifactError
from citeweave.training.checkpoints import load_checkpoint, save_checkpoint

from .conftest import refused


def new(size: int, seed: int = 0) -> tuple[dict[str, torch.Tensor], torch.optim.Optimizer]:
    torch.manual_seed(seed)
    weights = {name: torch.nn.Parameter(torch.randn(size, 2)) for name in ("a", "b")}
    return weights, torch.optim.AdamW(weights.values(), lr=0.1)


def step(weights: dict[str, torch.Tensor], optimizer: torch.optim.Optimizer, number: int) -> None:
    for weight in weights.values():
        weight.grad = torch.sin(weight.detach() * (number + 1))
    optimizer.step()


@pytest.mark.parametrize("missed", [False, True])
def test_training_resumes_to_the_bit(tmp_path, missed):
    """Also where a weight missed steps, as the head of an aspect does that no sample of a batch has."""
    weights, optimizer = new(3)
    for number in range(3):
        step({"a": weights["a"]} if missed and number else weights, optimizer, number)
        optimizer.zero_grad()
    save_checkpoint(tmp_path, 3, weights, optimizer, {"note": "x"})
    again, other = new(3, seed=1)
    assert load_checkpoint(tmp_path, again, other) == {"step": 3, "note": "x"}
    for number in range(3, 6):
        step(weights, optimizer, number)
        step(again, other, number)
    assert all(torch.equal(weights[name], again[name]) for name in weights)


def test_only_the_last_two_stay_and_those_of_another_model_are_refused(tmp_path):
    assert load_checkpoint(tmp_path / "none", *new(3)) is None
    for number in range(1, 5):
        save_checkpoint(tmp_path, number, *new(3), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000004"]
    size = r"a has shape \[3, 2\], and this model's \[4, 2\]; the start model has another size"
    refused(size, load_checkpoint, tmp_path, *new(4))
    fewer, other = new(3)
    del fewer["b"]
    refused("holds other weights", load_checkpoint, tmp_path, fewer, other, error=ArtifactError)


@pytest.mark.parametrize("name", ["weights.safetensors", "moments.safetensors", "state.json"])
def test_a_changed_checkpoint_is_passed_over(tmp_path, name):
    weights, optimizer = new(3)
    for number in (1, 2):
        step(weights, optimizer, number)
        save_checkpoint(tmp_path, number, weights, optimizer, {"note": "x"})
    path = tmp_path / "step-00000002" / name
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    assert load_checkpoint(tmp_path, *new(3, seed=1)) == {"step": 1, "note": "x"}
