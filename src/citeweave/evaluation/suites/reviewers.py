"""Reviewer matching: rank people by how well their papers fit a submission (SciRepEval's task).

    reviewer_metadata.jsonl                        {"r_id": "r1", "papers": ["p1", "p2"]}
    test_hard_qrel.jsonl, test_soft_qrel.jsonl     {"query_id": "p9", "cand_id": "r1", "score": 1}

A candidate is a person and has a row in the texts after all papers, without text; the score is the mean of the three best
cosines over the person's papers. Two tasks, `hard` and `soft`, grade the same ranking: only pairs of the hard file are
scored. Pairs that only the soft file has, and people without known papers, stay judged but are not ranked. The first of a
repeated pair counts, as in SciRepEval. Texts come from a file such as `metadata.jsonl`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from citeweave.core.errors import InputError, choose
from citeweave.core.ragged import to_offsets
from citeweave.evaluation.suites.benchmark_files import (
    DataFolder,
    as_grade,
    as_id,
    find_papers_files,
    read_json_lines,
    read_texts,
    unique,
    wrong_folder,
)
from citeweave.evaluation.tasks import Pools, RankingRule, RankingTask, Reviewers, Suite, TaskTexts

NAME = "reviewers"
METADATA, HARD, SOFT = "reviewer_metadata.jsonl", "test_hard_qrel.jsonl", "test_soft_qrel.jsonl"
METRICS = ("P_5", "P_10")
TEXTS = "metadata.jsonl"

Grades = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Judgments:
    """Relevance judgments of a qrel file, `{query: {candidate: grade}}`, and how many pairs were repeated."""

    pools: dict[str, dict[str, int]]
    repeated: int

    def paper_ids(self) -> list[str]:
        """Return the ids of every query and candidate, with repeats."""
        return [paper for query, pool in self.pools.items() for paper in (query, *pool)]


@dataclass(frozen=True)
class ReviewerMatching:
    """Benchmark of reviewer matching: the hard and soft judgments of reviewers, and the papers of each reviewer."""

    hard: Judgments
    soft: Judgments | None
    papers: Mapping[str, Sequence[str]]
    """Person -> papers."""

    def paper_ids(self) -> list[str]:
        """Return the ids of every submission and every reviewer's paper."""
        soft = self.soft.pools if self.soft else {}
        return unique([*self.hard.pools, *soft, *(paper for papers in self.papers.values() for paper in papers)])


def read_suite(folder: Path, *, split: str = "test") -> Suite:
    """Read reviewer matching from a folder: the tasks `hard` and `soft`."""
    choose(split, ("test",), "--split")
    data = DataFolder(folder)
    if not data.has(METADATA) and not data.has(HARD):
        raise wrong_folder(data.folder, NAME, f"{METADATA}, {HARD} and {SOFT}")
    people = read_json_lines(data.file(METADATA, "the papers of every reviewer"), keys=["papers"], ids=["r_id"])
    hard = data.file(HARD, "the pairs that are scored")
    not_evaluated = {}
    if not data.has(SOFT):
        not_evaluated["soft"] = f"soft needs {SOFT}, which is not in {data.folder}"
    matching = ReviewerMatching(
        hard=read_judgments(read_json_lines(hard), hard),
        soft=read_judgments(read_json_lines(data.file(SOFT, "the softer grades")), data.folder / SOFT)
        if data.has(SOFT)
        else None,
        papers=read_people(people, data.folder / METADATA),
    )
    texts = read_texts(data, find_papers_files(data.folder), matching.paper_ids(), lacking=TEXTS)
    tasks = make_matching_tasks(matching, texts)
    return Suite(
        NAME,
        tasks,
        not_evaluated=not_evaluated,
        notes=tuple(matching_notes(matching)),
        data=data.provenance(
            split, queries=len(matching.hard.pools), reviewers=len(matching.papers), papers=len(texts)
        ),
    )


def read_people(records: Iterable[Mapping[str, Any]], path: Path) -> dict[str, list[str]]:
    """Read each reviewer's papers from SciRepEval's reviewer matching; the last line of a repeated person counts."""
    people = {}
    for record in records:
        person, papers = as_id(record.get("r_id"), f"{path}: r_id"), record.get("papers")
        if not isinstance(papers, list):
            raise InputError(f"{path}: the papers of {person!r} are not a list of ids; download the file again")
        people[person] = [as_id(paper, f"{path}: a paper of {person!r}") for paper in papers]
    return people


