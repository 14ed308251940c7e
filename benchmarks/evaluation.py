"""Ranking pools once vectors are there: ours beside a loop over pairs, as the peers' scripts do it.

python benchmarks/evaluation.py        1,000 queries x 30 candidates x 768 numbers, L2, map and ndcg

Both sides score and rank the same pools and come to the same map.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from measuring import write_figures
from numpy.typing import NDArray

from citeweave.core.randomness import stream
from citeweave.evaluation.run_tasks import run_ranking
from citeweave.evaluation.systems import VectorSystem
from citeweave.evaluation.tasks import Pools, RankingRule, RankingTask, TaskTexts


def made(queries: int, candidates: int, dimension: int) -> tuple[RankingTask, VectorSystem]:
    rng = stream(0, "benchmark", "evaluation")
    papers = queries * candidates
    ids = [f"q{at}" for at in range(queries)] + [f"p{at}" for at in range(papers)]
    texts = TaskTexts.of_ids(ids, lacking="made up")
    rows = np.arange(queries, queries + papers)
    pools = Pools(
        np.arange(queries), np.arange(queries + 1) * candidates, rows, rng.integers(0, 2, papers), ids[:queries]
    )
    matrix = rng.normal(size=(len(ids), dimension)).astype(np.float32)
    return RankingTask("made", texts, pools, RankingRule(("map", "ndcg"))), VectorSystem(ids, matrix, name="made")


def loop(task: RankingTask, matrix: NDArray[np.float32]) -> float:
    """One distance a pair, one sort a query, in Python."""
    precisions = []
    for number, query in enumerate(task.pools.queries):
        span = slice(task.pools.offsets[number], task.pools.offsets[number + 1])
        scored = [
            (-float(np.linalg.norm(matrix[query] - matrix[row])), int(row)) for row in task.pools.candidates[span]
        ]
        grades = dict(zip(task.pools.candidates[span].tolist(), task.pools.grades[span].tolist(), strict=True))
        found = total = 0.0
        for place, (_, row) in enumerate(sorted(scored, reverse=True), 1):
            if grades[row]:
                found += 1
                total += found / place
        precisions.append(total / max(1, sum(grades.values())))
    return float(np.mean(precisions))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--candidates", type=int, default=30)
    parser.add_argument("--dimension", type=int, default=768)
    options = parser.parse_args()
    task, system = made(options.queries, options.candidates, options.dimension)
    run_ranking(task, system, "", "wrong")  # compiles
    times = []
    for _ in range(5):
        start = time.perf_counter(), time.process_time()
        outcome = run_ranking(task, system, "", "wrong")
        times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    start = time.perf_counter(), time.process_time()
    peer = loop(task, system.vectors(task.texts).matrix)
    slow = time.perf_counter() - start[0], time.process_time() - start[1]
    wall, cpu = np.median(times, axis=0)
    print("| way | seconds | CPU s | map |\n| --- | --- | --- | --- |")
    print(f"| citeweave | {wall:.3f} | {cpu:.3f} | {outcome.metrics['map']:.4f} |")
    print(f"| loop over pairs | {slow[0]:.3f} | {slow[1]:.3f} | {100 * peer:.4f} |")
    ours = {"label": "citeweave", "cpu": cpu, "wall": wall}
    peer_row = {"label": "loop over pairs", "cpu": slow[1], "wall": slow[0], "ratio": slow[1] / cpu}
    write_figures(f"{options.queries:,} queries of {options.candidates} candidates", [ours, peer_row])
    print(f"\nratio {slow[0] / wall:.1f} by the clock, {slow[1] / cpu:.1f} by CPU time")


if __name__ == "__main__":
    main()
