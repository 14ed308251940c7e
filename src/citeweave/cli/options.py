"""Options that several commands share, and the way results are printed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from citeweave.encoders.locating import DEFAULT_MODEL, NAMED
from citeweave.errors import UserError
from citeweave.progress import Reporter

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
        from citeweave.scale.options import parse_on

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
