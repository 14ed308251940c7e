from __future__ import annotations

import pytest

from citeweave.core.executor import LocalExecutor, ShardTask, resolve_maker

SQUARES = "citeweave.remote.ray_workers:squares"


def test_local_executor() -> None:
    assert list(LocalExecutor().make(ShardTask(SQUARES), [2, 0])) == [(2, b"4"), (0, b"0")]


@pytest.mark.parametrize(
    "maker",
    ["os:system", "citeweave.remote.ray_workers", "citeweave.remote.ray_workers:os", "citeweave.remote.ray_workers:x"],
)
def test_only_functions_of_this_package_are_called(maker: str) -> None:
    with pytest.raises(ValueError, match="is not a function of citeweave"):
        resolve_maker(maker)


def test_work_is_told_in_json_values() -> None:
    with pytest.raises(AssertionError, match="JSON"):
        ShardTask(SQUARES, {"numbers": (1, 2)})
