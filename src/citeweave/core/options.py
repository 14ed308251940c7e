"""Options declared once: from a dataclass come keys, checks, command-line options and tables.

    @dataclass(frozen=True, slots=True)
    class GraphOptions:
        direction: Annotated[str, OneOf("both", "cited", "citing")] = "both"
        \"""Citations in both directions, or only along (cited) or against (citing) them.\"""

        strongest: Annotated[int, Range(0), Old("most")] = 100
        \"""Strongest related papers per paper and signal; 0 = all.\"""

        def __post_init__(self) -> None:
            check(self, "graph")

    parse_table(GraphOptions, {"direction": "cited"}, "graph")     a table of a recipe, or JSON of a request
    GraphOptions(direction="cited")                                the same from Python, with the same checks
    options_of(GraphOptions)["direction"].help                     what `--help` and the docs show (see `cli/options.py`)

A field's type says what a value must be: bool, int, float, str, Path, X | None, tuple[X, ...], Mapping[str, X], or another
dataclass, which is a table in the table. Rules beside the type are objects in `Annotated`. Anything else is accepted as
it is, and whatever concerns two fields is checked by the class itself.

>>> Share = Annotated[float, Range(0, 1)]
>>> convert(1, Share, "share"), convert(["a"], tuple[str, ...], "names"), convert("2GB", Annotated[int, SIZE], "memory")
(1.0, ('a',), 2147483648)
>>> convert(1.5, Share, "share")
Traceback (most recent call last):
citeweave.core.errors.UserError: share is 1.5; it must be from 0 to 1
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import re
import sys
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from citeweave.core.errors import UserError, choose
from citeweave.core.progress import Reporter

T = TypeVar("T")


# Rules beside the type of an option.


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a number: `min` and `max` belong to the range, `above` and `below` do not."""

    min: float | None = None
    max: float | None = None
    above: float | None = None
    below: float | None = None

    def check(self, value: float, where: str) -> None:
        """Refuse a number out of the range.

        >>> Range(above=0, max=1).check(0.0, "training.share")
        Traceback (most recent call last):
        citeweave.core.errors.UserError: training.share is 0.0; it must be greater than 0 and at most 1
        """
        if (
            (self.min is not None and value < self.min)
            or (self.max is not None and value > self.max)
            or (self.above is not None and value <= self.above)
            or (self.below is not None and value >= self.below)
        ):
            _refuse(value, where, str(self))

    def __str__(self) -> str:
        if self.min is not None and self.max is not None:
            return f"from {self.min:,} to {self.max:,}"
        words = (("at least", self.min), ("greater than", self.above), ("at most", self.max), ("less than", self.below))
        return " and ".join(f"{word} {bound:,}" for word, bound in words if bound is not None)


