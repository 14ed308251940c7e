"""Samples to other formats and back: the same triplets, every record accounted for, hostile files refused or counted."""

import csv
import gzip
import json
from collections import defaultdict
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from citeweave.core.errors import ArtifactError, EmptyResultError, InputError, UserError
from citeweave.core.progress import Count, Tally
from citeweave.core.publish import work_folder
from citeweave.corpus.ingest import import_papers
from citeweave.corpus.options import ImportOptions
from citeweave.corpus.text import paper_text
from citeweave.mining.formats import (
    FORMATS,
    READERS,
    WRITERS,
    export_samples,
    import_samples,
    sentence_transformers,
    specter,
    triplets,
)
from citeweave.mining.formats.triplets import NAMES, OUTSIDE, TWICE, known_rows, paired_samples
from citeweave.mining.options import ExportOptions
from citeweave.mining.samples import SampleNames, block_from_lists

from .conftest import papers_corpus, refused, write_jsonl, write_samples

SHA = "894be9b4ea46a5c422e81ef3c241072d4c73fdc0"
IDS = ["s2:1", "s2:2", SHA, 'says "so", twice', "a,b", "é d", "s2:7", "8", "doi:10.1000/X", "ten", "eleven", "bare"]
RULES = ("cited", "hard", "easy")
PARTS = ("query", "pos", "neg")
# anchor, positives, and negatives with their rules
GROUPS = [
    (0, [1, 2], [(3, 1), (4, 1), (5, 2)]),
    (6, [7], [(8, 1)]),
    (3, [4, 5], [(6, 2), (7, 1), (8, 1)]),
    (0, [2, 9], [(10, 1)]),
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Twelve papers in the order of IDS; the last one has no title and no abstract."""
    papers = [
        {"id": id, "title": f"Title of [SEP] {row}", "abstract": f"An abstract, number {row}." * (row % 3 > 0)}
        | {"year": 2000 + row, "authors": ["Ada", "Bo"], "doi": f"10.1000/d{row}", "arxiv": f"2001.0000{row}"}
        for row, id in enumerate(IDS[:-1])
    ]
    papers.append({"id": "s2:2", "title": "Title of [SEP] 1", "year": 2001, "references": ["bare"]})
    corpus = papers_corpus(tmp_path_factory.mktemp("formats"), papers, options=ImportOptions(outside="keep"))
    assert list(corpus.ids) == IDS and not corpus.titles[11] and not corpus.abstracts[11]
    return corpus


def samples_of(folder, corpus, groups):
    anchors, ups, downs = zip(*groups, strict=True)
    block = block_from_lists(anchors, ups, [[row for row, _ in down] for down in downs])
    rules = np.array([rule for down in downs for _, rule in down], np.uint8)
    block = replace(block, negatives=replace(block.negatives, rules=rules))
    return write_samples(folder, SampleNames(rules=RULES), corpus.hash, block)


@pytest.fixture
def samples(tmp_path, corpus):
    return samples_of(tmp_path / "samples", corpus, GROUPS)


@pytest.fixture
def export(tmp_path, corpus, samples):
    """Export the samples into a folder of this name and return the account."""

    def export(to, name="out", *, samples=samples, corpus=corpus, overwrite=False, **options):
        options = ExportOptions(**options)
        return export_samples(samples, corpus, tmp_path / name, to=to, options=options, overwrite=overwrite)

    return export


def rows_of(samples):
    return samples.triplets().rows().tolist()


def lists_of(samples):
    """(anchor, positives, negatives) of every sample."""
    sides = ([side.of(i).tolist() for i in range(len(samples))] for side in (samples.positives, samples.negatives))
    return list(zip(samples.anchors.tolist(), *sides, strict=True))


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def check_account(facts):
    for count in facts["records"].values():
        assert count["read"] == count["kept"] + sum(count["rejected"].values())


ROUND_TRIPS = {
    "scincl": ExportOptions(),
    "scincl, compressed": ExportOptions(gzip=True),
    "scirepeval": ExportOptions(),
    "sentence_transformers": ExportOptions(ids=True),
    "sentence_transformers, lines": ExportOptions(ids=True, file_type="jsonl"),
    "sentence_transformers, texts": ExportOptions(),
    "sentence_transformers, lines of texts": ExportOptions(file_type="jsonl"),
}

PAPERS = st.integers(0, 10)
NEGATIVES = st.lists(st.tuples(PAPERS, st.sampled_from([1, 2])), max_size=5)
GROUP = st.tuples(PAPERS, st.lists(PAPERS, max_size=4), NEGATIVES)


@pytest.mark.parametrize("name", ROUND_TRIPS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=st.lists(GROUP, min_size=1, max_size=8))
def test_triplets_come_back_in_their_order(tmp_path_factory, corpus, name, groups):
    tmp_path, format = tmp_path_factory.mktemp("trip"), name.split(",")[0]
    samples = samples_of(tmp_path / "samples", corpus, groups)
    wanted = [row for row in rows_of(samples) if len(set(row)) == 3]
    export = partial(export_samples, samples, corpus, tmp_path / "out", to=format, options=ROUND_TRIPS[name])
    if not rows_of(samples):
        with pytest.raises(EmptyResultError):
            export()
        assert not (tmp_path / "out").exists()
        return
    counts = export()
    check_account(counts)
    assert counts["records"]["triplets"]["kept"] == len(rows_of(samples))
    assert list(contents(tmp_path / "out")) == sorted(counts["files"])
    if not wanted:
        refused(TWICE, import_samples, tmp_path / "out", corpus, tmp_path / "back", error=EmptyResultError)
        return
    back = import_samples(tmp_path / "out", corpus, tmp_path / "back")
    assert rows_of(back) == wanted
    assert back.names == NAMES and back.manifest.facts["format"] == format and back.manifest.facts["guessed"] is True
    check_account(back.manifest.facts)


def test_files_are_those_of_the_format(tmp_path, corpus, samples, export, monkeypatch):
    export("scincl")
    with (tmp_path / "out/train_triples.csv").open(newline="") as file:
        header, *lines = csv.reader(file)
    assert header == ["query_paper_id", "positive_id", "negative_id"]
    assert lines == [[IDS[row] for row in triplet] for triplet in rows_of(samples)]
    papers = [json.loads(line) for line in (tmp_path / "out/train_metadata.jsonl").read_text().splitlines()]
    assert [paper["paper_id"] for paper in papers] == IDS[:11]
    paper = {"paper_id": "s2:2", "title": "Title of [SEP] 1", "abstract": "An abstract, number 1."}
    assert papers[1] == {**paper, "arxiv_id": "2001.00001", "doi": "10.1000/d1"}
    for name in "ab":  # the same twice, also in blocks
        export("scincl", name, gzip=True)
        export("sentence_transformers", name, columns="group", file_type="jsonl")
        for module in (triplets, sentence_transformers):
            monkeypatch.setattr(module, "CELLS", 3)
    first, second = (contents(tmp_path / name) for name in "ab")
    assert first == second and gzip.decompress(first["train_triples.csv.gz"]).startswith(b"query_paper_id,")
    export("scirepeval")
    first = json.loads((tmp_path / "out/triplets.jsonl").read_text().splitlines()[0])
    fields = ({"doc_id": IDS[row], "title": corpus.titles[row], "abstract": corpus.abstracts[row]} for row in (0, 1, 3))
    assert first == dict(zip(PARTS, fields, strict=True))


def test_papers_without_text_are_counted_where_texts_are_written(tmp_path, corpus, export):
    samples = samples_of(tmp_path / "bare", corpus, [(0, [1], [(11, 1)]), (0, [1], [(2, 1)])])
    for format, rejected in (("scirepeval", 1), ("sentence_transformers", 1), ("scincl", 0)):
        counts = export(format, format, samples=samples)
        reasons = {triplets.NO_TEXT: 1} if rejected else {}
        assert counts["records"]["triplets"] == {"read": 2, "kept": 2 - rejected, "rejected": reasons}
    assert sum(counts["notes"].values()) == 1


def test_columns_of_texts_come_first_and_are_texts(tmp_path, corpus, samples, export):
    counts = export("sentence_transformers", ids=True)
    table = pq.read_table(tmp_path / "out/train.parquet")
    assert table.column_names == ["anchor", "positive", "negative", "anchor_id", "positive_id", "negative_id"]
    assert set(table.schema.types) == {pa.string()}
    texts = [paper_text(corpus.titles[row], corpus.abstracts[row]) for row in range(12)]
    _, positives, negatives = zip(*rows_of(samples), strict=True)
    assert table.column("positive").to_pylist() == [texts[row] for row in positives]
    assert table.column("negative_id").to_pylist() == [IDS[row] for row in negatives]
    assert counts["notes"] == {sentence_transformers.IDS_TRAIN: 3}
    export("sentence_transformers", "lines", file_type="jsonl", ids=True)
    assert pyarrow.json.read_json(tmp_path / "lines/train.jsonl").equals(table)


def test_groups_have_all_negatives_in_one_row(tmp_path, corpus, export):
    counts = export("sentence_transformers", columns="group")
    table = pq.read_table(tmp_path / "out/train.parquet")
    assert table.column_names[:5] == ["anchor", "positive", "negative_1", "negative_2", "negative_3"]
    assert counts["records"]["rows"] == {"read": 7, "kept": 4, "rejected": {sentence_transformers.FEW_NEGATIVES: 3}}
    back = import_samples(tmp_path / "out", corpus, tmp_path / "back")
    wanted = [(anchor, [up], [row for row, _ in downs]) for anchor, ups, downs in GROUPS for up in ups if downs[2:]]
    assert lists_of(back) == wanted and len(back) == 4
    counts = export("sentence_transformers", columns="group", negatives=1, ids=False, overwrite=True)
    assert counts["records"]["rows"]["kept"] == 7
    assert counts["notes"] == {sentence_transformers.MANY_NEGATIVES: 8}
    back = import_samples(tmp_path / "out", corpus, tmp_path / "back1")
    assert rows_of(back) == [[anchor, up, downs[0][0]] for anchor, ups, downs in GROUPS for up in ups]


def test_texts_of_two_papers_are_noted(tmp_path):
    corpus = papers_corpus(tmp_path, [{"id": id, "title": f"Paper {id}".replace("b", "a")} for id in "abcd"])
    texts = [("Paper a", "Paper c"), ("Paper c", "Paper C"), ("Paper c", "")]
    lines = [{"anchor": anchor, "positive": positive, "negative": "Paper d"} for anchor, positive in texts]
    samples = import_samples(write_jsonl(tmp_path / "x.jsonl", lines), corpus, tmp_path / "s")
    assert rows_of(samples) == [[0, 2, 3]]
    facts = samples.manifest.facts
    assert facts["records"]["rows"]["rejected"] == {OUTSIDE[1]: 1, "no text": 1} and [*facts["notes"].values()] == [1]


def test_specter_counts_and_easy_negatives(tmp_path, export):
    counts = export("specter")
    data = json.loads((tmp_path / "out/data.json").read_bytes())
    wanted = {0: {1: 5, 2: 5, 9: 5, 3: 1, 4: 1, 10: 1}, 6: {7: 5, 8: 1}, 3: {4: 5, 5: 5, 7: 1, 8: 1}}
    expected = {query: {IDS[row]: {"count": n} for row, n in others.items()} for query, others in wanted.items()}
    assert data == {IDS[query]: others for query, others in expected.items()}
    assert list(data) == [IDS[0], IDS[6], IDS[3]] == (tmp_path / "out/train.txt").read_text().splitlines()
    check_account(counts)
    assert counts["records"]["pairs"] == {"read": 15, "kept": 12, "rejected": {specter.EASY: 2, specter.BEFORE: 1}}
    assert counts["notes"] == {specter.TOO_LITTLE: 1}
    papers = json.loads((tmp_path / "out/metadata.json").read_bytes())
    assert list(papers) == IDS[:11] and all(papers[id]["paper_id"] == id for id in papers)
    assert papers["s2:1"]["year"] == 2000 and papers["s2:1"]["authors"] == ["Ada", "Bo"]
    export("specter", "named", leave_out=("hard", "easy"))
    data = json.loads((tmp_path / "named/data.json").read_bytes())
    assert {entry["count"] for others in data.values() for entry in others.values()} == {5}


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=st.lists(GROUP, min_size=1, max_size=8))
def test_specter_gives_back_positives_and_hard_negatives(tmp_path_factory, corpus, groups):
    tmp_path = tmp_path_factory.mktemp("specter")
    positives, negatives = defaultdict(set), defaultdict(set)
    for anchor, ups, downs in groups:
        positives[anchor] |= set(ups) - {anchor}
        negatives[anchor] |= {row for row, rule in downs if RULES[rule] != "easy"} - {anchor}
    wanted = {anchor: (ups, negatives[anchor] - ups) for anchor, ups in positives.items() if ups}
    export = partial(export_samples, samples_of(tmp_path / "s", corpus, groups), corpus, tmp_path / "out", to="specter")
    if not wanted:
        refused("no positive", export, error=EmptyResultError)
        return
    check_account(export())
    back = import_samples([tmp_path / "out/data.json", tmp_path / "out/train.txt"], corpus, tmp_path / "back")
    assert {anchor: (set(ups), set(downs)) for anchor, ups, downs in lists_of(back)} == wanted
    assert set(back.positives.scores.tolist()) <= {5.0} and set(back.negatives.scores.tolist()) <= {1.0}
    check_account(back.manifest.facts)


def test_specter_grades_follow_the_margin(tmp_path, corpus):
    counts = {
        "s2:1": {"s2:2": 10, "8": 6.5, "ten": 6, "eleven": 2, "zz": 2},
        "s2:2": {"s2:1": 3, "8": 3},
        "8": {"zz": 5, "s2:1": 1},
        "zz": {"s2:1": 5},
        "eleven": {},
        SHA.upper(): {"s2:1": True, "8": 2, SHA: 1, f"s2sha:{SHA}": 9},
    }
    data = {query: {other: {"count": count} for other, count in own.items()} for query, own in counts.items()}
    (tmp_path / "data.json").write_text(json.dumps({**data, "ten": 5}))
    samples = import_samples(tmp_path / "data.json", corpus, tmp_path / "s")
    assert lists_of(samples) == [(0, [1, 7], [10]), (1, [0, 7], [])]
    assert samples.positives.scores[:2].tolist() == [10, 6.5]
    facts = samples.manifest.facts
    rejected = {OUTSIDE[0]: 1, specter.NOT_AN_OBJECT: 1, specter.NO_POSITIVE_IN_CORPUS: 3}
    assert facts["records"]["queries"] == {"read": 7, "kept": 2, "rejected": rejected}
    check_account(facts)
    assert facts["records"]["pairs"]["rejected"][specter.IN_BETWEEN] == 1
    assert facts["notes"] == {"queries without a negative": 1}


def test_specter_lists_choose_the_queries(tmp_path, corpus, export):
    export("specter", val=0.4, test=0.3)
    lists = [(tmp_path / f"out/{name}.txt").read_text().split("\n")[:-1] for name in ("train", "val", "test")]
    assert sorted(id for ids in lists for id in ids) == sorted([IDS[0], IDS[6], IDS[3]])
    back = import_samples(tmp_path / "out", corpus, tmp_path / "back")
    facts = back.manifest.facts
    assert len(back) == 3 and facts["notes"]["lists of queries, read as one set"] == 3
    assert facts["left_aside"] == {"metadata.json": "papers come from the corpus"}
    (tmp_path / "train.txt").write_text(f"\n{IDS[6]}\nnobody\n")
    some = import_samples([tmp_path / "out/data.json", tmp_path / "train.txt"], corpus, tmp_path / "some")
    records, notes = (some.manifest.facts[key] for key in ("records", "notes"))
    assert some.anchors.tolist() == [6] and notes["listed queries that data.json does not have"] == 1
    assert records["queries"] == {"read": 3, "kept": 1, "rejected": {specter.NOT_LISTED: 2}}


LINES = st.lists(st.permutations(range(5)).map(lambda row: row[:3]), min_size=1, max_size=60)


@settings(max_examples=40)
@given(array=LINES.map(lambda lines: np.array(lines, np.int32)), cuts=st.integers(1, 9), at_once=st.integers(3, 12))
def test_samples_do_not_depend_on_blocks(array, cuts, at_once):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triplets, "MAX_SAMPLE", 2)
        whole = list(paired_samples([array]))
        patch.setattr(triplets, "_WRITTEN_AT_ONCE", at_once)
        parts = list(paired_samples(array[start : start + cuts] for start in range(0, len(array), cuts)))
    for take in (lambda b: b.anchors, lambda b: np.diff(b.positives.offsets), lambda b: b.negatives.rows):
        assert np.array_equal(np.concatenate([*map(take, whole)]), np.concatenate([*map(take, parts)]))


def test_every_row_is_kept_or_has_one_reason_and_a_sample_repeats_no_paper():
    lines = [[0, 1, 2], [0, 3, 4], [0, 1, 5], [6, 1, 5], [0, 1, 5], [0, 5, 7]]
    blocks = list(paired_samples([np.array(lines[:2], np.int32), np.array(lines[2:], np.int32)]))
    assert [anchor for block in blocks for anchor in block.anchors.tolist()] == [0, 0, 6, 0, 0]
    assert np.concatenate([np.diff(block.positives.offsets) for block in blocks]).tolist() == [2, 1, 1, 1, 1]
    rng = np.random.default_rng(0)
    rows, tally = rng.integers(-1, 4, (500, 4)).astype(np.int32), Tally({"rows": Count()})
    kept = known_rows(rows, tally, "rows")
    wanted = [row for row in rows.tolist() if min(row) >= 0 and len(set(row)) == 4]
    assert kept.tolist() == wanted and tally.counts["rows"].read == 500
    assert tally.counts["rows"].rejected[OUTSIDE[0]] == int((rows[:, 0] < 0).sum())


TEXTS = [{"title": f"Title of [SEP] {row}", "abstract": f"An abstract, number {row}."} for row in range(6)]
CSV = (
    "\ufeffnumber,negative_id,query_paper_id,positive_id\r\n"
    f'1,8,"a,b","says ""so"", twice"\r\n2,7,1,{SHA}\r\n'
    '\r\n3,8,a\r\n4,8,1,\r\n5,1,1,2\r\n6,8,1,"not closed\r\n7,8,1,2\r\n'
)
WIDE = "".join(
    json.dumps({"anchor_id": "s2:1", "positive_id": "s2:2"} | {f"negative_{n}_id": id for n, id in enumerate(ids, 1)})
    for ids in [("8", 8), ("8", "nobody"), ("8",), (8, "ten")]
).replace("}{", "}\n{")
NAMED = [
    {"query": {"corpus_id": 1, **TEXTS[5]}, "pos": {"sha": SHA.upper()}, "neg": {"doc_id": "8"}},
    {"task": "cite", "query": "7", "pos": 8, "neg": f"s2sha:{SHA}"},
    {"query": TEXTS[4], "pos": {**TEXTS[5], "doc_id": None}, "neg": {"paper_id": "ten"}},
    {"query": {"corpus_id": True, "title": ["x"]}, "pos": "8", "neg": "7"},
    {"query": "8", "pos": "7"},
    {"query": "8", "pos": {"title": "unknown title"}, "neg": "7"},
    "no object",
]
NAMED_REJECTED = {"no query, pos and neg": 1, "not a JSON object": 1, "paper without id and text": 1, OUTSIDE[1]: 1}
CSV_REJECTED = {"fewer columns than the header": 1, "no id": 1, TWICE: 1, "not a line of CSV": 2}
WIDE_REJECTED = {TWICE: 1, OUTSIDE[2]: 1, "no id": 1, "not a JSON object": 1, "not valid JSON": 1}


RECORDS = [
    ("t.csv", CSV, "triplets", [[4, 3, 7], [0, 2, 6]], CSV_REJECTED),
    # a row is rejected when one paper is
    ("x.jsonl", WIDE + "\n[1]\n{broken\n", "rows", [[0, 1, 7], [0, 1, 9]], WIDE_REJECTED),
    ("n.jsonl", "\n".join(map(json.dumps, NAMED)), "triplets", [[0, 2, 7], [6, 7, 2], [4, 5, 9]], NAMED_REJECTED),
    ("n.json", json.dumps(NAMED, indent=1), "triplets", [[0, 2, 7], [6, 7, 2], [4, 5, 9]], NAMED_REJECTED),
]


@pytest.mark.parametrize(("name", "text", "unit", "rows", "rejected"), RECORDS)
def test_every_record_is_read_or_has_a_reason(tmp_path, corpus, name, text, unit, rows, rejected):
    (tmp_path / name).write_bytes(text.encode())
    samples = import_samples([tmp_path / name], corpus, tmp_path / "s")
    kept = 1 if unit == "rows" else len(rows)
    counts = {"read": kept + sum(rejected.values()), "kept": kept, "rejected": rejected}
    assert rows_of(samples) == rows and samples.manifest.facts["records"][unit] == counts


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{}", b"\n\n\n", b'"' * 1000, b"\x00\xff\xfe" * 100, b"PAR1 but not really PAR1"),
        *(b"[" * 200_000, b'{"query":' * 100_000, b'{"a": {"b": {"count": ' + b"[" * 100_000),
        gzip.compress(b'{"query": 1}' * 1000)[:-9],
        b'{"query": 1, "pos": [[]], "neg": {"title": {"x": 1}, "corpus_id": 1e400}}\n' * 3,
        b'{"anchor": 1, "positive": [], "negative": {"x": NaN}}\n{"anchor": "\\ud800", "positive": "a", "negative": "b"}',
        b'{"anchor_id": 1e9, "positive_id": NaN, "negative_id": "\\ud800"}\n' * 2,
        b'{"\\ud800": {"\\udfff": {"count": NaN}, "b": {"count": -1e308}, "c": {"count": 1' + b"0" * 400 + b"}}}",
        b"1,2,3\n" + b"x" * 200_000 + b",y,z\n" + b'"a\n' * 50_000,
    ],
    ids=range(15),
)
def test_hostile_files_are_counted_or_refused(tmp_path, corpus, format, data):
    path = tmp_path / "file"
    header = b"query_paper_id,positive_id,negative_id\n" if format == "scincl" and data[:1] not in b"{[P\x1f" else b""
    path.write_bytes(header + data)
    for guess in (format, None):
        with pytest.raises((InputError, EmptyResultError, UserError)) as raised:
            import_samples(path, corpus, tmp_path / "s", format=guess)
        assert "\n" not in str(raised.value)
        assert not (tmp_path / "s").exists() and not work_folder(tmp_path / "s").exists()


def test_files_that_are_no_samples_are_refused_by_name(tmp_path, corpus, samples, export):
    out, into = tmp_path / "out", tmp_path / "s"
    export("scincl")
    first = import_samples(out, corpus, into)
    assert import_samples(out, corpus, into).manifest.made == first.manifest.made, "the same is not imported twice"
    triples = (out / "train_triples.csv").read_text().splitlines()
    (out / "train_triples.csv").write_text("\n".join(triples[:3]))
    refused("--overwrite", import_samples, out, corpus, into)
    assert len(rows_of(import_samples(out, corpus, into, overwrite=True))) == 2
    export("scirepeval")
    back = import_samples(out, corpus, tmp_path / "back", format="scirepeval")
    assert rows_of(back) == rows_of(samples) and back.manifest.facts["source"] == ["triplets.jsonl"]
    (tmp_path / "notes.txt").write_text("hello")
    ids = {"anchor_id": [1, None, 8], "positive_id": [[1], [2], None], "negative_id": [b"a", b"\xff", None]}
    for name, table in (("ids", ids), ("text", {"text": ["a"]})):
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    for names, format, error, message in (
        ("ids.parquet", None, EmptyResultError, "3 rows: no id"),
        ("text.parquet", None, InputError, "has no columns anchor"),
        ("out", None, UserError, "files of scincl and scirepeval"),
        ("out/train_triples.csv notes.txt", None, UserError, "notes.txt is not a file of scincl"),
        ("nowhere", None, UserError, "nowhere does not exist"),
        ("notes.txt", None, InputError, "no samples in a format that citeweave knows"),
        ("out", "scinlc", UserError, "--from is 'scinlc'.*Did you mean 'scincl'"),
    ):
        with pytest.raises(error, match=message):
            import_samples([tmp_path / name for name in names.split()], corpus, tmp_path / "s2", format=format)


def test_existing_files_are_refused_or_all_replaced(tmp_path, export):
    out = tmp_path / "out"
    export("specter", val=0.5)
    before = contents(out)
    refused("already holds data.json, .*--overwrite", export, "specter")
    assert contents(out) == before
    (out / "mine.txt").write_text("stays")
    export("specter", overwrite=True)
    assert list(contents(out)) == ["data.json", "metadata.json", "mine.txt", "train.txt"]
    for name, message in (("samples", "artifact of citeweave"), ("out/mine.txt", "is a file")):
        refused(message, export, "scincl", name)


def test_wrong_options_and_other_samples_are_refused_and_leave_nothing(tmp_path, corpus, export):
    (tmp_path / "old").mkdir()
    other = papers_corpus(tmp_path, [{"id": "a", "title": "One"}, {"id": "b", "title": "Two"}])
    far = samples_of(tmp_path / "s", corpus, [(0, [1], [(99, 1)])])
    wrong = ({"columns": "pair"}, {"file_type": "csv"}, {"val": 1.0}, {"val": 0.6, "test": 0.6}, {"negatives": -1})
    for to, options, message in (
        ("scincl", {"val": 0.1}, "--val is an option of --to specter, not of scincl"),
        ("specter", {"file_type": "jsonl"}, "--file-type is an option of --to sentence_transformers"),
        ("scincle", {}, "--to is 'scincle'.*Did you mean 'scincl'"),
        ("specter", {"leave_out": ("cites",)}, "leave-out"),
        ("specter", {"leave_out": ("esay",)}, "--leave-out is 'esay'.*Did you mean 'easy'"),
        ("scincl", {"corpus": other}, "another corpus"),
        ("scincl", {"samples": far}, "rows that no paper has"),
        *(("specter", options, None) for options in wrong),
    ):
        for folder in ("old", "new"):
            refused(message, export, to, folder, **options, error=ArtifactError if "samples" in options else UserError)
    assert contents(tmp_path / "old") == {} and not (tmp_path / "new").exists()
    assert set(FORMATS) == set(READERS) == set(WRITERS)


def test_keys_of_bibtex_come_back_too(tmp_path):
    for file, keys in (("a", ("one", "two", "both")), ("b", ("three", "both"))):
        entries = [f"@article{{{key}, title={{Paper {key} of the file {file}}}, year={{2001}}}}" for key in keys]
        (tmp_path / f"{file}.bib").write_text("\n".join(entries))
    corpus = import_papers([tmp_path / "a.bib", tmp_path / "b.bib"], tmp_path / "c").corpus
    samples = samples_of(tmp_path / "s", corpus, [(0, [1, 2], [(3, 1), (4, 1)]), (4, [3], [(2, 1)])])
    export_samples(samples, corpus, tmp_path / "out", to="scincl")
    assert rows_of(import_samples(tmp_path / "out", corpus, tmp_path / "back")) == rows_of(samples)


def test_real_files_of_specter(specter_training, tmp_path):
    folder, data, corpus = specter_training
    samples = import_samples(folder, corpus, tmp_path / "s")
    facts = samples.manifest.facts
    assert facts["source"] == ["data.json", "test.txt", "train.txt", "val.txt"]
    assert facts["records"]["queries"] == {"read": 20, "kept": 17, "rejected": {specter.NOT_LISTED: 3}}
    listed = [query for query in data if corpus.rows([query])[0] >= 0]
    counts = [entry["count"] for query in listed for entry in data[query].values()]
    sides = (len(side.rows) for side in (samples.positives, samples.negatives))
    assert (*sides,) == (counts.count(5), counts.count(1)) == (68, 255)
    export_samples(samples, corpus, tmp_path / "out", to="specter")
    assert json.loads((tmp_path / "out/data.json").read_bytes()) == {query: data[query] for query in listed}


def ids_of(samples, corpus):
    return [[corpus.ids[row] for row in line] for line in rows_of(samples)]


def test_real_triplets_of_scirepeval(shared, tmp_path):
    small = shared / "samples" / "scirepeval" / "specter_small.first20.json"
    corpus = import_papers(small, tmp_path / "c").corpus
    samples = import_samples(small, corpus, tmp_path / "s")
    records = json.loads(small.read_bytes())
    wanted = [[f"s2:{record[part]['corpus_id']}" for part in PARTS] for record in records]
    assert ids_of(samples, corpus) == wanted and len(wanted) == 20


def test_real_triplets_of_ids(shared, tmp_path):
    folder = shared / "data" / "scirepeval_samples"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here")
    corpus = import_papers(folder / "papers.jsonl.gz", tmp_path / "c").corpus
    samples = import_samples(folder / "triplets.jsonl", corpus, tmp_path / "s")
    lines = map(json.loads, (folder / "triplets.jsonl").read_text().splitlines())
    wanted = [[line[part] for part in PARTS] for line in lines if line["pos"] and line["neg"]]
    assert ids_of(samples, corpus) == wanted and len(wanted) == 200
    assert samples.manifest.facts["records"]["triplets"]["rejected"] == {"no query, pos and neg": 40}
