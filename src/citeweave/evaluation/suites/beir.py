"""BEIR: find the papers that answer a question in a corpus; also SciTLDR's summaries as questions.

    corpus.jsonl       {"_id": "p1", "title": "T", "text": "An abstract."}
    queries.jsonl      {"_id": "q1", "text": "a question"}
    qrels/test.tsv     query-id <tab> corpus-id <tab> score, after a line with these names

    >>> collection = Collection({"p1": ("T", "An abstract."), "p2": ("U", "")}, {"q1": "a question"}, {"q1": {"p2": 1}})
    >>> task, counts = _make_search_task(collection, RankingRule(metrics=("ndcg_cut_10",)))
    >>> list(task.texts.ids), task.candidates.tolist(), task.judgments.candidates.tolist()
    (['p1', 'p2', 'q1'], [0, 1], [1])

BEIR takes the best 1,000 papers by cosine; its main metric is NDCG@10 (Thakur et al., NeurIPS 2021, datasets).

A folder with SciTLDR's summaries (Cachola et al., Findings of EMNLP 2020) is a search benchmark too:

    papers.jsonl       {"id": "p1", "title": "T", "abstract": "A.", "tldr": ["What it does."], "split": "test"}

Each summary becomes a question, `p1#1`, answered by its paper among the papers of all splits. A summary that its paper's
title or abstract contains word for word is left out, since finding it would show nothing. The same work under two ids
(equal titles, or an equal summary) answers with both. In a folder with small graded lists (`papers.jsonl`,
`judgements.jsonl` with `query_text`) only a question's own list is ranked.
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
    REPEATED,
    DataFolder,
    as_grade,
    as_id,
    find_file,
    read_json_lines,
    recognize_suite,
    word_counts,
    wrong_folder,
)
from citeweave.evaluation.tasks import QUESTION, Pools, RankingRule, RankingTask, SearchTask, Suite, TaskTexts

NAME = "beir"
KIND, VERSION = "search-benchmark", 1
RULE = RankingRule(
    metrics=("ndcg_cut_10", "map", "recall_10", "recall_100", "recip_rank"), distance="cosine", family="trec"
)
"""The first metric is the main one; at a depth of 1,000, map and recip_rank are MTEB's map_at_1000 and mrr_at_1000."""

LISTS_RULE = RankingRule(metrics=("ndcg", "map", "recip_rank"), distance="l2", family="trec")
"""As SciRepEval's search tasks: NDCG over the list, by L2."""

NO_ANSWER = "questions without relevant papers, which count as 0"


@dataclass(frozen=True)
class Collection:
    """One split of a BEIR benchmark in memory: papers, questions and graded answers."""

    papers: Mapping[str, tuple[str, str]]
    """Id -> title and abstract."""

    questions: Mapping[str, str]
    """Id -> text; may include questions without judgments."""

    grades: Mapping[str, Mapping[str, int]]
    """Question -> paper -> grade."""

    counts: Counter[str] = field(default_factory=Counter)
    """What was odd in the data, worded for the suite's notes."""


def read_suite(folder: str | Path, *, split: str = "test") -> Suite:
    """Read a search benchmark from a folder, BEIR's, SciTLDR's or graded lists: one task, `search`."""
    files = DataFolder(folder)
    if files.has("corpus.jsonl") or files.has("queries.jsonl"):
        return _as_suite(files, _read_collection(files, split), split)
    if files.has("judgements.jsonl") and recognize_suite(files.folder)[0] == NAME:
        return _read_lists(files, split)
    if _holds_summaries(files):
        return _as_suite(files, _read_summaries(files, split), split)
    raise wrong_folder(files.folder, NAME, f"corpus.jsonl, queries.jsonl and qrels/{split}.tsv")


def _read_collection(files: DataFolder, split: str) -> Collection:
    """Read one split of a BEIR folder: corpus, queries and qrels."""
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
    """Read `{question: {paper: grade}}` from BEIR's qrels; the first line may name the columns."""
    grades: dict[str, dict[str, int]] = {}
    with Source(path).open() as stream:
        for number, line in enumerate(stream, 1):
            parts = line.decode("utf-8-sig", "replace").rstrip("\r\n").split("\t")
            if not line.strip() or (number == 1 and parts[0] == "query-id"):
                continue
            if len(parts) != 3:
                raise InputError(
                    f"{path} line {number} has {len(parts)} of the 3 columns query-id, corpus-id, score; "
                    "tabs separate them: download the file again or convert it"
                )
            grade = as_grade(parts[2], f"{path} line {number}: the score")
            pool = grades.setdefault(parts[0], {})
            if pool.setdefault(parts[1], grade) != grade:
                raise InputError(f"{path} line {number} gives {parts[0]} and {parts[1]} another score; remove one line")
    if not grades:
        raise InputError(f"{path} has no judgments; the file is damaged or half downloaded: download it again")
    return grades


