"""Reciprocal rank fusion against its formula."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave.core.errors import UserError
from citeweave.search.rankings import K, fuse_rankings

RANKINGS = st.lists(st.lists(st.integers(0, 12), unique=True, max_size=8), min_size=1, max_size=3)


@given(RANKINGS, st.data())
def test_scores_follow_the_formula(rankings, data):
    weights = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=len(rankings), max_size=len(rankings)))
    expected = {}
    for row in range(13):
        parts = [w / (60 + r.index(row) + 1) for r, w in zip(rankings, weights, strict=True) if row in r]
        if sum(parts) > 0:
            expected[row] = sum(parts)
    found = fuse_rankings(
        [np.array(ranking, np.int64) for ranking in rankings], 50, weights, name=lambda row: f"{99 - row}"
    )
    assert {one.item: one.score for one in found} == pytest.approx(expected)
    assert [(-one.score, -one.item) for one in found] == sorted((-one.score, -one.item) for one in found)
    assert [one.item for one in fuse_rankings(rankings, 3, weights, name=lambda row: f"{99 - row}")] == [
        one.item for one in found[:3]
    ]


def test_equal_scores_are_ordered_by_id():
    found = fuse_rankings([[1, 2], [2, 1], [3]], 3, name={1: "z", 2: "a", 3: "b"}.__getitem__)
    assert [one.item for one in found] == [2, 1, 3] and found[0].score == found[1].score
    assert found[2].ranks == (None, None, 1) and found[2].score == 1 / (K + 1)


def test_of_a_row_named_twice_the_first_place_counts():
    assert fuse_rankings([["a", "b", "a"]], 5)[0].ranks == (1,)


def test_nothing_to_fuse():
    assert (
        fuse_rankings([], 5)
        == fuse_rankings([[], []], 5)
        == fuse_rankings([["a"]], 0)
        == fuse_rankings([["a"]], 5, [0.0])
        == []
    )


@pytest.mark.parametrize(
    ("weights", "match"), [([1.0], "1 weights for 2"), ([1, -1], "negative"), ([1, np.nan], "nega")]
)
def test_bad_weights_are_refused(weights, match):
    with pytest.raises(UserError, match=match):
        fuse_rankings([["a"], ["b"]], 1, weights)
