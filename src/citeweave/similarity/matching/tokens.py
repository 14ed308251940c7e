"""The best match token by token: the MaxSim of late interaction (Khattab and Zaharia, SIGIR 2020, ColBERT, equation 3).

    token_best   mean over the query's tokens of 1 - the best cosine with any token of the candidate

    >>> import torch
    >>> query = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> near, half = torch.tensor([[0.0, 1.0], [0.6, 0.8], [1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> token_distances(query, [near, half, near[:2]]).double().round(decimals=3).tolist()
    [0.0, 0.5, 0.2]

The third candidate has the query's second token, and for its first one with the cosine 0.6: (0.4 + 0) / 2. Not symmetric.
ColBERT sums where this takes the mean; within a query the order is the same. Does not read texts: vectors are given, of
length 1, in any precision.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from citeweave.extras import require
from citeweave.similarity.matching.pairs import Tensor
from citeweave.similarity.matching.pools import pieces

TOKEN_BEST = "token_best"

ROOM = 1 << 25
"""Numbers of candidates' tokens that are widened to float32 at a time, and of cosines that are held."""


def token_distances(query: Tensor, candidates: Sequence[Tensor]) -> Tensor:
    """Of one query (n, dimension) to candidates (tokens, dimension) each, (candidates,) float32.

    Every side must have a token, and every vector the length 1; candidates are taken in parts that fit into ROOM.
    """
    torch = require("torch", extra="minilm")
    assert len(query) and all(map(len, candidates))
    query, found = query.float(), [query.new_zeros(0, dtype=torch.float32)]
    lengths = np.array([len(each) for each in candidates], np.int64)
    for part in pieces(lengths, max(1, ROOM // max(query.shape))):
        tokens = torch.cat(list(candidates[part])).float()  # (tokens, dimension)
        ends = torch.from_numpy(lengths[part]).to(tokens.device)
        best = torch.segment_reduce(tokens @ query.T, "max", lengths=ends, axis=0)  # (candidates, n)
        found.append((1 - best).mean(1))
    return torch.cat(found)