def _qrels_file(files: DataFolder, split: str) -> Path:
    name = f"qrels/{split}.tsv"
    others = sorted(path.name.split(".")[0] for path in (files.folder / "qrels").glob("*.tsv*"))
    if not files.has(name) and others:
        raise InputError(
            f"{files.folder / name} is missing; the folder has the splits {', '.join(others)}: use --split"
        )
    return files.file(name, "which papers answer which question")


def _as_suite(files: DataFolder, collection: Collection, split: str) -> Suite:
    task, counts = _make_search_task(collection, RULE)
    return Suite(
        NAME,
        (task,),
        headline=("search.ndcg_cut_10",),
        notes=word_counts(counts),
        data=files.provenance(
            split, papers=len(collection.papers), queries=len(task.judgments), pairs=len(task.judgments.grades)
        ),
    )


def _make_search_task(
    collection: Collection, rule: RankingRule, *, name: str = "search"
) -> tuple[SearchTask, Counter[str]]:
    """Return the task of searching all papers of a collection, and counts of what is odd in the data.

    A judged paper that is not in the corpus cannot be found, but counts as one of the relevant papers.
    """
    counts, papers = Counter(collection.counts), collection.papers
    judged = {question: pool for question, pool in collection.grades.items() if question in collection.questions}
    counts["judged questions left out, since their text is missing"] = len(collection.grades) - len(judged)
    if not judged:
        raise EmptyResultError(
            "no judged question has a text; do questions and judgments belong to different benchmarks?"
        )
    counts[NO_ANSWER] = sum(max(pool.values(), default=0) < rule.relevant for pool in judged.values())
    unknown = list(dict.fromkeys(paper for pool in judged.values() for paper in pool if paper not in papers))
    counts["judged papers that the corpus lacks, which cannot be found"] = len(unknown)
    same = judged.keys() & {*papers, *unknown}
    counts["questions with the id of a paper"] = len(same)
    row_id = {question: f"{QUESTION}{question}" if same else question for question in judged}
    known = TaskTexts(list(papers), [title for title, _ in papers.values()], [text for _, text in papers.values()])
    questions = [collection.questions[question] for question in judged]
    texts = known.append(unknown).append(list(row_id.values()), questions)
    pools = Pools.of(texts, {row_id[question]: pool for question, pool in judged.items()})
    own = texts.rows(list(judged)) if same else None  # BEIR never counts a paper as an answer to itself
    named = replace(pools, names=list(judged))
    task = SearchTask(name, texts, pools.queries, np.arange(len(papers)), named, rule, own=own)
    return task, counts


# --- graded lists ----------------------------------------------------------------------------------------


def _read_lists(files: DataFolder, split: str) -> Suite:
    """Read questions with a small graded list of papers each, of which only the list is ranked."""
    if split != "test":
        raise InputError(f"{files.folder} has no splits, so no {split!r}; leave --split at test")
    lists = _graded_lists(files.file("judgements.jsonl", "the questions, each with its graded papers"))
    path = files.file("papers.jsonl", "the papers")
    papers = {record["id"]: record for record in read_json_lines(path, ids=("id",), keys=("title", "abstract"))}
    named = list(dict.fromkeys(paper for _, pool in lists for paper in pool))
    known = [papers.get(paper, {}) for paper in named]
    pools = {f"{QUESTION}{number}": pool for number, (_, pool) in enumerate(lists, 1)}
    titles, abstracts = ([str(record.get(key) or "") for record in known] for key in ("title", "abstract"))
    texts = TaskTexts(named, titles, abstracts).append(list(pools), [question for question, _ in lists])
    task = RankingTask("search", texts, Pools.of(texts, pools), LISTS_RULE)
    counts = Counter({NO_ANSWER: sum(max(pool.values()) < LISTS_RULE.relevant for _, pool in lists)})
    counts["papers without text, which only the lists name"] = sum(paper not in papers for paper in named)
    return Suite(
        NAME,
        (task,),
        headline=("search.ndcg",),
        notes=(*word_counts(counts), "each question's own list is ranked; not all papers are searched"),
        data=files.provenance(split, papers=len(named), queries=len(pools), pairs=len(task.pools.grades)),
    )


