"""Aspect heads as files: they come back as they were, foreign ones are refused, and `embed --aspect` uses them."""

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from citeweave.core.errors import InputError, UserError
from citeweave.corpus.ingest import import_papers
from citeweave.encoders.aspects import AspectHeads, find_heads, load_aspect_encoder, open_heads, save_heads
from citeweave.encoders.encoder import load_encoder
from citeweave.vectors.vectors import Vectors

from ..cli.conftest import prepare, run
from .conftest import change, refused, write_lines


def heads_of(dimension: int, size: int = 3, depth: int = 1, names=("method", "result")) -> AspectHeads:
    draw, sizes = np.random.default_rng(0), itertools.pairwise([dimension, *[size] * depth])
    shapes = [((out, into), out) for into, out in sizes]
    drawn = {
        name: tuple(tuple(draw.normal(size=size).astype(np.float32) for size in pair) for pair in shapes)
        for name in names
    }
    return AspectHeads(names, drawn)


@pytest.fixture
def model(bert, tmp_path) -> Path:
    shutil.copytree(bert, tmp_path / "model")
    save_heads(tmp_path / "model", heads_of(32))
    return tmp_path / "model"


@pytest.mark.parametrize("depth", [1, 2])
def test_heads_come_back_as_they_were(model, depth):
    heads = heads_of(32, depth=depth)
    shutil.rmtree(model / "aspects")
    save_heads(model, heads)
    again = open_heads(model)
    assert again.names == heads.names and again.hash == heads.hash
    assert heads_of(32, depth=depth, names=("result", "method")).hash != heads.hash


@given(st.integers(1, 2), st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_a_projection_is_the_formula(depth, seed):
    heads = heads_of(5, depth=depth)
    vectors = np.random.default_rng(seed).normal(size=(4, 5)).astype(np.float32)
    vectors[2] = 0
    found = heads.project(vectors, "method")
    layers = [(weight.astype(float), bias.astype(float)) for weight, bias in heads.layers["method"]]
    for row, vector in enumerate(vectors.astype(float)):
        expected = layers[0][0] @ vector + layers[0][1]
        if depth == 2:
            expected = layers[1][0] @ np.maximum(expected, 0) + layers[1][1]
        np.testing.assert_allclose(found[row], np.zeros(3) if row == 2 else expected, rtol=1e-4, atol=1e-5)
    both = heads.project(vectors, "all")
    for part, name in zip(np.split(both, 2, axis=1), heads.names, strict=True):
        alone = heads.project(vectors, name)
        unit = alone / np.maximum(np.linalg.norm(alone, axis=1, keepdims=True), 1e-12)
        np.testing.assert_allclose(part, unit, rtol=1e-5, atol=1e-6)
    alone = [heads.project(vectors, name) for name in heads.names]
    np.testing.assert_array_equal(heads.project(vectors, "method+result"), np.hstack(alone))
    np.testing.assert_array_equal(heads.project(vectors, "encoder+all"), np.hstack([vectors, *alone]))
    np.testing.assert_array_equal(heads.project(vectors, "result+encoder"), np.hstack([alone[1], vectors]))
    assert [heads.dimension(name) for name in heads.spaces] == [3, 3, 6, 6, 11]


def test_the_encoder_stays_as_it_was_and_wrong_requests_are_named(model, bert):
    texts = ["models learn", ""]
    np.testing.assert_array_equal(load_encoder(model).encode(texts), load_encoder(bert).encode(texts))
    assert load_encoder(model).revision == load_encoder(bert).revision
    spaces = {aspect: load_aspect_encoder(model, aspect) for aspect in ("", "method", "result", "all")}
    assert len({encoder.revision for encoder in spaces.values()}) == 4
    assert [encoder.dimension for encoder in spaces.values()] == [32, 3, 3, 6]
    assert spaces["method"].name == "model (method)" and find_heads(bert) is None
    refused(
        "has no aspect heads; .*`citeweave similar FOLDER --paper ID --sentences 0,1`",
        load_aspect_encoder,
        bert,
        "method",
    )
    refused("'metod'.*method", load_aspect_encoder, model, "metod")
    refused("'metod'.*encoder", load_aspect_encoder, model, "encoder+metod")
    refused("--aspect is ''", load_aspect_encoder, model, "method+")
    refused("--aspect is 'encoder'", load_aspect_encoder, model, "encoder")
    with pytest.raises(UserError, match="the vectors have 7 numbers and the aspect heads read 32"):
        open_heads(model).project(np.ones((1, 7), np.float32), "method")


FOREIGN = [
    ({"version": 2}, "version 1"),
    ({"names": ["all"]}, "distinct aspects"),
    ({"names": ["method", "method"]}, "distinct aspects"),
    ({"names": ["encoder"]}, "distinct aspects"),
    ({"names": "method"}, "distinct aspects"),
    ({"sizes": [32]}, "whole numbers"),
    ({"sizes": [32, 10**9]}, "whole numbers"),
    ({"sizes": [32, 4]}, "shape"),
    ({"names": ["method", "other"]}, "not an expected tensor"),
    (None, "not finite"),
]


@pytest.mark.parametrize(("changes", "message"), FOREIGN)
def test_foreign_heads_are_refused(model, changes, message):
    if changes is None:
        path = model / "aspects/model.safetensors"
        save_file({name: np.full_like(tensor, np.nan) for name, tensor in load_file(path).items()}, path)
    else:
        change(model / "aspects/config.json", **changes)
    refused(message, open_heads, model, error=InputError)


def test_embed_in_a_space(model, tmp_path, capsys):
    papers = [{"id": "a", "title": "the cell"}, {"id": "b", "title": "how models learn"}]
    import_papers([write_lines(tmp_path / "papers.jsonl", papers)], tmp_path / "corpus")
    command = f"embed {tmp_path}/corpus --model {model} --device cpu -o {tmp_path}"
    prepare(f"{command}/plain", f"{command}/method --aspect method")
    plain, method = (np.asarray(Vectors.open(tmp_path / name).matrix) for name in ("plain", "method"))
    np.testing.assert_allclose(method, open_heads(model).project(plain, "method"), atol=1e-5)
    code, _, err = run(capsys, *f"{command}/x --aspect method --sentences".split())
    assert code == 2 and "--aspect is 'method'" in err
