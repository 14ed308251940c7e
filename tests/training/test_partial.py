"""Chosen parts: exactly they are trained, the rest stays as it was bit for bit, and low-rank layers begin at nothing."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from citeweave.core.errors import UserError
from citeweave.encoders.pooling import add_mix
from citeweave.training.options import EncoderOptions
from citeweave.training.partial import choose_parts, encoder_layers, heads_to_arrays, make_heads

from .conftest import refused

SIZES = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
IDS = torch.tensor([[1, 5, 7, 2], [1, 9, 2, 0]])


def make(kind: str = "Bert", **more: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**SIZES, **more)).eval()


def output(model: Any) -> Any:
    return model(input_ids=IDS).last_hidden_state


def step(model: Any, chosen: list[Any]) -> set[str]:
    """One step of gradient descent; the names of the parameters that it changed."""
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD([parameter for _, parameter in chosen], lr=0.1)
    output(model).square().mean(dim=(0, 1))[:5].sum().backward()
    optimizer.step()
    return {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}


@pytest.mark.parametrize("parts", ["all", "layers", "bias"])
@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_only_what_was_chosen_is_trained(parts, frozen):
    model = make()
    chosen = choose_parts(model, parts, frozen_layers=frozen)
    names = [name for name, _ in chosen]
    # gradients of gains are computed in BitFit and not used: without them torch loses those of shifts on CUDA
    shifts = [name for name in names if name.endswith("LayerNorm.bias")] if parts == "bias" else []
    gains = [name.replace(".bias", ".weight") for name in shifts]
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == {*names, *gains}
    wanted = {name for name, _ in model.named_parameters() if not name.startswith("pooler.")}
    if parts == "bias":
        wanted = {name for name in wanted if name.endswith(".bias")}
    if parts == "layers":
        wanted = {name for name in wanted if not name.startswith("embeddings.")}
    if frozen:
        below = ("embeddings.", *(f"encoder.layer.{number}." for number in range(frozen)))
        wanted = {name for name in wanted if not name.startswith(below)}
    assert set(names) == wanted
    changed = step(model, chosen)
    # keys' biases cancel in the softmax, so that their gradient is 0 up to rounding
    assert changed <= wanted and wanted - changed <= {name for name in wanted if name.endswith("key.bias")}


def test_low_rank_layers_begin_at_nothing_and_take_all_the_change():
    pytest.importorskip("peft", reason="pip install 'citeweave[lora]'")
    model = make()
    before = output(model).detach()
    chosen = choose_parts(model, "lora", lora_rank=2, frozen_layers=1)
    torch.testing.assert_close(output(model).detach(), before, rtol=0, atol=0)
    layers = [f"encoder.layer.{layer}.attention.self.{part}" for layer in (1, 2) for part in ("query", "value")]
    assert {name for name, _ in chosen} == {f"{layer}.lora_{side}.default.weight" for layer in layers for side in "AB"}
    assert {tuple(parameter.shape) for _, parameter in chosen} == {(2, 16), (16, 2)}
    assert step(model, chosen) == {name for name, _ in chosen if "lora_B" in name}  # A moves once B is no longer 0
    refused("already has low-rank layers", choose_parts, model, "lora")
    # they are drawn by the seed alone
    torch.manual_seed(1)
    first, state = dict(choose_parts(make(), "lora", seed=3)), torch.get_rng_state()
    second, other = (dict(choose_parts(make(), "lora", seed=seed)) for seed in (3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    for name, parameter in first.items():
        assert torch.equal(parameter, second[name])
        assert ("lora_B" in name) == torch.equal(parameter, other[name])


@pytest.mark.parametrize(("kind", "name"), [("ModernBert", "layers"), ("Roberta", "encoder.layer")])
def test_other_models_have_layers_too(kind, name):
    model = make(kind, pad_token_id=0)
    assert encoder_layers(model)[0] == name
    names = [name for name, _ in choose_parts(model, "all", frozen_layers=2)]
    assert names and not any(part.startswith(("embed", f"{name}.0.", f"{name}.1.")) for part in names)
    if kind == "ModernBert":
        pytest.importorskip("peft", reason="pip install 'citeweave[lora]'")
        lora = [part for part, _ in choose_parts(make(kind, pad_token_id=0), "lora", lora_rank=2)]
        assert len(lora) == 2 * 4 * 3  # A and B of four linear layers in three layers


def test_a_mix_of_layers_is_always_trained():
    model = make()
    add_mix(model)
    assert "layer_mix" in dict(choose_parts(model, "bias", frozen_layers=2))


WRONG_OPTIONS = [
    ("biases", {}, "training.parts is 'biases'; it must be one of all, bias, heads, layers, lora. Did you mean 'bias'"),
    ("all", {"frozen_layers": 4}, "frozen_layers is 4; this model has 3 layers, so it must be from 0 to 3"),
    ("all", {"frozen_layers": -1}, "frozen_layers is -1"),
    ("all", {"frozen_layers": 3}, "leaves nothing of this bert model to train"),
    ("lora", {"lora_rank": 0}, "lora_rank is 0; for layers of 16 numbers it must be from 1 to 16"),
    ("lora", {"lora_rank": 17}, "lora_rank is 17"),
    ("lora", {"frozen_layers": 3}, "leaves nothing"),
    ("Albert", {"frozen_layers": 1}, "albert model has no list of 3 layers"),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "options", "message"), WRONG_OPTIONS)
def test_wrong_options_are_refused(parts, options, message):
    if parts == "lora":
        pytest.importorskip("peft", reason="pip install 'citeweave[lora]'")
    model, parts = (make("Albert", embedding_size=8), "all") if parts == "Albert" else (make(), parts)
    refused(message, choose_parts, model, parts, **options)


def test_heads_that_start_at_the_identity_are_the_encoders_own_space():
    vectors = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    heads = heads_to_arrays(make_heads(("method",), 6, EncoderOptions(heads="linear", head_start="identity"), seed=0))
    np.testing.assert_array_equal(heads.project(vectors, "method"), vectors)
    for changes in ({"heads": "two_layers"}, {"heads": "linear", "head_size": 3}):
        with pytest.raises(UserError, match="encoder.head_start is 'identity'"):
            make_heads(("method",), 6, EncoderOptions(head_start="identity", **changes), seed=0)
