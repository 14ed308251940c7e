"""One Ray cluster of two nodes on this machine, for all tests of the room; a driver joins it in a second or two."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from threadpoolctl import threadpool_limits

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """Its address; the two nodes have one core each, and another value of CITEWEAVE_CACHE."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # 127.0.0.1 only
    os.environ.update({"RAY_worker_niceness": "0"})  # workers do not give way to other tests
    pytest.importorskip("ray", reason="pip install 'citeweave[ray]'")
    from ray.cluster_utils import Cluster

    made = Cluster()
    try:
        for name in ("first", "second"):
            _add_node(made, name)
        yield made.address
    finally:
        made.shutdown()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Here as in the workers, which have one core each: sums are rounded otherwise with other numbers of threads."""
    torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
    before = torch.get_num_threads()
    with threadpool_limits(1):
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(before)


def _add_node(cluster: Any, name: str) -> None:
    how = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
    try:
        cluster.add_node(**how, env_vars={"CITEWEAVE_CACHE": f"/nowhere/{name}"})
    except Exception as error:  # no shared memory, no free ports: nothing that a test here could find out
        pytest.skip(f"Ray itself does not start on this machine: {error}")
