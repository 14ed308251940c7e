"""Link prediction on the study's graphs: SciNCL's table 5 and table 6.6 of the co-citation thesis; the numbers are kept as JSON.

    predict_links(Path("study/"), ["elife"], ["citations, fastrp-256"])      study/elife.links.json

Five percent of the citations, or of the co-citations, are held out. The edge model has the texts' setting with other
comparators and dimensions, and takes at most `costly.STEPS` steps; FastRP and ProNE are those of `benchmarks/links.py`. Needs
the corpora that `prepare` left in `study/stages`; the edge model wants a GPU.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.claims.costly import STEPS, fit_epochs, graph_of, learned_corpus
from benchmarks.claims.systems import SYSTEMS
from benchmarks.links import NUMBERS, QUICK, WAYS
from citeweave.core.errors import choose
from citeweave.evaluation.links import held_out_evaluator
from citeweave.graph.build import unite_graph
from citeweave.graph.citations import CitationGraph, graph_from_edges
from citeweave.graph.node_vectors import embed_nodes
from citeweave.graph.options import CITATIONS, GraphOptions, NodeVectorOptions
from citeweave.graph.signals import SignalLinks, link_papers

SHARE = 0.05
NEGATIVES = "uniform"
GRAPHS = {"citations": "scincl_biggraph", "co-citations": "cocite"}
"""What is held out -> the system whose graph options are varied."""

EDGE_MODELS = {"cosine-768": ("cos", 768), "dot-128": ("dot", 128), "dot-512": ("dot", 512), "dot-768": ("dot", 768)}
"""Row of the tables -> comparator and dimension."""


def links_path(folder: Path, corpus: str) -> Path:
    return folder / f"{corpus}.links.json"


def settings() -> dict[str, tuple[str, GraphOptions]]:
    """Return the name of every setting -> what it holds out, and its graph options."""
    found = {}
    for kind, system in GRAPHS.items():
        base = graph_of(SYSTEMS[system])
        for name, (comparator, dimension) in EDGE_MODELS.items():
            model = dataclasses.replace(base.vectors.edges, comparator=comparator)
            vectors = dataclasses.replace(base.vectors, dimension=dimension, edges=model)
            found[f"{kind}, {name}"] = kind, dataclasses.replace(base, vectors=vectors)
    quick = {f"citations, {name}": ("citations", _quick_options(name)) for name in QUICK}
    return quick | found


def _quick_options(name: str) -> GraphOptions:
    direction, vectors = WAYS[name]
    return GraphOptions(direction=direction, vectors=vectors)


def predict_links(folder: Path, corpora: Sequence[str], methods: Sequence[str] = (), *, seeds: int = 1) -> None:
    """Evaluate ways to embed nodes; those that are in the file are not evaluated again."""
    known = settings()
    for method in methods:
        choose(method, known, "--methods")
    for name in corpora:
        corpus = learned_corpus(folder, name)
        graph = graph_from_edges(corpus.citing, corpus.cited, len(corpus))
        linked: dict[str, CitationGraph | SignalLinks] = {"citations": graph}
        path = links_path(folder, name)
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        for method in methods or known:
            if method in found:
                continue
            kind, options = known[method]
            if kind not in linked:
                linked[kind] = link_papers(unite_graph(graph, corpus, options))
            found[method] = _evaluate(linked[kind], options, seeds)
            path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(f"{name}: {method}: {found[method]}", flush=True)


def _evaluate(links: CitationGraph | SignalLinks, options: GraphOptions, seeds: int) -> dict[str, list[float]]:
    vectors = options.vectors
    score = "dot" if vectors.method == "edges" and vectors.edges.comparator == "dot" else "cosine"
    runs = [
        held_out_evaluator(SHARE, seed=seed, score=score)(links, _embedder(options, seed))[NEGATIVES]
        for seed in range(seeds)
    ]
    return {number: [float(run[number]) for run in runs] for number in NUMBERS}


def _embedder(options: GraphOptions, seed: int) -> Callable[[Any], NDArray[np.float32]]:
    def embed(links: CitationGraph | SignalLinks) -> NDArray[np.float32]:
        is_citations = options.signal == CITATIONS
        adjacency = links.adjacency(options.direction) if is_citations else links.adjacency()  # type: ignore[call-arg]
        vectors: NodeVectorOptions = fit_epochs(options, adjacency.edges, STEPS).vectors
        return embed_nodes(adjacency, dataclasses.replace(vectors, seed=seed))

    return embed
