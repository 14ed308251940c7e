"""The verb: what a report holds, that nothing is evaluated twice, and what is said where something cannot be evaluated."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.core.errors import ArtifactError, EmptyResultError, InputError, UserError
from citeweave.core.publish import work_folder
from citeweave.evaluation.bootstrap import derive_metric
from citeweave.evaluation.encoder_systems import Bm25System
from citeweave.evaluation.evaluate import EvaluationOptions, evaluate
from citeweave.evaluation.open_system import open_system
from citeweave.evaluation.precomputed import PrecomputedScores, VectorSystem
from citeweave.evaluation.report import Report, file_names
from citeweave.evaluation.suites.registry import SUITES, read_suite
from citeweave.evaluation.systems import PaperVectors
from citeweave.evaluation.tasks import Pools, Suite, TaskTexts

Vectors = dict[str, list[float]]
ASKED = ("scidocs", "scirepeval", "mdcr", "csfcube", "relish", "treccovid_rf", "reviewers")
"""Suites that vectors of papers can answer; beir asks with questions."""


class Counting(VectorSystem):
    """Vectors that count how often a task asks, and stop everything at the n-th time."""

    def __init__(self, vectors: Vectors, *, stop_at: int = 0, name: str = "toy", revision: str = "1") -> None:
        super().__init__(list(vectors), np.array(list(vectors.values())), name=name, revision=revision)
        self.asked, self._stop_at, self._inside = 0, stop_at, False

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        self._count()
        return super().vectors(texts)

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> Any:
        self._count()
        self._inside = True
        try:
            return super().scores(texts, pools, distance)
        finally:
            self._inside = False

    def _count(self) -> None:
        if self._inside:
            return
        self.asked += 1
        if self.asked == self._stop_at:
            raise KeyboardInterrupt


def strict(path: Path) -> dict[str, Any]:
    """JSON as the standard has it, without Python's NaN."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{path} holds {word}")

    return dict(json.loads(path.read_text(), parse_constant=refuse))


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def scidocs(folders: dict[str, Path]) -> Suite:
    return read_suite("scidocs", folders["scidocs"])


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("missing", ["wrong", "peers"])
def test_a_report_holds_everything_and_its_metrics_follow_from_its_rows(
    folders: dict[str, Path], vectors: Vectors, tmp_path: Path, name: str, missing: str
) -> None:
    system = Counting(vectors)
    report = evaluate(
        system, read_suite(name, folders[name]), tmp_path / "r", options=EvaluationOptions(missing=missing)
    )
    value = strict(tmp_path / "r/report.json")
    for part in ("suite", "metrics", "intervals", "per_query", "coverage", "model", "data", "options", "notes"):
        assert part in value
    assert {"not_evaluated", "headline", "versions", "averages", "tasks"} <= value.keys() and "map" not in value
    assert value["model"]["name"] == "toy" and value["model"]["dimension"] == 6
    assert value["suite"] == name and value["options"]["missing"] == missing
    assert value["data"]["files"] and value["versions"]["citeweave"]
    derived = {
        f"{task}.{metric}": 100 * derive_metric(way, value["per_query"][task], metric)
        for task, about in value["tasks"].items()
        for metric, way in about["how"].items()
    }
    assert derived == {key: number for key, number in value["metrics"].items() if key not in value["averages"]}
    for metric, (low, high) in value["intervals"].items():
        assert low - 1e-9 <= value["metrics"][metric] <= high + 1e-9
    assert report.metrics == Report.open(tmp_path / "r").metrics == value["metrics"]
    assert (tmp_path / "r/report.html").read_text().count("<html") == 1
    assert "toy on" in (tmp_path / "r/report.md").read_text()
    assert not work_folder(tmp_path / "r").exists()


def test_what_is_finished_is_not_judged_again(scidocs: Suite, vectors: Vectors, tmp_path: Path) -> None:
    first, second = Counting(vectors), Counting(vectors)
    made = evaluate(first, scidocs, tmp_path / "r")
    assert first.asked >= 3
    again = evaluate(second, scidocs, tmp_path / "r")
    assert second.asked == 0
    assert again.value == made.value


