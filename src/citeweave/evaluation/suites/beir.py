"""Search in a BEIR folder: find a question's papers among all papers of the corpus.

    corpus.jsonl       {"_id": "p1", "title": "T", "text": "An abstract."}
    queries.jsonl      {"_id": "q1", "text": "a question"}
    qrels/test.tsv     query-id <tab> corpus-id <tab> score, after a line with these names

Also a folder with SciTLDR's summaries (`papers.jsonl` with `tldr`: each summary asks for its paper), and one with
small graded lists (`papers.jsonl`, `judgements.jsonl` with `query_text`), where only a question's own list is ordered.
BEIR takes the best 1,000 papers by cosine and asks first for NDCG@10 (Thakur et al., NeurIPS 2021, datasets).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from citeweave.errors import InputError
from citeweave.evaluation.suites.building.summaries import holds_summaries, read_summaries
from citeweave.evaluation.suites.collection import NO_ANSWER, PREFIX, REPEATED, Collection, search_task
from citeweave.evaluation.suites.files import DataFolder, as_grade, as_id, read_json_lines
from citeweave.evaluation.suites.recognising import recognise, refuse
from citeweave.evaluation.tasks import Pools, RankingRule, RankingTask, Suite
from citeweave.evaluation.texts import Texts
from citeweave.opening import Source

NAME = "beir"
RULE = RankingRule(
    metrics=("ndcg_cut_10", "map", "recall_10", "recall_100", "recip_rank"), distance="cosine", family="trec"
)
"""The first metric is the main one; with 1,000 papers found, map and recip_rank are MTEB's map_at_1000, mrr_at_1000."""

LISTS_RULE = RankingRule(metrics=("ndcg", "map", "recip_rank"), distance="l2", family="trec")
"""SciRepEval's search tasks: NDCG over the list, by L2."""


def read_suite(folder: str | Path, *, split: str = "test") -> Suite:
    """The suite of a folder: one task, `search`."""
    files = DataFolder(folder)
    if files.has("corpus.jsonl") or files.has("queries.jsonl"):
        return _as_suite(files, read_collection(files, split), split)
    if files.has("judgements.jsonl") and recognise(files.folder)[0] == NAME:
        return _read_lists(files, split)
    if holds_summaries(files):
        return _as_suite(files, read_summaries(files, split), split)
    raise refuse(files.folder, NAME, f"corpus.jsonl, queries.jsonl and qrels/{split}.tsv")


def read_collection(files: DataFolder, split: str) -> Collection:
    """One split of a BEIR folder."""
    counts: Counter[str] = Counter()
    papers: dict[str, tuple[str, str]] = {}
    for record in read_json_lines(files.file("corpus.jsonl", "the papers"), ids=("_id",), keys=("text",)):
        counts[REPEATED] += record["_id"] in papers
        papers[record["_id"]] = str(record.get("title") or ""), str(record["text"] or "")
    questions = {
        record["_id"]: str(record["text"] or "")
        for record in read_json_lines(files.file("queries.jsonl", "the questions"), ids=("_id",), keys=("text",))
    }
    return Collection(papers, questions, read_qrels(_qrels_file(files, split)), counts)


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """`{question: {paper: grade}}` of a BEIR table; its first line may be the names of the columns."""
    grades: dict[str, dict[str, int]] = {}
    with Source(path).open() as stream:
        for number, line in enumerate(stream, 1):
            parts = line.decode("utf-8-sig", "replace").rstrip("\r\n").split("\t")
            if not line.strip() or (number == 1 and parts[0] == "query-id"):
                continue
            if len(parts) != 3:
                raise InputError(
                    f"{path} line {number} has {len(parts)} of the 3 columns query-id, corpus-id, score; "
                    "they are parted by tabs: get the file again or convert it"
                )
            grade = as_grade(parts[2], f"{path} line {number}: the score")
            pool = grades.setdefault(parts[0], {})
            if pool.setdefault(parts[1], grade) != grade:
                raise InputError(f"{path} line {number} gives {parts[0]} and {parts[1]} another score; remove one line")
    if not grades:
        raise InputError(f"{path} judges nothing; the file is damaged or half downloaded: get it again")
    return grades


