"""Batches: every text once, never more tokens than the budget."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from citeweave.encoders.batches import batches


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 200))
def test_every_text_is_in_one_batch_within_the_budget(lengths, budget):
    sizes = np.array(lengths, np.int64)
    found = [batch.tolist() for batch in batches(sizes, budget)]
    assert sorted(row for batch in found for row in batch) == np.flatnonzero(sizes).tolist()
    for batch in found:
        assert len(batch) == 1 or len(batch) * sizes[batch].max() <= budget
    ordered = [sizes[row] for batch in found for row in batch]
    assert ordered == sorted(ordered, reverse=True)
