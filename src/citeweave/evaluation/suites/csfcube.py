"""CSFCube: papers that are similar to a query paper in one facet: its background, its method or its result.

    abstracts-csfcube-preds.jsonl            papers in sentences, each with its predicted facet
    test-pid2anns-csfcube-{facet}.json       candidates of each query with grades 0 to 3
    evaluation_splits.json                   {facet: {"fold1_test": ["1587_background", ...], ...}}

or the same as `papers.jsonl`, `judgements.jsonl` and `evaluation_splits.json`. The tasks are the three facets and `all`.
The test value is the mean of two folds' means; dev is `fold1_dev` alone, since both dev folds together are the test set.
Only a query's sentences of the facet count (objective counts as background); candidates are complete, and a model with one
vector per paper does not see the facet. Single vectors are compared by L2, as ASPIRE does it (Mysore et al., NAACL 2022,
section 4). A query among its own candidates is left out of them. Mysore et al., NeurIPS 2021 (datasets).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import InputError, choose
from citeweave.evaluation.suites import aspire
from citeweave.evaluation.suites.benchmark_files import (
    REPEATED,
    DataFolder,
    as_grade,
    as_id,
    read_json,
    read_json_lines,
    recognize_suite,
    word_counts,
    wrong_folder,
)
from citeweave.evaluation.tasks import RankingRule, RankingTask, Suite, TaskTexts

NAME = "csfcube"
FACETS = ("background", "method", "result")
RULE = RankingRule(metrics=aspire.METRICS, family="csfcube", relevant=2, distance="l2")

_ABSTRACTS = "abstracts-csfcube-preds.jsonl"
_SPLITS = "evaluation_splits.json"
_PAPERS, _JUDGMENTS = "papers.jsonl", "judgements.jsonl"


Folds = Mapping[str, Sequence[Sequence[str]]]
"""Task -> names of queries, fold by fold."""


@dataclass(frozen=True)
class _Layout:
    """CSFCube's texts and judged queries, from either layout of its files."""

    texts: TaskTexts
    queries: list[aspire.GradedQuery]
    missing: Mapping[str, str]
    """Facet -> why it cannot be evaluated."""

    repeated: int = 0


def read_suite(folder: str | Path, *, split: str = "test") -> Suite:
    """Read CSFCube from a folder, in either layout: three facets and `all`."""
    choose(split, aspire.SPLITS, "--split")
    files = DataFolder(folder)
    layout = _read_layout(files)
    folds = _read_folds(files, split, [facet for facet in FACETS if facet not in layout.missing])
    in_folds = {name for part in folds.values() for fold in part for name in fold}
    chosen = [_with_sentences(query, layout.texts) for query in layout.queries if query.name in in_folds]
    queries, counts = aspire.clean_queries(chosen, relevant=RULE.relevant)
    texts, unknown = aspire.add_unknown_papers(layout.texts, queries)
    if split == "test":
        counts["judged queries left out, since no fold names them"] = len(layout.queries) - len(chosen)
    counts["queries without a sentence of their facet, of which all sentences count"] = (
        0 if texts.labels is None else sum(query.sentences is None for query in queries)
    )
    counts |= {REPEATED: layout.repeated, aspire.UNKNOWN: unknown}
    not_evaluated = dict(layout.missing)
    if layout.missing:
        not_evaluated["all"] = f"it needs every facet: {'; '.join(layout.missing.values())}"
    by_name = {query.name: query for query in queries}
    pairs = sum(len(query.candidates) for query in queries)
    return Suite(
        NAME,
        tuple(_task(name, texts, by_name, part, files.folder / _SPLITS) for name, part in folds.items()),
        headline=("all.map", "all.ndcg%20"),
        not_evaluated=not_evaluated,
        notes=word_counts(counts),
        data=files.provenance(split, papers=len(texts), queries=len(queries), pairs=pairs),
    )


def _facet_rows(labels: Sequence[str], facet: str) -> NDArray[np.int64] | None:
    """Return which sentences of a CSFCube paper are of the facet, None where none is.

    >>> _facet_rows(["background_label", "objective_label", "method_label"], "background").tolist()
    [0, 1]
    """
    rows = [row for row, label in enumerate(labels) if _facet(label) == facet]
    return np.array(rows, np.int64) if rows else None


def _facet(label: str) -> str:
    name = label.removesuffix("_label")
    return "background" if name == "objective" else name


def _task(
    name: str, texts: TaskTexts, queries: Mapping[str, aspire.GradedQuery], folds: Sequence[Sequence[str]], splits: Path
) -> RankingTask:
    names = [query for fold in folds for query in fold]
    if lost := [query for query in names if query not in queries]:
        raise InputError(
            f"{splits} names {len(lost)} queries that are not judged, such as {lost[0]!r}; "
            "the files belong to different sets or are half downloaded: download them again"
        )
    pools = aspire.make_pools(texts, [queries[query] for query in names])
    return RankingTask(name, texts, pools, RULE, folds=folds, called=aspire.REPORTED_NAMES)