def _qrels_file(files: DataFolder, split: str) -> Path:
    name = f"qrels/{split}.tsv"
    others = sorted(path.name.split(".")[0] for path in (files.folder / "qrels").glob("*.tsv*"))
    if not files.has(name) and others:
        raise InputError(
            f"{files.folder / name} is missing; the folder has the splits {', '.join(others)}: use --split"
        )
    return files.file(name, "which papers answer which question")


# --- a suite of it -----------------------------------------------------------------------------------


def _as_suite(files: DataFolder, collection: Collection, split: str) -> Suite:
    task, counts = search_task(collection, RULE)
    return Suite(
        NAME,
        (task,),
        headline=("search.ndcg_cut_10",),
        notes=_notes(counts),
        data=_data(
            files, split, papers=len(collection.papers), queries=len(task.judged), pairs=len(task.judged.grades)
        ),
    )


def _read_lists(files: DataFolder, split: str) -> Suite:
    """Questions with a small graded list of papers each: only the list is ordered."""
    if split != "test":
        raise InputError(f"{files.folder} has no splits, so no {split!r}; leave --split at test")
    lists = _graded_lists(files.file("judgements.jsonl", "the questions, each with its graded papers"))
    path = files.file("papers.jsonl", "the papers")
    papers = {record["id"]: record for record in read_json_lines(path, ids=("id",), keys=("title", "abstract"))}
    named = list(dict.fromkeys(paper for _, pool in lists for paper in pool))
    known = [papers.get(paper, {}) for paper in named]
    pools = {f"{PREFIX}{number}": pool for number, (_, pool) in enumerate(lists, 1)}
    texts = Texts(
        ids=[*named, *pools],
        titles=[str(record.get("title") or "") for record in known] + [question for question, _ in lists],
        abstracts=[str(record.get("abstract") or "") for record in known] + [""] * len(pools),
    )
    task = RankingTask("search", texts, Pools.of(texts, pools), LISTS_RULE)
    counts = Counter({NO_ANSWER: sum(max(pool.values()) < LISTS_RULE.relevant for _, pool in lists)})
    counts["papers without text, which only the lists name"] = sum(paper not in papers for paper in named)
    return Suite(
        NAME,
        (task,),
        headline=("search.ndcg",),
        notes=(*_notes(counts), "each question's own list is ordered, not all papers searched"),
        data=_data(files, split, papers=len(named), queries=len(pools), pairs=len(task.pools.grades)),
    )


def _graded_lists(path: Path) -> list[tuple[str, dict[str, int]]]:
    lists = []
    for number, record in enumerate(read_json_lines(path, keys=("query_text", "candidates", "relevance")), 1):
        where, candidates, grades = f"{path} record {number}", record["candidates"], record["relevance"]
        if not isinstance(candidates, list) or not isinstance(grades, list) or not candidates:
            raise InputError(f"{where} has no lists of candidates and relevance; get the file again")
        if len(candidates) != len(grades):
            raise InputError(f"{where} has {len(candidates)} candidates and {len(grades)} grades; get the file again")
        pool = {
            as_id(paper, f"{where}: a candidate"): as_grade(grade, f"{where}: a grade")
            for paper, grade in zip(candidates, grades, strict=True)
        }
        lists.append((str(record["query_text"]), pool))
    return lists


def _notes(counts: Counter[str]) -> tuple[str, ...]:
    return tuple(f"{what}: {number:,}" for what, number in counts.items() if number)


def _data(files: DataFolder, split: str, **counts: int) -> dict[str, Any]:
    return {"folder": str(files.folder), "split": split, "files": files.hashes(), **counts}
