"""Sums of powers of a walk on a graphics card, by torch's sparse products: `PowerSum` of `walks.py`, elsewhere.

    powers = DevicePowers(adjacency, degrees, weights, device="cuda")
    powers.add(panel, out, column, advance)

The start is the same random signs, and powers are rounded to bfloat16 between steps as on a processor. Sums of a row's
neighbours are made in another order, so vectors differ by what bfloat16 rounds: numbers of a vector of length 1 by about
0.001, cosines of a vector with its twin are above 0.9999. Runs on one card may differ as much. The graph, 8 bytes an
entry, and three panels in float32 must fit into the card's memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import UserError
from citeweave.extras import require
from citeweave.graph.adjacency import Adjacency, Csr
from citeweave.graph.row_kernels import narrow_into
from citeweave.graph.walks import NARROWEST, Panel
from citeweave.progress import Advance

_FULL = "the graphics card's memory is too small for this graph; use --device cpu, or less --memory for narrower panels"


class DevicePowers:
    """A weighted sum of the powers of one walk, every power's rows made of length 1."""

    def __init__(
        self, adjacency: Adjacency, degrees: NDArray[np.float64], weights: Sequence[float], device: str
    ) -> None:
        self._torch: Any = require("torch", extra="minilm")
        if device == "cuda" and not self._torch.cuda.is_available():
            raise UserError("--device is cuda, but torch finds no graphics card; use cpu or auto")
        self._weights, self._device = weights, device
        self.gains: dict[int, NDArray[np.float32]] = {}
        """Of every power with a weight: what its rows are multiplied by; (nodes,)."""
        scale = np.zeros(len(degrees))  # (nodes,)
        np.divide(1, degrees, out=scale, where=degrees > 0)
        try:
            self._scale = self._torch.from_numpy(scale.astype(np.float32)).to(device)[:, None]
            self._parts = [self._matrix(part) for part in adjacency.parts]
        except self._torch.OutOfMemoryError:
            raise UserError(_FULL) from None

    def add(self, panel: Panel, out: NDArray[Any], column: int, advance: Advance) -> None:
        """out[:, column:] = the sum for the panel's columns, which `PowerSum.add` adds."""
        torch = self._torch
        try:
            signs = torch.from_numpy(panel.now.view(np.int16)).to(self._device).view(torch.bfloat16)
            total = torch.zeros(panel.now.shape, dtype=torch.float32, device=self._device)
            now = signs.float()  # (nodes, width)
            for k, weight in enumerate(self._weights):
                power = self._step(now)
                if weight:
                    total += self._gains(k, weight, power) * power
                now = power.to(torch.bfloat16).float()
                advance(len(total))
        except torch.OutOfMemoryError:
            raise UserError(_FULL) from None
        narrow_into(total.cpu().numpy(), column, out)

    def _step(self, now: Any) -> Any:
        sums = self._parts[0] @ now
        for part in self._parts[1:]:
            sums += part @ now
        return sums.mul_(self._scale)

    def _gains(self, k: int, weight: float, power: Any) -> Any:
        """(nodes, 1), found at the first panel."""
        torch = self._torch
        if k not in self.gains:
            lengths = power[:, :NARROWEST].square().sum(1).sqrt()
            self.gains[k] = torch.where(lengths > 0, weight / lengths, 0.0).float().cpu().numpy()
        return torch.from_numpy(self.gains[k]).to(self._device)[:, None]

    def _matrix(self, part: Csr) -> Any:
        torch = self._torch
        kind = np.int32 if part.edges < 2**31 else np.int64
        weights = np.ones(part.edges, np.float32) if part.weights is None else np.array(part.weights)
        columns = (part.offsets.astype(kind), part.targets.astype(kind), weights)
        offsets, targets, values = (torch.from_numpy(column).to(self._device) for column in columns)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
            return torch.sparse_csr_tensor(offsets, targets, values, (part.nodes,) * 2, check_invariants=False)
