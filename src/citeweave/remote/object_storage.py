"""Object storage through pyarrow: addresses, safe object names, reading, writing, listing, one-line errors.

    >>> address = Address.parse("s3://lab/papers/corpus/")
    >>> address.bucket, address.key, address.name, str(address / "year.npy")
    ('lab', 'papers/corpus', 'corpus', 's3://lab/papers/corpus/year.npy')

Endpoint, region and credentials come from the environment, as for every program that speaks S3:

    AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL      http(s)://host:port of a storage that is not Amazon's
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE, ~/.aws/, or the machine's own role
    AWS_REGION, AWS_DEFAULT_REGION
    AWS_NO_SIGN_REQUEST=yes                    public buckets, without credentials

Keys never appear in a message: of a storage's error only its kind is shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from citeweave.core.errors import InputError, UserError

_ADDRESS = re.compile(r"(s3|gs)://?(?!/)(.+)", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,220}[A-Za-z0-9]")
_WILD = re.compile(r"[*?\[]")
_UNSAFE_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line breaks, characters that change the direction of a text, and halves of characters."""

_MAX_PART, _MAX_KEY = 255, 1024


def is_address(text: object) -> bool:
    """Return whether a text or path names something on object storage; `Path("s3://a/b")` is `s3:/a/b`, which counts too.

    >>> is_address("s3://lab/corpus"), is_address(Path("gs://lab/corpus")), is_address("folder/s3"), is_address("s3:")
    (True, True, False, False)
    """
    return isinstance(text, str | Path) and _ADDRESS.fullmatch(str(text)) is not None


