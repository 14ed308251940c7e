"""SGC (simple graph convolution): SIF vectors of papers averaged over their citations, without training.

    S = D^-1/2 (A + I) D^-1/2,   vectors = S^k X        (Wu et al. 2019, "Simplifying graph convolutional networks")

"SGC with no learning boils down to graph propagation on node features [...] we used SIF features as node
representations [...] Our range of k was 1 through 8 (inclusive), and was chosen with a validation set. For the node
features, we chose the SIF model with a = 0.0001" (Cohan et al. 2020, appendix A). The paper does not give the chosen k:
2 here, as in Wu et al. Citations count in both directions, once per pair of papers.

Only papers of the corpus have neighbors. `encode` recognizes them by their text; every other text gets its plain SIF
vector, which is in the same space. `vectors_of_corpus()` has one row per paper of the corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from scipy import sparse

from citeweave.baselines.data import BaselineData, Floats, read_training_texts
from citeweave.baselines.word_sums import Sif, SifOptions, fit_sif
from citeweave.core.arguments import as_texts
from citeweave.core.columns import KeyLookup
from citeweave.core.hash_keys import hash_texts
from citeweave.core.options import Range, check
from citeweave.core.progress import QUIET, Reporter
from citeweave.graph.citations import CitationGraph


@dataclass(frozen=True, slots=True)
class SgcOptions:
    """Options of the SGC baseline."""

    k: Annotated[int, Range(0, 64)] = 2
    """How many times vectors are averaged over neighbors."""

    sif: SifOptions = field(default_factory=lambda: SifOptions(a=1e-4))

    def __post_init__(self) -> None:
        check(self, "sgc")


class Sgc:
    """SGC encoder: propagated vectors for the papers of its corpus, SIF vectors for all other texts."""

    name = "sgc"

    def __init__(self, revision: str, sif: Sif, matrix: Floats, texts: Sequence[str]) -> None:
        self.revision, self.dimension = revision, sif.dimension
        self._sif, self._matrix = sif, matrix
        self._lookup = KeyLookup(hash_texts(list(texts)))  # the first of equal texts

    def vectors_of_corpus(self) -> Floats:
        """Return the propagated vectors of all papers, (papers, dimension), in the order of the corpus."""
        return self._matrix

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        texts = as_texts(texts)
        out = self._sif.encode(texts, reporter=reporter)  # (texts, dimension)
        rows = self._lookup.find(hash_texts(list(texts)))  # (texts,)
        known = (rows >= 0) & np.array([bool(text) for text in texts], bool)
        out[known] = self._matrix[rows[known]]
        return out


def fit_sgc(data: BaselineData, options: SgcOptions, revision: str) -> Sgc:
    """Fit SIF on the training papers, then propagate its vectors over all citations of the graph."""
    graph = data.citation_graph("sgc")
    sif = fit_sif(data, options.sif, revision)
    texts = read_training_texts(data.corpus, np.arange(len(data.corpus)))
    matrix = propagate(graph, sif.encode(texts), options.k)  # (papers, dimension)
    return Sgc(revision, sif, matrix, texts)


def propagate(graph: CitationGraph, features: Floats, k: int) -> Floats:
    """Propagate features (papers, dimension) k times over the normalized citation graph: S^k X.

    >>> from citeweave.graph.citations import graph_from_edges
    >>> pair = graph_from_edges(np.array([0]), np.array([1]), nodes=3)
    >>> propagate(pair, np.array([[2.0], [0.0], [5.0]], np.float32), 1).round(6).tolist()
    [[1.0], [1.0], [5.0]]
    """
    nodes, ones = graph.nodes, np.ones(graph.edges, np.float64)
    cited = sparse.csr_matrix((ones, graph.cited.targets, graph.cited.offsets), shape=(nodes, nodes))
    linked = cited.maximum(cited.T) + sparse.identity(nodes, format="csr")
    scale = sparse.diags(1 / np.sqrt(np.asarray(linked.sum(axis=1)).ravel()))
    step = (scale @ linked @ scale).tocsr()  # (papers, papers)
    propagated = features.astype(np.float64)
    for _ in range(k):
        propagated = step @ propagated
    return np.asarray(propagated, np.float32)
