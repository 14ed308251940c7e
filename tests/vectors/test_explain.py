"""Explanations: the plan adds up to the distance that ranks, for every distance and for chosen sentences."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.core.errors import UserError
from citeweave.core.randomness import stream
from citeweave.vectors.document_distance import DISTANCES, DocumentDistance, document_scores, explain_pair
from citeweave.vectors.sentence_vectors import SentenceVectors

RNG = stream(0, "explaining")
PAPERS = SentenceVectors.of(
    ["long", "short", "empty"],
    [RNG.normal(size=(60, 4)), RNG.normal(size=(2, 4)), np.empty((0, 4))],
    numbers=[np.arange(60), np.array([1, 3]), np.empty(0, np.int64)],
)


@pytest.mark.parametrize("name", DISTANCES)
@pytest.mark.parametrize("chosen", [None, [3], [1, 7, 99]])
def test_the_plan_adds_up_to_the_score(name, chosen):
    distance = DocumentDistance(name, 0.5)
    found = explain_pair(PAPERS, "long", "short", distance, query_sentences=chosen)
    wanted = [None if chosen is None else np.array(chosen)]
    pair = np.array([0]), np.array([0, 1]), np.array([1])
    score = document_scores(PAPERS, *pair, distance, query_sentences=wanted)
    assert found.total == pytest.approx(-score[0], abs=1e-9)
    assert (found.plan * found.distances).sum() == pytest.approx(found.total, abs=1e-9)
    assert found.right.tolist() == [1, 3] and found.plan.shape == (len(found.left), 2)
    assert chosen is None or found.left.tolist() == [number for number in chosen if number < 60]
    if name == "transport":
        assert found.left_masses.sum() == pytest.approx(1, abs=1e-6)
    pairs = found.strongest(5)
    assert [pair.mass for pair in pairs] == sorted((pair.mass for pair in pairs), reverse=True)
    assert found.nearest.distance == found.distances.min() and found.nearest.right in (1, 3)


def test_papers_without_vectors_are_refused():
    for query, candidate, chosen, message in (
        ("long", "nobody", None, "'nobody' is none of the 3 papers"),
        (0, 2, None, "paper 'empty' has no sentence vectors"),
        (
            "short",
            "long",
            [0, 2],
            "none of the chosen sentences of paper 'short' has a vector; it has .* sentences 1, 3",
        ),
    ):
        with pytest.raises(UserError, match=message):
            explain_pair(PAPERS, query, candidate, DocumentDistance(), query_sentences=chosen)
