"""Exact rank bands on one GPU at SciNCL's size: ranks 21 to 25 and 3,999 to 4,000 of 136,820 queries in a million vectors.

    PYTHONPATH=src python benchmarks/gpu_bands.py [--pool 1000000] [--queries 136820] [--device cuda] [--json out.json]

Made-up vectors of 128 numbers in clusters, of length 1, in float32. `citeweave` is `similarity.topk.engine`: products in
plain float32, all that rounding may have put out of order scored again in float64, so that ranks are exact. `torch` is the
usual way, products and `topk` in blocks, whose ranks are as good as the products' rounding; with TF32 too. Seconds are of
the whole call with the transfer of the pool, after a call with few queries that compiles and warms up. Some queries are
checked against float64 brute force. Needs numpy, numba and torch; nothing is read from disk.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from citeweave.vectors.topk import Band, search

BANDS = (Band(20, 25), Band(3998, 4000))
WARM_UP = 512

Found = list[NDArray[Any]]
"""Rows of the neighbors, (queries, width of the band), band by band."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", type=int, default=1_000_000, help="vectors; more than 4,000")
    parser.add_argument("--queries", type=int, default=136_820)
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--clusters", type=int, default=2000)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--check", type=int, default=200, help="queries of the brute force")
    parser.add_argument("--memory", type=int, default=512, help="MiB of working memory on the host")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    name = torch.cuda.get_device_name() if asked.device == "cuda" else "processor"
    print(f"{name}, torch {torch.__version__}, numpy {np.__version__}")
    pool = make_vectors(asked.pool, asked.dimension, asked.clusters)
    own = np.sort(np.random.default_rng(1).choice(asked.pool, min(asked.queries, asked.pool), replace=False))
    checked = np.sort(np.random.default_rng(2).choice(len(own), min(asked.check, len(own)), replace=False))
    expected = brute_force(pool, own[checked])
    systems: dict[str, Callable[[NDArray[np.int64]], Found]] = {
        "citeweave, exact": lambda rows: ours(pool, rows, asked.device, asked.memory << 20),
        "torch, float32 and topk": lambda rows: plain(pool, rows, asked.device, "highest"),
        "torch, TF32 and topk": lambda rows: plain(pool, rows, asked.device, "high"),
    }
    title = f"{len(own):,} queries, {asked.pool:,} x {asked.dimension}, bands (20, 25] and (3998, 4000]"
    print(f"\n{title}\n{'':28}{'s':>9}{'ratio':>8}{'queries/s':>12}{'device GiB':>12}{'right':>10}")
    rows: list[dict[str, Any]] = []
    for label, system in systems.items():
        row = measure(label, system, own, checked, expected, asked.device)
        ratio = row["seconds"] / (rows[0] if rows else row)["seconds"]
        rows.append({**row, "ratio": ratio, "pool": asked.pool, "queries": len(own)})
        print(
            f"{label:28}{row['seconds']:9.2f}{ratio:8.2f}{len(own) / row['seconds']:12,.0f}{row['gib']:12.2f}"
            f"{row['right']:10.2%}"
        )
    print(f"  right: share of the members of both bands that {len(checked)} queries of float64 brute force have too")
    if rows[0]["right"] < 1:
        raise SystemExit("citeweave's bands are not those of brute force")
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))


def make_vectors(size: int, dimension: int, clusters: int) -> NDArray[np.float32]:
    """Unit vectors around random centers, a quarter of each vector's spread between them."""
    random = np.random.default_rng(0)
    centers = random.standard_normal((clusters, dimension), np.float32)
    pool = np.empty((size, dimension), np.float32)
    for start in range(0, size, 1 << 16):
        part = pool[start : start + (1 << 16)]
        part[:] = random.standard_normal(part.shape, np.float32) + centers[random.integers(0, clusters, len(part))]
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return pool


def brute_force(pool: NDArray[np.float32], rows: NDArray[np.int64]) -> Found:
    """Cosines in float64, rounded to float32; equal ones by row."""
    found = [np.empty((len(rows), band.high - band.low), np.int64) for band in BANDS]
    wide, lengths = pool[rows].astype(np.float64), np.empty(len(pool))
    scores = np.empty((len(rows), len(pool)), np.float32)
    for start in range(0, len(pool), 1 << 16):
        part = pool[start : start + (1 << 16)].astype(np.float64)
        lengths[start : start + len(part)] = np.linalg.norm(part, axis=1)
        own = np.linalg.norm(wide, axis=1)[:, None] * lengths[None, start : start + len(part)]
        scores[:, start : start + len(part)] = wide @ part.T / own
    for number, row in enumerate(rows):
        scores[number, row] = -np.inf
        order = np.argsort(-scores[number], kind="stable")
        for band, out in zip(BANDS, found, strict=True):
            out[number] = order[band.low : band.high]
    return found


def ours(pool: NDArray[np.float32], rows: NDArray[np.int64], device: str, memory: int) -> Found:
    found = search(pool, pool[rows], list(BANDS), itself=rows, device=device, memory=memory)
    return [band.rows for band in found]


def plain(pool: NDArray[np.float32], rows: NDArray[np.int64], device: str, precision: str) -> Found:
    """The 4,001 nearest of every query, itself among them, in blocks whose products fit into some GiB."""
    torch.set_float32_matmul_precision(precision)
    matrix = torch.from_numpy(pool).to(device)
    deepest, block = BANDS[-1].high + 1, max(1, (1 << 30) // len(pool))
    found: list[list[NDArray[Any]]] = [[] for _ in BANDS]
    for start in range(0, len(rows), block):
        own = torch.from_numpy(rows[start : start + block]).to(device)
        at = torch.topk(matrix[own] @ matrix.T, deepest).indices  # (queries, 4001)
        others = at[at != own[:, None]].view(len(own), -1)  # who is not among its own nearest breaks this
        for band, out in zip(BANDS, found, strict=True):
            out.append(others[:, band.low : band.high].cpu().numpy())
    torch.set_float32_matmul_precision("highest")
    return [np.concatenate(out) for out in found]


def measure(
    label: str,
    system: Callable[[NDArray[np.int64]], Found],
    own: NDArray[np.int64],
    checked: NDArray[np.int64],
    expected: Found,
    device: str,
) -> dict[str, Any]:
    system(own[:WARM_UP])
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    found = system(own)
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    gib = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    same = [np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(one[checked], other, strict=True)])
            for one, other in zip(found, expected, strict=True)]  # fmt: skip
    widths = [band.high - band.low for band in BANDS]
    right = float(np.dot(same, widths) / sum(widths))
    return {"system": label, "seconds": seconds, "gib": gib, "right": right}


if __name__ == "__main__":
    main()
