"""SGC: the SIF vectors of a corpus, mixed with those of the papers that cite them or that they cite.

    S = D^-1/2 (A + I) D^-1/2,   vectors = S^k X        (Wu et al. 2019, "Simplifying graph convolutional networks")

"SGC with no learning boils down to graph propagation on node features [...] we used SIF features as node
representations [...] Our range of k was 1 through 8 (inclusive), and was chosen with a validation set. For the node
features, we chose the SIF model with a = 0.0001" (Cohan et al. 2020, appendix A). The chosen k is not said: 2 here, as
in Wu et al. Citations count in both directions, once a pair of papers.

Only papers of the corpus have neighbors. `encode` knows them by their text; every other text gets its SIF vector
alone, which is in the same space but not mixed with anything. `known(ids)` and `vectors_of_corpus()` go by ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from citeweave.baselines.data import BaselineData, Floats, texts_of
from citeweave.baselines.word_sums import Sif, SifOptions, fit_sif
from citeweave.core.arguments import as_texts
from citeweave.core.errors import UserError
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import Keys, hash_texts
from citeweave.corpus.corpus import Corpus
from citeweave.graph.citations import CitationGraph


@dataclass(frozen=True, slots=True)
class SgcOptions:
    """Options of SGC."""

    k: int = 2
    """How often neighbors are mixed."""

    sif: SifOptions = field(default_factory=lambda: SifOptions(a=1e-4))

    def __post_init__(self) -> None:
        if not 0 <= self.k <= 64:
            raise UserError(f"k of sgc is {self.k}; it must lie between 0 and 64")


class Sgc:
    """Mixed vectors of the papers of a corpus, SIF vectors for all other texts."""

    name = "sgc"

    def __init__(self, revision: str, sif: Sif, corpus: Corpus, matrix: Floats, texts: Sequence[str]) -> None:
        self.revision, self.dimension = revision, sif.dimension
        self._sif, self._corpus, self._matrix = sif, corpus, matrix
        self._keys, self._rows = _text_lookup(texts)

    def vectors_of_corpus(self) -> Floats:
        """(papers, dimension), in the order of the corpus's rows."""
        return self._matrix

    def known(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The row of every id in `vectors_of_corpus()`, -1 where the corpus has no such paper."""
        return self._corpus.rows(list(ids)).astype(np.int64)

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        texts = as_texts(texts)
        out = self._sif.encode(texts, reporter=reporter)  # (texts, dimension)
        wanted = hash_texts(list(texts))  # (texts,)
        at = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        found = np.flatnonzero(self._keys[at] == wanted)
        out[found] = self._matrix[self._rows[at[found]]]
        return out


def fit_sgc(material: BaselineData, options: SgcOptions, revision: str) -> Sgc:
    """SIF on the papers to learn from, then mixing over all citations of the graph that was given."""
    graph = material.citation_graph("sgc")
    sif = fit_sif(material, options.sif, revision)
    texts = texts_of(material.corpus, np.arange(len(material.corpus)))
    mixed = propagate(graph, sif.encode(texts), options.k)  # (papers, dimension)
    return Sgc(revision, sif, material.corpus, mixed, texts)


def propagate(graph: CitationGraph, features: Floats, k: int) -> Floats:
    """S^k X of features (papers, dimension); see the top of this file.

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
    mixed = features.astype(np.float64)
    for _ in range(k):
        mixed = step @ mixed
    return np.asarray(mixed, np.float32)


def _text_lookup(texts: Sequence[str]) -> tuple[Keys, NDArray[np.int64]]:
    """Sorted keys of the texts and their rows; of equal texts the first row, of empty ones none."""
    full = np.array([row for row, text in enumerate(texts) if text], np.int64)
    keys, first = np.unique(hash_texts([texts[row] for row in full.tolist()]), return_index=True)
    return keys, full[first]
