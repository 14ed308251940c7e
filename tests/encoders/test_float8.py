"""Weights of packed layers cast together, layers in 8-bit floats, and the kernels between their products."""

import importlib.util
import os
from dataclasses import replace

import pytest

from citeweave.core.errors import UserError
from citeweave.core.progress import QUIET
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.network import COMPILING_PAYS, Network, _check_dtype, pays_to_compile
from citeweave.encoders.runtimes import Runtime, revision_in, runtime_of, same_weights

from .conftest import Recorder, refused
from .test_packed import make, packed, texts

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.encoders import float8, layer_weights  # noqa: E402
from citeweave.encoders import packed as packing  # noqa: E402

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1" or not importlib.util.find_spec("triton"), reason="no TRITON_INTERPRET=1"
)


def layers_of(model):
    return list(map(packing._weights, model.encoder.layer))


def test_weights_cast_together_and_their_gradients_have_the_bits_of_single_casts():
    model = make("Bert")
    model.encoder.layer[1].attention.self.key.bias.requires_grad_(False)
    weights, found = layers_of(model), []
    together = layer_weights.cast_layers(weights, torch.bfloat16)
    apart = []
    for layer in weights:
        cast = [weight.to(torch.bfloat16) for weight in layer]
        apart.append((torch.cat(cast[0:6:2]), torch.cat(cast[1:6:2]), *cast[6:]))
    for ways in (together, apart):
        model.zero_grad()
        flat = [weight for layer in ways for weight in layer]
        draw = torch.Generator().manual_seed(0)
        torch.autograd.backward(flat, [torch.randn(w.shape, generator=draw).bfloat16() for w in flat])
        found.append((flat, [weight.grad for layer in weights for weight in layer]))
    for one, other in zip(*(flat + grads for flat, grads in found), strict=True):
        assert (one is None) == (other is None)
        assert one is None or (torch.equal(one, other) and one.dtype == other.dtype)


def test_weights_are_kept_only_while_they_are_frozen():
    model = make("Bert")
    weights = layers_of(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, fused=True)  # which does not count its changes
    with torch.no_grad(), layer_weights.frozen_weights():
        first = layer_weights.frozen_layers(model, weights, torch.bfloat16)
        with layer_weights.frozen_weights():
            assert layer_weights.frozen_layers(model, weights, torch.bfloat16) is first
        assert layer_weights.frozen_layers(model, weights, torch.float16) is not first
        with torch.enable_grad():
            assert layer_weights.frozen_layers(model, weights, torch.bfloat16) is not first
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    with torch.no_grad():
        second = layer_weights.frozen_layers(model, weights, torch.bfloat16)
    assert not torch.equal(first[0].wide, second[0].wide)


def test_the_tanh_form_of_gelu_errs_less_than_rounding_to_bfloat16():
    draw = torch.Generator().manual_seed(0)
    for scale in (0.5, 1.0, 2.0, 4.0):
        states = scale * torch.randn(100_000, generator=draw, dtype=torch.float64)
        exact = torch.nn.functional.gelu(states)
        error = (torch.nn.functional.gelu(states, approximate="tanh") - exact).norm()
        assert error < (exact.bfloat16().double() - exact).norm()


def test_inference_kernels_serve_half_precision_on_cuda_without_gradients(monkeypatch):
    states = torch.randn(4, 16)
    assert not packing._is_fast(states, torch.bfloat16) and not packing._has_kernels(states, torch.bfloat16)
    weight, bias = torch.randn(32, 16), torch.randn(32)
    wanted = packing._linear_gelu(states, weight, bias)
    monkeypatch.setattr(packing, "_is_fast", lambda states, dtype: True)
    assert torch.equal(packing._linear_gelu(states, weight, bias), wanted)  # gradients are wanted
    with torch.no_grad():
        torch.testing.assert_close(packing._linear_gelu(states, weight, bias), wanted, atol=1e-3, rtol=1e-3)
        monkeypatch.setattr(packing, "HAS_EPILOGUE", False)
        assert torch.equal(packing._linear_gelu(states, weight, bias), wanted)


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_float8_is_near_and_nearer_with_exact_layers(monkeypatch, kind, pooling):
    network = packed(make(kind))
    small, cosines = float8.float8_network(network, kind), []
    with torch.inference_mode():
        wanted = getattr(network.states(texts(), first_only=pooling == "cls"), pooling)()
        for share in (0.0, 0.3, 1.0):
            monkeypatch.setattr(float8, "EXACT_SHARE", share)
            found = getattr(small.states(texts(), first_only=pooling == "cls"), pooling)()
            cosines.append(float(torch.cosine_similarity(found, wanted).mean()))
    assert all(0.99 < cosine < 0.99999 for cosine in cosines[:2]) and cosines[2] > 0.999999


