"""Material: what rules draw from: a corpus, its graph, vectors and tables, each restricted to the papers in play.

The pool are the papers with text. Vectors may come in any order and for any subset of the papers; here they
are tied to rows of the corpus by id. A paper whose vector is zero (an isolated node) has no neighbours and is
no neighbour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import BLOCK
from citeweave.corpus.corpus import Corpus, lines
from citeweave.errors import UserError
from citeweave.graph.signals import Relations
from citeweave.mining.aspect_names import NODES
from citeweave.mining.sharing import Sharing, sharing_of
from citeweave.mining.tables import Table
from citeweave.similarity.vectors import Vectors

_MOST_FIELDS = 63


@dataclass(frozen=True, slots=True)
class PoolVectors:
    """Vectors tied to the papers of a corpus."""

    matrix: NDArray[Any]
    """Shape (vectors, dimension), memory-mapped."""

    row_of: NDArray[np.int64]
    """Row of the matrix for every paper, -1 where it has no vector or a zero one; shape (papers,)."""

    paper_of: NDArray[np.int64]
    """Paper of every row of the matrix, -1 where it is not in the corpus; shape (vectors,)."""

    pool: NDArray[np.int64]
    """Rows of the matrix that are papers of the pool, ascending."""

    hash: str = ""

    def unit(self, papers: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        """Vectors of these papers at length 1, shape (papers, dimension)."""
        block = np.asarray(self.matrix[self.row_of[papers]], np.float32)
        return np.asarray(block / np.maximum(np.linalg.norm(block, axis=1, keepdims=True), 1e-30), np.float32)


@dataclass
class Material:
    """Everything a rule may draw from."""

    corpus: Corpus
    text: str = "abstract"
    """Which papers take part: abstract, title, either, any."""

    relations: Relations | None = None
    vectors: Mapping[str, Vectors] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)
    seed: int = 0
    workers: int = 0
    memory: int = 512 << 20
    device: str = "cpu"
    cells: dict[tuple[str, int], object] = field(default_factory=dict)
    """k-means cells that were made, by vectors and number."""

    _tied: dict[str, PoolVectors] = field(default_factory=dict)
    _shared: dict[tuple[str, ...], Sharing] = field(default_factory=dict)

    @cached_property
    def in_pool(self) -> NDArray[np.bool_]:
        """Which papers have the text that is asked for; shape (papers,)."""
        has_title, has_abstract = (column.lengths() > 0 for column in (self.corpus.titles, self.corpus.abstracts))
        return {
            "abstract": has_title & has_abstract,
            "title": has_title,
            "either": has_title | has_abstract,
            "any": np.ones_like(has_title),
        }[self.text]

    @cached_property
    def pool(self) -> NDArray[np.int32]:
        """The rows in play, ascending."""
        return np.flatnonzero(self.in_pool).astype(np.int32)

    @cached_property
    def fields(self) -> NDArray[np.uint64]:
        """A bit for each of the 63 most frequent fields of study, one for all others; shape (papers,)."""
        return field_masks(self.corpus)

    def graph(self, why: str) -> Relations:
        if self.relations is None:
            raise UserError(f"{why} needs the citation graph; give it with --graph")
        return self.relations

    def table(self, name: str) -> Table:
        if name not in self.tables:
            known = f" (known: {', '.join(self.tables)})" if self.tables else ""
            raise UserError(f"a rule draws from table {name!r}, which is not given{known}; give --table {name}=FILE")
        return self.tables[name]

    def sharing(self, relations: tuple[str, ...]) -> Sharing:
        """What papers share by these relations together."""
        if relations not in self._shared:
            self._shared[relations] = sharing_of(self.corpus, relations, self.in_pool)
        return self._shared[relations]

    def tied(self, name: str) -> PoolVectors:
        """Vectors by their name in the rules."""
        if name not in self._tied:
            if name not in self.vectors:
                option = "--graph FOLDER" if name == NODES else f"--vectors {name}=FOLDER"
                if name.startswith(f"{NODES}-"):
                    option = "--graph FOLDER of a graph made with --per-intent"
                raise UserError(f"a rule needs the vectors {name!r}, which are not given; give {option}")
            self._tied[name] = tie_vectors(self.vectors[name], self.corpus, self.in_pool)
        return self._tied[name]


def tie_vectors(vectors: Vectors, corpus: Corpus, in_pool: NDArray[np.bool_]) -> PoolVectors:
    """Find the vector of every paper; refuse vectors of other papers altogether."""
    row_of = np.full(len(corpus), -1, np.int64)
    for start in range(0, len(corpus), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(corpus)))
        row_of[rows] = vectors.rows(corpus.ids.take(rows))
    found = row_of >= 0
    if not found.any():
        raise UserError(f"{vectors.folder} has no vector of any paper in {corpus.folder}; are they of another corpus?")
    zero = _zero_rows(vectors.matrix)
    row_of[found & zero[np.maximum(row_of, 0)]] = -1
    paper_of = np.full(len(vectors), -1, np.int64)
    known = np.flatnonzero(row_of >= 0)
    paper_of[row_of[known]] = known
    pool = np.sort(row_of[known[in_pool[known]]])
    return PoolVectors(vectors.matrix, row_of, paper_of, pool, vectors.manifest.hash)


def field_masks(corpus: Corpus) -> NDArray[np.uint64]:
    """Fields of study as bits, most frequent first."""
    count = Counter(name for text in corpus.fields for name in lines(text))
    bits = {name: np.uint64(1) << np.uint64(place) for place, (name, _) in enumerate(count.most_common(_MOST_FIELDS))}
    rare = np.uint64(1) << np.uint64(_MOST_FIELDS)
    masks = np.zeros(len(corpus), np.uint64)
    for row, text in enumerate(corpus.fields):
        for name in lines(text):
            masks[row] |= bits.get(name, rare)
    return masks


def _zero_rows(matrix: NDArray[Any]) -> NDArray[np.bool_]:
    zero = np.empty(len(matrix), bool)
    for start in range(0, len(matrix), BLOCK):
        zero[start : start + BLOCK] = ~np.asarray(matrix[start : start + BLOCK]).any(axis=1)
    return zero
