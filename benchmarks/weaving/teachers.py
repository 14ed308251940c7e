"""What the start model and the reference lists know of every paper: for imitation, near negatives and topics."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from weaving.bundle import WHOLE, Bundle
from weaving.network import StartedNetwork

READ_TOKENS = 256
NEIGHBOURS = 200
GRAPH_DIMENSION = 256
BLOCK = 4096


class Teachers:
    """Each table is made when first asked for; the network is at its start afterwards."""

    def __init__(self, bundle: Bundle, network: StartedNetwork) -> None:
        self._bundle, self._network = bundle, network

    @property
    def dimension(self) -> int:
        return int(self.vectors.shape[1])

    @cached_property
    def vectors(self) -> Tensor:
        """Unit vectors of whole papers by the start model, (papers, d)."""
        self._network.load(self._network.start)
        rows = range(len(self._bundle))
        return self._network.vectors([self._bundle.view(row, WHOLE, READ_TOKENS) for row in rows])

    def along(self, direction: NDArray[np.float64]) -> NDArray[np.float32]:
        line = self.vectors @ self._network.on_device(direction.astype(np.float32))  # (papers,)
        return line.cpu().numpy()

    @cached_property
    def nearest(self) -> NDArray[np.int32]:
        """Papers that may be trained on, nearest first, (papers, neighbours)."""
        table = self.vectors.half()
        wrong = self._network.on_device(self._bundle.banned | (self._bundle.lengths < 3))  # (papers,)
        found = [
            (rows @ table.T).masked_fill(wrong, -1).topk(NEIGHBOURS, 1).indices.int().cpu()
            for rows in torch.split(table, BLOCK)
        ]
        return torch.cat(found).numpy()

    @cached_property
    def graph(self) -> Tensor:
        """Unit vectors of nodes from reference lists, (nodes, d); zeros where a paper is in none."""
        weights = normalised(self._bundle.memberships).tocoo()
        matrix = torch.sparse_coo_tensor(
            torch.from_numpy(np.stack([weights.row, weights.col]).astype(np.int64)),
            torch.from_numpy(weights.data.astype(np.float32)),
            weights.shape,
        )
        torch.manual_seed(0)
        left, scale, _ = torch.svd_lowrank(matrix.to(self._network.device).coalesce(), q=GRAPH_DIMENSION, niter=3)
        return torch.nn.functional.normalize(left * scale.sqrt(), dim=1)


def normalised(memberships: sp.csr_matrix) -> sp.csr_matrix:
    """D_rows^-1/2 A D_columns^-1/2 of a matrix of ones and zeros: Dhillon (2001), co-clustering, equation 12.

    >>> normalised(sp.csr_matrix(np.array([[1.0, 1.0], [0.0, 1.0]]))).toarray().round(3).tolist()
    [[0.707, 0.5], [0.0, 0.707]]
    """
    rows, columns = (np.asarray(memberships.sum(axis=axis)).ravel() for axis in (1, 0))
    left, right = (sp.diags(1 / np.sqrt(np.maximum(sums, 1))) for sums in (rows, columns))
    return (left @ memberships @ right).tocsr()
