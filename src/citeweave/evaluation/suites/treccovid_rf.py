"""TRECCOVID-RF: TREC-COVID's papers as queries; what is relevant to the same topic is relevant to the query.

Reads ASPIRE's form (`abstracts-treccovid.jsonl`, `test-pid2anns-treccovid.json`, `treccovid-evaluation_splits.json`),
as published or as `building.treccovid.build_treccovid_rf` makes it from TREC-COVID's own files. A paper is relevant
from grade 1; the value is the mean over the split's queries (ASPIRE, evaluate.py).

TRECCOVID-RF out of TREC-COVID's files: a paper that is relevant to a topic becomes a query for the others.

    qrels-covid_d5_j0.5-5.txt    topic round paper grade      and  metadata.csv   cord_uid,title,abstract,...
    or BEIR's trec-covid folder: qrels/test.tsv               and  corpus.jsonl

become ASPIRE's form. A paper counts if it has title and abstract and is highly relevant (grade 2) to a topic. Up to 50
papers of a topic, of those that are relevant to no other topic, become queries; all other papers of the topic are their
positives, all papers of other topics alone their negatives. Half of the topics are for dev, half for test: no topic is
in both. ASPIRE (Mysore et al., NAACL 2022, appendix B) has about 1,200 queries a split and 9,000 candidates a query.
Its draws cannot be had again, since they hang on the order of a set: numbers of this file compare with one another,
and with published ones only roughly. Does not download.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from citeweave.core.artifact import new_artifact
from citeweave.core.errors import EmptyResultError, InputError, UserError
from citeweave.core.files import write_json
from citeweave.core.inputs import Source
from citeweave.core.randomness import stream
from citeweave.corpus.text import sentence_texts
from citeweave.evaluation.suites.aspire import CALLED, METRICS, read_benchmark
from citeweave.evaluation.suites.beir import read_qrels
from citeweave.evaluation.suites.benchmark_files import DataFolder, read_json_lines, read_qrel, refuse
from citeweave.evaluation.tasks import RankingRule, RankingTask, Suite

NAME = "treccovid_rf"
RULE = RankingRule(metrics=METRICS, family="csfcube", relevant=1, distance="l2")


def read_suite(folder: str | Path, *, split: str = "test") -> Suite:
    """The suite of a folder: one task, `treccovid_rf`; its groups are TREC-COVID's topics."""
    folder, files = Path(folder), DataFolder(folder)
    if not files.has("test-pid2anns-treccovid.json") and not files.has("abstracts-treccovid.jsonl"):
        raise refuse(
            folder,
            NAME,
            "test-pid2anns-treccovid.json, treccovid-evaluation_splits.json and abstracts-treccovid.jsonl "
            "(build_treccovid_rf makes them from TREC-COVID's files)",
        )
    read = read_benchmark(folder, "treccovid", split=split, relevant=RULE.relevant)
    return Suite(
        NAME,
        (RankingTask(NAME, read.texts, read.pools, RULE, called=CALLED),),
        headline=("treccovid_rf.map", "treccovid_rf.ndcg%20"),
        notes=read.notes,
        data=read.data,
    )


# TRECCOVID-RF out of TREC-COVID's files: a paper that is relevant to a topic becomes a query for the others.

KIND, VERSION = "treccovid-rf", 1
_LONGEST = 2**24
"""Longest field of metadata.csv; some abstracts are whole books, beyond what csv takes by itself."""


@dataclass(frozen=True)
class RfOptions:
    """How to make the benchmark; the defaults are ASPIRE's."""

    seed: int = 0
    """Of the drawn queries, of the split and of drawn negatives."""

    queries: int = 50
    """Most queries of a topic."""

    negatives: int | None = None
    """Negatives of a query, drawn; None = all, which makes a file of some 300 MB."""

    grade: int = 2
    """Lowest grade of TREC-COVID that is relevant."""

    def __post_init__(self) -> None:
        if self.queries < 1:
            raise UserError(f"queries is {self.queries}; a topic needs at least 1")
        if self.negatives is not None and self.negatives < 1:
            raise UserError(f"negatives is {self.negatives}; it must be at least 1, or left out for all")


