"""The data that mining rules draw from: corpus, graph, tables, and vectors matched to corpus rows; the pool.

    corpus of 52,000,000 papers, vectors of all of them on disk (52,000,000 x 128)
    pool of 680,967 papers and 136,820 anchors   ->   a matrix of their 700,000 vectors in memory (180 MB as float16)

The pool is all papers with text, or those of a list of papers that have it. Vectors may come in any order and for any
subset of the papers: those whose ids are the corpus's in the same order are matched by row, others are looked up by id.
A paper whose vector is zero (an isolated node) has no neighbors and is no neighbor.
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
from citeweave.mining.shared_metadata import SharedMetadata, collect_shared_metadata
from citeweave.mining.tables import Table
from citeweave.vectors.vectors import Vectors, unit_rows

_IDS = ("id.utf8", "id.offsets.npy")
_MAX_FIELDS = 63


@dataclass
class MiningData:
    """The data that mining rules draw from: corpus, relations, vectors, tables, and the pool of papers."""

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
    pool_rows: NDArray[np.int64] | None = None
    """Rows that may be selected; None = any."""

    anchors: NDArray[np.int64] | None = None
    """Rows that may be anchors, in the pool or not; None = those of the pool."""

    cells: dict[tuple[str, int], object] = field(default_factory=dict)
    """k-means cells that were computed, by vectors and number."""

    _matched: dict[str, PoolVectors] = field(default_factory=dict)
    _shared: dict[tuple[str, ...], SharedMetadata] = field(default_factory=dict)

    @cached_property
    def has_text(self) -> NDArray[np.bool_]:
        """Which papers of the mining data have the text that the rules require; shape (papers,)."""
        if self.text == "any":
            return np.ones(len(self.corpus), bool)
        offsets = (column.offsets for column in (self.corpus.titles, self.corpus.abstracts))
        has_title, has_abstract = (ends[1:] > ends[:-1] for ends in offsets)
        return {"abstract": has_title & has_abstract, "title": has_title, "either": has_title | has_abstract}[self.text]

    @cached_property
    def in_pool(self) -> NDArray[np.bool_]:
        """Which papers of the mining data are in the pool; shape (papers,)."""
        if self.pool_rows is None:
            return self.has_text
        chosen = np.zeros(len(self.corpus), bool)
        chosen[self.pool_rows] = self.has_text[self.pool_rows]
        return chosen

    @cached_property
    def pool(self) -> NDArray[np.int32]:
        """The rows of the pool, ascending."""
        return np.flatnonzero(self.in_pool).astype(np.int32)

    @property
    def max_pool_size(self) -> int:
        """Size that the pool would have if all its papers had text."""
        return len(self.corpus) if self.pool_rows is None else len(np.unique(self.pool_rows))

    def check_pool(self) -> None:
        """Refuse mining data with a pool none of whose papers has the text that the rules require."""
        if self.pool_rows is not None and not len(self.pool):
            raise UserError(
                f"none of the {self.max_pool_size:,} papers of the pool has the text that the rules ask for "
                f"(mining.text = {self.text!r}); a corpus of citations alone is mined with --set mining.text=any"
            )

    @cached_property
    def fields(self) -> NDArray[np.uint64]:
        """A bit for each of the 63 most frequent fields of study, one for all others; shape (papers,)."""
        return field_masks(self.corpus)

    def graph(self, why: str) -> Relations:
        """Return the citation graph for rules; refuse with `why` if there is none."""
        if self.relations is None:
            raise UserError(f"{why} needs the citation graph; give it with --graph")
        return self.relations

    def table(self, name: str) -> Table:
        """Return a table of pairs by its name in the rules."""
        if name not in self.tables:
            known = f" (known: {', '.join(self.tables)})" if self.tables else ""
            raise UserError(f"a rule draws from table {name!r}, which is not given{known}; give --table {name}=FILE")
        return self.tables[name]

    def shared_metadata(self, relations: tuple[str, ...]) -> SharedMetadata:
        """Return the venues, authors or fields that papers share, for some relations together."""
        if relations not in self._shared:
            self._shared[relations] = collect_shared_metadata(self.corpus, relations, self.in_pool)
        return self._shared[relations]

    def pool_vectors(self, name: str) -> PoolVectors:
        """Return the mining data's vectors by a name in the rules, matched to corpus rows and the pool."""
        if name not in self._matched:
            if name not in self.vectors:
                option = "--graph FOLDER" if name == NODES else f"--vectors {name}=FOLDER"
                if name.startswith(f"{NODES}-"):
                    option = "--graph FOLDER of a graph made with --per-intent"
                raise UserError(f"a rule needs the vectors {name!r}, which are not given; give {option}")
            self._matched[name] = match_vectors(
                self.vectors[name], self.corpus, self.in_pool, papers=self._pool_and_anchors(), memory=self.memory
            )
        return self._matched[name]

    def _pool_and_anchors(self) -> NDArray[np.int64] | None:
        """Return the rows of pool and anchors, ascending, if the pool is restricted; None = all papers."""
        if self.pool_rows is None:
            return None
        anchors = np.zeros(0, np.int64) if self.anchors is None else self.anchors
        return np.union1d(self.pool.astype(np.int64), anchors)


