"""Reviewer matching: people as candidates, pairs that are judged but never ranked."""

import numpy as np
import pytest

from citeweave.evaluation.suites.reviewers import read_suite

from ..conftest import write_files

PEOPLE = [{"r_id": "r1", "papers": ["p1", "p2"]}, {"r_id": "r2", "papers": ["p2"]}, {"r_id": "s1", "papers": []}]
HARD = [("s1", "r1", 1), ("s1", "r2", 0), ("s1", "r9", 1), ("s2", "r2", 1), ("s1", "r1", 0)]
SOFT = [("s1", "r1", 1), ("s1", "r2", 1), ("s1", "s1", 1), ("s3", "r1", 1)]


@pytest.fixture
def folder(tmp_path):
    def qrel(pairs):
        return [{"query_id": query, "cand_id": person, "score": grade} for query, person, grade in pairs]

    qrels = {"test_hard_qrel.jsonl": qrel(HARD), "test_soft_qrel.jsonl": qrel(SOFT)}
    return write_files(tmp_path, {"reviewer_metadata.jsonl": PEOPLE, **qrels})


def pairs(task) -> set[tuple[str, str, int, bool]]:
    pools, ids = task.pools, [task.texts.ids[row] for row in task.pools.candidates]
    names = np.repeat(pools.names, np.diff(pools.offsets)).tolist()
    return set(zip(names, ids, pools.grades.tolist(), pools.scored.tolist(), strict=True))


def test_people_are_candidates_and_only_pairs_of_the_hard_file_are_scored(folder):
    suite = read_suite(folder)
    hard, soft = suite.tasks
    assert (hard.name, soft.name) == ("hard", "soft")
    # r9 has no papers; the repeated pair keeps its first grade
    assert pairs(hard) == {("s1", "r1", 1, True), ("s1", "r2", 0, True), ("s1", "r9", 1, False), ("s2", "r2", 1, True)}
    # s1 as a person is judged in the soft file alone; r9 is in the hard file alone and takes no relevance with it
    assert pairs(soft) == {("s1", "r1", 1, True), ("s1", "r2", 1, True), ("s1", "r9", 0, False), ("s1", "s1", 1, False)}
    texts, reviewers = hard.texts, hard.reviewers
    assert reviewers.top == 3 and len(reviewers.offsets) == len(texts) + 1 and hard.rule.distance == "cosine"
    lists = [[texts.ids[paper] for paper in own] for own in np.split(reviewers.papers, reviewers.offsets[1:-1])]
    people = dict(zip(list(texts.ids)[5:], lists[5:], strict=True))
    assert people == {"r1": ["p1", "p2"], "r2": ["p2"], "s1": [], "r9": []} and not any(lists[:5])
    # the submission s1 and the person s1 are two rows, and the id leads to the submission
    assert list(texts.ids).count("s1") == 2
    place = soft.pools.queries[0]
    assert place == texts.rows(["s1"])[0] and place not in soft.pools.candidates
    assert [note.split(";")[0] for note in suite.notes] == [
        "1 pairs of the hard file are repeated",
        "1 of 3 reviewers have no known papers: they are judged but not ranked",
        "1 queries of the soft file are not in the hard file: nothing is ranked for them",
    ]
    assert suite.data["queries"] == 2 and suite.data["reviewers"] == 3 and texts.lacking == "metadata.jsonl"


def test_texts_come_from_a_file_of_papers_and_a_missing_file_is_named(folder):
    write_files(folder, {"papers_metadata.jsonl": [{"doc_id": "p1", "title": "T", "abstract": "A."}]})
    suite = read_suite(folder)
    texts = suite.tasks[0].texts
    assert not texts.lacking and texts.paper_texts()[texts.rows(["p1"])[0]] == "T[SEP]A."
    assert "papers_metadata.jsonl" in suite.data["files"]
    (folder / "test_soft_qrel.jsonl").unlink()
    suite = read_suite(folder)
    assert [task.name for task in suite.tasks] == ["hard"]
    assert suite.not_evaluated == {"soft": f"soft needs test_soft_qrel.jsonl, which is not in {folder}"}


def test_fixture(shared):
    hard, soft = read_suite(shared / "fixtures/scirepeval/reviewers").tasks
    assert len(hard.pools) == 20 and len(hard.pools.candidates) == 324 and hard.pools.grades.sum() == 48
    assert len(soft.pools.candidates) == 329 and soft.pools.grades.sum() == 144
    assert (~hard.pools.scored).sum() == 4 and (~soft.pools.scored).sum() == 9  # five pairs are in the soft file alone
