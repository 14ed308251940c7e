"""SciRepEval's folder: tasks from its task file or from what sub-folders look like, and its ways of averaging."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from citeweave.evaluation.suites.scirepeval import FIRST_VERSION, SECOND_VERSION, published_averages, read_suite
from citeweave.evaluation.tasks import SCIREPEVAL_CLASSES, SCIREPEVAL_LABELS, SCIREPEVAL_NUMBERS, compute_averages

from ..conftest import task_of, write_files

HUB = {"name": "allenai/scirepeval_test", "config": "fos"}
PAIRS = [{"query_id": "q", "cand_id": paper, "score": grade} for paper, grade in [("a", 2), ("b", 0), ("a", 0)]]
FILES = {
    f"drsm/{name}.csv": f"paper_id,label\n{rows}\n" for name, rows in (("train", "1,0\n2,1"), ("test", "3,1\n1,0"))
}
FILES |= {"relish/test_qrel.jsonl": PAIRS}


def row(name, kind, metrics, test, **more):
    data = {"test": test, **{key: more.pop(key) for key in ("meta", "reviewers") if key in more}}
    return {"name": name, "type": kind, "metrics": metrics, "data": data, **more}


def suite_of(path, *rows, **files):
    return read_suite(write_files(path, {**FILES, **files, "scirepeval_tasks.jsonl": list(rows)}))


def test_a_probe_is_read_with_its_few_shot_samples(tmp_path):
    few = [{"sample_size": 64, "iterations": 50}, {"sample_size": 16, "iterations": 100}]
    task = task_of(suite_of(tmp_path, row("DRSM", "classification", ["f1"], "drsm", few_shot=few)))
    assert task.few_shot == ((64, 50), (16, 100)) and task.metrics == {"f1": "f1"} and task.missing_as == "left out"
    assert task.rule is SCIREPEVAL_CLASSES and task.kind == "classes"
    ids = np.array(task.texts.ids)
    assert ids[task.train].tolist() == ["1", "2"] and ids[task.test].tolist() == ["3", "1"]
    assert task.test_labels.tolist() == [1, 0] and task.texts.lacking.startswith("metadata.jsonl")


def test_a_ranking_keeps_the_first_of_repeated_pairs_and_reads_queries_and_candidates(tmp_path):
    suite = suite_of(tmp_path, row("RELISH", "proximity", ["ndcg"], "relish"))
    task = task_of(suite)
    assert task.pools.grades.tolist() == [2, 0] and task.rule.metrics == ("ndcg",) and task.rule.decimals is None
    assert suite.notes == ("RELISH: 1 pairs are repeated; the first counts",)
    candidate = {"doc_id": "a", "title": "A", "abstract": "Text.", "venue": "ACL", "year": 2020}
    meta = {"doc_id": "q", "query": "deep nets", "candidates": [candidate, {"doc_id": "q", "title": "no"}]}
    write_files(tmp_path, {"search.jsonl": [meta]})
    fields = ["title", "abstract", "venue", "year"]
    suite = suite_of(tmp_path, row("Search", "adhoc_search", ["ndcg"], "relish", meta="search.jsonl", fields=fields))
    texts = task_of(suite).texts
    expected = {"q": "deep nets", "a": "A[SEP]Text. ACL 2020", "b": ""}
    assert dict(zip(texts.ids, texts.paper_texts(), strict=True)) == expected
    assert "Search: venue and year are appended to the abstract" in suite.notes


def test_tasks_with_the_same_papers_share_their_texts(tmp_path):
    rows = [
        row("A", "classification", ["f1"], "drsm", meta="all.jsonl"),
        row("B", "regression", ["kendalltau"], "drsm", meta="all.jsonl"),
        row("C", "regression", ["kendalltau"], "drsm"),
    ]
    papers = [{"doc_id": 1, "title": "One", "abstract": ""}, {"doc_id": 9, "title": "no"}]
    a, b, c = suite_of(tmp_path, *rows, **{"all.jsonl": papers}).tasks
    assert a.texts is b.texts and a.texts.titles == ["One", "", ""] and c.texts.lacking
    assert b.rule is SCIREPEVAL_NUMBERS and b.test_labels.dtype == np.float64


@pytest.mark.parametrize("place", ["fos", "scirepeval_test/fos", "allenai/scirepeval_test/fos"])
def test_a_copy_from_hugging_face_is_found(tmp_path, place):
    fields = row("Fields of study", "classification", ["f1_macro"], HUB, multi_label=True, meta=HUB)
    before = suite_of(tmp_path, fields)
    assert not before.tasks
    (reason,) = before.not_evaluated.values()
    assert "Fields of study needs train of config fos of allenai/scirepeval_test" in reason
    tables = {
        "train-00000-of-00002": {"paper_id": [1, 2], "label": [[0, 1]] * 2},
        "train-00001-of-00002": {"paper_id": [3], "label": [[0, 1]]},
        "test/0000": {"paper_id": ["4"], "label": [[1, 1]]},
        "evaluation": {"doc_id": ["4"], "title": ["Four"], "abstract": [None]},
    }
    (tmp_path / place / "test").mkdir(parents=True)
    for name, table in tables.items():
        pq.write_table(pa.table(table), tmp_path / place / f"{name}.parquet")
    task = task_of(read_suite(tmp_path))
    assert task.kind == "labels" and task.rule is SCIREPEVAL_LABELS
    assert task.train_labels.tolist() == [[0, 1]] * 3 and task.test_labels.tolist() == [[1, 1]]
    assert task.texts.titles == ["", "", "", "Four"]


def test_reviewers_are_two_tasks_and_unknown_metrics_are_said(tmp_path):
    pairs = [{"query_id": "q", "cand_id": "r", "score": 1}]
    people = {"prm/reviewer_metadata.jsonl": [{"r_id": "r", "papers": ["p"]}]}
    qrels = {f"prm/test_{part}_qrel.jsonl": pairs for part in ("hard", "soft")}
    suite = suite_of(tmp_path, row("PRM", "proximity", ["P_5"], "prm", reviewers="prm"), **people, **qrels)
    assert [task.name for task in suite.tasks] == ["PRM hard", "PRM soft"]
    assert suite.headline == ("PRM hard.P_5", "PRM soft.P_5") and suite.tasks[0].reviewers is not None
    rows = [row("A", "regression", ["mse", "kendalltau"], "drsm"), row("B", "regression", ["r2"], "drsm")]
    suite = suite_of(tmp_path, *rows)
    assert task_of(suite).name == "A" and task_of(suite).metrics == {"kendalltau": "kendalltau"}
    assert "metrics r2 are unknown" in suite.not_evaluated["B"]
    assert any("A: metrics mse" in note for note in suite.notes)


def test_folders_become_tasks_without_a_task_file(tmp_path):
    years = "paper_id,label\n" + "".join(f"{i},{1950 + i}\n" for i in range(40))
    words = [{"paper_id": i, "label": word} for i, word in enumerate("xyz")]
    files = {f"year/{split}.csv": years for split in ("train", "test")}
    files |= {f"words/{split}.jsonl": words for split in ("train", "test")}
    suite = read_suite(write_files(tmp_path, {**FILES, **files, "metadata.jsonl": [{"doc_id": 1, "title": "One"}]}))
    found = {task.name: getattr(task, "metrics", None) or task.rule.metrics for task in suite.tasks}
    probes = {"drsm": "f1", "words": "f1_macro", "year": "kendalltau"}
    assert found == {"relish": ("map", "ndcg"), **{name: {metric: metric} for name, metric in probes.items()}}
    assert suite.tasks[0].texts.titles[0] == "One" and not suite.averages
    assert "words: scirepeval_tasks.jsonl is missing; its labels look like classes" in suite.notes


NAMES = {
    "classification": ["Fields of study", "MeSH", "Biomimicry", "DRSM", "SciDocs MAG", "SciDocs MeSH"],
    "regression": ["Citation Count", "Publication Year", "Peer Review Score", "Max hIndex", "Tweet Mentions"],
    "proximity": ["Same Author Detection", "Highly Influential Citations", "Paper-Reviewer Matching"],
    "adhoc_search": ["Search", "TREC-CoVID"],
}
RANKINGS = ["SciDocs Cite", "SciDocs CoView", "SciDocs CoCite", "SciDocs CoRead"]
PRM = "Paper-Reviewer Matching"


@pytest.mark.parametrize(("version", "others"), [(FIRST_VERSION, 10), (SECOND_VERSION, 9)])
def test_the_published_weights(version, others):
    """SPECTER's published columns: 54.7 in-train, 57.4 out-of-train and 89.1 on SciDocs give 68.0 and 67.5."""
    formats = {name: kind for kind, names in NAMES.items() for name in names}
    formats |= dict.fromkeys([*RANKINGS, *version], "proximity")
    numbers = {name: [f"{name}.m"] for name in formats}
    numbers |= {name: [f"{name}.map", f"{name}.ndcg"] for name in RANKINGS}
    numbers[PRM] = [f"{PRM} {part}.P_{k}" for part in ("hard", "soft") for k in (5, 10)]
    made = published_averages(numbers, formats, frozenset([PRM]))
    level = {"SciRepEval In-Train": 54.7, "SciRepEval Out-of-Train": 57.4, "SciRepEval SciDocs": 89.1}
    assert [len(made[name].parts) for name in level] == [7, others, 10]
    assert len(made["SPECTER2 Out-of-Train"].parts) == others + 10 and len(made["SPECTER2 Avg"].parts) == others + 17
    flat = {
        metric: value
        for name, value in level.items()
        for part in made[name].parts
        for metric in (part if isinstance(part, tuple) else (part,))
    }
    found = compute_averages(made, flat)
    assert {name: round(found[name], 6) for name in level} == level
    # with S2AND, which is one more out-of-train number, these are the published averages
    total = (7 * 54.7 + (others + 1) * 57.4 + 10 * 89.1) / (18 + others)
    assert found["SciRepEval Average"] * (17 + others) + 57.4 == pytest.approx(total * (18 + others))
    if version is FIRST_VERSION:
        assert total == pytest.approx(68.0, abs=0.06)
    assert set(made) >= {f"Formats {kind}" for kind in NAMES} | {"Formats mean"}


