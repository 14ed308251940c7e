"""TRECCOVID-RF: TREC-COVID's papers as queries for papers of the same topic; reading and building it.

`read_suite` reads ASPIRE's format (`abstracts-treccovid.jsonl`, `test-pid2anns-treccovid.json`,
`treccovid-evaluation_splits.json`), as published or as `build_treccovid_rf` writes it from TREC-COVID's own files. A paper
is relevant from grade 1; the value is the mean over the split's queries (ASPIRE, evaluate.py).

    qrels-covid_d5_j0.5-5.txt    topic round paper grade      and  metadata.csv   cord_uid,title,abstract,...
    or BEIR's trec-covid folder: qrels/test.tsv               and  corpus.jsonl

become ASPIRE's format. A paper counts if it has a title and an abstract and is highly relevant (grade 2) to a topic. Up to
50 papers of a topic, among those relevant to no other topic, become queries; all other papers of the topic are their
positives, all papers of only other topics their negatives. Half of the topics are for dev, half for test: no topic is in
both. ASPIRE (Mysore et al., NAACL 2022, appendix B) has about 1,200 queries per split and 9,000 candidates per query. Its
draws cannot be reproduced, since they depend on the order of a set: numbers on files built here are comparable with each
other, and with published ones only roughly. Does not download.
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
from typing import Annotated, Any

from citeweave.core.artifact import new_artifact
from citeweave.core.errors import EmptyResultError, InputError
from citeweave.core.files import write_json
from citeweave.core.inputs import Source
from citeweave.core.options import Range, check
from citeweave.core.randomness import stream
from citeweave.corpus.text import sentence_texts
from citeweave.evaluation.suites.aspire import read_single_task
from citeweave.evaluation.suites.beir import read_qrels
from citeweave.evaluation.suites.benchmark_files import DataFolder, read_json_lines, read_qrel
from citeweave.evaluation.tasks import Suite

NAME = "treccovid_rf"
KIND, VERSION = "treccovid-rf", 1

_MAX_CSV_FIELD = 2**24
"""Longest field of metadata.csv; some abstracts are whole books, beyond the default limit of `csv`."""


def read_suite(folder: str | Path, *, split: str = "test") -> Suite:
    """Read TRECCOVID-RF from a folder: one task, `treccovid_rf`; its groups are TREC-COVID's topics."""
    hint = " (build_treccovid_rf writes them from TREC-COVID's files)"
    return read_single_task(NAME, folder, split, "treccovid", relevant=1, hint=hint)


# --- building it from TREC-COVID's files -----------------------------------------------------------------


