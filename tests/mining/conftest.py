"""A small made-up literature with its graph and vectors of its nodes, for all tests of mining."""

from pathlib import Path

import numpy as np
import pytest

from citeweave import synthesize
from citeweave.corpus.synthetic.literature import SyntheticOptions
from citeweave.graph.citations import build_graph
from citeweave.vectors.vectors import new_vectors


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    return synthesize(tmp_path_factory.mktemp("mining") / "corpus", SyntheticOptions(papers=600, references=12))


@pytest.fixture(scope="session")
def graph(corpus, tmp_path_factory):
    return build_graph(corpus, tmp_path_factory.mktemp("mining-graph") / "graph")


@pytest.fixture(scope="session")
def vectors(corpus, graph, tmp_path_factory):
    """Two rounds of averaging random vectors over neighbors; papers without citations stay zero."""
    dense = np.zeros((len(corpus), len(corpus)), np.float32)
    dense[graph.sources(), graph.cited.targets] = 1
    dense += dense.T
    walk = dense / np.maximum(dense.sum(axis=1, keepdims=True), 1)
    start = np.random.default_rng(0).standard_normal((len(corpus), 24)).astype(np.float32)
    matrix = (walk @ start + walk @ (walk @ start)).astype(np.float32)
    matrix[5] = 0
    folder = tmp_path_factory.mktemp("mining-vectors") / "vectors"
    # another order than the corpus's, so that rows of the two cannot be confused unnoticed
    order = np.random.default_rng(1).permutation(len(corpus))
    with new_vectors(Path(folder), model="nodes", dtype="float32") as writer:
        writer.append(corpus.ids.take(order), matrix[order])
        return writer.finish()
