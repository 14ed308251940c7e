"""Addresses instead of folders, for every command: what they name is fetched before it runs, its output sent after it.

    citeweave info s3://lab/corpus              fetched into the cache, then read there
    citeweave embed corpus -o s3://lab/vectors  made in the cache, then sent
    citeweave change s3://lab/index --compact   fetched, changed, and the changes sent

Done between the parsing of the command line and the command, so that no command knows of it. Paths of the cache in what a
command prints are shown as the addresses they stand for.

Options that several commands share, and the way results are printed.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO
from urllib.parse import unquote

import typer
from typer.core import TyperCommand

from citeweave.cli.needs import check_needs
from citeweave.core.errors import CiteweaveError, UserError
from citeweave.core.progress import Reporter
from citeweave.encoders.model_names import DEFAULT_MODEL, NAMED

if TYPE_CHECKING:
    from citeweave.remote.copy import PendingUpload


_PLACE = re.compile(r"((?:[^=/:\s]+=)?)((?:s3|gs)://?[^/\s].*|file:/.+)", re.DOTALL)
"""An address, alone or as NAME=ADDRESS; of a path one slash is left."""

_AS_GIVEN = {"copy": {"source", "target"}, "store": {"lance"}}
"""Options whose addresses the command reads itself."""

_ONLY = {"search": {"index", "model"}}
"""Commands with texts of the user's own: their other options are never addresses."""

_CHANGED = {"change": "index"}
"""Commands that change a folder in place."""

_HERE = {"export": "--export", "pictures": "--pictures", "tokens": "--tokens", "cache": "--cache"}
"""Options that name a place on this machine to write to."""

_HERE_OF = {"explore": {"folder": "--folder"}, "store": {"milvus": "--milvus"}}
"""The same of single commands."""


class AddressCommand(TyperCommand):
    """A command whose folders may be addresses, and which asks for its extras first."""

    def invoke(self, ctx: Any) -> Any:
        if not any(_PLACE.fullmatch(text) for value in ctx.params.values() for text in _texts(value)):
            check_needs(_name(ctx), ctx.params)
            return super().invoke(ctx)
        quiet = bool(ctx.params.get("quiet") or ctx.params.get("json"))
        places = _Places(str(ctx.info_name), Reporter(quiet=quiet))
        with ExitStack() as held:
            for name, value in list(ctx.params.items()):
                ctx.params[name] = places.resolve(name, value, held)
            check_needs(_name(ctx), ctx.params)
            with _renamed(places.known):
                result = super().invoke(ctx)
                places.send(overwrite=bool(ctx.params.get("overwrite")))
        return result


def _name(ctx: Any) -> str:
    """The name of a command with that of its group: `intents train`."""
    names = []
    while ctx.parent is not None:
        names.append(str(ctx.info_name))
        ctx = ctx.parent
    return " ".join(reversed(names))


class _Places:
    """The addresses of one command line."""

    def __init__(self, command: str, reporter: Reporter) -> None:
        self._command, self._reporter = command, reporter
        self._outgoing: list[PendingUpload] = []
        self.known: dict[str, str] = {}
        """From a path of the cache to the address it stands for."""

    def resolve(self, name: str, value: Any, held: ExitStack) -> Any:
        here = {**_HERE, **_HERE_OF.get(self._command, {})}
        if name in here and any(_is_remote(text) for text in _texts(value)):
            raise UserError(f"{here[name]} is {value}; it must be a place on this machine: `citeweave copy` it then")
        given = name in _AS_GIVEN.get(self._command, ()) and any(map(_is_remote, _texts(value)))
        if given or name not in _ONLY.get(self._command, {name}):
            return value
        if isinstance(value, list | tuple):
            paths = [path for text in value for path in self._paths(name, text, held)]
            return type(value)(paths)
        paths = self._paths(name, value, held)
        if len(paths) != 1:
            raise UserError(f"{value} matches {len(paths):,} objects; name one")
        return paths[0]

    def _paths(self, name: str, value: Any, held: ExitStack) -> list[Any]:
        found = _PLACE.fullmatch(str(value)) if isinstance(value, str | Path) else None
        if found is None:
            return [value]
        label, text = found.groups()
        if text.startswith("file:"):
            return [_like(value, label + "/" + unquote(text.removeprefix("file:")).lstrip("/"))]
        from citeweave.remote.object_storage import Address

        address = Address.parse(text)
        if name in ("output", _CHANGED.get(self._command)):
            _check_alone(address)
            return [_like(value, f"{label}{self._prepare(address, held, must_exist=name != 'output')}")]
        return [_like(value, f"{label}{path}") for path in self._fetch(address)]

    def _fetch(self, address: Any) -> list[Path]:
        from citeweave.remote.fetch import fetch

        path = fetch(address, reporter=self._reporter)
        self.known[str(path)] = str(address)
        if not address.is_pattern:
            return [path]
        return sorted(inner for inner in path.rglob("*") if inner.is_file())

    def _prepare(self, address: Any, held: ExitStack, *, must_exist: bool) -> Path:
        from citeweave.remote.copy import PendingUpload

        out = held.enter_context(PendingUpload(address).working(self._reporter, must_exist=must_exist))
        self._outgoing.append(out)
        self.known[str(out.folder)] = str(address)
        return out.folder

    def send(self, *, overwrite: bool) -> None:
        for out in self._outgoing:
            done = out.send(overwrite=overwrite)
            self._reporter.say(f"{out.address}: {done or 'nothing was made, nothing sent'}")


