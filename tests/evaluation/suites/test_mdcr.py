"""MDCR's files: one task per field, `true` beats every other list."""

import json

import numpy as np

from citeweave.core.errors import InputError
from citeweave.evaluation.suites.mdcr import read_suite

from ..conftest import grades_of, refused, write_files

FILES = {
    "mdcr_test.json": {
        "Art": {"q1": {"bm25": ["a", "b"], "true": ["c", "a"], "random": ["c", "d", "b"]}},
        "Law": {"q2": {"bm25": [7], "true": ["a"]}, "q3": {"true": [], "random": ["q1"]}},
    },
    "mdcr_test_data.jsonl": [{"paper_id": p, "title": f"T {p}", "abstract": None} for p in ("q1", "q2", "a", "x", "7")],
}


def test_true_papers_are_relevant_wherever_else_they_stand(tmp_path):
    suite = read_suite(write_files(tmp_path, FILES))
    art, law = suite.tasks
    assert (art.name, law.name) == ("Art", "Law")
    assert grades_of(art) == {"q1": {"a": 1, "b": 0, "c": 1, "d": 0}}
    assert grades_of(law) == {"q2": {"7": 0, "a": 1}, "q3": {"q1": 0}}
    assert art.rule.metrics == ("map", "ndcg", "recall_5") and art.rule.peers == "stop" and art.rule.distance == "l2"
    texts = art.texts  # shared, with papers without text
    assert law.texts is texts and sorted(texts.ids) == ["7", "a", "b", "c", "d", "q1", "q2", "q3"]
    assert texts.titles[texts.rows(["7"])[0]] == "T 7" and texts.without_text == 4
    # fewer fields are reported, and averaged as the peer does
    assert any("2 of MDCR's 19 fields" in note for note in suite.notes)
    assert any("1 queries have no relevant paper" in note for note in suite.notes)
    assert suite.averages["AVG.recall_5"].parts == ("Art.recall_5", "Law.recall_5")
    assert suite.averages["AVG.map"].decimals == 4
    assert suite.data["queries"] == 3 and set(suite.data["files"]) == set(FILES)
    (tmp_path / "mdcr_test_data.jsonl").unlink()
    texts = read_suite(tmp_path).tasks[0].texts
    assert texts.lacking == "mdcr_test_data.jsonl" and len(texts) == 8
    refused(r"mdcr_test_data\.jsonl does not exist", texts.paper_texts, error=InputError)
    refused(r"mdcr_val\.json", read_suite, tmp_path, split="val", error=InputError)
    refused("--split is 'dev'", read_suite, tmp_path, split="dev")


def test_fixture(shared):
    suite = read_suite(shared / "fixtures/mdcr")
    expected = json.loads((shared / "fixtures/mdcr/expected.json").read_text())
    assert [task.name for task in suite.tasks] == list(expected["fields"]) and not suite.notes
    assert sum(len(task.pools.candidates) for task in suite.tasks) == 2498  # scores in the peer's file
    assert sum(int(np.sum(task.pools.grades)) for task in suite.tasks) == 379
    assert suite.tasks[0].texts.without_text == 0
