"""Command lines from dataclasses, options that commands share, and printing results.

    @dataclass(frozen=True, kw_only=True)
    class DeriveArguments(OutputArguments):
        corpus: Annotated[Path, Positional()]
        \"""Corpus folder.\"""

        texts: DerivedTexts                        the options of a stage become options of the command

    def derive(args: DeriveArguments) -> None:     `build_command(derive)` makes a command of it

An option is declared once, as a field with its type, default and docstring (`core/options.py`). Own fields come first in
`--help`, inherited ones last.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import click

from citeweave.cli.addresses import local_paths
from citeweave.cli.needs import check_needs
from citeweave.core.errors import UserError
from citeweave.core.options import (
    INTERNAL,
    SIZE,
    Flag,
    Named,
    Option,
    Positional,
    convert,
    format_size,
    keys_of,
    options_of,
    unpack,
)
from citeweave.core.progress import Reporter
from citeweave.encoders.model_names import DEFAULT_MODEL, NAMED


class Given:
    """Options of another class that are passed on only where they are given; the field holds those by name."""

    def __init__(self, kind: type, *, only: tuple[str, ...] = (), without: tuple[str, ...] = ()) -> None:
        self._kind, self._names = kind, {*(only or keys_of(kind))} - {*without}

    def options(self) -> Iterator[Option]:
        """Yield the plain options of the class, with no default but one that `--help` shows."""
        for option in (each for each in _options(self._kind) if each.name in self._names):
            kind, rules = unpack(option.type)
            yield replace(option, type=Annotated[kind, *rules, Shown(_default(option))], default=None)

    def read(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that the command line gives."""
        given = [option for option in self.options() if values[option.name] not in (None, ())]
        return {option.name: _value(option, values) for option in given}


class Shown:
    """A default that `--help` shows."""

    def __init__(self, default: Any) -> None:
        self.default = default


class Help:
    """Help of an option that many commands have, in place of a docstring."""

    def __init__(self, text: str) -> None:
        self.text = text


class WholeNumber(NamedTuple):
    """A count that the command line takes in short, with K, M or B, or with an exponent."""

    min: int = 1

    def parse(self, text: str, where: str) -> int:
        """Parse a count.

        >>> [WholeNumber().parse(text, "--papers") for text in ("52e6", "52_000_000", "52M")]
        [52000000, 52000000, 52000000]
        >>> WholeNumber().parse("-3", "--papers")
        Traceback (most recent call last):
        citeweave.core.errors.UserError: --papers is '-3'; it must be a whole number of 1 or more, such as 52e6, 52M or 52_000_000
        """
        match = re.fullmatch(r"([0-9_.,]+(?:e\+?\d{1,2})?)([KMBG]?)", text.strip(), re.IGNORECASE)
        number = None
        with suppress(InvalidOperation):
            number = Decimal(re.sub("[_,]", "", match[1])) * _THOUSANDS[match[2].upper()] if match else None
        if number is None or number != number.to_integral_value() or number < self.min:
            rule = f"it must be a whole number of {self.min} or more, such as 52e6, 52M or 52_000_000"
            raise UserError(f"{where} is {text!r}; {rule}")
        if number > _LARGEST_COUNT:
            raise UserError(f"{where} is {text!r}; no literature is that large: give at most 1e13")
        return int(number)


_THOUSANDS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9}
_LARGEST_COUNT = 10**13


CorpusFolder = Annotated[Path, Positional(), Help("Corpus folder.")]
IndexFolder = Annotated[Path, Positional(), Help("Index folder.")]
RecipeName = Annotated[str, Positional(), Help("Built-in recipe, such as scincl, or a TOML file.")]
Seed = Annotated[int, Help("Random seed.")]
Memory = Annotated[int, SIZE, Help("Memory limit for each sorting step, such as 256MB or 2GB.")]
RecipeOption = Annotated[str, Help("Built-in recipe, such as scincl, or a TOML file.")]
Set = Annotated[tuple[str, ...], Help("Override a recipe setting, as TABLE.KEY=VALUE; may be repeated.")]
Device = Annotated[str, Help("Device: cpu, cuda or auto.")]
Model = Annotated[str, Help(f"Model: {', '.join(NAMED)}, a folder, or a Hugging Face name.")]
OwnModel = Annotated[
    str,
    Help(
        f"Model: {', '.join(NAMED)}, a folder, or a Hugging Face name; default: the existing index's, otherwise {DEFAULT_MODEL}."
    ),
]
Overwrite = Annotated[bool, Help("Replace an output folder made from different inputs or options.")]
Workers = Annotated[int, Help("Number of processes; 0 = one per core.")]


class Cluster:
    """A Ray cluster; an invalid one is refused before any work is done."""

    def check(self, value: str, where: str) -> None:
        if value:
            from citeweave.remote.ray_executor import parse_cluster_options

            parse_cluster_options(value)


On = Annotated[
    str,
    Cluster(),
    Help(
        "Ray cluster to run on: ray (temporary and local), ray:auto, ray:HOST:6379 or ray://HOST:10001, with options as in "
        "ray,workers=2 (see docs/scale.md); default: this process."
    ),
]


