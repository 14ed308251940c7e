"""A search benchmark in memory, and the task that it asks: find a question's papers among all papers.

    >>> collection = Collection({"p1": ("T", "An abstract."), "p2": ("U", "")}, {"q1": "a question"}, {"q1": {"p2": 1}})
    >>> task, counts = search_task(collection, RankingRule(metrics=("ndcg_cut_10",)))
    >>> list(task.texts.ids), task.candidates.tolist(), task.judged.candidates.tolist()
    (['p1', 'p2', 'q1'], [0, 1], [1])

Does not read files: `beir` and `building.summaries` do.

SciTLDR as a search benchmark: a paper's one-line summary asks for the paper.

    papers.jsonl      {"id": "p1", "title": "T", "abstract": "A.", "tldr": ["What it does."], "split": "test"}

becomes the question `p1#1`, answered by p1, among the papers of all splits. A summary that stands word for word in its
paper's title or abstract is left out: finding it would tell nothing. The same work under two ids (equal titles, or
an equal summary) answers with both. Cachola et al., Findings of EMNLP 2020.

Search in a BEIR folder: find a question's papers among all papers of the corpus.

    corpus.jsonl       {"_id": "p1", "title": "T", "text": "An abstract."}
    queries.jsonl      {"_id": "q1", "text": "a question"}
    qrels/test.tsv     query-id <tab> corpus-id <tab> score, after a line with these names

Also a folder with SciTLDR's summaries (`papers.jsonl` with `tldr`: each summary asks for its paper), and one with
small graded lists (`papers.jsonl`, `judgments.jsonl` with `query_text`), where only a question's own list is ordered.
BEIR takes the best 1,000 papers by cosine and asks first for NDCG@10 (Thakur et al., NeurIPS 2021, datasets).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from citeweave.core.artifact import new_artifact
from citeweave.core.errors import EmptyResultError, InputError
from citeweave.core.files import hash_file
from citeweave.core.inputs import Source
from citeweave.evaluation.suites.benchmark_files import (
    DataFolder,
    as_grade,
    as_id,
    find,
    read_json_lines,
    recognize,
    refuse,
)
from citeweave.evaluation.tasks import Pools, RankingRule, RankingTask, SearchTask, Suite, TaskTexts

PREFIX = "query:"
"""Before the ids of questions where some of them are ids of papers too."""

REPEATED = "papers given twice, of which the last line counts"
NO_ANSWER = "questions without relevant papers, which count as 0"


@dataclass(frozen=True)
class Collection:
    """A search benchmark in memory: one split of it."""

    papers: Mapping[str, tuple[str, str]]
    """Id -> title and abstract."""

    questions: Mapping[str, str]
    """Id -> text; others than those that are judged may be there."""

    grades: Mapping[str, Mapping[str, int]]
    """Question -> paper -> grade."""

    counts: Counter[str] = field(default_factory=Counter)
    """What a careful reader must know."""


def search_task(collection: Collection, rule: RankingRule, *, name: str = "search") -> tuple[SearchTask, Counter[str]]:
    """Search among all papers, and counts of what is odd in the data.

    A paper that is judged and not in the corpus cannot be found, but counts among what there was to find.
    """
    counts, papers = Counter(collection.counts), collection.papers
    asked = {question: pool for question, pool in collection.grades.items() if question in collection.questions}
    counts["judged questions left out, since their text is missing"] = len(collection.grades) - len(asked)
    if not asked:
        raise EmptyResultError("no judged question has a text; are questions and judgments of different sets?")
    counts[NO_ANSWER] = sum(max(pool.values(), default=0) < rule.relevant for pool in asked.values())
    unknown = list(dict.fromkeys(paper for pool in asked.values() for paper in pool if paper not in papers))
    counts["judged papers that the corpus lacks, which cannot be found"] = len(unknown)
    same = asked.keys() & {*papers, *unknown}
    counts["questions with the id of a paper"] = len(same)
    row_id = {question: f"{PREFIX}{question}" if same else question for question in asked}
    texts = TaskTexts(
        ids=[*papers, *unknown, *row_id.values()],
        titles=[title for title, _ in papers.values()]
        + [""] * len(unknown)
        + [collection.questions[question] for question in asked],
        abstracts=[text for _, text in papers.values()] + [""] * (len(unknown) + len(asked)),
    )
    pools = Pools.of(texts, {row_id[question]: pool for question, pool in asked.items()})
    own = texts.rows(list(asked)) if same else None  # BEIR never counts a paper as an answer to itself
    named = replace(pools, names=list(asked))
    task = SearchTask(name, texts, pools.queries, np.arange(len(papers)), named, rule, own=own)
    return task, counts


# SciTLDR as a search benchmark: a paper's one-line summary asks for the paper.

KIND, VERSION = "search-benchmark", 1


def holds_summaries(files: DataFolder) -> bool:
    """Whether the folder's papers have summaries."""
    path = find(files.folder / "papers.jsonl")
    return path is not None and "tldr" in (Source(path).head().record or {})