def test_more_tasks_cost_only_those_and_no_task_is_lost(scidocs: Suite, vectors: Vectors, tmp_path: Path) -> None:
    alone = Counting(vectors)
    evaluate(alone, scidocs, tmp_path / "alone", tasks=["co-cite"])
    evaluate(Counting(vectors), scidocs, tmp_path / "r", tasks=["cite"])
    more = Counting(vectors)
    report = evaluate(more, scidocs, tmp_path / "r", tasks=["co-cite"])
    assert more.asked == alone.asked
    assert list(report.value["tasks"]) == ["cite", "co-cite"]
    whole = evaluate(Counting(vectors), scidocs, tmp_path / "whole")
    assert evaluate(Counting(vectors), scidocs, tmp_path / "r").value == whole.value
    fewer = Counting(vectors)
    assert evaluate(fewer, scidocs, tmp_path / "r", tasks=["cite"]).value == whole.value and fewer.asked == 0
    assert files_of(tmp_path / "r/runs") == files_of(tmp_path / "whole/runs")
    assert set(files_of(tmp_path / "r/runs")) == {"cite.run", "co-cite.run"}


def test_another_model_option_or_data_is_refused(
    scidocs: Suite, folders: dict[str, Path], vectors: Vectors, tmp_path: Path
) -> None:
    evaluate(Counting(vectors), scidocs, tmp_path / "r")
    data = shutil.copytree(folders["scidocs"], tmp_path / "data")
    (data / "cite/test.qrel").write_text("p00 0 p05 1\np00 0 p06 0\n")
    other: list[Callable[..., Report]] = [
        lambda **more: evaluate(Counting(vectors, revision="2"), scidocs, tmp_path / "r", **more),
        lambda **more: evaluate(
            Counting(vectors), scidocs, tmp_path / "r", options=EvaluationOptions(missing="peers"), **more
        ),
        lambda **more: evaluate(Counting(vectors), read_suite("scidocs", data), tmp_path / "r", **more),
    ]
    for ask in other:
        with pytest.raises(UserError, match="made from other inputs or options; choose another -o or --overwrite"):
            ask()
    assert Report.open(tmp_path / "r").value["options"]["missing"] == "wrong"
    assert other[1](overwrite=True).value["options"]["missing"] == "peers"
    with pytest.raises(UserError, match="--missing is 'pears'"):
        EvaluationOptions(missing="pears")


def test_a_folder_of_something_else_is_not_touched(scidocs: Suite, vectors: Vectors, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="is not an artifact of citeweave; choose another -o"):
        evaluate(Counting(vectors), scidocs, tmp_path / "mine", overwrite=True)
    assert files_of(tmp_path / "mine") == {"thesis.tex": b"years of work"}


