"""SciDocs' recommendation metrics on its own files: equal to the values that its code gives for the same scores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from citeweave.evaluation.click_data import read_clicks, read_propensities
from citeweave.evaluation.clicks import EvaluatedClicks, evaluate_clicks

NAMES = {
    "accuracy": "accuracy",
    "ndcg": "ndcg",
    "mrr": "mrr",
    "p@1": "Rprec/P@1",
    "adj-accuracy": "Adj-accuracy",
    "adj-NDCG": "Adj-ndcg",
    "adj-MRR": "Adj-mrr",
    "adj-P@1": "Adj-Rprec/P@1",
}


def evaluated(folder: Path, split: str) -> EvaluatedClicks:
    clicks = read_clicks(folder / f"recomm/{split}.csv")
    lines = [json.loads(line) for line in (folder / f"scores_{split}.jsonl").read_text().splitlines()]
    assert [line["query"] for line in lines] == list(clicks.queries)
    scores = [lines[click]["scores"][paper] for click, paper in zip(clicks.owners, clicks.shown, strict=True)]
    return evaluate_clicks(clicks, np.array(scores), read_propensities(folder / "recomm/propensity_scores.json"))


@pytest.mark.parametrize("split", ["test", "val"])
def test_metrics_are_the_peers(shared: Path, split: str) -> None:
    folder = shared / "fixtures/scidocs_recomm"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here")
    expected = json.loads((folder / "expected.json").read_text())[split]
    metrics = evaluated(folder, split).metrics()
    assert metrics.keys() == NAMES.keys()
    for name, peer in NAMES.items():
        assert metrics[name] == pytest.approx(expected["all_metrics"][peer], abs=1e-5), name
    for name in ("adj-NDCG", "adj-P@1"):
        assert metrics[name] == pytest.approx(expected["float64_recomputation"][NAMES[name]], abs=1e-9), name
        assert round(100 * metrics[name], 2) == expected["recomm"][name]