@dataclass(frozen=True, slots=True)
class Address:
    """An address on object storage, of an object or of all whose keys begin alike: scheme, bucket and key."""

    scheme: str
    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str | Path) -> Address:
        """Parse an object-storage address such as s3://bucket/folder; keys, passwords and bare buckets are refused."""
        match = _ADDRESS.fullmatch(str(text))
        if match is None:
            raise UserError(
                f"{str(text)[:200]!r} is not an address on object storage; give one such as s3://bucket/corpus"
            )
        scheme, rest = match.groups()
        if "@" in rest.partition("/")[0]:
            raise UserError(
                f"an address must not hold keys or passwords; name {scheme}://bucket/folder and set the environment "
                "variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        bucket, _, key = rest.rstrip("/").partition("/")
        if not _BUCKET.fullmatch(bucket):
            raise UserError(
                f"{scheme}://{bucket[:80]!r} is not the name of a bucket; give an address such as {scheme}://bucket/corpus"
            )
        if not key:
            raise UserError(
                f"{scheme}://{bucket} names only a bucket; name a folder in it, such as {scheme}://{bucket}/corpus"
            )
        check_object_name(key, f"{scheme}://{bucket}")
        return cls(scheme, bucket, key)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"

    def __truediv__(self, name: str) -> Address:
        return Address(self.scheme, self.bucket, f"{self.key}/{name}")

    @property
    def name(self) -> str:
        """Return the last part of the key: the name of a local folder or file for it."""
        return self.key.rpartition("/")[2]

    @property
    def path(self) -> str:
        """Return the address as pyarrow spells it: bucket/key."""
        return f"{self.bucket}/{self.key}" if self.key else self.bucket

    @property
    def is_pattern(self) -> bool:
        """Return whether the address stands for several objects: `*`, `?` and `[...]` as in a shell."""
        return _WILD.search(self.key) is not None

    def before_pattern(self) -> tuple[str, str]:
        """Return the folder of object storage to search, empty for the bucket itself, and the pattern within it.

        >>> Address.parse("s3://lab/dump/2026/part-*/x.gz").before_pattern()
        ('dump/2026', 'part-*/x.gz')
        """
        parts = self.key.split("/")
        first = next((place for place, part in enumerate(parts) if _WILD.search(part)), len(parts) - 1)
        return "/".join(parts[:first]), "/".join(parts[first:])


def check_object_name(name: str, place: object) -> str:
    """Return a name on object storage, refused where a file of that name would lie elsewhere or break a terminal.

    >>> check_object_name("papers/year.npy", "s3://lab/corpus")
    'papers/year.npy'
    >>> check_object_name("../year.npy", "s3://lab/corpus")
    Traceback (most recent call last):
    citeweave.core.errors.InputError: s3://lab/corpus holds an object named '../year.npy', which cannot be a file: ...
    """
    parts = name.encode("utf-8", "replace").split(b"/")
    is_safe = (
        all(part not in (b"", b".", b"..") and len(part) <= _MAX_PART for part in parts)
        and "\\" not in name
        and not PureWindowsPath(name).drive
        and not _UNSAFE_CHARACTERS.search(name)
        and len(b"/".join(parts)) <= _MAX_KEY
    )
    if not is_safe:
        raise InputError(
            f"{place} holds an object named {name[:200]!r}, which cannot be a file: names must be relative, without "
            "drives, '..', backslashes, line breaks and control characters; remove or rename it"
        )
    return name


def check_object_names(names: Iterable[str], place: object) -> None:
    """Check every name on object storage, and that none is a file and a folder at once."""
    known = {check_object_name(name, place) for name in names}
    parents = {"/".join(parts[:end]) for parts in (name.split("/") for name in known) for end in range(1, len(parts))}
    for both in sorted(parents & known):
        raise InputError(f"{place} holds {both!r} as an object and as a folder; remove or rename one of them")


# Reading, writing and listing objects.

CHUNK = 8 * 2**20
"""Bytes of an object in memory at a time, for each parallel transfer."""

MAX_MOVED_BYTES = 5 * 2**30
"""Largest object, in bytes, that S3 can copy by itself in one request."""

_CODE = re.compile(r"AWS Error ([A-Z_]+) during")
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_ACCESS_ERRORS = {
    "ACCESS_DENIED": "access is denied",
    "INVALID_ACCESS_KEY_ID": "the storage does not know the access key",
    "SIGNATURE_DOES_NOT_MATCH": "the secret key does not match the access key",
    "INVALID_SIGNATURE": "the secret key does not match the access key",
    "INVALID_CLIENT_TOKEN_ID": "the storage does not know the credentials",
    "UNRECOGNIZED_CLIENT": "the storage does not know the credentials",
    "MISSING_AUTHENTICATION_TOKEN": "the storage requires credentials",
    "REQUEST_EXPIRED": "the credentials have expired, or this machine's clock is wrong",
    "REQUEST_TIME_TOO_SKEWED": "this machine's clock is wrong",
}


class VanishedError(InputError):
    """An object does not exist, or is no longer the one that was listed a moment ago."""


class ObjectInfo(NamedTuple):
    """Size and modification time of an object on the storage."""

    bytes: int
    modified: int
    """Nanoseconds since 1970; most storages keep whole seconds."""


def endpoint() -> str:
    """Return the S3 endpoint if it is not Amazon's, `http(s)://host:port`, else an empty string."""
    return (os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "").rstrip("/")


def region() -> str:
    """Return the S3 region that the environment names."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""


def is_anonymous() -> bool:
    """Return whether requests to the storage go without credentials."""
    return os.environ.get("AWS_NO_SIGN_REQUEST", "").lower() in ("yes", "true", "1", "on")


def _file_system(address: Address) -> Any:
    """Return the pyarrow file system of an address, the same one as long as the environment is the same."""
    environment = hash(tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_"))))
    return _connect(address.scheme, "" if endpoint() else address.bucket, environment)


@lru_cache(maxsize=8)
def _connect(scheme: str, bucket: str, environment: int) -> Any:
    """Connect to a storage; `environment` only keeps cached connections apart."""
    from pyarrow import fs

    if scheme == "gs":
        return fs.GcsFileSystem(anonymous=is_anonymous(), retry_time_limit=timedelta(seconds=30))
    options: dict[str, Any] = {"region": region() or None}
    if endpoint():
        parts = urlsplit(endpoint())
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise UserError("AWS_ENDPOINT_URL must be http(s)://host:port, without a password; set it again")
        # without a region the machine's metadata service is asked, which takes seconds
        options = {
            "endpoint_override": parts.netloc + parts.path,
            "scheme": parts.scheme,
            "region": region() or "us-east-1",
        }
    elif not region() and "AWS_PROFILE" not in os.environ:
        with suppress(OSError):  # the first request gives a better error
            options["region"] = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(
        anonymous=is_anonymous(),
        connect_timeout=5,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=3),
        allow_delayed_open=True,  # a small object is one request
        background_writes=False,  # else parts of a large object pile up in memory faster than they are sent
        **options,
    )


@contextmanager
def _explain_errors(address: Address) -> Iterator[None]:
    """Turn errors of object storage inside the block into one line about the object."""
    try:
        yield
    except FileNotFoundError:
        raise VanishedError(f"{address} does not exist; check the address") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{address}: {_explain_error(address, str(error))}") from None


def _explain_error(address: Address, text: str) -> str:
    match = _CODE.search(text)
    code = match.group(1) if match else ""
    at_endpoint = f" at {endpoint()}" if endpoint() else ""
    if code == "NO_SUCH_BUCKET":
        return f"there is no bucket {address.bucket!r}{at_endpoint}; check its name and AWS_ENDPOINT_URL"
    if code in _ACCESS_ERRORS:
        files = [Path.home() / ".aws" / name for name in ("credentials", "config")]
        if not any(os.environ.get(name) for name in _CREDENTIALS) and not any(path.is_file() for path in files):
            return "no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        return f"{_ACCESS_ERRORS[code]}; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_PROFILE, and the policy"
    if code == "NETWORK_CONNECTION":
        return f"the storage cannot be reached{at_endpoint}; check AWS_ENDPOINT_URL and the network, and try again"
    if code in ("SLOW_DOWN", "THROTTLING", "SERVICE_UNAVAILABLE", "INTERNAL_FAILURE", "REQUEST_TIMEOUT"):
        return f"the storage failed ({code.lower()}); try again later, what has arrived is kept"
    if "HTTP status 301" in text or "configured region" in text:
        return f"the bucket lies in another region than {region() or 'the default'}; set AWS_REGION"
    return f"the storage refused ({code.lower() or 'no reason given'}); check the address and the credentials"


def list_objects(address: Address) -> dict[str, ObjectInfo]:
    """Return the objects on storage below an address by their relative names, sorted; empty where there are none."""
    from pyarrow import fs

    with _explain_errors(address):
        try:
            # with `allow_not_found` a missing bucket would pass for an empty folder
            infos = _file_system(address).get_file_info(fs.FileSelector(address.path, recursive=True))
        except FileNotFoundError:
            return {}
    found = {info.path.removeprefix(f"{address.path}/"): _info(info) for info in infos if info.is_file}
    return dict(sorted(found.items()))


def stat_object(address: Address) -> ObjectInfo | None:
    """Return size and modification time of one object on storage, None where there is none."""
    with _explain_errors(address):
        info = _file_system(address).get_file_info(address.path)
    return _info(info) if info.is_file else None


def _info(info: Any) -> ObjectInfo:
    return ObjectInfo(info.size, info.mtime_ns or 0)


class ObjectStream:
    """Bytes of an object that is read ("r") or written ("w"); it exists once closed, even by an error, with what arrived."""

    def __init__(self, address: Address, mode: str) -> None:
        self._address = address
        with _explain_errors(address):
            system = _file_system(address)
            opened = system.open_input_stream if mode == "r" else system.open_output_stream
            self._stream = opened(address.path, compression=None)  # pyarrow would decompress what is called .gz

    def read(self, size: int) -> bytes:
        with _explain_errors(self._address):
            return bytes(self._stream.read(size))

    def write(self, data: bytes) -> None:
        with _explain_errors(self._address):
            self._stream.write(data)

    def __enter__(self) -> ObjectStream:
        return self

    def __exit__(self, *error: object) -> None:
        with _explain_errors(self._address):
            self._stream.close()


def read_small_object(address: Address, max_bytes: int = 256 * 2**20) -> bytes | None:
    """Return the bytes of a small object on storage, None where there is none."""
    try:
        with ObjectStream(address, "r") as stream:
            data = stream.read(max_bytes + 1)
    except VanishedError:
        return None
    if len(data) > max_bytes:
        raise InputError(f"{address} is larger than {max_bytes >> 20} MiB and should not be; it is damaged")
    return data


def write_small_object(address: Address, data: bytes) -> None:
    with ObjectStream(address, "w") as stream:
        stream.write(data)


def remove_object(address: Address) -> None:
    with suppress(VanishedError), _explain_errors(address):
        _file_system(address).delete_file(address.path)


def move_object(source: Address, target: Address) -> None:
    """Rename an object within the storage, replacing the target; at most `MAX_MOVED_BYTES` bytes."""
    with _explain_errors(target):
        _file_system(source).move(source.path, target.path)
