"""Names of things on object storage, and which names of objects may become names of files.

    >>> address = Address.parse("s3://lab/papers/corpus/")
    >>> address.bucket, address.key, address.name, str(address / "year.npy")
    ('lab', 'papers/corpus', 'corpus', 's3://lab/papers/corpus/year.npy')

Does not ask whether anything is there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

from citeweave.errors import InputError, UserError

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
    citeweave.errors.InputError: s3://lab/corpus holds an object named '../year.npy', which cannot be a file: ...
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
