"""From work to seconds on a machine."""

from __future__ import annotations

import pytest

from citeweave.pipeline.cost import StageWork, as_bytes, as_time
from citeweave.pipeline.cost_constants import GIB, Machine, parse_machine


def test_cores_help_only_the_parallel_part() -> None:
    work = StageWork("a", "", cpu=100.0, parallel=0.75)
    assert work.seconds(parse_machine("cpu:1")) == pytest.approx(100)
    assert work.seconds(parse_machine("cpu:4")) == pytest.approx(25 + 75 / 4)
    assert work.seconds(parse_machine("cpu:9999")) > 25


def test_gathers_are_bound_by_memory() -> None:
    work = StageWork("a", "", cpu=1.0, moved=1e12)
    many = parse_machine("cpu:1000")
    assert work.seconds(many) == pytest.approx(1e12 / many.bandwidth)


def test_a_gpu_takes_the_place_of_cores_where_it_can() -> None:
    both, cores = StageWork("a", "", cpu=100.0, on_gpu=4.0), StageWork("b", "", cpu=100.0, parallel=0.0)
    assert both.seconds(parse_machine("h200")) == pytest.approx(4)
    assert both.seconds(parse_machine("8xh200")) == pytest.approx(0.5)
    assert both.seconds(parse_machine("laptop")) > 4
    assert cores.seconds(parse_machine("8xh200")) == pytest.approx(100)
    one = StageWork("a", "", cpu=100.0, on_gpu=4.0, gpus=1)
    assert one.seconds(parse_machine("8xh200")) == pytest.approx(4)


def test_what_does_not_fit_is_told() -> None:
    work = StageWork("a", "", memory=20 * GIB, on_gpu=1.0, gpu_memory=100e9)
    assert not StageWork("a", "", memory=16 * GIB).missing_memory(parse_machine("laptop"))
    assert work.missing_memory(parse_machine("laptop")) == "20 GB of memory, and the machine has 16 GB"
    card = Machine("m", 8, 64 * GIB, 1, "l4")
    assert work.missing_memory(card).startswith("93 GB of GPU memory, and a l4")
    assert not work.missing_memory(parse_machine("h200"))


def test_figures_are_short() -> None:
    assert [as_bytes(number) for number in (0, 1, 2**20, 1.5 * 2**30, 2**40)] == ["0", "1 MB", "1 MB", "1.5 GB", "1 TB"]
    assert [as_time(seconds) for seconds in (0, 89, 91, 86_400 * 400)] == [
        "under 1 s",
        "89 s",
        "1.52 min",
        "400.0 days",
    ]
