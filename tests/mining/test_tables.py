"""Tables of pairs: sums against a plain dictionary, every line accounted for."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.core.errors import EmptyResultError, InputError
from citeweave.corpus.ingest import import_papers
from citeweave.mining import tables
from citeweave.mining.tables import build_table, read_table


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    papers = [{"id": id, "title": f"Paper {id}"} for id in ("a", "b", "c", "é d", "s2:7", "0" * 40)]
    (folder / "p.jsonl").write_text("\n".join(map(json.dumps, papers)))
    return import_papers(folder / "p.jsonl", folder / "c").corpus


def pairs_of(table, corpus):
    owners = np.repeat(np.arange(len(corpus)), np.diff(table.offsets))
    return {
        (corpus.ids[int(owner)], corpus.ids[int(other)]): float(count)
        for owner, other, count in zip(owners, table.targets, table.counts, strict=True)
    }


def test_lines_become_pairs(tmp_path, corpus):
    path = tmp_path / "views.tsv"
    path.write_text(
        "anchor\tother\tcount\tlabel\n"
        "a\tb\t2\tview\n"
        "a\tb\t3.5\tread\r\n"
        "b\té d\t1\tview\n"
        "\n"
        "a\ta\t9\tview\n"
        "a\tnobody\t1\tview\n"
        "nobody\ta\t1\tview\n"
        "a\tc\tmany\tview\n"
        "a\tc\tinf\tview\n"
        "a\tc\t1e39\tview\n"
        "\tc\t1\tview\n"
        "no tab at all\n"
        "c\ta\n"
    )
    table = read_table(path, corpus)
    assert pairs_of(table, corpus) == {("a", "b"): 5.5, ("b", "é d"): 1.0, ("c", "a"): 1.0}
    assert table.offsets.dtype == np.int64 and table.targets.dtype == np.int32 and table.counts.dtype == np.float32
    count = table.tally.counts["pairs"]
    assert (count.read, count.kept) == (12, 4)
    assert count.rejected == {
        tables.ITSELF: 1,
        tables.OTHER_OUTSIDE: 1,
        tables.ANCHOR_OUTSIDE: 1,
        tables.NO_COUNT: 3,
        tables.NO_PAIR: 2,
    }
    assert table.facts["notes"]["line with the names of the columns"] == 1
    assert table.facts["pairs"] == 3 and table.facts["anchors"] == 3


def test_one_label_of_several(tmp_path, corpus):
    path = tmp_path / "views.tsv"
    path.write_text("anchor\tother\tcount\tlabel\na\tb\t2\tview\na\tc\t3\tread\nb\tc\t4\n")
    table = read_table(path, corpus, label="read")
    assert pairs_of(table, corpus) == {("a", "c"): 3.0}
    assert table.tally.counts["pairs"].rejected == {tables.OTHER_LABEL: 2}


def test_specters_data_is_a_table_too(tmp_path, corpus):
    path = tmp_path / "data.json.gz"
    data = {
        "a": {"b": {"count": 5}, "c": {"count": 1}, "a": {"count": 1}, "é d": {"frac": 1}, "s2:7": 3},
        "b": [1, 2],
        "0" * 40: {"a": {"count": 1}},
    }
    path.write_bytes(gzip.compress(json.dumps(data, indent=1).encode()))
    table = read_table(path, corpus)
    assert pairs_of(table, corpus) == {("a", "b"): 5.0, ("a", "c"): 1.0, ("0" * 40, "a"): 1.0}
    assert table.tally.counts["pairs"].read == 7


def test_numbers_may_be_corpus_ids(tmp_path, corpus):
    path = tmp_path / "views.tsv"
    path.write_text("a\t7\t2\na\tb\t1\n")
    assert len(read_table(path, corpus)) == 1
    assert pairs_of(read_table(path, corpus, numbers="s2"), corpus) == {("a", "s2:7"): 2.0, ("a", "b"): 1.0}


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
    found = {}
    for row in range(papers):
        targets = table.targets[table.offsets[row] : table.offsets[row + 1]].tolist()
        assert targets == sorted(set(targets))
        for at, target in zip(range(table.offsets[row], table.offsets[row + 1]), targets, strict=True):
            found[row, target] = float(table.counts[at])
    assert found == wanted and table.offsets[0] == 0 and table.offsets[-1] == len(table)


def test_symmetric_adds_the_other_direction(tmp_path, corpus):
    path = tmp_path / "views.tsv"
    path.write_text("a\tb\t2\nb\ta\t3\na\tc\t1\n")
    table = read_table(path, corpus, symmetric=True)
    assert pairs_of(table, corpus) == {("a", "b"): 5.0, ("b", "a"): 5.0, ("a", "c"): 1.0, ("c", "a"): 1.0}
    assert table.tally.counts["pairs"].kept == 3


def test_blocks_change_nothing(tmp_path, corpus, monkeypatch):
    path = tmp_path / "views.tsv"
    rng = np.random.default_rng(0)
    names = ["a", "b", "c", "é d", "nobody"]
    path.write_text("".join(f"{names[i]}\t{names[j]}\t{i + j}\n" for i, j in rng.integers(0, 5, (200, 2))))
    whole = read_table(path, corpus)
    monkeypatch.setattr(tables, "_BLOCK", 7)
    parts = read_table(path, corpus)
    assert np.array_equal(whole.targets, parts.targets) and np.array_equal(whole.counts, parts.counts)
    assert whole.tally.as_json() == parts.tally.as_json()


def test_nothing_usable_is_an_error(tmp_path, corpus):
    path = tmp_path / "views.tsv"
    path.write_text("x\ty\t1\n")
    with pytest.raises(EmptyResultError, match="first paper not in the corpus"):
        read_table(path, corpus)
    path.write_text("")
    with pytest.raises(InputError, match="is empty"):
        read_table(path, corpus)
    path.write_text('{"a": {"b": {"count": 1}}')
    with pytest.raises(InputError, match="is not one JSON object"):
        read_table(path, corpus)


def test_real_counts_of_specter(shared, tmp_path):
    """The sample's metadata has the queries only: the other papers get titles here."""
    folder = shared / "samples" / "specter" / "training"
    data = json.loads((folder / "data.json").read_bytes())
    others = {other for entries in data.values() for other in entries}
    titles = tmp_path / "titles.jsonl"
    titles.write_text("".join(json.dumps({"id": other, "title": f"Paper {other}"}) + "\n" for other in sorted(others)))
    corpus = import_papers([folder / "metadata.json", titles], tmp_path / "c").corpus
    table = read_table(folder / "data.json", corpus)
    known = {query: entries for query, entries in data.items() if corpus.rows([query])[0] >= 0}
    assert (len(data), len(known)) == (20, 17)
    wanted = {(query, other): entry["count"] for query, entries in known.items() for other, entry in entries.items()}
    assert pairs_of(table, corpus) == wanted
    assert table.tally.counts["pairs"].read == sum(map(len, data.values())) == 422
