"""Every published recipe has the values that its text publishes, key by key; what no text decides is listed in the docs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from citeweave.pipeline.recipe import load_recipe, shipped_recipes

TABLE: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "published_values.toml").read_text("utf-8"))
OURS = {
    "cite_titles",
    "cocite_fastrp",
    "intent_heads",
    "intent_spaces",
    "mlm_start",
    "sciaspect_bands",
    "sciaspect_relations",
    "tiny",
    "weave",
    "weave_base",
    "weave_taught",
}
"""Recipes of our own, some of them what a text leaves as future work."""

SOURCE = re.compile(
    r"section \d|appendix [A-Z]|equation \d|experiment \d|Tables? \d|released|ours|SPECTER's|SciNCL, |BERT's|BigGraph's|Lee et al"
)
DOCS = Path(__file__).parents[2] / "docs" / "recipes.md"


def flat(tables: dict[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tables.items():
        found |= flat(value, f"{before}{key}.") if isinstance(value, dict) else {f"{before}{key}": value}
    return found


def published(name: str) -> dict[str, tuple[Any, str]]:
    """The rows of a recipe, those that it shares with another included: key -> value, section."""
    own = dict(TABLE[name])
    base, without = own.pop("of", ""), own.pop("without", [])
    rows = published(base) if base else {}
    kept = {key: row for key, row in rows.items() if not any(f"{key}.".startswith(f"{part}.") for part in without)}
    return kept | {key: (value, source) for key, (value, source) in own.items()}


def test_every_shipped_recipe_is_in_the_table_or_ours() -> None:
    assert set(TABLE) | OURS == set(shipped_recipes()) and not set(TABLE) & OURS


@pytest.mark.parametrize("name", TABLE)
def test_values_are_the_published_ones(name: str) -> None:
    tables = {key: table for key, table in load_recipe(name).tables.items() if key != "recipe"}
    rows = published(name)
    assert flat(tables) == {key: value for key, (value, _) in rows.items()}
    assert [key for key, (_, source) in rows.items() if not SOURCE.search(source)] == []


def test_decisions_of_ours_are_in_the_docs() -> None:
    text = DOCS.read_text("utf-8").split("## What the texts leave open")[1].split("\n## ")[0]
    for name, rows in TABLE.items():
        decided = [key for key, row in rows.items() if key not in ("of", "without") and row[1].startswith("ours")]
        assert not decided or f"`{name}`" in text, f"{name}: {', '.join(decided)}"
