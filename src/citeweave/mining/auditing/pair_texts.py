"""Which of given pairs of papers are one work twice: the same title, or texts that share most of their words.

    judge = same_works(corpus, anchors, picks)        one truth value a pair

The rules are those of the leakage audit (`corpus/leakage/audit.py`, rules 3 and 4), for pairs that are known: a title
of at least 4 words and 20 letters that is the same after folding; or title and abstract with at least 20 different
word triples each, and half of the shorter one's shared. Years are not asked for, short titles prove nothing. Exact:
the triples of all papers are compared, in several passes over parts of them where they do not fit into the memory.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.cleaning import fold
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.identity import MINIMUM_TITLE_LETTERS, MINIMUM_TITLE_WORDS
from citeweave.corpus.leakage.audit import TEXT_MINIMUM, TEXT_WORDS, LeakageOptions
from citeweave.corpus.leakage.near_duplicates import Shingles, shingle_texts
from citeweave.hashing import hash_texts
from citeweave.progress import QUIET, Reporter

_TEXTS = 4096
_PAIRS = 1 << 15
_BYTES_A_LETTER = 2
"""Of memory for the triples of a text: 8 bytes for every word."""


def same_works(
    corpus: Corpus,
    first: NDArray[np.integer[Any]],
    second: NDArray[np.integer[Any]],
    *,
    memory: int = 512 << 20,
    workers: int = 0,
    reporter: Reporter = QUIET,
) -> NDArray[np.bool_]:
    """Judge every pair of rows; shape (pairs,). A paper is not a second copy of itself."""
    papers, places = np.unique(np.concatenate([first, second]), return_inverse=True)
    pairs = _Pairs(places[: len(first)].astype(np.int32), places[len(first) :].astype(np.int32))
    letters = int((corpus.titles.lengths() + corpus.abstracts.lengths())[papers].sum())
    passes = max(1, -(-letters * _BYTES_A_LETTER // memory))
    sizes, titles = np.zeros(len(papers), np.int32), np.zeros(len(papers), np.uint64)
    shared = np.zeros(len(first), np.int32)
    with (
        ThreadPoolExecutor(workers or os.cpu_count()) as pool,
        reporter.task("comparing texts", passes * len(papers), "papers") as advance,
    ):
        for number in range(passes):
            parts = []
            for start in range(0, len(papers), _TEXTS):
                part = _Texts.read(corpus, papers[start : start + _TEXTS])
                titles[start : start + _TEXTS] = part.titles
                parts.append(_some(part.triples, number, passes))
                advance(len(part.titles))
            triples = _join(parts)
            sizes += np.diff(triples.bounds).astype(np.int32)
            _count_shared(triples, pairs, shared, pool)
    smaller = np.minimum(sizes[pairs.first], sizes[pairs.second])
    alike = (smaller >= TEXT_MINIMUM) & (shared >= LeakageOptions().containment * smaller)
    titled = (titles[pairs.first] == titles[pairs.second]) & (titles[pairs.first] > 0)
    return np.asarray((alike | titled) & (pairs.first != pairs.second))


class _Pairs(NamedTuple):
    first: NDArray[np.int32]
    second: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Texts:
    """What some papers are compared by."""

    titles: NDArray[np.uint64]
    """Key of the folded title, 0 where it is too short to prove anything."""

    triples: Shingles

    @classmethod
    def read(cls, corpus: Corpus, rows: NDArray[np.integer[Any]]) -> _Texts:
        titles, abstracts = corpus.titles.take(rows), corpus.abstracts.take(rows)
        folded = [fold(title) for title in titles]
        long = [len(text) >= MINIMUM_TITLE_LETTERS and text.count(" ") + 1 >= MINIMUM_TITLE_WORDS for text in folded]
        keys = np.where(long, hash_texts(folded), np.uint64(0))
        texts = [f"{title}\n{abstract}" for title, abstract in zip(titles, abstracts, strict=True)]
        return cls(keys, shingle_texts(texts, TEXT_WORDS))


def _some(shingles: Shingles, number: int, passes: int) -> Shingles:
    """The shingles that belong to one of several passes."""
    if passes == 1:
        return shingles
    kept = shingles.hashes % np.uint64(passes) == number
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
    return Shingles(shingles.hashes[kept], ends[shingles.bounds])


def _join(parts: list[Shingles]) -> Shingles:
    counts = [np.zeros(1, np.int64), *(np.diff(part.bounds) for part in parts)]
    return Shingles(np.concatenate([part.hashes for part in parts]), np.cumsum(np.concatenate(counts)))


def _count_shared(triples: Shingles, pairs: _Pairs, shared: NDArray[np.int32], pool: ThreadPoolExecutor) -> None:
    list(pool.map(partial(_sort, triples.hashes, triples.bounds), *_spans(len(triples))))
    list(pool.map(partial(_add_shared, triples.hashes, triples.bounds, *pairs, shared), *_spans(len(shared))))


def _spans(count: int) -> tuple[list[int], list[int]]:
    """Where the parts of a range begin and end."""
    edges = [*range(0, count, _PAIRS), count]
    return edges[:-1], edges[1:]


@numba.njit(cache=True, nogil=True)
def _sort(hashes, bounds, low, high):  # type: ignore[no-untyped-def]
    for paper in range(low, high):
        hashes[bounds[paper] : bounds[paper + 1]].sort()


@numba.njit(cache=True, nogil=True)
def _add_shared(hashes, bounds, first, second, shared, low, high):  # type: ignore[no-untyped-def]
    """Add to every pair the number of shingles that both papers have."""
    for pair in range(low, high):
        i, end = bounds[first[pair]], bounds[first[pair] + 1]
        j, stop = bounds[second[pair]], bounds[second[pair] + 1]
        count = 0
        while i < end and j < stop:
            one, other = hashes[i], hashes[j]
            if one == other:
                count += 1
            # no branches: neither is more likely than the other
            i, j = i + (one <= other), j + (other <= one)
        shared[pair] += count
