"""One query against all vectors: `similarity.topk.nearest` with and without codes, beside numpy and faiss.

    python benchmarks/search_scan.py                                   100,000 rows of 384 numbers, generated
    python benchmarks/search_scan.py --rows 1000000 --queries 50
    python benchmarks/search_scan.py --vectors vectors/                a folder of vectors, such as `citeweave embed` writes
    python benchmarks/search_scan.py --sentences sentences/            the nearest papers by sentences, and transport

Queries are rows of the matrix with a little noise, asked one after the other for the ten nearest by cosine. Recall is
the share of the ten that blocks of matrix products find. Generated vectors are mixtures of two of 3,000 random directions
and noise, so that each has neighbors. Every line is a process of its own, on all cores; `memory` is its peak, mapped
pages included.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Clock, missing, processor, run_step, versions, write_figures
from numpy.typing import NDArray

K = 10
BLOCK = 16_384


@dataclass(frozen=True, slots=True)
class Asked:
    """What every line searches."""

    matrix: Path
    codes: Path
    queries: int
    offsets: Path | None = None

    def open(self) -> NDArray[Any]:
        return np.asarray(np.load(self.matrix, mmap_mode="r", allow_pickle=False))

    def vectors(self) -> NDArray[np.float32]:
        """The queries, (queries, dimension)."""
        matrix, draw = self.open(), np.random.default_rng(1)
        chosen = np.sort(draw.choice(len(matrix), min(self.queries, len(matrix)), replace=False))
        found = np.asarray(matrix[chosen], np.float32)
        noise = draw.standard_normal(found.shape) * (0.2 / np.sqrt(found.shape[1]))
        return (found + noise * np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


Search = Callable[[NDArray[np.float32]], NDArray[Any]]
"""One query, (1, dimension) -> rows, (1, K)."""


def timed(clock: Clock, asked: Asked, search: Search) -> dict[str, Any]:
    """Seconds of every query, after two that do not count, and what was found."""
    queries, seconds, found = asked.vectors(), [], []
    for query in queries[:2]:
        search(query[None])
    with clock:
        for query in queries:
            start = time.perf_counter()
            rows = search(query[None])
            seconds.append(time.perf_counter() - start)
            found.append(np.asarray(rows).reshape(-1).tolist())
    return {"seconds": seconds, "found": found}


def scan(clock: Clock, asked: Asked, exact: bool) -> dict[str, Any]:
    from citeweave.vectors.topk import Codes, nearest

    matrix, codes = asked.open(), Codes.open(asked.codes)
    return timed(clock, asked, lambda query: nearest(matrix, query, K, codes=codes, exact=exact).rows)


def multiply(clock: Clock, asked: Asked) -> dict[str, Any]:
    """Unit vectors as float32 in memory, one product a query."""
    unit = _unit(asked.open())

    def search(query: NDArray[np.float32]) -> NDArray[Any]:
        scores = unit @ query[0]
        best = np.argpartition(scores, -K)[-K:]
        return best[np.argsort(-scores[best])]

    return timed(clock, asked, search)


def compare_all(clock: Clock, asked: Asked, dtype: str) -> dict[str, Any]:
    """Without codes: the matrix as it is on disk, or as float32 in memory."""
    from citeweave.vectors.topk import nearest

    matrix = asked.open()
    if matrix.dtype != dtype:
        matrix = matrix.astype(dtype)
    return timed(clock, asked, lambda query: nearest(matrix, query, K).rows)


def true_neighbors(clock: Clock, asked: Asked) -> dict[str, Any]:
    from citeweave.vectors.topk import nearest
    from citeweave.vectors.topk import search as engine

    engine.FEW = 0
    with clock:
        found = nearest(asked.open(), asked.vectors(), K).rows
    return {"found": found.tolist()}


def search_with_faiss(clock: Clock, asked: Asked, kind: str) -> dict[str, Any]:
    import faiss

    unit = _unit(asked.open())
    index = faiss.IndexFlatIP(unit.shape[1]) if kind == "flat" else _graph(faiss, unit.shape[1])
    start = time.perf_counter()
    index.add(unit)
    built = time.perf_counter() - start
    return {**timed(clock, asked, lambda query: index.search(query, K)[1]), "built": built}


def _graph(faiss: Any, dimension: int) -> Any:
    index = faiss.IndexHNSWFlat(dimension, 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = 100, 128
    return index


def write(clock: Clock, asked: Asked) -> dict[str, Any]:
    from citeweave.vectors.topk import make_codes, write_codes

    make_codes(np.ones((2, 3), np.float32))
    with clock:
        write_codes(asked.codes, asked.open())
    return {}


def scan_sentences(clock: Clock, asked: Asked, sentences: int, exact: bool) -> dict[str, Any]:
    """The 100 best papers for some sentences of a paper, then their order by transport."""
    from citeweave.vectors.document_distance import DocumentDistance, rerank
    from citeweave.vectors.topk import Codes
    from citeweave.vectors.topk.sentences import best_papers

    assert asked.offsets is not None
    matrix, codes, offsets = asked.open(), Codes.open(asked.codes), np.load(asked.offsets, allow_pickle=False)
    long = np.flatnonzero(np.diff(offsets) >= sentences)
    papers = np.random.default_rng(2).choice(long, min(asked.queries, len(long)) + 2, replace=len(long) < 3)
    distance, seconds, reranked = DocumentDistance("transport"), [], []
    with clock:
        for paper in papers:
            query = np.asarray(matrix[offsets[paper] : offsets[paper] + sentences], np.float32)
            start = time.perf_counter()
            best = best_papers(codes, matrix, offsets, query, 100, exact=exact)
            middle = time.perf_counter()
            rerank(query, [matrix[offsets[row] : offsets[row + 1]] for row in best.papers], distance)
            seconds.append(middle - start)
            reranked.append(time.perf_counter() - middle)
    return {"seconds": seconds[2:], "reranked": reranked[2:]}


def make_matrix(path: Path, rows: int, dimension: int) -> None:
    """float16, written block by block."""
    draw = np.random.default_rng(0)
    directions = draw.standard_normal((3000, dimension)).astype(np.float32)
    matrix = np.lib.format.open_memmap(path, "w+", np.float16, (rows, dimension))
    for start in range(0, rows, BLOCK):
        size = min(BLOCK, rows - start)
        share, noise = draw.random((size, 1), np.float32), draw.standard_normal((size, dimension), np.float32)
        one, other = directions[draw.integers(3000, size=(2, size))]
        matrix[start : start + size] = share * one + (1 - share) * other + 0.3 * noise
    matrix.flush()


def _unit(matrix: NDArray[Any]) -> NDArray[np.float32]:
    unit = np.array(matrix, np.float32)
    lengths = np.linalg.norm(unit, axis=1, keepdims=True)
    unit /= np.where(lengths > 0, lengths, 1)
    return unit


FOUND: list[dict[str, Any]] = []
"""Lines that were printed, for the suite."""


def line(label: str, cost: Any, truth: list[list[int]] | None = None, remark: str = "") -> None:
    milliseconds = np.array(cost.found["seconds"]) * 1e3
    recall = ""
    if truth is not None:
        same = [len({*a} & {*b}) / len(b) for a, b in zip(cost.found["found"], truth, strict=True)]
        recall = f"{np.mean(same):.4f}"
    cpu = cost.cpu / len(milliseconds) * 1e3
    print(
        f"{label:34}{np.median(milliseconds):9.2f}{np.percentile(milliseconds, 95):9.2f}{cpu:9.2f}"
        f"{cost.peak / 2**20:10,.0f}{recall:>9}  {remark}".rstrip(),
        flush=True,
    )
    FOUND.append(
        {"label": label, "cpu": cpu / 1e3, "wall": float(np.median(milliseconds)) / 1e3, "peak": cost.peak}
        | ({"recall": float(recall)} if recall else {})
    )


def search_table(asked: Asked, peers: bool) -> None:
    matrix = asked.open()
    print(f"\none query, {len(matrix):,} rows of {matrix.shape[1]} numbers ({matrix.dtype}), the {K} nearest by cosine")
    written = run_step(write, asked)
    print(f"  codes: {written.wall:.1f} s, {sum(f.stat().st_size for f in asked.codes.glob('*.npy')) / 2**20:,.0f} MiB")
    truth = run_step(true_neighbors, asked).found["found"]
    print(f"{'':34}{'p50 ms':>9}{'p95 ms':>9}{'CPU ms':>9}{'memory':>10}{'recall':>9}")
    line("nearest with codes", run_step(scan, asked, True), truth)
    line("nearest with codes, exact=False", run_step(scan, asked, False), truth)
    line("numpy matrix times vector", run_step(multiply, asked), truth, "float32 in memory")
    line("nearest without codes", run_step(compare_all, asked, "float32"), truth, "float32 in memory")
    if matrix.dtype != np.float32:
        line("nearest without codes", run_step(compare_all, asked, str(matrix.dtype)), truth, f"{matrix.dtype} on disk")
    if (skipped := missing("faiss", "faiss-cpu")) is not None:
        print(f"{skipped.label} {skipped.remark}")
    elif peers:
        line("faiss IndexFlatIP", run_step(search_with_faiss, asked, "flat"), truth, "float32 in memory")
        graph = run_step(search_with_faiss, asked, "graph")
        line("faiss IndexHNSWFlat 32/100/128", graph, truth, f"built in {graph.found['built']:,.0f} s")


def sentence_table(asked: Asked) -> None:
    assert asked.offsets is not None
    papers = len(np.load(asked.offsets, allow_pickle=False)) - 1
    print(f"\nthe 100 best of {papers:,} papers by {len(asked.open()):,} sentences; then their order by transport")
    run_step(write, asked)
    print(f"{'':34}{'p50 ms':>9}{'p95 ms':>9}{'CPU ms':>9}{'memory':>10}")
    for sentences in (1, 3, 5):
        cost = run_step(scan_sentences, asked, sentences, True)
        again = np.array(cost.found["reranked"]) * 1e3
        remark = f"transport p50 {np.median(again):.1f}, p95 {np.percentile(again, 95):.1f} ms"
        line(f"{sentences} query sentence{'s' if sentences > 1 else ''}, exact", cost, None, remark)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--vectors", type=Path)
    parser.add_argument("--sentences", type=Path)
    parser.add_argument("--no-peers", action="store_true", help="leave faiss out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.sentences is not None:
            own = options.sentences
            sentence_table(Asked(own / "matrix.npy", Path(folder) / "codes", options.queries, own / "offsets.npy"))
            return
        path = Path(folder) / "matrix.npy" if options.vectors is None else options.vectors / "matrix.npy"
        if options.vectors is None:
            make_matrix(path, options.rows, options.dimension)
        search_table(Asked(path, Path(folder) / "codes", options.queries), not options.no_peers)
    print(f"  {versions('numpy', 'numba', 'faiss-cpu')}; {processor()}")
    write_figures("one query", [{**row, "ratio": row["cpu"] / FOUND[0]["cpu"]} for row in FOUND])


if __name__ == "__main__":
    main()