def _is_remote(text: str) -> bool:
    found = _PLACE.fullmatch(text)
    return found is not None and not found[2].startswith("file:")


def _check_alone(address: Any) -> None:
    """Refuse to write to an address from several processes: each would send its own."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            f"-o is {address}, and several processes were started; name a folder that all of them see, and then "
            "`citeweave copy` it"
        )


def _like(value: str | Path, text: str) -> str | Path:
    return Path(text) if isinstance(value, Path) else text


def _texts(value: Any) -> list[str]:
    values = value if isinstance(value, list | tuple) else [value]
    return [str(text) for text in values if isinstance(text, str | Path)]


@contextmanager
def _renamed(known: dict[str, str]) -> Iterator[None]:
    """Show addresses where a command names paths of the cache, in its errors too."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Renaming(sys.stdout, known), _Renaming(sys.stderr, known)
    try:
        yield
    except CiteweaveError as error:
        error.args = tuple(_rename(str(text), known) for text in error.args)
        raise
    finally:
        sys.stdout, sys.stderr = before


class _Renaming:
    """A stream that shows addresses for paths."""

    def __init__(self, stream: TextIO, known: dict[str, str]) -> None:
        self._stream, self._known = stream, known

    def write(self, text: str) -> int:
        return self._stream.write(_rename(text, self._known))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _rename(text: str, known: dict[str, str]) -> str:
    """
    >>> _rename("/cache/v/corpus: 3 papers", {"/cache/v/corpus": "s3://lab/corpus"})
    's3://lab/corpus: 3 papers'
    """
    for path, address in sorted(known.items(), key=lambda pair: -len(pair[0])):
        text = text.replace(path, address)
    return text


# Options that several commands share, and the way results are printed.

Output = Annotated[Path, typer.Option("-o", "--output", help="Folder to make.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress, no remarks.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing folder made from other inputs.")]
Memory = Annotated[str, typer.Option("--memory", help="Memory that each sorting step may hold, such as 256MB or 2GB.")]
Recipe = Annotated[
    str | None,
    typer.Option("--recipe", help="Name of a shipped recipe, such as scincl, or a TOML file.", show_default=False),
]
Set = Annotated[
    list[str], typer.Option("--set", help="TABLE.KEY=VALUE: another value than the recipe's; may be repeated.")
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, or auto.")]
Model = Annotated[
    str, typer.Option("--model", help=f"{', '.join(NAMED)}, folder of a model, or name of one on the hub.")
]
OwnModel = Annotated[
    str,
    typer.Option(
        "--model",
        help=f"{', '.join(NAMED)}, folder of a model, or name of one on the hub; else what is there has, or {DEFAULT_MODEL}.",
        show_default=False,
    ),
]
Workers = Annotated[int, typer.Option("--workers", help="Processes to use; 0 = one a core.")]


def _check_on(text: str) -> str:
    """Refuse a bad --on before anything is done."""
    if text:
        from citeweave.remote.ray_workers import parse_on

        parse_on(text)
    return text


On = Annotated[
    str,
    typer.Option(
        "--on",
        help="Where the shards are made: ray (a cluster on this machine for the time of the command), ray:auto, "
        "ray:HOST:6379 or ray://HOST:10001, with options such as ray,workers=2. Default: in this process.",
        callback=_check_on,
        show_default=False,
    ),
]

_UNITS = {"": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


def parse_size(text: str, option: str) -> int:
    """
    >>> parse_size("256MB", "--memory"), parse_size("1.5 gb", "--memory")
    (268435456, 1610612736)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?B?)\s*", text.upper())
    if not found:
        raise UserError(f"{option} is {text!r}; it must be a number with KB, MB or GB, such as 256MB")
    unit = found.group(2)
    return int(float(found.group(1)) * _UNITS[unit if unit.endswith("B") or not unit else unit + "B"])


def named_paths(pairs: list[str], option: str, example: str) -> dict[str, Path]:
    """
    >>> named_paths(["csfcube=data/csfcube"], "--against", "name=folder")
    {'csfcube': PosixPath('data/csfcube')}
    """
    named: dict[str, Path] = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not (name and equals and path):
            raise UserError(f"{option} is {pair!r}; it must be NAME=PATH, such as {example}")
        if name in named:
            raise UserError(f"{option} names {name!r} twice; give each a name of its own")
        named[name] = Path(path)
    return named


def reporter_of(quiet: bool) -> Reporter:
    return Reporter(quiet=quiet)


def print_json(value: Mapping[str, object]) -> None:
    """One object on standard output, nothing else."""
    json.dump(value, sys.stdout, ensure_ascii=False, indent=1)
    sys.stdout.write("\n")


def table(rows: list[tuple[str, object]]) -> str:
    """Two columns, numbers with separators.

    >>> print(table([("papers", 1234), ("with abstract", "80 %")]))
    papers         1,234
    with abstract   80 %
    """
    texts = [(name, f"{value:,}" if isinstance(value, int) else str(value)) for name, value in rows]
    left = max((len(name) for name, _ in texts), default=0)
    right = max((len(value) for _, value in texts), default=0)
    return "\n".join(f"{name:<{left}} {value:>{right + 1}}" for name, value in texts)
