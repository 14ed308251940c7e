"""Files of benchmarks: read whole, or refused with the file, the line and the next step; labels and judged queries."""

import gzip
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave.core.errors import InputError
from citeweave.evaluation.suites import aspire, read_suite
from citeweave.evaluation.suites import benchmark_files as files
from citeweave.evaluation.tasks import TaskTexts

from ..conftest import TOPICS, refused, write_files


def written(folder, text, name="x"):
    return write_files(folder, {name: text}) / name


def test_a_missing_file_is_named_with_what_it_holds(tmp_path):
    data = files.DataFolder(tmp_path)
    refused("x.qrel is missing: it holds the grades; download it", data.file, "x.qrel", "the grades", error=InputError)
    (tmp_path / "y").mkdir()
    refused("y is a folder, not a file", data.file, "y", "the grades", error=InputError)
    refused("nowhere is not a folder", files.DataFolder, tmp_path / "nowhere", error=InputError)


def test_files_are_read_whole(tmp_path):
    written(tmp_path, gzip.compress(b"q 0 a 1\n"), "x.qrel.gz")  # stands for the plain one
    data = files.DataFolder(tmp_path)
    assert data.has("x.qrel") and not data.has("x.qrel", "y.qrel")
    assert files.read_qrel(data.file("x.qrel", "grades")) == {"q": {"a": 1}}
    assert list(data.hashes()) == ["x.qrel"]
    pools = files.read_qrel(written(tmp_path, "q2 0 b 0\nq1 0 c 2\n\nq2\t0 a 1\r\n"))
    assert list(pools) == ["q2", "q1"] and list(pools["q2"].items()) == [("b", 0), ("a", 1)]
    assert files.read_json(written(tmp_path, '\ufeff{"a": NaN}'))["a"] != 0
    path = written(tmp_path, '{"id": 7, "t": 1}\n\n{"id": "b", "t": 2}\n')
    records = files.read_json_lines(path, keys=["t"], ids=["id"])
    assert [record["id"] for record in records] == ["7", "b"]
    rows = files.read_csv(written(tmp_path, 'more,pid,label\n1,a,"x,\ny"\n\n2,b,z\n'), ["pid", "label"])
    assert list(rows) == [{"pid": "a", "label": "x,\ny"}, {"pid": "b", "label": "z"}]


READERS = {
    "qrel": files.read_qrel,
    "json": files.read_json,
    "jsonl": lambda path: list(files.read_json_lines(path, ids=["id"])),
    "csv": lambda path: list(files.read_csv(path, ["pid"])),
}


BROKEN = [
    ("qrel", "q 0 a 1\nq 0 b\n", "line 2 has 3 of the 4 parts"),
    ("qrel", "q 0 a 1\nq 0 a 0\n", "line 2 judges query q and candidate a a second time; remove one"),
    ("qrel", "q 0 a one\n", "line 1: the grade is 'one'"),
    ("qrel", "q 0 a 0.5\n", "a grade is an integer"),
    ("qrel", "\n", "is empty"),
    ("qrel", b"q 0 a\xff 1\n", "not UTF-8"),
    ("json", "", "is empty"),
    ("json", '{"a": [1,\n"b', "ends in the middle of its JSON at line 2; .*download it again"),
    ("json", '{"a": 1,\n', "ends in the middle"),
    ("json", '{"a": 1}\n{"b": 2}', "is not valid JSON at line 2"),
    ("jsonl", '{"id": 1}\n{"id"', "line 2 is not valid JSON; the file is damaged or half downloaded"),
    ("jsonl", "[1]\n", "line 1 is not a JSON object"),
    ("jsonl", '{"name": 1}\n', "line 1 has no 'id'; it has 'name'"),
    ("jsonl", '{"id": null}\n', "line 1: id is None; an id is a string or an integer"),
    ("jsonl", "", "is empty"),
    ("csv", "", "is empty"),
    ("csv", "a,b\n1,2\n", "has no column 'pid'; its first line is 'a, b'"),
    ("csv", "pid,label\na,1\nb\n", "line 3 has 1 of 2 columns; the file is damaged"),
]


@pytest.mark.parametrize(("kind", "text", "message"), BROKEN)
def test_broken_files_are_refused(tmp_path, kind, text, message):
    refused(message, READERS[kind], written(tmp_path, text), error=InputError)


