"""Aspect heads as files: they come back as they were, foreign ones are refused, and `embed --aspect` uses them."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from citeweave.cli import main
from citeweave.core.errors import InputError, UserError
from citeweave.corpus.ingest import import_papers
from citeweave.encoders.aspects import AspectHeads, find_heads, load_aspect_encoder, open_heads, save_heads
from citeweave.encoders.encoder import load_encoder
from citeweave.vectors.vectors import Vectors


def heads_of(
    dimension: int, *, size: int = 3, depth: int = 1, names: tuple[str, ...] = ("method", "result")
) -> AspectHeads:
    draw = np.random.default_rng(0)
    sizes = [dimension, *[size] * depth]
    return AspectHeads(
        names,
        {
            name: tuple(
                (draw.normal(size=(out, into)).astype(np.float32), draw.normal(size=out).astype(np.float32))
                for into, out in itertools.pairwise(sizes)
            )
            for name in names
        },
    )


@pytest.fixture
def model(bert: Path, tmp_path: Path) -> Path:
    shutil.copytree(bert, tmp_path / "model")
    save_heads(tmp_path / "model", heads_of(32))
    return tmp_path / "model"


@pytest.mark.parametrize("depth", [1, 2])
def test_heads_come_back_as_they_were(bert: Path, tmp_path: Path, depth: int) -> None:
    shutil.copytree(bert, tmp_path / "model")
    heads = heads_of(32, depth=depth)
    save_heads(tmp_path / "model", heads)
    again = open_heads(tmp_path / "model")
    assert again.names == heads.names and again.hash == heads.hash
    assert heads_of(32, depth=depth, names=("result", "method")).hash != heads.hash


@given(st.integers(1, 2), st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_a_projection_is_the_formula(depth: int, seed: int) -> None:
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


def test_the_encoder_stays_as_it_was(model: Path, bert: Path) -> None:
    texts = ["models learn", ""]
    np.testing.assert_array_equal(load_encoder(model).encode(texts), load_encoder(bert).encode(texts))
    assert load_encoder(model).revision == load_encoder(bert).revision
    spaces = {aspect: load_aspect_encoder(model, aspect) for aspect in ("", "method", "result", "all")}
    assert len({encoder.revision for encoder in spaces.values()}) == 4
    assert [encoder.dimension for encoder in spaces.values()] == [32, 3, 3, 6]
    assert spaces["method"].name == "model (method)"


def test_what_is_asked_wrongly_is_told(model: Path, bert: Path) -> None:
    assert find_heads(bert) is None
    with pytest.raises(UserError, match="has no aspect heads"):
        load_aspect_encoder(bert, "method")
    with pytest.raises(UserError, match="'metod'.*method"):
        load_aspect_encoder(model, "metod")
    with pytest.raises(UserError, match="the vectors have 7 numbers and the aspect heads read 32"):
        open_heads(model).project(np.ones((1, 7), np.float32), "method")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": 2}, "version 1"),
        ({"names": ["all"]}, "distinct aspects"),
        ({"names": ["method", "method"]}, "distinct aspects"),
        ({"names": "method"}, "distinct aspects"),
        ({"sizes": [32]}, "whole numbers"),
        ({"sizes": [32, 10**9]}, "whole numbers"),
        ({"sizes": [32, 4]}, "shape"),
        ({"names": ["method", "other"]}, "not an expected tensor"),
    ],
)
def test_a_foreign_config_is_refused(model: Path, change: dict[str, object], told: str) -> None:
    path = model / "aspects" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=told):
        open_heads(model)


def test_numbers_that_are_none_are_refused(model: Path) -> None:
    tensors = {
        f"{name}.0.{part}": np.full((3, 32) if part == "weight" else 3, np.nan, np.float32)
        for name in ("method", "result")
        for part in ("weight", "bias")
    }
    save_file(tensors, model / "aspects" / "model.safetensors")
    with pytest.raises(InputError, match="not finite"):
        open_heads(model)


def test_embed_in_a_space(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    papers = [{"id": "a", "title": "the cell"}, {"id": "b", "title": "how models learn"}]
    (tmp_path / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in papers))
    import_papers([tmp_path / "papers.jsonl"], tmp_path / "corpus")
    command = ["embed", str(tmp_path / "corpus"), "--model", str(model), "--device", "cpu", "-o"]
    for name, asked in (("plain", []), ("method", ["--aspect", "method"])):
        with pytest.raises(SystemExit) as end:
            main([*command, str(tmp_path / name), *asked, "--quiet"])
        assert not end.value.code
    plain, method = (Vectors.open(tmp_path / name) for name in ("plain", "method"))
    expected = open_heads(model).project(np.asarray(plain.matrix), "method")
    np.testing.assert_allclose(np.asarray(method.matrix), expected, atol=1e-5)
    with pytest.raises(SystemExit, match="2"):
        main([*command, str(tmp_path / "x"), "--aspect", "method", "--sentences"])
    assert "--aspect is 'method'" in capsys.readouterr().err