def test_averages_need_every_task(tmp_path):
    rows = [row("MeSH", "classification", ["f1_macro"], "drsm"), row("DRSM", "classification", ["f1_macro"], "nowhere")]
    suite = suite_of(tmp_path, *rows)
    assert list(suite.averages) == ["Formats classification", "Formats mean"]
    assert suite.averages["Formats classification"].parts == ("MeSH.f1_macro", "DRSM.f1_macro")
    assert compute_averages(suite.averages, {"MeSH.f1_macro": 80.0}) == {}
    assert "DRSM needs train of nowhere, which is not in" in suite.not_evaluated["DRSM"]


def test_fixture(shared):
    tasks = {task.name: task for task in read_suite(shared / "fixtures/scirepeval").tasks}
    probes = ["clf_binary", "clf_multiclass", "clf_multilabel", "ir_binary", "ir_graded", "regression"]
    assert list(tasks) == [*probes, "reviewers hard", "reviewers soft"]
    assert tasks["clf_binary"].metrics == {"f1": "f1"} and len(tasks["clf_binary"].train) == 120
    assert tasks["clf_multilabel"].train_labels.shape == (170, 5)
    assert tasks["regression"].kind == "numbers" and tasks["regression"].test_labels[0] == 2.048
    assert len(tasks["ir_graded"].pools.candidates) == 720 and tasks["ir_graded"].pools.grades.max() == 3
