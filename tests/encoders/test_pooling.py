"""Vectors of texts as the settings ask for them, with gradients."""

from __future__ import annotations

import numpy as np
import pytest

from citeweave.encoders.model_folder import Settings
from citeweave.encoders.network import Network
from citeweave.encoders.pooling import text_vectors

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
transformers = pytest.importorskip("transformers", reason="pip install 'citeweave[minilm]'")


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48
    )
    return Network(transformers.BertModel(config).eval(), "cpu", 0)


BATCH = [np.arange(3, 9), np.arange(10, 31), np.array([7])]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pooling", ["cls", "mean", "layers"])
def test_vectors_are_those_of_each_text_alone(network, pooling, normalize, packed):
    vectors = text_vectors(Network(network.model, "cpu", 0, packed=packed), BATCH, Settings(pooling, 48, normalize))
    for ids, vector in zip(BATCH, vectors, strict=True):
        layers = network.model(torch.from_numpy(ids)[None], output_hidden_states=True).hidden_states
        last = {"cls": layers[-1][0, 0], "mean": layers[-1][0].mean(0), "layers": torch.stack(layers).mean((0, 2))[0]}
        wanted = last[pooling] / last[pooling].norm() if normalize else last[pooling]
        torch.testing.assert_close(vector, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pooling", ["cls", "mean", "layers"])
def test_gradients_reach_every_layer(network, pooling):
    network.model.zero_grad()
    text_vectors(network, BATCH, Settings(pooling, 48)).pow(2).sum().backward()
    for layer in network.model.encoder.layer:
        assert float(layer.attention.self.value.weight.grad.abs().max()) > 0
    with torch.inference_mode():
        assert not text_vectors(network, BATCH, Settings(pooling, 48)).requires_grad
