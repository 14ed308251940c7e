"""ASPIRE's benchmark format, shared by RELISH, TRECCOVID-RF and CSFCube: abstracts and graded candidates.

    abstracts-relish.jsonl           {"paper_id": "1", "title": "T", "abstract": ["One.", "Two."]}
    test-pid2anns-relish.json        {"1": {"cands": ["2", "3"], "relevance_adju": [2, 0]}}
    relish-evaluation_splits.json    {"1": "test"}   or   {"test": ["1"], "dev": []}

CSFCube has one file of candidates per facet. Which grade counts as relevant is up to each suite. Does not score.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from citeweave.core.errors import EmptyResultError, InputError, choose
from citeweave.evaluation.suites.benchmark_files import (
    MAX_GRADE,
    DataFolder,
    as_grade,
    as_id,
    read_json,
    read_json_lines,
)
from citeweave.evaluation.suites.benchmark_labels import (
    REPEATED,
    UNKNOWN,
    GradedQuery,
    add_unknown_papers,
    clean_queries,
    make_pools,
)
from citeweave.evaluation.tasks import Pools, TaskTexts

SPLITS = ("dev", "test")
METRICS = (
    "av_precision",
    "ndcg%20",
    "ndcg",
    "ndcg@20",
    "precision@20",
    "recall@20",
    "f1@20",
    "reciprocal_rank",
    "precision_at_last_relevant",
    "r_precision",
)
"""What CSFCube's script prints, and the true R-precision; the script's own R-precision is `precision_at_last_relevant`."""

REPORTED_NAMES = {"av_precision": "map"}
"""Metric -> its name in the papers and in reports."""


@dataclass(frozen=True)
class AspirePapers:
    """The papers of an ASPIRE abstracts file: their texts and topics."""

    texts: TaskTexts
    topics: Mapping[str, str]
    """Paper -> its topic, where the file knows one (TRECCOVID-RF)."""

    repeated: int
    """Lines that name a paper again; the last one counts, as in ASPIRE's reader."""


@dataclass(frozen=True)
class AspireBenchmark:
    """One split of a benchmark in ASPIRE's format: its texts, its pools and what was read."""

    texts: TaskTexts
    pools: Pools
    notes: tuple[str, ...]
    data: dict[str, Any]


# --- reading files ---------------------------------------------------------------------------------------


def read_abstracts(path: Path, *, wanted: Iterable[str] | None = None) -> AspirePapers:
    """Read the papers of an ASPIRE abstracts file, or only the wanted ones."""
    keep = None if wanted is None else frozenset(wanted)
    records: dict[str, dict[str, Any]] = {}
    lines = 0
    for record in read_json_lines(path, ids=("paper_id",), keys=("title", "abstract")):
        if keep is None or record["paper_id"] in keep:
            lines += 1
            records[record["paper_id"]] = record
    sentences = {paper: _sentences(path, paper, record) for paper, record in records.items()}
    labels = {paper: _labels(path, paper, record, len(sentences[paper])) for paper, record in records.items()}
    texts = TaskTexts(
        ids=list(records),
        titles=[str(record["title"] or "").strip() for record in records.values()],
        abstracts=[_abstract(record) for record in records.values()],
        sentences=list(sentences.values()),
        labels=list(labels.values()) if any(labels.values()) else None,
    )
    topics = {paper: str(record["topic_ids"]) for paper, record in records.items() if record.get("topic_ids")}
    return AspirePapers(texts, topics, lines - len(records))


def read_judgments(path: Path) -> dict[str, tuple[list[str], list[int]]]:
    """Read `{query: (candidates, grades)}` from a pid2anns file; the grade is `relevance_adju`."""
    value = read_json(path)
    if not isinstance(value, dict) or not value:
        raise InputError(f"{path} holds no JSON object of queries; is this the right file?")
    return {query: _judgment(path, query, entry) for query, entry in value.items()}


def _read_splits(path: Path) -> dict[str, str]:
    """Read `{query: split}` from a splits file in either form: `{query: split}` or `{split: [queries]}`."""
    value = read_json(path)
    if not isinstance(value, dict) or not value:
        raise InputError(f"{path} holds no JSON object with splits; is this the right file?")
    if all(isinstance(part, list) for part in value.values()):
        return {as_id(query, f"{path}: a query of {split}"): split for split, part in value.items() for query in part}
    for query, split in value.items():
        if split not in SPLITS:
            raise InputError(f"{path}: the split of query {query} is {split!r}; it must be dev or test")
    return dict(value)


