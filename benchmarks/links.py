"""Link prediction by every way to embed nodes: held-out citations found again, mean and deviation over seeds.

python benchmarks/links.py peerread_plus=FOLDER elife=FOLDER                          fastrp and prone: minutes
python benchmarks/links.py peerread_plus=FOLDER --methods scincl edges --seeds 0      BigGraph's model: hours on a CPU

FOLDER is an imported corpus. `scincl` is the BigGraph recipe of SciNCL: dot product, margin loss, 768 numbers, citations
in one direction, twenty epochs. Prints a Markdown table, the one of docs/graph.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from citeweave import Corpus
from citeweave.evaluation.links import held_out_evaluator
from citeweave.graph.citations import CitationGraph, graph_from_edges
from citeweave.graph.node_vectors import METHODS, embed_nodes
from citeweave.graph.options import EdgeModel, NodeVectorOptions

SCINCL = EdgeModel(loss="margin", max_norm=1.0)
WAYS = {
    "fastrp-128": ("both", NodeVectorOptions(method="fastrp", dimension=128)),
    "fastrp-256": ("both", NodeVectorOptions(method="fastrp", dimension=256)),
    "fastrp-512": ("both", NodeVectorOptions(method="fastrp", dimension=512)),
    "prone-128": ("both", NodeVectorOptions(method="prone", dimension=128)),
    "prone-256": ("both", NodeVectorOptions(method="prone", dimension=256)),
    "edges": ("both", NodeVectorOptions(method="edges", dimension=128)),
    "scincl": ("cited", NodeVectorOptions(method="edges", dimension=768, edges=SCINCL)),
}
QUICK = [name for name in WAYS if name.startswith(("fastrp", "prone"))]
NUMBERS = ("mrr", "hits_1", "hits_10", "hits_50", "auc", "mean_rank")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", nargs="+", help="NAME=FOLDER")
    parser.add_argument("--methods", nargs="+", choices=list(WAYS), default=QUICK)
    parser.add_argument("--share", type=float, default=0.05, help="citations held out")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    options = parser.parse_args()
    print("| corpus | vectors | negatives | MRR | Hits@1 | Hits@10 | Hits@50 | AUC | mean rank | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for entry in options.corpora:
        name, _, place = entry.partition("=")
        corpus = Corpus.open(place)
        graph = graph_from_edges(corpus.citing, corpus.cited, len(corpus))
        for method in options.methods:
            for line in lines_of(graph, method, options.share, options.seeds):
                print(f"| {name} | {line}", flush=True)


def lines_of(graph: CitationGraph, method: str, share: float, seeds: list[int]) -> list[str]:
    """One line for each kind of negatives."""
    seconds: list[float] = []
    found = []
    for seed in seeds:
        score = METHODS[WAYS[method][1].method].score
        evaluate_graph = held_out_evaluator(share, seed=seed, score=score)
        found.append(evaluate_graph(graph, embedder(method, seed, seconds)))
    lines = []
    for negatives in ("uniform", "degree"):
        values = np.array([[result[negatives][number] for number in NUMBERS] for result in found])  # (seeds, numbers)
        cells = [
            f"{mean:.1f} ± {sd:.1f}" if number == "mean_rank" else f"{mean:.3f} ± {sd:.3f}"
            for number, mean, sd in zip(NUMBERS, values.mean(axis=0), values.std(axis=0), strict=True)
        ]
        lines.append(f"{method} | {negatives} | {' | '.join(cells)} | {np.mean(seconds):.1f} |")
    return lines


def embedder(method: str, seed: int, seconds: list[float]) -> Callable[[CitationGraph], np.ndarray]:
    direction, options = WAYS[method]

    def embed(graph: CitationGraph) -> np.ndarray:
        start = time.process_time()
        chosen = NodeVectorOptions(options.method, options.dimension, seed, edges=options.edges)
        vectors = embed_nodes(graph.adjacency(direction), chosen)
        seconds.append(time.process_time() - start)
        return vectors

    return embed


if __name__ == "__main__":
    main()
