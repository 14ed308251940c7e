"""A packed batch gives the states, means and gradients that the padded one gives."""

import functools
import importlib.util
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.encoders.network import Network

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
transformers = pytest.importorskip("transformers", reason="pip install 'citeweave[minilm]'")

from citeweave.encoders import packed as packing  # noqa: E402
from citeweave.encoders import packed_batch  # noqa: E402

LENGTHS = (5, 40, 17, 1, 30)
SHAPE: dict[str, Any] = {
    "vocab_size": 60, "pad_token_id": 0, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 64,
}  # fmt: skip
NO_SPECIALS = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
OTHERS: dict[str, dict[str, Any]] = {
    "ModernBert": {"local_attention": 8, "global_attn_every_n_layers": 2, **NO_SPECIALS},
    "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48},
}
MODELS = ("Bert", "Roberta", "MPNet", "ModernBert", "DistilBert", "Electra")


def make(kind: str, **more: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**(SHAPE | OTHERS.get(kind, {}) | more))
    model = getattr(transformers, f"{kind}Model")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():  # as drawn, a model is too close to linear for errors to show
            weight.add_(torch.randn_like(weight) * 0.2)
    return model


def texts(lengths: tuple[int, ...] = LENGTHS) -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    return [draw.integers(3, 60, length) for length in lengths]


def gradients(model: Any, vectors: Any) -> dict[str, Any]:
    model.zero_grad()
    (vectors * torch.linspace(-1.0, 1.0, vectors.numel()).view_as(vectors)).sum().backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_packed_equals_padded_with_gradients(kind, pooling):
    model, batch, found = make(kind), texts(), []
    for packed in (True, False):
        network = Network(model, "cpu", 0, packed=packed)
        assert network.packs is packed
        states = network.states(batch, first_only=pooling == "cls")
        vectors = states.cls() if pooling == "cls" else states.mean()
        assert vectors.dtype == torch.float32
        found.append((vectors.detach(), gradients(model, vectors)))
    (vectors, grads), (wanted, wanted_grads) = found
    torch.testing.assert_close(vectors, wanted, atol=1e-5, rtol=1e-5)
    assert grads.keys() == wanted_grads.keys()
    for name, grad in grads.items():
        atol = 1e-5 * float(grad.abs().max() + 1)
        torch.testing.assert_close(grad, wanted_grads[name], atol=atol, rtol=1e-4, msg=name)


def packed(model: Any, packs: bool | None = True, **more: Any) -> Network:
    return Network(model, "cpu", 0, packed=packs, **more)


close = functools.partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)


def test_only_plain_bert_goes_through_its_own_layers_and_what_cannot_be_packed_is_padded():
    assert packing.is_plain(make("Bert")) and packing.is_plain(make("Roberta"))
    assert not packing.is_plain(make("Bert", hidden_act="relu")) and not packing.is_plain(make("Electra"))
    adapted = make("Bert")
    attention = adapted.encoder.layer[1].attention.self
    attention.query = torch.nn.Sequential(attention.query, torch.nn.Identity())
    assert not packing.is_plain(adapted)
    close(packed(adapted).states(texts()).cls(), packed(adapted, False).states(texts()).cls())
    adapted = make("MPNet")
    attention = adapted.encoder.layer[1].attention.attn
    attention.q = torch.nn.Sequential(attention.q, torch.nn.Identity())
    assert not packing.can_pack(adapted, "cpu", slowly=True) and not packed(adapted).packs
    assert not packing.can_pack(make("MPNet", num_attention_heads=4), "cuda")  # no kernel for heads of 8 numbers
    assert not Network(make("Bert"), "cpu", 0).packs  # it never pays on a CPU
    model = make("ModernBert")
    before = model.config._attn_implementation
    packed(model).states(texts())
    assert model.config._attn_implementation == before


def test_mpnets_bias_by_distance_is_that_of_transformers():
    model = make("MPNet", max_position_embeddings=512)
    wanted = model.encoder.compute_position_bias(torch.zeros(1, 300, 32))[0]  # (heads, 300, 300)
    places, far = torch.arange(300), packed_batch.FAR
    table = packed_batch.distance_bias(model, torch.device("cpu"))  # (heads, 2 far + 1)
    close(table[:, (places[None] - places[:, None]).clamp(-far, far) + far], wanted)
    assert packed_batch.distance_bias(make("Bert"), torch.device("cpu")) is None


