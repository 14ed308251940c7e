"""The network: merging changes nothing, pooling reads the mark, deltas carry everything over."""

import numpy as np
import pytest

from citeweave.encoders.encoder import load_encoder
from citeweave.intents.citances import Citance
from citeweave.intents.options import POOLINGS, ClassifierOptions

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.intents.network import build_network, load_base, predict_logits  # noqa: E402

CITANCES = [
    Citance("we find that models learn [3] from data", section="1 Data"),
    Citance("a cell grows"),
    Citance("graphs"),
    Citance("the paper (Li, 2001) shows [4] how models learn in graphs of citations", span=(10, 20)),
]


def make(folder, **options):
    base = load_base(str(folder), 32, "cpu")
    return build_network(base, ClassifierOptions(rank=4, **options), {"scicite": 3})


def changed(network):
    generator = torch.Generator().manual_seed(5)
    delta = network.delta().items()
    return {name: value + 0.1 * torch.randn(value.shape, generator=generator) for name, value in delta}


@pytest.mark.parametrize("parts", ["lora", "all", "head"])
def test_merged_is_unmerged(marked_bert, parts):
    network = make(marked_bert, parts=parts)
    plain = predict_logits(network, CITANCES, "scicite")
    delta = changed(network)
    network.apply_delta(delta)
    before = predict_logits(network, CITANCES, "scicite")
    assert np.abs(before - plain).max() > 0.01
    names = set(network.delta())
    network.merge()
    np.testing.assert_allclose(predict_logits(network, CITANCES, "scicite"), before, atol=1e-5)
    other = make(marked_bert, parts=parts)
    assert set(other.delta()) == names
    other.apply_delta(delta)
    np.testing.assert_allclose(predict_logits(other, CITANCES, "scicite"), before, atol=1e-5)


def test_a_new_network_is_the_encoder(marked_bert):
    network = make(marked_bert, pooling="mean")
    encoder = load_encoder(marked_bert, pooling="mean", max_tokens=32)
    found = network.vectors(network.base.reader.read([CITANCES[1]])).detach().numpy()
    np.testing.assert_allclose(found, encoder.encode([CITANCES[1].text]), atol=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling_by_hand(marked_bert, pooling):
    network = make(marked_bert, pooling=pooling).eval()
    batch = network.base.reader.read(CITANCES)
    found = network.vectors(batch).detach()  # (texts, width)
    for row, tokens in enumerate(batch):
        states = network.encoder(torch.from_numpy(tokens.ids)[None]).last_hidden_state[0].detach()  # (tokens, 32)
        marks = states[tokens.marks] if len(tokens.marks) else states
        hand = {"mean": states.mean(0), "cls": states[0], "mark": marks.mean(0)}
        hand["mean+mark"] = torch.cat([hand["mean"], hand["mark"]])
        torch.testing.assert_close(found[row], hand[pooling], atol=1e-5, rtol=1e-4)


def test_what_is_trained(marked_bert):
    network = make(marked_bert)
    names = [name for name, _ in network.trained()]
    assert sum(".down" in name for name in names) == 2 * 6  # six linear layers in each of two
    assert not any("pooler" in name or "original" in name or "word_embeddings" in name for name in names)
    assert {name.partition(".")[0] for name, _ in make(marked_bert, parts="head").trained()} == {"heads"}
    bare = [name for name, _ in make(marked_bert, biases=False).trained()]
    assert not any(name.endswith("bias") and name.startswith("encoder") for name in bare)
    # gradients reach the change and the mark
    network.logits(network.base.reader.read(CITANCES), "scicite").sum().backward()
    assert network.rows.change.grad is not None and network.rows.change.grad.abs().sum() > 0
    assert all(value.grad is not None for name, value in network.trained() if name.endswith("up"))


def test_a_tokenizer_without_unused_tokens(bert):
    network = make(bert)
    tokens = network.base.reader.read([CITANCES[0]])[0]
    assert len(tokens.marks) > 1  # the pieces of a word
    assert np.isfinite(predict_logits(network, CITANCES, "scicite")).all()
