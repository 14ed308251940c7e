"""A recipe's tables as TOML, as a run keeps them beside its results; what is written reads back the same.

    >>> print(as_toml({"mining": {"text": "title", "positives": {"count": 5, "band": [0, 25]}}}), end="")
    [mining]
    text = "title"
    <BLANKLINE>
    [mining.positives]
    count = 5
    band = [0, 25]

Knows what recipes hold: texts, numbers, truth values, lists and tables; no dates.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def as_toml(tables: Mapping[str, Any]) -> str:
    """One section a table, values before tables inside it."""
    return "\n\n".join("\n".join(section) for section in _sections(tables, ())) + "\n"


def _sections(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[list[str]]:
    values = [f"{_key(key)} = {_value(value)}" for key, value in table.items() if not isinstance(value, Mapping)]
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    if path and (values or not inner):
        yield [f"[{'.'.join(map(_key, path))}]", *values]
    elif values:
        yield values
    for key, value in inner.items():
        yield from _sections(value, (*path, key))


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(value: Any) -> str:
    """
    >>> _value([1, "a", {"b": 2e-5}]), _value(True), _value(float("inf"))
    ('[1, "a", {b = 2e-05}]', 'true', 'inf')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    assert isinstance(value, int | float), f"{value!r} has no place in a recipe"
    return repr(value)


def _text(text: str) -> str:
    # JSON's escapes are TOML's, except that DEL needs one there
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
