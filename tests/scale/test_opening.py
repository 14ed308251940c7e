from __future__ import annotations

import pytest

from citeweave.core.errors import UserError
from citeweave.remote.ray_executor import open_executor
from citeweave.remote.ray_workers import ClusterOptions, parse_cluster_options


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("ray", ClusterOptions("local")),
        ("ray:local,workers=2,cpus=4", ClusterOptions("local", workers=2, cpus=4)),
        ("ray:auto", ClusterOptions("auto")),
        ("ray:10.0.0.5:6379", ClusterOptions("10.0.0.5:6379")),
        ("ray://10.0.0.5:10001, gpus=0.5, tries=1", ClusterOptions("ray://10.0.0.5:10001", gpus=0.5, tries=1)),
    ],
)
def test_what_on_means(text: str, meant: ClusterOptions) -> None:
    assert parse_cluster_options(text) == meant


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("spark", "--on is 'spark'; it must be ray, ray:local"),
        ("ray,wrokers=2", "Did you mean 'workers'"),
        ("ray,workers=two", "workers is 'two'; it must be a number"),
        ("ray,cpus=0", "cpus is 0; it must be at least 1"),
        ("ray,gpus=-1", "gpus is -1.0"),
        ("ray,gpus=nan", "gpus is nan"),
        ("ray,gpus=1.5", "gpus is 1.5; over 1 it must be a whole number"),
    ],
)
def test_what_on_cannot_mean(text: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        parse_cluster_options(text)


def test_without_on_there_is_no_executor() -> None:
    with open_executor("") as executor:
        assert executor is None
