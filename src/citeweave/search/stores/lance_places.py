"""Where a folder of LanceDB lies: here, or on object storage. Only what a store tells of itself goes through these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from citeweave.cloud.address import Address
from citeweave.cloud.storage import endpoint, is_anonymous, list_objects, read_small, region, write_small
from citeweave.errors import ArtefactError, UserError
from citeweave.files import write_json


class Folder:
    """A folder of this machine."""

    def __init__(self, folder: str | Path) -> None:
        if "://" in str(folder):
            raise UserError(f"--lance is {str(folder)[:200]!r}; give a folder, s3://bucket/name or gs://bucket/name")
        self._folder = Path(folder)

    def __str__(self) -> str:
        return str(self._folder)

    @property
    def address(self) -> str:
        """As LanceDB reads it: a relative name that begins with `~` or `data:` would lead elsewhere."""
        return str(self._folder.absolute())

    def is_empty(self) -> bool:
        return not self._folder.exists() or (self._folder.is_dir() and not any(self._folder.iterdir()))

    def has(self, name: str) -> bool:
        return (self._folder / name).is_dir()

    def make(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"lance:{self} cannot be written ({error.strerror}); name another folder") from None

    def read(self, name: str) -> bytes | None:
        try:
            return (self._folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ArtefactError(f"lance:{self} cannot be read ({error.strerror}); check its permissions") from None

    def write(self, name: str, told: dict[str, Any]) -> None:
        write_json(self._folder / name, told)

    def options(self) -> dict[str, str] | None:
        return None


class Bucket:
    """The same on object storage; LanceDB is told where, and reads credentials from the environment itself."""

    def __init__(self, address: str | Path) -> None:
        self._address = Address.parse(address)

    def __str__(self) -> str:
        return str(self._address)

    @property
    def address(self) -> str:
        return str(self._address)

    def is_empty(self) -> bool:
        return not list_objects(self._address)

    def has(self, name: str) -> bool:
        return bool(list_objects(self._address / name))

    def make(self) -> None:
        pass  # there are no folders

    def read(self, name: str) -> bytes | None:
        return read_small(self._address / name)

    def write(self, name: str, told: dict[str, Any]) -> None:
        write_small(self._address / name, json.dumps(told, indent=1, ensure_ascii=False).encode())

    def options(self) -> dict[str, str] | None:
        if self._address.scheme != "s3":
            return None
        given = {"connect_timeout": "5s"}
        if endpoint():
            # without the rest a storage of one's own is taken for Amazon's
            given |= {"aws_endpoint": endpoint(), "aws_region": region() or "us-east-1"}
            given |= {"allow_http": "true"} if endpoint().startswith("http://") else {}
        elif region():
            given["aws_region"] = region()
        return given | ({"aws_skip_signature": "true"} if is_anonymous() else {})
