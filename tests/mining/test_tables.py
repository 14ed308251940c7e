"""Tables of pairs: sums against a plain dictionary, every line accounted for; members of JSON, whatever the window cuts."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.core import json_files
from citeweave.core.errors import EmptyResultError, InputError
from citeweave.core.inputs import Source
from citeweave.core.json_files import read_members
from citeweave.mining import tables
from citeweave.mining.tables import build_table, read_table

from .conftest import papers_corpus, refused

SHA = "0" * 40


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    papers = [{"id": id, "title": f"Paper {id}"} for id in ("a", "b", "c", "é d", "s2:7", SHA)]
    return papers_corpus(tmp_path_factory.mktemp("tables"), papers)


def pairs_of(table, corpus):
    owners = np.repeat(np.arange(len(corpus)), np.diff(table.offsets))
    return {
        (corpus.ids[int(owner)], corpus.ids[int(other)]): float(count)
        for owner, other, count in zip(owners, table.targets, table.counts, strict=True)
    }


@pytest.fixture
def read(tmp_path, corpus):
    """Read a table of this text; spaces stand for tabs."""

    def read(text, **options):
        (tmp_path / "views.tsv").write_text(text.replace(" ", "\t").replace("_", " "))
        return read_table(tmp_path / "views.tsv", corpus, **options)

    return read


def test_lines_become_pairs(read, corpus):
    table = read(
        "anchor other count label\na b 2 view\na b 3.5 read\r\nb é_d 1 view\n\na a 9 view\na nobody 1 view\n"
        "nobody a 1 view\na c many view\na c inf view\na c 1e39 view\n c 1 view\nno_tab_at_all\nc a\n"
    )
    assert pairs_of(table, corpus) == {("a", "b"): 5.5, ("b", "é d"): 1.0, ("c", "a"): 1.0}
    assert table.offsets.dtype == np.int64 and table.targets.dtype == np.int32 and table.counts.dtype == np.float32
    count = table.tally.counts["pairs"]
    assert (count.read, count.kept) == (12, 4)
    outside = {tables.OTHER_OUTSIDE: 1, tables.ANCHOR_OUTSIDE: 1}
    assert count.rejected == {tables.ITSELF: 1, **outside, tables.NO_COUNT: 3, tables.NO_PAIR: 2}
    assert table.facts["notes"]["line with the names of the columns"] == 1
    assert table.facts["pairs"] == 3 and table.facts["anchors"] == 3


def test_options_of_reading(read, corpus):
    table = read("anchor other count label\na b 2 view\na c 3 read\nb c 4\n", label="read")
    assert pairs_of(table, corpus) == {("a", "c"): 3.0}
    assert table.tally.counts["pairs"].rejected == {tables.OTHER_LABEL: 2}
    assert len(read("a 7 2\na b 1\n").targets) == 1
    assert pairs_of(read("a 7 2\na b 1\n", numbers="s2"), corpus) == {("a", "s2:7"): 2.0, ("a", "b"): 1.0}
    table = read("a b 2\nb a 3\na c 1\n", symmetric=True)
    assert pairs_of(table, corpus) == {("a", "b"): 5.0, ("b", "a"): 5.0, ("a", "c"): 1.0, ("c", "a"): 1.0}
    assert table.tally.counts["pairs"].kept == 3


def test_specters_data_is_a_table_too(tmp_path, corpus):
    path = tmp_path / "data.json.gz"
    first = {"b": {"count": 5}, "c": {"count": 1}, "a": {"count": 1}, "é d": {"frac": 1}, "s2:7": 3}
    data = {"a": first, "b": [1, 2], SHA: {"a": {"count": 1}}}
    path.write_bytes(gzip.compress(json.dumps(data, indent=1).encode()))
    table = read_table(path, corpus)
    assert pairs_of(table, corpus) == {("a", "b"): 5.0, ("a", "c"): 1.0, (SHA, "a"): 1.0}
    assert table.tally.counts["pairs"].read == 7


@settings(max_examples=80)
@given(
    papers=st.integers(1, 6),
    lines=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(-4, 9)), max_size=30),
)
def test_sums_are_those_of_a_dictionary(papers, lines):
    lines = [(a % papers, b % papers, count) for a, b, count in lines]
    wanted: dict[tuple[int, int], float] = {}
    for a, b, count in lines:
        wanted[a, b] = wanted.get((a, b), 0) + count
    table = build_table([a for a, _, _ in lines], [b for _, b, _ in lines], [c for _, _, c in lines], papers=papers)
    owners = np.repeat(np.arange(papers), np.diff(table.offsets)).tolist()
    pairs = list(zip(owners, table.targets.tolist(), strict=True))
    assert pairs == sorted(wanted) and [wanted[pair] for pair in pairs] == table.counts.tolist()
    assert table.offsets[0] == 0 and table.offsets[-1] == len(table.targets)


def test_blocks_change_nothing(read, monkeypatch):
    names = ["a", "b", "c", "é_d", "nobody"]
    rows = np.random.default_rng(0).integers(0, 5, (200, 2))
    text = "".join(f"{names[i]} {names[j]} {i + j}\n" for i, j in rows)
    whole = read(text)
    monkeypatch.setattr(tables, "_BLOCK", 7)
    parts = read(text)
    assert np.array_equal(whole.targets, parts.targets) and np.array_equal(whole.counts, parts.counts)
    assert whole.tally.as_json() == parts.tally.as_json()


def test_nothing_usable_is_an_error(read):
    for text, error, message in (
        ("x y 1\n", EmptyResultError, "first paper not in the corpus"),
        ("", InputError, "is empty"),
        ('{"a": {"b": {"count": 1}}', InputError, "is not one JSON object"),
    ):
        refused(message, read, text, error=error)


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
def test_members_are_those_of_the_parsed_document(tmp_path_factory, document, piece, indent, escaped):
    path = tmp_path_factory.mktemp("members") / "data.json"
    text = json.dumps(document, indent=indent, ensure_ascii=escaped)
    path.write_bytes(text.encode("utf-8", "replace"))
    assert list(read_members(Source(path), piece)) == list(json.loads(path.read_bytes()).items())


NOT_AN_OBJECT = [
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
]


@pytest.mark.parametrize(("text", "reason"), NOT_AN_OBJECT)
def test_anything_else_is_one_clear_error(tmp_path, text, reason):
    path = tmp_path / "data.json"
    path.write_text(text)
    with pytest.raises(InputError, match=reason) as raised:
        list(read_members(Source(path)))
    assert str(path) in str(raised.value)


def test_members_may_be_compressed_with_a_byte_order_mark_but_not_endless(tmp_path, monkeypatch):
    path = tmp_path / "data.json.gz"
    path.write_bytes(gzip.compress(b'\xef\xbb\xbf {"a": 1}\n'))
    assert list(read_members(Source(path))) == [("a", 1)]
    monkeypatch.setattr(json_files, "MAX_MEMBER", 5000)
    path = tmp_path / "data.json"
    path.write_text('{"a": "' + "x" * 3_000_000)
    refused("longer than", list, read_members(Source(path)), error=InputError)
