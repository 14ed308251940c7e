"""Tying vectors to papers: which row of a matrix is whose, for all papers of a corpus or for those in play.

    corpus of 52,000,000 papers, vectors of all of them on disk (52,000,000 x 128)
    pool of 680,967 and 136,820 anchors in play   ->   a matrix of their 700,000 vectors in memory (180 MB as float16)

Vectors whose ids are the corpus's in the same order are found by row; others are looked up by id. A paper whose vector
is zero (an isolated node) has no neighbors and is no neighbor.

Material: what rules draw from: a corpus, its graph, vectors and tables, each restricted to the papers in play.

The pool are the papers with text, or those of given ones that have it. Vectors may come in any order and for any
subset of the papers: `tying.py` ties them to rows of the corpus.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import BLOCK, release
from citeweave.core.errors import UserError
from citeweave.corpus.corpus import Corpus, lines
from citeweave.graph.signals import Relations
from citeweave.mining.rules import NODES
from citeweave.mining.shared_metadata import Sharing, sharing_of
from citeweave.mining.tables import Table
from citeweave.vectors.vectors import Vectors

_IDS = ("id.utf8", "id.offsets.npy")


@dataclass(frozen=True, slots=True)
class PoolVectors:
    """Vectors tied to the papers of a corpus."""

    matrix: NDArray[Any]
    """Shape (vectors, dimension): memory-mapped, or those in play in memory."""

    row_of: NDArray[np.int32]
    """Row of the matrix for every paper, -1 where it has no vector, a zero one, or is not in play; shape (papers,)."""

    paper_of: NDArray[np.int32]
    """Paper of every row of the matrix, -1 where it is none that counts; shape (vectors,)."""

    pool: NDArray[np.int64]
    """Rows of the matrix that are papers of the pool, ascending."""

    hash: str = ""

    def unit(self, papers: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        """Vectors of these papers at length 1, shape (papers, dimension)."""
        block = np.asarray(self.matrix[self.row_of[papers]], np.float32)
        return np.asarray(block / np.maximum(np.linalg.norm(block, axis=1, keepdims=True), 1e-30), np.float32)


def tie_vectors(
    vectors: Vectors,
    corpus: Corpus,
    in_pool: NDArray[np.bool_],
    *,
    papers: NDArray[np.int64] | None = None,
    memory: int = 0,
) -> PoolVectors:
    """Find the vector of every paper, or of these, which ascend; refuse vectors of other papers altogether.

    The vectors of given papers are copied where they fit into `memory`: few rows of a large file are read once, and
    not with the pages around them again and again.
    """
    owners = np.arange(len(corpus)) if papers is None else papers
    rows = _rows_of(vectors, corpus, owners)
    found = rows >= 0
    if not found.any():
        which = "any paper in" if papers is None else f"any of the {len(papers):,} papers of pool and anchors in"
        raise UserError(f"{vectors.folder} has no vector of {which} {corpus.folder}; are they of another corpus?")
    order = np.argsort(rows[found], kind="stable")
    owners, rows = owners[found][order], rows[found][order]
    matrix = vectors.matrix
    if papers is not None and len(rows) * matrix.shape[1] * matrix.itemsize <= memory:
        matrix = _copied(matrix, rows)
        rows = np.arange(len(rows))
    counts = ~_zero_rows(matrix, rows)
    owners, rows = owners[counts], rows[counts]
    row_of, paper_of = np.full(len(corpus), -1, np.int32), np.full(len(matrix), -1, np.int32)
    row_of[owners], paper_of[rows] = rows, owners
    return PoolVectors(matrix, row_of, paper_of, rows[in_pool[owners]], vectors.manifest.hash)


def _rows_of(vectors: Vectors, corpus: Corpus, papers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row of each paper's vector, -1 where it has none."""
    if _same_ids(vectors, corpus):
        return papers.astype(np.int64)
    rows = np.empty(len(papers), np.int64)
    for start in range(0, len(papers), BLOCK):
        part = slice(start, start + BLOCK)
        rows[part] = vectors.rows(corpus.ids.take(papers[part]))
    return rows


