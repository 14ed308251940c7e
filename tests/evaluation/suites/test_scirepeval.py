"""SciRepEval's folder: tasks from its task file or from what sub-folders look like, and its ways of averaging."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from citeweave.core.errors import InputError
from citeweave.evaluation.probes import SCIREPEVAL_CLASSES, SCIREPEVAL_LABELS, SCIREPEVAL_NUMBERS
from citeweave.evaluation.suites.benchmark_labels import as_labels, as_numbers, guess_kind
from citeweave.evaluation.suites.scirepeval import FIRST_VERSION, SECOND_VERSION, published_averages, read_suite
from citeweave.evaluation.tasks import compute_averages

HUB = {"name": "allenai/scirepeval_test", "config": "fos"}


def lines(path: Path, records: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def row(name: str, kind: str, metrics: list[str], test: object, **more: object) -> dict[str, object]:
    data = {"test": test, **{key: more.pop(key) for key in ("meta", "reviewers") if key in more}}
    return {"name": name, "type": kind, "metrics": metrics, "data": data, **more}


def folder_of(path: Path, *rows: dict[str, object]) -> Path:
    lines(path / "scirepeval_tasks.jsonl", list(rows))
    (path / "drsm").mkdir()
    (path / "drsm/train.csv").write_text("paper_id,label\n1,0\n2,1\n")
    (path / "drsm/test.csv").write_text("paper_id,label\n3,1\n1,0\n")
    lines(
        path / "relish/test_qrel.jsonl",
        [{"query_id": "q", "cand_id": c, "score": s} for c, s in [("a", 2), ("b", 0), ("a", 0)]],
    )
    return path


def test_a_probe_is_read_with_its_few_shot_samples(tmp_path):
    few = [{"sample_size": 64, "iterations": 50}, {"sample_size": 16, "iterations": 100}]
    task, *_ = read_suite(folder_of(tmp_path, row("DRSM", "classification", ["f1"], "drsm", few_shot=few))).tasks
    assert task.few_shot == ((64, 50), (16, 100)) and task.metrics == {"f1": "f1"} and task.missing_as == "left out"
    assert task.rule is SCIREPEVAL_CLASSES and task.kind == "classes"
    ids = np.array(task.texts.ids)
    assert ids[task.train].tolist() == ["1", "2"] and ids[task.test].tolist() == ["3", "1"]
    assert task.test_labels.tolist() == [1, 0] and task.texts.lacking.startswith("metadata.jsonl")


def test_a_ranking_keeps_the_first_of_repeated_pairs(tmp_path):
    suite = read_suite(folder_of(tmp_path, row("RELISH", "proximity", ["ndcg"], "relish")))
    (task,) = suite.tasks
    assert task.pools.grades.tolist() == [2, 0] and task.rule.metrics == ("ndcg",) and task.rule.decimals is None
    assert suite.notes == ("RELISH: 1 pairs are repeated; the first counts",)


def test_texts_of_queries_and_candidates(tmp_path):
    meta = [
        {
            "doc_id": "q",
            "query": "deep nets",
            "candidates": [
                {"doc_id": "a", "title": "A", "abstract": "Text.", "venue": "ACL", "year": 2020},
                {"doc_id": "q", "title": "no"},
            ],
        }
    ]
    fields = ["title", "abstract", "venue", "year"]
    folder_of(tmp_path, row("Search", "adhoc_search", ["ndcg"], "relish", meta="search.jsonl", fields=fields))
    lines(tmp_path / "search.jsonl", meta)
    suite = read_suite(tmp_path)
    texts = suite.tasks[0].texts
    assert dict(zip(texts.ids, texts.paper_texts(), strict=True)) == {
        "q": "deep nets",
        "a": "A[SEP]Text. ACL 2020",
        "b": "",
    }
    assert "Search: venue and year are appended to the abstract" in suite.notes


def test_tasks_with_the_same_papers_share_their_texts(tmp_path):
    folder_of(
        tmp_path,
        row("A", "classification", ["f1"], "drsm", meta="all.jsonl"),
        row("B", "regression", ["kendalltau"], "drsm", meta="all.jsonl"),
        row("C", "regression", ["kendalltau"], "drsm"),
    )
    lines(tmp_path / "all.jsonl", [{"doc_id": 1, "title": "One", "abstract": ""}, {"doc_id": 9, "title": "no"}])
    a, b, c = read_suite(tmp_path).tasks
    assert a.texts is b.texts and a.texts.titles == ["One", "", ""] and c.texts.lacking
    assert b.rule is SCIREPEVAL_NUMBERS and b.test_labels.dtype == np.float64


@pytest.mark.parametrize("place", ["fos", "scirepeval_test/fos", "allenai/scirepeval_test/fos"])
def test_a_copy_from_hugging_face_is_found(tmp_path, place):
    folder_of(tmp_path, row("Fields of study", "classification", ["f1_macro"], HUB, multi_label=True, meta=HUB))
    suite_before = read_suite_or_reason(tmp_path)
    assert "Fields of study needs train of config fos of allenai/scirepeval_test" in suite_before
    (tmp_path / place / "test").mkdir(parents=True)
    for number, papers in enumerate([[1, 2], [3]]):
        table = pa.table({"paper_id": papers, "label": [[0, 1]] * len(papers)})
        pq.write_table(table, tmp_path / place / f"train-0000{number}-of-00002.parquet")
    pq.write_table(pa.table({"paper_id": ["4"], "label": [[1, 1]]}), tmp_path / place / "test/0000.parquet")
    pq.write_table(
        pa.table({"doc_id": ["4"], "title": ["Four"], "abstract": [None]}), tmp_path / place / "evaluation.parquet"
    )
    (task,) = read_suite(tmp_path).tasks
    assert task.kind == "labels" and task.rule is SCIREPEVAL_LABELS
    assert task.train_labels.tolist() == [[0, 1]] * 3 and task.test_labels.tolist() == [[1, 1]]
    assert task.texts.titles == ["", "", "", "Four"]


def read_suite_or_reason(folder: Path) -> str:
    suite = read_suite(folder)
    assert not suite.tasks
    return "; ".join(suite.not_evaluated.values())


def test_reviewers_are_two_tasks(tmp_path):
    lines(tmp_path / "prm/test_hard_qrel.jsonl", [{"query_id": "q", "cand_id": "r", "score": 1}])
    lines(tmp_path / "prm/test_soft_qrel.jsonl", [{"query_id": "q", "cand_id": "r", "score": 1}])
    lines(tmp_path / "prm/reviewer_metadata.jsonl", [{"r_id": "r", "papers": ["p"]}])
    folder_of(tmp_path, row("PRM", "proximity", ["P_5"], "prm", reviewers="prm"))
    suite = read_suite(tmp_path)
    assert [task.name for task in suite.tasks] == ["PRM hard", "PRM soft"]
    assert suite.headline == ("PRM hard.P_5", "PRM soft.P_5") and suite.tasks[0].reviewers is not None


def test_unknown_metrics_are_said(tmp_path):
    suite = read_suite(
        folder_of(
            tmp_path, row("A", "regression", ["mse", "kendalltau"], "drsm"), row("B", "regression", ["r2"], "drsm")
        )
    )
    assert [task.name for task in suite.tasks] == ["A"] and suite.tasks[0].metrics == {"kendalltau": "kendalltau"}
    assert "metrics r2 are unknown" in suite.not_evaluated["B"] and any(
        "A: metrics mse" in note for note in suite.notes
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"type": "clustering"}, "has the type 'clustering'; it must be one of classification"),
        ({"metrics": []}, "has no list of metrics"),
        ({"data": {"meta": "x"}}, "has no data"),
        ({"data": {"test": 3}}, "names data by 3"),
        ({"few_shot": [{"sample_size": 0, "iterations": 5}]}, "few_shot must be"),
        ({"few_shot": [64]}, "few_shot must be"),
    ],
)
def test_a_broken_task_file_is_refused(tmp_path, changed, message):
    with pytest.raises(InputError, match=message):
        read_suite(folder_of(tmp_path, {**row("A", "classification", ["f1"], "drsm"), **changed}))


def test_tasks_of_one_name_and_half_downloaded_data_are_refused(tmp_path):
    folder_of(tmp_path, *[row("A", "classification", ["f1"], "drsm")] * 2)
    with pytest.raises(InputError, match="task 'A' comes twice"):
        read_suite(tmp_path)
    lines(tmp_path / "scirepeval_tasks.jsonl", [row("A", "classification", ["f1"], "drsm")])
    (tmp_path / "drsm/test.csv").write_text("paper_id,label\n")
    with pytest.raises(InputError, match=r"drsm/test\.csv holds no papers"):
        read_suite(tmp_path)
    (tmp_path / "drsm/test.csv").write_text("paper_id\n3\n")
    with pytest.raises(InputError, match=r"drsm/test\.csv has no column 'label'"):
        read_suite(tmp_path)
    (tmp_path / "drsm/test.csv").unlink()
    (tmp_path / "drsm/test.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"test\.parquet is not a complete Parquet file"):
        read_suite(tmp_path)


def test_folders_become_tasks_without_a_task_file(tmp_path):
    folder_of(tmp_path, row("A", "classification", ["f1"], "drsm"))
    (tmp_path / "scirepeval_tasks.jsonl").unlink()
    (tmp_path / "year").mkdir()
    for split in ("train", "test"):
        (tmp_path / f"year/{split}.csv").write_text(
            "paper_id,label\n" + "".join(f"{i},{1950 + i}\n" for i in range(40))
        )
        lines(tmp_path / f"words/{split}.jsonl", [{"paper_id": i, "label": word} for i, word in enumerate("xyz")])
    lines(tmp_path / "metadata.jsonl", [{"doc_id": 1, "title": "One"}])
    suite = read_suite(tmp_path)
    found = {task.name: getattr(task, "metrics", None) or task.rule.metrics for task in suite.tasks}
    assert found == {
        "drsm": {"f1": "f1"},
        "relish": ("map", "ndcg"),
        "words": {"f1_macro": "f1_macro"},
        "year": {"kendalltau": "kendalltau"},
    }
    assert suite.tasks[0].texts.titles[0] == "One" and not suite.averages
    assert "words: scirepeval_tasks.jsonl is missing; its labels look like classes" in suite.notes


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"holds no files of scirepeval: it needs scirepeval_tasks\.jsonl, or folders"):
        read_suite(tmp_path)
    (tmp_path / "mag").mkdir()
    for split in ("train", "test"):
        (tmp_path / f"mag/{split}.csv").write_text("pid,class_label\na,0\n")
    with pytest.raises(InputError, match=r"its mag/test\.csv belongs to scidocs"):
        read_suite(tmp_path)


def test_labels():
    assert guess_kind([1.0, 2.0]) == "classes" and guess_kind(list(range(31))) == "numbers"
    assert guess_kind(["1", "x"]) == "classes"
    with pytest.raises(InputError, match=r"f record 2 has the label \[1\]; multi-hot labels are a list of 0 and 1"):
        as_labels([[0, 1], [1]], "f")
    with pytest.raises(InputError, match="f record 1 has the label 'NaN'; it must be a number"):
        as_numbers(["NaN"], "f")


NAMES = {
    "classification": ["Fields of study", "MeSH", "Biomimicry", "DRSM", "SciDocs MAG", "SciDocs MeSH"],
    "regression": ["Citation Count", "Publication Year", "Peer Review Score", "Max hIndex", "Tweet Mentions"],
    "proximity": ["Same Author Detection", "Highly Influential Citations", "Paper-Reviewer Matching"],
    "adhoc_search": ["Search", "TREC-CoVID"],
}
RANKINGS = ["SciDocs Cite", "SciDocs CoView", "SciDocs CoCite", "SciDocs CoRead"]


@pytest.mark.parametrize(("version", "others"), [(FIRST_VERSION, 10), (SECOND_VERSION, 9)])
def test_the_published_weights(version, others):
    """SPECTER's published columns: 54.7 in-train, 57.4 out-of-train and 89.1 on SciDocs give 68.0 and 67.5."""
    formats = {name: kind for kind, names in NAMES.items() for name in names}
    formats |= dict.fromkeys([*RANKINGS, *version], "proximity")
    numbers = {name: [f"{name}.m"] for name in formats}
    numbers |= {name: [f"{name}.map", f"{name}.ndcg"] for name in RANKINGS}
    numbers["Paper-Reviewer Matching"] = [
        f"Paper-Reviewer Matching {part}.P_{k}" for part in ("hard", "soft") for k in (5, 10)
    ]
    made = published_averages(numbers, formats, frozenset(["Paper-Reviewer Matching"]))
    assert [
        len(made[name].parts) for name in ("SciRepEval In-Train", "SciRepEval Out-of-Train", "SciRepEval SciDocs")
    ] == [7, others, 10]
    assert len(made["SPECTER2 Out-of-Train"].parts) == others + 10 and len(made["SPECTER2 Avg"].parts) == others + 17
    level = {"SciRepEval In-Train": 54.7, "SciRepEval Out-of-Train": 57.4, "SciRepEval SciDocs": 89.1}
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
    suite = read_suite(folder_of(tmp_path, *rows))
    assert list(suite.averages) == ["Formats classification", "Formats mean"]
    assert suite.averages["Formats classification"].parts == ("MeSH.f1_macro", "DRSM.f1_macro")
    assert compute_averages(suite.averages, {"MeSH.f1_macro": 80.0}) == {}
    assert "DRSM needs train of nowhere, which is not in" in suite.not_evaluated["DRSM"]


def test_fixture(shared):
    suite = read_suite(shared / "fixtures/scirepeval")
    tasks = {task.name: task for task in suite.tasks}
    assert list(tasks) == [
        "clf_binary", "clf_multiclass", "clf_multilabel", "ir_binary", "ir_graded", "regression", "reviewers hard", "reviewers soft"
    ]  # fmt: skip
    assert tasks["clf_binary"].metrics == {"f1": "f1"} and len(tasks["clf_binary"].train) == 120
    assert tasks["clf_multilabel"].train_labels.shape == (170, 5)
    assert tasks["regression"].kind == "numbers" and tasks["regression"].test_labels[0] == 2.048
    assert len(tasks["ir_graded"].pools.candidates) == 720 and tasks["ir_graded"].pools.grades.max() == 3
