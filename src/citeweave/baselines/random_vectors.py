"""Random vectors: what a judge must give to an encoder that knows nothing.

    >>> encoder = RandomVectors("", RandomOptions(), seed=0)
    >>> one, same, empty = encoder.encode(["A title", "A title", ""])
    >>> bool((one == same).all()), float(abs(empty).sum())
    (True, 0.0)

"Zero-mean 25-dimensional vectors were used as representations for each document" (Cohan et al. 2020, appendix A);
the text does not name the distribution: normal numbers here. They are drawn by the text, so one text has one vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from citeweave.arguments import as_texts
from citeweave.baselines.material import Floats, Material
from citeweave.errors import UserError
from citeweave.hashing import hash_text
from citeweave.progress import QUIET, Reporter
from citeweave.randomness import stream


@dataclass(frozen=True, slots=True)
class RandomOptions:
    """Options of random vectors."""

    dimension: int = 25
    """SPECTER's."""

    def __post_init__(self) -> None:
        if self.dimension < 1:
            raise UserError(f"dimension of random vectors is {self.dimension}; it must be 1 or more")


class RandomVectors:
    """An encoder that only tells texts apart."""

    name = "random"

    def __init__(self, revision: str, options: RandomOptions, seed: int) -> None:
        self.revision, self.dimension, self._seed = revision, options.dimension, seed

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> Floats:
        texts = as_texts(texts)
        out = np.zeros((len(texts), self.dimension), np.float32)  # (texts, dimension)
        for row, text in enumerate(texts):
            if text:
                rng = stream(self._seed, "random baseline", int(hash_text(text)))
                out[row] = rng.standard_normal(self.dimension)
        return out


def fit_random(material: Material, options: RandomOptions, revision: str) -> RandomVectors:
    """Nothing is learnt; the corpus is not read."""
    return RandomVectors(revision, options, material.seed)
