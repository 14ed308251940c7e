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

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from citeweave.baselines.data import BaselineData, Floats, read_training_texts
from citeweave.baselines.word_sums import Sif, SifOptions, fit_sif
from citeweave.core.arguments import as_texts
from citeweave.core.errors import UserError
from citeweave.core.hash_keys import Keys, hash_texts
from citeweave.core.progress import QUIET, Reporter
from citeweave.graph.citations import CitationGraph


@dataclass(frozen=True, slots=True)
class SgcOptions:
    """Options of the SGC baseline."""

    k: int = 2
    """How many times vectors are averaged over neighbors."""

    sif: SifOptions = field(default_factory=lambda: SifOptions(a=1e-4))

    def __post_init__(self) -> None:
        if not 0 <= self.k <= 64:
            raise UserError(f"k of sgc is {self.k}; it must be between 0 and 64")


class Sgc:
    """SGC encoder: propagated vectors for the papers of its corpus, SIF vectors for all other texts."""

    name = "sgc"

    def __init__(self, revision: str, sif: Sif, matrix: Floats, texts: Sequence[str]) -> None:
        self.revision, self.dimension = revision, sif.dimension
        self._sif, self._matrix = sif, matrix
        self._keys, self._rows = _text_lookup(texts)

    def vectors_of_corpus(self) -> Floats:
        """Return the propagated vectors of all papers, (papers, dimension), in the order of the corpus."""
        return self._matrix

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        texts = as_texts(texts)
        out = self._sif.encode(texts, reporter=reporter)  # (texts, dimension)
        wanted = hash_texts(list(texts))  # (texts,)
        at = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        matches = np.flatnonzero(self._keys[at] == wanted)
        out[matches] = self._matrix[self._rows[at[matches]]]
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


def _text_lookup(texts: Sequence[str]) -> tuple[Keys, NDArray[np.int64]]:
    """Return sorted hashes of the papers' texts and their rows; the first of equal texts, no empty ones."""
    full = np.array([row for row, text in enumerate(texts) if text], np.int64)
    keys, first = np.unique(hash_texts([texts[row] for row in full.tolist()]), return_index=True)
    return keys, full[first]
