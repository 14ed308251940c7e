"""ASPIRE's form of a benchmark: abstracts in sentences, and for each query paper its candidates with their grades.

    abstracts-relish.jsonl           {"paper_id": "1", "title": "T", "abstract": ["One.", "Two."]}
    test-pid2anns-relish.json        {"1": {"cands": ["2", "3"], "relevance_adju": [2, 0]}}
    relish-evaluation_splits.json    {"1": "test"}   or   {"test": ["1"], "dev": []}

CSFCube is in the same form, one file of candidates a facet. Which grade is relevant, and which metrics are asked, the
suites say. Does not score.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from citeweave.core.errors import EmptyResultError, InputError, choose
from citeweave.evaluation.suites.benchmark_files import (
    HIGHEST_GRADE,
    DataFolder,
    as_grade,
    as_id,
    read_json,
    read_json_lines,
)
from citeweave.evaluation.suites.benchmark_records import (
    REPEATED,
    UNKNOWN,
    GradedQuery,
    clean_queries,
    make_pools,
    with_unknown,
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
"""What CSFCube's script prints, and the true R-precision; what the script calls so is `precision_at_last_relevant`."""

CALLED = {"av_precision": "map"}
"""As the papers call it."""


@dataclass(frozen=True)
class PaperFacts:
    """What an abstracts file says of each paper."""

    texts: TaskTexts
    topics: Mapping[str, str]
    """Paper -> its topic, where the file knows one (TRECCOVID-RF)."""

    repeated: int
    """Lines that name a paper again; the last one counts, as in ASPIRE's reader."""


# --- reading ---------------------------------------------------------------------------------------


def read_abstracts(path: Path, *, wanted: Iterable[str] | None = None) -> PaperFacts:
    """The papers of an abstracts file, or those of them that are wanted."""
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
    return PaperFacts(texts, topics, lines - len(records))


def read_judgments(path: Path) -> dict[str, tuple[list[str], list[int]]]:
    """`{query: (candidates, grades)}` of a pid2anns file; `relevance_adju` is the grade that counts."""
    value = read_json(path)
    if not isinstance(value, dict) or not value:
        raise InputError(f"{path} holds no JSON object of queries; is it another file?")
    return {query: _judgment(path, query, entry) for query, entry in value.items()}


def read_splits(path: Path) -> dict[str, str]:
    """`{query: split}`, from either form: `{query: split}` or `{split: [queries]}`."""
    value = read_json(path)
    if not isinstance(value, dict) or not value:
        raise InputError(f"{path} holds no JSON object with splits; is it another file?")
    if all(isinstance(part, list) for part in value.values()):
        return {as_id(query, f"{path}: a query of {split}"): split for split, part in value.items() for query in part}
    for query, split in value.items():
        if split not in SPLITS:
            raise InputError(f"{path}: the split of query {query} is {split!r}; it must be dev or test")
    return dict(value)


# --- a suite of one task -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Read:
    """One benchmark of this form, one split of it."""

    texts: TaskTexts
    pools: Pools
    notes: tuple[str, ...]
    data: dict[str, Any]


def read_benchmark(folder: Path, name: str, *, split: str, relevant: int) -> Read:
    """Abstracts, pools and splits of `name` (as in its file names); without abstracts only given vectors can be judged."""
    choose(split, SPLITS, "--split")
    files = DataFolder(folder)
    judged = read_judgments(files.file(f"test-pid2anns-{name}.json", "the candidates of each query with their grades"))
    parts = read_splits(files.file(f"{name}-evaluation_splits.json", "which queries are for dev and which for test"))
    chosen = {query: judged.pop(query) for query in list(judged) if parts.get(query) == split}
    named = {paper for query, (candidates, _) in chosen.items() for paper in (query, *candidates)}
    facts = _papers(files, f"abstracts-{name}.jsonl", named)
    queries = [GradedQuery(query, query, *chosen[query], facts.topics.get(query, "")) for query in chosen]
    asked = clean_queries(queries, relevant=relevant)
    asked.counts["judged queries left out, since the splits file does not name them"] = sum(
        q not in parts for q in judged
    )
    asked.counts[f"{split} queries of the splits file without candidates"] = sum(
        part == split and query not in chosen for query, part in parts.items()
    )
    asked.counts[REPEATED] = facts.repeated
    texts, unknown = with_unknown(facts.texts, asked.queries)
    asked.counts[UNKNOWN] = unknown
    if not asked.queries:
        raise EmptyResultError(
            f"{folder}: no {split} query of {name} has candidates; is the splits file of another set?"
        )
    pools = make_pools(texts, asked.queries)
    data = {
        "folder": str(folder),
        "split": split,
        "files": files.hashes(),
        "papers": len(texts),
        "queries": len(pools),
        "pairs": len(pools.candidates),
    }
    return Read(texts, pools, asked.notes(), data)


def _papers(files: DataFolder, name: str, named: set[str]) -> PaperFacts:
    if not files.has(name):
        return PaperFacts(TaskTexts.of_ids(sorted(named), lacking=str(files.folder / name)), {}, 0)
    return read_abstracts(files.file(name, "the papers' titles and abstracts"), wanted=named)


# --- one record --------------------------------------------------------------------------------------


def _judgment(path: Path, query: str, entry: Any) -> tuple[list[str], list[int]]:
    if not isinstance(entry, dict) or not all(isinstance(entry.get(key), list) for key in ("cands", "relevance_adju")):
        raise InputError(f"{path}: query {query} has no lists 'cands' and 'relevance_adju'; is it another file?")
    candidates, grades = entry["cands"], entry["relevance_adju"]
    if len(candidates) != len(grades):
        raise InputError(
            f"{path}: query {query} has {len(candidates)} candidates and {len(grades)} grades; get the file again"
        )
    return _ids(candidates, f"{path}: query {query}: a candidate"), _grades(grades, f"{path}: query {query}: a grade")


def _ids(values: list[Any], what: str) -> list[str]:
    """The values as they are where all are texts, which is faster by far than asking each."""
    if set(map(type, values)) <= {str} and "" not in values:
        return values
    return [as_id(value, what) for value in values]


def _grades(values: list[Any], what: str) -> list[int]:
    """The values as they are where all are such numbers, which is faster by far than asking each."""
    if set(map(type, values)) <= {int} and all(abs(value) <= HIGHEST_GRADE for value in values):
        return values
    return [as_grade(value, what) for value in values]


def _sentences(path: Path, paper: str, record: Mapping[str, Any]) -> list[str]:
    """The abstract's sentences; none where the file holds it in one piece, to be split later."""
    value = record["abstract"]
    if value is None or isinstance(value, str):
        return []
    if not isinstance(value, list) or not all(isinstance(sentence, str) for sentence in value):
        raise InputError(f"{path}: the abstract of paper {paper} is no list of sentences; is it another file?")
    return value


def _abstract(record: Mapping[str, Any]) -> str:
    value = record["abstract"] or ""
    return value if isinstance(value, str) else " ".join(sentence.strip() for sentence in value)


def _labels(path: Path, paper: str, record: Mapping[str, Any], sentences: int) -> list[str]:
    labels = record.get("pred_labels") or []
    if labels and (not isinstance(labels, list) or len(labels) != sentences):
        raise InputError(
            f"{path}: paper {paper} has {len(labels)} labels for {sentences} sentences; get the file again"
        )
    return [str(label) for label in labels]
