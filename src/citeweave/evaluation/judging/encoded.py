"""Encoders, judged by the vectors they make of a suite's texts; vectors are kept in a cache by content and model.

    <cache>/vectors/<hash of texts, model and text recipe>/      a folder of vectors, as `embed` would write it

A text of which a model gives zeros, or a number that is not finite, has no vector; such texts are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.text import TextRecipe
from citeweave.encoders.embedding import embed_texts
from citeweave.encoders.encoder import Encoder
from citeweave.errors import EmptyResultError
from citeweave.evaluation.judged import ABSENT, PRESENT, NoAnswerError, PaperVectors
from citeweave.evaluation.judging.given_vectors import find_top, score_pairs
from citeweave.evaluation.tasks import DISTANCES, Pools
from citeweave.evaluation.texts import Texts
from citeweave.files import hash_json
from citeweave.progress import QUIET, Reporter

_RECIPE = TextRecipe()


class Encoded:
    """An encoder of whole papers."""

    distances = DISTANCES

    def __init__(
        self,
        encoder: Encoder,
        *,
        cache: Path | None = None,
        text_recipe: TextRecipe = _RECIPE,
        reporter: Reporter = QUIET,
    ) -> None:
        self.encoder, self._cache, self._recipe, self._reporter = encoder, cache, text_recipe, reporter
        self.name = encoder.name
        self.revision = hash_json([encoder.revision, text_recipe.hash])[:16]
        self._made: dict[str, PaperVectors] = {}
        self._lost = 0

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "revision": self.encoder.revision,
            "dimension": max((made.matrix.shape[1] for made in self._made.values()), default=None),
            "text_recipe": self._recipe.hash,
            "texts without usable vector": self._lost,
        }

    def vectors(self, texts: Texts) -> PaperVectors:
        if texts.hash not in self._made:
            self._made[texts.hash] = self._encode(texts)
        return self._made[texts.hash]

    def scores(self, texts: Texts, pools: Pools, distance: str) -> NDArray[np.float64]:
        return score_pairs(self.vectors(texts), pools, distance)

    def top(
        self, texts: Texts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return find_top(self.vectors(texts), queries, candidates, depth, distance)

    def _encode(self, texts: Texts) -> PaperVectors:
        written = texts.paper_texts(self._recipe)
        has_text = np.array([bool(text) for text in written])  # (rows,)
        matrix = self._read(texts, written) if has_text.any() else np.zeros((len(written), 1), np.float32)
        usable = np.isfinite(matrix).all(axis=1) & matrix.any(axis=1)  # (rows,)
        if has_text.any() and not usable.any():
            raise self._useless(len(written))
        matrix[~usable] = 0
        self._lost += int((has_text & ~usable).sum())
        return PaperVectors(matrix, np.where(has_text & usable, PRESENT, ABSENT).astype(np.uint8))

    def _read(self, texts: Texts, written: Sequence[str]) -> NDArray[np.float32]:
        """(rows, dimension) out of the cache, or made now; zeros where a vector was of no use."""
        if self._cache is None:
            return np.array(self.encoder.encode(written, reporter=self._reporter), np.float32)
        folder = self._cache / "vectors" / hash_json([texts.hash, self.revision])[:24]
        try:
            vectors = embed_texts(
                self.encoder, texts.ids, written, folder, text_recipe=self._recipe.hash, reporter=self._reporter
            )
        except EmptyResultError:
            raise self._useless(len(written)) from None
        rows = vectors.rows(texts.ids)  # -1 where no vector was kept
        matrix = np.array(vectors.matrix[np.maximum(rows, 0)], np.float32)
        matrix[rows < 0] = 0
        return matrix

    def _useless(self, texts: int) -> NoAnswerError:
        return NoAnswerError(
            f"{self.name} gives no usable vector of {texts:,} texts: all are zeros or not finite; check the model"
        )
