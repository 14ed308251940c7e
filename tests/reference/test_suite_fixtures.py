"""One command per suite on the peers' own files: the numbers of the peers' own scorers, to the tolerance they name."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.evaluation.clicks import evaluate_clicks
from citeweave.evaluation.evaluate import evaluate
from citeweave.evaluation.open_system import open_system
from citeweave.evaluation.options import EvaluationOptions, OpeningOptions
from citeweave.evaluation.ranking_metrics import RelevanceRule, rank_as_given, ranking_metrics
from citeweave.evaluation.report import Report
from citeweave.evaluation.suites import read_suite
from citeweave.evaluation.suites.scidocs import read_clicks, read_propensities

KINDS = {"float16": "float16_path", "float32": "float32_dict"}
CSFCUBE = {name: f"{name}@20" for name in ("precision", "recall", "f1")}
CSFCUBE |= {"mean_av_precision": "map", "av_precision": "map", "mean_reciprocal_rank": "reciprocal_rank"}
CSFCUBE |= {"r_precision": "precision_at_last_relevant"}


@cache
def expected(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "expected.json").read_text()))


def report_of(suite, data, given, output, *, split="test", precision="", intercept=True) -> Report:
    system = open_system(str(given), OpeningOptions(precision=precision))
    options = EvaluationOptions(missing="peers", intercept=intercept)
    return evaluate(system, read_suite(suite, data, split=split), output, options=options)


@pytest.mark.parametrize("split", ["test", "val"])
def test_scidocs_ranking(shared: Path, tmp_path: Path, split: str) -> None:
    folder = shared / "fixtures/scidocs_ranking"
    report = report_of("scidocs", folder, folder / "user-citation.jsonl", tmp_path / "report", split=split)
    found = report.metrics
    for task, metrics in expected(folder)[f"{split}_unrounded"].items():
        for metric, value in metrics.items():
            assert found[f"{task}.{metric}"] == pytest.approx(value, abs=1e-9)
            assert round(found[f"{task}.{metric}"], 2) == expected(folder)[split][task][metric]
    assert "average" not in found  # of twelve numbers only eight are there
    for task, detail in expected(folder)["test_detail"].items() if split == "test" else ():
        name = task.replace("co", "co-")
        rows, left_out = report.value["per_query"][name], report.value["coverage"][name]["queries left out of the mean"]
        assert (len(rows) + left_out, len(rows)) == (detail["queries_in_qrel"], detail["queries_scored"])
        for query, row in detail["per_query"].items():
            assert {metric: rows[query][metric] for metric in row} == pytest.approx(row, abs=1e-9)


@pytest.mark.parametrize("split", ["test", "val"])
@pytest.mark.parametrize("solver", ["sklearn", "sklearn_contrib_lightning"])
def test_scidocs_classification(shared: Path, tmp_path: Path, split: str, solver: str) -> None:
    folder = shared / "fixtures/scidocs_cls"
    how = {"split": split, "intercept": solver == "sklearn"}
    found = report_of("scidocs", folder, folder / "cls.jsonl", tmp_path / "report", **how).metrics
    for name, value in expected(folder)[solver][f"{split}_unrounded"].items():
        assert found[name] == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("split", ["test", "val"])
def test_scidocs_recommendation(shared: Path, split: str) -> None:
    folder = shared / "fixtures/scidocs_recomm"
    values, clicks = expected(folder)[split], read_clicks(folder / f"recomm/{split}.csv")
    lines = [json.loads(line) for line in (folder / f"scores_{split}.jsonl").read_text().splitlines()]
    assert [line["query"] for line in lines] == list(clicks.queries)
    scores = [lines[click]["scores"][paper] for click, paper in zip(clicks.owners, clicks.shown, strict=True)]
    propensities = read_propensities(folder / "recomm/propensity_scores.json")
    task = evaluate_clicks(clicks, np.array(scores), propensities).metrics()
    found = {name.lower().replace("p@1", "rprec/p@1"): value for name, value in task.items()}
    assert found.keys() == {name.lower() for name in values["all_metrics"]}
    for name, value in values["all_metrics"].items():
        close = 1e-5 if name.startswith("Adj-") else 1e-12
        assert found[name.lower()] == pytest.approx(value, abs=close), name
    for name, value in values["float64_recomputation"].items():
        assert found[name.lower()] == pytest.approx(value, abs=1e-9), name
    assert {name: round(100 * task[name], 2) for name in values["recomm"]} == values["recomm"]


def test_mdcr(shared: Path, tmp_path: Path) -> None:
    folder = shared / "fixtures/mdcr"
    values = expected(folder)
    found = report_of("mdcr", folder, folder / "scores.json", tmp_path / "scores").metrics
    for field, metrics in values["fields_unrounded"].items():
        for metric, value in metrics.items():
            assert found[f"{field}.{metric}"] == pytest.approx(value, abs=1e-9)
            assert round(found[f"{field}.{metric}"], 4) == values["fields"][field][metric]
    assert {metric: found[f"AVG.{metric}"] for metric in values["AVG"]} == values["AVG"]
    for precision, kind in KINDS.items():
        recorded = values["from_embeddings_with_scirepeval_scorer"][kind]
        found = report_of("mdcr", folder, folder / "embeddings.jsonl", tmp_path / kind, precision=precision).metrics
        assert {metric: found[f"AVG.{metric}"] for metric in values["AVG"]} == recorded["AVG"]
        for field, metrics in recorded["fields"].items():
            assert {metric: round(found[f"{field}.{metric}"], 4) for metric in metrics} == metrics


def test_csfcube(shared: Path, tmp_path: Path) -> None:
    folder = shared / "fixtures/csfcube"
    values = expected(folder)
    for split in ("test", "dev"):
        report = report_of("csfcube", folder, folder / "ranked", tmp_path / split, split=split)
        for facet, metrics in values["aggregated"].items():
            for metric, value in metrics[split].items():
                assert report.metrics[f"{facet}.{CSFCUBE.get(metric, metric)}"] == pytest.approx(100 * value, abs=1e-7)
        rows = report.value["per_query"]["all"]
        assert split == "dev" or rows.keys() == values["per_query"].keys()
        for query, row in rows.items():
            mine = {name: row[CSFCUBE.get(name, name)] for name in values["per_query"][query]}
            assert mine == pytest.approx(values["per_query"][query], abs=1e-9)


def test_aspire(shared: Path) -> None:
    folder = shared / "fixtures/csfcube"
    values, task = expected(folder), read_suite("csfcube", folder).tasks[-1]
    scores = open_system(str(folder / "ranked")).scores(task.texts, task.pools, "")
    ranked = rank_as_given(scores, task.pools.grades, task.pools.offsets)
    means, special = values["aspire_aggregated_all_queries"]["all"], {"r_precision": "precision_at_last_relevant"}
    names = {name: f"csfcube:{special.get(name, name)}" for name in means}
    peers = ranking_metrics(ranked, names.values(), RelevanceRule(threshold=2, ideal="submitted"))
    assert set(task.pools.names) == values["aspire_per_query"].keys()
    for number, query in enumerate(task.pools.names):
        mine = {key: peers[name][number] for key, name in names.items()}
        assert mine == pytest.approx(values["aspire_per_query"][query], abs=1e-9)
    assert {key: peers[name].mean() for key, name in names.items()} == pytest.approx(means, abs=1e-9)
    # leaving candidates out costs something by default
    ours, short = ranking_metrics(ranked, names.values()), ranked.submitted < ranked.judged
    assert short.any()
    chosen = ["csfcube:ndcg", "csfcube:av_precision", "csfcube:recall@20"]
    for name in chosen:
        assert (ours[name][~short] == peers[name][~short]).all() and (ours[name][short] <= peers[name][short]).all()
    assert any((ours[name][short] < peers[name][short]).any() for name in chosen)


@pytest.mark.parametrize("precision", KINDS)
@pytest.mark.parametrize("solver", ["sklearn", "sklearn_contrib_lightning"])
def test_scirepeval(shared: Path, tmp_path: Path, precision: str, solver: str) -> None:
    folder, kind = shared / "fixtures/scirepeval", KINDS[precision]
    how = {"precision": precision, "intercept": solver == "sklearn"}
    found = report_of("scirepeval", folder, folder / "embeddings.jsonl", tmp_path / "report", **how).metrics
    values, compared = expected(folder), set()
    tolerances = {"regression": 1e-3, "clf_multilabel": 1.0}
    for task in ("clf_binary", "clf_multiclass", "regression", "clf_multilabel", "ir_binary", "ir_graded"):
        for metric, value in values[task].get(solver, values[task])[kind]["unrounded"].items():
            if f"{task}.{metric}" in found:
                assert found[f"{task}.{metric}"] == pytest.approx(value, abs=tolerances.get(task, 1e-6))
                compared.add(f"{task}.{metric}")
    assert len(compared) >= 8 and compared >= {
        f"ir_{kind}.{m}" for kind in ("binary", "graded") for m in ("map", "ndcg")
    }
    for metric, value in values["reviewers"][kind]["unrounded"].items():
        part, _, name = metric.partition("_")
        assert found[f"reviewers {part}.{name}"] == pytest.approx(value, abs=1e-6)
