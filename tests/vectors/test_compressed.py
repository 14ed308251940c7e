"""Smaller vectors: what is read back is near what was written, and nothing is mixed by mistake."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from citeweave.core.artifact import check_files
from citeweave.core.errors import ArtifactError, UserError
from citeweave.vectors import compressed
from citeweave.vectors.compressed import CompressedVectors, compress
from citeweave.vectors.vectors import Vectors, new_vectors

from ..conftest import refused
from .conftest import change_facts


def write(folder, matrix, *, model="m", dtype="float32"):
    with new_vectors(folder, model=model, revision="r", text_recipe="t", dtype=dtype) as writer:
        writer.append([f"p{row}" for row in range(len(matrix))], matrix)
        return writer.finish()


@pytest.fixture
def vectors(tmp_path):
    return write(tmp_path / "v", np.random.default_rng(0).normal(size=(300, 20)) * np.logspace(-3, 2, 20))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(compressed, "BLOCK", 64)


def test_one_byte_per_number_is_off_by_half_a_step_and_bits_are_signs(vectors, tmp_path):
    small = compress(vectors, tmp_path / "s", "int8")
    assert isinstance(small, CompressedVectors) and small.codes.dtype == np.int8
    step = np.abs(vectors.matrix).max(axis=0) / 127  # (dimension,)
    assert (np.abs(small.decoded(slice(None)) - vectors.matrix) <= step * 0.5001).all()
    assert np.abs(small.codes).max() == 127 and small.take(["p7"]).dtype == np.float32
    np.testing.assert_array_equal(small.take(["p7", "p3"]), small.decoded(np.array([7, 3])))
    check_files(tmp_path / "s", small.manifest, content=True)
    refused("no vector of 1 of 1 papers", small.take, ["nobody"])
    bits = compress(vectors, tmp_path / "bits", "binary")
    assert isinstance(bits, CompressedVectors) and bits.codes.shape == (300, 3)
    np.testing.assert_array_equal(bits.decoded(slice(None)), np.where(vectors.matrix > 0, 1, -1))


@pytest.mark.parametrize("kind", ["int8", "binary"])
def test_scores_are_dot_products_of_what_is_read_back(vectors, tmp_path, kind):
    small = compress(vectors, tmp_path / "s", kind)
    queries = np.random.default_rng(1).normal(size=(4, 20))
    read = np.where(queries > 0, 1, -1) if kind == "binary" else queries
    np.testing.assert_allclose(small.scores(queries), read @ small.decoded(slice(None)).T, rtol=1e-4, atol=1e-3)
    some = np.array([299, 0, 70])
    np.testing.assert_allclose(small.scores(queries, some), small.scores(queries)[:, some], rtol=1e-4, atol=1e-3)
    refused(r"queries of shape \(4, 19\)", small.scores, queries[:, 1:])


def test_fewer_numbers_are_ordinary_vectors_of_length_1(vectors, tmp_path):
    small = compress(vectors, tmp_path / "s", "truncate:6")
    assert isinstance(small, Vectors) and list(small.ids) == list(vectors.ids)
    wanted = vectors.matrix[:, :6] / np.linalg.norm(vectors.matrix[:, :6], axis=1, keepdims=True)
    np.testing.assert_allclose(small.matrix, wanted, rtol=1e-5)
    assert Vectors.open(tmp_path / "s").provenance.model == "m truncate:6"


def test_what_does_not_belong_together_is_refused(vectors, tmp_path):
    whole = compress(vectors, tmp_path / "int8", "int8")
    bits = compress(vectors, tmp_path / "bits", "binary")
    short = compress(vectors, tmp_path / "short", "truncate:6")
    other = compress(write(tmp_path / "o", np.ones((2, 20)), model="other"), tmp_path / "o8", "int8")
    vectors.provenance.check_same(whole.provenance)
    for one, another in ((vectors, bits), (whole, bits), (vectors, short), (whole, other)):
        refused("cannot be compared", one.provenance.check_same, another.provenance)
    for folder in ("int8", "bits"):
        refused("holds compressed_vectors, not vectors", Vectors.open, tmp_path / folder, error=ArtifactError)
    refused("holds vectors, not compressed_vectors", CompressedVectors.open, tmp_path / "v", error=ArtifactError)
    refused("which compressed_vectors must not replace", compress, vectors, tmp_path / "short", "int8", overwrite=True)


def test_what_is_there_is_opened_and_other_vectors_are_refused(vectors, tmp_path):
    for kind in ("int8", "truncate:6"):
        made = compress(vectors, tmp_path / kind, kind)
        assert compress(vectors, tmp_path / kind, kind).manifest.made == made.manifest.made
        with pytest.raises(UserError, match="made from other inputs"):
            compress(write(tmp_path / f"o{kind}", np.ones((2, 20))), tmp_path / kind, kind)


BAD_KINDS = [
    ("int4", "--as is 'int4'; it must be one of binary, int8, truncate:N"),
    ("truncate:N", "put a number"),
    ("truncate:0", "N must be from 1 to 19"),
    ("truncate:20", "N must be from 1 to 19"),
]


@pytest.mark.parametrize(("kind", "message"), BAD_KINDS)
def test_bad_kinds(vectors, tmp_path, kind, message):
    refused(message, compress, vectors, tmp_path / "s", kind)


@pytest.mark.parametrize("damage", [{"dtype": "float32"}, {"rows": 3}, {"dimension": 19}, {"model": 3}, {"rows": None}])
def test_a_damaged_manifest_is_an_error_not_a_crash(vectors, tmp_path, damage):
    compress(vectors, tmp_path / "s", "int8")
    change_facts(tmp_path / "s", damage)
    with pytest.raises(ArtifactError):
        CompressedVectors.open(tmp_path / "s")


@settings(max_examples=30)
@given(matrix=arrays(np.float32, (5, 3), elements=st.floats(-(2.0**100), 2.0**100, width=32)))
def test_any_finite_numbers_come_back(tmp_path_factory, matrix):
    place = tmp_path_factory.mktemp("any")
    small = compress(write(place / "v", matrix), place / "s", "int8")
    step = np.maximum(np.abs(matrix).max(axis=0) / np.float32(127), np.finfo(np.float32).tiny)
    assert (np.abs(small.decoded(slice(None)) - matrix) <= step * 0.5001).all()
