"""SciTLDR as a search benchmark: a paper's one-line summary asks for the paper.

    papers.jsonl      {"id": "p1", "title": "T", "abstract": "A.", "tldr": ["What it does."], "split": "test"}

becomes the question `p1#1`, answered by p1, among the papers of all splits. A summary that stands word for word in its
paper's title or abstract is left out: finding it would tell nothing. The same work under two ids (equal titles, or
an equal summary) answers with both. Cachola et al., Findings of EMNLP 2020.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from citeweave.artefacts.writing import new_artefact
from citeweave.errors import InputError
from citeweave.evaluation.suites.collection import Collection
from citeweave.evaluation.suites.files import DataFolder, find, read_json_lines
from citeweave.files import hash_file
from citeweave.opening import Source

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
    with new_artefact(out, KIND, VERSION, recipe, overwrite=overwrite) as artefact:
        _write_lines(
            artefact.folder / "corpus.jsonl",
            ({"_id": paper, "title": record["title"], "text": record["abstract"]} for paper, record in records.items()),
        )
        _write_lines(
            artefact.folder / "queries.jsonl",
            (
                {"_id": question, "text": text}
                for collection in collections.values()
                for question, text in collection.questions.items()
            ),
        )
        (artefact.folder / "qrels").mkdir(exist_ok=True)
        for split, collection in collections.items():
            _write_qrels(artefact.folder / "qrels" / f"{split}.tsv", collection.grades)
        artefact.facts |= {
            "papers": len(records),
            "questions": {split: len(collection.grades) for split, collection in collections.items()},
            "counts": {split: dict(collection.counts) for split, collection in collections.items()},
        }
        artefact.finish()
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
