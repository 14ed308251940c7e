"""Encoders, judged by the vectors they make of a suite's texts; vectors are kept in a cache by content and model.

    <cache>/vectors/<hash of texts, model and text recipe>/      a folder of vectors, as `embed` would write it

Batches are saved there by time, so an interrupted evaluation resumes in the middle of them; without a cache they are
saved in the folder of the evaluation (`resume_in`) and removed with it. A text of which a model gives zeros, or a number that is not finite, has no vector; such texts are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.artefacts.writing import matches
from citeweave.corpus.text import TextRecipe
from citeweave.crew import Crew, Work
from citeweave.encoders.embedding import SHARD, embed_texts, plan_of_texts, text_maker
from citeweave.encoders.encoder import Encoder
from citeweave.encoders.streaming.shards import Hired
from citeweave.encoders.streaming.vector_shards import write_vectors
from citeweave.errors import EmptyResultError
from citeweave.evaluation.judged import ABSENT, PRESENT, NoAnswerError, PaperVectors
from citeweave.evaluation.judging.by_vectors import find_top, score_pairs
from citeweave.evaluation.tasks import DISTANCES, Pools
from citeweave.evaluation.texts import Texts
from citeweave.files import hash_json
from citeweave.progress import QUIET, Reporter
from citeweave.similarity.vectors import KIND, VERSION

if TYPE_CHECKING:
    from citeweave.encoders.streaming.remote import MadeHere

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
        self._work: Path | None = None
        self._made: dict[str, PaperVectors] = {}
        self.counts: dict[str, dict[str, int]] = {}
        """Hash of texts -> dimension and lost vectors, of all that were read, here or by a crew."""

    def resume_in(self, folder: Path | None) -> None:
        self._work = folder

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "revision": self.encoder.revision,
            "dimension": max((each.get("dimension", 0) for each in self.counts.values()), default=None),
            "text_recipe": self._recipe.hash,
            "texts without usable vector": sum(each.get("lost", 0) for each in self.counts.values()),
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

    def keep(self, texts: Texts, crew: Crew, work: Work) -> None:
        """See to it that the cache, if there is one, has these texts' vectors: a crew makes the shards that lack."""
        if self._cache is None or not any(written := texts.paper_texts(self._recipe)):
            return
        plan = plan_of_texts(self.encoder, texts.ids, written, text_recipe=self._recipe.hash)
        folder = self._folder(texts)
        if not matches(folder, KIND, VERSION, plan.recipe):
            with suppress(EmptyResultError):  # told of the task, when it is judged
                write_vectors(folder, plan, Hired(crew, work), reporter=self._reporter)

    def shards(self, texts: Texts) -> MadeHere:
        """A worker's side of `keep`: the number of a shard -> its bytes."""
        from citeweave.encoders.streaming.remote import MadeHere

        written = texts.paper_texts(self._recipe)
        return MadeHere(text_maker(self.encoder, written, "float32"), len(written), SHARD)

    def _encode(self, texts: Texts) -> PaperVectors:
        written = texts.paper_texts(self._recipe)
        has_text = np.array([bool(text) for text in written])  # (rows,)
        matrix = self._read(texts, written) if has_text.any() else np.zeros((len(written), 1), np.float32)
        usable = np.isfinite(matrix).all(axis=1) & matrix.any(axis=1)  # (rows,)
        if has_text.any() and not usable.any():
            raise self._useless(len(written))
        matrix[~usable] = 0
        found = {"dimension": matrix.shape[1], "lost": int((has_text & ~usable).sum())}
        self.counts.setdefault(texts.hash, {}).update(found)
        return PaperVectors(matrix, np.where(has_text & usable, PRESENT, ABSENT).astype(np.uint8))

    def _read(self, texts: Texts, written: Sequence[str]) -> NDArray[np.float32]:
        """(rows, dimension) out of the cache, or made now; zeros where a vector was of no use."""
        if self._place is None:
            return np.array(self.encoder.encode(written, reporter=self._reporter), np.float32)
        try:
            vectors = embed_texts(
                self.encoder,
                texts.ids,
                written,
                self._folder(texts),
                text_recipe=self._recipe.hash,
                reporter=self._reporter,
            )
        except EmptyResultError:
            raise self._useless(len(written)) from None
        rows = vectors.rows(texts.ids)  # -1 where no vector was kept
        matrix = np.array(vectors.matrix[np.maximum(rows, 0)], np.float32)
        matrix[rows < 0] = 0
        return matrix

    @property
    def _place(self) -> Path | None:
        """Where vectors are saved: the cache, or the folder of the evaluation for as long as that takes."""
        return self._cache or self._work

    def _folder(self, texts: Texts) -> Path:
        assert self._place is not None
        # also by its name, which stands in the folder: `run` calls the model that it starts from "start"
        return self._place / "vectors" / hash_json([texts.hash, self.revision, self.name])[:24]

    def _useless(self, texts: int) -> NoAnswerError:
        return NoAnswerError(
            f"{self.name} gives no usable vector of {texts:,} texts: all are zeros or not finite; check the model"
        )
