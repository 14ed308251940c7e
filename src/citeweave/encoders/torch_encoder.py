"""An encoder that runs on torch: a reader, a network and a pooling.

Texts are read in windows, so that tokens in memory stay few; in a window they are sorted by length and put into batches
by tokens. In float32 a vector does not depend on its batch beyond 1e-5; in half precision it does, within that
precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from citeweave.encoders.batching import batches
from citeweave.encoders.model_folder import Settings
from citeweave.encoders.network import Network
from citeweave.encoders.pooling import pool
from citeweave.encoders.reading import TextReader
from citeweave.progress import QUIET, Reporter

WINDOW = 8192
"""Texts that are tokenized and sorted at a time."""


@dataclass(frozen=True, slots=True)
class TorchEncoder:
    """See `Encoder` for what it promises and `load_encoder` for making one."""

    name: str
    revision: str
    reader: TextReader
    network: Network
    settings: Settings
    batch_tokens: int
    """Tokens of a batch, padding included."""

    @property
    def dimension(self) -> int:
        return self.network.dimension

    def encode(self, texts: Sequence[str], *, reporter: Reporter = QUIET) -> NDArray[np.float32]:
        """Vectors of the texts, (texts, dimension); zeros for a text without a token of its own."""
        vectors = np.zeros((len(texts), self.dimension), np.float32)  # (texts, dimension)
        with reporter.task("embedding", len(texts), "papers") as advance:
            for start in range(0, len(texts), WINDOW):
                tokens = self.reader.read(texts[start : start + WINDOW])
                lengths = np.array([len(ids) for ids in tokens], np.int64)  # (texts of the window,)
                advance(int((lengths == 0).sum()))
                for rows in batches(lengths, self.batch_tokens):
                    vectors[start + rows] = self._vectors([tokens[row] for row in rows.tolist()])
                    advance(len(rows))
        return vectors

    def _vectors(self, batch: list[NDArray[np.int64]]) -> NDArray[np.float32]:
        layers, mask = self.network.layers(batch, every=self.settings.pooling == "layers")
        vectors = pool(layers, mask, self.settings.pooling)  # (texts, dimension)
        if self.settings.normalize:
            vectors = vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-12)
        found: NDArray[np.float32] = vectors.cpu().numpy()
        return found
