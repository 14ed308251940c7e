"""Other runtimes give the vectors that torch gives; models are converted once, and again where they are damaged."""

from __future__ import annotations

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.corpus.text import paper_text
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.runtimes import Runtime, supported_precisions
from citeweave.encoders.sentence_encoder import encode_sentences

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

TEXTS = [
    paper_text("The cell grows", "We find how models learn. A paper shows that the cell grows."),
    "data",
    "",
    "a " * 200,
    paper_text("How models learn from graphs", "In data of citations, we find that a cell learns unknown zyzzyvas."),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    pytest.importorskip("openvino", reason="pip install 'citeweave[runtimes]'")
    return tmp_path_factory.mktemp("cache")


def openvino(cache, precision="", threads=1):
    return Runtime("openvino", precision, threads=threads, cache=cache)


def cosines(a, b):
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.parametrize("options", [{"pooling": "cls"}, {"pooling": "mean", "normalize": True}], ids=["cls", "mean"])
def test_float32_is_torch_again_whatever_the_batch(bert, cache, options):
    torch_encoder = load_encoder(bert, device="cpu", **options)
    expected = torch_encoder.encode(TEXTS)
    for budget, threads in ((1, 1), (60, 2), (4096, 3)):
        encoder = load_encoder(bert, runtime=openvino(cache, threads=threads), batch_tokens=budget, **options)
        np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-4)
    assert encoder.encode_tokens(encoder.reader.read(TEXTS)).shape == (5, 32)
    assert (encoder.revision, encoder.dimension, encoder.name) == (torch_encoder.revision, 32, "tiny-bert")
    assert not encoder.encode(TEXTS)[2].any()


def test_sentences_have_the_same_vectors(bert, cache):
    titles, sentences = ["The cell grows", "data"], [["We find how.", "Models learn."], []]
    found = [
        encode_sentences(load_encoder(bert, device="cpu", **options), titles, sentences).matrix
        for options in ({}, {"runtime": openvino(cache)})
    ]
    np.testing.assert_allclose(found[1], found[0], atol=1e-4)


def test_int8_is_near_and_has_a_revision_of_its_own(bert, cache):
    plain = load_encoder(bert, pooling="mean", device="cpu")
    small = load_encoder(bert, pooling="mean", runtime=openvino(cache, "int8"))
    expected, found = plain.encode(TEXTS[:2]), small.encode(TEXTS[:2])
    assert cosines(found, expected).min() > 0.98
    assert np.abs(found - expected).max() > 1e-5
    assert small.revision == f"{plain.revision}-openvino-int8" and small.runtime.label == "openvino-int8"


def test_half_precision_where_the_processor_has_it(bert, cache):
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


def test_what_a_runtime_cannot_do_is_refused(bert):
    for runtime, options, message in (
        (
            "openvno",
            {},
            "--runtime is 'openvno'; it must be one of auto, int8, openvino, torch. Did you mean 'openvino'",
        ),
        ("openvino-int4", {}, "the precision of --runtime openvino is 'int4'; it must be one of bfloat16, float16"),
        ("torch-int8", {}, "the precision of --runtime torch is 'int8'"),
        ("openvino", {"dtype": "float64"}, "--precision with openvino is 'float64'"),
        ("openvino", {"pooling": "layers"}, "gives the last layer only, and pooling layers needs all"),
        ("openvino", {"device": "cuda"}, "runs on the CPU, and --device is cuda"),
    ):
        with pytest.raises(UserError, match=message):
            load_encoder(bert, runtime=runtime, **options)
    with pytest.raises(UserError, match="threads of a runtime is -1"):
        Runtime("openvino", threads=-1)


def test_torch_passes_its_options_on(bert):
    assert load_encoder(bert, device="cpu", runtime=Runtime(packed=False)).network.packed is False
    plain = load_encoder(bert, device="cpu")
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        with pytest.raises(UserError, match="--dtype is bfloat16, for which this processor has no fast arithmetic"):
            load_encoder(bert, device="cpu", runtime="torch-bfloat16")
        return
    half = load_encoder(bert, device="cpu", runtime="torch-bfloat16")
    assert half.revision == plain.revision and half.runtime.label == "torch-bfloat16"
    assert cosines(half.encode(TEXTS[:2]), plain.encode(TEXTS[:2])).min() > 0.99
