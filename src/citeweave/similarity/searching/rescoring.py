"""The compiled loops that compute the scores that count, and put neighbours in their order.

    exact_score((1, 0), (1, 1), norms=1.414..., COSINE) = 0.70710677

A score and a position become one number, a key, so that sorting keys sorts by score, the highest first, and then by
position, the lowest first. Does not choose who is scored: see `selecting.py`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from citeweave.similarity.searching.selecting import Doubles, Floats, Ints, Longs

COSINE, DOT, L2 = 0, 1, 2
"""The metrics as compiled code knows them."""

_SIGN, _REST = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)

Keys = NDArray[np.uint64]


@njit(cache=True, nogil=True)
def _term(one: float, other: float, metric: int) -> np.float64:
    difference = np.float64(one) - np.float64(other)
    return difference * difference if metric == L2 else np.float64(one) * np.float64(other)


@njit(cache=True, nogil=True)
def exact_score(query: Floats, vector: Floats, norms: float, metric: int) -> np.float32:
    """The score that counts: summed in float64 in one fixed order, then rounded to float32; higher is nearer.

    cosine: q.v / (|q| |v|), 0 where `norms` = |q| |v| is 0; dot: q.v; l2: minus the distance.
    """
    a = b = c = d = 0.0
    size = len(query)
    for at in range(0, size - 3, 4):
        a, b = a + _term(query[at], vector[at], metric), b + _term(query[at + 1], vector[at + 1], metric)
        c, d = c + _term(query[at + 2], vector[at + 2], metric), d + _term(query[at + 3], vector[at + 3], metric)
    for at in range(size - size % 4, size):
        a += _term(query[at], vector[at], metric)
    total = (a + b) + (c + d)
    if metric == L2:
        total = -math.sqrt(total)
    elif metric == COSINE:
        total = total / norms if norms > 0 else 0.0
    return np.float32(total)


@njit(cache=True, nogil=True)
def _key(score: np.float32, position: int) -> np.uint64:
    """A number that is smaller the better the score is, and for equal scores the smaller the position."""
    bits = np.float32(score + np.float32(0)).view(np.uint32)  # -0 becomes 0
    descending = bits if bits & _SIGN else bits ^ _REST
    return (np.uint64(descending) << _HALF) | np.uint64(position)


@njit(cache=True, nogil=True)
def _score(key: np.uint64) -> np.float32:
    """The score in a key."""
    descending = np.uint32(key >> _HALF)
    bits = descending if descending & _SIGN else descending ^ _REST
    return np.uint32(bits).view(np.float32)


@njit(cache=True, nogil=True)
def rescore(
    queries: Floats,
    norms: Doubles,
    owners: Longs,
    vectors: Floats,
    lengths: Doubles,
    found: Ints,
    metric: int,
    out: Keys,
) -> None:
    """The keys of pairs: query `owners[i]` with `vectors[i]`, of length `lengths[i]`, at the position `found[i]`."""
    for at in range(len(owners)):
        own = owners[at]
        score = exact_score(queries[own], vectors[at], norms[own] * lengths[at], metric)
        out[at] = _key(score, found[at])


@njit(cache=True, nogil=True)
def place(
    keys: Keys,
    ends: Longs,
    skip: Longs,
    take: Longs,
    columns: Longs,
    positions: Ints,
    scores: Floats,
    low: int,
    high: int,
) -> None:
    """Sort each window and write its members `skip` to `skip + take` to the columns of its band.

    `skip` and `take` are (queries, bands), `columns` says where the band begins in `positions` and `scores`
    (queries, columns).
    """
    bands = len(columns)
    for query in range(low, high):
        for band in range(bands):
            window = query * bands + band
            members = keys[ends[window - 1] if window else 0 : ends[window]]
            if take[query, band]:
                members.sort()
            for at in range(take[query, band]):
                key = members[skip[query, band] + at]
                scores[query, columns[band] + at] = _score(key)
                positions[query, columns[band] + at] = key & _LOW


@njit(cache=True, nogil=True)
def measure(vectors: Floats, norms: Doubles) -> None:
    """The length of each vector, in float64: not finite where one of its numbers is not."""
    for row in range(len(vectors)):
        total = 0.0
        for at in range(vectors.shape[1]):
            total += np.float64(vectors[row, at]) ** 2
        norms[row] = math.sqrt(total)


@njit(cache=True, nogil=True)
def stretch(vectors: Floats, width: int, factors: Doubles) -> None:
    """Multiply the first `width` numbers of each of the first vectors by its factor, rounding once."""
    for row in range(len(factors)):
        for at in range(width):
            vectors[row, at] = np.float32(vectors[row, at] * factors[row])
