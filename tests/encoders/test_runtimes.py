"""Other runtimes give the vectors that torch gives; their files are made once and made again where damaged."""

from __future__ import annotations

import numpy as np
import pytest

from citeweave.corpus.text import paper_text
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.exporting import MODEL
from citeweave.encoders.runtimes import Runtime
from citeweave.encoders.sentences import encode_sentences
from citeweave.errors import UserError

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
PACKAGES = {"onnx": "onnxruntime", "openvino": "openvino"}

TEXTS = [
    paper_text("The cell grows", "We find how models learn. A paper shows that the cell grows."),
    "data",
    "",
    "a " * 200,
    paper_text("How models learn from graphs", "In data of citations, we find that a cell learns unknown zyzzyvas."),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    pytest.importorskip("onnxscript", reason="pip install 'citeweave[runtimes]'")
    return tmp_path_factory.mktemp("cache")


def runtime_of(name, cache):
    pytest.importorskip(PACKAGES[name], reason="pip install 'citeweave[runtimes]'")
    return Runtime(name, threads=1, cache=cache)


def cosines(a, b):
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize("options", [{"pooling": "cls"}, {"pooling": "mean", "normalize": True}], ids=["cls", "mean"])
def test_float32_is_torch_again_whatever_the_batch(bert, cache, name, options):
    torch_encoder = load_encoder(bert, device="cpu", **options)
    expected = torch_encoder.encode(TEXTS)
    for budget in (1, 60, 4096):
        encoder = load_encoder(bert, runtime=runtime_of(name, cache), batch_tokens=budget, **options)
        np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-4)
    assert encoder.encode_tokens(encoder.reader.read(TEXTS)).shape == (5, 32)
    assert (encoder.revision, encoder.dimension, encoder.name) == (torch_encoder.revision, 32, "tiny-bert")
    assert not encoder.encode(TEXTS)[2].any()


@pytest.mark.parametrize("name", PACKAGES)
def test_sentences_have_the_same_vectors(bert, cache, name):
    titles, sentences = ["The cell grows", "data"], [["We find how.", "Models learn."], []]
    found = [
        encode_sentences(load_encoder(bert, device="cpu", **options), titles, sentences).matrix
        for options in ({}, {"runtime": runtime_of(name, cache)})
    ]
    np.testing.assert_allclose(found[1], found[0], atol=1e-4)


def test_int8_is_near_and_has_a_revision_of_its_own(bert, cache):
    plain = load_encoder(bert, pooling="mean", device="cpu")
    small = load_encoder(bert, pooling="mean", runtime=runtime_of("onnx", cache), dtype="int8")
    expected, found = plain.encode(TEXTS[:2]), small.encode(TEXTS[:2])
    assert cosines(found, expected).min() > 0.98
    assert np.abs(found - expected).max() > 1e-5
    assert small.revision == f"{plain.revision}-onnx-int8"


def test_half_precision_where_the_processor_has_it(bert, cache):
    runtime = runtime_of("openvino", cache)
    import openvino

    can = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    for dtype, capability in (("float16", "FP16"), ("bfloat16", "BF16")):
        if capability not in can:
            with pytest.raises(UserError, match=f"--dtype is {dtype}, in which this processor does not compute"):
                load_encoder(bert, runtime=runtime, dtype=dtype)
        else:
            found = load_encoder(bert, runtime=runtime, dtype=dtype).encode(TEXTS[:2])
            assert cosines(found, load_encoder(bert, device="cpu").encode(TEXTS[:2])).min() > 0.99


def test_an_exported_model_is_made_once_and_again_where_it_is_damaged(bert, cache):
    runtime = runtime_of("onnx", cache)
    expected = load_encoder(bert, runtime=runtime).encode(TEXTS)
    (file,) = cache.rglob(f"*-float32/{MODEL}")
    made = file.stat().st_mtime_ns
    load_encoder(bert, runtime=runtime, pooling="mean", max_tokens=20)
    assert file.stat().st_mtime_ns == made
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    damaged = file.stat().st_mtime_ns
    np.testing.assert_allclose(load_encoder(bert, runtime=runtime).encode(TEXTS), expected, atol=1e-6)
    assert file.stat().st_mtime_ns != damaged and file.read_bytes() != content
    assert not [path for path in file.parent.parent.iterdir() if path.suffix]  # nothing partial or old is left


def test_what_a_runtime_cannot_do_is_refused(bert):
    for runtime, options, message in (
        ("onxx", {}, "--runtime is 'onxx'; it must be one of int8, onnx, openvino, torch. Did you mean 'onnx'"),
        ("onnx", {"dtype": "float16"}, "--dtype with --runtime onnx is 'float16'; it must be one of float32, int8"),
        ("openvino", {"dtype": "int8"}, "--dtype with --runtime openvino is 'int8'"),
        ("onnx", {"pooling": "layers"}, "gives the last layer only, and pooling layers needs all"),
        ("onnx", {"device": "cuda"}, "runs on the processor, and --device is cuda"),
    ):
        with pytest.raises(UserError, match=message):
            load_encoder(bert, runtime=runtime, **options)
    with pytest.raises(UserError, match="threads of a runtime is -1"):
        Runtime("onnx", threads=-1)


def test_torch_passes_its_options_on(bert):
    assert load_encoder(bert, device="cpu", runtime=Runtime(packed=False)).network.packed is False
