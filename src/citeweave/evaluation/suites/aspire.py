"""RELISH and ASPIRE's benchmark format, shared by TRECCOVID-RF and CSFCube: abstracts and graded candidates.

    abstracts-relish.jsonl           {"paper_id": "1", "title": "T", "abstract": ["One.", "Two."]}
    test-pid2anns-relish.json        {"1": {"cands": ["2", "3"], "relevance_adju": [2, 0]}}
    relish-evaluation_splits.json    {"1": "test"}   or   {"test": ["1"], "dev": []}

RELISH (Brown et al., 2019) has abstracts that biomedical experts judged relevant (2), partial (1) or irrelevant (0) to a
query; SciRepEval's RELISH is another task, with other files and another metric. CSFCube has one file of candidates per
facet. Which grade counts as relevant is up to each suite. Does not score.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import EmptyResultError, InputError, choose
from citeweave.core.ragged import to_offsets
from citeweave.evaluation.suites.benchmark_files import (
    MAX_GRADE,
    REPEATED,
    DataFolder,
    as_grade,
    as_id,
    read_json,
    read_json_lines,
    word_counts,
    wrong_folder,
)
from citeweave.evaluation.tasks import Pools, RankingRule, RankingTask, Suite, TaskTexts

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

UNKNOWN = "papers without text, which only the pools name"

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


# --- queries with graded candidates ----------------------------------------------------------------------


@dataclass(frozen=True)
class GradedQuery:
    """Labels of a benchmark's query paper: its candidates and their relevance grades."""

    name: str
    """The name of the query in reports."""

    paper: str
    candidates: Sequence[str]
    grades: Sequence[int]
    group: str = ""
    sentences: NDArray[np.int64] | None = None
    """Which sentences of the query paper count, None = all."""


def clean_queries(queries: Iterable[GradedQuery], *, relevant: int) -> tuple[list[GradedQuery], Counter[str]]:
    """Clean a benchmark's labels, the graded candidates: remove each query from its own, and repeats; sort them by id.

    The order matters: ASPIRE's files list relevant papers first, so a model that scores all candidates the same would
    be right by the order alone. The counts word the changes for the suite's notes.

    >>> queries, counts = clean_queries([GradedQuery("q", "q", ["b", "q", "a"], [2, 3, 0])], relevant=2)
    >>> queries[0].candidates, word_counts(counts)
    (['a', 'b'], ('candidates left out, since they are the query itself: 1',))
    """
    counts: Counter[str] = Counter()
    cleaned = []
    for query in queries:
        grades = dict(zip(query.candidates, query.grades, strict=True))
        counts["candidates named twice, of which the last grade counts"] += len(query.candidates) - len(grades)
        if query.paper in grades:
            del grades[query.paper]
            counts["candidates left out, since they are the query itself"] += 1
        counts["queries left out, since they have no candidates"] += not grades
        if grades:
            counts["queries without relevant papers, which count as 0"] += max(grades.values()) < relevant
            names = sorted(grades)
            cleaned.append(replace(query, candidates=names, grades=[grades[name] for name in names]))
    return cleaned, counts


def add_unknown_papers(texts: TaskTexts, queries: Sequence[GradedQuery]) -> tuple[TaskTexts, int]:
    """Return the texts with an empty row for each paper that only a benchmark's labels name, and how many those are."""
    named = {query.paper for query in queries}.union(*(query.candidates for query in queries))
    unknown = sorted(named.difference(texts.ids))
    return (texts.append(unknown) if unknown else texts), len(unknown)


def make_pools(texts: TaskTexts, queries: Sequence[GradedQuery]) -> Pools:
    """Turn a benchmark's labels into pools: queries and graded candidates as rows of the texts, which have them all."""
    if not queries:
        raise EmptyResultError("no query is left to evaluate; check the split and the folder")
    candidates = np.concatenate([texts.rows(query.candidates) for query in queries])
    rows = texts.rows([query.paper for query in queries])
    assert (candidates >= 0).all() and (rows >= 0).all(), "add_unknown_papers gives every paper a row"
    grouped, aspects = any(query.group for query in queries), any(query.sentences is not None for query in queries)
    return Pools(
        queries=rows,
        offsets=to_offsets([len(query.candidates) for query in queries]),
        candidates=candidates,
        grades=np.concatenate([np.array(query.grades, np.int64) for query in queries]),
        names=[query.name for query in queries],
        sentences=[query.sentences for query in queries] if aspects else None,
        groups=[query.group for query in queries] if grouped else None,
    )


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


# --- RELISH, and other suites of one task ----------------------------------------------------------------


def read_suite(folder: str | Path, *, split: str = "test") -> Suite:
    """Read RELISH from a folder: one task, `relish`, in which a paper is relevant from grade 2 on."""
    return read_single_task("relish", folder, split, "relish", relevant=2)


def read_single_task(suite: str, folder: str | Path, split: str, name: str, *, relevant: int, hint: str = "") -> Suite:
    """Read one split of a suite of one task in ASPIRE's format; `name` is its name in file names.

    Without abstracts it needs precomputed vectors. The value is the mean over the split's queries (ASPIRE, evaluate.py).
    """
    files, pools_file = DataFolder(folder), f"test-pid2anns-{name}.json"
    splits_file, abstracts_file = f"{name}-evaluation_splits.json", f"abstracts-{name}.jsonl"
    if not files.has(pools_file) and not files.has(abstracts_file):
        raise wrong_folder(files.folder, suite, f"{pools_file}, {splits_file} and {abstracts_file}{hint}")
    choose(split, SPLITS, "--split")
    judged = read_judgments(files.file(pools_file, "the candidates of each query with their grades"))
    parts = _read_splits(files.file(splits_file, "which queries are for dev and which for test"))
    chosen = {query: judged.pop(query) for query in list(judged) if parts.get(query) == split}
    named = {paper for query, (candidates, _) in chosen.items() for paper in (query, *candidates)}
    papers = _read_papers(files, abstracts_file, named)
    graded = [GradedQuery(query, query, *chosen[query], papers.topics.get(query, "")) for query in chosen]
    queries, counts = clean_queries(graded, relevant=relevant)
    counts["judged queries left out, since the splits file does not name them"] = sum(
        query not in parts for query in judged
    )
    counts[f"{split} queries of the splits file without candidates"] = sum(
        part == split and query not in chosen for query, part in parts.items()
    )
    counts[REPEATED] = papers.repeated
    texts, counts[UNKNOWN] = add_unknown_papers(papers.texts, queries)
    if not queries:
        raise EmptyResultError(
            f"{folder}: no {split} query of {name} has candidates; does the splits file belong to another benchmark?"
        )
    pools = make_pools(texts, queries)
    rule = RankingRule(metrics=METRICS, family="csfcube", relevant=relevant, distance="l2")
    return Suite(
        suite,
        (RankingTask(suite, texts, pools, rule, called=REPORTED_NAMES),),
        headline=(f"{suite}.map", f"{suite}.ndcg%20"),
        notes=word_counts(counts),
        data=files.provenance(split, papers=len(texts), queries=len(pools), pairs=len(pools.candidates)),
    )


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