@dataclass(frozen=True, kw_only=True)
class QuietArguments:
    """Arguments of every command."""

    quiet: bool = False
    """Show no progress and no notes."""

    debug: bool = False
    """Show tracebacks of errors."""

    @property
    def reporter(self) -> Reporter:
        """Shows progress, unless the command should be quiet."""
        return Reporter(quiet=self.quiet or getattr(self, "json", False))


@dataclass(frozen=True, kw_only=True)
class CommonArguments(QuietArguments):
    """Arguments of commands that print a result."""

    json: bool = False
    """Print one JSON object on standard output."""

    def print(self, value: Mapping[str, object], text: str) -> None:
        """Print what a command did, as JSON or as text, unless it is to be quiet."""
        if self.json or not self.quiet:
            self.print_result(value, text)

    def print_result(self, value: Mapping[str, object], text: str) -> None:
        """Print the result that was asked for, as JSON or as text."""
        print_json(value) if self.json else print(text)


@dataclass(frozen=True, kw_only=True)
class OutputArguments(CommonArguments):
    """Arguments of commands that write a folder."""

    output: Annotated[Path, Flag("-o", "--output")]
    """Output folder."""

    overwrite: Overwrite = False

    def print(self, value: Mapping[str, object], text: str) -> None:
        """Print what a command wrote; its JSON names the output folder too."""
        super().print({**value, "output": str(self.output)}, text)

    @property
    def writing(self) -> dict[str, Any]:
        """What every function that writes a folder takes: whether to replace it, and how to report progress."""
        return {"overwrite": self.overwrite, "reporter": self.reporter}


# Commands from functions.

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


class Command(click.Command):
    """A command whose help lists its arguments, and which accepts old names of options and addresses as folders."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        names = {name for parameter in self.params for name in parameter.opts}
        current = [_current_name(arg, names) for arg in args if not _is_dropped(arg, ctx)]
        return list(super().parse_args(ctx, current))

    def invoke(self, ctx: Any) -> Any:
        quiet = bool(ctx.params.get("quiet") or ctx.params.get("json"))
        with local_paths(str(ctx.info_name), ctx.params, Reporter(quiet=quiet)):
            check_needs(_command_name(ctx), ctx.params)
            return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments = [parameter for parameter in self.params if isinstance(parameter, _Argument)]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl([(each.make_metavar(ctx), each.description) for each in arguments])
        super().format_options(ctx, formatter)


def _command_name(ctx: Any) -> str:
    """Return the name of a command with that of its group: `intents train`."""
    names = []
    while ctx.parent is not None:
        names.append(str(ctx.info_name))
        ctx = ctx.parent
    return " ".join(reversed(names))


class _Argument(click.Argument):
    """An argument with a help text, which older versions of click leave out."""

    def __init__(self, *names: Any, help: str, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.description = help


class _Option(click.Option):
    """An option that shows a default given as text without the parentheses around it."""

    def get_help_extra(self, ctx: Any) -> Any:
        extra = super().get_help_extra(ctx)
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default
        return extra


def build_command(name: str, function: Callable[[Any], None]) -> Command:
    """Return the command of a function whose one parameter is a dataclass of arguments."""
    kind = get_type_hints(function)["args"]

    def call(**values: Any) -> None:
        function(_read(kind, values))

    options = {option.name: option for option in reversed([*_options(kind)])}  # of two of one name, the first
    parameters = [_parameter(option) for option in reversed(options.values())]
    return Command(name, params=parameters, callback=call, help=function.__doc__)


def _options(kind: type) -> Iterator[Option]:
    """Yield all options of a command: its own before inherited ones, and those of its stages in their place."""
    found = options_of(kind)
    for owner in kind.__mro__:
        for name in (each for each in found if each in inspect.get_annotations(owner)):
            option = found[name]
            if (given := option.rule(Given)) is not None:
                yield from given.options()
            elif option.inner is not None:
                for each in _options(option.inner):  # a default of the field replaces those of its class
                    yield replace(each, default=getattr(option.default, each.name, each.default))
            elif INTERNAL not in option.rules:
                yield option


def _read(kind: type, values: Mapping[str, Any]) -> Any:
    """Return the arguments of a command from what its parameters hold; every value is checked under its option's name."""
    read = {}
    for name, option in options_of(kind).items():
        if (given := option.rule(Given)) is not None:
            read[name] = given.read(values)
        elif INTERNAL in option.rules:
            continue
        elif option.inner is not None:
            read[name] = _read(option.inner, values)
        else:
            read[name] = _value(option, values)
    return kind(**read)


def _value(option: Option, values: Mapping[str, Any]) -> Any:
    value, where = values[option.name], _flags(option)[-1].partition("/")[0]
    for rule in option.rules:
        value = rule.parse(value, where) if hasattr(rule, "parse") and value is not None else value
    return convert(value, option.type, where)


def _flags(option: Option) -> tuple[str, ...]:
    if (positional := option.rule(Positional)) is not None:
        return (positional.metavar or option.name.rstrip("_").upper(),)
    if (flag := option.rule(Flag)) is not None:
        return flag.names
    name = option.name.strip("_").replace("_", "-")
    return (f"--{name}/--no-{name}" if option.default is True else f"--{name}",)


