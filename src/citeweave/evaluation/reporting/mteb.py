"""A report's numbers in the form in which MTEB keeps results: one JSON object a task, fractions instead of percent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def as_mteb(value: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Task -> result, as written under results/<model>/<revision>/<Task>.json.

    >>> report = {"suite": "scidocs", "tasks": {"cite": {"how": {"map": "mean"}}}, "metrics": {"cite.map": 88.3},
    ...           "versions": {"citeweave": "0.1"}, "data": {}}
    >>> as_mteb(report)["cite"]["scores"]["test"][0]["main_score"]
    0.883
    """
    split = str(value["data"].get("split", "test"))
    found = {}
    for task, about in value["tasks"].items():
        scores = {_name(name): round(value["metrics"][f"{task}.{name}"] / 100, 6) for name in about["how"]}
        if not scores:
            continue
        main = next(iter(scores.values()))
        found[task] = {
            "dataset_revision": str(value["data"].get("hash", "")),
            "task_name": f"{value['suite']}.{task}",
            "mteb_version": f"citeweave {value['versions']['citeweave']}",
            "scores": {split: [{**scores, "main_score": main, "hf_subset": "default", "languages": ["eng-Latn"]}]},
            "evaluation_time": None,
        }
    return found


def _name(metric: str) -> str:
    """`ndcg_cut_10` is MTEB's `ndcg_at_10`."""
    for ours, theirs in (("_cut_", "_at_"), ("P_", "precision_at_"), ("recall_", "recall_at_")):
        if ours in metric and "_at_" not in metric:
            return metric.replace(ours, theirs, 1)
    return metric
