"""Which papers of a batch may be negatives of each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from weaving.bundle import Ints


def allowed_pairs(
    papers: Ints, keys: NDArray[Any], memberships: sp.csr_matrix, *, masked: bool = True
) -> NDArray[np.bool_]:
    """(texts, texts), False for a paper and itself, for equal titles, and for two papers of one reference list.

    `keys` (papers,) are equal for equal titles, `memberships` (nodes, lists) has a 1 where a list has a paper. The last
    rule is the masking of false negatives (Huynh et al. 2022) by the graph, not by a guess; `masked` False leaves it out.

    >>> lists = sp.csr_matrix(np.array([[1, 0], [1, 0], [0, 1]]))
    >>> allowed_pairs(np.array([0, 1, 2]), np.array([7, 8, 9]), lists).astype(int).tolist()
    [[0, 0, 1], [0, 0, 1], [1, 1, 0]]
    """
    own = keys[papers]  # (texts,)
    same: NDArray[np.bool_] = (papers[:, None] == papers) | (own[:, None] == own)  # (texts, texts)
    if not masked:
        return ~same
    lists = memberships[papers]  # (texts, lists)
    related: NDArray[np.bool_] = (lists @ lists.T).toarray() > 0  # (texts, texts)
    return ~(same | related)
