"""CSFCube is read whole from either layout: counts, folds, sentences of the facet, and what is said of bad folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from citeweave.core.errors import InputError, UserError
from citeweave.evaluation.suites.csfcube import FACETS, read_suite
from citeweave.evaluation.tasks import RankingTask, Suite

LABELS = ["background_label", "objective_label", "method_label", "result_label", "other_label"]


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def folds(facet: str) -> dict[str, list[str]]:
    first, second = [f"q1_{facet}"], [f"q2_{facet}", f"q3_{facet}"]
    return {"fold1_dev": first, "fold2_dev": second, "fold1_test": second, "fold2_test": first}


def grades(facet: str) -> dict[str, dict[str, list[Any]]]:
    """q2 stands among its own candidates; q3 has nothing relevant; relevance_max must not be read."""
    return {
        "q1": {"cands": ["c", "b", "a"], "relevance_adju": [3, 2, 0], "relevance_max": [0, 0, 0]},
        "q2": {"cands": ["q2", "a"], "relevance_adju": [3, 2], "relevance_max": [0, 0]},
        "q3": {"cands": ["a", "b"], "relevance_adju": [1, 0], "relevance_max": [3, 3]},
    }


PAPERS = ["a", "b", "c", "q1", "q2", "q3"]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """The layout of the release."""
    folder = tmp_path / "release"
    folder.mkdir()
    with (folder / "abstracts-csfcube-preds.jsonl").open("w") as file:
        for paper in PAPERS:
            sentences = [f"{paper} says {number}." for number in range(5)]
            file.write(
                json.dumps({"paper_id": paper, "title": f"On {paper}", "abstract": sentences, "pred_labels": LABELS})
                + "\n"
            )
    for facet in FACETS:
        write_json(folder / f"test-pid2anns-csfcube-{facet}.json", grades(facet))
    write_json(folder / "evaluation_splits.json", {facet: folds(facet) for facet in FACETS})
    return folder


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """The same as JSON lines."""
    folder = tmp_path / "flat"
    folder.mkdir()
    with (folder / "papers.jsonl").open("w") as file:
        for paper in PAPERS:
            sentences = [f"{paper} says {number}." for number in range(5)]
            record = {
                "id": paper,
                "title": f"On {paper}",
                "abstract": " ".join(sentences),
                "abstract_sentences": sentences,
                "sentence_facets_predicted": [label.removesuffix("_label") for label in LABELS],
            }
            file.write(json.dumps(record) + "\n")
    with (folder / "judgements.jsonl").open("w") as file:
        for facet in FACETS:
            for query, pool in grades(facet).items():
                record = {"query": query, "facet": facet, "candidates": pool["cands"]}
                file.write(json.dumps({**record, "relevance": pool["relevance_adju"]}) + "\n")
    write_json(folder / "evaluation_splits.json", {facet: folds(facet) for facet in FACETS})
    return folder


def task_of(suite: Suite, name: str) -> RankingTask:
    (task,) = [task for task in suite.tasks if task.name == name]
    assert isinstance(task, RankingTask)
    return task


def pools_of(task: RankingTask) -> dict[str, dict[str, int]]:
    """Back to the form of the files, in the order of the pools."""
    pools, ids = task.pools, task.texts.ids
    return {
        name: {
            ids[pools.candidates[pair]]: int(pools.grades[pair])
            for pair in range(pools.offsets[number], pools.offsets[number + 1])
        }
        for number, name in enumerate(pools.names)
    }


def test_tasks_are_the_facets_and_all(release: Path) -> None:
    suite = read_suite(release)
    assert [task.name for task in suite.tasks] == [*FACETS, "all"]
    method = task_of(suite, "method")
    assert method.folds == [["q2_method", "q3_method"], ["q1_method"]]
    assert pools_of(method) == {
        "q2_method": {"a": 2},
        "q3_method": {"a": 1, "b": 0},
        "q1_method": {"a": 0, "b": 2, "c": 3},
    }
    assert [method.texts.ids[row] for row in method.pools.queries] == ["q2", "q3", "q1"]
    whole = task_of(suite, "all")
    assert [len(fold) for fold in whole.folds] == [6, 3]
    assert whole.folds[1] == ["q1_background", "q1_method", "q1_result"]
    assert whole.pools.groups is not None and sorted(set(whole.pools.groups)) == sorted(FACETS)
    assert len(whole.pools.candidates) == suite.data["pairs"] == 18
    assert (method.rule.family, method.rule.relevant, method.called["av_precision"]) == ("csfcube", 2, "map")
    assert suite.headline == ("all.map", "all.ndcg%20")


def test_candidates_come_in_the_order_of_ids(release: Path) -> None:
    """The files may list what is relevant first; equal scores must not profit from it."""
    task = task_of(read_suite(release), "background")
    assert [list(pool) for pool in pools_of(task).values()] == [["a"], ["a", "b"], ["a", "b", "c"]]


def test_only_sentences_of_the_facet_count_and_objective_is_background(release: Path) -> None:
    suite = read_suite(release)
    rows = {}
    for facet in FACETS:
        sentences = task_of(suite, facet).pools.sentences
        assert sentences is not None and sentences[0] is not None
        rows[facet] = sentences[0].tolist()
    assert rows == {"background": [0, 1], "method": [2], "result": [3]}


def test_what_was_left_out_is_noted(release: Path) -> None:
    notes = read_suite(release).notes
    assert "candidates left out, since they are the query itself: 3" in notes
    assert "queries without relevant papers, which count as 0: 3" in notes
    assert len(notes) == 2


def test_dev_is_the_first_fold_alone(release: Path) -> None:
    suite = read_suite(release, split="dev")
    assert task_of(suite, "result").folds == [["q1_result"]]
    assert list(pools_of(task_of(suite, "all"))) == ["q1_background", "q1_method", "q1_result"]
    assert not suite.notes, "what the other fold holds is not of dev"
    with pytest.raises(UserError, match="--split is 'train'; it must be one of dev, test"):
        read_suite(release, split="train")


def test_both_layouts_say_the_same(release: Path, flat: Path) -> None:
    one, other = read_suite(release), read_suite(flat)
    assert one.notes == other.notes
    for facet in (*FACETS, "all"):
        left, right = task_of(one, facet), task_of(other, facet)
        assert pools_of(left) == pools_of(right) and left.folds == right.folds
        assert left.texts.hash == right.texts.hash
        assert str(left.pools.sentences) == str(right.pools.sentences)


def test_without_abstracts_only_vectors_can_be_judged(release: Path) -> None:
    (release / "abstracts-csfcube-preds.jsonl").unlink()
    suite = read_suite(release)
    task = task_of(suite, "all")
    assert len(task.pools.candidates) == 18 and task.pools.sentences is None
    with pytest.raises(InputError, match="abstracts-csfcube-preds.jsonl does not exist"):
        task.texts.paper_texts()


def test_a_missing_facet_is_named(release: Path) -> None:
    (release / "test-pid2anns-csfcube-method.json").unlink()
    suite = read_suite(release)
    assert [task.name for task in suite.tasks] == ["background", "result"]
    assert suite.not_evaluated["method"].endswith("test-pid2anns-csfcube-method.json is missing")
    assert "test-pid2anns-csfcube-method.json is missing" in suite.not_evaluated["all"]


def test_papers_that_only_the_pools_name_have_no_text(release: Path) -> None:
    path = release / "abstracts-csfcube-preds.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    suite = read_suite(release)
    assert "papers without text, which only the pools name: 1" in suite.notes
    assert task_of(suite, "all").texts.without_text == 1


def spoil(name: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / name
        path.write_text(change(path.read_text()))

    return apply


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


METHOD, SPLITS, ABSTRACTS = (
    "test-pid2anns-csfcube-method.json",
    "evaluation_splits.json",
    "abstracts-csfcube-preds.jsonl",
)
BAD = {
    "no folds": (remove(SPLITS), r"evaluation_splits.json is missing: it holds the folds"),
    "cut off": (spoil(METHOD, lambda text: text[:60]), rf"{METHOD} ends in the middle of its JSON at line 1"),
    "cut off line": (spoil(ABSTRACTS, lambda text: text[:-20]), rf"{ABSTRACTS} line 6 is not valid JSON"),
    "one grade less": (
        spoil(METHOD, lambda text: text.replace("[3, 2, 0]", "[3, 2]")),
        r"query q1 has 3 candidates and 2 grades",
    ),
    "no number": (spoil(METHOD, lambda text: text.replace("[3, 2, 0]", '[3, 2, "x"]')), "a grade is 'x'"),
    "another file": (spoil(METHOD, lambda text: '{"q1": 3}'), "query q1 has no lists 'cands' and 'relevance_adju'"),
    "no such fold": (spoil(SPLITS, lambda text: text.replace("fold2_test", "fold3")), "background.fold2_test"),
    "a fold of others": (
        spoil(SPLITS, lambda text: text.replace("q3_method", "q9_method")),
        "not judged, such as 'q9_me",
    ),
    "labels": (
        spoil(ABSTRACTS, lambda text: text.replace(', "other_label"', "", 1)),
        "paper a has 4 labels for 5 sent",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_damage_is_named(release: Path, case: str) -> None:
    apply, message = BAD[case]
    apply(release)
    with pytest.raises(InputError, match=message):
        read_suite(release)


def test_a_folder_of_another_suite_is_recognized(tmp_path: Path) -> None:
    (tmp_path / "mdcr_test.json").write_text("{}")
    with pytest.raises(
        InputError, match="not a folder of csfcube: its mdcr_test.json belongs to mdcr; use --suite mdcr"
    ):
        read_suite(tmp_path)
    (tmp_path / "mdcr_test.json").unlink()
    with pytest.raises(InputError, match="holds no files of csfcube: it needs test-pid2anns-csfcube-background.json"):
        read_suite(tmp_path)
    with pytest.raises(InputError, match="is not a folder"):
        read_suite(tmp_path / "nowhere")


def test_the_real_data(shared: Path) -> None:
    folder = shared / "data" / "csfcube"
    if not folder.is_dir():
        pytest.skip(f"no CSFCube at {folder}")
    suite = read_suite(folder)
    sizes = {task.name: len(task_of(suite, task.name).pools) for task in suite.tasks}
    assert sizes == {"background": 16, "method": 17, "result": 17, "all": 50}
    whole = task_of(suite, "all")
    assert len(whole.pools.candidates) == 6_244 - 2
    assert [len(fold) for fold in whole.folds] == [26, 24]
    assert suite.notes == ("candidates left out, since they are the query itself: 2",)
    assert len(whole.texts) == 4_205 and whole.texts.without_text == 0
    assert whole.pools.sentences is not None and all(rows is not None for rows in whole.pools.sentences)
    assert len({int(row) for row in whole.pools.queries}) == 34


def test_the_fixture(shared: Path) -> None:
    suite = read_suite(shared / "fixtures" / "csfcube")
    expected = json.loads((shared / "fixtures" / "csfcube" / "expected.json").read_bytes())
    assert set(task_of(suite, "all").pools.names) == set(expected["per_query"])