# --- a benchmark with one task ---------------------------------------------------------------------------


def read_benchmark(folder: Path, name: str, *, split: str, relevant: int) -> AspireBenchmark:
    """Read one split of an ASPIRE benchmark by its name in file names; without abstracts it needs precomputed vectors."""
    choose(split, SPLITS, "--split")
    files = DataFolder(folder)
    judged = read_judgments(files.file(f"test-pid2anns-{name}.json", "the candidates of each query with their grades"))
    parts = _read_splits(files.file(f"{name}-evaluation_splits.json", "which queries are for dev and which for test"))
    chosen = {query: judged.pop(query) for query in list(judged) if parts.get(query) == split}
    named = {paper for query, (candidates, _) in chosen.items() for paper in (query, *candidates)}
    papers = _read_papers(files, f"abstracts-{name}.jsonl", named)
    queries = [GradedQuery(query, query, *chosen[query], papers.topics.get(query, "")) for query in chosen]
    graded = clean_queries(queries, relevant=relevant)
    graded.counts["judged queries left out, since the splits file does not name them"] = sum(
        query not in parts for query in judged
    )
    graded.counts[f"{split} queries of the splits file without candidates"] = sum(
        part == split and query not in chosen for query, part in parts.items()
    )
    graded.counts[REPEATED] = papers.repeated
    texts, unknown = add_unknown_papers(papers.texts, graded.queries)
    graded.counts[UNKNOWN] = unknown
    if not graded.queries:
        raise EmptyResultError(
            f"{folder}: no {split} query of {name} has candidates; does the splits file belong to another benchmark?"
        )
    pools = make_pools(texts, graded.queries)
    data = {
        "folder": str(folder),
        "split": split,
        "files": files.hashes(),
        "papers": len(texts),
        "queries": len(pools),
        "pairs": len(pools.candidates),
    }
    return AspireBenchmark(texts, pools, graded.notes(), data)


def _read_papers(files: DataFolder, name: str, named: set[str]) -> AspirePapers:
    if not files.has(name):
        return AspirePapers(TaskTexts.of_ids(sorted(named), lacking=str(files.folder / name)), {}, 0)
    return read_abstracts(files.file(name, "the papers' titles and abstracts"), wanted=named)


# --- one record ------------------------------------------------------------------------------------------


def _judgment(path: Path, query: str, entry: Any) -> tuple[list[str], list[int]]:
    if not isinstance(entry, dict) or not all(isinstance(entry.get(key), list) for key in ("cands", "relevance_adju")):
        raise InputError(f"{path}: query {query} has no lists 'cands' and 'relevance_adju'; is this the right file?")
    candidates, grades = entry["cands"], entry["relevance_adju"]
    if len(candidates) != len(grades):
        raise InputError(
            f"{path}: query {query} has {len(candidates)} candidates and {len(grades)} grades; download the file again"
        )
    return _ids(candidates, f"{path}: query {query}: a candidate"), _grades(grades, f"{path}: query {query}: a grade")


def _ids(values: list[Any], what: str) -> list[str]:
    """Return ids as text; unchanged where all are strings, which is far faster than checking each."""
    if set(map(type, values)) <= {str} and "" not in values:
        return values
    return [as_id(value, what) for value in values]


def _grades(values: list[Any], what: str) -> list[int]:
    """Return grades as integers; unchanged where all are, which is far faster than checking each."""
    if set(map(type, values)) <= {int} and all(abs(value) <= MAX_GRADE for value in values):
        return values
    return [as_grade(value, what) for value in values]


def _sentences(path: Path, paper: str, record: Mapping[str, Any]) -> list[str]:
    """Return the sentences of a paper's abstract; none where the file has it as one string, to be split later."""
    value = record["abstract"]
    if value is None or isinstance(value, str):
        return []
    if not isinstance(value, list) or not all(isinstance(sentence, str) for sentence in value):
        raise InputError(f"{path}: the abstract of paper {paper} is not a list of sentences; is this the right file?")
    return value


def _abstract(record: Mapping[str, Any]) -> str:
    value = record["abstract"] or ""
    return value if isinstance(value, str) else " ".join(sentence.strip() for sentence in value)


def _labels(path: Path, paper: str, record: Mapping[str, Any], sentences: int) -> list[str]:
    labels = record.get("pred_labels") or []
    if labels and (not isinstance(labels, list) or len(labels) != sentences):
        raise InputError(
            f"{path}: paper {paper} has {len(labels)} labels for {sentences} sentences; download the file again"
        )
    return [str(label) for label in labels]