@dataclass(frozen=True)
class RfFacts:
    """What was made."""

    folder: Path
    papers: int
    topics: int
    queries: dict[str, int]
    """Split -> number."""

    pairs: int
    without_text: int
    """Relevant papers left out, since title or abstract is missing."""


def build_treccovid_rf(
    source: str | Path, out: str | Path, options: RfOptions | None = None, *, overwrite: bool = False
) -> RfFacts:
    """Make the benchmark; `treccovid_rf.read_suite` reads the folder."""
    options, files, out = options or RfOptions(), DataFolder(source), Path(out)
    topics = _relevant(_read_grades(files), options.grade)
    wanted = {paper for papers in topics.values() for paper in papers}
    texts = dict(sorted(_read_papers(files, wanted)))
    topics = {topic: sorted(paper for paper in papers if paper in texts) for topic, papers in topics.items()}
    queries = _choose_queries(topics, options)
    if not queries:
        raise EmptyResultError(
            f"{source}: no paper with a text is relevant to one topic alone; are the files of one set?"
        )
    splits = _split_topics(queries, options.seed)
    recipe = {"files": files.hashes(), **asdict(options)}
    with new_artifact(out, KIND, VERSION, recipe, overwrite=overwrite) as artifact:
        _write_papers(artifact.folder / "abstracts-treccovid.jsonl", texts, topics)
        pairs = _write_pools(artifact.folder / "test-pid2anns-treccovid.json", queries, topics, options)
        parts = {query: splits[topic] for topic, papers in queries.items() for query in papers}
        write_json(artifact.folder / "treccovid-evaluation_splits.json", parts)
        _write_queries(artifact.folder / "treccovid-queries-release.csv", queries, texts)
        counts = {split: list(parts.values()).count(split) for split in ("dev", "test")}
        made = RfFacts(out, len(texts), len(queries), counts, pairs, len(wanted) - len(texts))
        artifact.facts |= {key: value for key, value in asdict(made).items() if key != "folder"}
        artifact.finish()
    return made


# --- TREC-COVID's files ------------------------------------------------------------------------------


def _read_grades(files: DataFolder) -> dict[str, dict[str, int]]:
    if files.has("qrels/test.tsv"):
        return read_qrels(files.file("qrels/test.tsv", "TREC-COVID's judgments"))
    return read_qrel(_only(files, r"qrels.*\.txt", "TREC-COVID's judgments, such as qrels-covid_d5_j0.5-5.txt"))


def _relevant(grades: Mapping[str, Mapping[str, int]], lowest: int) -> dict[str, list[str]]:
    """Topic -> its relevant papers."""
    found = {topic: [paper for paper, grade in pool.items() if grade >= lowest] for topic, pool in grades.items()}
    return {topic: papers for topic, papers in found.items() if papers}


