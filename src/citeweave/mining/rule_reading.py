"""Reading rules: a `[mining]` table becomes `MiningRules`; a key or a type that does not fit is refused.

>>> rules = parse_rules({"positives": {"source": "cited", "count": 5}})
>>> rules.positives[0].name, rules.positives[0].source
('positives', 'cited')
>>> parse_rules({"positives": {"source": "cited", "coutn": 5}})
Traceback (most recent call last):
citeweave.errors.UserError: mining.positives has an unknown key 'coutn'; did you mean 'count'?
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from citeweave.errors import UserError
from citeweave.finite import is_finite
from citeweave.mining.rule import Rule
from citeweave.mining.rules import ContextFilter, MiningRules


def parse_rules(table: Mapping[str, Any]) -> MiningRules:
    """Read a `[mining]` table; an unknown key is refused with the nearest known one."""
    table = dict(table)
    values: dict[str, Any] = {}
    for side in ("positives", "negatives"):
        values[side] = tuple(_rules_of(side, table.pop(side, {})))
    if "contexts" in table:
        contexts = _table(table.pop("contexts"), "mining.contexts")
        values["contexts"] = ContextFilter(**_known(contexts, ContextFilter, "mining.contexts"))
    tasks = _table(table.pop("tasks", {}), "mining.tasks")
    if tasks and (values["positives"] or values["negatives"]):
        raise UserError("mining has both tasks and rules of its own; give every rule to a task")
    if tasks and (table or "contexts" in values):
        keys = ", ".join([*table, *(["contexts"] if "contexts" in values else [])])
        raise UserError(f"mining has {keys} beside tasks; give them to every task, as mining.tasks.NAME.KEY")
    values["tasks"] = tuple(_task(name, _table(task, f"mining.tasks.{name}")) for name, task in tasks.items())
    return MiningRules(**values, **_tuples(_known(table, MiningRules, "mining")))


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{where} is {value!r}; it must be a table [{where}]")
    return dict(value)


def _task(name: str, table: dict[str, Any]) -> tuple[str, float, MiningRules]:
    weight = table.pop("weight", 1.0)
    if not is_finite(weight) or weight <= 0:
        raise UserError(f"mining.tasks.{name}.weight is {weight!r}; it must be a number over 0")
    try:
        return name, float(weight), parse_rules(table)
    except UserError as error:
        raise UserError(f"mining.tasks.{name}: {error}") from None


def _rules_of(side: str, table: Any) -> list[Rule]:
    if not isinstance(table, Mapping):
        raise UserError(f"mining.{side} is {table!r}; it must be a table with source and count, or one of named rules")
    if "source" in table:
        return [_rule(side, side, table)]
    return [_rule(name, f"{side}.{name}", rule) for name, rule in table.items()]


def _rule(name: str, path: str, table: Any) -> Rule:
    if not isinstance(table, Mapping):
        raise UserError(f"mining.{path} is {table!r}; a rule is a table with source and count")
    values = _tuples(_known(dict(table), Rule, f"mining.{path}"))
    missing = [key for key in ("source", "count") if key not in values]
    if missing:
        raise UserError(f"mining.{path} has no {' and no '.join(missing)}; a rule needs source and count")
    return Rule(name=name, **values)


def _known(table: dict[str, Any], kind: Any, where: str) -> dict[str, Any]:
    """Check keys and the types of values against a dataclass's fields."""
    fields = {entry.name: entry for entry in dataclasses.fields(kind)}
    for key, value in table.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(fields))}"
            raise UserError(f"{where} has an unknown key {key!r}{hint}")
        if not _fits(value, str(fields[key].type)):
            kind = str(fields[key].type)
            told = 'a list of texts such as ["method", "result"]' if kind == "tuple[str, ...]" else kind
            raise UserError(f"{where}.{key} is {value!r}; it must be {told}")
    return table


def _fits(value: Any, kind: str) -> bool:
    kinds = {"int": int, "float": int | float, "str": str, "bool": bool, "tuple": list | tuple}
    allowed = [kinds[part.strip().split("[")[0]] for part in kind.split("|") if part.strip().split("[")[0] in kinds]
    if isinstance(value, bool):
        return bool in allowed
    if kind == "tuple[str, ...]":
        return isinstance(value, list | tuple) and all(isinstance(entry, str) for entry in value)
    return any(isinstance(value, entry) for entry in allowed)


def _tuples(table: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
