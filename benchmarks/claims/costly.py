"""What of the preparation wants a GPU: intents of citing sentences, and node vectors trained edge by edge.

    make_intents(Path("study/"), ["elife"])       study/elife.intents     an overlay, as `citeweave annotate` writes it
    make_nodes(Path("study/"), ["elife"])         study/elife-1f3b.nodes  the pool's rows of the node vectors, in half precision
    with known_nodes(path, pool): ...             makes the edge model read them instead of training

Both read the corpora that `prepare` left in `study/stages`; a second `prepare` reads the results. BigGraph's twenty epochs
over all co-citations of elife are 140,000 steps: no graph is trained for more than `STEPS`, and the page says where.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.claims.systems import SYSTEMS, System, costs_of
from citeweave import Corpus
from citeweave.core.errors import UserError
from citeweave.core.files import hash_json
from citeweave.core.progress import Reporter
from citeweave.graph.adjacency import Adjacency
from citeweave.graph.build import build_adjacency
from citeweave.graph.citations import graph_from_edges
from citeweave.graph.intent_overlay import IntentOverlay
from citeweave.graph.node_vectors import METHODS, EmbeddingMethod, embed_nodes
from citeweave.graph.options import GraphOptions, graph_options
from citeweave.pipeline.recipe import load_recipe

STEPS = 20_000
"""Most steps of one edge model."""


def learned_corpus(folder: Path, name: str) -> Corpus:
    """Open the corpus to learn from that `prepare` left."""
    place = folder / "stages" / name / "learned"
    if not place.is_dir():
        raise UserError(f"{place} does not exist; `prepare` makes it")
    return Corpus.open(place)


def intents_path(folder: Path, corpus: str) -> Path:
    return folder / f"{corpus}.intents"


def make_intents(folder: Path, corpora: Sequence[str]) -> None:
    """Classify the citing sentences of corpora into overlays."""
    from citeweave.intents.annotate import annotate_intents
    from citeweave.intents.classifier import default_classifier

    for name in corpora:
        begun, corpus = time.monotonic(), learned_corpus(folder, name)
        annotate_intents(corpus, intents_path(folder, name), default_classifier(), reporter=Reporter())
        print(f"{name}: intents of {len(corpus.contexts):,} sentences, {time.monotonic() - begun:.0f} s", flush=True)


def graph_of(system: System) -> GraphOptions:
    """Return the graph options of a system's recipe."""
    return graph_options(load_recipe(system.recipe, list(system.overrides)).table("graph"))


def nodes_path(folder: Path, corpus: str, options: GraphOptions) -> Path:
    """Return the file of the node vectors that these options give on a corpus."""
    return folder / f"{corpus}-{hash_json(dataclasses.asdict(options))[:8]}.nodes"


def make_nodes(folder: Path, corpora: Sequence[str], systems: Sequence[str] = (), *, steps: int = STEPS) -> None:
    """Train the edge models of all systems on corpora; those that exist are left alone."""
    wanted = [graph_of(own) for name, own in SYSTEMS.items() if "edges" in costs_of(own)]
    wanted = [graph_of(SYSTEMS[name]) for name in systems] or wanted
    for name in corpora:
        corpus = learned_corpus(folder, name)
        pool = pool_rows(corpus)
        graph = graph_from_edges(corpus.citing, corpus.cited, len(corpus))
        for options in dict.fromkeys(wanted):
            path = nodes_path(folder, name, options)
            if path.is_file():
                continue
            begun = time.monotonic()
            adjacency = build_adjacency(graph, corpus, options, Reporter())
            fitted = fit_epochs(options, adjacency.edges, steps)
            vectors = embed_nodes(adjacency, fitted.vectors, reporter=Reporter())[pool]  # (pool, dimension)
            epochs = np.array([fitted.vectors.edges.epochs, options.vectors.edges.epochs])
            with path.open("wb") as file:
                np.savez(file, vectors=vectors.astype(np.float16), epochs=epochs, edges=adjacency.edges)
            seconds = time.monotonic() - begun
            print(f"{path}: {adjacency.edges:,} edges, {epochs[0]} of {epochs[1]} epochs, {seconds:.0f} s", flush=True)


def pool_rows(corpus: Corpus) -> NDArray[np.int64]:
    """Return the rows of papers with title and abstract."""
    return np.flatnonzero((corpus.titles.lengths() > 0) & (corpus.abstracts.lengths() > 0))


def fit_epochs(options: GraphOptions, edges: int, steps: int) -> GraphOptions:
    """Return options whose edge model takes at most so many steps, in whole epochs and at least one.

    >>> fit_epochs(graph_of(SYSTEMS["cocite"]), 71_000_000, 20_000).vectors.edges.epochs
    2
    """
    model = options.vectors.edges
    epochs = min(model.epochs, max(1, steps * model.batch // edges))
    vectors = dataclasses.replace(options.vectors, edges=dataclasses.replace(model, epochs=epochs))
    return dataclasses.replace(options, vectors=vectors)


def costly_facts(folder: Path, corpus: str) -> dict[str, Any]:
    """Return what of a corpus was made here: epochs of each edge model, and how many citations have an intent."""
    found: dict[str, Any] = {}
    graphs = dict.fromkeys(graph_of(system) for system in SYSTEMS.values() if "edges" in costs_of(system))
    for options in graphs:
        if (path := nodes_path(folder, corpus, options)).is_file():
            made = np.load(path)
            epochs, published = made["epochs"].tolist()
            text = f"{epochs} of {published} epochs over {int(made['edges']):,} edges"
            found.setdefault("edge models", {})[options.label] = text
    if (overlay := intents_path(folder, corpus)).is_dir():
        found["citations with an intent"] = IntentOverlay.open(overlay).manifest.facts["citations"]["with_intent"]
    return found


@contextmanager
def known_nodes(path: Path, pool: NDArray[np.int64]) -> Iterator[None]:
    """Let the edge model read the vectors of the pool from a file; other papers get zeros and are never asked."""
    before = METHODS["edges"]

    def read(adjacency: Adjacency, out: NDArray[np.float32], *_: Any) -> None:
        out[:] = 0
        out[pool] = np.load(path)["vectors"]

    METHODS["edges"] = EmbeddingMethod(read, before.score)
    try:
        yield
    finally:
        METHODS["edges"] = before
