"""An S3 server of this machine, with a bucket for each test; and a Ray cluster of two nodes on this machine."""

import logging
import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from threadpoolctl import threadpool_limits

from citeweave.core.artifact import new_artifact

KEY, SECRET = "AKIATESTTESTTEST", "aVerySecretSecretThatNobodyMaySee"
_NUMBERS = count()

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    pytest.importorskip("moto.server")
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").disabled = True
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    yield f"http://{host}:{port}"
    moto.stop()


@pytest.fixture
def bucket(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A new bucket, with the environment that leads to it, and a cache of its own."""
    boto3 = pytest.importorskip("boto3")
    for name in ("PROFILE", "ENDPOINT_URL_S3", "DEFAULT_REGION", "NO_SIGN_REQUEST", "SESSION_TOKEN"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    aws = {"ENDPOINT_URL": server, "ACCESS_KEY_ID": KEY, "SECRET_ACCESS_KEY": SECRET, "REGION": "us-east-1"}
    for name, value in aws.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("CITEWEAVE_CACHE", str(tmp_path / "cache"))
    resource = boto3.resource("s3", endpoint_url=server, region_name="us-east-1")
    return resource.create_bucket(Bucket=f"lab-{next(_NUMBERS)}")


@pytest.fixture
def address(bucket: Any) -> str:
    """Where most tests put their artifact."""
    return f"s3://{bucket.name}/thing"


@pytest.fixture
def put(bucket: Any) -> Callable[..., None]:
    """Upload objects, by another program than ours."""

    def upload(objects: dict[str, bytes], under: str = "thing/") -> None:
        for name, data in objects.items():
            bucket.put_object(Key=f"{under}{name}", Body=data)

    return upload


@pytest.fixture
def keys(bucket: Any) -> Callable[[], set[str]]:
    return lambda: {item.key for item in bucket.objects.all()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An artifact with a manifest and an inner folder."""
    return make_artifact(tmp_path / "made" / "thing", {"papers/year.npy": b"1999", "big.bin": bytes(50_000)})


def make_artifact(folder: Path, files: dict[str, bytes], **recipe: object) -> Path:
    with new_artifact(folder, "thing", 1, {"of": sorted(files), **recipe}, overwrite=True) as writer:
        for name, data in files.items():
            path = writer.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        writer.finish()
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """The address of a Ray cluster; its two nodes have one core each, and another value of CITEWEAVE_CACHE."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # 127.0.0.1 only
    os.environ.update({"RAY_worker_niceness": "0"})  # workers do not give way to other tests
    pytest.importorskip("ray", reason="pip install 'citeweave[ray]'")
    from ray.cluster_utils import Cluster

    made = Cluster()
    how = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
    try:
        for name in ("first", "second"):
            try:
                made.add_node(**how, env_vars={"CITEWEAVE_CACHE": f"/nowhere/{name}"})
            except Exception as error:  # no shared memory, no free ports: nothing that a test here could find out
                pytest.skip(f"Ray itself does not start on this machine: {error}")
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
