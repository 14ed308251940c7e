"""Papers that were found, in another order: scores of their sentences by a distance between papers.

    rerank(query, sentences, offsets, DocumentDistance("transport"))      (papers,), minus the distance

The sentences are given, not looked up, because they may lie in several folders. The numbers are those of
`transport.py`, which computes them; a hundred papers of seven sentences take about 3 ms. Needs torch (the extra minilm).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import UserError
from citeweave.similarity.provenance import Provenance
from citeweave.similarity.sentence_vectors import SentenceVectors
from citeweave.similarity.transport import DocumentDistance, PlacedSentences


def rerank(
    query: NDArray[np.floating[Any]],
    sentences: NDArray[np.floating[Any]] | Sequence[NDArray[np.floating[Any]]],
    offsets: NDArray[np.integer[Any]] | None,
    distance: DocumentDistance,
) -> NDArray[np.float64]:
    """Scores of a query (sentences, dimension) with papers, (papers,); -inf where a side has no sentence.

    Paper i has sentences[offsets[i] : offsets[i + 1]]; or `offsets` is None and `sentences` has one matrix a paper.
    """
    if offsets is None:
        papers = [np.asarray(paper) for paper in sentences]
        matrix = np.concatenate([np.empty((0, query.shape[1]), query.dtype), *papers])
        ends = np.cumsum([0, *map(len, papers)])
    else:
        matrix, ends = np.asarray(sentences), np.asarray(offsets, np.int64)
        if len(ends) == 0 or ends[0] < 0 or ends[-1] > len(matrix) or (np.diff(ends) < 0).any():
            raise UserError(f"offsets do not grow from 0 to {len(matrix):,}, the number of sentences; make them again")
    count = len(ends) - 1
    if not count:
        return np.empty(0)
    if matrix.dtype not in (np.float16, np.float32):
        matrix = matrix.astype(np.float32)
    # an error names a paper by its number
    names, numbers = [f"candidate {at}" for at in range(count)], np.zeros(len(matrix), np.int32)
    vectors = SentenceVectors(
        names, ends, matrix, numbers, Provenance("", "", "", matrix.shape[1], str(matrix.dtype), "")
    )
    return PlacedSentences(vectors, "cpu").scores(query, np.arange(count), distance)
