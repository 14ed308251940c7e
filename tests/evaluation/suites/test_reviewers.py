"""Reviewer matching: people as candidates, pairs that are judged but never ranked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from citeweave.core.errors import InputError
from citeweave.evaluation.suites.reviewers import read_suite

PEOPLE = [{"r_id": "r1", "papers": ["p1", "p2"]}, {"r_id": "r2", "papers": ["p2"]}, {"r_id": "s1", "papers": []}]
HARD = [("s1", "r1", 1), ("s1", "r2", 0), ("s1", "r9", 1), ("s2", "r2", 1), ("s1", "r1", 0)]
SOFT = [("s1", "r1", 1), ("s1", "r2", 1), ("s1", "s1", 1), ("s3", "r1", 1)]


def lines(path: Path, records: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def qrel(pairs) -> list[dict[str, object]]:
    return [{"query_id": query, "cand_id": person, "score": grade} for query, person, grade in pairs]


def folder_of(path: Path) -> Path:
    lines(path / "reviewer_metadata.jsonl", PEOPLE)
    lines(path / "test_hard_qrel.jsonl", qrel(HARD))
    lines(path / "test_soft_qrel.jsonl", qrel(SOFT))
    return path


def pairs(task) -> set[tuple[str, str, int, bool]]:
    pools, ids = task.pools, task.texts.ids
    owners = np.repeat(np.arange(len(pools)), np.diff(pools.offsets))
    return {
        (pools.names[owner], ids[row], grade, scored)
        for owner, row, grade, scored in zip(
            owners.tolist(), pools.candidates.tolist(), pools.grades.tolist(), pools.scored.tolist(), strict=True
        )
    }


def test_only_pairs_of_the_hard_file_are_scored(tmp_path):
    hard, soft = read_suite(folder_of(tmp_path)).tasks
    assert (hard.name, soft.name) == ("hard", "soft")
    # r9 has no papers; the repeated pair keeps its first grade
    assert pairs(hard) == {("s1", "r1", 1, True), ("s1", "r2", 0, True), ("s1", "r9", 1, False), ("s2", "r2", 1, True)}
    # s1 as a person is judged in the soft file alone; r9 is in the hard file alone and takes no relevance with it
    assert pairs(soft) == {("s1", "r1", 1, True), ("s1", "r2", 1, True), ("s1", "r9", 0, False), ("s1", "s1", 1, False)}


def test_people_have_rows_of_their_own_and_lists_of_papers(tmp_path):
    hard, soft = read_suite(folder_of(tmp_path)).tasks
    texts, reviewers = hard.texts, hard.reviewers
    assert reviewers.top == 3 and len(reviewers.offsets) == len(texts) + 1 and hard.rule.distance == "cosine"
    lists = {}
    for row, name in enumerate(texts.ids):
        lists[name, row] = [
            texts.ids[paper] for paper in reviewers.papers[reviewers.offsets[row] : reviewers.offsets[row + 1]]
        ]
    people = {name: papers for (name, row), papers in lists.items() if row >= 5}
    assert people == {"r1": ["p1", "p2"], "r2": ["p2"], "s1": [], "r9": []}
    assert all(not papers for (_, row), papers in lists.items() if row < 5)
    # the submission s1 and the person s1 are two rows, and the id leads to the submission
    assert list(texts.ids).count("s1") == 2
    place = soft.pools.queries[0]
    assert place == texts.rows(["s1"])[0] and place not in soft.pools.candidates


def test_oddities_are_noted(tmp_path):
    suite = read_suite(folder_of(tmp_path))
    assert [note.split(";")[0] for note in suite.notes] == [
        "1 pairs of the hard file are repeated",
        "1 of 3 reviewers have no known papers: they are judged but not ranked",
        "1 queries of the soft file are not in the hard file: nothing is ranked for them",
    ]
    assert suite.data["queries"] == 2 and suite.data["reviewers"] == 3


def test_texts_come_from_a_file_of_papers(tmp_path):
    folder_of(tmp_path)
    assert read_suite(tmp_path).tasks[0].texts.lacking == "metadata.jsonl"
    lines(tmp_path / "papers_metadata.jsonl", [{"doc_id": "p1", "title": "T", "abstract": "A."}])
    suite = read_suite(tmp_path)
    texts = suite.tasks[0].texts
    assert not texts.lacking and texts.paper_texts()[texts.rows(["p1"])[0]] == "T[SEP]A."
    assert "papers_metadata.jsonl" in suite.data["files"]


def test_missing_files_are_named(tmp_path):
    folder_of(tmp_path)
    (tmp_path / "test_soft_qrel.jsonl").unlink()
    suite = read_suite(tmp_path)
    assert [task.name for task in suite.tasks] == ["hard"]
    assert suite.not_evaluated == {"soft": f"soft needs test_soft_qrel.jsonl, which is not in {tmp_path}"}
    (tmp_path / "test_hard_qrel.jsonl").unlink()
    with pytest.raises(InputError, match=r"test_hard_qrel\.jsonl is missing: it holds the pairs that are scored"):
        read_suite(tmp_path)
    (tmp_path / "reviewer_metadata.jsonl").unlink()
    with pytest.raises(InputError, match="holds no files of reviewers"):
        read_suite(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("test_hard_qrel.jsonl", '{"query_id": 1, "score": 1}\n', "record 1 has no 'cand_id'"),
        ("test_hard_qrel.jsonl", '{"query_id": 1, "cand_id": 2, "score": 0.5}\n', "a grade is an integer"),
        ("reviewer_metadata.jsonl", '{"r_id": "r1", "papers": "p1"}\n', "the papers of 'r1' are not a list"),
        ("reviewer_metadata.jsonl", '{"r_id": "r1"', "line 1 is not valid JSON"),
    ],
)
def test_broken_files_are_refused(tmp_path, name, text, message):
    (folder_of(tmp_path) / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read_suite(tmp_path)


def test_fixture(shared):
    suite = read_suite(shared / "fixtures/scirepeval/reviewers")
    hard, soft = suite.tasks
    assert len(hard.pools) == 20 and len(hard.pools.candidates) == 324 and hard.pools.grades.sum() == 48
    assert len(soft.pools.candidates) == 329 and soft.pools.grades.sum() == 144
    assert (~hard.pools.scored).sum() == 4 and (~soft.pools.scored).sum() == 9  # five pairs are in the soft file alone
