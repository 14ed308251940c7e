"""What can be wrong with a storage: one line that says so, within seconds, and never with a key in it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from citeweave.core.errors import InputError, UserError
from citeweave.remote.fetch import fetch
from citeweave.remote.object_storage import Address, check_object_name, is_address
from citeweave.remote.push import push

from .conftest import KEY, SECRET


class _Refusing(BaseHTTPRequestHandler):
    """Answers everything with the error that its server was told, and the key in it."""

    def do_GET(self) -> None:
        code = self.server.code  # type: ignore[attr-defined]
        body = f"<Error><Code>{code}</Code><Message>{KEY} {SECRET}</Message></Error>".encode()
        self.send_response(403)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_PUT = do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def refusing(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    yield server
    server.shutdown()


def said(address: str, folder: Path | None = None) -> str:
    with pytest.raises(UserError) as caught:
        fetch(address) if folder is None else push(folder, address)
    text = str(caught.value)
    assert "\n" not in text
    assert KEY not in text
    assert SECRET not in text
    return text


def test_a_bucket_that_is_not_there(bucket: Any, folder: Path) -> None:
    assert "there is no bucket 'nobody-has-it' at http://127" in said("s3://nobody-has-it/x")
    assert "there is no bucket 'nobody-has-it'" in said("s3://nobody-has-it/x", folder)


def test_nothing_at_an_address(bucket: Any) -> None:
    assert "no object and no folder has this name" in said(f"s3://{bucket.name}/x")


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "http://no-such-host.invalid"])
def test_an_endpoint_that_is_not_there(bucket: Any, monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    begin = time.monotonic()
    assert f"cannot be reached at {endpoint}" in said(f"s3://{bucket.name}/x")
    assert time.monotonic() - begin < 300, "it tries again and again"


@pytest.mark.parametrize("endpoint", ["ftp://host", "host:9000", f"http://{KEY}:{SECRET}@host"])
def test_an_endpoint_that_is_none(bucket: Any, monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    assert "AWS_ENDPOINT_URL must be" in said(f"s3://{bucket.name}/x")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("AccessDenied", "access is denied"),
        ("InvalidAccessKeyId", "does not know the access key|access is denied"),
        ("SignatureDoesNotMatch", "does not match the access key|access is denied"),
        ("SomethingNew", "access is denied|refused"),
    ],
)
def test_credentials_that_do_not_open(refusing: Any, folder: Path, code: str, told: str) -> None:
    refusing.code = code
    assert re.search(told, said("s3://somebodys/x"))
    assert re.search(told, said("s3://somebodys/x", folder))


def test_no_credentials(refusing: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refusing.code = "AccessDenied"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "no credentials were found; set AWS_ACCESS_KEY_ID" in said("s3://somebodys/x")


def test_public_buckets_need_none(bucket: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bucket.put_object(Key="x.txt", Body=b"x", ACL="public-read")
    bucket.Acl().put(ACL="public-read")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_NO_SIGN_REQUEST", "yes")
    assert fetch(f"s3://{bucket.name}/x.txt").read_bytes() == b"x"


@pytest.mark.parametrize(
    "text", ["s3://a", "s3://bucket", "s3://bucket/", "s3://b_/x", "s3:///x", "s3://bucket/../x", "s3://bucket/a//b"]
)
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(UserError):
        Address.parse(text)


def test_keys_in_an_address_are_refused_unseen() -> None:
    text = said(f"s3://{KEY}:{SECRET}@bucket/x")
    assert "must not hold keys" in text


def test_what_is_an_address() -> None:
    assert is_address("s3://lab/x")
    assert is_address(Path("s3://lab/x"))
    assert str(Address.parse(Path("s3://lab/x/y"))) == "s3://lab/x/y"
    assert not any(map(is_address, ["lab/x", "https://lab/x", "lance:s3://lab/x", "s3", "s3://", "s3:////x", 3, None]))


@pytest.mark.parametrize(
    "name", ["a" * 256, "x/" * 600 + "x", "a\x00b", "a\x7fb", "a\x9bb", "a\u2028b", "\u202eb", "\udc80", " \r"]
)
def test_names_that_no_file_can_have(name: str) -> None:
    with pytest.raises(InputError, match="cannot be a file"):
        check_object_name(name, "s3://lab/x")


@pytest.mark.parametrize("name", ["a b", "ü/日本.npy", "...", "a..b/c", "-o", "~x"])
def test_names_that_files_can_have(name: str) -> None:
    assert check_object_name(name, "s3://lab/x") == name
