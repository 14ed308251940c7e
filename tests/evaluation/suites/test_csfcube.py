"""CSFCube is read whole from either layout: counts, folds, sentences of the facet, and what is noted."""

import json
from pathlib import Path
from typing import Any

import pytest

from citeweave.core.errors import InputError
from citeweave.evaluation.suites.csfcube import FACETS, read_suite

from ..conftest import folds, grades_of, refused, task_of, write_files

LABELS = ["background_label", "objective_label", "method_label", "result_label", "other_label"]
PAPERS = ["a", "b", "c", "p00", "p01", "p02"]
SENTENCES = {paper: [f"{paper} says {number}." for number in range(5)] for paper in PAPERS}
SPLITS = {"evaluation_splits.json": {facet: folds(facet) for facet in FACETS}}
# p01 stands among its own candidates; p02 has nothing relevant; relevance_max must not be read
POOLS: dict[str, dict[str, list[Any]]] = {
    "p00": {"cands": ["c", "b", "a"], "relevance_adju": [3, 2, 0], "relevance_max": [0, 0, 0]},
    "p01": {"cands": ["p01", "a"], "relevance_adju": [3, 2], "relevance_max": [0, 0]},
    "p02": {"cands": ["a", "b"], "relevance_adju": [1, 0], "relevance_max": [3, 3]},
}


@pytest.fixture
def release(tmp_path) -> Path:
    """The layout of the release."""
    usual, texts = {"pred_labels": LABELS}, SENTENCES.items()
    abstracts = [{"paper_id": paper, "title": f"On {paper}", "abstract": own, **usual} for paper, own in texts]
    pools = {f"test-pid2anns-csfcube-{facet}.json": POOLS for facet in FACETS}
    return write_files(tmp_path / "release", {"abstracts-csfcube-preds.jsonl": abstracts, **SPLITS, **pools})


@pytest.fixture
def flat(tmp_path) -> Path:
    """The same as JSON lines."""
    labels = {"sentence_facets_predicted": [label.removesuffix("_label") for label in LABELS]}
    papers = [
        {"id": paper, "title": f"On {paper}", "abstract": " ".join(own), "abstract_sentences": own, **labels}
        for paper, own in SENTENCES.items()
    ]
    judgments = [
        {"query": query, "facet": facet, "candidates": pool["cands"], "relevance": pool["relevance_adju"]}
        for facet in FACETS
        for query, pool in POOLS.items()
    ]
    return write_files(tmp_path / "flat", {"papers.jsonl": papers, "judgements.jsonl": judgments, **SPLITS})


def test_tasks_are_the_facets_and_all(release):
    suite = read_suite(release)
    assert [task.name for task in suite.tasks] == [*FACETS, "all"]
    method, whole = task_of(suite, "method"), task_of(suite, "all")
    assert method.folds == [["p01_method", "p02_method"], ["p00_method"]]
    found = grades_of(method)
    assert found == {"p01_method": {"a": 2}, "p02_method": {"a": 1, "b": 0}, "p00_method": {"a": 0, "b": 2, "c": 3}}
    # the files may list what is relevant first; equal scores must not profit from it
    assert [list(pool) for pool in found.values()] == [["a"], ["a", "b"], ["a", "b", "c"]]
    assert [method.texts.ids[row] for row in method.pools.queries] == ["p01", "p02", "p00"]
    assert [len(fold) for fold in whole.folds] == [6, 3]
    assert whole.folds[1] == ["p00_background", "p00_method", "p00_result"]
    assert whole.pools.groups is not None and sorted(set(whole.pools.groups)) == sorted(FACETS)
    assert len(whole.pools.candidates) == suite.data["pairs"] == 18
    assert (method.rule.family, method.rule.relevant, method.called["av_precision"]) == ("csfcube", 2, "map")
    assert suite.headline == ("all.map", "all.ndcg%20")
    # only sentences of the facet count, and objective is background
    rows = {facet: task_of(suite, facet).pools.sentences[0].tolist() for facet in FACETS}
    assert rows == {"background": [0, 1], "method": [2], "result": [3]}
    assert sorted(suite.notes) == [
        "candidates left out, since they are the query itself: 3",
        "queries without relevant papers, which count as 0: 3",
    ]


def test_dev_is_the_first_fold_alone(release):
    suite = read_suite(release, split="dev")
    assert task_of(suite, "result").folds == [["p00_result"]]
    assert list(grades_of(task_of(suite, "all"))) == ["p00_background", "p00_method", "p00_result"]
    assert not suite.notes, "what the other fold holds is not of dev"
    refused("--split is 'train'; it must be one of dev, test", read_suite, release, split="train")


def test_both_layouts_say_the_same(release, flat):
    one, other = read_suite(release), read_suite(flat)
    assert one.notes == other.notes
    for facet in (*FACETS, "all"):
        left, right = task_of(one, facet), task_of(other, facet)
        assert grades_of(left) == grades_of(right) and left.folds == right.folds
        assert left.texts.hash == right.texts.hash
        assert str(left.pools.sentences) == str(right.pools.sentences)


def test_what_is_missing_is_named(release):
    abstracts = release / "abstracts-csfcube-preds.jsonl"
    abstracts.write_text("".join(abstracts.read_text().splitlines(keepends=True)[1:]))
    suite = read_suite(release)
    assert "papers without text, which only the pools name: 1" in suite.notes
    assert task_of(suite, "all").texts.without_text == 1
    abstracts.unlink()  # only vectors can be evaluated now
    task = task_of(read_suite(release), "all")
    assert len(task.pools.candidates) == 18 and task.pools.sentences is None
    refused("abstracts-csfcube-preds.jsonl does not exist", task.texts.paper_texts, error=InputError)
    (release / "test-pid2anns-csfcube-method.json").unlink()
    suite = read_suite(release)
    assert [task.name for task in suite.tasks] == ["background", "result"]
    assert suite.not_evaluated["method"].endswith("test-pid2anns-csfcube-method.json is missing")
    assert "test-pid2anns-csfcube-method.json is missing" in suite.not_evaluated["all"]


def test_real_data(shared):
    fixture = shared / "fixtures/csfcube"
    expected = json.loads((fixture / "expected.json").read_bytes())
    assert set(task_of(read_suite(fixture), "all").pools.names) == set(expected["per_query"])
    if not (shared / "data/csfcube").is_dir():
        pytest.skip(f"no CSFCube at {shared / 'data'}")
    suite = read_suite(shared / "data/csfcube")
    sizes = {task.name: len(task.pools) for task in suite.tasks}
    assert sizes == {"background": 16, "method": 17, "result": 17, "all": 50}
    whole = task_of(suite, "all")
    assert len(whole.pools.candidates) == 6_244 - 2
    assert [len(fold) for fold in whole.folds] == [26, 24]
    assert suite.notes == ("candidates left out, since they are the query itself: 2",)
    assert len(whole.texts) == 4_205 and whole.texts.without_text == 0
    assert whole.pools.sentences is not None and all(rows is not None for rows in whole.pools.sentences)
    assert len({int(row) for row in whole.pools.queries}) == 34
