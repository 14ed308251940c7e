"""MPNet with fused attention gives the states and gradients of transformers."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
transformers = pytest.importorskip("transformers", reason="pip install 'citeweave[minilm]'")

from citeweave.encoders.mpnet_attention import fuse_attention  # noqa: E402
from citeweave.encoders.network import Network, load_network  # noqa: E402

LENGTHS = (5, 40, 17, 1, 30)


def make() -> Any:
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 48}
    model = transformers.MPNetModel(transformers.MPNetConfig(vocab_size=60, max_position_embeddings=64, **shape)).eval()
    with torch.no_grad():
        for weight in model.parameters():  # as drawn, attention is nearly even and errors would not show
            weight.add_(torch.randn_like(weight) * 0.2)
    return model


def texts() -> list[Any]:
    draw = np.random.default_rng(0)
    return [draw.integers(3, 60, length) for length in LENGTHS]


def read(model: Any) -> tuple[Any, dict[str, Any]]:
    """States of real tokens, and every gradient of a loss on them."""
    model.zero_grad()
    (states, *_), mask = Network(model, "cpu", 1).padded(texts())
    real = states[mask.bool()]
    (real * torch.linspace(-1, 1, 32)).tanh().sum().backward()
    return real.detach(), {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def test_states_and_gradients_are_those_of_transformers():
    states, gradients = read(make())
    fused, own = read(fuse_attention(make()))
    torch.testing.assert_close(fused, states, rtol=1e-4, atol=1e-4)
    assert own.keys() == gradients.keys() and "encoder.relative_attention_bias.weight" in own
    for name, gradient in gradients.items():
        torch.testing.assert_close(own[name], gradient, rtol=1e-3, atol=1e-3 * float(gradient.abs().max()), msg=name)


def test_every_layer_is_shown_and_half_precision_is_close():
    plain, fused = make(), fuse_attention(make())
    with torch.no_grad():
        every, mask = Network(plain, "cpu", 1).padded(texts(), every=True)
        own, _ = Network(fused, "cpu", 1).padded(texts(), every=True)
        assert len(own) == len(every) == 4
        for ours, theirs in zip(own, every, strict=True):
            torch.testing.assert_close(ours[mask.bool()], theirs[mask.bool()], rtol=1e-4, atol=1e-4)
        with torch.autocast("cpu", torch.bfloat16):
            (rough,), _ = Network(fused, "cpu", 1).padded(texts())
    assert float((rough[mask.bool()] - every[-1][mask.bool()]).norm() / every[-1][mask.bool()].norm()) < 0.05


def test_dropout_of_attention_acts_in_training_alone():
    fused = fuse_attention(make()).train()
    (first, *_), _ = Network(fused, "cpu", 1).padded(texts())
    (second, *_), _ = Network(fused, "cpu", 1).padded(texts())
    assert not torch.equal(first, second)


def test_a_loaded_mpnet_is_fused(tmp_path):
    make().save_pretrained(tmp_path)
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4, **{f"w{n}": n for n in range(5, 60)}}
    tokenizers = pytest.importorskip("tokenizers")
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=own, pad_token="<pad>", unk_token="<unk>")
    tokenizer.save_pretrained(tmp_path)
    network, _ = load_network(tmp_path, "cpu", "float32")
    assert network.model.encoder.forward.__func__.__module__ == "citeweave.encoders.mpnet_attention"
    states, _ = read(make())
    torch.testing.assert_close(read(network.model)[0], states, rtol=1e-4, atol=1e-4)
