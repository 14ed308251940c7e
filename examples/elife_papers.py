"""Choose a densely connected literature of 2,000 eLife articles, the one in examples/elife, from records of eLife.

    python examples/elife_papers.py RECORDS examples/elife

RECORDS is a folder with papers.jsonl.gz (id, title, abstract, year, field, subjects, keywords, kind), citations.tsv (citing,
cited, number of mentions) and contexts.jsonl.gz (citing, text, cited, in_set, section). The output is the same on every run.
"""

from __future__ import annotations

import gzip
import heapq
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

SUBJECTS = {
    "Neuroscience": 700,
    "Cell Biology": 400,
    "Structural Biology and Molecular Biophysics": 260,
    "Developmental Biology": 260,
    "Evolutionary Biology": 200,
    "Epidemiology and Global Health": 120,
    "Ecology": 60,
}
"""How many papers of each subject are chosen: several topics for a map, each with citations inside it."""

LAST_YEAR = 2023
"""The citations of later papers are not among the records."""

CONTEXT_LENGTH = 400
"""Longer citing sentences are left out, most of which are tables or lists that were taken for sentences."""

Paper = dict[str, Any]
Edge = tuple[str, str, str]


def main(records: Path, output: Path) -> None:
    papers = {paper["id"]: paper for paper in read_lines(records / "papers.jsonl.gz") if is_candidate(paper)}
    with (records / "citations.tsv").open() as lines:
        edges = [edge for line in lines if is_inside(edge := parse_edge(line), papers)]
    chosen = choose(papers, edges)
    read = (context_record(record, chosen) for record in read_lines(records / "contexts.jsonl.gz"))
    contexts = {(context["citing"], context["text"]): dump(context) for context in read if context}
    output.mkdir(parents=True, exist_ok=True)
    write(output / "papers.jsonl.gz", (dump(paper_record(papers[id])) for id in sorted(chosen)))
    rows = [("citing", "cited", "mentions"), *(edge for edge in edges if is_inside(edge, chosen))]
    write(output / "citations.tsv.gz", map("\t".join, rows))
    write(output / "contexts.jsonl.gz", contexts.values())
    size = sum(path.stat().st_size for path in output.glob("*.gz"))
    print(f"{len(chosen):,} papers, {len(contexts):,} citing sentences, {size:,} bytes in {output}")


def is_candidate(paper: Paper) -> bool:
    """Return whether a record is an article of one of the subjects, with an abstract; preprints are left out."""
    is_article = paper["kind"] == "articles" and paper["year"] <= LAST_YEAR
    return is_article and bool(paper["abstract"]) and paper["field"] in SUBJECTS


def parse_edge(line: str) -> Edge:
    citing, cited, mentions = line.rstrip("\n").split("\t")
    return citing, cited, mentions


def is_inside(edge: Edge, ids: Iterable[str]) -> bool:
    return edge[0] in ids and edge[1] in ids and edge[0] != edge[1]


def choose(papers: dict[str, Paper], edges: list[Edge]) -> set[str]:
    """Return the ids of a dense subgraph: the paper with the fewest neighbors leaves until no subject has too many.

    Ties are broken by id, so the choice is always the same.
    """
    neighbors: dict[str, set[str]] = {id: set() for id in papers}
    for citing, cited, _ in edges:
        neighbors[citing].add(cited)
        neighbors[cited].add(citing)
    degrees = {id: len(near) for id, near in neighbors.items()}
    left, counts = set(papers), Counter(paper["field"] for paper in papers.values())
    queue = [(degree, id) for id, degree in degrees.items()]
    heapq.heapify(queue)
    while queue:
        degree, id = heapq.heappop(queue)
        if id not in left or degree != degrees[id] or counts[papers[id]["field"]] <= SUBJECTS[papers[id]["field"]]:
            continue
        left.remove(id)
        counts[papers[id]["field"]] -= 1
        for near in neighbors[id] & left:
            degrees[near] -= 1
            heapq.heappush(queue, (degrees[near], near))
    return left


def paper_record(paper: Paper) -> Paper:
    """Return a paper's own fields, with the DOI that its number gives: elife:00003 is 10.7554/eLife.00003."""
    kept = {key: paper[key] for key in ("id", "title", "abstract", "year", "venue", "subjects", "keywords")}
    return {**kept, "doi": f"10.7554/eLife.{paper['id'].removeprefix('elife:')}", "article_type": paper["article_type"]}


def context_record(context: Paper, chosen: set[str]) -> Paper | None:
    """Return a citing sentence with those of its cited papers that were chosen, or None where nothing remains."""
    cited = [id for id in context["in_set"] if id in chosen and id != context["citing"]]
    if context["citing"] not in chosen or not cited or len(context["text"]) > CONTEXT_LENGTH:
        return None
    return {"citing": context["citing"], "text": context["text"], "cited": cited, "section": context["section"] or ""}


def read_lines(path: Path) -> Iterator[Paper]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def dump(record: Paper) -> str:
    return json.dumps(record, ensure_ascii=False)


def write(path: Path, lines: Iterable[str]) -> None:
    """Write lines as a gzip file without a timestamp, so that the same lines are the same bytes."""
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), 9, mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
