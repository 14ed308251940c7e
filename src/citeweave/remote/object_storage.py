"""Names of things on object storage, and which names of objects may become names of files.

    >>> address = Address.parse("s3://lab/papers/corpus/")
    >>> address.bucket, address.key, address.name, str(address / "year.npy")
    ('lab', 'papers/corpus', 'corpus', 's3://lab/papers/corpus/year.npy')

Does not ask whether anything is there.

Reading, writing and listing objects through pyarrow, with its errors told in one line.

Endpoint, region and credentials come from the environment, as for every program that speaks S3:

    AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL      http(s)://host:port of a storage that is not Amazon's
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE, ~/.aws/, or the machine's own role
    AWS_REGION, AWS_DEFAULT_REGION
    AWS_NO_SIGN_REQUEST=yes                    public buckets, without credentials

Keys never stand in a message: of what a storage answers only the kind of error is shown.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from citeweave.core.errors import InputError, UserError

SCHEMES = ("s3", "gs")

_ADDRESS = re.compile(r"(s3|gs)://?(?!/)(.+)", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,220}[A-Za-z0-9]")
_WILD = re.compile(r"[*?\[]")
_BREAKS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters, line breaks, and what turns the direction of a text."""

_LONGEST_PART, _LONGEST_KEY = 255, 1024


def is_address(text: object) -> bool:
    """Whether a text or path names something on object storage. `Path("s3://a/b")` is `s3:/a/b`, which counts too.

    >>> is_address("s3://lab/corpus"), is_address(Path("gs://lab/corpus")), is_address("folder/s3"), is_address("s3:")
    (True, True, False, False)
    """
    return isinstance(text, str | Path) and _ADDRESS.fullmatch(str(text)) is not None


