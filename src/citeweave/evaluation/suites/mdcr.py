"""MDCR: find what a paper cites among papers that look like it, in 19 fields (Medic and Snajder, 2022).

    mdcr_test.json         {"Art": {"query": {"bm25": [ids], "scincl": [ids], ..., "true": [ids]}, ...}, ...}
    mdcr_test_data.jsonl   {"paper_id": "...", "title": "...", "abstract": "..."}

One task per field: the pool of a query is every paper of its lists; those of `true` are relevant even where another list
repeats them. `AVG` is the mean over the fields of values rounded to 4 decimals. Scores are -L2, as in SciRepEval's mdcr.py;
MDCR's own script takes any scores. SPECTER and SciNCL chose some of the negatives themselves, which works against those
models.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from citeweave.core.errors import InputError, choose
from citeweave.evaluation.suites.benchmark_files import (
    BenchmarkPapers,
    DataFolder,
    as_id,
    read_json,
    read_json_lines,
    unique,
    wrong_folder,
)
from citeweave.evaluation.tasks import Average, Pools, RankingRule, RankingTask, Suite, TaskTexts

NAME = "mdcr"
SPLITS = ("test", "val")
FIELDS = 19
"""MDCR's own script stops on fewer."""

RELEVANT = "true"
RULE = RankingRule(metrics=("map", "ndcg", "recall_5"), distance="l2", peers="stop")

FieldPools = dict[str, dict[str, int]]
"""Query -> candidate -> grade, for the queries of one field."""


def read_suite(folder: Path, *, split: str = "test") -> Suite:
    """Read MDCR from a folder: one task per field."""
    choose(split, SPLITS, "--split")
    data = DataFolder(folder)
    if not data.has(f"mdcr_{split}.json"):
        raise wrong_folder(data.folder, NAME, f"mdcr_{split}.json (and mdcr_{split}_data.jsonl for the texts)")
    fields = _read_fields(data.file(f"mdcr_{split}.json", "the papers of every query"))
    texts = _read_texts(data, f"mdcr_{split}_data.jsonl", fields)
    tasks = tuple(RankingTask(name, texts, Pools.of(texts, pools), RULE) for name, pools in fields.items())
    return Suite(
        NAME,
        tasks,
        averages={
            f"AVG.{metric}": Average(
                tuple(f"{name}.{metric}" for name in fields),
                decimals=4,
                note=f"mean over {len(fields)} fields, each rounded to 4 decimals",
            )
            for metric in RULE.metrics
        },
        headline=tuple(f"{name}.map" for name in fields),
        notes=tuple(_notes(fields)),
        data=data.provenance(split, fields=len(fields), queries=sum(map(len, fields.values())), papers=len(texts)),
    )


def _read_fields(path: Path) -> dict[str, FieldPools]:
    value = read_json(path)
    if not isinstance(value, dict) or not value:
        raise InputError(f"{path} must be one object {{field: {{query: lists}}}}; is this the right file?")
    return {name: _read_field(f"{path}: field {name!r}", queries) for name, queries in value.items()}


def _read_field(where: str, queries: Any) -> FieldPools:
    if not isinstance(queries, dict) or not queries:
        raise InputError(f"{where} holds no queries; download the file again")
    pools: FieldPools = {}
    for query, lists in queries.items():
        if not isinstance(lists, dict) or not all(isinstance(ids, list) for ids in lists.values()):
            raise InputError(f"{where}: query {query!r} is not an object of lists of ids; download the file again")
        if RELEVANT not in lists:
            raise InputError(f"{where}: query {query!r} has no list {RELEVANT!r}; download the file again")
        # in the order of the file; those of `true` are relevant even where another list repeats them
        own = f"{where}: query {query!r}"
        pools[query] = {as_id(paper, own): 0 for papers in lists.values() for paper in papers}
        pools[query] |= {as_id(paper, own): 1 for paper in lists[RELEVANT]}
    return pools


def _read_texts(data: DataFolder, name: str, fields: dict[str, FieldPools]) -> TaskTexts:
    ids = unique(paper for pools in fields.values() for query, pool in pools.items() for paper in (query, *pool))
    if not data.has(name):
        return TaskTexts.of_ids(ids, lacking=name)
    path = data.file(name, "titles and abstracts")
    papers = BenchmarkPapers()
    papers.add_records(read_json_lines(path, ids=["paper_id"]), set(ids), path)
    return papers.texts(ids)


def _notes(fields: dict[str, FieldPools]) -> Iterable[str]:
    if len(fields) != FIELDS:
        yield f"{len(fields)} of MDCR's {FIELDS} fields are present: AVG is over these and is not the published one"
    empty = sum(not any(pool.values()) for pools in fields.values() for pool in pools.values())
    if empty:
        yield f"{empty} queries have no relevant paper; they count as 0"
