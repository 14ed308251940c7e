"""Searching papers by their sentences: how often the nearest ten are found, how many are proved, and how long it takes.

python benchmarks/sentence_search.py recall --vectors sentences/ --data csfcube/       CSFCube's facet queries, all papers
python benchmarks/sentence_search.py speed --sentences 1000000                         synthetic vectors on disk, float16

The vectors are of `citeweave embed --sentences`; the data is a CSFCube folder. Prints Markdown tables, those of
docs/vectors.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from measuring import PeakMemory

from citeweave.core.randomness import stream
from citeweave.evaluation.suites.csfcube import read_suite
from citeweave.evaluation.tasks import RankingTask
from citeweave.vectors.document_distance import DocumentDistance
from citeweave.vectors.sentence_search import EXACT, SentenceHits, search_sentences
from citeweave.vectors.sentence_vectors import SentenceVectors, new_sentence_vectors

WAYS = {
    "single": DocumentDistance("single"),
    "mean_best": DocumentDistance("mean_best"),
    "top2": DocumentDistance("top2"),
    "attention, 0.5": DocumentDistance("attention", 0.5),
    "transport, 0.5": DocumentDistance("transport", 0.5),
    "transport, 5000": DocumentDistance("transport", 5000.0),
}
FIRST = (50, 200, 1000, None)
K = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["recall", "speed"])
    parser.add_argument("--vectors", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sentences", type=int, default=1_000_000)
    parser.add_argument("--dimension", type=int, default=384)
    options = parser.parse_args()
    if options.what == "recall":
        measure_recall(SentenceVectors.open(options.vectors), options.data)
    else:
        measure_speed(options.sentences, options.dimension)


def measure_recall(vectors: SentenceVectors, data: Path) -> None:
    """Queries are papers of the corpus, by their sentences of a facet."""
    task = next(task for task in read_suite(data).tasks if task.name == "all")
    assert isinstance(task, RankingTask) and task.pools.sentences is not None
    queries = vectors.rows([task.texts.ids[row] for row in task.pools.queries.tolist()])
    print(f"{len(queries)} queries, {len(vectors):,} papers, {len(vectors.matrix):,} sentences\n")
    print("| distance | first | of the true ten found | queries proved exact | ms a query |\n|---|---|---|---|---|")
    for name, distance in WAYS.items():
        true: SentenceHits | None = None
        search_sentences(vectors, queries[:1], K, distance)  # compiles, and reads the file
        for first in FIRST[-1:] if distance.name in EXACT else FIRST[::-1]:
            start = time.perf_counter()
            found = search_sentences(vectors, queries, K, distance, query_sentences=task.pools.sentences, first=first)
            spent = (time.perf_counter() - start) / len(queries)
            true = true or found
            share = (
                np.mean([len(np.intersect1d(one, other)) for one, other in zip(found.rows, true.rows, strict=True)]) / K
            )
            until = "until sure" if first is None else first
            print(f"| {name} | {until} | {share:.3f} | {found.is_exact.mean():.2f} | {1000 * spent:.0f} |", flush=True)


def measure_speed(sentences: int, dimension: int) -> None:
    """Papers of 4 to 12 sentences around centers of their own, so that there are near ones."""
    with tempfile.TemporaryDirectory() as place:
        vectors = write(Path(place) / "v", sentences, dimension)
        rng = stream(0, "queries")
        search_sentences(vectors, np.array([0]), K, WAYS["transport, 0.5"])  # compiles
        print(f"{len(vectors):,} papers, {len(vectors.matrix):,} sentences of {dimension} numbers, float16\n")
        print(
            "| distance | queries at once | ms a query | proved exact | anonymous memory, MiB |\n|---|---|---|---|---|"
        )
        for name, distance in WAYS.items():
            for count in (1, 50):
                queries = rng.choice(len(vectors), count, replace=False)
                with PeakMemory() as memory:
                    start = time.perf_counter()
                    found = search_sentences(vectors, queries, K, distance)
                    spent = (time.perf_counter() - start) / count
                    time.sleep(0.3)  # the watcher looks four times a second
                used = memory.anonymous / 2**20
                print(
                    f"| {name} | {count} | {1000 * spent:.0f} | {found.is_exact.mean():.2f} | {used:.0f} |", flush=True
                )


def write(folder: Path, sentences: int, dimension: int) -> SentenceVectors:
    rng = stream(0, "made-up sentences")
    topics = rng.standard_normal((2000, dimension), np.float32)
    with new_sentence_vectors(folder) as writer:
        done = 0
        while done < sentences:
            lengths = rng.integers(4, 13, 2000)
            centers = np.repeat(topics[rng.integers(0, len(topics), len(lengths))], lengths, axis=0)
            block = centers + rng.standard_normal(centers.shape, np.float32)
            ids = [f"p{done + at}" for at in np.cumsum(lengths).tolist()]
            writer.append(ids, np.split(block, np.cumsum(lengths)[:-1]))
            done += len(block)
        return writer.finish()


if __name__ == "__main__":
    main()
