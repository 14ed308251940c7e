"""Masking: shares, special tokens, and that nothing but the generator decides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.core.errors import UserError
from citeweave.core.randomness import stream
from citeweave.training.objective import mask_tokens

SPECIAL, MASK, VOCABULARY = [0, 1, 2], 3, 1000


def masked(tokens, seed=0, **options):
    return mask_tokens(tokens, SPECIAL, VOCABULARY, MASK, stream(seed, "masking"), **options)


def test_shares_are_berts():
    tokens = np.full(200_000, 500, np.uint16)
    found = masked(tokens)
    chosen = found.tokens[found.places]
    assert len(found.places) / len(tokens) == pytest.approx(0.15, abs=0.005)
    assert (chosen == MASK).mean() == pytest.approx(0.8, abs=0.01)
    assert (chosen == 500).mean() == pytest.approx(0.1, abs=0.01)
    drawn = chosen[(chosen != MASK) & (chosen != 500)]
    assert len(drawn) / len(chosen) == pytest.approx(0.1, abs=0.01)
    assert drawn.min() < 20 and 980 < drawn.max() < VOCABULARY


@settings(max_examples=50)
@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=50), st.integers(0, 9), st.sampled_from([0.0, 0.15, 1.0]))
def test_only_chosen_places_change_and_special_tokens_never(tokens, seed, share):
    tokens = np.array(tokens, np.int64)
    before = tokens.copy()
    found = masked(tokens, seed, share=share)
    assert np.array_equal(tokens, before)
    assert np.array_equal(found.targets, before[found.places])
    assert not np.isin(found.targets, SPECIAL).any()
    rest = np.ones(len(tokens), bool)
    rest[found.places] = False
    assert np.array_equal(found.tokens[rest], before[rest])
    if share == 1:
        assert np.array_equal(rest, np.isin(before, SPECIAL))


def test_the_draw_is_of_the_generator_alone():
    tokens = np.arange(100, 400)
    first, again, other = masked(tokens, 1), masked(tokens, 1), masked(tokens, 2)
    assert all(np.array_equal(x, y) for x, y in zip(first, again, strict=True))
    assert not np.array_equal(first.places, other.places)


def test_a_share_out_of_range_is_named():
    with pytest.raises(UserError, match="share of masked tokens is 15"):
        masked(np.arange(9), share=15)
