"""A model card out of a JSON file of facts: nothing in the card is typed by hand.

    card_of_facts(read_facts(Path("facts.json")))
    facts_of_card(card)                                as a manifest keeps them

Keys are those of `ModelCard`. A key that the card does not know, or a value of another kind, is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from citeweave.encoders.saved.model_card import ModelCard
from citeweave.errors import UserError, choose
from citeweave.finite import is_finite

_KINDS: dict[str, type] = {
    **dict.fromkeys(("tables", "data", "options", "audit", "results", "versions", "licences"), dict),
    **dict.fromkeys(("seeds", "limits"), list),
}
"""Facts that are no text."""

_NAMES: dict[type, str] = {str: "text", dict: "table", list: "list"}


def card_of_facts(facts: Mapping[str, Any]) -> ModelCard:
    """The card that some facts make.

    >>> card_of_facts({"name": "tiny", "results": {"MAP": [38.9, 40.1]}, "seeds": [0]}).results
    {'MAP': (38.9, 40.1)}
    >>> card_of_facts({"name": "tiny", "licence": "MIT"})
    Traceback (most recent call last):
    citeweave.errors.UserError: a fact of a model card is 'licence'; it must be one of about, audit, base, base_revision, \
called, data, hardware, held_out, licences, license, limits, name, options, recipe, results, seeds, tables, versions. \
Did you mean 'licences'?
    """
    known = [each.name for each in fields(ModelCard)]
    for name, value in facts.items():
        kind = _KINDS.get(choose(name, known, "a fact of a model card"), str)
        if not isinstance(value, kind) and not (name == "audit" and value is None):
            raise UserError(f"the fact {name} of a model card is {str(value)[:60]!r}; it must be a {_NAMES[kind]}")
    if "name" not in facts:
        raise UserError("the facts of a model card lack the name of the model; add it")
    results = {str(name): _before_and_after(name, pair) for name, pair in facts.get("results", {}).items()}
    return ModelCard(**{**facts, "results": results})


def facts_of_card(card: ModelCard) -> dict[str, Any]:
    """What `card_of_facts` reads again; what is empty is left out."""
    return {name: value for name, value in asdict(card).items() if value}


def _before_and_after(name: str, pair: object) -> tuple[float | None, float | None]:
    if not (isinstance(pair, list | tuple) and len(pair) == 2 and all(map(_is_figure, pair))):
        raise UserError(f"the result {name!r} is {str(pair)[:60]}; it must be two numbers, before and after training")
    return pair[0], pair[1]


def _is_figure(value: object) -> bool:
    return value is None or is_finite(value)
