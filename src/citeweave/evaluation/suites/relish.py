"""RELISH: abstracts that biomedical experts judged relevant (2), partial (1) or irrelevant (0) to a query.

Reads ASPIRE's format (`abstracts-relish.jsonl`, `test-pid2anns-relish.json`, `relish-evaluation_splits.json`). A paper is
relevant from grade 2; the value is the mean over the split's queries (ASPIRE, evaluate.py). Brown et al., 2019.
SciRepEval's RELISH is another task, with other files and another metric.
"""

from __future__ import annotations

from pathlib import Path

from citeweave.evaluation.suites.aspire import METRICS, REPORTED_NAMES, read_benchmark
from citeweave.evaluation.suites.benchmark_files import DataFolder, wrong_folder
from citeweave.evaluation.tasks import RankingRule, RankingTask, Suite

NAME = "relish"
RULE = RankingRule(metrics=METRICS, family="csfcube", relevant=2, distance="l2")


def read_suite(folder: str | Path, *, split: str = "test") -> Suite:
    """Read RELISH from a folder: one task, `relish`."""
    folder = Path(folder)
    if not DataFolder(folder).has("test-pid2anns-relish.json") and not DataFolder(folder).has("abstracts-relish.jsonl"):
        raise wrong_folder(
            folder, NAME, "test-pid2anns-relish.json, relish-evaluation_splits.json and abstracts-relish.jsonl"
        )
    benchmark = read_benchmark(folder, "relish", split=split, relevant=RULE.relevant)
    return Suite(
        NAME,
        (RankingTask(NAME, benchmark.texts, benchmark.pools, RULE, called=REPORTED_NAMES),),
        headline=("relish.map", "relish.ndcg%20"),
        notes=benchmark.notes,
        data=benchmark.data,
    )