def _read_papers(files: DataFolder, wanted: set[str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """(paper, (title, abstract)) of the wanted papers that have both; of equal ids the first that has."""
    if files.has("corpus.jsonl"):
        path = files.file("corpus.jsonl", "the papers")
        rows: Iterator[Mapping[str, Any]] = read_json_lines(path, ids=("_id",), keys=("title", "text"))
        names = ("_id", "title", "text")
    else:
        rows = _read_metadata(_only(files, r"metadata.*\.csv", "CORD-19's papers, such as metadata.csv"))
        names = ("cord_uid", "title", "abstract")
    seen = set()
    for row in rows:
        paper, title, abstract = (str(row[name] or "").strip() for name in names)
        if paper in wanted and paper not in seen and title and abstract:
            seen.add(paper)
            yield paper, (title, abstract)


def _read_metadata(path: Path) -> Iterator[Mapping[str, Any]]:
    """The rows of CORD-19's table, which is too large to be held."""
    before = csv.field_size_limit(_LONGEST)
    try:
        with Source(path).open() as stream_:
            rows = csv.DictReader(io.TextIOWrapper(stream_, "utf-8-sig", "replace", newline=""))
            if absent := {"cord_uid", "title", "abstract"} - set(rows.fieldnames or ()):
                raise InputError(f"{path} has no column {sorted(absent)[0]!r}; is it CORD-19's metadata?")
            yield from rows
    except csv.Error as error:
        raise InputError(f"{path} is no CSV ({error}); get the file again") from None
    finally:
        csv.field_size_limit(before)


def _only(files: DataFolder, pattern: str, holds: str) -> Path:
    """The one file of the folder with such a name, compressed or not."""
    plain = (re.sub(r"\.(gz|zst|bz2|xz)$", "", path.name) for path in files.folder.iterdir() if path.is_file())
    found = sorted({name for name in plain if re.fullmatch(pattern, name)})
    if not found:
        raise InputError(f"{files.folder} has no file with {holds}; download it (or give BEIR's trec-covid folder)")
    if len(found) > 1:
        raise InputError(f"{files.folder} has several files with {holds}: {', '.join(found)}; keep one")
    return files.file(found[0], holds)


# --- queries, pools, splits --------------------------------------------------------------------------


def _choose_queries(topics: Mapping[str, Sequence[str]], options: RfOptions) -> dict[str, list[str]]:
    """Topic -> papers that are drawn as queries: relevant to it alone, and not the only one."""
    of_paper = defaultdict(list)
    for topic, papers in topics.items():
        for paper in papers:
            of_paper[paper].append(topic)
    chosen = {}
    for topic, papers in sorted(topics.items()):
        able = [paper for paper in papers if len(of_paper[paper]) == 1] if len(papers) > 1 else []
        order = stream(options.seed, KIND, "queries", topic).permutation(len(able))
        if able:
            chosen[topic] = sorted(able[place] for place in order[: options.queries].tolist())
    return chosen


def _split_topics(topics: Mapping[str, Any], seed: int) -> dict[str, str]:
    names = sorted(topics)
    order = stream(seed, KIND, "split").permutation(len(names)).tolist()
    dev = {names[place] for place in order[: len(names) // 2]}
    return {topic: "dev" if topic in dev else "test" for topic in names}


def _write_pools(
    path: Path, queries: Mapping[str, Sequence[str]], topics: Mapping[str, Sequence[str]], options: RfOptions
) -> int:
    """Query by query, since all pools together are hundreds of megabytes; gives back the number of pairs."""
    every = sorted({paper for papers in topics.values() for paper in papers})
    of_query = {query: topic for topic, papers in queries.items() for query in papers}
    pairs = 0
    with path.open("w", encoding="utf-8") as file:
        for number, (query, topic) in enumerate(of_query.items()):
            relevant = set(topics[topic])
            kept = relevant | _negatives([paper for paper in every if paper not in relevant], query, options)
            # in the order of ids: what is relevant must not come first
            candidates = [paper for paper in every if paper in kept and paper != query]
            pool = {"cands": candidates, "relevance_adju": [int(paper in relevant) for paper in candidates]}
            file.write(f"{',' if number else '{'}\n{json.dumps(query)}: {json.dumps(pool)}")
            pairs += len(candidates)
        file.write("\n}\n")
    return pairs


def _negatives(others: Sequence[str], query: str, options: RfOptions) -> set[str]:
    if options.negatives is None or options.negatives >= len(others):
        return set(others)
    drawn = stream(options.seed, KIND, "negatives", query).choice(len(others), options.negatives, replace=False)
    return {others[place] for place in drawn.tolist()}


def _write_papers(path: Path, texts: Mapping[str, tuple[str, str]], topics: Mapping[str, Sequence[str]]) -> None:
    of_paper = defaultdict(list)
    for topic, papers in sorted(topics.items()):
        for paper in papers:
            of_paper[paper].append(topic)
    with path.open("w", encoding="utf-8") as file:
        for paper, (title, abstract) in texts.items():
            record = {
                "paper_id": paper,
                "title": title,
                "abstract": sentence_texts(abstract),
                "topic_ids": "-".join(of_paper[paper]),
            }
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _write_queries(path: Path, queries: Mapping[str, Sequence[str]], texts: Mapping[str, tuple[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["pid", "title", "topic_ids"])
        rows.writerows([query, texts[query][0], topic] for topic in queries for query in queries[topic])
