"""An S3 server of this machine, spoken to over HTTP; a bucket a test."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moto.server")
boto3 = pytest.importorskip("boto3")

KEY, SECRET = "AKIATESTTESTTEST", "aVerySecretSecretThatNobodyMaySee"
_NUMBERS = count()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
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
    for name in (
        "AWS_PROFILE",
        "AWS_ENDPOINT_URL_S3",
        "AWS_DEFAULT_REGION",
        "AWS_NO_SIGN_REQUEST",
        "AWS_SESSION_TOKEN",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("CITEWEAVE_CACHE", str(tmp_path / "cache"))
    resource = boto3.resource("s3", endpoint_url=server, region_name="us-east-1")
    return resource.create_bucket(Bucket=f"lab-{next(_NUMBERS)}")


@pytest.fixture
def keys(bucket: Any) -> Callable[[], set[str]]:
    return lambda: {item.key for item in bucket.objects.all()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An artifact with a manifest and an inner folder."""
    return make_artifact(tmp_path / "made" / "thing", {"papers/year.npy": b"1999", "big.bin": bytes(50_000)})


def make_artifact(folder: Path, files: dict[str, bytes], **recipe: object) -> Path:
    from citeweave.core.artifact import new_artifact

    with new_artifact(folder, "thing", 1, {"of": sorted(files), **recipe}, overwrite=True) as writer:
        for name, data in files.items():
            path = writer.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        writer.finish()
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