def test_grades_ids_and_labels():
    assert [files.as_grade(value, "g") for value in (1, "2", 3.0, "-1", "1.0")] == [1, 2, 3, -1, 1]
    for bad in (0.5, True, None, "x", float("nan"), float("inf"), 10**19, -(10**19), "9" * 30, 1e300):
        refused("g is .*a grade is an integer", files.as_grade, bad, "g", error=InputError)
    for bad in ("", None, 1.5, True, ["a"]):
        refused("an id is", files.as_id, bad, "x", error=InputError)
    assert files.as_classes(["0", "2"], "f").tolist() == [0, 2]
    assert files.as_classes(["cat", "2"], "f").tolist() == ["cat", "2"]
    assert files.guess_kind([1.0, 2.0]) == files.guess_kind(["1", "x"]) == "classes"
    assert files.guess_kind(list(range(31))) == "numbers"
    with pytest.raises(InputError, match=r"f record 2 has the label \[1\]; multi-hot labels are a list of 0 and 1"):
        files.as_labels([[0, 1], [1]], "f")
    refused("f record 1 has the label 'NaN'; it must be a number", files.as_numbers, ["NaN"], "f", error=InputError)


IDS = st.sampled_from("abcdef")


@given(st.dictionaries(IDS, st.lists(st.tuples(IDS, st.integers(0, 3)), max_size=8), min_size=1))
def test_cleaning_keeps_the_last_grade_of_every_other_paper(judged):
    queries = [aspire.GradedQuery(name, name, *map(list, zip(*pool, strict=True)) if pool else ([], [])) for name, pool in judged.items()]  # fmt: skip
    cleaned = {name: {p: g for p, g in sorted(dict(pool).items()) if p != name} for name, pool in judged.items()}
    expected = {name: pool for name, pool in cleaned.items() if pool}
    asked, counts = aspire.clean_queries(queries, relevant=2)
    found = {query.name: dict(zip(query.candidates, query.grades, strict=True)) for query in asked}
    assert found == expected
    assert [list(pool) for pool in found.values()] == [sorted(pool) for pool in found.values()]
    lost = sum(len(pool) for pool in judged.values()) - sum(len(pool) for pool in found.values())
    without = counts["queries left out, since they have no candidates"]
    assert sum(counts.values()) == lost + without + sum(max(pool.values()) < 2 for pool in expected.values())
    if asked:
        texts, unknown = aspire.add_unknown_papers(TaskTexts(["a", "x"], ["A", "X"], ["", ""]), asked)
        pools = aspire.make_pools(texts, asked)
        assert len(texts) == 2 + unknown and texts.without_text == unknown
        assert [texts.ids[row] for row in pools.candidates] == [paper for pool in expected.values() for paper in pool]


TSV = "query-id\tcorpus-id\tscore\n"
METHOD, SPLITS = "test-pid2anns-csfcube-method.json", "evaluation_splits.json"
ABSTRACTS, TASKS = "abstracts-csfcube-preds.jsonl", "scirepeval_tasks.jsonl"
HARD, PEOPLE, CITED = "test_hard_qrel.jsonl", "reviewer_metadata.jsonl", "paper_metadata_view_cite_read.json"
SHOTS = {"sample_size": 0, "iterations": 5}


