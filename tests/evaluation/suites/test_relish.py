"""RELISH in ASPIRE's form: the split's queries, what is relevant, and files that do not fit together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave.core.errors import EmptyResultError, InputError
from citeweave.evaluation.suites.benchmark_labels import GradedQuery, add_unknown_papers, clean_queries, make_pools
from citeweave.evaluation.suites.relish import read_suite
from citeweave.evaluation.tasks import RankingTask, Suite, TaskTexts

POOLS = {
    "q1": {"cands": ["c", "b", "a"], "relevance_adju": [2, 1, 0]},
    "q2": {"cands": ["a", "b"], "relevance_adju": [1, 0]},
    "q3": {"cands": ["d", "a"], "relevance_adju": [2, 0]},
    "q4": {"cands": ["a"], "relevance_adju": [2]},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with (tmp_path / "abstracts-relish.jsonl").open("w") as file:
        for paper in ["a", "b", "c", "d", "q1", "q2", "q3", "q4", "unused"]:
            file.write(json.dumps({"paper_id": paper, "title": f"On {paper}", "abstract": ["One. ", "Two."]}) + "\n")
    write(tmp_path, "test-pid2anns-relish.json", POOLS)
    write(tmp_path, "relish-evaluation_splits.json", {"dev": ["q3"], "test": ["q1", "q2"]})
    return tmp_path


def write(folder: Path, name: str, value: Any) -> None:
    (folder / name).write_text(json.dumps(value))


def task_of(suite: Suite) -> RankingTask:
    (task,) = suite.tasks
    assert isinstance(task, RankingTask)
    return task


def test_the_test_split(folder: Path) -> None:
    suite = read_suite(folder)
    task = task_of(suite)
    assert (suite.name, task.name, suite.headline) == ("relish", "relish", ("relish.map", "relish.ndcg%20"))
    assert task.pools.names == ["q1", "q2"]
    assert [task.texts.ids[row] for row in task.pools.candidates] == ["a", "b", "c", "a", "b"]
    assert task.pools.grades.tolist() == [0, 1, 2, 1, 0]
    assert task.pools.offsets.tolist() == [0, 3, 5]
    assert (task.rule.relevant, task.rule.family, task.rule.distance) == (2, "csfcube", "l2")
    assert not task.folds
    assert suite.data["queries"] == 2 and suite.data["pairs"] == 5 and suite.data["split"] == "test"
    assert set(suite.data["files"]) == {
        "abstracts-relish.jsonl",
        "relish-evaluation_splits.json",
        "test-pid2anns-relish.json",
    }


def test_only_papers_that_the_split_needs_are_held(folder: Path) -> None:
    texts = task_of(read_suite(folder)).texts
    assert sorted(texts.ids) == ["a", "b", "c", "q1", "q2"]
    assert texts.paper_texts()[0] == "On a[SEP]One. Two."
    assert list(texts.sentences_of(0)) == ["One. ", "Two."]


def test_what_is_odd_is_counted(folder: Path) -> None:
    notes = read_suite(folder).notes
    assert "queries without relevant papers, which count as 0: 1" in notes
    assert "judged queries left out, since the splits file does not name them: 1" in notes
    assert len(notes) == 2


def test_both_forms_of_the_splits_file(folder: Path) -> None:
    lists = read_suite(folder, split="dev")
    write(folder, "relish-evaluation_splits.json", {"q1": "test", "q2": "test", "q3": "dev"})
    names = read_suite(folder, split="dev")
    assert task_of(lists).pools.names == task_of(names).pools.names == ["q3"]
    write(folder, "relish-evaluation_splits.json", {"q1": "test", "q2": "training"})
    with pytest.raises(InputError, match="the split of query q2 is 'training'; it must be dev or test"):
        read_suite(folder)


def test_queries_of_the_splits_file_that_nobody_judged_are_counted(folder: Path) -> None:
    write(folder, "relish-evaluation_splits.json", {"test": ["q1", "q8", "q9"], "dev": ["q2", "q3", "q4"]})
    assert "test queries of the splits file without candidates: 2" in read_suite(folder).notes
    write(folder, "relish-evaluation_splits.json", {"test": ["q8"], "dev": []})
    with pytest.raises(EmptyResultError, match="no test query of relish has candidates"):
        read_suite(folder)


def test_numbers_as_ids_and_abstracts_in_one_piece(folder: Path) -> None:
    with (folder / "abstracts-relish.jsonl").open("w") as file:
        for paper in [1, 2]:
            file.write(json.dumps({"paper_id": paper, "title": None, "abstract": "Whole. In one."}) + "\n")
    write(folder, "test-pid2anns-relish.json", {"1": {"cands": [2], "relevance_adju": [2.0]}})
    write(folder, "relish-evaluation_splits.json", {"test": [1]})
    task = task_of(read_suite(folder))
    assert list(task.texts.ids) == ["1", "2"] and task.pools.grades.tolist() == [2]
    assert list(task.texts.sentences_of(0)) == ["Whole.", "In one."]


@pytest.mark.parametrize("name", ["test-pid2anns-relish.json", "relish-evaluation_splits.json"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(InputError, match=rf"{name} is missing: it holds"):
        read_suite(folder)


def test_without_abstracts_the_pools_are_still_there(folder: Path) -> None:
    (folder / "abstracts-relish.jsonl").unlink()
    task = task_of(read_suite(folder))
    assert task.texts.lacking.endswith("abstracts-relish.jsonl")
    assert [task.texts.ids[row] for row in task.pools.candidates] == ["a", "b", "c", "a", "b"]


def test_another_benchmark_is_recognized(tmp_path: Path) -> None:
    (tmp_path / "test-pid2anns-treccovid.json").write_text("{}")
    with pytest.raises(InputError, match="belongs to treccovid_rf; use --suite treccovid_rf"):
        read_suite(tmp_path)


IDS = st.sampled_from("abcdef")


@given(st.dictionaries(IDS, st.lists(st.tuples(IDS, st.integers(0, 3)), max_size=8), min_size=1))
def test_cleaning_keeps_the_last_grade_of_every_other_paper(judged: dict[str, list[tuple[str, int]]]) -> None:
    queries = [
        GradedQuery(name, name, [paper for paper, _ in pool], [grade for _, grade in pool])
        for name, pool in judged.items()
    ]
    expected = {
        name: {paper: grade for paper, grade in sorted(dict(pool).items()) if paper != name}
        for name, pool in judged.items()
    }
    expected = {name: pool for name, pool in expected.items() if pool}
    asked = clean_queries(queries, relevant=2)
    found = {query.name: dict(zip(query.candidates, query.grades, strict=True)) for query in asked.queries}
    assert found == expected
    assert [list(pool) for pool in found.values()] == [sorted(pool) for pool in found.values()]
    lost = sum(len(pool) for pool in judged.values()) - sum(len(pool) for pool in found.values())
    without = asked.counts["queries left out, since they have no candidates"]
    assert sum(asked.counts.values()) == lost + without + sum(max(pool.values()) < 2 for pool in expected.values())
    if asked.queries:
        texts, unknown = add_unknown_papers(TaskTexts(["a", "x"], ["A", "X"], ["", ""]), asked.queries)
        pools = make_pools(texts, asked.queries)
        assert len(texts) == 2 + unknown and texts.without_text == unknown
        assert [texts.ids[row] for row in pools.candidates] == [paper for pool in expected.values() for paper in pool]
