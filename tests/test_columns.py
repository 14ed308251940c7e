from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave.core.columns import (
    NumberWriter,
    TextColumn,
    TextWriter,
    open_numbers,
    release,
    write_numbers,
)
from citeweave.core.errors import ArtifactError
from citeweave.core.hash_keys import hash_numbers, hash_text, hash_texts

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=50))


@given(texts=TEXTS)
def test_texts_come_back(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    folder = tmp_path_factory.mktemp("texts")
    writer = TextWriter(folder, "title")
    for start in range(0, len(texts), 3):
        writer.append(texts[start : start + 3])
    writer.close()
    column = TextColumn(folder, "title")
    assert list(column) == texts and len(column) == len(texts)
    assert column.keys().tolist() == hash_texts(texts).tolist()
    rows = np.arange(len(texts))[::-2]
    assert column.take(rows) == texts[::-2]
    lengths, data = column.gather(rows)
    assert data == "".join(texts[::-2]).encode() and lengths.tolist() == [len(t.encode()) for t in texts[::-2]]
    release(column)
    assert column[:2] == texts[:2]


def test_lone_surrogates_do_not_stop_a_writer(tmp_path: Path) -> None:
    writer = TextWriter(tmp_path, "title")
    writer.append(["a\ud800b"])
    writer.close()
    assert TextColumn(tmp_path, "title")[0] == "a?b"


def test_numbers_are_plain_npy_files(tmp_path: Path) -> None:
    writer = NumberWriter(tmp_path / "year.npy", np.int16)
    writer.append([1999, 2000])
    writer.append(np.array([2001]))
    writer.close()
    assert np.load(tmp_path / "year.npy").tolist() == [1999, 2000, 2001]
    assert open_numbers(tmp_path / "year.npy", np.int16).tolist() == [1999, 2000, 2001]
    with pytest.raises(ArtifactError, match="int32"):
        open_numbers(tmp_path / "year.npy", np.int32)


def test_object_arrays_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object))
    with pytest.raises(ArtifactError, match="damaged"):
        open_numbers(tmp_path / "x.npy", np.int32)


def test_offsets_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    writer = TextWriter(tmp_path, "title")
    writer.append(["one", "two"])
    writer.close()
    write_numbers(tmp_path / "title.offsets.npy", np.array([0, 5, 6]))
    assert TextColumn(tmp_path, "title")[1] == "o"
    write_numbers(tmp_path / "title.offsets.npy", np.array([0, 9, 6]))
    with pytest.raises(ArtifactError, match="damaged"):
        TextColumn(tmp_path, "title")[1]
    write_numbers(tmp_path / "title.offsets.npy", np.array([0, 3, 7]))
    with pytest.raises(ArtifactError, match="damaged"):
        TextColumn(tmp_path, "title")


@given(st.integers(0, 2**63 - 1))
def test_numbers_and_their_texts_share_a_key(number: int) -> None:
    assert int(hash_numbers("s2:", np.array([number]))[0]) == int(hash_text(f"s2:{number}"))


def test_keys_never_change() -> None:
    """Keys are written into corpora: another value for an old text would break every one of them."""
    assert [int(key) for key in hash_texts(["", "a", "doi:10.1000/x", "é"])] == [
        17280346270528514342,
        4282424867417216116,
        13508147703075395018,
        5085217557642179190,
    ]
