"""FastRP on a graphics card beside the same on processors: a synthetic graph of ten million citations.

    PYTHONPATH=src python benchmarks/gpu_graph.py [--edges 10000000] [--dimension 128] [--device cuda] [--json out.json]

Papers = edges / 9; reference lists of Poisson length, cited papers drawn with chances that fall as those of real ones do.
`loops` is citeweave's compiled code on all cores, `products` its torch path on the device: the same signs, the same
roundings between steps, sums in another order. Seconds are of the whole call, with the transfer of the graph and of the
vectors, after a call on a small graph that compiles and warms up. Below the table: how far the two results are apart.
With --device cpu the same torch code runs on the processor, to try it. Needs numpy, numba, scipy and torch; nothing is
read from disk.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import write_figures
from numpy.typing import NDArray

from citeweave.core.progress import QUIET
from citeweave.graph.adjacency import Adjacency, Csr
from citeweave.graph.fastrp import GpuPowerSum, Panels, Projection, embed, whiten
from citeweave.graph.kernels import unit_rows
from citeweave.graph.options import FastRP, NodeVectorOptions

Vectors = NDArray[np.float32]
COMPARED = 2000
"""Papers whose cosines with all others of them are compared."""


def make_graph(edges: int, seed: int = 0) -> Adjacency:
    """Citations without directions: forward and backward."""
    random, papers = np.random.default_rng(seed), max(2, edges // 9)
    offsets = np.zeros(papers + 1, np.int64)  # (papers + 1,)
    np.cumsum(random.poisson(9, papers), out=offsets[1:])
    ranks = (random.random(offsets[-1]) ** 2 * papers).astype(np.int64)  # (edges,)
    targets = random.permutation(papers).astype(np.int32)[ranks]
    there = Csr(offsets, targets)
    return Adjacency((there, there.transposed()))


def loops(adjacency: Adjacency, dimension: int, memory: int) -> Vectors:
    out = np.empty((adjacency.nodes, dimension), np.float32)
    embed(adjacency, out, NodeVectorOptions(memory=memory, device="cpu"), QUIET)
    return out


def products(adjacency: Adjacency, dimension: int, memory: int, device: str) -> Vectors:
    """What `--device cuda` runs, on any device of torch; evening out is done on the processor, as there."""
    chosen = FastRP()
    projection = Projection(adjacency, NodeVectorOptions(memory=memory, device="cpu"))
    projection.powers = GpuPowerSum(adjacency, adjacency.degrees(), chosen.weights, device)
    out = np.zeros((adjacency.nodes, dimension), np.float32)
    for panel in Panels(adjacency.nodes, dimension, memory, np.uint16):
        projection.add(panel, out, panel.columns.start, lambda rows: None)
    whiten(out, chosen.evening)
    unit_rows(out)
    return out


def measure(label: str, run: Callable[[Adjacency], Vectors], graph: Adjacency, device: str) -> tuple[Any, Vectors]:
    run(make_graph(9000))
    on_card = device == "cuda" and label.startswith("products")
    if on_card:
        torch.cuda.reset_peak_memory_stats()
    wall, cpu = time.perf_counter(), time.process_time()
    vectors = run(graph)
    row: dict[str, Any] = {"label": label, "wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    row["device_gib"] = torch.cuda.max_memory_allocated() / 2**30 if on_card else 0.0
    entries = graph.edges * len(FastRP().weights)
    print(
        f"{label:34}{row['wall']:>9.2f}{row['cpu']:>9.2f}{row['wall'] / entries * 1e9:>12.2f}{row['device_gib']:>12.2f}",
        flush=True,
    )
    return row, vectors


def difference(one: Vectors, other: Vectors) -> dict[str, float]:
    """Of cosines between papers; single numbers may differ more, since directions of one strength may be turned."""
    rows = np.random.default_rng(1).choice(len(one), min(COMPARED, len(one)), replace=False)
    apart = np.abs(one[rows] @ one[rows].T - other[rows] @ other[rows].T)
    return {"largest": float(apart.max()), "mean": float(apart.mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--memory", type=int, default=1024, help="MiB of working memory on the host: width of panels")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    name = torch.cuda.get_device_name() if asked.device == "cuda" else "processor"
    print(f"{name}, {os.cpu_count()} cores, torch {torch.__version__}, numpy {np.__version__}")
    graph, memory = make_graph(asked.edges), asked.memory << 20
    title = f"fastrp, {graph.nodes:,} papers, {graph.edges // 2:,} citations, {asked.dimension} dimensions"
    print(f"\n{title}\n{'':34}{'s':>9}{'CPU s':>9}{'ns/entry':>12}{'device GiB':>12}")
    first, ours = measure("loops, all cores", lambda g: loops(g, asked.dimension, memory), graph, asked.device)
    second, theirs = measure(
        f"products, {asked.device}", lambda g: products(g, asked.dimension, memory, asked.device), graph, asked.device
    )
    apart = difference(ours, theirs)
    note = f"cosines of the two differ by {apart['mean']:.6f} in the mean, {apart['largest']:.6f} at most"
    print(f"  {note}\n  ns/entry: wall time over entries (twice the citations) and steps, all dimensions together")
    write_figures(title, [first, second], [note])
    if asked.json:
        asked.json.write_text(json.dumps({"device": name, "rows": [first, second], "apart": apart}, indent=1) + "\n")


if __name__ == "__main__":
    main()
