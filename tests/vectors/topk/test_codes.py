"""Codes: written block by block as in memory, bounds that hold, folders that do not fit refused."""

import numpy as np
import pytest

from citeweave.core.columns import write_numbers
from citeweave.core.errors import ArtifactError, UserError
from citeweave.vectors.topk import codes as module
from citeweave.vectors.topk.codes import Codes, QueryCodes, make_codes, write_codes

from ...conftest import refused


def some_vectors():
    vectors = np.random.default_rng(0).standard_normal((50, 20)).astype(np.float16)
    vectors[3] = 0
    return vectors


def test_a_folder_holds_what_memory_holds_whatever_the_blocks(tmp_path, monkeypatch):
    vectors = some_vectors()
    whole = make_codes(vectors)
    monkeypatch.setattr(module, "BLOCK", 7)
    write_codes(tmp_path / "codes", vectors)
    opened = Codes.open(tmp_path / "codes")
    for name in Codes.__slots__:
        np.testing.assert_array_equal(getattr(opened, name), getattr(whole, name))
    assert opened.width == 32 and len(opened) == 50
    assert not opened.matrix.flags.writeable


def test_errors_are_above_the_true_ones():
    vectors = some_vectors()
    codes = make_codes(vectors)
    unit = vectors.astype(np.longdouble)
    norms = np.sqrt((unit**2).sum(axis=1, keepdims=True))
    unit = unit / np.where(norms > 0, norms, 1)
    rest = unit - codes.matrix[:, :20] * codes.scales.astype(np.longdouble)[:, None]
    true = np.sqrt((rest**2).sum(axis=1))
    assert (codes.errors >= true).all() and (codes.errors < true + 1e-6).all()
    assert not codes.matrix[:, 20:].any()


def test_no_vectors_are_a_folder_too(tmp_path):
    write_codes(tmp_path, np.empty((0, 8), np.float16))
    codes = Codes.open(tmp_path)
    codes.check(np.empty((0, 8), np.float16))
    assert len(codes) == 0


@pytest.mark.parametrize("name", ["codes", "scales", "errors", "norms"])
def test_files_that_do_not_fit_are_refused(tmp_path, name):
    write_codes(tmp_path, some_vectors())
    (tmp_path / "other").mkdir()
    write_codes(tmp_path / "other", some_vectors()[:49])
    (tmp_path / "other" / f"{name}.npy").rename(tmp_path / f"{name}.npy")
    refused("do not fit", Codes.open, tmp_path, error=ArtifactError)
    (tmp_path / f"{name}.npy").unlink()
    refused("missing", Codes.open, tmp_path, error=ArtifactError)
    if name == "scales":
        write_numbers(tmp_path / "scales.npy", np.ones(50))
        refused("float32", Codes.open, tmp_path, error=ArtifactError)


def test_numbers_that_are_not_finite_are_named_by_their_row(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 7)
    vectors = some_vectors().astype(np.float32)
    vectors[40, 2] = 1e6  # too large for float16
    with np.errstate(over="ignore"), pytest.raises(UserError, match="row 40 "):
        make_codes(vectors.astype(np.float16))
    refused("row 40 ", write_codes, tmp_path, np.where(np.arange(50)[:, None] == 40, np.nan, vectors))


@pytest.mark.parametrize("dimension", [3, 384, 1100, 5000])
def test_sums_of_products_with_the_codes_of_a_query_fit_into_32_bits(dimension):
    vectors = np.ones((1, dimension), np.float32)
    queries = QueryCodes.of(vectors, np.sqrt([float(dimension)]))
    high, low = queries.halves[0].astype(np.int64)
    np.testing.assert_array_equal(128 * high + low, queries.words[0])
    assert 127 * np.abs(queries.words[0].astype(np.int64)).sum() < 2**31
    codes = make_codes(vectors)
    total = int(codes.matrix[0].astype(np.int64) @ queries.words[0])
    factor, constant = queries.error(0)
    assert abs(total * queries.units[0] * codes.scales[0] - 1) <= codes.errors[0] * factor + constant
