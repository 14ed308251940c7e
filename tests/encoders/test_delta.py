"""Deltas, full and compact: what was trained comes back on top of its base, on no other; damage and untrusted input are refused."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.core.errors import InputError, UserError
from citeweave.encoders.compress import CompressedEncoder, allocate, compress
from citeweave.encoders.delta import keep_layers, open_model, save_delta
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.encoders.matrix_codes import BITS, Coding, code_matrix, read_matrix, tensor_shapes
from citeweave.training.partial import choose_parts

from .conftest import CARD, change, cosines, refused, save, theirs

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
TEXTS = [
    "The cell grows.[SEP]We find how models learn.", "data", "how models learn from graphs of citations " * 10,
    "a paper shows that the cell grows", "we find data in graphs", "models of citations, and how",
]  # fmt: skip
SETTINGS = {"pooling": "mean", "max_tokens": 20, "normalize": True, "lower": False, "prompt": ""}
BIAS = "encoder.layer.0.output.dense.bias"


def train(encoder: TorchEncoder, parts: str, **options: Any) -> list[str]:
    """Move what may be trained by a fixed amount, as if by training."""
    if parts == "lora":
        pytest.importorskip("peft", reason="pip install 'citeweave[lora]'")
    chosen = choose_parts(encoder.network.model, parts, **options)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, parameter in chosen:
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return [name for name, _ in chosen]


def make_delta(base: Path | str, folder: Path, parts: str, pooling: str = "mean", **options: Any) -> TorchEncoder:
    encoder = load_encoder(base, pooling=pooling, normalize=True, max_tokens=20, device="cpu")
    before = encoder.encode(TEXTS)
    changed = train(encoder, parts, **options)
    assert np.abs(encoder.encode(TEXTS) - before).max() > 1e-2
    folder.mkdir()
    save_delta(folder, encoder.network.model, encoder.settings, base=str(base), changed=changed, kind=parts, card=CARD)
    return encoder


TRAINED = [
    *(("bias", pooling, {}) for pooling in ("mean", "mix")),
    ("all", "cls", {"frozen_layers": 1}),
    *(("lora", "mean", {"lora_rank": 3}), ("lora", "mix", {"lora_rank": 2, "lora_alpha": 3.0})),
]


@pytest.mark.parametrize(("parts", "pooling", "options"), TRAINED)
def test_a_delta_gives_the_vectors_of_the_trained_model(bert, tmp_path, parts, pooling, options):
    trained = make_delta(bert, tmp_path / "delta", parts, pooling, **options)
    loaded, expected = load_encoder(tmp_path / "delta", device="cpu"), trained.encode(TEXTS)
    assert loaded.settings == trained.settings and loaded.revision != load_encoder(bert).revision
    np.testing.assert_allclose(loaded.encode(TEXTS), expected, atol=1e-5)
    # the same trained model saved complete, its low-rank changes merged in
    complete = save(trained, tmp_path / "complete")
    for found in (load_encoder(complete, device="cpu").encode(TEXTS), theirs(complete, TEXTS)):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    sizes = [(tmp_path / name).stat().st_size for name in ("delta/delta.safetensors", "complete/model.safetensors")]
    assert sizes[0] < sizes[1]
    assert "citeweave.load_encoder(" in (tmp_path / "delta/README.md").read_text()
    other = load_encoder(tmp_path / "delta", pooling="cls", device="cpu")
    assert other.settings.pooling == "cls" and np.isfinite(other.encode(TEXTS)).all()


def test_the_same_delta_is_the_same_bytes_wherever_its_base_is_and_may_be_a_base(bert, tmp_path):
    make_delta(bert, tmp_path / "one", "bias")
    make_delta(shutil.copytree(bert, tmp_path / "elsewhere"), tmp_path / "two", "bias")
    assert (tmp_path / "one/delta.safetensors").read_bytes() == (tmp_path / "two/delta.safetensors").read_bytes()
    assert load_encoder(tmp_path / "one").revision == load_encoder(tmp_path / "two").revision
    trained = make_delta(tmp_path / "one", tmp_path / "three", "lora")
    np.testing.assert_allclose(load_encoder(tmp_path / "three").encode(TEXTS), trained.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("kind", ["full", "compact"])
def test_another_base_is_refused(bert, save_bert, trained, tmp_path, kind):
    base = shutil.copytree(bert, tmp_path / "base")
    if kind == "full":
        make_delta(base, tmp_path / "delta", "bias")
    else:
        compressed(trained, base, tmp_path / "delta")
    shutil.rmtree(base)
    save_bert(base, seed=1)
    refused("is a delta of revision [0-9a-f]{12} of .*base', and revision .* is here", load_encoder, tmp_path / "delta")
    shutil.rmtree(base)
    with pytest.raises(UserError, match='which cannot be opened: .*write its new path into "base" of .*delta.json'):
        load_encoder(tmp_path / "delta")
    change(tmp_path / "delta/delta.json", base=str(tmp_path / "delta"))
    refused("is a delta on top of 4 others", open_model, tmp_path / "delta")


def test_deltas_that_cannot_be_saved(encoder, bert, tmp_path):
    model, more = encoder.network.model, {"base": str(bert), "kind": "all", "card": CARD}
    refused("a delta needs at least one parameter", save_delta, tmp_path, model, encoder.settings, changed=[], **more)
    with torch.no_grad():
        model.get_parameter(BIAS)[0] = float("nan")
    with pytest.raises(UserError, match="dense.bias holds numbers that are not finite"):
        save_delta(tmp_path, model, encoder.settings, changed=[BIAS], **more)


def test_a_delta_may_keep_some_layers_of_its_base(bert, tmp_path):
    start = load_encoder(bert, pooling="mean", normalize=True, max_tokens=20, device="cpu")
    keep_layers(start.network.model, [1], "layers")
    train(start, "all")
    trained = save(start, tmp_path / "trained")
    (tmp_path / "small").mkdir()
    found = compress(trained, str(bert), tmp_path / "small", TEXTS, budget=10**6, layers=[1])
    loaded = load_encoder(tmp_path / "small", device="cpu")
    assert found.cosines.least > 0.999 and loaded.network.model.config.num_hidden_layers == 1
    np.testing.assert_allclose(loaded.encode(TEXTS), start.encode(TEXTS), atol=0.02)
    complete = save(loaded, tmp_path / "complete")
    np.testing.assert_allclose(theirs(complete, TEXTS), loaded.encode(TEXTS), atol=1e-5)
    make_delta(tmp_path / "small", tmp_path / "further", "bias")  # a delta of it has its layers
    assert load_encoder(tmp_path / "further").network.model.config.num_hidden_layers == 1
    refused("is not a model of the kind of", compress, trained, str(bert), tmp_path, TEXTS, budget=10**6)
    refused(
        "layers 0, 7 of a base with 2; name some from 0 to 1",
        keep_layers,
        load_encoder(bert).network.model,
        [0, 7],
        "x",
    )
    for layers, message in (
        ([1, 7], "layers 1, 7 of a base with 2"),
        (["1"], "layers is .*it must be a list of whole"),
        ([], "it must name layers of the base, ascending"),
        ([1, 0], "it must name layers of the base, ascending"),
    ):
        table = json.loads((tmp_path / "small/delta.json").read_text())
        table.pop("seal", None)  # as somebody else would write it
        (tmp_path / "small/delta.json").write_text(json.dumps(table | {"layers": layers}))
        refused(message, load_encoder, tmp_path / "small", error=(UserError, InputError))  # type: ignore[arg-type]


# Compact deltas


@pytest.fixture(scope="module")
def trained(bert, tmp_path_factory) -> Path:
    """A model whose every weight is moved a little, as if by training."""
    encoder = load_encoder(bert, pooling="mean", normalize=True, max_tokens=20, device="cpu")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in encoder.network.model.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=generator)
    return save(encoder, tmp_path_factory.mktemp("compact") / "trained")


def compressed(trained: Path, base: Path, folder: Path, budget: int = 10**6) -> CompressedEncoder:
    folder.mkdir()
    return compress(trained, str(base), folder, TEXTS, budget=budget)


@pytest.fixture(scope="module")
def small(bert, trained) -> Path:
    """A compact delta of it that no test changes."""
    compressed(trained, bert, trained.with_name("small"), 16_000)
    return trained.with_name("small")


@pytest.fixture(scope="module")
def full(bert, trained) -> Path:
    """A delta of biases that no test changes."""
    make_delta(bert, trained.with_name("full"), "bias")
    return trained.with_name("full")


def test_with_enough_bytes_the_vectors_are_those_of_the_trained_model(bert, trained, tmp_path):
    found = compressed(trained, bert, tmp_path / "delta")
    loaded, wanted = load_encoder(tmp_path / "delta", device="cpu"), load_encoder(trained, device="cpu")
    assert loaded.settings == wanted.settings
    assert found.cosines.least > 0.999 > 0.99 > found.base_cosines.mean
    assert cosines(loaded.encode(TEXTS), wanted.encode(TEXTS)).min() > 0.999
    assert max(report.residual for report in found.matrices.values()) < 0.05


def test_bytes_are_kept_to_and_more_of_them_are_better(bert, trained, small, tmp_path):
    budgets = (11_000, 16_000, 40_000)
    found = [compressed(trained, bert, tmp_path / str(budget), budget) for budget in budgets]
    for budget, report in zip(budgets, found, strict=True):
        assert report.bytes == (tmp_path / str(budget) / "delta.safetensors").stat().st_size <= budget
    residuals = [sum(matrix.residual for matrix in report.matrices.values()) for report in found]
    assert residuals[0] > residuals[1] > residuals[2]
    assert any(matrix.coding is None for matrix in found[0].matrices.values())
    with pytest.raises(UserError, match="the budget is 100 bytes; biases and norms alone take"):
        compressed(trained, bert, tmp_path / "too few", 100)
    for name in ("delta.json", "delta.safetensors"):  # the same model gives the same bytes
        assert (tmp_path / "16000" / name).read_bytes() == (small / name).read_bytes()
    assert load_encoder(tmp_path / "16000").revision == load_encoder(small).revision


@pytest.mark.parametrize("bits", BITS)
def test_rows_survive_few_bits(bits):
    matrix = torch.randn(7, 33, generator=torch.Generator().manual_seed(1)) * torch.arange(7)[:, None]
    coded = code_matrix("rows", matrix, bits)
    shapes = {name: shape for name, (_, shape) in tensor_shapes(Coding("rows", 7, bits), (7, 33)).items()}
    assert {name: tuple(tensor.shape) for name, tensor in coded.items()} == shapes
    assert coded["rows"].numel() * coded["rows"].element_size() == 7 * -(-33 * bits // 8)
    read = read_matrix("rows", coded, 33, bits)
    assert (read - matrix).norm() / matrix.norm() < {1: 0.65, 2: 0.4, 3: 0.22, 4: 0.13, 8: 0.01}.get(bits, 0.001)
    assert not read[0].any()


def test_bytes_go_where_they_gain_most():
    steep, flat = [(0, 100.0), (10, 10.0), (20, 1.0)], [(0, 20.0), (10, 15.0)]
    assert allocate({"steep": steep, "flat": flat}, 20) == {"steep": (20, 1.0), "flat": (0, 20.0)}
    assert allocate({"steep": steep, "flat": flat}, 19) == {"steep": (10, 10.0), "flat": (0, 20.0)}
    assert allocate({"dear": [(0, 9.0), (50, 0.0)], "flat": flat}, 12) == {"dear": (0, 9.0), "flat": (10, 15.0)}


def test_what_cannot_be_compressed(bert, save_bert, trained, tmp_path):
    long = save_bert(tmp_path / "long", length=99)
    for base, texts, message in (
        (bert, TEXTS[:3], "3 texts to compress by"),
        (long, TEXTS, "not a model of the kind of long: embeddings.position_embeddings.weight is"),
        (trained, TEXTS, "has the same weights as"),
    ):
        refused(message, compress, trained, str(base), tmp_path, texts, budget=10**6)


def test_damage_is_seen(small, tmp_path):
    path = shutil.copytree(small, tmp_path / "delta") / "delta.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    message = "delta.safetensors is damaged .*copy the complete folder again, or pip install"
    refused(message, load_encoder, tmp_path / "delta", error=InputError)


def coded(name: str = "encoder.layer.0.attention.self.query.weight", **changes: Any) -> dict[str, Any]:
    return {"matrices": {name: {"kind": "rows", "count": 32, "bits": 4} | changes}}


HOSTILE_SETTINGS = [
    ("full", {"format": "other"}, "is of format 'other'"),
    ("full", {"extra": 1}, "extra does not belong here"),
    ("full", {"base": "../../etc"}, "without '[.][.]'"),
    ("full", {"base": "models/../../x"}, "without '[.][.]'"),
    ("full", {"base": ""}, "the base is ''"),
    ("full", {"base": ["minilm"]}, "the base is"),
    ("full", {"base": "a\nb"}, "the base is"),
    ("full", {"base_revision": "zz"}, "twelve hex digits"),
    ("full", {"settings": {}}, "does not belong here or is missing"),
    ("full", {"settings": SETTINGS | {"evil": 1}}, "evil does not belong"),
    ("full", {"settings": SETTINGS | {"max_tokens": True}}, "max_tokens is 'True'"),
    ("full", {"settings": SETTINGS | {"max_tokens": -1}}, "max_tokens is '-1'"),
    ("full", {"settings": [1]}, "list does not belong"),
    ("full", {"version": 1}, "of format version 1; .* Train it again, or use the release .* citeweave 0.1.0"),
    ("small", {"format": "citeweave-compact-delta", "version": 1}, "version 1; .* release .* citeweave 0.1.0"),
    ("full", {"version": 3}, "of format version 3; .* Update citeweave"),
    ("small", {"matrices": [1]}, "matrices is not a table"),
    ("small", {"matrices": {"encoder.layer.0.attention.self.query.weight": [1]}}, "list does not belong here"),
    ("small", coded(kind="code"), "kind must be factors or rows"),
    ("small", coded(bits=5), "bits one of 1, 2, 3, 4, 8, 16, 32"),
    ("small", coded(bits=True), "bits one of"),
    ("small", coded(count=0), "count a whole number"),
    ("small", coded(count=10**12), "has a count of 1000000000000; at most 32"),
    ("small", coded("evil"), "'evil' is not a matrix of the base"),
    ("small", coded("embeddings.LayerNorm.bias"), "is not a matrix of the base"),
    ("small", {"matrices": {}}, "is not an expected tensor"),
]


@pytest.mark.parametrize(("kind", "changes", "message"), HOSTILE_SETTINGS)
def test_settings_of_untrusted_input_are_checked(request, tmp_path, kind, changes, message):
    path = shutil.copytree(request.getfixturevalue(kind), tmp_path / "delta") / "delta.json"
    settings = json.loads(path.read_text()) | changes
    del settings["seal"]  # an attacker needs none
    path.write_text(json.dumps(settings))
    refused(message, load_encoder, tmp_path / "delta", device="cpu", error=InputError)


def tensors(**found: Any) -> bytes:
    from safetensors.torch import save

    return bytes(save({name.replace("__", "."): tensor for name, tensor in found.items()}))


HOSTILE_TENSORS = [
    (None, "delta.safetensors cannot be read"),
    (b"", "is not a complete safetensors file"),
    (b"\xff" * 40, "a header of 18,446,744,073,709,551,615 bytes in 40"),
    ((50 << 20).to_bytes(8, "little") + b"{}", "a header of 52,428,800 bytes"),
    ((2).to_bytes(8, "little") + b"[]", "is not a complete safetensors file"),
    (b"\x80\x04\x95cposix\nsystem\n(S'true'\ntR.", "is not a complete safetensors file"),
    (tensors(evil=torch.ones(2)), "'evil' is not an expected tensor"),
    (tensors(layer_mix=torch.ones(9)), "layer_mix is F32 of shape [(]9,[)]; it must be"),
    (tensors(embeddings__LayerNorm__bias=torch.ones(32, dtype=torch.int64)), "is I64 of shape"),
    (tensors(embeddings__LayerNorm__bias=torch.ones(31)), "of shape [(]31,[)]"),
    (tensors(embeddings__LayerNorm__bias=torch.full((32,), torch.nan)), "not finite"),
]


@pytest.mark.parametrize(("content", "message"), HOSTILE_TENSORS)
def test_tensors_of_untrusted_input_are_checked(full, tmp_path, content, message):
    path = shutil.copytree(full, tmp_path / "delta") / "delta.safetensors"
    path.unlink() if content is None else path.write_bytes(content)
    settings = json.loads((tmp_path / "delta/delta.json").read_text())
    del settings["seal"]  # an attacker writes a hash that fits
    settings["sha256"] = hashlib.sha256(content or b"").hexdigest()
    (tmp_path / "delta/delta.json").write_text(json.dumps(settings))
    refused(message, load_encoder, tmp_path / "delta", device="cpu", error=InputError)