@dataclass(frozen=True)
class RfOptions:
    """How to build TRECCOVID-RF; the defaults are ASPIRE's."""

    seed: int = 0
    """Seed of the drawn queries, the split and the drawn negatives."""

    queries: Annotated[int, Range(1)] = 50
    """At most so many queries per topic."""

    negatives: Annotated[int | None, Range(1)] = None
    """Negatives drawn per query; None = all, which gives a file of about 300 MB."""

    grade: int = 2
    """Lowest grade of TREC-COVID that counts as relevant."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class RfSummary:
    """The counts of a TRECCOVID-RF folder that was built."""

    folder: Path
    papers: int
    topics: int
    queries: dict[str, int]
    """Split -> number of queries."""

    pairs: int
    without_text: int
    """Relevant papers left out, since title or abstract is missing."""


def build_treccovid_rf(
    source: str | Path, out: str | Path, options: RfOptions | None = None, *, overwrite: bool = False
) -> RfSummary:
    """Build TRECCOVID-RF from a folder of TREC-COVID's files; `read_suite` reads the result."""
    options, files, out = options or RfOptions(), DataFolder(source), Path(out)
    topics = _relevant(_read_grades(files), options.grade)
    wanted = {paper for papers in topics.values() for paper in papers}
    texts = dict(sorted(_read_papers(files, wanted)))
    topics = {topic: sorted(paper for paper in papers if paper in texts) for topic, papers in topics.items()}
    queries = _choose_queries(topics, options)
    if not queries:
        raise EmptyResultError(
            f"{source}: no paper with a text is relevant to one topic alone; do the files belong together?"
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
        summary = RfSummary(out, len(texts), len(queries), counts, pairs, len(wanted) - len(texts))
        artifact.facts |= {key: value for key, value in asdict(summary).items() if key != "folder"}
        artifact.finish()
    return summary


def _read_grades(files: DataFolder) -> dict[str, dict[str, int]]:
    if files.has("qrels/test.tsv"):
        return read_qrels(files.file("qrels/test.tsv", "TREC-COVID's judgments"))
    return read_qrel(_only(files, r"qrels.*\.txt", "TREC-COVID's judgments, such as qrels-covid_d5_j0.5-5.txt"))


def _relevant(grades: Mapping[str, Mapping[str, int]], lowest: int) -> dict[str, list[str]]:
    """Return TREC-COVID's topics with their relevant papers."""
    relevant = {topic: [paper for paper, grade in pool.items() if grade >= lowest] for topic, pool in grades.items()}
    return {topic: papers for topic, papers in relevant.items() if papers}


def _read_papers(files: DataFolder, wanted: set[str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield (paper, (title, abstract)) for the wanted papers of TREC-COVID that have both; the first of equal ids counts."""
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
    """Yield the rows of CORD-19's table, which is too large for memory."""
    before = csv.field_size_limit(_MAX_CSV_FIELD)
    try:
        with Source(path).open() as file:
            rows = csv.DictReader(io.TextIOWrapper(file, "utf-8-sig", "replace", newline=""))
            if absent := {"cord_uid", "title", "abstract"} - set(rows.fieldnames or ()):
                raise InputError(f"{path} has no column {sorted(absent)[0]!r}; is this CORD-19's metadata?")
            yield from rows
    except csv.Error as error:
        raise InputError(f"{path} is not CSV ({error}); download the file again") from None
    finally:
        csv.field_size_limit(before)


def _only(files: DataFolder, pattern: str, holds: str) -> Path:
    """Return the only file of TREC-COVID's folder whose name matches, compressed or not."""
    plain = (re.sub(r"\.(gz|zst|bz2|xz)$", "", path.name) for path in files.folder.iterdir() if path.is_file())
    matching = sorted({name for name in plain if re.fullmatch(pattern, name)})
    if not matching:
        raise InputError(f"{files.folder} has no file with {holds}; download it (or give BEIR's trec-covid folder)")
    if len(matching) > 1:
        raise InputError(f"{files.folder} has several files with {holds}: {', '.join(matching)}; keep one")
    return files.file(matching[0], holds)


def _choose_queries(topics: Mapping[str, Sequence[str]], options: RfOptions) -> dict[str, list[str]]:
    """Draw the query papers of each topic: relevant to it alone, and not its only paper."""
    of_paper, chosen = _topics_of_papers(topics), {}
    for topic, papers in sorted(topics.items()):
        eligible = [paper for paper in papers if len(of_paper[paper]) == 1] if len(papers) > 1 else []
        order = stream(options.seed, KIND, "queries", topic).permutation(len(eligible))
        if eligible:
            chosen[topic] = sorted(eligible[place] for place in order[: options.queries].tolist())
    return chosen


def _topics_of_papers(topics: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return paper -> the topics that it is relevant to, sorted."""
    of_paper = defaultdict(list)
    for topic, papers in sorted(topics.items()):
        for paper in papers:
            of_paper[paper].append(topic)
    return of_paper


def _split_topics(topics: Mapping[str, Any], seed: int) -> dict[str, str]:
    names = sorted(topics)
    order = stream(seed, KIND, "split").permutation(len(names)).tolist()
    dev = {names[place] for place in order[: len(names) // 2]}
    return {topic: "dev" if topic in dev else "test" for topic in names}


def _write_pools(
    path: Path, queries: Mapping[str, Sequence[str]], topics: Mapping[str, Sequence[str]], options: RfOptions
) -> int:
    """Write the pools query by query, since together they are hundreds of megabytes; returns the number of pairs."""
    every = sorted({paper for papers in topics.values() for paper in papers})
    of_query = {query: topic for topic, papers in queries.items() for query in papers}
    pairs = 0
    with path.open("w", encoding="utf-8") as file:
        for number, (query, topic) in enumerate(of_query.items()):
            relevant = set(topics[topic])
            pooled = relevant | _draw_negatives([paper for paper in every if paper not in relevant], query, options)
            # in the order of ids: relevant papers must not come first
            candidates = [paper for paper in every if paper in pooled and paper != query]
            pool = {"cands": candidates, "relevance_adju": [int(paper in relevant) for paper in candidates]}
            file.write(f"{',' if number else '{'}\n{json.dumps(query)}: {json.dumps(pool)}")
            pairs += len(candidates)
        file.write("\n}\n")
    return pairs


def _draw_negatives(others: Sequence[str], query: str, options: RfOptions) -> set[str]:
    if options.negatives is None or options.negatives >= len(others):
        return set(others)
    drawn = stream(options.seed, KIND, "negatives", query).choice(len(others), options.negatives, replace=False)
    return {others[place] for place in drawn.tolist()}


def _write_papers(path: Path, texts: Mapping[str, tuple[str, str]], topics: Mapping[str, Sequence[str]]) -> None:
    of_paper = _topics_of_papers(topics)
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