def test_dropout_is_drawn_in_training_alone():
    model = make("Bert", attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.5)
    unseen = make("Bert", attention_probs_dropout_prob=0.9, hidden_dropout_prob=0.0).train()
    for network in (packed(model), packed(unseen)):
        torch.testing.assert_close(network.states(texts()).cls(), network.states(texts()).cls())
    network = packed(model.train())
    assert not torch.allclose(network.states(texts()).cls(), network.states(texts()).cls(), atol=0.01)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
def test_autocast_decides_the_precision_and_gradients_stay_float32():
    model = make("Bert")
    network = packed(model)
    exact = network.states(texts()).mean()
    with torch.autocast("cpu", torch.bfloat16):
        states = network.states(texts())
        assert states.stream.dtype == torch.bfloat16
    rough = states.mean()
    assert 0 < float((rough - exact).norm() / exact.norm()) < 0.05
    assert {grad.dtype for grad in gradients(model, rough).values()} == {torch.float32}


@pytest.mark.skipif(not packing.HAS_VARLEN, reason="compiled layers serve graphics cards, and those need torch 2.10")
def test_compiled_code_is_made_once_for_all_batches(monkeypatch):
    made, model = [], make("MPNet")
    compile_eagerly = functools.partial(torch.compile, backend=lambda graph, _: made.append(graph) or graph.forward)
    monkeypatch.setattr(torch, "compile", compile_eagerly)
    packing._compiled.cache_clear()
    try:
        for lengths in (LENGTHS, (3, 50), (60,) * 9):
            found, wanted = (packed(model, compiled=way).states(texts(lengths)).mean() for way in (True, False))
            close(found, wanted)
    finally:
        packing._compiled.cache_clear()
    assert len(made) == 1


def test_the_fast_gelu_is_gelu():
    numbers = torch.linspace(-9, 9, 20_001, requires_grad=True)
    exact = numbers.detach().double().requires_grad_()
    wanted, found = torch.nn.functional.gelu(exact), packing._FastGelu.apply(numbers)
    wanted.sum().backward()
    found.sum().backward()
    torch.testing.assert_close(found.double(), wanted, atol=1e-6, rtol=0)
    torch.testing.assert_close(numbers.grad.double(), exact.grad, atol=1e-6, rtol=0)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=8))
@settings(max_examples=30)
def test_every_token_is_in_the_stream_and_in_one_tile(lengths):
    batch = texts(tuple(lengths))
    packed = packed_batch.pack(batch, 0, "cpu")
    bounds = packed.bounds.tolist()
    assert (
        len(packed.ids) % packed_batch.STEP == 0
        and bounds[-1] == len(packed.ids) > bounds[-2]
        and packed.longest % 512 == 0
    )
    for row, ids in enumerate(batch):
        span = slice(bounds[row], bounds[row + 1])
        assert packed.ids[span].tolist() == ids.tolist() and packed.positions[span].tolist() == list(range(len(ids)))
    seen = [token for begin, end, first in packed.tiles.tolist() for token in range(first, min(first + 64, end))]
    assert sorted(seen) == list(range(len(packed.ids)))
    assert all(begin in bounds and end in bounds for begin, end, _ in packed.tiles.tolist())
    assert len(packed_batch._tiles(np.array(bounds), 1)) == len(packed.ids)


def test_a_window_hides_far_neighbors():
    bounds = torch.tensor([0, 6, 10], dtype=torch.int32)
    states = torch.randn(3, 10, 1, 4)
    found = packed_batch.attend(*states, packed_batch.Spans(bounds, bounds, 6, 6), window=1)
    near = torch.nn.functional.softmax(states[0, 2, 0] @ states[1, 1:4, 0].T / 2, dim=-1) @ states[2, 1:4, 0]
    torch.testing.assert_close(found[2, 0], near)


@pytest.mark.skipif(not torch.cuda.is_available() or not importlib.util.find_spec("triton"), reason="no CUDA")
def test_kernels_on_a_gpu_give_what_float32_gives():
    model, batch = make("Bert", num_attention_heads=1).cuda(), texts((5, 40, 17, 1, 64, 63))
    found = []
    for packed in (None, False):
        with torch.autocast("cuda", torch.bfloat16, enabled=packed is None):
            vectors = Network(model, "cuda", 0, packed=packed).states(batch).mean()
        model.zero_grad()
        vectors.pow(2).sum().backward()
        found.append((vectors.detach(), torch.cat([w.grad.ravel() for w in model.parameters() if w.grad is not None])))
    for one, other in zip(*found, strict=True):
        assert float((one - other).norm() / other.norm()) < 0.02