def test_rows_and_weights_are_quantized_within_their_rounding():
    states = torch.randn(50, 64) * torch.logspace(-6, 6, 50)[:, None]
    states[7] = 0
    rows = float8.quantize(states)
    back = rows.codes.float() * rows.scales
    assert rows.codes.dtype == torch.float8_e4m3fn and rows.scales.shape == (50, 1) and not back[7].any()
    assert ((back - states).abs() <= states.abs() / 16 + rows.scales * 2**-10).all()
    weight, bias = torch.randn(32, 64), torch.randn(32)
    product = float8.quantize_weight(weight, bias)
    assert product.scales.shape == (1, 32)
    wanted = torch.nn.functional.linear(back, product.codes.float() * product.scales.T, bias)
    torch.testing.assert_close(float8.multiply(rows, product), wanted)


def test_float8_is_a_precision_of_its_own():
    runtime = Runtime("torch", "float8")
    assert runtime.label == runtime_of(revision_in("1f0c", runtime, "float32")) == "torch-float8"
    assert same_weights("1f0c", "1f0c-torch-float8") and revision_in("1f0c", Runtime("torch"), "bfloat16") == "1f0c"


def test_what_cannot_be_computed_in_float8_is_refused(bert, monkeypatch):
    refused("--precision is float8, for which this processor", load_encoder, bert, dtype="float8", device="cpu")
    refused("pooling layers needs all; use bfloat16", load_encoder, bert, dtype="float8", pooling="layers")
    refused("and Electra is electra; use bfloat16", float8.float8_network, packed(make("Electra")), "Electra")
    small = float8.float8_network(packed(make("Bert")), "Bert")
    refused("computes the last layer only", small.padded, texts())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(
        UserError, match="--precision is float8, for which NVIDIA A100 has no fast arithmetic; use bfloat16"
    ):
        _check_dtype("float8", "cuda")


def test_an_encoder_computes_in_float8(bert, monkeypatch):
    plain = load_encoder(bert, device="cpu", pooling="mean")
    network = float8.float8_network(replace(plain.network, packed=True), "bert")
    found = replace(plain, network=network).encode(["The cell grows", "data", ""])
    wanted = plain.encode(["The cell grows", "data", ""])
    assert ((found * wanted).sum(1)[:2] > 0.99 * (wanted**2).sum(1)[:2]).all() and not found[2].any()


def test_long_runs_compile_by_themselves():
    said = Recorder()
    said.say = said.totals.append
    assert not pays_to_compile("training", COMPILING_PAYS["training"] - 1, said) and not said.totals
    assert pays_to_compile("training", COMPILING_PAYS["training"], said)
    assert "training of about 300,000,000 tokens: layers are compiled first" in said.totals[0]
    assert not pays_to_compile("embedding", 10_000, QUIET)


