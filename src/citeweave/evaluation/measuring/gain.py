"""Normalised discounted cumulative gain in the two forms of the field: trec_eval's, and CSFCube's and ASPIRE's.

Both take the grade itself as the gain (a negative grade gains nothing) and divide by the gain of the best ranking; they
differ in how much a rank is worth:

    rank              1     2     3     4     5
    trec_discount     1  0.63  0.50  0.43  0.39     1 / log2(rank + 1)
    csfcube_discount  1     1  0.63  0.50  0.43     1 / log2(rank), and 1 for the first

Does not know gains of the form 2^grade - 1, which no protocol here uses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.evaluation.measuring.ranking import Cut, Ranked, Values, share

Discount = Callable[[NDArray[np.int64]], Values]


def trec_discount(place: NDArray[np.int64]) -> Values:
    """1 / log2(rank + 1): trec_eval 9.0, m_ndcg.c.

    >>> trec_discount(np.array([1, 3])).tolist()
    [1.0, 0.5]
    """
    worth: Values = 1 / np.log2(place + 1.0)
    return worth


def csfcube_discount(place: NDArray[np.int64]) -> Values:
    """1 / log2(rank), 1 for the first: Järvelin and Kekäläinen, TOIS 2002, with base 2; `method=0` of CSFCube's script.

    >>> csfcube_discount(np.array([1, 2, 4])).tolist()
    [1.0, 1.0, 0.5]
    """
    return 1 / np.maximum(1.0, np.log2(place))


def ndcg(ranked: Ranked, *, cut: Cut = None, discount: Discount = trec_discount, ideal: str = "judged") -> Values:
    """Discounted gain of the first `cut` candidates, as a share of what the best ranking gains there.

    The best ranking is made of all judged papers, or of those alone that are in the run (`ideal="submitted"`).

    >>> from citeweave.evaluation.measuring.ranking import rank_as_given
    >>> ranked = rank_as_given(np.array([3.0, 2, 1]), np.array([2, 0, 3]), np.array([0, 3]))
    >>> ndcg(ranked).round(4).tolist()  # (2 + 3/2) / (3 + 2/log2(3))
    [0.8212]
    >>> ndcg(ranked, discount=csfcube_discount).round(4).tolist()  # (2 + 3/log2(3)) / (3 + 2)
    [0.7786]
    """
    worth = np.where(ranked.early(cut), discount(ranked.place), 0)  # (pairs,)
    gained = ranked.total(worth * np.maximum(ranked.grades, 0) * ranked.found)
    return share(gained, ranked.total(worth * ranked.best_gains(ideal)))


def percent_cut(ranked: Ranked, percent: int, *, ideal: str = "judged") -> NDArray[Any]:
    """How many candidates are the first `percent` of each list, rounded down, (queries,): CSFCube's NDCG%20.

    >>> from citeweave.evaluation.measuring.ranking import rank_as_given
    >>> percent_cut(rank_as_given(np.zeros(14), np.zeros(14), np.array([0, 14])), 20).tolist()
    [2]
    """
    return (percent / 100 * ranked.length(ideal)).astype(np.int64)
