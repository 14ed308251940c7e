"""USE Lite: a tiny network of its shape gives what a plain computation of one text gives; another package is refused."""

from pathlib import Path

import numpy as np
import pytest

from citeweave.baselines.use_lite import MAX_TOKENS, SHA256, UseLite, read_weights
from citeweave.core.errors import InputError, UserError

torch = pytest.importorskip("torch", reason="pip install 'citeweave[baselines]'")
pytest.importorskip("tokenizers", reason="pip install 'citeweave[minilm]'")
NORM = "layer_prepostprocess/layer_norm/layer_norm"
VOCABULARY = [
    ("�", 0.0),
    *((f"<{n}>", 0.0) for n in range(5)),
    ("▁", -9.0),
    ("▁ce", -2.0),
    ("ll", -2.0),
    ("l", -3.0),
    ("s", -2.0),
]
PLACE = "module_apply_default/Encoder_en/KonaTransformer/Encode/"


def shapes(layer: int, size: int, inner: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights of a layer from `size` numbers to 512."""
    own = f"{PLACE}Layer_{layer}/TransformerLayer/"
    part, attention = "/ConcatPartitions/concat", f"{own}MultiheadAttention/"
    first = {f"{own}dense/kernel{part}": (size, 512), f"{own}dense/bias{part}": (512,)} if size < 512 else {}
    return {
        f"{own}{NORM}_scale{part}": (size,),
        f"{own}{NORM}_bias{part}": (size,),
        f"{attention}qkv_transform_single/kernel/part_0": (1, 1, size, 3 * size),
        f"{attention}qkv_transform_single/bias{part}": (3 * size,),
        f"{attention}output_transform_single/kernel/part_0": (1, 1, size, 512),
        f"{attention}output_transform_single/bias{part}": (512,),
        f"{own}FFN/{NORM}_scale{part}": (512,),
        f"{own}FFN/{NORM}_bias{part}": (512,),
        f"{PLACE}TransformerStack/Layer_{layer}/TransformerLayer/FFN/conv1/Tensordot/Reshape_1": (512, inner),
        f"{own}FFN/conv1/bias{part}": (inner,),
        f"{PLACE}TransformerStack/Layer_{layer}/TransformerLayer/FFN/conv2/Tensordot/Reshape_1": (inner, 512),
        f"{own}FFN/conv2/bias{part}": (512,),
        **first,
    }


@pytest.fixture(scope="module")
def encoder() -> UseLite:
    every = {
        **shapes(1, 512, 12),
        **shapes(0, 16, 12),
        "module/Embeddings_en": (len(VOCABULARY), 16),
        f"{PLACE}TransformerStack/Layer_0/AddTimingSignal/TimingSignal/ExpandDims_1": (1, 8),
        "module/Encoder_en/hidden_layers/tanh_layer_0/weights": (512, 512),
        "module/Encoder_en/hidden_layers/tanh_layer_0/bias": (512,),
    }
    draw, content, listed = np.random.default_rng(0), b"", []
    for name, shape in {"an/int": (2,), **every}.items():
        kind = "int32" if name == "an/int" else "float32"
        content += (0.2 * draw.standard_normal(shape)).astype(kind).tobytes()
        listed.append({"name": name, "shape": list(shape), "dtype": kind})
    return UseLite(read_weights(listed, content), VOCABULARY, "tiny")


def normed(weights: dict[str, np.ndarray], part: str, x: np.ndarray) -> np.ndarray:
    unit = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-6)
    return unit * weights[f"{part}{NORM}_scale"] + weights[f"{part}{NORM}_bias"]


def plain_vector(weights: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """The vector of one text, head after head, by the graph's operations."""
    angles = np.arange(len(ids))[:, None] * weights["Layer_0/AddTimingSignal/TimingSignal/ExpandDims_1"]
    word = weights["Embeddings_en"][ids]
    x = word + (word + np.concatenate([np.sin(angles), np.cos(angles)], 1))
    for layer in ("Layer_0/", "Layer_1/"):
        own = {name.removeprefix(layer): value for name, value in weights.items() if name.startswith(layer)}
        place, y = "MultiheadAttention/", normed(own, "", x)
        wide = y @ own[f"{place}qkv_transform_single/kernel"] + own[f"{place}qkv_transform_single/bias"]
        size, heads = x.shape[1] // 4, []
        for head in range(4):
            q, k, v = (wide[:, at * x.shape[1] + head * size :][:, :size] for at in range(3))
            scores = np.exp(q @ k.T / np.sqrt(size))
            heads.append(scores / scores.sum(1, keepdims=True) @ v)
        seen = np.concatenate(heads, 1) @ own[f"{place}output_transform_single/kernel"]
        residual = x @ own["dense/kernel"] + own["dense/bias"] if "dense/kernel" in own else x
        x = seen + own[f"{place}output_transform_single/bias"] + residual
        inner = np.maximum(0, normed(own, "FFN/", x) @ own["FFN/conv1/Tensordot/Reshape_1"] + own["FFN/conv1/bias"])
        x = x + inner @ own["FFN/conv2/Tensordot/Reshape_1"] + own["FFN/conv2/bias"]
    hidden = np.tanh(x.mean(0) @ weights["tanh_layer_0/weights"] + weights["tanh_layer_0/bias"])
    return hidden / np.linalg.norm(hidden)


def test_pieces_are_the_most_probable_ones(encoder):
    assert encoder.tokens("cells") == [7, 8, 10]
    assert encoder.tokens("cell[SEP]cells") == encoder.tokens("cell cells") == [7, 8, 7, 8, 10]
    assert encoder.tokens("cellzzs") == [7, 8, 0, 10]  # unknown characters are one piece
    assert encoder.tokens("") == [] and len(encoder.tokens("cells " * 100)) == MAX_TOKENS


def test_vectors_are_those_of_a_plain_computation_whatever_is_beside_them(encoder):
    texts = ["cells", "", "cells cell cells", "ﬁ cell"]
    weights = {name: weight.double().numpy() for name, weight in encoder._weights.items()}
    vectors = encoder.encode(texts)
    assert vectors.shape == (4, 512) and not vectors[1].any()
    for row in (0, 2, 3):
        np.testing.assert_allclose(vectors[row], plain_vector(weights, encoder.tokens(texts[row])), atol=1e-5)


def test_another_package_is_one_line(tmp_path):
    (tmp_path / "other.tgz").write_bytes(b"other")
    with pytest.raises(InputError, match=f"other.tgz is not @energetic-ai/.* not {SHA256[:12]}.; npm pack"):
        UseLite.open(tmp_path / "other.tgz")
    with pytest.raises(UserError, match="baseline:use_lite= needs the package: npm pack"):
        UseLite.open(Path())
