"""A model that answers by whole papers, by their sentences and by their tokens, as the distance asks: `cosine+mean_best`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.evaluation.judged import Judged, PaperVectors
from citeweave.evaluation.judging.encoded import Encoded
from citeweave.evaluation.judging.sentence_level import SentenceLevel
from citeweave.evaluation.tasks import Pools
from citeweave.evaluation.texts import Texts
from citeweave.files import hash_json


class ByDistance:
    """One encoder, judged in both ways; probes get its vectors of whole papers."""

    def __init__(self, whole: Encoded, inside: SentenceLevel) -> None:
        self._whole, self._inside, self.name = whole, inside, whole.name
        self.revision = hash_json([whole.revision, inside.revision])[:16]
        self.distances: tuple[str, ...] = (*whole.distances, *inside.distances)
        self.counts: dict[str, dict[str, int]] = {}
        whole.counts = inside.counts = self.counts  # each has names of its own

    def resume_in(self, folder: Path | None) -> None:
        self._whole.resume_in(folder)
        self._inside.resume_in(folder)

    def facts(self) -> dict[str, Any]:
        return {**self._inside.facts(), **self._whole.facts(), "revision": self.revision}

    def vectors(self, texts: Texts) -> PaperVectors:
        return self._whole.vectors(texts)

    def scores(self, texts: Texts, pools: Pools, distance: str) -> NDArray[np.float64]:
        return self._answering(distance).scores(texts, pools, distance)

    def top(
        self, texts: Texts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return self._answering(distance).top(texts, queries, candidates, depth, distance)

    def _answering(self, distance: str) -> Judged:
        return self._whole if distance in self._whole.distances else self._inside
