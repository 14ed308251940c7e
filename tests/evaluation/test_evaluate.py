"""The verb: what a report holds, that nothing is evaluated twice, and what is said where something cannot be evaluated."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave import EvaluationOptions, load_encoder
from citeweave.core.errors import ArtifactError, EmptyResultError, InputError, UserError
from citeweave.core.publish import work_folder
from citeweave.evaluation.encoder_systems import EncoderSystem
from citeweave.evaluation.evaluate import evaluate
from citeweave.evaluation.metrics import derive_metric
from citeweave.evaluation.open_system import open_system
from citeweave.evaluation.report import Report, file_names
from citeweave.evaluation.sentence_systems import CombinedSystem, SentenceSystem
from citeweave.evaluation.suites import SUITES, read_suite
from citeweave.evaluation.systems import Bm25System, PaperVectors, PrecomputedScores, VectorSystem
from citeweave.evaluation.tasks import Suite, TaskTexts

from ..encoders.conftest import NEVER, watched
from .conftest import refused, write_files

Vectors = dict[str, list[float]]
ASKED = ("scidocs", "scirepeval", "mdcr", "csfcube", "relish", "treccovid_rf", "reviewers")
"""Suites that vectors of papers can answer; beir asks with questions."""


class Counting(VectorSystem):
    """Vectors that count how often a task asks, and stop everything at the n-th time."""

    def __init__(self, vectors: Vectors, *, stop_at: int = 0, revision: str = "1") -> None:
        super().__init__(list(vectors), np.array(list(vectors.values())), name="toy", revision=revision)
        self.asked, self._stop_at = 0, stop_at

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        self.asked += 1
        if self.asked == self._stop_at:
            raise KeyboardInterrupt
        return super().vectors(texts)


def strict(path: Path) -> dict[str, Any]:
    """JSON as the standard has it, without Python's NaN."""
    return dict(json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"{path} holds {word}")))


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def scidocs(folders) -> Suite:
    return read_suite("scidocs", folders["scidocs"])


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("missing", ["wrong", "peers"])
def test_a_report_holds_everything_and_its_metrics_follow_from_its_rows(folders, vectors, tmp_path, name, missing):
    options = EvaluationOptions(missing=missing)
    report = evaluate(Counting(vectors), read_suite(name, folders[name]), tmp_path / "r", options=options)
    value = strict(tmp_path / "r/report.json")
    parts = "suite metrics intervals per_query coverage model data options notes not_evaluated headline averages tasks"
    assert set(parts.split()) <= value.keys() and "map" not in value
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


def test_more_tasks_cost_only_those_and_nothing_is_evaluated_twice(scidocs, vectors, tmp_path):
    alone, more, whole, again, fewer = (Counting(vectors) for _ in range(5))
    evaluate(alone, scidocs, tmp_path / "alone", tasks=["co-cite"])
    evaluate(Counting(vectors), scidocs, tmp_path / "r", tasks=["cite"])
    report = evaluate(more, scidocs, tmp_path / "r", tasks=["co-cite"])
    assert more.asked == alone.asked and list(report.value["tasks"]) == ["cite", "co-cite"]
    made = evaluate(whole, scidocs, tmp_path / "whole")
    assert whole.asked >= 3
    assert evaluate(again, scidocs, tmp_path / "whole").value == made.value and again.asked == 0
    assert evaluate(Counting(vectors), scidocs, tmp_path / "r").value == made.value
    assert evaluate(fewer, scidocs, tmp_path / "r", tasks=["cite"]).value == made.value and fewer.asked == 0
    assert files_of(tmp_path / "r/runs") == files_of(tmp_path / "whole/runs")
    assert set(files_of(tmp_path / "r/runs")) == {"cite.run", "co-cite.run"}


def test_another_model_option_or_data_is_refused(scidocs, folders, vectors, tmp_path):
    evaluate(Counting(vectors), scidocs, tmp_path / "r")
    data = shutil.copytree(folders["scidocs"], tmp_path / "data")
    (data / "cite/test.qrel").write_text("p00 0 p05 1\np00 0 p06 0\n")
    peers = {"options": EvaluationOptions(missing="peers")}
    for system, suite, more in (
        (Counting(vectors, revision="2"), scidocs, {}),
        (Counting(vectors), scidocs, peers),
        (Counting(vectors), read_suite("scidocs", data), {}),
    ):
        with pytest.raises(UserError, match="made from other inputs or options; choose another -o or --overwrite"):
            evaluate(system, suite, tmp_path / "r", **more)
    assert Report.open(tmp_path / "r").value["options"]["missing"] == "wrong"
    made = evaluate(Counting(vectors), scidocs, tmp_path / "r", overwrite=True, **peers)
    assert made.value["options"]["missing"] == "peers"
    refused("missing is 'pears'", EvaluationOptions, missing="pears")
    write_files(tmp_path, {"mine/thesis.tex": "years of work"})
    with pytest.raises(UserError, match="is not an artifact of citeweave; choose another -o"):
        evaluate(Counting(vectors), scidocs, tmp_path / "mine", overwrite=True)
    assert files_of(tmp_path / "mine") == {"thesis.tex": b"years of work"}


