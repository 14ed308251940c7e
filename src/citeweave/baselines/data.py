"""The data a baseline is trained on: texts of some papers of a corpus, and the citations among them.

    data = BaselineData(corpus, rows=np.array([0, 2]), graph=graph, seed=0)
    data.texts()                  the texts of papers 0 and 2
    data.citations("citeomatic")  the citations between papers 0 and 2, as rows of the corpus
    split_fields("A[SEP]B")       ("A", "B")

Trains nothing and holds nothing out: the caller removes held-out citations from the graph.
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
    """Corpus, training papers, citation graph and seed that a baseline is trained with."""

    corpus: Corpus

    rows: NDArray[np.int64]
    """The papers to train on, ascending rows of the corpus."""

    graph: CitationGraph | None = None
    words: WordVectors | None = None
    """Precomputed word vectors, so that fasttext, sif and sgc of one corpus need only one training."""

    seed: int = 0
    reporter: Reporter = field(default_factory=lambda: QUIET)

    def texts(self) -> list[str]:
        """Return the texts of the training papers, leaving out papers without text."""
        texts = [text for text in read_training_texts(self.corpus, self.rows) if text]
        if not texts:
            raise EmptyResultError(
                f"{self.corpus.folder} has no text among its {len(self.rows):,} papers; a baseline needs texts to learn from"
            )
        return texts

    def citation_graph(self, name: str) -> CitationGraph:
        """Return the citation graph, or raise an error that names the baseline which needs one."""
        if self.graph is None:
            raise UserError(
                f"baseline {name} learns from citations and got none; give a graph (`citeweave graph`) "
                "without the held-out citations"
            )
        if self.graph.nodes != len(self.corpus):
            raise UserError(
                f"the graph has {self.graph.nodes:,} nodes and {self.corpus.folder} has {len(self.corpus):,} papers; "
                "build the graph from this corpus"
            )
        return self.graph

    def citations(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return citing and cited rows of the citations among the training papers, sorted, each (citations,)."""
        graph = self.citation_graph(name)
        training = np.zeros(graph.nodes, bool)  # (papers,)
        training[self.rows] = True
        citing, cited = graph.sources(), graph.cited.targets
        keep = training[citing] & training[cited]
        if not keep.any():
            raise EmptyResultError(
                f"baseline {name} learns from citations, and the graph has none among the {len(self.rows):,} papers "
                "to learn from; give a graph with citations"
            )
        return citing[keep].astype(np.int64), cited[keep].astype(np.int64)


def read_training_texts(corpus: Corpus, rows: NDArray[np.int64]) -> list[str]:
    """Return title and abstract of these rows of a corpus as baselines read them, empty texts included."""
    return [
        paper_text(title, abstract)
        for title, abstract in zip(corpus.titles.take(rows), corpus.abstracts.take(rows), strict=True)
    ]


def split_fields(text: str) -> tuple[str, str]:
    """Split the text of a paper into title and abstract for training a baseline; a text without a separator is a title.

    >>> split_fields("A title[SEP]An abstract."), split_fields("A question"), split_fields("")
    (('A title', 'An abstract.'), ('A question', ''), ('', ''))
    """
    title, _, abstract = text.partition(SEPARATOR)
    return title, abstract


@contextmanager
def seeded_torch(seed: int) -> Iterator[Any]:
    """Run a baseline's training data through torch on one thread with a random state of its own: its seed fixes all numbers."""
    torch = require("torch", extra="minilm")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield torch
    finally:
        torch.set_num_threads(threads)
