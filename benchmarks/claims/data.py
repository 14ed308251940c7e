"""The study's corpora as the texts have them: whole reference lists, a pool of papers with abstracts, an audited graph.

    study = import_study(Path("data"), "elife", Path("study/stages"))
    study.corpus, study.pool            papers and everything they cite; a file with the ids of papers with abstracts
    audit_graph(complete, learned, held, suite)

A graph is far larger than its pool, as in SciNCL (52.5M nodes, 680,967 papers with text): papers that are only cited are
nodes without text (`--outside keep`). The references of held-out papers leave the graph, also those that lead outside, and
those of copies of held-out papers under other ids. Does not mine: see `prepare.py`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.table.prepare import FLAGS
from citeweave import Corpus, import_papers
from citeweave.core.errors import CiteweaveError
from citeweave.core.hash_keys import hash_texts
from citeweave.corpus.options import ImportOptions
from citeweave.corpus.plain_text import fold
from citeweave.evaluation.suites.corpus_pools import held_out_rows
from citeweave.evaluation.tasks import RankingTask, Suite
from citeweave.graph.citations import CitationGraph, graph_from_edges
from citeweave.pipeline.run_folder import RunOptions
from citeweave.pipeline.suites import without_references

REFERENCES, CONTEXTS = "references.jsonl.gz", "contexts.jsonl.gz"


@dataclass(frozen=True)
class StudyCorpus:
    """A corpus with whole reference lists, and the papers that may be positives and negatives."""

    corpus: Corpus
    pool: Path
    """File with the ids of papers with title and abstract."""


def import_study(data: Path, name: str, work: Path, *, papers: int = 0, held_out: str = "share:0.1") -> StudyCorpus:
    """Import a corpus with all its references; papers of benchmarks stay out. `papers` takes the first so many alone."""
    source = work / "source"
    source.mkdir(parents=True, exist_ok=True)
    kept: set[str] = set()
    with (source / "papers.jsonl").open("w", encoding="utf-8") as file:
        for paper in _lines(data / name / "papers.jsonl.gz"):
            if not any(paper.get(flag) for flag in FLAGS) and (not papers or len(kept) < papers):
                kept.add(paper["id"])
                file.write(json.dumps(paper) + "\n")
    with (source / "references.tsv").open("w", encoding="utf-8") as file:
        file.write("citing\tcited\n")  # ids with spaces need a header
        for entry in _lines(data / name / REFERENCES):
            if entry["citing"] in kept:
                file.writelines(f"{entry['citing']}\t{cited}\n" for cited in entry["cited"])
    with (source / "contexts.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(
            json.dumps(context) + "\n" for context in _lines(data / name / CONTEXTS) if context["citing"] in kept
        )
    options = ImportOptions(outside="keep", same_title="always")
    corpus = import_papers([source], work / "imported", options, overwrite=True).corpus
    corpus = _without_copies(corpus, held_out, work / "without-copies")
    has_text = (corpus.titles.lengths() > 0) & (corpus.abstracts.lengths() > 0)  # (papers,)
    (work / "pool.txt").write_text("\n".join(corpus.ids.take(np.flatnonzero(has_text))) + "\n", encoding="utf-8")
    return StudyCorpus(corpus, work / "pool.txt")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.is_file():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield from map(json.loads, file)


def _without_copies(corpus: Corpus, held_out: str, folder: Path) -> Corpus:
    """Remove the references of papers that have the title of a held-out paper: they repeat what is asked for."""
    options = RunOptions(held_out=held_out).suite_options
    assert options is not None
    copies = copies_of(corpus, held_out_rows(corpus, options))
    if not copies.any():
        return corpus
    return without_references(corpus, copies, folder, why="copies of held-out papers", overwrite=True)


def copies_of(corpus: Corpus, held: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which papers (papers,) cite, are not held out, and have the title of a paper that is."""
    citing = np.unique(corpus.citing)
    keys = hash_texts([fold(title) for title in corpus.titles.take(citing)])  # (citing papers,)
    named = corpus.titles.lengths()[citing] > 0
    is_copy = named & ~held[citing] & np.isin(keys, keys[held[citing] & named])
    found = np.zeros(len(corpus), bool)
    found[citing[is_copy]] = True
    return found


def audit_graph(complete: Corpus, learned: Corpus, held: NDArray[np.bool_], suite: Suite) -> dict[str, int]:
    """Count what a graph must not hold, and refuse a graph that holds some of it.

    An answer of `cite` or `hard_cite` must not be a citation of the graph, in either direction; an answer of `cocite` must
    not be cited together with its query by a paper of the graph; no held-out paper, or copy of one, may cite.
    """
    graph = graph_from_edges(learned.citing, learned.cited, len(learned))
    found = {
        "citations of held-out papers": int(held[learned.citing].sum()),
        "citing sentences of held-out papers": _held_contexts(learned, held),
        "citing copies of held-out papers": int(copies_of(learned, held | copies_of(complete, held)).sum()),
    }
    checks = {"cite": _are_linked, "hard_cite": _are_linked, "cocite": _are_cocited}
    tasks = [task for task in suite.tasks if isinstance(task, RankingTask) and task.name in checks]
    for task in tasks:
        pairs = _answers(task, learned)
        found[f"answers of {task.name} in the graph"] = sum(checks[task.name](graph, *pair) for pair in pairs)
    if any(found.values()):
        raise CiteweaveError(f"{learned.folder} holds what evaluation asks for: {found}; prepare it again")
    return {**found, "answers checked": sum(len(_answers(task, learned)) for task in tasks)}


def _held_contexts(learned: Corpus, held: NDArray[np.bool_]) -> int:
    citing = learned.contexts.citing
    return int(held[citing[citing >= 0]].sum())


def _answers(task: RankingTask, corpus: Corpus) -> list[tuple[int, int]]:
    """Rows of queries with their relevant papers."""
    rows = corpus.rows(list(task.texts.ids))
    pools = task.pools
    owners = np.repeat(pools.queries, np.diff(pools.offsets))
    relevant = pools.grades > 0
    return list(zip(rows[owners[relevant]].tolist(), rows[pools.candidates[relevant]].tolist(), strict=True))


def _are_linked(graph: CitationGraph, first: int, second: int) -> bool:
    return second in graph.cited.row(first) or first in graph.cited.row(second)


def _are_cocited(graph: CitationGraph, first: int, second: int) -> bool:
    return bool(len(np.intersect1d(graph.citing.row(first), graph.citing.row(second))))


def graph_figures(corpus: Corpus, pool: NDArray[np.int64]) -> dict[str, float]:
    """Nodes and citations of a graph, and the median number of citations of the pool's papers, either direction."""
    degrees = np.bincount(corpus.citing, minlength=len(corpus)) + np.bincount(corpus.cited, minlength=len(corpus))
    return {
        "nodes": int((degrees > 0).sum()),
        "citations": len(corpus.citing),
        "pool": len(pool),
        "median degree of the pool": float(np.median(degrees[pool])),
        "pool without a citation": int((degrees[pool] == 0).sum()),
        "pool papers that cite one another": int(np.isin(pool, corpus.citing[np.isin(corpus.cited, pool)]).sum()),
    }
