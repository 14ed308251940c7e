"""What a baseline may learn from: the texts of some papers of a corpus, and citations among them.

    material = Material(corpus, rows=np.array([0, 2]), graph=graph, seed=0)
    material.texts()              the texts of papers 0 and 2
    material.citations()          the citations between papers 0 and 2, as rows of the corpus
    split_fields("A[SEP]B")       ("A", "B")

Does not train anything. Which citations are held out is the caller's: the graph is used as it is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.baselines.word_vectors import WordVectors
from citeweave.core.errors import EmptyResultError, UserError, require
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.text import SEPARATOR, paper_text
from citeweave.graph.citations import CitationGraph

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class BaselineData:
    """Everything a baseline is trained on."""

    corpus: Corpus

    rows: NDArray[np.int64]
    """The papers whose texts may be learned from, ascending rows of the corpus."""

    graph: CitationGraph | None = None
    words: WordVectors | None = None
    """Word vectors made before, so that fasttext, sif and sgc of one corpus need only one training."""

    seed: int = 0
    reporter: Reporter = field(default_factory=lambda: QUIET)

    def texts(self) -> list[str]:
        """The texts of `rows`, those of papers without any text left out."""
        found = [text for text in texts_of(self.corpus, self.rows) if text]
        if not found:
            raise EmptyResultError(
                f"{self.corpus.folder} has no text among its {len(self.rows):,} papers; a baseline needs texts to learn from"
            )
        return found

    def citation_graph(self, name: str) -> CitationGraph:
        """The graph, for baselines that cannot do without."""
        if self.graph is None:
            raise UserError(
                f"baseline {name} learns from citations and got none; give a graph (`citeweave graph`) "
                "without the citations that are held out"
            )
        if self.graph.nodes != len(self.corpus):
            raise UserError(
                f"the graph has {self.graph.nodes:,} nodes and {self.corpus.folder} has {len(self.corpus):,} papers; "
                "make the graph from this corpus"
            )
        return self.graph

    def citations(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Citing and cited rows of the citations between papers of `rows`, sorted, each of shape (citations,)."""
        graph = self.citation_graph(name)
        learned = np.zeros(graph.nodes, bool)  # (papers,)
        learned[self.rows] = True
        citing, cited = graph.sources(), graph.cited.targets
        keep = learned[citing] & learned[cited]
        if not keep.any():
            raise EmptyResultError(
                f"baseline {name} learns from citations, and the graph has none among the {len(self.rows):,} papers "
                "to learn from; give a graph with citations"
            )
        return citing[keep].astype(np.int64), cited[keep].astype(np.int64)


def texts_of(corpus: Corpus, rows: NDArray[np.int64]) -> list[str]:
    """What an encoder reads of these papers, in their order."""
    return [
        paper_text(title, abstract)
        for title, abstract in zip(corpus.titles.take(rows), corpus.abstracts.take(rows), strict=True)
    ]


def split_fields(text: str) -> tuple[str, str]:
    """Title and abstract of a paper's text; a text of one part is a title.

    >>> split_fields("A title[SEP]An abstract."), split_fields("A question"), split_fields("")
    (('A title', 'An abstract.'), ('A question', ''), ('', ''))
    """
    title, _, abstract = text.partition(SEPARATOR)
    return title, abstract


@contextmanager
def seeded_torch(seed: int) -> Iterator[Any]:
    """Torch on one thread with a generator of its own, so that neither cores nor callers change a result."""
    torch = require("torch", extra="minilm")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield torch
    finally:
        torch.set_num_threads(threads)