@pytest.mark.parametrize("stop_at", [1, 2, 3, 4])
def test_an_interrupted_evaluation_resumes_where_it_stopped(scidocs, vectors, tmp_path, stop_at):
    whole = Counting(vectors)
    expected = evaluate(whole, scidocs, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        evaluate(Counting(vectors, stop_at=stop_at), scidocs, tmp_path / "r")
    kept = list(work_folder(tmp_path / "r").rglob("tasks/*/*.json"))
    resumed = Counting(vectors)
    assert evaluate(resumed, scidocs, tmp_path / "r").value == expected.value
    assert files_of(tmp_path / "r/runs") == files_of(tmp_path / "whole/runs")  # also of the tasks before
    assert (resumed.asked < whole.asked) == bool(kept) == (stop_at > 1)


SYSTEMS = {
    "cosine": EncoderSystem,
    "mean_best": SentenceSystem,
    "cosine+mean_best": lambda encoder: CombinedSystem(EncoderSystem(encoder), SentenceSystem(encoder)),
}


@pytest.mark.parametrize("distance", SYSTEMS)
def test_vectors_are_saved_while_they_are_made(bert, folders, tmp_path, distance):
    encoder, suite = load_encoder(bert, device="cpu", batch_tokens=40), read_suite("csfcube", folders["csfcube"])

    def run(name: str, at: int = NEVER) -> tuple[Any, int]:
        reading, options = watched(encoder, dies_at=at), EvaluationOptions(distance=distance)
        report = evaluate(SYSTEMS[distance](reading), suite, tmp_path / name, options=options)
        return json.loads((report.folder / "report.json").read_bytes()), len(reading.network.batches)

    whole, batches = run("whole")
    assert batches > 3
    with pytest.raises(KeyboardInterrupt):
        run("broken", at=batches - 1)
    assert list(work_folder(tmp_path / "broken").rglob("*.part-*.npz"))
    resumed, rest = run("broken")
    assert resumed == whole and rest == 2
    assert not list(tmp_path.rglob("*.part-*")), "nothing is left in or beside the report"


def test_a_damaged_report_is_made_again(scidocs, vectors, tmp_path):
    made = evaluate(Counting(vectors), scidocs, tmp_path / "r")
    for text in ('{"suite": "sci', "[]", "{}"):
        (tmp_path / "r/report.json").write_text(text)
        refused("report.json is missing or damaged; evaluate again", Report.open, tmp_path / "r", error=ArtifactError)
        assert evaluate(Counting(vectors), scidocs, tmp_path / "r").value == made.value


@pytest.mark.parametrize("name", ["scidocs", "mdcr", "csfcube", "relish", "reviewers"])
def test_a_run_that_is_read_back_gives_the_same_numbers(folders, vectors, tmp_path, name):
    vectors = {paper: vector for paper, vector in vectors.items() if paper != "p07"}  # a gap stays a gap
    suite = read_suite(name, folders[name])
    report = evaluate(Counting(vectors), suite, tmp_path / "r")
    for task, path in report.runs().items():
        again = evaluate(open_system(str(path)), suite, tmp_path / f"again {task}", tasks=[task])
        for query, row in report.value["per_query"][task].items():
            assert again.value["per_query"][task][query] == pytest.approx(row), (task, query)
    rows = [line.split() for path in report.runs().values() for line in path.read_text().splitlines()]
    assert {(row[1], row[5]) for row in rows} == {("Q0", "toy")} and "p07" not in {row[2] for row in rows}
    # names of files do not collide
    assert file_names(["a b", "a/b", "..", "a_b-2"]) == {"a b": "a_b", "a/b": "a_b-2", "..": "task", "a_b-2": "a_b-2-2"}


def test_a_run_of_a_search_is_read_back_even_where_questions_have_ids_of_papers(folders, tmp_path):
    data = shutil.copytree(folders["beir"], tmp_path / "data")
    suite = read_suite("beir", write_files(data, dict.fromkeys(("queries.jsonl", "qrels/test.tsv"), ("q1", "p05"))))
    report = evaluate(Bm25System(), suite, tmp_path / "r")
    run = tmp_path / "r/runs/search.run"
    assert run.read_text().splitlines()[0].split()[:4] == ["q0", "Q0", "p00", "1"]
    again = evaluate(open_system(str(run)), suite, tmp_path / "again")
    assert again.value["per_query"] == report.value["per_query"] and again.metrics["search.ndcg_cut_10"] == 100
    found = strict(tmp_path / "r/mteb/search.json")  # the numbers in the form of MTEB
    (scores,) = found["scores"]["test"]
    assert found["task_name"] == "beir.search" and scores["hf_subset"] == "default"
    assert scores["main_score"] == scores["ndcg_at_10"] == report.metrics["search.ndcg_cut_10"] / 100
    assert scores["recall_at_100"] == report.metrics["search.recall_100"] / 100


def test_tasks_without_an_answer_are_told(folders, scidocs, vectors, tmp_path):
    report = evaluate(Bm25System(), scidocs, tmp_path / "r")
    assert "bm25 has no vectors" in report.value["not_evaluated"]["mag"]
    assert "co-view/test.qrel" not in report.value["not_evaluated"]["mag"]
    assert "coview/test.qrel" in report.value["not_evaluated"]["co-view"]
    assert set(report.value["tasks"]) == {"cite", "co-cite"} and "average" not in report.metrics
    assert "bm25 has no vectors" in (tmp_path / "r/report.html").read_text()
    with pytest.raises(EmptyResultError, match="bm25 cannot do any task of scirepeval: bm25 has no vectors") as error:
        evaluate(Bm25System(), read_suite("scirepeval", folders["scirepeval"]), tmp_path / "none")
    assert str(error.value).count("no vectors") == 1
    assert not (tmp_path / "none").exists() and not work_folder(tmp_path / "none").exists()
    data = shutil.copytree(folders["scidocs"], tmp_path / "data")
    (data / "paper_metadata_view_cite_read.json").unlink()
    with pytest.raises(EmptyResultError, match="paper_metadata_view_cite_read.json does not exist; add it"):
        evaluate(Bm25System(), read_suite("scidocs", data), tmp_path / "none")
    ranked = {paper: vectors[paper] for paper in list(vectors)[:12]}  # the test papers of mag have none
    report = evaluate(Counting(ranked), scidocs, tmp_path / "some")
    assert "12 training and 0 test papers have vectors" in report.value["not_evaluated"]["mag"]
    assert set(report.value["tasks"]) == {"cite", "co-cite"}


@pytest.mark.parametrize("missing", ["wrong", "peers"])
@pytest.mark.parametrize("name", SUITES)
def test_ids_that_are_not_the_suites(folders, tmp_path, name, missing):
    strange = VectorSystem(["10.1000/a", "10.1000/b"], np.eye(2), name="strange")
    with pytest.raises(UserError, match=r"such as '(p\d\d|q0)'|the original script stops") as error:
        evaluate(strange, read_suite(name, folders[name]), tmp_path / "r", options=EvaluationOptions(missing=missing))
    assert "\n" not in str(error.value) and len(str(error.value)) < 700
    assert not (tmp_path / "r").exists()


def test_vectors_cannot_read_questions(folders, vectors, tmp_path):
    beir, wanted = read_suite("beir", folders["beir"]), "both papers and questions need vectors, .* ids such as 'q0'"
    with pytest.raises(EmptyResultError, match=f"no question has a hit; {wanted}"):
        evaluate(Counting(vectors), beir, tmp_path / "r")
    asked = {**vectors, **{f"q{number}": vectors[f"p{number:02d}"] for number in range(3)}}
    report = evaluate(Counting(asked), beir, tmp_path / "r")
    assert report.metrics["search.recip_rank"] == 75  # q3 has no vector: a wrong answer, and counted
    assert report.value["coverage"]["search"]["queries without an answer"] == 1


def test_ties_zeros_and_queries_without_relevant_papers_are_counted(folders, scidocs, vectors, tmp_path):
    report = evaluate(Counting({paper: [1.0, 2.0] for paper in vectors}), scidocs, tmp_path / "tied", tasks=["cite"])
    assert report.value["coverage"]["cite"]["queries whose answers all tie"] == 3
    # ties are ordered by descending id, as trec_eval's: of p11 ... p06 those of the query's topic are relevant
    assert report.value["per_query"]["cite"]["p00"]["map"] == pytest.approx((1 / 2 + 2 / 4 + 3 / 6) / 3)
    assert report.value["per_query"]["cite"]["p01"]["map"] == pytest.approx((1 + 2 / 3 + 3 / 5) / 3)
    some = {**vectors, "p00": [0.0] * 6, "p07": [0.0] * 6}
    coverage = evaluate(Counting(some), scidocs, tmp_path / "some").value["coverage"]
    assert coverage["cite"]["vectors of zeros"] == 2 and coverage["mag"]["vectors of zeros"] == 2
    every = evaluate(Counting({paper: [0.0] * 6 for paper in vectors}), scidocs, tmp_path / "every")
    assert every.value["coverage"]["cite"]["vectors of zeros"] == 9
    assert "vectors of zeros" in (tmp_path / "every/report.html").read_text()
    qrel = "p00 0 p06 1\np00 0 p07 0\np01 0 p06 0\np01 0 p07 0\n"
    data = write_files(shutil.copytree(folders["scidocs"], tmp_path / "data"), {"cite/test.qrel": qrel})
    usual = evaluate(Counting(vectors), read_suite("scidocs", data), tmp_path / "usual", tasks=["cite"])
    coverage = usual.value["coverage"]["cite"]
    assert coverage["queries without relevant papers"] == 1 and usual.metrics["cite.map"] == 50
    assert coverage["queries whose answers all tie"] == 0


@pytest.mark.parametrize("asked", SUITES)
def test_the_folder_of_another_suite_is_named(folders, asked):
    for other in set(SUITES) - {asked}:
        message = f"is not a folder of {asked}: .* belongs to {other}; use --suite {other}"
        refused(message, read_suite, asked, folders[other], error=InputError)


@pytest.mark.parametrize("name", SUITES)
def test_half_downloaded_files_are_named(folders, tmp_path, name):
    for number, path in enumerate(sorted(path for path in folders[name].rglob("*") if path.is_file())):
        data = shutil.copytree(folders[name], tmp_path / str(number))
        broken = data / path.relative_to(folders[name])
        for text in (path.read_text()[:-3], ""):
            broken.write_text(text)
            with pytest.raises(InputError, match=broken.name) as error:
                read_suite(name, data)
            assert "\n" not in str(error.value)


def test_a_map_is_drawn_without_evaluating_again(scidocs, vectors, tmp_path):
    plain = evaluate(Counting(vectors), scidocs, tmp_path / "r")
    assert not (tmp_path / "r/map.html").exists()
    system, again = Counting(vectors), Counting(vectors)
    report = evaluate(system, scidocs, tmp_path / "r", with_map=True)
    assert system.asked == 1  # the vectors, for the map
    about = strict(tmp_path / "r/report.json")["map"]
    assert about["task"] == "mag" and about["papers"] == 20
    assert 0 <= about["homogeneity"] <= 1 and 0 <= about["completeness"] <= 1
    page = (tmp_path / "r/map.html").read_text()
    assert "Title of p07" in page and "report.html" in page
    assert "map.html" in (tmp_path / "r/report.html").read_text()
    assert {key: value for key, value in report.value.items() if key != "map"} == plain.value
    assert evaluate(again, scidocs, tmp_path / "r").value["map"] == about and again.asked == 0
    some = {paper: vector for paper, vector in vectors.items() if paper not in ("p03", "p15")}
    report = evaluate(Counting(some), scidocs, tmp_path / "some", tasks=["cite"], with_map=True)
    assert report.value["map"]["papers"] == 18 and list(report.value["tasks"]) == ["cite"]
    assert "Title of p03" not in (tmp_path / "some/map.html").read_text()


def test_maps_that_cannot_be_drawn(folders, scidocs, vectors, tmp_path):
    with pytest.raises(UserError, match="mdcr has no classes of papers to color a map by; leave out --map"):
        evaluate(Counting(vectors), read_suite("mdcr", folders["mdcr"]), tmp_path / "r", with_map=True)
    for system in (Bm25System(), PrecomputedScores({"p00": {"p06": 1.0}}, name="run")):
        refused("no map can be drawn: .* leave out --map", evaluate, system, scidocs, tmp_path / "r", with_map=True)
    with pytest.raises(UserError, match="no paper of mag has a vector"):
        evaluate(VectorSystem(["x"], np.eye(1), name="x"), scidocs, tmp_path / "r", with_map=True)
    assert not (tmp_path / "r").exists() and not work_folder(tmp_path / "r").exists()
