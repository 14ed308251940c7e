"""Tying vectors to papers: which row of a matrix is whose, for all papers of a corpus or for those in play.

    corpus of 52,000,000 papers, vectors of all of them on disk (52,000,000 x 128)
    pool of 680,967 and 136,820 anchors in play   ->   a matrix of their 700,000 vectors in memory (180 MB as float16)

Vectors whose ids are the corpus's in the same order are found by row; others are looked up by id. A paper whose vector
is zero (an isolated node) has no neighbours and is no neighbour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import BLOCK, release
from citeweave.corpus.corpus import Corpus
from citeweave.errors import UserError
from citeweave.similarity.vectors import Vectors

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
