"""TRECCOVID-RF: TREC-COVID's papers as queries; what is relevant to the same topic is relevant to the query.

Reads ASPIRE's form (`abstracts-treccovid.jsonl`, `test-pid2anns-treccovid.json`, `treccovid-evaluation_splits.json`),
as published or as `building.treccovid.build_treccovid_rf` makes it from TREC-COVID's own files. A paper is relevant
from grade 1; the value is the mean over the split's queries (ASPIRE, evaluate.py).
"""

from __future__ import annotations

from pathlib import Path

from citeweave.evaluation.suites.aspire_files import CALLED, METRICS, read_benchmark
from citeweave.evaluation.suites.files import DataFolder
from citeweave.evaluation.suites.recognising import refuse
from citeweave.evaluation.tasks import RankingRule, RankingTask, Suite

NAME = "treccovid_rf"
RULE = RankingRule(metrics=METRICS, family="csfcube", relevant=1, distance="l2")


def read_suite(folder: str | Path, *, split: str = "test") -> Suite:
    """The suite of a folder: one task, `treccovid_rf`; its groups are TREC-COVID's topics."""
    folder, files = Path(folder), DataFolder(folder)
    if not files.has("test-pid2anns-treccovid.json") and not files.has("abstracts-treccovid.jsonl"):
        raise refuse(
            folder,
            NAME,
            "test-pid2anns-treccovid.json, treccovid-evaluation_splits.json and abstracts-treccovid.jsonl "
            "(build_treccovid_rf makes them from TREC-COVID's files)",
        )
    read = read_benchmark(folder, "treccovid", split=split, relevant=RULE.relevant)
    return Suite(
        NAME,
        (RankingTask(NAME, read.texts, read.pools, RULE, called=CALLED),),
        headline=("treccovid_rf.map", "treccovid_rf.ndcg%20"),
        notes=read.notes,
        data=read.data,
    )