def _graded_lists(path: Path) -> list[tuple[str, dict[str, int]]]:
    lists = []
    for number, record in enumerate(read_json_lines(path, keys=("query_text", "candidates", "relevance")), 1):
        where, candidates, grades = f"{path} record {number}", record["candidates"], record["relevance"]
        if not isinstance(candidates, list) or not isinstance(grades, list) or not candidates:
            raise InputError(f"{where} has no lists of candidates and relevance; download the file again")
        if len(candidates) != len(grades):
            raise InputError(
                f"{where} has {len(candidates)} candidates and {len(grades)} grades; download the file again"
            )
        pool = {
            as_id(paper, f"{where}: a candidate"): as_grade(grade, f"{where}: a grade")
            for paper, grade in zip(candidates, grades, strict=True)
        }
        lists.append((str(record["query_text"]), pool))
    return lists


# --- SciTLDR's summaries as questions --------------------------------------------------------------------


def _holds_summaries(files: DataFolder) -> bool:
    """Return whether a folder has SciTLDR's papers with summaries."""
    path = find_file(files.folder / "papers.jsonl")
    return path is not None and "tldr" in (Source(path).head().record or {})


def _read_summaries(files: DataFolder, split: str) -> Collection:
    """Read SciTLDR's summaries of one split as questions, over the papers of all splits."""
    records = _read_scitldr(files)
    splits = sorted({record["split"] for record in records.values()})
    if split not in splits:
        raise InputError(f"{files.folder / 'papers.jsonl'} has no split {split!r}; it has {', '.join(splits)}")
    return _as_collection(records, split)


def scitldr_to_beir(folder: str | Path, out: str | Path, *, overwrite: bool = False) -> Path:
    """Write all splits of SciTLDR's summaries as a BEIR folder; returns the folder."""
    files, out = DataFolder(folder), Path(out)
    records = _read_scitldr(files)
    collections = {
        split: _as_collection(records, split) for split in sorted({record["split"] for record in records.values()})
    }
    path = find_file(files.folder / "papers.jsonl")
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


def _read_scitldr(files: DataFolder) -> dict[str, dict[str, Any]]:
    path = files.file("papers.jsonl", "the papers with their summaries")
    records = {}
    for record in read_json_lines(path, ids=("id",), keys=("title", "abstract", "tldr", "split")):
        if not isinstance(record["tldr"], list) or not all(isinstance(text, str) for text in record["tldr"]):
            raise InputError(
                f"{path}: the summaries of {record['id']} are not a list of strings; is this the right file?"
            )
        records[record["id"]] = record
    return records


def _as_collection(records: Mapping[str, Mapping[str, Any]], split: str) -> Collection:
    """Return SciTLDR's summaries of one split as questions; copied, empty and repeated summaries are left out."""
    counts: Counter[str] = Counter()
    by_title, by_summary = defaultdict(list), defaultdict(list)
    for paper, record in records.items():
        by_title[normalize_words(record["title"])].append(paper)
        for summary in record["tldr"]:
            by_summary[normalize_words(summary)].append(paper)
    questions: dict[str, str] = {}
    grades: dict[str, dict[str, int]] = {}
    seen: set[str] = set()
    for paper, record in records.items():
        for number, summary in enumerate(record["tldr"] if record["split"] == split else (), 1):
            key = normalize_words(summary)
            answers = dict.fromkeys([paper, *by_title[normalize_words(record["title"])], *by_summary[key]], 1)
            if any(_is_quoted(summary, records[answer]) for answer in answers):
                counts["summaries left out, since they stand word for word in their paper"] += 1
            elif not key or key in seen:
                counts["summaries left out, since they are empty or given before"] += 1
            else:
                seen.add(key)
                questions[f"{paper}#{number}"] = summary.strip()
                grades[f"{paper}#{number}"] = answers
                counts["questions with several papers, the same work under other ids"] += len(answers) > 1
    papers = {paper: (str(record["title"]), str(record["abstract"])) for paper, record in records.items()}
    return Collection(papers, questions, grades, counts)


def normalize_words(text: str) -> str:
    """Normalize a summary of SciTLDR, or a title, for BEIR: no case, punctuation and extra spaces.

    >>> normalize_words("Keras, for Infinite networks.")
    'keras for infinite networks'
    """
    return " ".join("".join(character if character.isalnum() else " " for character in text.lower()).split())


def _is_quoted(summary: str, record: Mapping[str, Any]) -> bool:
    """Return whether a paper's title or abstract contains the summary word for word.

    >>> _is_quoted("We win.", {"title": "A game", "abstract": "Here, we  win again."})
    True
    """
    words = f" {normalize_words(summary)} "
    return any(words in f" {normalize_words(str(record[part]))} " for part in ("title", "abstract"))


def _write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _write_qrels(path: Path, grades: Mapping[str, Mapping[str, int]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        for question, pool in grades.items():
            file.writelines(f"{question}\t{paper}\t{grade}\n" for paper, grade in pool.items())
