"""Columns and arrays come back as they were written, read by many threads at once; damaged files are refused."""

from __future__ import annotations

import ast
import io
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from citeweave.core import columns
from citeweave.core.errors import ArtifactError
from citeweave.core.hash_keys import hash_numbers, hash_text, hash_texts
from citeweave.core.randomness import stream

from .conftest import refused

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
DTYPES = st.sampled_from(["<i4", ">i4", "<u8", "|u1", "|i1", "|b1", "<f2", "<f4", ">f8", "<c8"])
ANY = DTYPES.flatmap(lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, min_side=0, max_side=4)))


def text_column(folder, *batches):
    writer = columns.TextWriter(folder, "title")
    for batch in batches:
        writer.append(batch)
    writer.close()
    return columns.TextColumn(folder, "title")


@given(texts=TEXTS)
def test_texts_come_back(tmp_path_factory, texts):
    batches = (texts[start : start + 3] for start in range(0, len(texts), 3))
    column = text_column(tmp_path_factory.mktemp("texts"), *batches)
    assert list(column) == texts and len(column) == len(texts)
    assert column.keys().tolist() == hash_texts(texts).tolist()
    rows = np.arange(len(texts))[::-2]
    assert column.take(rows) == texts[::-2]
    lengths, data = column.gather(rows)
    assert data == "".join(texts[::-2]).encode() and lengths.tolist() == [len(t.encode()) for t in texts[::-2]]
    columns.release(column)
    assert column[:2] == texts[:2]


def test_lone_surrogates_do_not_stop_a_writer(tmp_path):
    assert text_column(tmp_path, ["a\ud800b"])[0] == "a?b"


def test_numbers_are_plain_npy_files(tmp_path):
    writer = columns.NumberWriter(tmp_path / "year.npy", np.int16)
    writer.append([1999, 2000])
    writer.append(np.array([2001]))
    writer.close()
    assert np.load(tmp_path / "year.npy").tolist() == [1999, 2000, 2001]
    assert columns.open_numbers(tmp_path / "year.npy", np.int16).tolist() == [1999, 2000, 2001]
    refused("int32", columns.open_numbers, tmp_path / "year.npy", np.int32, error=ArtifactError)
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object))
    refused("damaged", columns.open_numbers, tmp_path / "x.npy", np.int32, error=ArtifactError)


def test_offsets_that_do_not_fit_are_refused(tmp_path):
    text_column(tmp_path, ["one", "two"])
    columns.write_numbers(tmp_path / "title.offsets.npy", np.array([0, 5, 6]))
    assert columns.TextColumn(tmp_path, "title")[1] == "o"
    for offsets in ([0, 9, 6], [0, 3, 7]):
        columns.write_numbers(tmp_path / "title.offsets.npy", np.array(offsets))
        with pytest.raises(ArtifactError, match="damaged"):
            columns.TextColumn(tmp_path, "title")[1]
    refused("damaged", columns.TextColumn, tmp_path, "title", error=ArtifactError)


# --- arrays as NumPy writes them ---------------------------------------------------------------------


@given(array=ANY, fortran=st.booleans())
def test_an_array_comes_back_as_it_was_saved(array, fortran, tmp_path_factory):
    saved = np.asfortranarray(array) if fortran and array.ndim else array
    folder = tmp_path_factory.mktemp("arrays")
    np.save(folder / "a.npy", saved)
    np.savez(folder / "a.npz", first=saved, second=np.arange(3))
    read = columns.read_arrays(folder / "a.npz")
    assert set(read) == {"first", "second"}
    for found in (columns.map_array(folder / "a.npy"), read["first"]):
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize("shape", ["9" * 400, "1 " * 4000, "1" * 30 + "x", "1,," * 2000 + "]"])
def test_a_header_that_is_hard_to_parse_is_refused_at_once(shape):
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}"[:9000].encode()
    begun = time.process_time()
    with pytest.raises(ValueError, match="header"):
        columns.read_header(io.BytesIO(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text))
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_header(version):
    file = io.BytesIO()
    np.lib.format.write_array(file, np.zeros((2, 5), np.float32), version=version)
    file.seek(0)
    header = columns.read_header(file)
    assert (header.shape, header.size, file.tell()) == ((2, 5), 40, header.start)


