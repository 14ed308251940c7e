"""Machines by name and by parts."""

from __future__ import annotations

import pytest

from citeweave.core.errors import UserError
from citeweave.pipeline.cost_constants import (
    GIB,
    MACHINES,
    Machine,
    describe_this_machine,
    parse_machine,
)


@pytest.mark.parametrize(
    ("name", "cores", "gpus"),
    [("laptop", 8, 0), ("cpu:1", 1, 0), ("cpu:48", 48, 0), ("h200", 16, 1), ("8xh200", 128, 8), ("2xa100", 32, 2)],
)
def test_names(name: str, cores: int, gpus: int) -> None:
    found = parse_machine(name)
    assert (found.cores, found.gpus) == (cores, gpus)


def test_parts_replace_those_of_the_machine() -> None:
    found = parse_machine("cpu:2", memory=24 * GIB, gpu="l4", gpus=3)
    assert (found.cores, found.memory, found.gpus, found.gpu) == (2, 24 * GIB, 3, "l4")
    assert parse_machine("8xh200", gpus=0).gpu_speed == 0


def test_here_has_cores_and_memory() -> None:
    assert describe_this_machine().cores >= 1
    assert describe_this_machine().memory > 2**28


def test_a_gpu_counts_by_its_peak() -> None:
    assert parse_machine("h200").gpu_speed == 1
    assert 0.3 < parse_machine("a100").gpu_speed < 0.33
    assert parse_machine("8xh200").gpu_speed == 8


def test_bandwidth_ends() -> None:
    assert Machine("a", 2, 1.0).bandwidth < Machine("b", 8, 1.0).bandwidth < Machine("c", 1000, 1.0).bandwidth <= 1e12


@pytest.mark.parametrize("name", ["", "latop", "cpu:0", "cpu:-1", "cpu:x", "0xh200", "8xb200", "cpu", "8x"])
def test_unknown_ones_are_told_the_known(name: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_machine(name)
    assert all(known in str(caught.value) for known in MACHINES)


def test_wrong_parts() -> None:
    with pytest.raises(UserError, match="at least 1 core"):
        parse_machine("laptop", cores=0)
    with pytest.raises(UserError, match="--gpu is 'h300'.*h200"):
        parse_machine("laptop", gpu="h300")