def _with_sentences(query: aspire.GradedQuery, texts: TaskTexts) -> aspire.GradedQuery:
    row = int(texts.rows([query.paper])[0])
    if texts.labels is None or row < 0:
        return query
    return replace(query, sentences=_facet_rows(texts.labels[row], query.group))


def _read_folds(files: DataFolder, split: str, facets: Sequence[str]) -> Folds:
    """Read the folds of each CSFCube task that can be evaluated; `all` only where every facet can."""
    path = files.file(_SPLITS, "the folds of queries that the protocol averages over")
    value = read_json(path)
    folds = {facet: _folds_of(path, value, facet, split) for facet in facets}
    if len(facets) == len(FACETS):
        folds["all"] = [list(chain(*parts)) for parts in zip(*folds.values(), strict=True)]
    return folds


def _folds_of(path: Path, value: Any, facet: str, split: str) -> list[list[str]]:
    wanted = ["fold1_test", "fold2_test"] if split == "test" else ["fold1_dev"]
    part = value.get(facet) if isinstance(value, dict) else None
    folds = []
    for fold in wanted:
        names = part.get(fold) if isinstance(part, dict) else None
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise InputError(f"{path} has no list of queries {facet}.{fold}; is this CSFCube's splits file?")
        folds.append(names)
    return folds


# --- the two layouts -------------------------------------------------------------------------------------


def _read_layout(files: DataFolder) -> _Layout:
    names = {facet: f"test-pid2anns-csfcube-{facet}.json" for facet in FACETS}
    if any(files.has(name) for name in names.values()):
        return _read_release(files, names)
    if files.has(_JUDGMENTS) and recognize_suite(files.folder)[0] in (NAME, ""):
        return _read_flat(files)
    raise wrong_folder(files.folder, NAME, f"{', '.join(names.values())} and {_SPLITS} (or {_PAPERS} and {_JUDGMENTS})")


def _read_release(files: DataFolder, names: Mapping[str, str]) -> _Layout:
    missing = {facet: f"{files.folder / name} is missing" for facet, name in names.items() if not files.has(name)}
    queries = [
        aspire.GradedQuery(f"{paper}_{facet}", paper, candidates, grades, facet)
        for facet in FACETS
        if facet not in missing
        for paper, (candidates, grades) in aspire.read_judgments(files.file(names[facet], "grades")).items()
    ]
    if not files.has(_ABSTRACTS):
        named = dict.fromkeys(paper for query in queries for paper in (query.paper, *query.candidates))
        return _Layout(TaskTexts.of_ids(list(named), lacking=str(files.folder / _ABSTRACTS)), queries, missing)
    papers = aspire.read_abstracts(files.file(_ABSTRACTS, "the papers in sentences"))
    return _Layout(papers.texts, queries, missing, papers.repeated)


def _read_flat(files: DataFolder) -> _Layout:
    path = files.file(_JUDGMENTS, "the candidates of each query and facet with their grades")
    queries = []
    for number, record in enumerate(read_json_lines(path, ids=("query",), keys=("candidates", "relevance")), 1):
        where = f"{path} record {number}"
        if record.get("facet") not in FACETS:
            raise InputError(f"{where} has no facet of {', '.join(FACETS)}; does the file belong to another benchmark?")
        if not all(isinstance(record[key], list) for key in ("candidates", "relevance")):
            raise InputError(f"{where}: candidates and relevance must be lists; download the file again")
        candidates = [as_id(paper, f"{where}: a candidate") for paper in record["candidates"]]
        grades = [as_grade(grade, f"{where}: a grade") for grade in record["relevance"]]
        if len(candidates) != len(grades):
            raise InputError(f"{where}: {len(candidates)} candidates and {len(grades)} grades; download the file again")
        name = f"{record['query']}_{record['facet']}"
        queries.append(aspire.GradedQuery(name, record["query"], candidates, grades, record["facet"]))
    judged = {query.group for query in queries}
    missing = {facet: f"{path} judges no query of it" for facet in FACETS if facet not in judged}
    return _Layout(_read_papers(files), queries, missing)


def _read_papers(files: DataFolder) -> TaskTexts:
    path = files.file(_PAPERS, "the papers' titles, abstracts and sentences")
    keys = ("title", "abstract", "abstract_sentences", "sentence_facets_predicted")
    records = {record["id"]: record for record in read_json_lines(path, ids=("id",), keys=keys)}
    for paper, record in records.items():
        if len(record["abstract_sentences"]) != len(record["sentence_facets_predicted"]):
            raise InputError(f"{path}: paper {paper} does not have one facet per sentence; download the file again")
    return TaskTexts(
        ids=list(records),
        titles=[str(record["title"] or "") for record in records.values()],
        abstracts=[str(record["abstract"] or "") for record in records.values()],
        sentences=[record["abstract_sentences"] for record in records.values()],
        labels=[record["sentence_facets_predicted"] for record in records.values()],
    )