@interpreted
@pytest.mark.filterwarnings("ignore:overflow encountered in exp2")
@pytest.mark.parametrize("width", [48, 768])
def test_kernels_give_what_torch_gives(width):
    from citeweave.encoders import triton_layers

    torch.manual_seed(0)
    added, kept, gain, shift = torch.randn(7, width), torch.randn(7, width), torch.randn(width), torch.randn(width)
    wanted = torch.nn.functional.layer_norm(added + kept, (width,), gain, shift, 1e-12)
    torch.testing.assert_close(triton_layers.add_norm(added, kept, gain, shift, 1e-12), wanted)
    stream, codes, scales = triton_layers.add_norm_rows(added, kept, gain, shift, 1e-12)
    torch.testing.assert_close(stream, wanted)
    for (own, own_scales), there in (
        ((codes, scales), float8.quantize(wanted)),
        (triton_layers.quantize_rows(kept), float8.quantize(kept)),
        (triton_layers.quantize_rows(9 * kept, gelu=True), float8.quantize(9 * kept, activates=True)),
    ):
        torch.testing.assert_close(own_scales, there.scales)
        found, back = own.float() * own_scales, there.codes.float() * there.scales
        assert float((found - back).norm() / back.norm()) < 0.08  # the interpreter truncates where a GPU rounds


@interpreted
@pytest.mark.parametrize("width", [48, 768])
def test_norms_embeddings_and_means_by_kernels(width):
    from citeweave.encoders import triton_layers

    torch.manual_seed(0)
    added, kept, gain, shift, probe = (torch.randn(*shape, width) for shape in ((7,), (7,), (), (), (7,)))
    grads = []
    for own in (triton_layers.add_norm, lambda a, b, *more: torch.nn.functional.layer_norm(a + b, (width,), *more)):
        inputs = [one.clone().requires_grad_() for one in (added, kept, gain, shift)]
        (own(*inputs, 1e-12) * probe).sum().backward()
        grads.append([one.grad for one in inputs])
    torch.testing.assert_close(*grads)
    ids, positions = torch.randint(0, 5, (7,), dtype=torch.int32), torch.arange(7, dtype=torch.int32) % 4
    words, places, kinds = (torch.randn(rows, width) for rows in (5, 6, 2))
    for kind in (kinds, None):
        summed = words[ids] + places[positions + 2] + (0 if kind is None else kind[0])
        found = triton_layers.embed_norm(ids, positions, 2, (words, places, kind), (gain, shift), 1e-12, torch.float32)
        torch.testing.assert_close(found, torch.nn.functional.layer_norm(summed, (width,), gain, shift, 1e-12))
    stream, bounds = torch.randn(150, width), torch.tensor([0, 100, 101, 150], dtype=torch.int32)
    wanted = torch.stack([part.mean(0) for part in stream.split(bounds.diff().tolist())])
    torch.testing.assert_close(triton_layers.mean_rows(stream, bounds), wanted)


def norm_inputs(rows, width, dtype=torch.float32):
    torch.manual_seed(0)
    shapes = (rows, width), (rows, width), (width,), (width,), (rows, width)
    return [torch.randn(shape).to(dtype) for shape in shapes]  # added, kept, gain, shift, gradient of the norm


def norm_gradients(norm, added, kept, gain, shift, probe):
    inputs = [one.clone().requires_grad_() for one in (added, kept, gain, shift)]
    norm(*inputs).backward(probe)
    return [one.grad for one in inputs]


def exact_norm(keeps=1.0):
    return lambda added, kept, gain, shift: torch.nn.functional.layer_norm(
        keeps * added + kept, gain.shape, gain, shift, 1e-12
    )


def dropout_mask(rows, width, rate, seed):
    """Return the numbers that dropout keeps, (rows, width), which are those that have a gradient."""
    from citeweave.encoders import triton_layers

    inputs = norm_inputs(rows, width)
    grads = norm_gradients(lambda *given: triton_layers.add_norm(*given, 1e-12, rate, seed), *inputs)
    return grads[0] != 0


@interpreted
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 0.01)])
@pytest.mark.parametrize(("rows", "width", "programs"), [(1, 48, 528), (3, 384, 528), (9, 768, 528), (27, 48, 2)])
def test_gradients_of_norms_are_those_in_float64(monkeypatch, rows, width, programs, dtype, error):
    from citeweave.encoders import triton_layers

    monkeypatch.setattr(triton_layers, "PROGRAMS", programs)
    inputs = norm_inputs(rows, width, dtype)
    found = norm_gradients(lambda *given: triton_layers.add_norm(*given, 1e-12), *inputs)
    wanted = norm_gradients(exact_norm(), *(one.double() for one in inputs))
    for own, exact in zip(found, wanted, strict=True):
        assert own.dtype == dtype and float((own.double() - exact).norm() / exact.norm()) < error
    assert torch.equal(found[0], found[1])


