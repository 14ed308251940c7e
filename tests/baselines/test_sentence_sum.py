"""Sums of sentence vectors: every sentence is read once, and the sum has length 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from citeweave.baselines.fit import RandomOptions, RandomVectors
from citeweave.baselines.word_sums import SentenceSum
from citeweave.core.progress import QUIET, Reporter


class Listening:
    """Random vectors that remember what they read."""

    name, revision, dimension = "listening", "1", 6

    def __init__(self) -> None:
        self.read: list[str] = []
        self._inner = RandomVectors("", RandomOptions(dimension=6), 0)

    def encode(self, texts: Sequence[str], *, reporter: Reporter = QUIET) -> np.ndarray:
        self.read += texts
        return self._inner.encode(texts)


def test_the_sum_of_title_and_sentences():
    encoder = Listening()
    sums = SentenceSum(encoder)
    vectors = sums.encode(["A title[SEP]One is here. Two is there.", "", "One is here."])
    assert encoder.read == ["A title", "One is here.", "Two is there.", "One is here."]
    parts = encoder._inner.encode(["A title", "One is here.", "Two is there."])
    expected = parts.sum(axis=0)
    assert np.allclose(vectors[0], expected / np.linalg.norm(expected), atol=1e-5)
    assert not vectors[1].any() and np.allclose(vectors[2], parts[1] / np.linalg.norm(parts[1]), atol=1e-5)
    assert sums.name == "sentence_sum(listening)" and sums.dimension == 6 and vectors.dtype == np.float32
    assert sums.encode([]).shape == (0, 6)


def test_its_revision_follows_the_encoder():
    other = Listening()
    other.revision = "2"
    assert SentenceSum(Listening()).revision == SentenceSum(Listening()).revision != SentenceSum(other).revision
