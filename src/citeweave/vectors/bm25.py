"""BM25: lexical scores of papers for a text query, by the words they share.

    >>> papers = Bm25(["Deep learning for graphs", "A survey of deep forests", "Protein folding"])
    >>> best = papers.top(["deep graphs"], k=2)
    >>> best.rows.tolist(), best.scores.round(3).tolist()
    ([[0, 1]], [[0.627, 0.203]])
    >>> papers.scores(["protein", ""], np.array([0, 2, 3]), np.array([2, 0, 1])).round(3).tolist()
    [0.497, 0.0, 0.0]

The weights come from bm25s (Lù, 2024) with the settings that Lucene documents: k1 = 1.2, b = 0.75. A word counts as
often as it occurs in the query. Does not stem, and has no synonyms and no stop words of other languages: a query without
a known word scores 0 everywhere.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, choose
from citeweave.core.ragged import owners_of, to_offsets

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

METHODS = ("lucene", "robertson", "atire", "bm25l", "bm25+")
"""The variants of Kamphuis and others (2020), as bm25s names them."""

_WORD = re.compile(r"\w+")

STOP_WORDS = frozenset(
    _WORD.findall(
        "a an and are as at be but by for if in into is it no not of on or such that the their then there these they "
        "this to was will with"
    )
)
"""Lucene's English list."""

BLOCK = 4096
"""Pairs of query and paper scored at a time."""


def words_of(text: str, *, stop_words: frozenset[str] = STOP_WORDS) -> list[str]:
    """Split a text into the words that BM25 compares: letters, digits and underscores, in lower case, no stop words.

    >>> words_of("The BERT-base model's F1")
    ['bert', 'base', 'model', 's', 'f1']
    """
    return [word for word in _WORD.findall(text.lower()) if word not in stop_words]


class Bm25Top(NamedTuple):
    """The papers with the highest BM25 scores for each query, the best first, ties by row."""

    rows: NDArray[np.int64]
    """(queries, k)"""

    scores: NDArray[np.float64]
    """(queries, k); papers that share no word with the query score 0 and are still listed."""


class Bm25:
    """The BM25 word weights of some papers; rows are positions among the texts."""

    def __init__(
        self,
        texts: Iterable[str],
        *,
        k1: float = 1.2,
        b: float = 0.75,
        method: str = "lucene",
        stop_words: frozenset[str] = STOP_WORDS,
    ) -> None:
        choose(method, METHODS, "method")
        if not (k1 >= 0 and 0 <= b <= 1):
            raise UserError(f"k1 is {k1} and b is {b}; k1 must not be negative, and b is between 0 and 1")
        self._stop_words = stop_words
        self._vocabulary: dict[str, int] = {}
        papers = [[self._vocabulary.setdefault(word, len(self._vocabulary)) for word in self._words(t)] for t in texts]
        self._size = len(papers)
        # without any word there is no average length, and nothing to weigh
        self._index = _weigh(papers, self._vocabulary, k1=k1, b=b, method=method) if self._vocabulary else None
        self._by_paper: csr_matrix | None = None

    def __len__(self) -> int:
        return self._size

    def scores(
        self, queries: Sequence[str], offsets: NDArray[np.integer[Any]], candidates: NDArray[np.integer[Any]]
    ) -> NDArray[np.float64]:
        """Return the BM25 scores of query i with the rows candidates[offsets[i]:offsets[i + 1]], (pairs,)."""
        assert len(offsets) == len(queries) + 1 and offsets[0] == 0 and offsets[-1] == len(candidates)
        scores = np.zeros(len(candidates))
        if self._index is None:
            return scores
        counts, base = self._word_counts(queries)
        weights = self._weights()
        owners = owners_of(offsets)  # (pairs,)
        for start in range(0, len(candidates), BLOCK):
            part = slice(start, start + BLOCK)
            shared = weights[candidates[part]].multiply(counts[owners[part]])  # (pairs, words)
            scores[part] = np.asarray(shared.sum(axis=1)).ravel() + base[owners[part]]
        return scores

    def top(self, queries: Sequence[str], k: int) -> Bm25Top:
        """Return the k papers with the highest BM25 scores for each query, or all where there are fewer."""
        k = min(k, self._size)
        best = Bm25Top(np.empty((len(queries), k), np.int64), np.empty((len(queries), k)))
        for at, query in enumerate(queries):
            known, scores = sorted(self._known(query)), np.zeros(self._size)  # (papers,)
            if self._index is not None and known:
                scores = np.asarray(self._index.get_scores_from_ids(known))
            best.rows[at] = _highest(scores, k)
            best.scores[at] = scores[best.rows[at]]
        return best

    def _words(self, text: str) -> list[str]:
        return words_of(text, stop_words=self._stop_words)

    def _known(self, text: str) -> list[int]:
        return [self._vocabulary[word] for word in self._words(text) if word in self._vocabulary]

    def _word_counts(self, queries: Sequence[str]) -> tuple[csr_matrix, NDArray[np.float64]]:
        """Count the known words of each query, (queries, words), and return the score that every paper gets in any case."""
        from scipy.sparse import csr_matrix

        counts = [Counter(self._known(query)) for query in queries]
        ends = to_offsets([len(count) for count in counts])
        places = np.fromiter((word for count in counts for word in count), np.int64, ends[-1])
        times = np.fromiter((number for count in counts for number in count.values()), np.float64, ends[-1])
        occurrences = csr_matrix((times, places, ends), shape=(len(queries), len(self._vocabulary)))
        assert self._index is not None
        absent = self._index.nonoccurrence_array  # (words,); only bm25l and bm25+ score an absent word
        return occurrences, np.zeros(len(queries)) if absent is None else np.asarray(occurrences @ absent)

    def _weights(self) -> csr_matrix:
        """Return the BM25 weight of each word in each paper, (papers, words)."""
        from scipy.sparse import csc_matrix

        if self._by_paper is None:
            assert self._index is not None
            sparse = self._index.scores
            columns = csc_matrix(
                (sparse["data"], sparse["indices"], sparse["indptr"]), (self._size, len(self._vocabulary))
            )
            self._by_paper = columns.tocsr()
        return self._by_paper


def _weigh(papers: list[list[int]], vocabulary: dict[str, int], **settings: Any) -> Any:
    # bm25s imports jax where it is installed, which would reserve most of a GPU's memory
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import bm25s

    index = bm25s.BM25(**settings, dtype="float64", backend="numpy")
    index.index((papers, vocabulary), create_empty_token=False, show_progress=False)
    return index


def _highest(scores: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """Return the positions of the k highest scores, the highest first, ties by position.

    >>> _highest(np.array([1.0, 3.0, 2.0, 3.0, 1.0]), 4).tolist()
    [1, 3, 2, 0]
    """
    if k == 0:
        return np.empty(0, np.int64)
    lowest = np.partition(scores, len(scores) - k)[len(scores) - k]
    high = np.flatnonzero(scores >= lowest)
    return high[np.argsort(-scores[high], kind="stable")[:k]]