class OneOf:
    """The values that a text may have, or its entries if there are several; an empty one is not listed in messages."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def check(self, value: str, where: str) -> None:
        choose(value if len(value) <= 60 else f"{value[:60]}...", self.choices, where)


class MaxLength(NamedTuple):
    """The most characters that a text may have, or entries that a list may have."""

    length: int

    def check(self, value: Any, where: str) -> None:
        if len(value) > self.length:
            what = "characters" if isinstance(value, str) else "entries"
            raise UserError(f"{where} has {len(value):,} {what}; it must have at most {self.length:,}")


class NotBlank:
    """A text that must not be empty."""

    def check(self, value: str, where: str) -> None:
        if not value.strip():
            raise UserError(f"{where} is {_shown(value)}; it must not be empty")


SIZE = "size"
"""Marks a number of bytes, which may be a text such as 256MB."""

_UNITS = {"": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


def parse_size(text: str, where: str) -> int:
    """Parse a number of bytes.

    >>> parse_size("256MB", "--memory"), parse_size("1.5 gb", "--memory")
    (268435456, 1610612736)
    """
    match = re.fullmatch(r"\s*(\d{1,20}(?:\.\d{1,9})?)\s*([KMGT]?B?)\s*", text.upper(), re.ASCII)
    if not match:
        raise UserError(f"{where} is {_shown(text)}; it must be a number with KB, MB or GB, such as 256MB")
    number, unit = match.groups()
    size = _UNITS[f"{unit.removesuffix('B')}B" if unit not in ("", "B") else ""]
    return int(number) * size if number.isdigit() else int(float(number) * size)


def format_size(number: int) -> str:
    """Return a number of bytes with the largest unit that divides it, as `--help` shows it.

    >>> format_size(268435456), format_size(1000)
    ('256MB', '1000')
    """
    return next((f"{number // size}{unit}" for unit, size in reversed(_UNITS.items()) if number % size == 0), "")


class Expected(NamedTuple):
    """In words what a value must be, for types that are hard to describe."""

    words: str


class Old(NamedTuple):
    """A former name of a key, which works for one more release."""

    name: str


class Flag:
    """Names on the command line, if not those of the field: Flag("-o", "--output"), Flag("--browser/--no-browser")."""

    def __init__(self, *names: str) -> None:
        self.names = names


class Positional(NamedTuple):
    """An argument of the command line that has no option name."""

    metavar: str = ""


class Named(NamedTuple):
    """Paths by name, written on the command line as NAME=PATH, several times; with an example for messages."""

    example: str

    def parse(self, pairs: tuple[str, ...], where: str) -> dict[str, Path]:
        """Parse the values of a repeated option.

        >>> list(Named("name=folder").parse(("csfcube=data/csfcube",), "--against"))
        ['csfcube']
        """
        named: dict[str, Path] = {}
        for pair in pairs:
            name, equals, path = pair.partition("=")
            if not (name and equals and path):
                raise UserError(f"{where} is {pair!r}; it must be NAME=PATH, such as {self.example}")
            if name in named:
                raise UserError(f"{where} names {name!r} twice; give every path its own name")
            named[name] = Path(path)
        return named


FLAT = "flat"
"""Marks a dataclass in a dataclass whose keys stand in the same table."""

INTERNAL = "internal"
"""Marks a field that only Python can set: neither a key nor a command-line option."""


# What a class declares.


@dataclass(frozen=True, slots=True)
class Option:
    """One option as its class declares it: a field with its type, default, rules and docstring."""

    owner: type
    name: str
    type: Any
    """The type with its `Annotated`."""

    default: Any = MISSING

    @property
    def rules(self) -> tuple[Any, ...]:
        """What stands in `Annotated` beside the type."""
        return unpack(self.type)[1]

    @property
    def inner(self) -> type | None:
        """The dataclass that the option is, or None."""
        return inner_class(unpack(self.type)[0])

    @property
    def help(self) -> str:
        """The docstring of the field, on one line; without one, that of the field from which it is inherited."""
        text = next((found[self.name] for each in self.owner.__mro__ if self.name in (found := _docstrings(each))), "")
        return " ".join(text.split())

    def rule(self, kind: type[T]) -> T | None:
        """Return the rule of this kind, if there is one."""
        return next((rule for rule in self.rules if isinstance(rule, kind)), None)


@cache
def options_of(kind: type) -> dict[str, Option]:
    """Return the options that a dataclass declares, by name.

    >>> list(options_of(Range))
    ['min', 'max', 'above', 'below']
    """
    hints, found = get_type_hints(kind, include_extras=True), {}
    for field in dataclasses.fields(kind):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        found[field.name] = Option(kind, field.name, hints[field.name], default)
    return found


@cache
def _docstrings(kind: type) -> dict[str, str]:
    """Read from a class's source the text that stands below each field."""
    found, before = {}, None
    for node in _classes(kind.__module__).get(kind.__name__, []):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str) and before is not None:
            found[before] = inspect.cleandoc(value.value)
        before = node.target.id if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else None
    return found


@cache
def _classes(module: str) -> dict[str, list[ast.stmt]]:
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError):  # no source to read, such as in an interactive session
        return {}
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}


def inner_class(kind: Any) -> type | None:
    """Return a type if it is a dataclass, which is a table in a table."""
    return kind if isinstance(kind, type) and dataclasses.is_dataclass(kind) else None


