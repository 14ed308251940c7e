"""Search in every space equals a comparison with every paper, by paper and by text."""

from __future__ import annotations

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.search.index_model import QueryEncoder
from citeweave.search.nearest import nearest_papers, search_paper, search_text


def brute_force(space: np.ndarray, query: np.ndarray, itself: int = -1) -> list[tuple[int, float]]:
    rows, query = space.astype(np.float64), query.astype(np.float64)
    scores = rows @ query / np.linalg.norm(rows, axis=1) / np.linalg.norm(query)
    ranked = sorted((-np.float32(score), row) for row, score in enumerate(scores) if row != itself)
    return [(row, -score) for score, row in ranked]


@pytest.mark.parametrize("aspect", ["", "background", "method", "result", "all"])
def test_by_paper(made, aspect):
    index = made.index
    space = index.take(np.arange(index.size), aspect)
    row = index.row("p:12")
    found = search_paper(index, "p:12", count=100, aspect=aspect)
    wanted = brute_force(space, space[row], row)
    assert [hit.row for hit in found] == [at for at, _ in wanted] and len(found) == len(index) - 1
    np.testing.assert_allclose([hit.score for hit in found], [score for _, score in wanted], atol=1e-6)


@pytest.mark.parametrize("aspect", ["", "method", "all"])
def test_by_text(made, aspect):
    text = "how the cell grows in data"
    encoded = made.reader.encoder.encode([text])
    query = made.index.heads.project(encoded, aspect)[0] if aspect else encoded[0]
    wanted = brute_force(made.index.take(np.arange(made.index.size), aspect), query)[:4]
    found = search_text(made.index, made.reader, f"  {text}\n", count=4, aspect=aspect)
    assert [hit.row for hit in found] == [at for at, _ in wanted]


@pytest.mark.parametrize("block", [1, 3, 7, 19, 100])
def test_blocks_change_nothing(made, block):
    """Papers 7 and 8 have one text: of equal vectors the lower row comes first, also from different blocks."""
    index = made.index
    row = index.row("p:3")
    query = index.take(np.array([row]), "all")[0]
    whole = nearest_papers(index, query, 19, "all", itself=row)
    parts = nearest_papers(index, query, 19, "all", itself=row, block=block)
    assert parts.rows.tolist() == whole.rows.tolist() and parts.scores.tolist() == whole.scores.tolist()
    twins, ranked = [index.row("p:7"), index.row("p:8")], parts.rows[0].tolist()
    first, second = map(ranked.index, twins)
    assert abs(first - second) == 1
    # a BLAS may round equal rows of a matrix in two ways
    assert first < second or not np.array_equal(*index.take(np.array(twins), "all"))


def test_a_paper_is_not_its_own_neighbor(made):
    assert [hit.id for hit in search_paper(made.index, "doi:10.1/seven", count=1)] == ["p:8"]
    found = search_paper(made.index, "p:7", count=18, aspect="all")
    assert "p:7" not in {hit.id for hit in found} and found[0].id == "p:8" and found[0].score == pytest.approx(1)


def test_mistakes(made):
    with pytest.raises(UserError, match="--aspect is 'methods'; it must be one of .*Did you mean 'method'"):
        search_paper(made.index, "p:7", aspect="methods")
    for count in (0, -1, 10**9):
        with pytest.raises(UserError, match="--count is"):
            search_paper(made.index, "p:7", count=count)
    for text in (" \n ", "!!!", "..."):
        with pytest.raises(UserError, match="holds no word"):
            search_text(made.index, made.reader, text)
    with pytest.raises(UserError, match="200,000 characters; give at most 100,000"):
        search_text(made.index, made.reader, "ab" * 100_000)


def test_another_runtime_is_no_other_model(made):
    """Only where it is asked for, and only of the same weights."""
    encoder = made.reader.encoder

    class Other:
        name, dimension, encode = encoder.name, encoder.dimension, encoder.encode

        def __init__(self, revision):
            self.revision = revision

    rounded = Other(f"{encoder.revision}-int8")
    assert QueryEncoder(made.index, rounded, any_runtime=True).encode("cells").shape == (encoder.dimension,)
    for other, any_runtime in ((rounded, False), (Other("77aa-int8"), True)):
        with pytest.raises(UserError, match="their vectors cannot be compared"):
            QueryEncoder(made.index, other, any_runtime=any_runtime)
