"""Encoders, judged by the vectors they make of a suite's texts; vectors are kept in a cache by content and model.

<cache>/vectors/<hash of texts, model and text recipe>/      a folder of vectors, as `embed` would write it
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.text import TextRecipe
from citeweave.encoders.embedding import embed_texts
from citeweave.encoders.encoder import Encoder
from citeweave.errors import UserError
from citeweave.evaluation.judged import ABSENT, PRESENT, PaperVectors
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

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "revision": self.encoder.revision,
            "dimension": max((made.matrix.shape[1] for made in self._made.values()), default=None),
            "text_recipe": self._recipe.hash,
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
        if self._cache is None:
            matrix = self.encoder.encode(written, reporter=self._reporter)
        else:
            folder = self._cache / "vectors" / hash_json([texts.hash, self.revision])[:24]
            vectors = embed_texts(
                self.encoder, texts.ids, written, folder, text_recipe=self._recipe.hash, reporter=self._reporter
            )
            rows = vectors.rows(texts.ids)  # -1 where a vector was not finite
            matrix = np.array(vectors.matrix[np.maximum(rows, 0)], np.float32)  # (rows, dimension)
            has_text &= rows >= 0
        finite = np.isfinite(matrix).all(axis=1)
        if not finite.any():
            raise UserError(f"{self.name} gives no finite vector; check the model's weights")
        matrix[~finite] = 0
        return PaperVectors(matrix, np.where(has_text & finite, PRESENT, ABSENT).astype(np.uint8))
