"""Arrays are read as NumPy writes them, by many threads at once, and nothing else is taken for an array."""

from __future__ import annotations

import ast
import io
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from citeweave.core.columns import (
    map_array,
    open_array,
    read_arrays,
    read_header,
    read_saved_arrays,
)
from citeweave.core.errors import ArtifactError

DTYPES = st.sampled_from(["<i4", ">i4", "<u8", "|u1", "|i1", "|b1", "<f2", "<f4", ">f8", "<c8"])
ANY = DTYPES.flatmap(lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, min_side=0, max_side=4)))


@given(array=ANY, fortran=st.booleans())
def test_an_array_comes_back_as_it_was_saved(
    array: np.ndarray, fortran: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    saved = np.asfortranarray(array) if fortran and array.ndim else array
    folder = tmp_path_factory.mktemp("arrays")
    np.save(folder / "a.npy", saved)
    np.savez(folder / "a.npz", first=saved, second=np.arange(3))
    read = read_arrays(folder / "a.npz")
    assert set(read) == {"first", "second"}
    for found in (map_array(folder / "a.npy"), read["first"]):
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize("shape", ["9" * 400, "1 " * 4000, "1" * 30 + "x", "1,," * 2000 + "]"])
def test_a_header_that_is_hard_to_parse_is_refused_at_once(shape: str) -> None:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}"[:9000].encode()
    begun = time.process_time()
    with pytest.raises(ValueError, match="header"):
        read_header(io.BytesIO(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text))
    assert time.process_time() - begun < 1


def test_a_kept_archive_that_is_damaged_is_told(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.arange(5))
    assert read_saved_arrays(tmp_path / "a.npz", ["a"])["a"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ArtifactError, match="b is missing"):
        read_saved_arrays(tmp_path / "a.npz", ["a", "b"])
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:-30])
    with pytest.raises(ArtifactError, match="is damaged .* remove it and run the same command again"):
        read_saved_arrays(tmp_path / "a.npz", ["a"])


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_header(version: tuple[int, int]) -> None:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.zeros((2, 5), np.float32), version=version)
    file.seek(0)
    header = read_header(file)
    assert (header.shape, header.size, file.tell()) == ((2, 5), 40, header.start)


def test_no_parser_of_python_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython 3.11 cannot parse in two threads at once without an occasional SystemError."""
    np.savez(tmp_path / "a.npz", a=np.arange(5))
    np.save(tmp_path / "a.npy", np.arange(5))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the parser was called")

    monkeypatch.setattr(ast, "parse", refuse)
    monkeypatch.setattr(ast, "literal_eval", refuse)
    with ThreadPoolExecutor(4) as pool:
        assert all(found.tolist() == [0, 1, 2, 3, 4] for found in pool.map(map_array, [tmp_path / "a.npy"] * 50))
    assert read_arrays(tmp_path / "a.npz")["a"].tolist() == [0, 1, 2, 3, 4]


def _saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "says"),
    [
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
    ],
)
def test_what_is_no_array_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(ArtifactError, match=f"a.npy is damaged.*{says}.*make it again"):
        open_array(tmp_path / "a.npy")


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"a.npy is missing.*make it again"):
        open_array(tmp_path / "a.npy")


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(1000))
    whole = path.read_bytes()
    for damaged in (b"", whole[:-40], whole[:3000] + b"\xff" * 20 + whole[3020:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"a\.npz"):
            read_arrays(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", _saved(np.arange(9))[:-8])
    with pytest.raises(ValueError, match=r"a\.npy: 192 bytes"):
        read_arrays(path)
