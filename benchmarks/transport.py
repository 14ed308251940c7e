"""One query against many candidates by the distances between their sentences, beside loops over geomloss and POT.

python benchmarks/transport.py                                  10,000 candidates of about 8 sentences, 384 numbers each
python benchmarks/transport.py --device cuda --rounds 20        the same on a graphics card; vectors stay there
python benchmarks/transport.py --device cuda --check            scores of the device against differences in float64 on the CPU

Prints one JSON line a row (milliseconds of one query: warm, synchronised, the median of the rounds), then a table with the
ratios. The vectors are made, not a model's: normal around 64 topics, of length 4, lengths of papers from half to one and
a half of `--sentences`, and a tenth of the candidates holds a sentence near to one of the query's. geomloss runs pair
after pair as in ASPIRE's code (p = 1, blur 0.05, scaling 0.9, no debiasing), POT's log-domain Sinkhorn at the same entropy;
both are timed on `--peer-pairs` pairs and scaled to all, and left out where they are not installed. Needs numpy, torch and
citeweave's source; numba on a CPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from measuring import write_figures

from citeweave.vectors.document_distance import DocumentDistance, PlacedSentences, match
from citeweave.vectors.sentence_distances import PaperPairs


class Made(NamedTuple):
    """What of SentenceVectors is used here."""

    ids: list[str]
    offsets: np.ndarray
    matrix: np.ndarray
    numbers: np.ndarray

    def paper(self, row: int) -> torch.Tensor:
        return torch.from_numpy(self.matrix[self.offsets[row] : self.offsets[row + 1]])


class Timed(NamedTuple):
    label: str
    milliseconds: float
    cpu_milliseconds: float
    remark: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--candidates", type=int, default=10_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--sentences", type=int, default=8, help="of a candidate, in the mean; the query has as many")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-pairs", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="differences of scores instead of times")
    options = parser.parse_args()
    vectors = make_vectors(options)
    print(json.dumps(machine(options)), flush=True)
    if options.check:
        check(vectors, options)
        return
    rows = [report(row) for row in (*ours(vectors, options), *peers(vectors, options))]
    print_table(rows, f"1 query x {options.candidates:,} candidates, {options.device}")


def machine(options: argparse.Namespace) -> dict[str, Any]:
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} threads"
    return {"on": where, "torch": torch.__version__, "load": round(os.getloadavg()[0], 1), **vars(options)}


def make_vectors(options: argparse.Namespace) -> Made:
    """The query is row 0."""
    draw = np.random.default_rng(options.seed)
    count, mean = options.candidates, options.sentences
    lengths = np.append(mean, draw.integers(max(1, mean // 2), mean + mean // 2 + 1, count))  # (papers,)
    offsets = np.append(0, np.cumsum(lengths))
    topics = draw.normal(size=(64, options.dimension))
    matrix = topics[draw.integers(0, 64, offsets[-1])] + draw.normal(size=(offsets[-1], options.dimension))
    for paper in draw.choice(np.arange(1, count + 1), count // 10, replace=False):
        row = offsets[paper] + draw.integers(lengths[paper])
        matrix[row] = matrix[draw.integers(mean)] + 0.2 * matrix[row]
    matrix *= 4 / np.sqrt(2 * options.dimension)
    numbers = np.concatenate([np.arange(length) for length in lengths]).astype(np.int32)
    return Made([f"p{row}" for row in range(count + 1)], offsets, matrix.astype(np.float32), numbers)


def ours(vectors: Made, options: argparse.Namespace) -> list[Timed]:
    placed, rows = PlacedSentences(vectors, options.device), np.arange(1, options.candidates + 1)
    shuffled = np.random.default_rng(1).permutation(rows)
    heat = options.temperature
    found = []
    for label, distance, chosen, rounds in (
        ("transport, exact", DocumentDistance("transport", heat), rows, options.rounds),
        ("transport, exact, candidates in any order", DocumentDistance("transport", heat), shuffled, options.rounds),
        ("transport, exact, temperature 5000", DocumentDistance("transport", 5000.0), rows, options.rounds),
        ("transport, exact, cosine", DocumentDistance("transport", heat, "cosine"), rows, options.rounds),
        ("transport, geomloss", DocumentDistance("transport", heat, mode="geomloss"), rows, 1),
        ("single", DocumentDistance("single"), rows, options.rounds),
        ("attention", DocumentDistance("attention", heat), rows, options.rounds),
    ):
        placed.scores(0, chosen[:100] if rounds == 1 else chosen, distance)
        walls, processors = [], []
        for _ in range(rounds):
            wall, processor = timed(lambda d=distance, c=chosen: placed.scores(0, c, d))
            walls.append(wall)
            processors.append(processor)
        remark = f"fastest {min(walls):.1f}" + (f", {rounds} round" if rounds == 1 else f" of {rounds}")
        found.append(Timed(f"citeweave {label}", statistics.median(walls), statistics.median(processors), remark))
    return found


def peers(vectors: Made, options: argparse.Namespace) -> list[Timed]:
    found = []
    pairs = min(options.peer_pairs, options.candidates)
    for module, label, make in (
        ("geomloss", "geomloss, one pair at a time", geomloss_loop),
        ("ot", "POT, a pair", pot_loop),
    ):
        if importlib.util.find_spec(module) is None:
            print(json.dumps({"row": module, "skipped": "not installed"}), flush=True)
            continue
        loop = make(vectors, options)
        loop(5)
        wall, processor = timed(lambda loop=loop: loop(pairs))
        factor = options.candidates / pairs
        found.append(Timed(label, wall * factor, processor * factor, f"{pairs} pairs, scaled by {factor:g}"))
    return found


Loop = Callable[[int], list[float]]


def geomloss_loop(vectors: Made, options: argparse.Namespace) -> Loop:
    import geomloss

    solver = geomloss.SamplesLoss("sinkhorn", p=1, blur=0.05, scaling=0.9, debias=False, potentials=True)
    query = vectors.paper(0)[None].to(options.device)
    papers = [vectors.paper(row)[None].to(options.device) for row in range(1, options.candidates + 1)]

    def loop(pairs: int) -> list[float]:
        found = []
        with torch.inference_mode():
            for paper in papers[:pairs]:
                apart = torch.cdist(query, paper)  # (1, n, m)
                a, b = ((-apart.amin(side) / options.temperature).softmax(1) for side in (2, 1))
                f, g = solver(a, query, b, paper)
                plan = ((f[:, :, None] + g[:, None, :] - apart) / 0.05).exp() * a[:, :, None] * b[:, None, :]
                found.append((plan * apart).sum().item())
        return found

    return loop


def pot_loop(vectors: Made, options: argparse.Namespace) -> Loop:
    import ot

    query = vectors.paper(0).double().numpy()

    def loop(pairs: int) -> list[float]:
        found = []
        for row in range(1, pairs + 1):
            apart = ot.dist(query, vectors.paper(row).double().numpy(), "euclidean")  # (n, m)
            a, b = (torch.from_numpy(-apart.min(side) / options.temperature).softmax(0).numpy() for side in (1, 0))
            found.append(float((ot.sinkhorn(a, b, apart, 0.05, method="sinkhorn_log", warn=False) * apart).sum()))
        return found

    return loop


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Milliseconds of the clock and of the processor."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    wall, processor = time.perf_counter(), time.process_time()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - processor)


def report(row: Timed) -> Timed:
    print(json.dumps({"row": row.label, "ms": round(row.milliseconds, 2), "remark": row.remark}), flush=True)
    return row


def print_table(rows: list[Timed], title: str) -> None:
    """Ratios are to the first row."""
    print(f"\n{title:52}{'ms':>12}{'ratio':>9}{'CPU ms':>12}{'ratio':>9}")
    for row in rows:
        ratios = row.milliseconds / rows[0].milliseconds, row.cpu_milliseconds / rows[0].cpu_milliseconds
        figures = f"{row.milliseconds:12,.1f}{ratios[0]:9.2f}{row.cpu_milliseconds:12,.1f}{ratios[1]:9.2f}"
        print(f"{row.label:52}{figures}  {row.remark}")
    write_figures(
        title,
        [
            {
                "label": row.label,
                "cpu": row.cpu_milliseconds / 1e3,
                "wall": row.milliseconds / 1e3,
                "ratio": row.cpu_milliseconds / rows[0].cpu_milliseconds,
                "remark": row.remark,
            }
            for row in rows
        ],
    )


def check(vectors: Made, options: argparse.Namespace) -> None:
    """Largest differences to `match` on the processor, pair by pair, and to geomloss in its own mode."""
    placed, rows = PlacedSentences(vectors, options.device), np.arange(1, min(options.candidates, 1000) + 1)
    pairs = PaperPairs.of([vectors.paper(0)] * len(rows), [vectors.paper(row) for row in rows.tolist()])
    for name, metric, mode in (
        *((name, metric, "exact") for name in ("transport", "single", "attention") for metric in ("l2", "cosine")),
        ("transport", "l2", "geomloss"),
    ):
        distance = DocumentDistance(name, options.temperature, metric, mode)
        with torch.inference_mode():
            expected = match(pairs, distance).distances.numpy()
        apart = np.abs(placed.scores(0, rows, distance) + expected).max()
        print(json.dumps({"row": f"{name} {metric} {mode}", "largest difference": float(apart)}), flush=True)
    if importlib.util.find_spec("geomloss") is not None:
        theirs = np.array(geomloss_loop(vectors, options)(50))
        apart = np.abs(theirs - expected[: len(theirs)]).max()
        print(json.dumps({"row": "geomloss in float32, ours as the peer", "largest difference": float(apart)}))


if __name__ == "__main__":
    main()