def field_masks(corpus: Corpus) -> NDArray[np.uint64]:
    """Return the fields of study of every paper in the mining data as bits, most frequent first."""
    count = Counter(name for text in corpus.fields for name in lines(text))
    bits = {name: np.uint64(1) << np.uint64(place) for place, (name, _) in enumerate(count.most_common(_MAX_FIELDS))}
    rare = np.uint64(1) << np.uint64(_MAX_FIELDS)
    masks = np.zeros(len(corpus), np.uint64)
    for row, text in enumerate(corpus.fields):
        for name in lines(text):
            masks[row] |= bits.get(name, rare)
    return masks


# Vectors matched to corpus rows.


@dataclass(frozen=True, slots=True)
class PoolVectors:
    """Vectors as mining data: matched to the papers of a corpus, and which of them are in the pool."""

    matrix: NDArray[Any]
    """Shape (vectors, dimension): memory-mapped, or in memory those of pool and anchors."""

    row_of: NDArray[np.int32]
    """Row of the matrix for every paper, -1 if it has no vector, a zero one, or is not needed; shape (papers,)."""

    paper_of: NDArray[np.int32]
    """Paper of every row of the matrix, -1 if it is not used; shape (vectors,)."""

    pool: NDArray[np.int64]
    """Rows of the matrix that are papers of the pool, ascending."""

    hash: str = ""

    def unit(self, papers: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        """Return the vectors of these papers scaled to length 1, shape (papers, dimension)."""
        return unit_rows(np.asarray(self.matrix[self.row_of[papers]], np.float32))


def match_vectors(
    vectors: Vectors,
    corpus: Corpus,
    in_pool: NDArray[np.bool_],
    *,
    papers: NDArray[np.int64] | None = None,
    memory: int = 0,
) -> PoolVectors:
    """Match vectors to the mining data's corpus rows, all or the ascending `papers`; refuse those of other papers only.

    The vectors of `papers` are copied if they fit into `memory`: few rows of a large file are then read once, and not
    with the pages around them again and again.
    """
    owners = np.arange(len(corpus)) if papers is None else papers
    rows = _rows_of(vectors, corpus, owners)
    matched = rows >= 0
    if not matched.any():
        which = "any paper in" if papers is None else f"any of the {len(papers):,} papers of pool and anchors in"
        raise UserError(f"{vectors.folder} has no vector of {which} {corpus.folder}; are they of another corpus?")
    order = np.argsort(rows[matched], kind="stable")
    owners, rows = owners[matched][order], rows[matched][order]
    matrix = vectors.matrix
    if papers is not None and len(rows) * matrix.shape[1] * matrix.itemsize <= memory:
        matrix = _copy_rows(matrix, rows)
        rows = np.arange(len(rows))
    nonzero = ~_zero_rows(matrix, rows)
    owners, rows = owners[nonzero], rows[nonzero]
    row_of, paper_of = np.full(len(corpus), -1, np.int32), np.full(len(matrix), -1, np.int32)
    row_of[owners], paper_of[rows] = rows, owners
    return PoolVectors(matrix, row_of, paper_of, rows[in_pool[owners]], vectors.manifest.hash)


def _rows_of(vectors: Vectors, corpus: Corpus, papers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row of each paper's vector, -1 if it has none."""
    if _same_ids(vectors, corpus):
        return papers.astype(np.int64)
    rows = np.empty(len(papers), np.int64)
    for start in range(0, len(papers), BLOCK):
        part = slice(start, start + BLOCK)
        rows[part] = vectors.rows(corpus.ids.take(papers[part]))
    return rows


def _same_ids(vectors: Vectors, corpus: Corpus) -> bool:
    """Whether vectors and corpus have the same ids in the same order, by the hashes of their id files."""
    own, other = vectors.manifest.files, corpus.manifest.files
    return all(own.get(name, {}).get("sha256", name) == other.get(f"papers/{name}", {}).get("sha256") for name in _IDS)


def _copy_rows(matrix: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """Copy some rows of a mapped matrix into memory and release its pages."""
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
