from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from citeweave.core.columns import write_numbers
from citeweave.core.errors import ArtifactError
from citeweave.corpus.corpus import IdIndex


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 100, 5000])
def test_every_key_is_found_and_no_other(tmp_path: Path, size: int) -> None:
    rng = np.random.default_rng(size)
    keys = np.unique(rng.integers(1, 2**64, size, dtype=np.uint64))
    rows = rng.permutation(len(keys)).astype(np.int32)
    IdIndex.of(keys, rows).save(tmp_path)
    index = IdIndex.open(tmp_path)
    assert index.rows_of(keys).tolist() == rows.tolist()
    others = np.setdiff1d(rng.integers(1, 2**64, 1000, dtype=np.uint64), keys)
    assert (index.rows_of(others) == -1).all()
    edges = np.array([1, 2**64 - 1], np.uint64)
    assert index.rows_of(edges).tolist() == [int(rows[keys.tolist().index(e)]) if e in keys else -1 for e in edges]


def test_tables_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    keys = np.arange(1, 100, dtype=np.uint64) << np.uint64(50)
    IdIndex.of(keys, np.arange(99, dtype=np.int32)).save(tmp_path)
    starts = np.load(tmp_path / "starts.npy").copy()
    starts[1] = 10**9
    write_numbers(tmp_path / "starts.npy", starts)
    with pytest.raises(ArtifactError, match="damaged"):
        IdIndex.open(tmp_path)