def _same_ids(vectors: Vectors, corpus: Corpus) -> bool:
    """Whether both have the same ids in the same order, as the hashes of their files tell."""
    own, other = vectors.manifest.files, corpus.manifest.files
    return all(own.get(name, {}).get("sha256", name) == other.get(f"papers/{name}", {}).get("sha256") for name in _IDS)


def _copied(matrix: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """Some rows of a matrix in memory; what was mapped of it is let go."""
    out = np.empty((len(rows), matrix.shape[1]), matrix.dtype)
    for start in range(0, len(rows), BLOCK):
        out[start : start + BLOCK] = matrix[rows[start : start + BLOCK]]
        release(matrix)
    return out


def _zero_rows(matrix: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    zero = np.empty(len(rows), bool)
    for start in range(0, len(rows), BLOCK):
        part = slice(start, start + BLOCK)
        zero[part] = ~np.asarray(matrix[rows[part]]).any(axis=1)
        release(matrix)
    return zero


# Material: what rules draw from: a corpus, its graph, vectors and tables, each restricted to the papers in play.

_MOST_FIELDS = 63


@dataclass
class MiningData:
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
    given: NDArray[np.int64] | None = None
    """Rows that may be chosen; None = any."""

    anchors: NDArray[np.int64] | None = None
    """Rows that are asked about, which may lie outside of the pool; None = those of the pool."""

    cells: dict[tuple[str, int], object] = field(default_factory=dict)
    """k-means cells that were made, by vectors and number."""

    _tied: dict[str, PoolVectors] = field(default_factory=dict)
    _shared: dict[tuple[str, ...], Sharing] = field(default_factory=dict)

    @cached_property
    def has_text(self) -> NDArray[np.bool_]:
        """Which papers have the text that is asked for; shape (papers,)."""
        if self.text == "any":
            return np.ones(len(self.corpus), bool)
        offsets = (column.offsets for column in (self.corpus.titles, self.corpus.abstracts))
        has_title, has_abstract = (ends[1:] > ends[:-1] for ends in offsets)
        return {"abstract": has_title & has_abstract, "title": has_title, "either": has_title | has_abstract}[self.text]

    @cached_property
    def in_pool(self) -> NDArray[np.bool_]:
        """Which papers may be chosen; shape (papers,)."""
        if self.given is None:
            return self.has_text
        chosen = np.zeros(len(self.corpus), bool)
        chosen[self.given] = self.has_text[self.given]
        return chosen

    @cached_property
    def pool(self) -> NDArray[np.int32]:
        """The rows in play, ascending."""
        return np.flatnonzero(self.in_pool).astype(np.int32)

    @property
    def asked_for(self) -> int:
        """How many papers the pool could have if all had text."""
        return len(self.corpus) if self.given is None else len(np.unique(self.given))

    def check_pool(self) -> None:
        """Refuse a given pool none of whose papers has the text that is asked for."""
        if self.given is not None and not len(self.pool):
            raise UserError(
                f"none of the {self.asked_for:,} papers of the pool has the text that the rules ask for "
                f"(mining.text = {self.text!r}); a corpus of citations alone is mined with --set mining.text=any"
            )

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
            self._tied[name] = tie_vectors(
                self.vectors[name], self.corpus, self.in_pool, papers=self._in_play(), memory=self.memory
            )
        return self._tied[name]

    def _in_play(self) -> NDArray[np.int64] | None:
        """Pool and anchors, ascending, where a pool is given; None = all papers."""
        if self.given is None:
            return None
        asked = np.zeros(0, np.int64) if self.anchors is None else self.anchors
        return np.union1d(self.pool.astype(np.int64), asked)


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
