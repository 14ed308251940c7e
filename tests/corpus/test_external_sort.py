"""Sorting through files gives what sorting in memory gives."""

import resource

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from citeweave.corpus.external_sort import CitationCodes, ExternalSort, stable_order

DTYPE = np.dtype([("key", "<u8"), ("value", "<i8")])


@pytest.mark.parametrize("top", [2**64, 2**40, 1000])
@pytest.mark.parametrize("memory", [2**30, 10_000])
def test_blocks_come_in_order_and_whole(tmp_path, top, memory):
    rng = np.random.default_rng(0)
    keys = rng.integers(0, top, 5000, dtype=np.uint64, endpoint=False)
    sort = ExternalSort(tmp_path / "sort", DTYPE, key="key", top=top, expected=len(keys), memory=memory)
    for start in range(0, len(keys), 700):
        records = np.empty(len(keys[start : start + 700]), DTYPE)
        records["key"], records["value"] = keys[start : start + 700], np.arange(start, start + len(records))
        sort.add(records)
    blocks = list(sort.blocks())
    together = np.concatenate(blocks)
    expected = np.argsort(keys, kind="stable")
    assert together["value"].tolist() == expected.tolist()
    assert together["key"].tolist() == keys[expected].tolist()
    assert (len(blocks) > 1) == (memory < 2**20)
    assert not list((tmp_path / "sort").glob("*")) if (tmp_path / "sort").exists() else True


@given(st.lists(st.integers(0, 2**64 - 1)), st.booleans())
def test_stable_order_is_argsort(values, close):
    # `close` makes keys that differ in their lowest bits only, where shortened keys collide
    keys = np.array([v % 8 + 2**63 if close else v for v in values], np.uint64)
    assert stable_order(keys, 2**64).tolist() == np.argsort(keys, kind="stable").tolist()


def test_a_full_disk_is_an_error_and_loses_no_citation(tmp_path):
    """The system may take a part of what is to be written, and says so only by a number."""
    numbers, before = np.arange(300, dtype=np.uint64), resource.getrlimit(resource.RLIMIT_FSIZE)
    codes = CitationCodes(tmp_path / "codes", papers=1000, expected=1000, memory=2000)
    codes.add(numbers[:0])
    with pytest.raises(OSError, match="too large"):
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
            codes.add(numbers)
            list(codes.blocks())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
