from __future__ import annotations

import os
from pathlib import Path

import pytest

from citeweave.remote.ray_workers import ShardWorker, WorkerFailure, package_versions, version_differences

SQUARES = "citeweave.remote.ray_workers:squares"


def test_a_worker_says_who_it_is_and_makes_shards() -> None:
    worker = ShardWorker()
    assert version_differences(package_versions(), worker.hello()) == []
    assert worker.prepare(SQUARES, {"failing": [2], "full": [4]}) == 1
    assert worker.make(3) == b"9"
    assert worker.make(2) == WorkerFailure(False, "ValueError: number 2 fails")
    assert worker.make(4) == WorkerFailure(True, "OSError: [Errno 28] No space left on device")


def test_a_worker_without_a_card_sees_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for cards, seen in ((True, "0,1"), (False, "")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        ShardWorker().prepare(SQUARES, {}, cards=cards)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == seen


def test_work_that_cannot_be_opened_is_the_nodes_fault(tmp_path: Path) -> None:
    told = f"{tmp_path / 'x'} does not exist; give a folder that holds a corpus"
    assert ShardWorker().prepare(SQUARES, {"needs": str(tmp_path / "x")}) == WorkerFailure(True, told)
    assert ShardWorker().prepare("os:system", {}) == WorkerFailure(
        True, "ValueError: 'os:system' is not a function of citeweave"
    )


def test_another_source_is_another_version() -> None:
    ours = package_versions()
    assert version_differences(ours, ours) == []
    assert version_differences(ours, ours | {"citeweave": "0.1.0 (00000000)"})[0].startswith("citeweave is ")
