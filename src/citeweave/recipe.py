"""Recipes: one TOML file names what is embedded, which rules choose samples, and what is trained.

    [recipe]   about, source
    [graph]    what node vectors are made of: see `graph/making.py`
    [mining]   the rules: see `mining/rules.py`

A shipped recipe is named (`scincl`), another is a path (`my.toml`). Single values are overridden by
`mining.positives.band=200` and removed by `mining.negatives.hard=`; a key that no part of citeweave knows is refused when the table is used.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from citeweave.errors import UserError, choose

TABLES = ("recipe", "graph", "mining")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe as read, with its overrides applied."""

    name: str
    tables: dict[str, Any]

    def table(self, name: str) -> dict[str, Any]:
        """A table of the recipe, empty where it has none."""
        value = self.tables.get(name, {})
        if not isinstance(value, dict):
            raise UserError(f"recipe {self.name}: {name} is {value!r}; it must be a table [{name}]")
        return value


def shipped_recipes() -> list[str]:
    """Names of the recipes that come with citeweave."""
    files = resources.files("citeweave") / "recipes"
    return sorted(entry.name.removesuffix(".toml") for entry in files.iterdir() if entry.name.endswith(".toml"))


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a shipped recipe by its name, or a file by its path.

    >>> load_recipe("scincl", ["mining.positives.band=200"]).table("mining")["positives"]["band"]
    200
    """
    if "." in name or "/" in name:
        path = Path(name)
        if not path.is_file():
            raise UserError(f"recipe {name} does not exist; shipped are {', '.join(shipped_recipes())}")
        text = path.read_bytes()
    else:
        choose(name, shipped_recipes(), "--recipe")
        text = (resources.files("citeweave") / "recipes" / f"{name}.toml").read_bytes()
    try:
        tables = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"recipe {name} is not TOML ({error}); repair that line") from None
    for entry in overrides:
        _override(tables, entry)
    for key in tables:
        choose(key, TABLES, f"recipe {name}: table")
    return Recipe(name, tables)


def _override(tables: dict[str, Any], entry: str) -> None:
    path, equals, text = entry.partition("=")
    keys = path.strip().split(".")
    if not equals or len(keys) < 2 or not all(keys):
        raise UserError(f"--set is {entry!r}; it must be TABLE.KEY=VALUE, such as mining.positives.band=200")
    at = tables
    for key in keys[:-1]:
        at = at.setdefault(key, {})
        if not isinstance(at, dict):
            raise UserError(f"--set is {entry!r}, but {key} is a value and has no keys of its own")
    if text.strip():
        at[keys[-1]] = _value(text.strip())
    else:
        at.pop(keys[-1], None)


def _value(text: str) -> Any:
    """A TOML value, or the text itself where it is none.

    >>> _value("200"), _value("0.6%"), _value("[1, 2]"), _value("true")
    (200, '0.6%', [1, 2], True)
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
