"""One command a suite on the peers' own files: the numbers of the peers' own scorers, to the tolerance they name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from citeweave.evaluation.evaluate import EvaluationOptions, evaluate
from citeweave.evaluation.open_system import OpeningOptions, open_system
from citeweave.evaluation.suites.registry import read_suite


def expected(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "expected.json").read_text()))


def judge(
    suite: str,
    data: Path,
    given: Path,
    output: Path,
    *,
    split: str = "test",
    precision: str = "",
    intercept: bool = True,
) -> dict[str, float]:
    judged = open_system(str(given), OpeningOptions(precision=precision))
    options = EvaluationOptions(missing="peers", intercept=intercept)
    return evaluate(judged, read_suite(suite, data, split=split), output, options=options).metrics


@pytest.mark.parametrize("split", ["test", "val"])
def test_scidocs_ranking(shared: Path, tmp_path: Path, split: str) -> None:
    folder = shared / "fixtures/scidocs_ranking"
    found = judge("scidocs", folder, folder / "user-citation.jsonl", tmp_path / "report", split=split)
    for task, metrics in expected(folder)[f"{split}_unrounded"].items():
        for metric, value in metrics.items():
            assert found[f"{task}.{metric}"] == pytest.approx(value, abs=1e-9)
            assert round(found[f"{task}.{metric}"], 2) == expected(folder)[split][task][metric]
    assert "average" not in found  # of twelve numbers only eight are there


@pytest.mark.parametrize("split", ["test", "val"])
@pytest.mark.parametrize("solver", ["sklearn", "sklearn_contrib_lightning"])
def test_scidocs_classification(shared: Path, tmp_path: Path, split: str, solver: str) -> None:
    folder = shared / "fixtures/scidocs_cls"
    intercept = solver == "sklearn"
    found = judge("scidocs", folder, folder / "cls.jsonl", tmp_path / "report", split=split, intercept=intercept)
    for name, value in expected(folder)[solver][f"{split}_unrounded"].items():
        assert found[name] == pytest.approx(value, abs=1e-6)


def test_mdcr(shared: Path, tmp_path: Path) -> None:
    folder = shared / "fixtures/mdcr"
    values = expected(folder)
    found = judge("mdcr", folder, folder / "scores.json", tmp_path / "scores")
    for field, metrics in values["fields_unrounded"].items():
        for metric, value in metrics.items():
            assert found[f"{field}.{metric}"] == pytest.approx(value, abs=1e-9)
    assert {metric: found[f"AVG.{metric}"] for metric in values["AVG"]} == values["AVG"]
    recorded = values["from_embeddings_with_scirepeval_scorer"]
    for name, precision in (("float32_dict", "float32"), ("float16_path", "float16")):
        found = judge("mdcr", folder, folder / "embeddings.jsonl", tmp_path / name, precision=precision)
        assert {metric: found[f"AVG.{metric}"] for metric in values["AVG"]} == recorded[name]["AVG"]


def test_csfcube(shared: Path, tmp_path: Path) -> None:
    folder = shared / "fixtures/csfcube"
    named = {
        "mean_av_precision": "map",
        "mean_reciprocal_rank": "reciprocal_rank",
        "precision": "precision@20",
        "recall": "recall@20",
        "f1": "f1@20",
        "r_precision": "precision_at_last_relevant",
    }
    for split in ("test", "dev"):
        found = judge("csfcube", folder, folder / "ranked", tmp_path / split, split=split)
        for facet, values in expected(folder)["aggregated"].items():
            for metric, value in values[split].items():
                assert found[f"{facet}.{named.get(metric, metric)}"] == pytest.approx(100 * value, abs=1e-7)


@pytest.mark.parametrize("precision", ["float16", "float32"])
@pytest.mark.parametrize("solver", ["sklearn", "sklearn_contrib_lightning"])
def test_scirepeval(shared: Path, tmp_path: Path, precision: str, solver: str) -> None:
    folder = shared / "fixtures/scirepeval"
    kind = {"float16": "float16_path", "float32": "float32_dict"}[precision]
    intercept = solver == "sklearn"
    given = folder / "embeddings.jsonl"
    found = judge("scirepeval", folder, given, tmp_path / "report", precision=precision, intercept=intercept)
    values = expected(folder)
    compared = 0
    for task, tolerance in {
        "clf_binary": 1e-6,
        "clf_multiclass": 1e-6,
        "regression": 1e-3,
        "clf_multilabel": 1.0,
        "ir_binary": 1e-6,
        "ir_graded": 1e-6,
    }.items():
        recorded = values[task].get(solver, values[task])[kind]["unrounded"]
        for metric, value in recorded.items():
            if f"{task}.{metric}" in found:
                assert found[f"{task}.{metric}"] == pytest.approx(value, abs=tolerance)
                compared += 1
    for metric, value in values["reviewers"][kind]["unrounded"].items():
        part, _, name = metric.partition("_")
        assert found[f"reviewers {part}.{name}"] == pytest.approx(value, abs=1e-6)
    assert compared >= 8
