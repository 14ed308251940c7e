"""Adjacency: who is next to whom, as sparse rows; a sum of parts, so that both directions need no copy.

    row 0 -> 1, 2        offsets [0, 2, 3, 3]
    row 1 -> 2           targets [1, 2, 2]
    row 2 -> nobody      weights [1.0, 1.0, 0.5], or None where every edge counts 1

Knows nothing of papers, citations or what an edge means.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Csr:
    """Compressed sparse rows: the neighbours of row i are targets[offsets[i]:offsets[i + 1]]."""

    offsets: NDArray[np.int64]
    """Shape (nodes + 1,)."""

    targets: NDArray[np.int32]
    """Shape (edges,), ascending within a row."""

    weights: NDArray[np.float32] | None = None
    """Shape (edges,); None where every edge counts 1."""

    @property
    def nodes(self) -> int:
        return len(self.offsets) - 1

    @property
    def edges(self) -> int:
        return len(self.targets)

    def row(self, node: int) -> NDArray[np.int32]:
        """The neighbours of one node."""
        return self.targets[self.offsets[node] : self.offsets[node + 1]]


@dataclass(frozen=True, slots=True)
class Adjacency:
    """The sum of sparse matrices of one size; a citation graph without directions is forward + backward."""

    parts: tuple[Csr, ...]

    @property
    def nodes(self) -> int:
        return self.parts[0].nodes

    @property
    def edges(self) -> int:
        """Entries of all parts."""
        return sum(part.edges for part in self.parts)
