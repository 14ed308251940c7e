"""Reviewer matching equals a slow loop over persons, and keeps authors and conflicts away."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.core.errors import EmptyResultError, InputError
from citeweave.search import reviewers
from citeweave.search.options import MatchOptions
from citeweave.search.reviewers import People, ReviewerScore, match_reviewers, read_conflicts, read_people
from citeweave.vectors.vectors import Vectors, new_vectors

from ..conftest import refused


def vectors(folder: Path, ids: list[str], matrix: np.ndarray, model: str = "demo") -> Vectors:
    with new_vectors(folder, model=model, revision=model, dtype="float16") as writer:
        writer.append(ids, matrix)
        return writer.finish()


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Vectors:
    matrix = np.random.default_rng(0).normal(size=(40, 6))
    return vectors(tmp_path_factory.mktemp("papers") / "v", [f"p{at}" for at in range(40)], matrix)


@pytest.fixture(scope="module")
def submissions(tmp_path_factory: pytest.TempPathFactory) -> Vectors:
    matrix = np.random.default_rng(1).normal(size=(11, 6))
    return vectors(tmp_path_factory.mktemp("submissions") / "v", ["p3", *(f"s{at}" for at in range(10))], matrix)


def slowly(submissions: Vectors, papers: Vectors, papers_of: dict[str, list[str]], rule: str) -> list[ReviewerScore]:
    found = []
    for row, id in enumerate(submissions.ids):
        fits = []
        for person, own in papers_of.items():
            if id in own or not (known := [paper for paper in set(own) if papers.rows([paper])[0] >= 0]):
                continue
            one, others = np.float64(submissions.matrix[row]), np.float64(papers.take(known))
            cosines = np.sort(others @ one / np.linalg.norm(others, axis=1) / np.linalg.norm(one))[::-1]
            score = {"top3": cosines[:3].mean(), "max": cosines[0], "mean": cosines.mean()}[rule]
            fits.append(ReviewerScore(id, person, round(float(score), 6)))
        found += sorted(fits, key=lambda fit: (-fit.score, fit.reviewer))
    return found


PAPERS = st.lists(st.integers(0, 45).map(lambda at: f"p{at}"), max_size=9)
RULES = st.sampled_from(["top3", "max", "mean"])


@settings(max_examples=25)
@given(st.dictionaries(st.sampled_from("abcdefg"), PAPERS, min_size=1), RULES, st.integers(1, 12))
def test_scores_are_those_of_a_slow_loop(papers, submissions, papers_of, rule, block):
    wanted = slowly(submissions, papers, papers_of, rule)
    if not wanted:
        return
    people = People.find(papers_of, papers)
    for sizes in ((256, 16_384), (block, block)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reviewers, "_SUBMISSIONS", sizes[0])
            patch.setattr(reviewers, "_MENTIONS", sizes[1])
            found = list(match_reviewers(submissions, papers, people, MatchOptions(rule)))
        assert [fit[:2] for fit in found] == [fit[:2] for fit in wanted]
        np.testing.assert_allclose([fit.score for fit in found], [fit.score for fit in wanted], atol=2e-6)


def test_authors_and_conflicts_are_kept_away(papers, submissions):
    people = People.find({"ann": ["p3", "p4"], "bo": ["p5"], "cy": ["p6", "p6", "no"], "di": ["no"]}, papers)
    assert list(people.names) == ["ann", "bo", "cy"] and people.left_out == 1 and people.unknown == 2
    found = list(match_reviewers(submissions, papers, people, conflicts={("s0", "bo"), ("s0", "nobody")}))
    pairs = {fit[:2] for fit in found}
    # ann wrote p3, which is a submission too
    assert ("p3", "ann") not in pairs and ("s0", "bo") not in pairs and len(pairs) == 11 * 3 - 2
    one = list(match_reviewers(submissions, papers, people, MatchOptions(best=1)))
    assert [fit.submission for fit in one] == list(submissions.ids)
    every = list(match_reviewers(submissions, papers, people))
    assert set(one) <= set(every)
    assert list(People.find({"ann": ["p3", "p4"], "bo": ["p5"]}, papers, min_papers=2).names) == ["ann"]


def test_bad_options_and_vectors_of_another_model_are_refused(papers, tmp_path):
    other = vectors(tmp_path / "v", ["a"], np.ones((1, 6)), model="other")
    for action, said in (
        (lambda: People.find({"ann": ["p1"]}, papers, min_papers=2), "none of 1 people has 2 papers"),
        (lambda: People.find({"ann": ["p1"]}, papers, min_papers=0), "--min-papers is 0"),
        (lambda: MatchOptions("top4"), "rule is 'top4'"),
        (
            lambda: list(match_reviewers(other, papers, People.find({"ann": ["p1"]}, papers))),
            "embed both with one model",
        ),
    ):
        refused(said, action)


def test_files_are_read_and_written(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"person": "ann", "papers": ["a"]}\n\n{"person": "ann", "papers": ["b"]}\n')
    assert read_people(tmp_path / "p.jsonl") == {"ann": ["a", "b"]}
    (tmp_path / "p.csv").write_text("\ufeffPerson,Papers\r\nann,a; b\r\nbo,\r\nann,c\r\n")
    assert read_people(tmp_path / "p.csv") == {"ann": ["a", "b", "c"], "bo": []}
    (tmp_path / "c.csv").write_text("submission,reviewer\ns,ann\n,x\n")
    assert read_conflicts(tmp_path / "c.csv") == {("s", "ann")}
    assert reviewers.write_scores(tmp_path / "out.csv", [ReviewerScore("=s", "an,n", -0.5)]) == 1
    rows = [["submission", "reviewer", "score"], ["'=s", "an,n", "-0.500000"]]
    assert list(csv.reader((tmp_path / "out.csv").open())) == rows
    with pytest.raises(EmptyResultError):
        reviewers.write_scores(tmp_path / "none.csv", [])
    assert not list(tmp_path.glob("none*"))


BAD_FILES = [
    ("a.jsonl", '{"person": "ann"}\n', "line 1 is not such as"),
    ("a.jsonl", '{"person": "", "papers": []}\n', "line 1 is not such as"),
    ("a.jsonl", "[" * 100_000, "line 1 is not such as"),
    ("a.jsonl", "", "names no person"),
    ("a.csv", "who,paper\nann,a\n", "no column 'person'"),
    ("a.csv", "", "no column 'person'"),
    ("a.csv", 'person,paper\nann,"a\nbo,b\n', "is not CSV"),
]


@pytest.mark.parametrize(("name", "text", "said"), BAD_FILES)
def test_files_that_are_something_else(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    refused(said, read_people, tmp_path / name, error=InputError)
