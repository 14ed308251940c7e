"""A teacher's vectors as training data: of papers, and of sentences where these are taught too.

    Vectors              of papers, such as a graph's node vectors or an output of `citeweave embed`
    SentenceVectors      of sentences, with the paper's own vector before them (`citeweave embed --sentences --with-paper`)

A teacher's vectors may have any dimension: losses compare them with each other, never with the student's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.encoders.sentence_encoder import PAPER_ROW
from citeweave.training.data import Numbers, SentenceSpans
from citeweave.vectors.sentence_vectors import SentenceVectors

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.vectors.vectors import Vectors


def load_teacher(
    corpus: Corpus, vectors: Vectors | SentenceVectors | None, rows: Numbers
) -> NDArray[np.float32] | None:
    """Load the teacher's vectors of the papers, (papers, its dimension); zeros where it has none."""
    if vectors is None:
        return None
    at = vectors.rows(corpus.ids.take(rows))  # (papers,)
    if isinstance(vectors, SentenceVectors):
        at = _paper_rows(vectors, at)
    if not (at >= 0).any():
        raise UserError("the teacher has no vector of any paper of the samples; give vectors of this corpus")
    matrix = np.asarray(vectors.matrix[np.maximum(at, 0)], np.float32)
    matrix[at < 0] = 0
    return matrix


def _paper_rows(vectors: SentenceVectors, papers: Numbers) -> Numbers:
    """Return the row of each paper's own vector among sentence vectors, -1 where it has none."""
    first = np.where(papers >= 0, vectors.offsets[np.maximum(papers, 0)], len(vectors.numbers))
    inside = first < np.append(vectors.offsets[1:], 0)[papers]
    is_own = np.append(vectors.numbers, 0)[np.where(inside, first, -1)] == PAPER_ROW
    return np.where(is_own, first, -1)


def load_teacher_sentences(
    corpus: Corpus,
    vectors: Vectors | SentenceVectors | None,
    rows: Numbers,
    spans: SentenceSpans | None,
) -> NDArray[np.float16]:
    """Load the teacher's vectors of the sentences, (sentences, its dimension); zeros where it has none."""
    assert spans is not None, "a loss that teaches sentences reads them"
    if not isinstance(vectors, SentenceVectors):
        raise UserError(
            "training.losses.similarity.sentences is set, and the teacher has vectors of papers only; give --teacher a folder "
            "of `citeweave embed --sentences --with-paper`, or leave it at 0"
        )
    papers = vectors.rows(corpus.ids.take(rows))
    at = np.full(int(spans.offsets[-1]), -1, np.int64)  # (sentences,)
    for paper, known in enumerate(papers.tolist()):
        if known >= 0:
            begin, end = int(vectors.offsets[known]), int(vectors.offsets[known + 1])
            numbers = {number: begin + place for place, number in enumerate(vectors.numbers[begin:end].tolist())}
            own = slice(int(spans.offsets[paper]), int(spans.offsets[paper + 1]))
            at[own] = [numbers.get(number, -1) if number >= 0 else -1 for number in spans.numbers[own].tolist()]
    matrix = np.asarray(vectors.matrix[np.maximum(at, 0)], np.float16)
    matrix[at < 0] = 0
    return matrix