def test_no_parser_of_python_is_called(tmp_path, monkeypatch):
    """CPython 3.11 cannot parse in two threads at once without an occasional SystemError."""
    np.savez(tmp_path / "a.npz", a=np.arange(5))
    np.save(tmp_path / "a.npy", np.arange(5))

    def refuse(*_, **__):
        raise AssertionError("the parser was called")

    monkeypatch.setattr(ast, "parse", refuse)
    monkeypatch.setattr(ast, "literal_eval", refuse)
    with ThreadPoolExecutor(4) as pool:
        assert all(
            found.tolist() == [0, 1, 2, 3, 4] for found in pool.map(columns.map_array, [tmp_path / "a.npy"] * 50)
        )
    assert columns.read_arrays(tmp_path / "a.npz")["a"].tolist() == [0, 1, 2, 3, 4]


def _saved(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


NO_ARRAYS = [
    (b"", "does not begin"),
    (b"\x93NUMP", "does not begin"),
    (b"PK\x03\x04" + b"x" * 200, "does not begin"),
    (b"\x93NUMPY\x09\x00" + b" " * 200, "version 9"),
    (_saved(np.arange(9))[:100], "does not describe"),
    (_saved(np.arange(9))[:-1], "its header promises 72"),
    (_saved(np.array([{}, []], object)), "plain numbers"),
    (_saved(np.zeros(2, [("a", "i4"), ("b", "f4")])), "plain numbers"),
    (_saved(np.arange(9)).replace(b"(9,)", b"(-9)"), "plain numbers"),
    (_saved(np.arange(9)).replace(b"<i8", b"<i7"), "not a type of numbers"),
    (_saved(np.arange(9)).replace(b"'shape': (9,), }", b"'shape':(9,9,9,)}"), "promises"),
    (b"\x93NUMPY\x02\x00" + (2**31).to_bytes(4, "little") + b" " * 100, "does not describe"),
]


@pytest.mark.parametrize(("content", "message"), NO_ARRAYS)
def test_what_is_no_array_is_refused(tmp_path, content, message):
    (tmp_path / "a.npy").write_bytes(content)
    refused(f"a.npy is damaged.*{message}.*make it again", columns.open_array, tmp_path / "a.npy", error=ArtifactError)


def test_missing_and_damaged_files_are_named(tmp_path):
    refused(r"a.npy is missing.*make it again", columns.open_array, tmp_path / "a.npy", error=ArtifactError)
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(1000))
    assert columns.read_saved_arrays(path, ["a"])["a"].tolist() == list(range(1000))
    refused("b is missing", columns.read_saved_arrays, path, ["a", "b"], error=ArtifactError)
    data = path.read_bytes()
    for damaged in (b"", data[:-40], data[:3000] + b"\xff" * 20 + data[3020:]):
        path.write_bytes(damaged)
        refused(r"a\.npz", columns.read_arrays, path, error=ValueError)
        with pytest.raises(ArtifactError, match="is damaged .* remove it and run the same command again"):
            columns.read_saved_arrays(path, ["a"])
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", _saved(np.arange(9))[:-8])
    refused(r"a\.npy: 192 bytes", columns.read_arrays, path, error=ValueError)


# --- hash keys and random streams --------------------------------------------------------------------


@given(st.integers(0, 2**63 - 1))
def test_numbers_and_their_texts_share_a_key(number):
    assert int(hash_numbers("s2:", np.array([number]))[0]) == int(hash_text(f"s2:{number}"))


def test_keys_never_change():
    """Keys are written into corpora: another value for an old text would break every one of them."""
    keys = [int(key) for key in hash_texts(["", "a", "doi:10.1000/x", "é"])]
    assert keys[:2] == [17280346270528514342, 4282424867417216116]
    assert keys[2:] == [13508147703075395018, 5085217557642179190]


def test_streams_depend_on_the_seed_and_every_name():
    assert stream(0, "mining", 7).integers(0, 1000, 4).tolist() == stream(0, "mining", 7).integers(0, 1000, 4).tolist()
    assert stream(0, "a", 1).integers(2**62) != stream(0, "a", 2).integers(2**62) != stream(1, "a", 1).integers(2**62)
    assert stream(0, "a", "b").integers(2**62) != stream(0, "ab").integers(2**62)
