"""BM25 as a judged ranker: words alone, the baseline of every search task."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.text import SEPARATOR
from citeweave.evaluation.judged import NoAnswerError, PaperVectors
from citeweave.evaluation.tasks import Pools
from citeweave.evaluation.texts import Texts
from citeweave.similarity.lexical import Bm25


class Lexical:
    """BM25 over title and abstract; word statistics are those of the suite's own texts."""

    name, revision = "bm25", "bm25"
    distances: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._index: tuple[str, Bm25, list[str]] | None = None

    def facts(self) -> dict[str, Any]:
        return {"name": self.name, "statistics": "of the suite's texts"}

    def vectors(self, texts: Texts) -> PaperVectors:
        raise NoAnswerError("bm25 has no vectors, so it can rank but not classify or regress")

    def scores(self, texts: Texts, pools: Pools, distance: str) -> NDArray[np.float64]:
        index, words = self._open(texts)
        queries = [words[row] for row in pools.queries.tolist()]
        scores = index.scores(queries, pools.offsets, pools.candidates)
        has_text = np.array([bool(text) for text in words])  # (rows,)
        answered = np.repeat(has_text[pools.queries], np.diff(pools.offsets)) & has_text[pools.candidates]
        return np.where(answered, scores, np.nan)

    def top(
        self, texts: Texts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        words = _words(texts)
        best = Bm25([words[row] for row in candidates.tolist()]).top([words[row] for row in queries.tolist()], depth)
        # a paper that shares no word with the question was not found
        found = best.scores > 0  # (queries, depth)
        return np.where(found, candidates[best.rows], -1), np.where(found, best.scores, np.nan)

    def _open(self, texts: Texts) -> tuple[Bm25, list[str]]:
        if self._index is None or self._index[0] != texts.hash:
            words = _words(texts)
            self._index = texts.hash, Bm25(words), words
        return self._index[1], self._index[2]


def _words(texts: Texts) -> list[str]:
    return [text.replace(SEPARATOR, " ") for text in texts.paper_texts()]