@dataclass(frozen=True, slots=True)
class Address:
    """An object, or all objects whose keys begin alike."""

    scheme: str
    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str | Path) -> Address:
        found = _ADDRESS.fullmatch(str(text))
        if found is None:
            raise UserError(f"{str(text)[:200]!r} is no address of an object storage; give such as s3://bucket/corpus")
        scheme, rest = found.groups()
        if "@" in rest.partition("/")[0]:
            raise UserError(
                f"an address must not hold keys or passwords; name {scheme}://bucket/folder and set the environment "
                "variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        bucket, _, key = rest.rstrip("/").partition("/")
        if not _BUCKET.fullmatch(bucket):
            raise UserError(f"{scheme}://{bucket[:80]!r} is no name of a bucket; give such as {scheme}://bucket/corpus")
        if not key:
            raise UserError(
                f"{scheme}://{bucket} is a whole bucket; name a folder in it, such as {scheme}://{bucket}/corpus"
            )
        check_name(key, f"{scheme}://{bucket}")
        return cls(scheme, bucket, key)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"

    def __truediv__(self, name: str) -> Address:
        return Address(self.scheme, self.bucket, f"{self.key}/{name}")

    @property
    def name(self) -> str:
        """What a folder or file of it is called here."""
        return self.key.rpartition("/")[2]

    @property
    def path(self) -> str:
        """As pyarrow names it."""
        return f"{self.bucket}/{self.key}" if self.key else self.bucket

    @property
    def is_pattern(self) -> bool:
        """Whether it stands for several objects: `*`, `?` and `[...]` as in a shell."""
        return _WILD.search(self.key) is not None

    def before_pattern(self) -> tuple[str, str]:
        """The folder in which to look, empty for the whole bucket, and the pattern within it.

        >>> Address.parse("s3://lab/dump/2026/part-*/x.gz").before_pattern()
        ('dump/2026', 'part-*/x.gz')
        """
        parts = self.key.split("/")
        first = next((place for place, part in enumerate(parts) if _WILD.search(part)), len(parts) - 1)
        return "/".join(parts[:first]), "/".join(parts[first:])


def check_name(name: str, place: object) -> str:
    """The name of an object within a folder, refused where a file of that name would lie elsewhere or break a terminal.

    >>> check_name("papers/year.npy", "s3://lab/corpus")
    'papers/year.npy'
    >>> check_name("../year.npy", "s3://lab/corpus")
    Traceback (most recent call last):
    citeweave.core.errors.InputError: s3://lab/corpus holds an object named '../year.npy', which cannot be a file: ...
    """
    parts = name.split("/")
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        encoded = b""
    sound = (
        all(part not in ("", ".", "..") and len(part.encode("utf-8", "replace")) <= _LONGEST_PART for part in parts)
        and "\\" not in name
        and not PureWindowsPath(name).drive
        and not _BREAKS.search(name)
        and 0 < len(encoded) <= _LONGEST_KEY
    )
    if not sound:
        raise InputError(
            f"{place} holds an object named {name[:200]!r}, which cannot be a file: names must be relative, without "
            "drives, '..', backslashes, line breaks and control characters; remove or rename it"
        )
    return name


def check_names(names: list[str], place: object) -> None:
    """Check every name, and that none is a file and a folder at once."""
    known = {check_name(name, place) for name in names}
    for name in names:
        above = name.rpartition("/")[0]
        while above:
            if above in known:
                raise InputError(f"{place} holds {above!r} as an object and as a folder; remove or rename one of them")
            above = above.rpartition("/")[0]


# Reading, writing and listing objects through pyarrow, with its errors told in one line.

CONNECT_SECONDS = 5
ATTEMPTS = 3
CHUNK = 8 * 2**20
"""Bytes of an object in memory at a time, for each of those that travel at once."""

MOST_MOVED = 5 * 2**30
"""Bytes of an object that S3 can copy by itself in one request."""

_CODE = re.compile(r"AWS Error ([A-Z_]+) during")
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_NOT_LET_IN = {
    "ACCESS_DENIED": "access is denied",
    "INVALID_ACCESS_KEY_ID": "the storage does not know the access key",
    "SIGNATURE_DOES_NOT_MATCH": "the secret key does not fit the access key",
    "INVALID_SIGNATURE": "the secret key does not fit the access key",
    "INVALID_CLIENT_TOKEN_ID": "the storage does not know the credentials",
    "UNRECOGNIZED_CLIENT": "the storage does not know the credentials",
    "MISSING_AUTHENTICATION_TOKEN": "the storage wants credentials",
    "REQUEST_EXPIRED": "the credentials have expired, or this machine's clock is wrong",
    "REQUEST_TIME_TOO_SKEWED": "this machine's clock is wrong",
}


class VanishedError(InputError):
    """An object that was listed a moment ago is not there."""


class TransferStoppedError(Exception):
    """Another file failed, or somebody pressed Ctrl-C: this one is not wanted any more."""


class Stored(NamedTuple):
    """An object in a listing."""

    bytes: int
    modified: int
    """Nanoseconds since 1970; most storages know whole seconds."""


def endpoint() -> str:
    """Where S3 is spoken other than at Amazon's: `http(s)://host:port`, empty for Amazon."""
    return (os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "").rstrip("/")


def region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""


def is_anonymous() -> bool:
    return os.environ.get("AWS_NO_SIGN_REQUEST", "").lower() in ("yes", "true", "1", "on")


def system_of(address: Address) -> Any:
    """pyarrow's file system of an address."""
    if address.scheme == "gs":
        return _google(is_anonymous())
    keys = tuple(os.environ.get(name, "") for name in (*_CREDENTIALS, "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"))
    own = endpoint()
    return _amazon(own, region(), "" if own else address.bucket, is_anonymous(), hash(keys))


@lru_cache(maxsize=8)
def _amazon(own: str, where: str, bucket: str, anonymous: bool, credentials: int) -> Any:
    """`bucket` and `credentials` only tell the systems apart: another key, another system."""
    from pyarrow import fs

    given: dict[str, Any] = {}
    if own:
        parts = urlsplit(own)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise UserError("AWS_ENDPOINT_URL must be http(s)://host:port, without a password; set it again")
        given = {"endpoint_override": parts.netloc + parts.path, "scheme": parts.scheme}
        where = where or "us-east-1"  # else the machine's metadata service is asked, for seconds
    elif not where and "AWS_PROFILE" not in os.environ:
        try:
            where = fs.resolve_s3_region(bucket)
        except OSError:
            where = ""  # told better by the first request
    return fs.S3FileSystem(
        region=where or None,
        anonymous=anonymous,
        connect_timeout=CONNECT_SECONDS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
        allow_delayed_open=True,  # a small object is one request
        background_writes=False,  # else parts of a large one pile up in memory faster than they leave
        **given,
    )


@lru_cache(maxsize=2)
def _google(anonymous: bool) -> Any:
    from pyarrow import fs

    return fs.GcsFileSystem(anonymous=anonymous, retry_time_limit=timedelta(seconds=30))


@contextmanager
def told(address: Address) -> Iterator[None]:
    """What goes wrong with an object inside is one line about it."""
    try:
        yield
    except FileNotFoundError:
        raise VanishedError(f"{address} is not there; check the address") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{address}: {_reason(address, str(error))}") from None


def _reason(address: Address, text: str) -> str:
    found = _CODE.search(text)
    code = found.group(1) if found else ""
    if code == "NO_SUCH_BUCKET":
        return f"there is no bucket {address.bucket!r}{_at()}; check its name and AWS_ENDPOINT_URL"
    if code in _NOT_LET_IN:
        if not _has_credentials():
            return "no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        return f"{_NOT_LET_IN[code]}; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_PROFILE, and the policy"
    if code == "NETWORK_CONNECTION":
        return f"the storage cannot be reached{_at()}; check AWS_ENDPOINT_URL and the network, and try again"
    if code in ("SLOW_DOWN", "THROTTLING", "SERVICE_UNAVAILABLE", "INTERNAL_FAILURE", "REQUEST_TIMEOUT"):
        return f"the storage failed ({code.lower()}); try again later, what has arrived is kept"
    if "HTTP status 301" in text or "configured region" in text:
        return f"the bucket lies in another region than {region() or 'the default'}; set AWS_REGION"
    return f"the storage refused ({code.lower() or 'no reason given'}); check the address and the credentials"


def _at() -> str:
    return f" at {endpoint()}" if endpoint() else ""


def _has_credentials() -> bool:
    files = [Path.home() / ".aws" / name for name in ("credentials", "config")]
    return any(os.environ.get(name) for name in _CREDENTIALS) or any(path.is_file() for path in files)


def list_objects(address: Address) -> dict[str, Stored]:
    """The objects below an address by their names within it, sorted; empty where there are none."""
    from pyarrow import fs

    below = f"{address.path}/"
    with told(address):
        try:
            # with `allow_not_found` a missing bucket would pass for an empty folder
            infos = system_of(address).get_file_info(fs.FileSelector(address.path, recursive=True))
        except FileNotFoundError:
            return {}
    files = [info for info in infos if info.type == fs.FileType.File]
    return {info.path.removeprefix(below): Stored(info.size, info.mtime_ns or 0) for info in sorted(files, key=_path)}


def _path(info: Any) -> str:
    return str(info.path)


def stat_object(address: Address) -> Stored | None:
    """One object, None where there is none."""
    from pyarrow import fs

    with told(address):
        info = system_of(address).get_file_info(address.path)
    return Stored(info.size, info.mtime_ns or 0) if info.type == fs.FileType.File else None


@contextmanager
def reading(address: Address) -> Iterator[Any]:
    """A stream of an object's bytes; `read` of it goes inside `told`."""
    with told(address):
        stream = system_of(address).open_input_stream(address.path, compression=None)
    with stream:
        yield stream


def read_small(address: Address, most: int = 256 * 2**20) -> bytes | None:
    """A small object as a whole, None where there is none."""
    try:
        with reading(address) as stream, told(address):
            data = bytes(stream.read(most + 1))
    except VanishedError:
        return None
    if len(data) > most:
        raise InputError(f"{address} is larger than {most >> 20} MiB, which it should not be; it is damaged")
    return data


def open_output(address: Address) -> Any:
    """A stream that makes an object when it is closed; its calls go inside `told`."""
    # pyarrow would compress what is called .gz, and what it opens decompress
    return system_of(address).open_output_stream(address.path, compression=None)


def write_small(address: Address, data: bytes) -> None:
    with told(address), open_output(address) as stream:
        stream.write(data)


def remove_object(address: Address) -> None:
    try:
        with told(address):
            system_of(address).delete_file(address.path)
    except VanishedError:
        pass


def move_object(source: Address, target: Address) -> None:
    """Give an object another name within the storage, in the place of what lies there; at most `MOST_MOVED` bytes."""
    with told(target):
        system_of(source).move(source.path, target.path)


class TransferProgress:
    """Advances a progress line from several threads, and tells them to stop."""

    def __init__(self, advance: Any) -> None:
        self._advance, self._lock = advance, threading.Lock()
        self.stopped = threading.Event()

    def add(self, amount: int) -> None:
        if self.stopped.is_set():
            raise TransferStoppedError
        with self._lock:
            self._advance(amount)