@interpreted
def test_dropout_of_norms_is_that_of_its_seed():
    from citeweave.encoders import triton_layers

    rate, (rows, width) = 0.1, (40, 768)
    one, same, other = (dropout_mask(rows, width, rate, seed) for seed in (7, 7, 2**31 - 2))
    assert torch.equal(one, same)
    assert float((~one).float().mean()) == pytest.approx(rate, rel=0.03)
    assert float((~one & ~other).float().mean()) == pytest.approx(rate**2, rel=0.15)  # they drop other numbers
    for places in ((~one).float().mean(0), (~one).float().mean(1)):  # each row and each column drops its share
        assert float(places.std() / (rate * (1 - rate) * len(places) / one.numel()) ** 0.5) == pytest.approx(1, abs=0.3)
    added, kept, gain, shift, _ = norm_inputs(rows, width)
    wanted = exact_norm(one / (1 - rate))(added, kept, gain, shift)
    with torch.no_grad():  # as in the first of two passes over a batch in parts
        torch.testing.assert_close(triton_layers.add_norm(added, kept, gain, shift, 1e-12, rate, 7), wanted)


@interpreted
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 0.01)])
@pytest.mark.parametrize(("rows", "width", "programs"), [(3, 384, 528), (27, 48, 2)])
def test_gradients_of_norms_after_dropout_have_its_mask(monkeypatch, rows, width, programs, dtype, error):
    from citeweave.encoders import triton_layers

    monkeypatch.setattr(triton_layers, "PROGRAMS", programs)
    inputs, keeps = norm_inputs(rows, width, dtype), dropout_mask(rows, width, 0.25, 3) / 0.75
    found = norm_gradients(lambda *given: triton_layers.add_norm(*given, 1e-12, 0.25, 3), *inputs)
    wanted = norm_gradients(exact_norm(keeps.double()), *(one.double() for one in inputs))
    for own, exact in zip(found, wanted, strict=True):
        assert own.dtype == dtype and float((own.double() - exact).norm() / exact.norm()) < error


@interpreted
def test_layers_with_kernels_drop_states_by_torchs_seed(monkeypatch):
    from citeweave.encoders import triton_layers

    monkeypatch.setattr(triton_layers, "ROWS", 64)  # the interpreter takes long for each program
    monkeypatch.setattr(packing, "_has_kernels", lambda states, dtype: torch.is_grad_enabled())
    monkeypatch.setattr(packing, "_drop", lambda states, rate: states)  # of the embeddings alone
    found, model = [], make("Bert", hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.0).train()
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(packed(model).states(texts()).mean().detach())
    assert torch.equal(found[0], found[1]) and not torch.allclose(found[1], found[2], atol=0.01)


@interpreted
def test_dropout_is_the_same_with_and_without_gradients(monkeypatch):
    from citeweave.encoders import triton_layers

    monkeypatch.setattr(triton_layers, "ROWS", 64)
    monkeypatch.setattr(packing, "_has_kernels", lambda states, dtype: True)
    model, found = make("Bert", hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.0).train(), []
    for needs in (True, False):  # the two passes over a batch in parts
        torch.manual_seed(1)
        with torch.set_grad_enabled(needs):
            found.append(packed(model).states(texts()).mean().detach())
    torch.testing.assert_close(*found)


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="no GPU with 8-bit floats"
)
def test_float8_on_a_gpu_gives_what_a_cpu_gives():
    model = make("Bert", num_attention_heads=2).bfloat16()
    batch, found = texts((5, 40, 17, 1, 64, 63)), []
    for device in ("cpu", "cuda"):
        small = float8.float8_network(Network(model.to(device), device, 0, packed=True), "Bert")
        with torch.inference_mode():
            found.append(small.states(batch).mean().cpu())
    assert float(torch.cosine_similarity(*found).min()) > 0.999
