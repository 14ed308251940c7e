"""The network: what is saved is what was trained, pooling reads the mark, gradients reach the chosen parts."""

import numpy as np
import pytest

from citeweave.encoders.encoder import load_encoder
from citeweave.intents.citances import Citance
from citeweave.intents.options import POOLINGS, ClassifierOptions

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
pytest.importorskip("peft", reason="pip install 'citeweave[lora]'")

from citeweave.intents.network import TrainableIntentNetwork, load_base, load_network, predict_logits  # noqa: E402

CITANCES = [
    Citance("we find that models learn [3] from data", section="1 Data"),
    Citance("a cell grows"),
    Citance("graphs"),
    Citance("the paper (Li, 2001) shows [4] how models learn in graphs of citations", span=(10, 20)),
]


def make(folder, **options):
    return TrainableIntentNetwork(load_base(folder, 32, "cpu"), ClassifierOptions(rank=4, **options), {"scicite": 3})


@pytest.mark.parametrize(
    ("parts", "precision"), [("lora", "float16"), ("lora", "int8"), ("all", "float16"), ("head", "int8")]
)
def test_what_is_saved_is_what_was_trained(marked_bert, tmp_path, parts, precision):
    network = make(marked_bert, parts=parts)
    plain = predict_logits(network, CITANCES, "scicite")
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in network.weights.values():
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
    trained = predict_logits(network, CITANCES, "scicite")
    assert np.abs(trained - plain).max() > 0.01
    assert network.save(tmp_path, str(marked_bert), precision, ["scicite"]) < 400_000
    loaded = load_network(tmp_path, "mean+mark", {"scicite": 3}, device="cpu")
    error = 0.05 if precision == "int8" else 5e-3
    np.testing.assert_allclose(predict_logits(loaded, CITANCES, "scicite"), trained, atol=error)
    # the delta is an encoder's, too
    one, base = (load_encoder(place, pooling="mean").encode(["a cell grows"]) for place in (tmp_path, marked_bert))
    assert (np.abs(one - base).max() > 1e-3) == (parts != "head")


def test_a_new_network_is_the_encoder(marked_bert):
    network = make(marked_bert, pooling="mean")
    encoder = load_encoder(marked_bert, pooling="mean", max_tokens=32)
    found = network.vectors(network.reader.read([CITANCES[1]])).detach().numpy()
    np.testing.assert_allclose(found, encoder.encode([CITANCES[1].text]), atol=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling_by_hand(marked_bert, pooling):
    network = make(marked_bert, pooling=pooling).eval()
    batch = network.reader.read(CITANCES)
    found = network.vectors(batch).detach()  # (texts, width)
    for row, tokens in enumerate(batch):
        states = network.model(torch.from_numpy(tokens.ids)[None]).last_hidden_state[0].detach()  # (tokens, 32)
        marks = states[tokens.marks] if len(tokens.marks) else states
        hand = {"mean": states.mean(0), "cls": states[0], "mark": marks.mean(0)}
        hand["mean+mark"] = torch.cat([hand["mean"], hand["mark"]])
        torch.testing.assert_close(found[row], hand[pooling], atol=1e-5, rtol=1e-4)


def test_what_is_trained(marked_bert):
    network = make(marked_bert)
    names = list(network.weights)
    assert sum(".lora_A" in name for name in names) == 2 * 6  # six linear layers in each of two
    assert not any("pooler" in name or "base_layer.weight" in name or "word_embeddings" in name for name in names)
    assert {name.partition(".")[0] for name in make(marked_bert, parts="head").weights} == {"aspects"}
    assert not any(
        name.endswith("bias") and name.startswith("encoder") for name in make(marked_bert, biases=False).weights
    )
    # gradients reach the change and the mark
    network.logits(network.reader.read(CITANCES), "scicite").sum().backward()
    assert network.rows.change.grad is not None and network.rows.change.grad.abs().sum() > 0
    assert all(weight.grad is not None for weight in network.weights.values())


def test_a_tokenizer_without_unused_tokens(bert):
    network = make(bert)
    tokens = network.reader.read([CITANCES[0]])[0]
    assert len(tokens.marks) > 1  # the pieces of a word
    assert np.isfinite(predict_logits(network, CITANCES, "scicite")).all()
