from __future__ import annotations

import pytest

from citeweave.crew import Alone, Work, resolve

SQUARES = "citeweave.scale.rehearsal:squares"


def test_alone() -> None:
    assert list(Alone().make(Work(SQUARES), [2, 0])) == [(2, b"4"), (0, b"0")]


@pytest.mark.parametrize(
    "maker", ["os:system", "citeweave.scale.rehearsal", "citeweave.scale.rehearsal:os", "citeweave.scale.rehearsal:x"]
)
def test_only_functions_of_this_package_are_called(maker: str) -> None:
    with pytest.raises(ValueError, match="is not a function of citeweave"):
        resolve(maker)


def test_work_is_told_in_json_values() -> None:
    with pytest.raises(AssertionError, match="JSON"):
        Work(SQUARES, {"numbers": (1, 2)})
