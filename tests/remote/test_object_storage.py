"""What can be wrong with a storage: one line that says so, within seconds, and never with a key in it."""

import re
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from citeweave.core.errors import InputError, UserError
from citeweave.remote.fetch import fetch
from citeweave.remote.object_storage import Address, check_object_name, is_address
from citeweave.remote.push import push

from ..faults.counted.services import LocalServer
from .conftest import KEY, SECRET


class _Refusing(BaseHTTPRequestHandler):
    """Answers everything with the error code of its server, and the key in it."""

    def do_GET(self) -> None:
        body = f"<Error><Code>{self.service.code}</Code><Message>{KEY} {SECRET}</Message></Error>".encode()
        self.send_response(403)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_PUT = do_POST = do_GET


@pytest.fixture
def refusing(bucket, monkeypatch):
    server = LocalServer(_Refusing)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.base)
    yield server
    server.close()


def error_of(address: str, folder: Path | None = None) -> str:
    with pytest.raises(UserError) as caught:
        fetch(address) if folder is None else push(folder, address)
    text = str(caught.value)
    assert "\n" not in text and KEY not in text and SECRET not in text
    return text


def test_what_does_not_exist(address, folder):
    assert "no object and no folder has this name" in error_of(address)
    assert "there is no bucket 'nobody-has-it' at http://127" in error_of("s3://nobody-has-it/x")
    assert "there is no bucket 'nobody-has-it'" in error_of("s3://nobody-has-it/x", folder)


ENDPOINTS = [
    ("http://127.0.0.1:1", "cannot be reached at http://127.0.0.1:1"),
    ("http://no-such-host.invalid", "cannot be reached at http://no-such-host.invalid"),
    ("ftp://host", "AWS_ENDPOINT_URL must be"),
    ("host:9000", "AWS_ENDPOINT_URL must be"),
    (f"http://{KEY}:{SECRET}@host", "AWS_ENDPOINT_URL must be"),
]


@pytest.mark.parametrize(("endpoint", "message"), ENDPOINTS)
def test_an_endpoint_that_does_not_exist(address, monkeypatch, endpoint, message):
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    begin = time.monotonic()
    assert message in error_of(address)
    assert time.monotonic() - begin < 300, "it tries again and again"


REFUSALS = [
    ("AccessDenied", "access is denied"),
    ("InvalidAccessKeyId", "does not know the access key|access is denied"),
    ("SignatureDoesNotMatch", "does not match the access key|access is denied"),
    ("SomethingNew", "access is denied|refused"),
]


@pytest.mark.parametrize(("code", "message"), REFUSALS)
def test_credentials_that_do_not_open(refusing, folder, code, message):
    refusing.code = code
    assert re.search(message, error_of("s3://somebodys/x"))
    assert re.search(message, error_of("s3://somebodys/x", folder))


@pytest.fixture
def no_keys(bucket, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))


def test_no_credentials(refusing, no_keys):
    refusing.code = "AccessDenied"
    assert "no credentials were found; set AWS_ACCESS_KEY_ID" in error_of("s3://somebodys/x")


def test_public_buckets_need_no_credentials(bucket, address, no_keys, monkeypatch):
    bucket.put_object(Key="thing", Body=b"x", ACL="public-read")
    bucket.Acl().put(ACL="public-read")
    monkeypatch.setenv("AWS_NO_SIGN_REQUEST", "yes")
    assert fetch(address).read_bytes() == b"x"


def test_what_is_an_address():
    assert is_address("s3://lab/x") and is_address(Path("s3://lab/x"))
    assert str(Address.parse(Path("s3://lab/x/y"))) == "s3://lab/x/y"
    assert not any(map(is_address, ["lab/x", "https://lab/x", "lance:s3://lab/x", "s3", "s3://", "s3:////x", 3, None]))
    for text in ["s3://a", "s3://lab", "s3://lab/", "s3://b_/x", "s3:///x", "s3://lab/../x", "s3://lab/a//b"]:
        with pytest.raises(UserError):
            Address.parse(text)
    assert "must not hold keys" in error_of(f"s3://{KEY}:{SECRET}@bucket/x")


def test_names_that_files_can_have():
    for name in ["a b", "ü/日本.npy", "...", "a..b/c", "-o", "~x"]:
        assert check_object_name(name, "s3://lab/x") == name
    bad = ["a" * 256, "x/" * 600 + "x", "a\x00b", "a\x7fb", "a\x9bb", "a\u2028b", "\u202eb", "\udc80", " \r"]
    for name in bad:
        with pytest.raises(InputError, match="cannot be a file"):
            check_object_name(name, "s3://lab/x")
