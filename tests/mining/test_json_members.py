"""Members of a JSON object: the same as a parser of the whole file gives, whatever the window cuts apart."""

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.core.errors import InputError
from citeweave.core.inputs import Source
from citeweave.mining import tables
from citeweave.mining.tables import read_members

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60)
@given(
    document=st.dictionaries(st.text(), VALUES, max_size=5),
    piece=st.integers(1, 9),
    indent=st.none() | st.integers(0, 2),
    escaped=st.booleans(),
)
def test_members_are_those_of_the_whole_document(tmp_path_factory, document, piece, indent, escaped):
    path = tmp_path_factory.mktemp("members") / "data.json"
    text = json.dumps(document, indent=indent, ensure_ascii=escaped)
    path.write_bytes(text.encode("utf-8", "replace"))
    usual, tables._PIECE = tables._PIECE, piece
    try:
        found = list(read_members(Source(path)))
    finally:
        tables._PIECE = usual
    assert found == list(json.loads(path.read_bytes()).items())


def test_compressed_and_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "data.json.gz"
    path.write_bytes(gzip.compress(b'\xef\xbb\xbf {"a": 1}\n'))
    assert list(read_members(Source(path))) == [("a", 1)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'{' is missing"),
        ("[1]", "'{' is missing"),
        ('{"a": {"b": 1}', "'}' is missing"),
        ('{"a": {"b": ', "not valid JSON"),
        ('{"a": 1} {"b": 2}', "something follows"),
        ('{"a": 1}\n{"b": 2}\n', "something follows"),
        ("{1: 2}", "a key is not a text"),
        ('{"a" 1}', "':' is missing"),
        ('{"a": 1,}', "not valid JSON"),
        ('{"a": ' + "[" * 200_000, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "not valid JSON"),
    ],
)
def test_anything_else_is_one_clear_error(tmp_path, text, reason):
    path = tmp_path / "data.json"
    path.write_text(text)
    with pytest.raises(InputError, match=reason) as raised:
        list(read_members(Source(path)))
    assert str(path) in str(raised.value)


def test_a_member_without_end_is_not_read_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_MEMBER", 5000)
    path = tmp_path / "data.json"
    path.write_text('{"a": "' + "x" * 3_000_000)
    with pytest.raises(InputError, match="longer than"):
        list(read_members(Source(path)))