DAMAGES = [
    ("beir", {"qrels/test.tsv": TSV + "q1\tp1\n"}, "line 2 has 2 of the 3 columns query-id, corpus-id, score"),
    ("beir", {"qrels/test.tsv": TSV + "q1 p1 1\n"}, "line 2 has 1 of the 3 columns"),
    ("beir", {"qrels/test.tsv": TSV + "q1\tp1\tyes\n"}, "line 2: the score is 'yes'"),
    ("beir", {"qrels/test.tsv": TSV + "q1\tp1\t1\nq1\tp1\t0\n"}, "line 3 gives q1 and p1 another score"),
    ("beir", {"qrels/test.tsv": TSV}, "has no judgments"),
    ("beir", {"qrels/test.tsv": None}, "qrels/test.tsv is missing: it holds which papers answer which question"),
    ("beir", {"corpus.jsonl": None}, "corpus.jsonl is missing: it holds the papers"),
    ("beir", {"queries.jsonl": None}, "queries.jsonl is missing: it holds the questions"),
    ("beir", {"corpus.jsonl": [{"id": "p1", "text": "A"}]}, "corpus.jsonl line 1 has no '_id'"),
    ("csfcube", {SPLITS: None}, "evaluation_splits.json is missing: it holds the folds"),
    ("csfcube", {METHOD: ("[2, 0, 2, 0, 2, 0]", "[2, 0]")}, "query p00 has 6 candidates and 2 grades"),
    ("csfcube", {METHOD: ("[2, 0, 2", '["x", 0, 2')}, "a grade is 'x'"),
    ("csfcube", {METHOD: {"q1": 3}}, "query q1 has no lists 'cands' and 'relevance_adju'"),
    ("csfcube", {SPLITS: ("fold2_test", "fold3")}, "background.fold2_test"),
    ("csfcube", {SPLITS: ("p02_method", "q9_method")}, "not judged, such as 'q9_me"),
    ("csfcube", {ABSTRACTS: (', "result_label"', "", 1)}, "paper p00 has 2 labels for 3 sent"),
    ("mdcr", {"mdcr_test.json": []}, "must be one object"),
    ("mdcr", {"mdcr_test.json": {"Art": {}}}, "field 'Art' holds no queries"),
    ("mdcr", {"mdcr_test.json": {"Art": {"q": {"bm25": ["a"]}}}}, "query 'q' has no list 'true'"),
    ("mdcr", {"mdcr_test.json": {"Art": {"q": {"true": "a"}}}}, "query 'q' is not an object of lists"),
    ("mdcr", {"mdcr_test.json": {"Art": {"q": {"true": [None]}}}}, "query 'q' is None; an id is"),
    ("relish", {"test-pid2anns-relish.json": None}, "test-pid2anns-relish.json is missing: it holds"),
    ("relish", {"relish-evaluation_splits.json": None}, "relish-evaluation_splits.json is missing: it holds"),
    ("reviewers", {HARD: None}, r"test_hard_qrel\.jsonl is missing: it holds the pairs that are scored"),
    ("reviewers", {HARD: [{"query_id": 1, "score": 1}]}, "record 1 has no 'cand_id'"),
    ("reviewers", {HARD: [{"query_id": 1, "cand_id": 2, "score": 0.5}]}, "a grade is an integer"),
    ("reviewers", {PEOPLE: [{"r_id": "r1", "papers": "p1"}]}, "the papers of 'r1' are not a list"),
    ("scidocs", {"cite/test.qrel": "q 0 a 1\nq 0 a 1\n"}, r"cite/test\.qrel line 2 judges .* a second time"),
    ("scidocs", {"cite/test.qrel": "q 0 a 1\nq 0"}, r"cite/test\.qrel line 2 has 2 of the 4 parts"),
    ("scidocs", {"mag/train.csv": "pid,label\na,0\n"}, r"mag/train\.csv has no column 'class_label'"),
    ("scidocs", {"mag/test.csv": "pid,class_label\n"}, r"mag/test\.csv holds no papers"),
    ("scidocs", {CITED: {"q": 1}}, "the entry of 'q' is not a JSON object"),
    ("scirepeval", {TASKS: [{**TOPICS, "type": "clustering"}]}, "has the type 'clustering'; it must be one of class"),
    ("scirepeval", {TASKS: [{**TOPICS, "metrics": []}]}, "has no list of metrics"),
    ("scirepeval", {TASKS: [{**TOPICS, "data": {"meta": "x"}}]}, "has no data"),
    ("scirepeval", {TASKS: [{**TOPICS, "data": {"test": 3}}]}, "names data by 3"),
    ("scirepeval", {TASKS: [{**TOPICS, "few_shot": [SHOTS]}]}, "few_shot must be"),
    ("scirepeval", {TASKS: [{**TOPICS, "few_shot": [64]}]}, "few_shot must be"),
    ("scirepeval", {TASKS: [TOPICS, TOPICS]}, "task 'Topics' comes twice"),
    ("scirepeval", {"topics/test.csv": "paper_id,label\n"}, r"topics/test\.csv holds no papers"),
    ("scirepeval", {"topics/test.csv": "paper_id\n3\n"}, r"topics/test\.csv has no column 'label'"),
    (
        "scirepeval",
        {"topics/test.csv": None, "topics/test.parquet": b"PAR1"},
        r"test\.parquet is not a complete Parquet file",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("suite", "changed", "message"), DAMAGES)
def test_damage_to_a_suite_is_named(folders, tmp_path, suite, changed, message):
    folder = write_files(shutil.copytree(folders[suite], tmp_path / "data"), changed)
    with pytest.raises(InputError, match=message) as error:
        read_suite(suite, folder)
    assert "\n" not in str(error.value)


NEEDS = [
    ("csfcube", "needs test-pid2anns-csfcube-background.json"),
    ("reviewers", ""),
    ("scidocs", r"needs some of mag/test\.csv.*cocite/test\.qrel"),
    ("scirepeval", r"needs scirepeval_tasks\.jsonl, or folders"),
    ("treccovid_rf", "build_treccovid_rf writes them from TREC-COVID's files"),
]


@pytest.mark.parametrize(("suite", "needs"), NEEDS)
def test_a_folder_without_files_of_the_suite_is_refused(tmp_path, suite, needs):
    refused(f"holds no files of {suite}.*{needs}", read_suite, suite, tmp_path, error=InputError)
    refused("is not a folder", read_suite, suite, tmp_path / "nowhere", error=InputError)