@pytest.mark.parametrize("stop_at", [1, 2, 3, 4])
def test_an_interrupted_evaluation_goes_on_where_it_stopped(
    scidocs: Suite, vectors: Vectors, tmp_path: Path, stop_at: int
) -> None:
    whole = Counting(vectors)
    expected = evaluate(whole, scidocs, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        evaluate(Counting(vectors, stop_at=stop_at), scidocs, tmp_path / "r")
    kept = list(work_folder(tmp_path / "r").rglob("tasks/*/*.json"))
    resumed = Counting(vectors)
    assert evaluate(resumed, scidocs, tmp_path / "r").value == expected.value
    assert files_of(tmp_path / "r/runs") == files_of(tmp_path / "whole/runs")  # also of the tasks before
    assert (resumed.asked < whole.asked) == bool(kept) == (stop_at > 1)


def test_a_damaged_report_is_made_again(scidocs: Suite, vectors: Vectors, tmp_path: Path) -> None:
    made = evaluate(Counting(vectors), scidocs, tmp_path / "r")
    for text in ('{"suite": "sci', "[]", "{}"):
        (tmp_path / "r/report.json").write_text(text)
        with pytest.raises(ArtifactError, match="report.json is missing or damaged; evaluate again"):
            Report.open(tmp_path / "r")
        assert evaluate(Counting(vectors), scidocs, tmp_path / "r").value == made.value


@pytest.mark.parametrize("name", ["scidocs", "mdcr", "csfcube", "relish", "reviewers"])
def test_a_run_that_is_read_back_gives_the_same_numbers(
    folders: dict[str, Path], vectors: Vectors, tmp_path: Path, name: str
) -> None:
    vectors = {paper: vector for paper, vector in vectors.items() if paper != "p07"}  # a gap stays a gap
    suite = read_suite(name, folders[name])
    report = evaluate(Counting(vectors), suite, tmp_path / "r")
    for task, path in report.runs().items():
        again = evaluate(open_system(str(path)), suite, tmp_path / f"again {task}", tasks=[task])
        for query, row in report.value["per_query"][task].items():
            assert again.value["per_query"][task][query] == pytest.approx(row), (task, query)
    rows = [line.split() for path in report.runs().values() for line in path.read_text().splitlines()]
    assert {(row[1], row[5]) for row in rows} == {("Q0", "toy")} and "p07" not in {row[2] for row in rows}


def test_a_run_of_a_search_is_read_back_even_where_questions_have_ids_of_papers(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    data = shutil.copytree(folders["beir"], tmp_path / "data")
    for name in ("queries.jsonl", "qrels/test.tsv"):
        (data / name).write_text((data / name).read_text().replace("q1", "p05"))
    suite = read_suite("beir", data)
    report = evaluate(Bm25System(), suite, tmp_path / "r")
    run = tmp_path / "r/runs/search.run"
    assert run.read_text().splitlines()[0].split()[:4] == ["q0", "Q0", "p00", "1"]
    again = evaluate(open_system(str(run)), suite, tmp_path / "again")
    assert again.value["per_query"] == report.value["per_query"] and again.metrics["search.ndcg_cut_10"] == 100


def test_numbers_in_the_form_of_mteb(folders: dict[str, Path], tmp_path: Path) -> None:
    report = evaluate(Bm25System(), read_suite("beir", folders["beir"]), tmp_path / "r")
    found = strict(tmp_path / "r/mteb/search.json")
    (scores,) = found["scores"]["test"]
    assert found["task_name"] == "beir.search"
    assert scores["main_score"] == scores["ndcg_at_10"] == report.metrics["search.ndcg_cut_10"] / 100
    assert scores["recall_at_100"] == report.metrics["search.recall_100"] / 100
    assert scores["hf_subset"] == "default"


def test_names_of_files_do_not_collide() -> None:
    assert file_names(["a b", "a/b", "..", "a_b-2"]) == {"a b": "a_b", "a/b": "a_b-2", "..": "task", "a_b-2": "a_b-2-2"}


# --- what cannot be evaluated ---------------------------------------------------------------------------


def test_tasks_without_an_answer_are_told(folders: dict[str, Path], scidocs: Suite, tmp_path: Path) -> None:
    report = evaluate(Bm25System(), scidocs, tmp_path / "r")
    assert "bm25 has no vectors" in report.value["not_evaluated"]["mag"]
    assert "co-view/test.qrel" not in report.value["not_evaluated"]["mag"]
    assert "coview/test.qrel" in report.value["not_evaluated"]["co-view"]
    assert set(report.value["tasks"]) == {"cite", "co-cite"} and "average" not in report.metrics
    assert "bm25 has no vectors" in (tmp_path / "r/report.html").read_text()
    with pytest.raises(EmptyResultError, match="bm25 can do no task of scirepeval: bm25 has no vectors") as error:
        evaluate(Bm25System(), read_suite("scirepeval", folders["scirepeval"]), tmp_path / "none")
    assert str(error.value).count("no vectors") == 1
    assert not (tmp_path / "none").exists() and not work_folder(tmp_path / "none").exists()


def test_tasks_without_texts_are_told(folders: dict[str, Path], tmp_path: Path) -> None:
    data = shutil.copytree(folders["scidocs"], tmp_path / "data")
    (data / "paper_metadata_view_cite_read.json").unlink()
    with pytest.raises(EmptyResultError, match="paper_metadata_view_cite_read.json does not exist; add it"):
        evaluate(Bm25System(), read_suite("scidocs", data), tmp_path / "r")


def test_vectors_of_some_tasks_alone(scidocs: Suite, vectors: Vectors, tmp_path: Path) -> None:
    ranked = {paper: vectors[paper] for paper in list(vectors)[:12]}  # the test papers of mag have none
    report = evaluate(Counting(ranked), scidocs, tmp_path / "r")
    assert "12 training and 0 test papers have vectors" in report.value["not_evaluated"]["mag"]
    assert set(report.value["tasks"]) == {"cite", "co-cite"}


@pytest.mark.parametrize("missing", ["wrong", "peers"])
@pytest.mark.parametrize("name", SUITES)
def test_ids_that_are_not_the_suites(folders: dict[str, Path], tmp_path: Path, name: str, missing: str) -> None:
    strange = VectorSystem(["10.1000/a", "10.1000/b"], np.eye(2), name="strange")
    with pytest.raises(UserError, match=r"such as '(p\d\d|q0)'|the original script stops") as error:
        evaluate(strange, read_suite(name, folders[name]), tmp_path / "r", options=EvaluationOptions(missing=missing))
    assert "\n" not in str(error.value) and len(str(error.value)) < 700
    assert not (tmp_path / "r").exists()


def test_vectors_cannot_read_questions(folders: dict[str, Path], vectors: Vectors, tmp_path: Path) -> None:
    with pytest.raises(
        EmptyResultError, match="no question has a hit; both papers and questions need vectors, .* ids such as 'q0'"
    ):
        evaluate(Counting(vectors), read_suite("beir", folders["beir"]), tmp_path / "r")
    asked = {**vectors, **{f"q{number}": vectors[f"p{number:02d}"] for number in range(3)}}
    report = evaluate(Counting(asked), read_suite("beir", folders["beir"]), tmp_path / "r")
    assert report.metrics["search.recip_rank"] == 75  # q3 has no vector: a wrong answer, and counted
    assert report.value["coverage"]["search"]["queries without answer"] == 1


def test_equal_vectors_tie_and_are_counted(scidocs: Suite, vectors: Vectors, tmp_path: Path) -> None:
    report = evaluate(Counting({paper: [1.0, 2.0] for paper in vectors}), scidocs, tmp_path / "r", tasks=["cite"])
    assert report.value["coverage"]["cite"]["queries whose answers all tie"] == 3
    # ties are ordered by descending id, as trec_eval's: of p11 ... p06 those of the query's topic are relevant
    assert report.value["per_query"]["cite"]["p00"]["map"] == pytest.approx((1 / 2 + 2 / 4 + 3 / 6) / 3)
    assert report.value["per_query"]["cite"]["p01"]["map"] == pytest.approx((1 + 2 / 3 + 3 / 5) / 3)
    usual = evaluate(Counting(vectors), scidocs, tmp_path / "usual", tasks=["cite"])
    assert usual.value["coverage"]["cite"]["queries whose answers all tie"] == 0


def test_vectors_of_zeros_are_counted(scidocs: Suite, vectors: Vectors, tmp_path: Path) -> None:
    some = {**vectors, "p00": [0.0] * 6, "p07": [0.0] * 6}
    coverage = evaluate(Counting(some), scidocs, tmp_path / "r").value["coverage"]
    assert coverage["cite"]["vectors of zeros"] == 2 and coverage["mag"]["vectors of zeros"] == 2
    every = evaluate(Counting({paper: [0.0] * 6 for paper in vectors}), scidocs, tmp_path / "every")
    assert every.value["coverage"]["cite"]["vectors of zeros"] == 9
    assert "vectors of zeros" in (tmp_path / "every/report.html").read_text()


def test_queries_without_relevant_papers_are_counted(
    folders: dict[str, Path], vectors: Vectors, tmp_path: Path
) -> None:
    data = shutil.copytree(folders["scidocs"], tmp_path / "data")
    (data / "cite/test.qrel").write_text("p00 0 p06 1\np00 0 p07 0\np01 0 p06 0\np01 0 p07 0\n")
    report = evaluate(Counting(vectors), read_suite("scidocs", data), tmp_path / "r", tasks=["cite"])
    assert report.value["coverage"]["cite"]["queries without relevant papers"] == 1
    assert report.metrics["cite.map"] == 50


# --- bad data ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", SUITES)
def test_the_folder_of_another_suite_is_named(folders: dict[str, Path], asked: str) -> None:
    for other in SUITES:
        if other != asked:
            with pytest.raises(
                InputError, match=f"is not a folder of {asked}: .* belongs to {other}; use --suite {other}"
            ):
                read_suite(asked, folders[other])


@pytest.mark.parametrize("name", SUITES)
def test_half_downloaded_files_are_named(folders: dict[str, Path], tmp_path: Path, name: str) -> None:
    for number, path in enumerate(sorted(path for path in folders[name].rglob("*") if path.is_file())):
        data = shutil.copytree(folders[name], tmp_path / str(number))
        broken = data / path.relative_to(folders[name])
        for text in (path.read_text()[:-3], ""):
            broken.write_text(text)
            with pytest.raises(InputError, match=broken.name) as error:
                read_suite(name, data)
            assert "\n" not in str(error.value)


# --- the map -----------------------------------------------------------------------------------------


def test_a_map_is_drawn_without_judging_again(scidocs: Suite, vectors: Vectors, tmp_path: Path) -> None:
    plain = evaluate(Counting(vectors), scidocs, tmp_path / "r")
    assert not (tmp_path / "r/map.html").exists()
    system = Counting(vectors)
    report = evaluate(system, scidocs, tmp_path / "r", with_map=True)
    assert system.asked == 1  # the vectors, for the map
    about = strict(tmp_path / "r/report.json")["map"]
    assert about["task"] == "mag" and about["papers"] == 20
    assert 0 <= about["homogeneity"] <= 1 and 0 <= about["completeness"] <= 1
    page = (tmp_path / "r/map.html").read_text()
    assert "Title of p07" in page and "report.html" in page
    assert "map.html" in (tmp_path / "r/report.html").read_text()
    assert {key: value for key, value in report.value.items() if key != "map"} == plain.value
    again = Counting(vectors)
    assert evaluate(again, scidocs, tmp_path / "r").value["map"] == about and again.asked == 0


def test_only_papers_with_vectors_are_on_the_map(scidocs: Suite, vectors: Vectors, tmp_path: Path) -> None:
    some = {paper: vector for paper, vector in vectors.items() if paper not in ("p03", "p15")}
    report = evaluate(Counting(some), scidocs, tmp_path / "r", tasks=["cite"], with_map=True)
    assert report.value["map"]["papers"] == 18 and list(report.value["tasks"]) == ["cite"]
    assert "Title of p03" not in (tmp_path / "r/map.html").read_text()


def test_maps_that_cannot_be_drawn(folders: dict[str, Path], scidocs: Suite, vectors: Vectors, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="mdcr has no classes of papers to color a map by; leave out --map"):
        evaluate(Counting(vectors), read_suite("mdcr", folders["mdcr"]), tmp_path / "r", with_map=True)
    for system in (Bm25System(), PrecomputedScores({"p00": {"p06": 1.0}}, name="run")):
        with pytest.raises(UserError, match="no map can be drawn: .* leave out --map"):
            evaluate(system, scidocs, tmp_path / "r", with_map=True)
    with pytest.raises(UserError, match="no paper of mag has a vector"):
        evaluate(VectorSystem(["x"], np.eye(1), name="x"), scidocs, tmp_path / "r", with_map=True)
    assert not (tmp_path / "r").exists() and not work_folder(tmp_path / "r").exists()
