"""What may stand in a recipe at all, whatever its keys mean: checked before any of them is read.

    >>> check_values({"training": {"steps": 10**30}}, "my.toml")
    Traceback (most recent call last):
    citeweave.errors.UserError: my.toml: training.steps is 1000000000000000000000000000000; it must be between -2**63 and 2**63

A recipe may come from anybody. Numbers are finite and fit into 64 bits, texts are short and printable, tables are not
deep. Does not know which keys there are: each table's own reader does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from citeweave.errors import UserError
from citeweave.finite import is_finite

MAX_BYTES = 1 << 20
"""Of a recipe's file."""

MAX_BASES = 16
"""Recipes that build on each other."""

MAX_NAME = 1000
"""Characters of a recipe's name."""

PROSE = ("about", "source")
"""Keys of [recipe] for people, in which lines may end."""

_MAX_TEXT, _MAX_KEY, _MAX_LIST, _MAX_DEPTH = 4000, 100, 1000, 8


def check_values(table: Mapping[str, Any], name: str, path: str = "") -> None:
    """Refuse the first value that cannot be meant."""
    if path.count(".") >= _MAX_DEPTH:
        raise UserError(f"{name}: {path} is deeper than {_MAX_DEPTH} tables; a recipe has no tables so deep")
    for key, value in table.items():
        if not 1 <= len(key) <= _MAX_KEY or not key.isprintable():
            raise UserError(
                f"{name}: {path or 'the recipe'} has the key {shown(key)}; a key has 1 to {_MAX_KEY} printable characters"
            )
        inner = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            check_values(value, name, inner)
        elif rule := _broken(value, inner, 0):
            raise UserError(f"{name}: {inner} is {shown(value)}; it must be {rule}")


def _broken(value: Any, path: str, depth: int) -> str:
    """The rule that a value breaks; empty where it breaks none."""
    if isinstance(value, list | tuple):
        if len(value) > _MAX_LIST or depth >= _MAX_DEPTH:
            return f"a list of at most {_MAX_LIST:,} values, and at most {_MAX_DEPTH} lists deep"
        return next((rule for entry in value if (rule := _broken(entry, path, depth + 1))), "")
    if isinstance(value, bool):
        return ""
    if isinstance(value, int):
        return "" if -(2**63) < value < 2**63 else "between -2**63 and 2**63"
    if isinstance(value, float):
        return "" if is_finite(value) else "a finite number"
    if isinstance(value, str):
        lines = value.split("\n") if path in [f"recipe.{key}" for key in PROSE] else [value]
        is_sound = len(value) <= _MAX_TEXT and all(line.isprintable() for line in lines)
        return "" if is_sound else f"a text of at most {_MAX_TEXT:,} printable characters"
    return "a text, a number, true or false, a list, or a table"


def shown(value: object, most: int = 60) -> str:
    """A value in a message: on one line, and not longer than a line.

    >>> shown("a\\nb"), shown([1] * 100)[-12:], shown(16**5000)
    ("'a\\\\nb'", ' 1, 1, 1,...', 'a number of 20,001 bits')
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python writes no number of more than 4,300 digits
        return f"a number of {value.bit_length():,} bits" if isinstance(value, int) else type(value).__name__
    return text if len(text) <= most else text[:most] + "..."
