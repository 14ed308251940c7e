"""Searching by vector in an index, in LanceDB and in milvus-lite: building, adding, latency, recall, disk and memory.

python benchmarks/search_stores.py --vectors vectors/               of `citeweave embed`
python benchmarks/search_stores.py --papers 100000                  synthetic vectors around 2,000 topics

Queries are vectors that are left out of the pool, one at a time. Recall is the share of the exact ten nearest that an
approximate search finds, before and after a tenth of the papers was deleted and as many were added. Prints a Markdown
table. The line `scan` is the scan of codes (`vectors/topk`) that an index uses, on the same vectors.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measuring import missing, run_step, versions, write_figures
from numpy.typing import NDArray

from citeweave.core.randomness import stream
from citeweave.search.databases import open_store
from citeweave.vectors.topk import Codes, nearest, write_codes
from citeweave.vectors.vectors import Provenance, Vectors

K = 10
MODULES = {"scan": "numpy", "lance": "lancedb", "milvus": "milvus_lite"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path)
    parser.add_argument("--papers", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--only", choices=list(MODULES), action="append")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        matrix = _matrix(options.vectors, options.papers, options.dimension)
        np.save(Path(place) / "matrix.npy", matrix)
        print(
            f"{len(matrix):,} papers of {matrix.shape[1]} numbers; {versions('lancedb', 'pymilvus', 'milvus-lite')}\n"
        )
        print(
            "| | add/s | build s | exact p50/p95 ms | approximate p50/p95 ms | recall@10 | after changes | MiB disk | MiB |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        found: list[dict[str, Any]] = []
        for kind in options.only or MODULES:
            absent = missing(MODULES[kind], "citeweave[stores] milvus-lite")
            if absent is not None:
                print(f"| {kind} | {absent.remark} |")
                continue
            cost = run_step(measure, kind, place, options.queries)
            told = cost.found
            print(
                f"| {kind} | {told['rate']:,.0f} | {told['build']:.1f} | {_pair(told['exact'])} | {_pair(told['near'])} | "
                f"{told['recall']:.3f} | {told['later']:.3f} | {told['disk'] / 2**20:.0f} | {cost.peak / 2**20:.0f} |",
                flush=True,
            )
            found.append({"label": kind, "cpu": cost.cpu, "peak": cost.peak, "papers/s added": told["rate"]})
        write_figures(f"{len(matrix):,} papers", found)


def measure(clock: Any, kind: str, place: str, queries: int) -> dict[str, Any]:
    """One back end from nothing to its answers after changes."""
    matrix = np.load(Path(place) / "matrix.npy", mmap_mode="r", allow_pickle=False)
    rng = stream(0, "queries")
    order = rng.permutation(len(matrix))
    asked, pool, late = (np.sort(part) for part in np.split(order, [queries, queries + int(0.9 * len(matrix))]))
    subject = _Scan if kind == "scan" else _Store
    with clock:
        made = subject(kind, Path(place) / kind, matrix)
        start = time.perf_counter()
        made.add(pool)
        rate = len(pool) / (time.perf_counter() - start)
        start = time.perf_counter()
        made.build()
        build = time.perf_counter() - start
        questions = np.asarray(matrix[asked], np.float32)
        exact = _timed(lambda query: made.search(query, exact=True), questions)
        near = _timed(lambda query: made.search(query, exact=False), questions)
        recall = _recall(near[1], questions, matrix, pool)
        gone = rng.choice(pool, len(late), replace=False)
        made.delete(gone)
        made.add(late)
        pool = np.union1d(np.setdiff1d(pool, gone), late)
        later = _recall(_timed(lambda query: made.search(query, exact=False), questions)[1], questions, matrix, pool)
        disk = sum(path.stat().st_size for path in (Path(place)).glob(f"{kind}*/**/*") if path.is_file())
        made.close()
    return {
        "rate": rate,
        "build": build,
        "exact": exact[0],
        "near": near[0],
        "recall": recall,
        "later": later,
        "disk": disk,
    }


class _Store:
    """LanceDB or milvus-lite."""

    def __init__(self, kind: str, folder: Path, matrix: NDArray[Any]) -> None:
        name = f"lance:{folder}" if kind == "lance" else f"milvus:{folder}.db"
        self._store = open_store(name, Provenance("made up", "", "", matrix.shape[1], "float32", ""))
        self._matrix = matrix

    def add(self, rows: NDArray[np.int64]) -> None:
        for start in range(0, len(rows), 10_000):
            part = rows[start : start + 10_000]
            self._store.add([f"p{row}" for row in part.tolist()], self._matrix[part], **_texts(part.tolist()))

    def delete(self, rows: NDArray[np.int64]) -> None:
        self._store.delete([f"p{row}" for row in rows.tolist()])

    def build(self) -> None:
        self._store.compact()

    def search(self, query: NDArray[np.float32], *, exact: bool) -> list[int]:
        return [int(id[1:]) for id in self._store.search(query[None], K, exact=exact).ids[0]]

    def close(self) -> None:
        self._store.close()


def _texts(rows: list[int]) -> dict[str, list[Any]]:
    """Titles, abstracts of 1,200 characters, authors and venues, as stores hold them to be read."""
    titles = [f"Rain measured by telephones, part {row}" for row in rows]
    return {
        "titles": titles,
        "abstracts": [f"{title}. " * 30 for title in titles],
        "authors": [("Ada Lovelace", "Alan Turing", f"Author {row % 1000}") for row in rows],
        "venues": [(f"Venue {row % 50}",) for row in rows],
    }


class _Scan:
    """The scan of an index: rows that are not in the pool are masked, as deleted ones are."""

    def __init__(self, kind: str, folder: Path, matrix: NDArray[Any]) -> None:
        self._folder, self._matrix = folder, np.ascontiguousarray(matrix)
        self._alive = np.zeros(len(matrix), bool)

    def add(self, rows: NDArray[np.int64]) -> None:
        if not self._folder.exists():
            write_codes(self._folder, self._matrix)
        self._alive[rows] = True

    def delete(self, rows: NDArray[np.int64]) -> None:
        self._alive[rows] = False

    def build(self) -> None:
        self._codes = Codes.open(self._folder)

    def search(self, query: NDArray[np.float32], *, exact: bool) -> list[int]:
        near = nearest(self._matrix, query[None], K, codes=self._codes, allowed=self._alive, exact=exact)
        return [int(row) for row in near.rows[0]]

    def close(self) -> None:
        pass


def _timed(
    search: Callable[[NDArray[np.float32]], list[int]], queries: NDArray[np.float32]
) -> tuple[list[float], list[list[int]]]:
    """Seconds and answers, a query at a time, after two that warm up."""
    for query in queries[:2]:
        search(query)
    spent, found = [], []
    for query in queries:
        start = time.perf_counter()
        found.append(search(query))
        spent.append(time.perf_counter() - start)
    return spent, found


def _recall(
    found: list[list[int]], queries: NDArray[np.float32], matrix: NDArray[Any], pool: NDArray[np.int64]
) -> float:
    true = nearest(matrix, queries, K, pool_rows=pool).rows
    return float(np.mean([len(set(near) & set(rows)) for near, rows in zip(found, true.tolist(), strict=True)])) / K


def _pair(seconds: list[float]) -> str:
    p50, p95 = 1000 * np.percentile(seconds, [50, 95])
    return f"{p50:.1f} / {p95:.1f}"


def _matrix(folder: Path | None, papers: int, dimension: int) -> NDArray[Any]:
    if folder is not None:
        return np.asarray(Vectors.open(folder).matrix[:papers])
    rng = stream(0, "made-up papers")
    topics = rng.standard_normal((2000, dimension), np.float32)
    made = topics[rng.integers(0, len(topics), papers)] + rng.standard_normal((papers, dimension), np.float32)
    return made.astype(np.float16)


if __name__ == "__main__":
    main()