def read_summaries(files: DataFolder, split: str) -> Collection:
    """The questions of one split, over the papers of all."""
    records = _read(files)
    splits = sorted({record["split"] for record in records.values()})
    if split not in splits:
        raise InputError(f"{files.folder / 'papers.jsonl'} has no split {split!r}; it has {', '.join(splits)}")
    return _as_collection(records, split)


def scitldr_to_beir(folder: str | Path, out: str | Path, *, overwrite: bool = False) -> Path:
    """Write the benchmark as a BEIR folder, all splits of it; gives back the folder."""
    files, out = DataFolder(folder), Path(out)
    records = _read(files)
    collections = {
        split: _as_collection(records, split) for split in sorted({record["split"] for record in records.values()})
    }
    path = find(files.folder / "papers.jsonl")
    assert path is not None
    recipe = {"papers.jsonl": hash_file(path)}
    with new_artifact(out, KIND, VERSION, recipe, overwrite=overwrite) as artifact:
        _write_lines(
            artifact.folder / "corpus.jsonl",
            ({"_id": paper, "title": record["title"], "text": record["abstract"]} for paper, record in records.items()),
        )
        _write_lines(
            artifact.folder / "queries.jsonl",
            (
                {"_id": question, "text": text}
                for collection in collections.values()
                for question, text in collection.questions.items()
            ),
        )
        (artifact.folder / "qrels").mkdir(exist_ok=True)
        for split, collection in collections.items():
            _write_qrels(artifact.folder / "qrels" / f"{split}.tsv", collection.grades)
        artifact.facts |= {
            "papers": len(records),
            "questions": {split: len(collection.grades) for split, collection in collections.items()},
            "counts": {split: dict(collection.counts) for split, collection in collections.items()},
        }
        artifact.finish()
    return out


def _read(files: DataFolder) -> dict[str, dict[str, Any]]:
    path = files.file("papers.jsonl", "the papers with their summaries")
    records = {}
    for record in read_json_lines(path, ids=("id",), keys=("title", "abstract", "tldr", "split")):
        if not isinstance(record["tldr"], list) or not all(isinstance(text, str) for text in record["tldr"]):
            raise InputError(f"{path}: the summaries of {record['id']} are no list of texts; is it another file?")
        records[record["id"]] = record
    return records


def _as_collection(records: Mapping[str, Mapping[str, Any]], split: str) -> Collection:
    counts: Counter[str] = Counter()
    by_title, by_summary = defaultdict(list), defaultdict(list)
    for paper, record in records.items():
        by_title[plain(record["title"])].append(paper)
        for summary in record["tldr"]:
            by_summary[plain(summary)].append(paper)
    questions: dict[str, str] = {}
    grades: dict[str, dict[str, int]] = {}
    asked: set[str] = set()
    for paper, record in records.items():
        for number, summary in enumerate(record["tldr"] if record["split"] == split else (), 1):
            key = plain(summary)
            answers = dict.fromkeys([paper, *by_title[plain(record["title"])], *by_summary[key]], 1)
            if any(stands_in(summary, records[answer]) for answer in answers):
                counts["summaries left out, since they stand word for word in their paper"] += 1
            elif not key or key in asked:
                counts["summaries left out, since they are empty or given before"] += 1
            else:
                asked.add(key)
                questions[f"{paper}#{number}"] = summary.strip()
                grades[f"{paper}#{number}"] = answers
                counts["questions with several papers, the same work under other ids"] += len(answers) > 1
    papers = {paper: (str(record["title"]), str(record["abstract"])) for paper, record in records.items()}
    return Collection(papers, questions, grades, counts)


def plain(text: str) -> str:
    """Without case, signs and spacing.

    >>> plain("Keras, for Infinite networks.")
    'keras for infinite networks'
    """
    return " ".join("".join(sign if sign.isalnum() else " " for sign in text.lower()).split())


def stands_in(summary: str, record: Mapping[str, Any]) -> bool:
    """Whether title or abstract hold the summary word for word.

    >>> stands_in("We win.", {"title": "A game", "abstract": "Here, we  win again."})
    True
    """
    words = f" {plain(summary)} "
    return any(words in f" {plain(str(record[part]))} " for part in ("title", "abstract"))


def _write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _write_qrels(path: Path, grades: Mapping[str, Mapping[str, int]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        for question, pool in grades.items():
            file.writelines(f"{question}\t{paper}\t{grade}\n" for paper, grade in pool.items())


# Search in a BEIR folder: find a question's papers among all papers of the corpus.

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
    if files.has("judgments.jsonl") and recognize(files.folder)[0] == NAME:
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
    lists = _graded_lists(files.file("judgments.jsonl", "the questions, each with its graded papers"))
    path = files.file("papers.jsonl", "the papers")
    papers = {record["id"]: record for record in read_json_lines(path, ids=("id",), keys=("title", "abstract"))}
    named = list(dict.fromkeys(paper for _, pool in lists for paper in pool))
    known = [papers.get(paper, {}) for paper in named]
    pools = {f"{PREFIX}{number}": pool for number, (_, pool) in enumerate(lists, 1)}
    texts = TaskTexts(
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
