"""MDCR's files: a task a field, `true` beats every other list."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from citeweave.core.errors import InputError, UserError
from citeweave.evaluation.suites.mdcr import read_suite

FIELDS = {
    "Art": {"q1": {"bm25": ["a", "b"], "true": ["c", "a"], "random": ["c", "d", "b"]}},
    "Law": {"q2": {"bm25": [7], "true": ["a"]}, "q3": {"true": [], "random": ["q1"]}},
}
PAPERS = [{"paper_id": name, "title": f"T {name}", "abstract": None} for name in ("q1", "q2", "a", "x", "7")]


def folder_of(path: Path, *, fields: object = FIELDS, papers: object = PAPERS) -> Path:
    (path / "mdcr_test.json").write_text(json.dumps(fields))
    if papers is not None:
        (path / "mdcr_test_data.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in papers))
    return path


def grades(task) -> dict[str, dict[str, int]]:
    """The pools again as dictionaries."""
    pools, ids = task.pools, task.texts.ids
    return {
        ids[query]: {
            ids[row]: grade
            for row, grade in zip(pools.candidates[start:end].tolist(), pools.grades[start:end].tolist(), strict=True)
        }
        for query, start, end in zip(pools.queries, pools.offsets[:-1], pools.offsets[1:], strict=True)
    }


def test_true_papers_are_relevant_wherever_else_they_stand(tmp_path):
    suite = read_suite(folder_of(tmp_path))
    art, law = suite.tasks
    assert [task.name for task in suite.tasks] == ["Art", "Law"]
    assert grades(art) == {"q1": {"a": 1, "b": 0, "c": 1, "d": 0}}
    assert grades(law) == {"q2": {"7": 0, "a": 1}, "q3": {"q1": 0}}
    assert art.rule.metrics == ("map", "ndcg", "recall_5") and art.rule.peers == "stop" and art.rule.distance == "l2"


def test_texts_are_shared_and_papers_without_one_are_kept(tmp_path):
    suite = read_suite(folder_of(tmp_path))
    texts = suite.tasks[0].texts
    assert suite.tasks[1].texts is texts
    assert sorted(texts.ids) == ["7", "a", "b", "c", "d", "q1", "q2", "q3"]
    assert texts.titles[texts.rows(["7"])[0]] == "T 7" and texts.without_text == 4
    (tmp_path / "mdcr_test_data.jsonl").unlink()
    texts = read_suite(tmp_path).tasks[0].texts
    assert texts.lacking == "mdcr_test_data.jsonl" and len(texts) == 8
    with pytest.raises(InputError, match=r"mdcr_test_data\.jsonl does not exist"):
        texts.paper_texts()


def test_fewer_fields_are_reported_and_averaged_as_the_peer_does(tmp_path):
    suite = read_suite(folder_of(tmp_path))
    assert any("2 of MDCR's 19 fields" in note for note in suite.notes)
    assert any("1 queries have no relevant paper" in note for note in suite.notes)
    assert suite.averages["AVG.recall_5"].parts == ("Art.recall_5", "Law.recall_5")
    assert suite.averages["AVG.map"].decimals == 4
    assert suite.data["queries"] == 3 and set(suite.data["files"]) == {"mdcr_test.json", "mdcr_test_data.jsonl"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([], "must be one object"),
        ({"Art": {}}, "field 'Art' holds no queries"),
        ({"Art": {"q": {"bm25": ["a"]}}}, "query 'q' has no list 'true'"),
        ({"Art": {"q": {"true": "a"}}}, "query 'q' is not an object of lists"),
        ({"Art": {"q": {"true": [None]}}}, "query 'q' is None; an id is"),
    ],
)
def test_another_shape_is_refused(tmp_path, fields, message):
    with pytest.raises(InputError, match=message):
        read_suite(folder_of(tmp_path, fields=fields))


def test_broken_and_foreign_folders_are_refused(tmp_path):
    folder_of(tmp_path)
    whole = (tmp_path / "mdcr_test.json").read_text()
    (tmp_path / "mdcr_test.json").write_text(whole[:-20])
    with pytest.raises(
        InputError, match=r"mdcr_test\.json ends in the middle of its JSON at line 1; .*download it again"
    ):
        read_suite(tmp_path)
    with pytest.raises(InputError, match=r"mdcr_val\.json"):
        read_suite(tmp_path, split="val")
    with pytest.raises(UserError, match="--split is 'dev'"):
        read_suite(tmp_path, split="dev")
    other = tmp_path / "other"
    (other / "cite").mkdir(parents=True)
    (other / "cite/test.qrel").write_text("q 0 a 1\n")
    with pytest.raises(InputError, match="belongs to scidocs"):
        read_suite(other)


def test_fixture(shared):
    suite = read_suite(shared / "fixtures/mdcr")
    expected = json.loads((shared / "fixtures/mdcr/expected.json").read_text())
    assert [task.name for task in suite.tasks] == list(expected["fields"]) and not suite.notes
    assert sum(len(task.pools.candidates) for task in suite.tasks) == 2498  # scores in the peer's file
    assert sum(int(np.sum(task.pools.grades)) for task in suite.tasks) == 379
    assert suite.tasks[0].texts.without_text == 0
