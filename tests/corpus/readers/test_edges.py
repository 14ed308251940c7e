"""Shards of edges: Parquet and tables, numbers and texts, and what an import makes of them."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave import Corpus, ImportOptions, import_papers
from citeweave.core.errors import InputError
from citeweave.core.inputs import Source
from citeweave.core.progress import Tally
from citeweave.core.publish import work_folder
from citeweave.corpus.paper import Citation, CitationBlock, Intent, NumberedCitations, NumberedPapers, Paper
from citeweave.corpus.readers import edges, guess_format
from citeweave.corpus.readers.edge_tables import EdgeColumns, _read_rows, scan_edges

from ..conftest import refused

KEEP = ImportOptions(outside="keep")


def parquet(path: Path, **columns: Any) -> Path:
    try:
        pq.write_table(pa.table(columns), path)
    except pa.ArrowNotImplementedError as error:
        pytest.skip(f"this pyarrow does not write it: {error}")
    return path


def found_in(path: Path) -> tuple[set[tuple[str, str, int, float]], dict[str, int]]:
    """The citations of a file as texts, and why others are rejected."""
    tally, found = Tally(), set()
    for record in edges.read(Source(path), tally):
        match record:
            case Citation():
                found.add((record.citing, record.cited, int(record.intents), float(record.strength)))
            case NumberedCitations():
                size = len(record.citing)
                ends = ([f"{record.prefix}{n}" for n in end.tolist()] for end in (record.citing, record.cited))
                intents = [0] * size if record.intents is None else record.intents.tolist()
                strength = [1.0] * size if record.strength is None else record.strength.tolist()
                found |= set(zip(*ends, intents, strength, strict=True))
            case CitationBlock():
                found |= set(zip(*record.ids(), record.intents.tolist(), record.strength.tolist(), strict=True))
            case _:
                raise AssertionError(record)
    return found, tally.counts["citations"].rejected


def pairs_of(corpus: Corpus) -> set[tuple[str, str]]:
    ids = list(corpus.ids)
    return {(ids[a], ids[b]) for a, b in zip(corpus.citing.tolist(), corpus.cited.tolist(), strict=True)}


def test_numbers_are_read_with_strengths_and_intents(tmp_path):
    cited, intents = pa.array([9, 9, 9, None, 1], pa.uint64()), [["background", "methodology"], None, [], [], []]
    columns = {"Citing": [1, 2, None, 4, -5], "cited": cited, "count": [2, 1, 1, 1, 1], "intents": intents}
    path = parquet(tmp_path / "a.parquet", **columns)
    assert guess_format(Source(path)) == "edges"
    found, rejected = found_in(path)
    assert found == {("1", "9", int(Intent.BACKGROUND | Intent.METHOD), 2.0), ("2", "9", 0, 1.0)}
    assert rejected == {"no citing paper": 1, "no cited paper": 1, "id is not a non-negative integer": 1}


GOOD_COLUMNS = [
    ({"citingcorpusid": [1], "citedcorpusid": [2]}, {("s2:1", "s2:2")}),
    ({"citingcorpusid": ["1", " 2"], "citedcorpusid": [2, 3]}, {("s2:1", "s2:2"), ("s2:2", "s2:3")}),
    ({"citing": pa.nulls(2), "cited": [1, 2]}, set()),
    ({"citing": pa.array(["a"], pa.string_view()), "cited": pa.array(["b"]).dictionary_encode()}, {("a", "b")}),
    ({"citing": [1], "cited": [2], "count": pa.nulls(1), "isinfluential": [1]}, {("1", "2")}),
    ({"source": [1.0, float("nan")], "target": [2.0, 3.0]}, {("1", "2")}),
    ({"from": ["doi:10.1/x", " b ", ""], "to": ["é\tx", "c", "d"]}, {("doi:10.1/x", "é x"), ("b", "c")}),
    ({"citing": ["a"], "cited": [7]}, {("a", "7")}),
    ({"citing": [1], "cited": [2], "intents": ["uses; result"]}, {("1", "2", int(Intent.USES | Intent.RESULT))}),
]


@pytest.mark.parametrize(("columns", "expected"), GOOD_COLUMNS)
def test_names_and_types_of_columns_are_understood(tmp_path, columns, expected):
    found, _ = found_in(parquet(tmp_path / "a.parquet", **columns))
    assert found == {(*row, *(0,) * (3 - len(row)), 1.0) for row in expected}


WRONG_COLUMNS = [
    ({"left": [1], "right": [2]}, r"columns left \(int64\), right \(int64\); citations need two named citing"),
    ({"citing": [True], "cited": [1]}, "'citing' is of type bool"),
    ({"citing": [1], "cited": [1], "weight": ["much"]}, "'weight' is of type string; strengths are numbers"),
    ({"citing": [1], "cited": [1], "intents": [7]}, "'intents' is of type int64"),
    ({"id": [10], "name": ["Ada"]}, r"columns id \(int64\), name \(string\)"),
]


@pytest.mark.parametrize(("columns", "message"), WRONG_COLUMNS)
def test_wrong_columns_are_named(tmp_path, columns, message):
    refused(message, found_in, parquet(tmp_path / "a.parquet", **columns), error=InputError)


def test_damaged_files_and_utf_16_are_refused(tmp_path):
    path = parquet(tmp_path / "a.parquet", citing=list(range(1000)), cited=list(range(1000)))
    path.write_bytes(path.read_bytes()[:-100])
    (tmp_path / "a.tsv").write_bytes("1\t2\n3\t4\n".encode("utf-16"))
    for name, message in (("a.parquet", r"a\.parquet is damaged"), ("a.tsv", r"a\.tsv is a table in UTF-16")):
        refused(message, found_in, tmp_path / name, error=InputError)


def test_papers_may_have_only_an_id_and_a_year(tmp_path):
    path = parquet(tmp_path / "p.parquet", id=[5, None, 7], year=[1999, 2000, None])
    tally = Tally()
    (block,) = edges.read(Source(path), tally)
    assert isinstance(block, NumberedPapers) and block.years is not None
    assert (block.numbers.tolist(), block.years.tolist()) == ([5, 7], [1999, 0])
    assert tally.counts["papers"].rejected == {"no id": 1}
    texts = parquet(tmp_path / "t.parquet", id=["a"], year=[1999])
    assert list(edges.read(Source(texts), Tally())) == [Paper("a", year=1999)]


CELLS = st.sampled_from(
    [*["7", "0", "12345", "007", "x", "1.5", "2.50", "1e3", "-1", "é"], "", " 8", "9" * 19, "a b", "\r"]
)
ROWS = st.lists(st.lists(CELLS, min_size=1, max_size=4), min_size=1, max_size=8)


@given(rows=ROWS, last=st.sampled_from(["", "\n", "\r\n"]))
@settings(max_examples=200)
def test_the_compiled_scan_equals_the_ordinary_reader(rows, last):
    block = ("\n".join("\t".join(row) for row in rows) + last).encode()
    found = scan_edges(block, EdgeColumns(), b"\t")
    taken = [block[a : b + 1] for a, b, read in zip(found.starts, found.ends, found.read, strict=True) if read]
    expected = list(_read_rows(taken, EdgeColumns(), b"\t", Tally()))
    scanned = zip(found.citing, found.cited, found.strength.tolist(), found.read, strict=True)
    assert [Citation(str(a), str(b), strength=s) for a, b, s, read in scanned if read] == expected
    assert all(found.read[i] for i, row in enumerate(rows[:-1]) if row[:2] == ["7", "12345"] and len(row) == 2)


def test_shards_of_all_kinds_are_one_corpus(tmp_path):
    """The same citations as numbers, as a table and as texts; compared with a set in memory."""
    draw = np.random.default_rng(3)
    citing, cited = draw.integers(0, 300, (2, 4000))
    (shards := tmp_path / "edges").mkdir()
    parquet(shards / "0.parquet", citing=citing[:2000], cited=cited[:2000])
    parquet(shards / "1.parquet", citing=[str(n) for n in citing[1500:3000]], cited=[str(n) for n in cited[1500:3000]])
    lines = "".join(f"{a}\t{b}\n" for a, b in zip(citing[2500:], cited[2500:], strict=True))
    (shards / "2.tsv.gz").write_bytes(gzip.compress(lines.encode()))
    corpus = import_papers([shards], tmp_path / "corpus", KEEP).corpus
    wanted = {(str(a), str(b)) for a, b in zip(citing.tolist(), cited.tolist(), strict=True) if a != b}
    assert pairs_of(corpus) == wanted
    assert sorted(corpus.ids, key=int) == sorted({id for pair in wanted for id in pair}, key=int)
    count = corpus.manifest.facts["records"]["citations"]
    assert count["read"] == 2000 + 1500 + 1500 == count["kept"] + sum(count["rejected"].values())
    assert (np.diff(corpus.citing) >= 0).all()


@pytest.mark.parametrize("top", [400, 2**40])
def test_little_memory_changes_nothing(tmp_path, top):
    """Through files and in memory, with a table of numbers and without one: the same bytes."""
    draw = np.random.default_rng(4)
    ends = draw.integers(0, 400, (2, 200_000)) * (top // 400)
    path = parquet(tmp_path / "a.parquet", citing=ends[0], cited=ends[1])
    options = (ImportOptions(outside="keep", memory=memory) for memory in (2**20, 2**30))
    small, large = (import_papers([path], tmp_path / str(one.memory), one).corpus for one in options)
    assert small.hash == large.hash
    assert len(small.citing) == len(np.unique(ends.T[ends[0] != ends[1]], axis=0))
    assert list(small.ids) == [str(number) for number in np.unique(ends)]


def test_described_papers_come_first_and_years_stay(tmp_path):
    parquet(tmp_path / "papers.parquet", id=[7, 5], year=[2001, 2002])
    parquet(tmp_path / "cites.parquet", citing=[7, 3], cited=[3, 5])
    paths = [tmp_path / "papers.parquet", tmp_path / "cites.parquet"]
    corpus = import_papers(paths, tmp_path / "kept", KEEP).corpus
    assert (list(corpus.ids), corpus.years.tolist()) == (["7", "5", "3"], [2001, 2002, 0])
    assert pairs_of(corpus) == {("7", "3"), ("3", "5")}
    dropped = import_papers(paths, tmp_path / "dropped").corpus
    assert list(dropped.ids) == ["7", "5"] and dropped.references_outside("citing").tolist() == [0]


def test_an_interrupted_import_resumes(tmp_path):
    good = parquet(tmp_path / "a.parquet", citing=[1, 2], cited=[2, 3])
    bad = parquet(tmp_path / "b.parquet", citing=[3], cited=[4])
    complete, written = bad.read_bytes(), set()
    for _ in range(2):
        bad.write_bytes(complete[:-20])
        refused("damaged", import_papers, [good, bad], tmp_path / "corpus", KEEP, error=InputError)
        (part,) = work_folder(tmp_path / "corpus").glob("kept/parts/*/part.json")
        written.add(part.stat().st_mtime_ns)
    assert len(written) == 1
    bad.write_bytes(complete)
    corpus = import_papers([good, bad], tmp_path / "corpus", KEEP).corpus
    assert pairs_of(corpus) == {("1", "2"), ("2", "3"), ("3", "4")}


HEADERS = [
    (b"citingcorpusid\tcitedcorpusid\n1\t2\n 3\t4\n", {("s2:1", "s2:2"), ("s2:3", "s2:4")}, 0),
    (b"citingcorpusid\tcitedcorpusid\ns2:5\tx6\n", {("s2:5", "x6")}, 0),
    (b"citing_paper_id\tcited_paper_id\r\n1\t2\r\n", {("1", "2")}, 0),
    (b"src\tdst\n1\t2\n3\t4\n", {("1", "2"), ("3", "4")}, 1),
    (b"a\tb\n1\tc\n", {("a", "b"), ("1", "c")}, 0),
    (b"# Nodes: 3\n# FromNodeId\tToNodeId\n1\t2\n2\t3\n", {("1", "2"), ("2", "3")}, 2),
    (b"\xef\xbb\xbf# made by hand\nciting\tcited\n1\t2\n", {("1", "2")}, 1),
]


@pytest.mark.parametrize(("text", "expected", "noted"), HEADERS)
def test_headers_and_comments_above_tables_are_understood(tmp_path, text, expected, noted):
    (tmp_path / "a.tsv").write_bytes(text)
    assert guess_format(Source(tmp_path / "a.tsv")) == "plain"
    corpus = import_papers(tmp_path / "a.tsv", tmp_path / "c", KEEP).corpus
    assert pairs_of(corpus) == expected and len(corpus) == len({id for pair in expected for id in pair})
    assert sum(corpus.manifest.facts["notes"].values()) == noted


def test_tables_of_papers_are_told_from_other_tables(tmp_path):
    parquet(tmp_path / "authors.parquet", id=[10], name=["Ada"])
    parquet(tmp_path / "papers.parquet", id=["a", "b"], references=[["b"], None], venue=["X", "Y"])
    parquet(tmp_path / "years.parquet", id=["c"], year=[1999], pages=[3], __index_level_0__=[0])
    imported = import_papers(tmp_path, tmp_path / "c")
    assert pairs_of(imported.corpus) == {("a", "b")} and set(imported.corpus.ids) == {"a", "b", "c"}
    assert [Path(path).name for path in imported.inputs.skipped] == ["authors.parquet"]
    assert imported.corpus.manifest.facts["notes"] == {"column 'pages' of papers is not read": 1}


def test_a_large_row_group_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(edges, "_ROWS", 1 << 14)
    monkeypatch.setattr(edges, "_BUFFER", 1 << 18)
    numbers = np.random.default_rng(0).integers(0, 2**40, 1_000_000)
    table = pa.table({"citing": numbers, "cited": numbers[::-1]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=len(numbers), use_dictionary=False)
    del table
    before, peak = pa.total_allocated_bytes(), 0
    for record in edges.read(Source(tmp_path / "a.parquet"), Tally()):
        assert isinstance(record, NumberedCitations)
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert peak < 6 << 20  # of 16 MB
