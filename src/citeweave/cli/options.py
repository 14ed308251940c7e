"""What all commands share: common options, old option names, printing results, and object storage addresses as folders.

    citeweave info s3://lab/corpus              fetched into the cache, then read there
    citeweave embed corpus -o s3://lab/vectors  written to the cache, then uploaded
    citeweave change s3://lab/index --compact   fetched, changed, and the changes uploaded

Addresses are resolved between parsing the command line and running the command, so that no command knows about them. Paths
of the cache in a command's output are shown as the addresses they stand for.
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
    from citeweave.remote.push import PendingUpload


RENAMED = {
    "--bare": "--without-abstract",
    "--best": "--top",
    "--each": "--each-sentence",
    "--fewest": "--min-papers",
    "--first": "--rescore",
    "--least": "--min-confidence",
    "--least-share": "--min-share",
    "--most": "--max-papers",
    "--most-contexts": "--max-contexts",
    "--most-unlabelled": "--max-unlabeled",
    "--unlabelled": "--unlabeled",
    "--whole": "--document-vector",
}
"""Old option names, which work for one more release."""

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


class AddressCommand(TyperCommand):
    """A typer command that accepts object storage addresses for folders, and old names of options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        names = {name for parameter in self.params for name in parameter.opts}
        return list(super().parse_args(ctx, [_current_name(arg, names) for arg in args]))

    def invoke(self, ctx: Any) -> Any:
        if not any(_ADDRESS.fullmatch(text) for value in ctx.params.values() for text in _texts(value)):
            check_needs(_name(ctx), ctx.params)
            return super().invoke(ctx)
        quiet = bool(ctx.params.get("quiet") or ctx.params.get("json"))
        addresses = _Addresses(str(ctx.info_name), Reporter(quiet=quiet))
        with ExitStack() as stack:
            for name, value in list(ctx.params.items()):
                ctx.params[name] = addresses.resolve(name, value, stack)
            check_needs(_name(ctx), ctx.params)
            with _show_addresses(addresses.known):
                result = super().invoke(ctx)
                addresses.upload(overwrite=bool(ctx.params.get("overwrite")))
        return result


def _current_name(argument: str, names: set[str]) -> str:
    """Return an argument with an old option name replaced by the current one, with a note on standard error."""
    option, equals, value = argument.partition("=")
    if option in names or RENAMED.get(option) not in names:
        return argument
    print(f"note: {option} is now {RENAMED[option]}; the old name stops working in the next release", file=sys.stderr)
    return f"{RENAMED[option]}{equals}{value}"


def _name(ctx: Any) -> str:
    """Return the name of a command with that of its group: `intents train`."""
    names = []
    while ctx.parent is not None:
        names.append(str(ctx.info_name))
        ctx = ctx.parent
    return " ".join(reversed(names))


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


Output = Annotated[Path, typer.Option("-o", "--output", help="Output folder.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress and no notes.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")]
Seed = Annotated[int, typer.Option("--seed", help="Random seed.")]
Overwrite = Annotated[
    bool,
    typer.Option("--overwrite", help="Replace an output folder made from different inputs or options."),
]
Memory = Annotated[str, typer.Option("--memory", help="Memory limit for each sorting step, such as 256MB or 2GB.")]
Recipe = Annotated[
    str | None,
    typer.Option("--recipe", help="Built-in recipe, such as scincl, or a TOML file.", show_default=False),
]
Set = Annotated[
    list[str], typer.Option("--set", help="Override a recipe setting, as TABLE.KEY=VALUE; may be repeated.")
]
Device = Annotated[str, typer.Option("--device", help="Device: cpu, cuda or auto.")]
Model = Annotated[str, typer.Option("--model", help=f"Model: {', '.join(NAMED)}, a folder, or a Hugging Face name.")]
OwnModel = Annotated[
    str,
    typer.Option(
        "--model",
        help=f"Model: {', '.join(NAMED)}, a folder, or a Hugging Face name; default: the existing index's, otherwise {DEFAULT_MODEL}.",
        show_default=False,
    ),
]
Workers = Annotated[int, typer.Option("--workers", help="Number of processes; 0 = one per core.")]


def _check_on(text: str) -> str:
    """Refuse an invalid --on before any work is done."""
    if text:
        from citeweave.remote.ray_workers import parse_cluster_options

        parse_cluster_options(text)
    return text


On = Annotated[
    str,
    typer.Option(
        "--on",
        help="Ray cluster to run on: ray (temporary and local), ray:auto (this machine's), ray:HOST:6379 (a head node) or ray://HOST:10001 (Ray Client), with options as in ray,workers=2; default: this process.",
        callback=_check_on,
        show_default=False,
    ),
]

_UNITS = {"": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


def parse_size(text: str, option: str) -> int:
    """Parse an option with a size in bytes, such as --memory.

    >>> parse_size("256MB", "--memory"), parse_size("1.5 gb", "--memory")
    (268435456, 1610612736)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?B?)\s*", text.upper())
    if not match:
        raise UserError(f"{option} is {text!r}; it must be a number with KB, MB or GB, such as 256MB")
    unit = match.group(2)
    return int(float(match.group(1)) * _UNITS[unit if unit.endswith("B") or not unit else unit + "B"])


def named_paths(pairs: list[str], option: str, example: str) -> dict[str, Path]:
    """Parse the values NAME=PATH of a repeated option.

    >>> named_paths(["csfcube=data/csfcube"], "--against", "name=folder")
    {'csfcube': PosixPath('data/csfcube')}
    """
    named: dict[str, Path] = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not (name and equals and path):
            raise UserError(f"{option} is {pair!r}; it must be NAME=PATH, such as {example}")
        if name in named:
            raise UserError(f"{option} names {name!r} twice; give every path its own name")
        named[name] = Path(path)
    return named


def reporter_of(quiet: bool) -> Reporter:
    return Reporter(quiet=quiet)


def print_json(value: Mapping[str, object]) -> None:
    """Print one JSON object on standard output, and nothing else."""
    json.dump(value, sys.stdout, ensure_ascii=False, indent=1)
    sys.stdout.write("\n")


def format_share(part: int, total: int) -> str:
    """Format a count with its percentage of a total, as commands print it.

    >>> format_share(5, 20), format_share(0, 0)
    ('5 (25.0 %)', '0')
    """
    return f"{part:,} ({100 * part / total:.1f} %)" if total else f"{part:,}"


def table(rows: list[tuple[str, object]]) -> str:
    """Format two columns as commands print them, numbers with thousands separators.

    >>> print(table([("papers", 1234), ("with abstract", "80 %")]))
    papers         1,234
    with abstract   80 %
    """
    texts = [(name, f"{value:,}" if isinstance(value, int) else str(value)) for name, value in rows]
    left = max((len(name) for name, _ in texts), default=0)
    right = max((len(value) for _, value in texts), default=0)
    return "\n".join(f"{name:<{left}} {value:>{right + 1}}" for name, value in texts)