def read_judgments(records: Iterable[Mapping[str, Any]], path: Path) -> Judgments:
    """Read judgments of reviewers for submissions from SciRepEval's qrel records; the first of a repeated pair counts."""
    pools: dict[str, dict[str, int]] = {}
    repeated = 0
    for number, record in enumerate(records, 1):
        if absent := [key for key in ("query_id", "cand_id", "score") if key not in record]:
            raise InputError(f"{path} record {number} has no {absent[0]!r}; is this the right file?")
        pool = pools.setdefault(as_id(record["query_id"], f"{path} record {number}: query_id"), {})
        candidate = as_id(record["cand_id"], f"{path} record {number}: cand_id")
        repeated += candidate in pool
        pool.setdefault(candidate, as_grade(record["score"], f"{path} record {number}: score"))
    if not pools:
        raise InputError(f"{path} holds no pairs; download the file again")
    return Judgments(pools, repeated)


def make_matching_tasks(
    matching: ReviewerMatching, papers: TaskTexts, *, metrics: tuple[str, ...] = METRICS, prefix: str = ""
) -> tuple[RankingTask, ...]:
    """Return the reviewer-matching tasks `hard` and `soft`, named after `prefix`; `papers` are texts of `paper_ids`."""
    soft = matching.soft.pools if matching.soft else {}
    persons = unique(
        [*matching.papers, *(name for pools in (matching.hard.pools, soft) for pool in pools.values() for name in pool)]
    )
    texts = papers.append(persons)  # papers come first: an id shared with a person means the paper
    first = len(papers)
    lists = [papers.rows(matching.papers.get(person, ())) for person in persons]
    offsets = to_offsets([0] * first + [len(rows) for rows in lists])
    reviewers = Reviewers(offsets, np.concatenate([np.empty(0, np.int64), *lists]))
    rule = RankingRule(metrics=metrics, distance="cosine", peers="stop")
    row_of = {person: first + place for place, person in enumerate(persons)}
    graded = {"hard": matching.hard.pools, "soft": soft}
    return tuple(
        RankingTask(prefix + name, texts, _pools(matching, grades, papers, row_of), rule, reviewers=reviewers)
        for name, grades in graded.items()
        if grades
    )


def matching_notes(matching: ReviewerMatching) -> Iterable[str]:
    """Yield notes on a reviewer benchmark: repeated pairs, reviewers without papers, queries without ranked pairs."""
    for name, judgments in (("hard", matching.hard), ("soft", matching.soft)):
        if judgments and judgments.repeated:
            yield f"{judgments.repeated} pairs of the {name} file are repeated; the first counts, as in SciRepEval"
    judged = {person for pool in matching.hard.pools.values() for person in pool}
    if unknown := sum(not matching.papers.get(person) for person in judged):
        yield f"{unknown} of {len(judged)} reviewers have no known papers: they are judged but not ranked"
    if matching.soft and (apart := set(matching.soft.pools) - set(matching.hard.pools)):
        yield f"{len(apart)} queries of the soft file are not in the hard file: nothing is ranked for them"


def _pools(matching: ReviewerMatching, grades: Grades, papers: TaskTexts, row_of: Mapping[str, int]) -> Pools:
    """Return the pools of reviewers: pairs of the hard file and of `grades`; ranked but ungraded pairs have grade 0."""
    queries = [query for query in matching.hard.pools if query in grades]
    pools = [{**dict.fromkeys(matching.hard.pools[query], 0), **grades[query]} for query in queries]
    scored = [
        person in matching.hard.pools[query] and bool(matching.papers.get(person))
        for query, pool in zip(queries, pools, strict=True)
        for person in pool
    ]
    return Pools(
        queries=papers.rows(queries),
        offsets=to_offsets([len(pool) for pool in pools]),
        candidates=np.array([row_of[person] for pool in pools for person in pool], np.int64),
        grades=np.array([grade for pool in pools for grade in pool.values()], np.int64),
        names=queries,
        scored=np.array(scored, bool),
    )
