"""Object storage addresses on the command line, in place of folders.

    citeweave info s3://lab/corpus              fetched into the cache, then read there
    citeweave embed corpus -o s3://lab/vectors  written to the cache, then uploaded
    citeweave change s3://lab/index --fill      fetched, changed, and the changes uploaded

Addresses are resolved between parsing the command line and running the command, so that no command knows about them. Paths
of the cache in a command's output are shown as the addresses they stand for.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import unquote

from citeweave.core.errors import CiteweaveError, UserError
from citeweave.core.progress import Reporter

if TYPE_CHECKING:
    from citeweave.remote.push import PendingUpload

_ADDRESS = re.compile(r"((?:[^=/:\s]+=)?)((?:s3|gs)://?[^/\s].*|file:/.+)", re.DOTALL)
"""Matches an address, alone or as NAME=ADDRESS; a `Path` keeps only one of its slashes."""

_PASSED_ON = {"copy": {"source", "target"}, "store": {"lance"}}
"""Options whose addresses the command reads itself."""

_ONLY = {"search": {"index", "model"}}
"""Commands that take free text: only these parameters can be addresses."""

_UPDATED = {"change": "index"}
"""Commands that change a folder in place, and the parameter that names it."""

_LOCAL_OUTPUTS = {"export": "--export", "pictures": "--pictures", "tokens": "--tokens", "cache": "--cache"}
"""Options that name a local path to write to."""

_LOCAL_OUTPUTS_OF = {"explore": {"folder": "--folder"}, "store": {"milvus": "--milvus"}}
"""Local output paths of single commands."""


@contextmanager
def local_paths(command: str, values: dict[str, Any], reporter: Reporter) -> Iterator[None]:
    """Replace the addresses among a command's values by folders of the cache while it runs; then upload its output."""
    if not any(_ADDRESS.fullmatch(text) for value in values.values() for text in _texts(value)):
        yield
        return
    addresses = _Addresses(command, reporter)
    with ExitStack() as stack:
        for name, value in list(values.items()):
            values[name] = addresses.resolve(name, value, stack)
        with _show_addresses(addresses.known):
            yield
            addresses.upload(overwrite=bool(values.get("overwrite")))


class _Addresses:
    """The object storage addresses on one command line."""

    def __init__(self, command: str, reporter: Reporter) -> None:
        self._command, self._reporter = command, reporter
        self._outgoing: list[PendingUpload] = []
        self.known: dict[str, str] = {}
        """Path in the cache -> address."""

    def resolve(self, name: str, value: Any, stack: ExitStack) -> Any:
        local = {**_LOCAL_OUTPUTS, **_LOCAL_OUTPUTS_OF.get(self._command, {})}
        if name in local and any(_is_remote(text) for text in _texts(value)):
            raise UserError(f"{local[name]} is {value}; it must be a local path; run `citeweave copy` afterwards")
        is_raw = name in _PASSED_ON.get(self._command, ()) and any(map(_is_remote, _texts(value)))
        if is_raw or name not in _ONLY.get(self._command, {name}):
            return value
        if isinstance(value, list | tuple):
            paths = [path for text in value for path in self._paths(name, text, stack)]
            return type(value)(paths)
        paths = self._paths(name, value, stack)
        if len(paths) != 1:
            raise UserError(f"{value} matches {len(paths):,} objects; name one")
        return paths[0]

    def _paths(self, name: str, value: Any, stack: ExitStack) -> list[Any]:
        match = _ADDRESS.fullmatch(str(value)) if isinstance(value, str | Path) else None
        if match is None:
            return [value]
        label, text = match.groups()
        if text.startswith("file:"):
            return [_like(value, label + "/" + unquote(text.removeprefix("file:")).lstrip("/"))]
        from citeweave.remote.object_storage import Address

        address = Address.parse(text)
        if name in ("output", _UPDATED.get(self._command)):
            _check_alone(address)
            return [_like(value, f"{label}{self._prepare(address, stack, must_exist=name != 'output')}")]
        return [_like(value, f"{label}{path}") for path in self._fetch(address)]

    def _fetch(self, address: Any) -> list[Path]:
        from citeweave.remote.fetch import fetch

        path = fetch(address, reporter=self._reporter)
        self.known[str(path)] = str(address)
        if not address.is_pattern:
            return [path]
        return sorted(inner for inner in path.rglob("*") if inner.is_file())

    def _prepare(self, address: Any, stack: ExitStack, *, must_exist: bool) -> Path:
        from citeweave.remote.push import PendingUpload

        out = stack.enter_context(PendingUpload(address).prepare(self._reporter, must_exist=must_exist))
        self._outgoing.append(out)
        self.known[str(out.folder)] = str(address)
        return out.folder

    def upload(self, *, overwrite: bool) -> None:
        for out in self._outgoing:
            done = out.send(overwrite=overwrite)
            self._reporter.say(f"{out.address}: {done or 'no output, nothing uploaded'}")


def _is_remote(text: str) -> bool:
    match = _ADDRESS.fullmatch(text)
    return match is not None and not match[2].startswith("file:")


def _check_alone(address: Any) -> None:
    """Refuse to write to an address from several processes, since each would upload its own files."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            f"-o is {address}, but several processes were started; give a folder that all of them share, and "
            "run `citeweave copy` afterwards"
        )


def _like(value: str | Path, text: str) -> str | Path:
    return Path(text) if isinstance(value, Path) else text


def _texts(value: Any) -> list[str]:
    values = value if isinstance(value, list | tuple) else [value]
    return [str(text) for text in values if isinstance(text, str | Path)]


@contextmanager
def _show_addresses(known: dict[str, str]) -> Iterator[None]:
    """Show addresses instead of cache paths in everything a command prints and in its errors."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _AddressStream(sys.stdout, known), _AddressStream(sys.stderr, known)
    try:
        yield
    except CiteweaveError as error:
        error.args = tuple(_replace_paths(str(text), known) for text in error.args)
        raise
    finally:
        sys.stdout, sys.stderr = before


class _AddressStream:
    """An output stream that replaces cache paths by addresses."""

    def __init__(self, stream: TextIO, known: dict[str, str]) -> None:
        self._stream, self._known = stream, known

    def write(self, text: str) -> int:
        return self._stream.write(_replace_paths(text, self._known))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _replace_paths(text: str, known: dict[str, str]) -> str:
    """Replace paths in the cache by their addresses.

    >>> _replace_paths("/cache/v/corpus: 3 papers", {"/cache/v/corpus": "s3://lab/corpus"})
    's3://lab/corpus: 3 papers'
    """
    for path, address in sorted(known.items(), key=lambda pair: -len(pair[0])):
        text = text.replace(path, address)
    return text