def unpack(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without its `Annotated`, and the rules in it.

    >>> unpack(Annotated[int, "rule"]), unpack(int)
    ((<class 'int'>, ('rule',)), (<class 'int'>, ()))
    """
    return (hint.__origin__, hint.__metadata__) if get_origin(hint) is Annotated else (hint, ())


# Values: checked, and converted to what the field holds.


def parse_table(kind: type[T], table: Any, where: str, **more: Any) -> T:
    """Read a dataclass from a table of a recipe or from JSON; an unknown key is refused with the nearest known one."""
    if not isinstance(table, Mapping):
        _refuse(table, where or "the table", "a table of keys and values")
    return kind(**{**_values(kind, table, where), **more})


def _values(kind: type, table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the values of a table, converted, by the fields of a dataclass."""
    options = options_of(kind)
    flat = {name: option.inner for name, option in options.items() if FLAT in option.rules and option.inner}
    inside = {key: name for name, inner in flat.items() for key in keys_of(inner)}
    known, old = keys_of(kind), _old_names(kind)
    values: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {name: {} for name in flat}
    for key, value in table.items():
        if key in old:
            _note(_join(where, key), old[key])
        name = old.get(key) or choose(str(key)[:60], known, f"{where}: key" if where else "key")
        if name in values and key not in old:
            continue  # the old name stands beside the new one: somebody overrides a recipe by it
        if name in inside:
            parts[inside[name]][name] = value
        else:
            values[name] = convert(value, options[name].type, _join(where, name))
    for name, part in parts.items():
        if part and (inner := flat[name]) is not None:
            values[name] = parse_table(inner, part, where)
    needs = [name for name, option in options.items() if option.default is MISSING and name in known]
    if missing := [name for name in needs if name not in values]:
        raise UserError(f"{where} has no {' and no '.join(missing)}; it needs {' and '.join(needs)}")
    return values


def _join(where: str, name: str) -> str:
    """Return the name of an option in messages: a table and its key, or words and a key.

    >>> _join("training", "batch"), _join("rule 'easy': ", "count"), _join("", "count")
    ('training.batch', "rule 'easy': count", 'count')
    """
    return f"{where}{name}" if not where or where.endswith(" ") else f"{where}.{name}"


@cache
def keys_of(kind: type) -> tuple[str, ...]:
    """Return the keys that a table of a dataclass may have."""
    found: list[str] = []
    for name, option in options_of(kind).items():
        if INTERNAL not in option.rules:
            found += keys_of(option.inner) if FLAT in option.rules and option.inner else [name]
    return tuple(found)


@cache
def _old_names(kind: type) -> dict[str, str]:
    return {
        rule.name: option.name for option in options_of(kind).values() for rule in option.rules if isinstance(rule, Old)
    }


@cache
def _note(key: str, name: str) -> None:
    Reporter().say(f"note: {key} is now {name}; the old name stops working in the next release")


def check(options: object, where: str = "") -> None:
    """Check and convert all fields of a frozen dataclass; for its `__post_init__`."""
    kind: Any = type(options)
    for name, option in options_of(kind).items():
        value = getattr(options, name)
        converted = convert(value, option.type, _join(where, name))
        if converted is not value:
            object.__setattr__(options, name, converted)


def convert(value: Any, hint: Any, where: str) -> Any:
    """Return a value as its type says, or raise an error that names it, the rule and the value."""
    kind, rules = unpack(hint)
    if SIZE in rules:
        value = parse_size(value, where) if isinstance(value, str) else value
        minimum = next((int(rule.min or 0) for rule in rules if isinstance(rule, Range)), 0)
        if isinstance(value, int) and 0 <= value < minimum:
            raise UserError(f"{where} is {value:,} bytes; it must be at least {format_size(minimum)}")
    before = value
    try:
        value = _convert(value, kind, where)
    except UserError:
        expected = next((rule.words for rule in rules if isinstance(rule, Expected)), None)
        if expected is None:
            raise
        _refuse(value, where, expected)
    for rule in rules:
        if hasattr(rule, "check") and value is not None:
            is_list = isinstance(value, tuple) and not isinstance(rule, MaxLength)
            for entry in value if is_list else (before if kind is float else value,):
                rule.check(entry, where)
    return value


def _convert(value: Any, kind: Any, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, arguments, where)
    if origin is tuple and arguments[-1] is ... and isinstance(value, list | tuple):
        plain = unpack(arguments[0])[0]
        if plain in _PLAIN and not all(_fits(entry, plain) for entry in value):
            _refuse(value, where, describe(kind))
        return tuple(convert(entry, arguments[0], where) for entry in value)
    if origin is tuple and isinstance(value, list | tuple) and len(value) == len(arguments):
        return tuple(convert(entry, inner, where) for entry, inner in zip(value, arguments, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        shown = {name: name if str(name).isidentifier() else _shown(name) for name in value}
        return {str(name): convert(entry, arguments[1], f"{where}.{shown[name]}") for name, entry in value.items()}
    if (inner := inner_class(kind)) is not None:
        return value if isinstance(value, inner) else parse_table(inner, value, where)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is float and _fits(value, float):
        return float(value)
    if kind is str and isinstance(value, str):
        # lone surrogates, which no file and no JSON can hold
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if origin is not None or (kind in _PLAIN and not _fits(value, kind)):
        _refuse(value, where, describe(kind))
    return value


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value is of a plain type, or becomes one: whole numbers are numbers, texts are paths."""
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if kind is float and isinstance(value, int | float):
        with suppress(OverflowError):
            return math.isfinite(value)
    return kind is not float and isinstance(value, (str, Path) if kind is Path else kind)


def _convert_union(value: Any, kinds: tuple[Any, ...], where: str) -> Any:
    """Convert a value to the first type of several that it fits."""
    if value is None and types.NoneType in kinds:
        return None
    others = [kind for kind in kinds if kind is not types.NoneType]
    for kind in others:
        try:
            return convert(value, kind, where)
        except UserError:
            if len(others) == 1 or isinstance(value, Mapping):
                raise
    _refuse(value, where, " or ".join(dict.fromkeys(map(describe, others))))


_PLAIN = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", Path: "a path"}


def describe(kind: Any) -> str:
    """Return in words what a value of a type is.

    >>> describe(tuple[str, ...]), describe(tuple[int, int])
    ('a list of texts such as ["a", "b"]', 'a list of 2 entries: a whole number, a whole number')
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return describe(arguments[0])
    if origin is tuple and arguments[-1] is ...:
        inner, example = unpack(arguments[0])[0], {str: '["a", "b"]', int: "[1, 2]", float: "[0.5, 1.0]"}
        plural = describe(inner).removeprefix("a ") + "s" if inner in example else "entries"
        return f"a list of {plural}" + (f" such as {example[inner]}" if inner in example else "")
    if origin is tuple:
        return f"a list of {len(arguments)} entries: {', '.join(map(describe, arguments))}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(describe(each) for each in arguments if each is not types.NoneType))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a table of names and values"
    return _PLAIN.get(kind, getattr(kind, "__name__", str(kind)))


def _refuse(value: Any, where: str, expected: str) -> NoReturn:
    raise UserError(f"{where} is {_shown(value)}; it must be {expected}")


def _shown(value: Any) -> str:
    """Return a value for a message, shortened."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = "a very long number"
    return text if len(text) <= 60 else f"{text[:60]}..."


# Plain values of options.


def changed(options: object) -> dict[str, Any]:
    """Return the options that differ from their defaults, as JSON; `parse_table` reads them back.

    >>> changed(Range(0, below=1))
    {'min': 0, 'below': 1}
    """
    values: dict[str, Any] = {}
    kind: Any = type(options)
    for name, option in options_of(kind).items():
        value = getattr(options, name)
        if value == option.default:
            continue
        if option.inner is not None or dataclasses.is_dataclass(value):
            values |= changed(value) if FLAT in option.rules else {name: changed(value)}
        else:
            values[name] = [*value] if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
    return values
