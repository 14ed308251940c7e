"""Batches: every text once within the budget, smaller where memory is short; those that were saved are not computed again."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.progress import Reporter
from citeweave.encoders.batches import BatchResults, SavedBatches, batches, run_batches
from citeweave.encoders.embed import embed_texts

from .conftest import refused, watched


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 200))
def test_every_text_is_in_one_batch_within_the_budget(lengths, budget):
    sizes = np.array(lengths, np.int64)
    found = [batch.tolist() for batch in batches(sizes, budget)]
    assert sorted(row for batch in found for row in batch) == np.flatnonzero(sizes).tolist()
    for batch in found:
        assert len(batch) == 1 or len(batch) * sizes[batch].max() <= budget
    ordered = [sizes[row] for batch in found for row in batch]
    assert ordered == sorted(ordered, reverse=True)


TEXTS = ["the cell grows " * (1 + n % 8) for n in range(40)]
IDS = [f"p{n}" for n in range(40)]


@pytest.mark.parametrize("holds", [30, 100, 333])
def test_no_text_is_lost_where_memory_is_short(encoder, tmp_path, holds, capsys):
    small = watched(encoder, holds=holds)
    made = embed_texts(small, IDS, TEXTS, tmp_path / "v", text_recipe="", reporter=Reporter())
    assert list(made.ids) == IDS and small.network.refused
    np.testing.assert_allclose(made.matrix, encoder.encode(TEXTS), atol=1e-5)
    assert made.manifest.facts["out_of_memory"] == len(small.network.refused)
    assert capsys.readouterr().err.count("out of memory with a batch of") == len(small.network.refused)


def test_a_text_that_does_not_fit_alone_and_other_errors_are_not_swallowed(encoder, tmp_path):
    with pytest.raises(UserError, match="a single text of .* tokens does not fit; lower --max-tokens"):
        embed_texts(watched(encoder, holds=5), IDS, TEXTS, tmp_path / "v", text_recipe="")

    def fail(rows):
        raise RuntimeError("another error")

    refused("another error", run_batches, np.array([3, 4]), 10, fail, error=RuntimeError)


def test_the_budget_is_halved_until_the_batch_fits():
    seen: list[list[int]] = []

    def encode(rows):
        if len(rows) * 4 > 7:
            raise MemoryError
        seen.append(rows.tolist())

    assert run_batches(np.array([4, 4, 0, 4, 4, 4]), 1000, encode) == 2  # 20 tokens, then 8, then 4
    assert sorted(row for rows in seen for row in rows) == [0, 1, 3, 4, 5]


class Killed(RuntimeError):
    """Nobody gets the chance to save anything."""


def squares(saved: SavedBatches, texts: int = 20, dies_at: int = -1, largest: int = 4) -> tuple[np.ndarray, list[int]]:
    """The square of every row, four rows to a batch, and the rows that were computed now."""
    found, computed = np.zeros((texts, 1), np.int64), list[int]()

    def encode(rows):
        if len(rows) > largest:
            raise MemoryError
        if dies_at in rows.tolist():
            raise Killed
        computed.extend(rows.tolist())
        found[rows, 0] = rows**2

    run_batches(np.ones(texts, np.int64), 4, encode, results=BatchResults([found], lambda rows: [rows]), saved=saved)
    return found, computed


@pytest.mark.parametrize("step", [10.0, 1e6, -1e6])
def test_the_clock_decides_what_is_saved_and_nothing_else(tmp_path, step):
    """Also a clock that jumps, forward or backward: at worst batches are computed again."""
    seconds = itertools.count(0.0, step)
    with pytest.raises(Killed):
        squares(SavedBatches(tmp_path / "work", every=30.0, clock=lambda: next(seconds)), dies_at=18)
    found, computed = squares(SavedBatches(tmp_path / "work"))
    assert found[:, 0].tolist() == [row**2 for row in range(20)]
    first = {10.0: 12, 1e6: 16, -1e6: 0}[step]  # the clock is read once a batch, and once more where it saves
    assert computed == list(range(first, 20))


def test_a_budget_that_was_halved_stays_so(tmp_path):
    with pytest.raises(Killed):
        squares(SavedBatches(tmp_path / "work", every=0.0), dies_at=18, largest=2)
    again = SavedBatches(tmp_path / "work")
    found, computed = squares(again, largest=4)
    assert again.halved == 1 and computed == [18, 19] and found[-1, 0] == 361


def test_nothing_damaged_is_taken(tmp_path):
    with pytest.raises(Killed):
        squares(SavedBatches(tmp_path / "work", every=0.0), dies_at=18)
    first, second = tmp_path / "work.part-0-0.npz", tmp_path / "work.part-0-1.npz"
    kept = first.read_bytes()
    for damaged in (second.read_bytes(), kept[:-40], b"", kept.replace(b"rows.npy", b"bows.npy")):
        first.write_bytes(damaged)
        with pytest.raises(ArtifactError, match="work.part-0-0.npz, which an earlier run .* is damaged .*; remove it"):
            squares(SavedBatches(tmp_path / "work"))
    first.write_bytes(kept)
    with pytest.raises(ArtifactError, match="it names texts that it cannot hold|out of bounds"):
        squares(SavedBatches(tmp_path / "work"), texts=5)
    second.unlink()
    assert squares(SavedBatches(tmp_path / "work"))[1] == list(range(4, 20))
    assert [path.name for path in tmp_path.iterdir()] == [first.name], "the files behind a missing one are of no use"
