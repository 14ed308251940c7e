"""Vectors of single texts, each read alone; made in blocks that are kept on disk, so that a later run goes on.

    vectors = encode_texts(texts, encoder, work)
    vectors.take(np.array([3, 0]))         (2, dimension)

Vectors are the encoder's own, of length 1 or not as it makes them. A text without a token has a vector of zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import open_matrix
from citeweave.encoders.encoder import Encoder
from citeweave.files import new_file
from citeweave.mining.aligning.texts import AlignmentTexts
from citeweave.progress import QUIET, Reporter

BLOCK = 2048
"""Texts encoded between two savings."""


@dataclass(frozen=True, slots=True)
class TextVectors:
    """A vector a text, in memory-mapped blocks."""

    blocks: list[NDArray[np.float32]]
    """Each (BLOCK, dimension), the last one shorter."""

    def take(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors of these texts, which are given ascending; shape (numbers, dimension)."""
        cuts = np.flatnonzero(np.diff(numbers // BLOCK)) + 1
        parts = [self.blocks[int(part[0]) // BLOCK][part % BLOCK] for part in np.split(numbers, cuts) if len(part)]
        return np.concatenate(parts)


def encode_texts(texts: AlignmentTexts, encoder: Encoder, work: Path, *, reporter: Reporter = QUIET) -> TextVectors:
    """Encode every different text once; blocks that are in `work` already are taken as they are."""
    blocks = []
    with reporter.task("encoding sentences", len(texts), "sentences") as advance:
        for start in range(0, len(texts), BLOCK):
            path = work / f"{start // BLOCK:08d}.npy"
            count = min(BLOCK, len(texts) - start)
            if not path.exists():
                found = encoder.encode(texts.take(np.arange(start, start + count)))  # (count, dimension)
                _save(path, np.ascontiguousarray(found, np.float32))
            blocks.append(open_matrix(path, np.float32, (count, encoder.dimension)))
            advance(count)
    return TextVectors(blocks)


def _save(path: Path, matrix: NDArray[np.float32]) -> None:
    """There whole or not at all."""
    with new_file(path) as file:
        np.save(file, matrix)