_TYPES: dict[Any, Any] = {int: click.INT, float: click.FLOAT, Path: click.Path(path_type=Path)}


def _parameter(option: Option) -> click.Parameter:
    """Return the option or argument of the command line that a field declares."""
    kind = unpack(option.type)[0]
    is_tuple = get_origin(kind) is tuple
    several = (is_tuple and get_args(kind)[-1] is ...) or option.rule(Named) is not None
    is_text = SIZE in option.rules or any(hasattr(rule, "parse") for rule in option.rules)
    plain = next((each for each in (*get_args(kind), kind) if each in _TYPES), str)
    shared = option.rule(Help)
    settings: dict[str, Any] = {
        "type": click.STRING if is_text else _TYPES.get(plain, click.STRING),
        "required": option.default is MISSING,
        "help": shared.text if shared is not None else option.help,
    }
    if option.default is not MISSING:
        settings["default"] = _default(option)
    if (positional := option.rule(Positional)) is not None:
        settings |= {"nargs": -1 if several else 1, "metavar": positional.metavar or None}
        return _Argument([option.name], **settings)
    if several:
        if "repeated" not in settings["help"]:
            settings["help"] = f"{settings['help'].rstrip('.')}; may be repeated."
        settings |= {"multiple": True, "default": option.default if isinstance(option.default, tuple) else None}
    if is_tuple and not several:
        settings["nargs"] = len(get_args(kind))
    is_flag = kind in (bool, bool | None)
    if is_flag:
        settings |= {"is_flag": True, "type": None}
    is_pair = any("/" in name for name in _flags(option))
    is_empty = option.default in (MISSING, None, "", (), {})
    settings["show_default"] = not is_empty and (is_pair or not is_flag)
    if (shown := option.rule(Shown)) is not None and shown.default not in (None, "", (), False):
        name = _flags(option)[-1].partition("/")[0].lstrip("-")
        settings["show_default"] = name if is_pair else str(shown.default)
    return _Option([*_flags(option), option.name], **settings)


def _default(option: Option) -> Any:
    is_size = SIZE in option.rules and option.default is not None
    return format_size(option.default) if is_size else option.default


def _current_name(argument: str, names: set[str]) -> str:
    """Return an argument with an old option name replaced by the current one, with a note on standard error."""
    option, equals, value = argument.partition("=")
    if option in names or RENAMED.get(option) not in names:
        return argument
    print(f"note: {option} is now {RENAMED[option]}; the old name stops working in the next release", file=sys.stderr)
    return f"{RENAMED[option]}{equals}{value}"


def _is_dropped(argument: str, ctx: Any) -> bool:
    """Return whether an argument is an option that nothing needs any more, with a note on standard error."""
    if (ctx.info_name, argument) != ("change", "--compact"):
        return False
    print("note: --compact does nothing, as an index is always in one piece; leave it out", file=sys.stderr)
    return True


def read_keys(entries: tuple[str, ...], table: str) -> dict[str, Any]:
    """Return the values of --set for one table of a recipe; the name of the table may be left out."""
    from citeweave.pipeline.recipe import read_overrides

    for entry in entries:
        if "=" not in entry:
            raise UserError(f"--set is {entry!r}; it must be KEY=VALUE, such as per_paper=1")
    found = read_overrides([f"{table}.{entry.removeprefix(f'{table}.')}" for entry in entries])
    return dict(found.get(table, {}))


# What commands print.


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


def account_rows(records: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, object]]:
    """Yield the account of all records that a command read as rows of a table: read, kept, not kept by reason.

    >>> [name for name, _ in account_rows({"papers": {"read": 3, "kept": 2, "rejected": {"no title": 1}}})]
    ['papers read', 'papers kept', '  not kept: no title']
    >>> [name for name, _ in rejected_rows({"rejected": {"same citation given again (merged)": 1}})]
    ['  merged: same citation given again']
    """
    for kind, count in records.items():
        yield from ((f"{kind} {name}", count[name]) for name in ("read", "kept"))
        yield from rejected_rows(count)


def rejected_rows(count: Mapping[str, Any], label: str = "not kept") -> Iterator[tuple[str, object]]:
    """Yield a row for each reason why records were not kept, or were merged with others."""
    for reason, number in count["rejected"].items():
        merged = reason.removesuffix(" (merged)")
        yield f"  {label if merged == reason else 'merged'}: {merged}", number


def table(rows: Iterable[tuple[str, object]]) -> str:
    """Format two columns as commands print them, numbers with thousands separators.

    >>> print(table([("papers", 1234), ("with abstract", "80 %")]))
    papers         1,234
    with abstract   80 %
    """
    texts = [(name, f"{value:,}" if isinstance(value, int) else str(value)) for name, value in rows]
    left = max((len(name) for name, _ in texts), default=0)
    right = max((len(value) for _, value in texts), default=0)
    return "\n".join(f"{name:<{left}} {value:>{right + 1}}" for name, value in texts)
