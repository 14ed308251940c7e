"""Processes of one attempt find each other, whatever an earlier attempt has left in the store."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from torch.distributed import HashStore  # noqa: E402

from citeweave.core.errors import CiteweaveError  # noqa: E402
from citeweave.training.distributed import agree_on_attempt  # noqa: E402

LIMIT = timedelta(seconds=20)


def _attempt(store: HashStore, order: list[int]) -> list[str]:
    with ThreadPoolExecutor(len(order)) as pool:
        return list(pool.map(lambda rank: agree_on_attempt(store, rank, len(order), LIMIT), order))


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_every_attempt_has_a_name_of_its_own(order: list[int]) -> None:
    store, seen = HashStore(), set()
    for _ in range(4):
        names = _attempt(store, order)
        assert len(set(names)) == 1
        seen.add(names[0])
    assert len(seen) == 4


def test_an_earlier_attempt_is_not_taken_for_this_one() -> None:
    store = HashStore()
    store.set("name", "old")
    store.set("come/1", json.dumps(["old", "word"]))
    store.set("answer/old", json.dumps({"1": "word"}))
    with pytest.raises(CiteweaveError, match="process 1 of 2 has waited"):
        agree_on_attempt(store, 1, 2, timedelta(seconds=0.2))
    with pytest.raises(CiteweaveError, match="process 0 of 2 has waited"):
        agree_on_attempt(store, 0, 2, timedelta(seconds=0.2))
