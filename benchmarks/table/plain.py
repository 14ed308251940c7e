"""Suites as plain data: JSON and arrays out of tasks, and the same tasks again. Nothing in it is run.

>>> arrays = {}
>>> rule = RankingRule(metrics=("map",))
>>> decode(encode(rule, arrays), arrays) == rule
True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import ArtifactError
from citeweave.evaluation.tasks import (
    Average,
    Pools,
    ProbeRule,
    ProbeTask,
    RankingRule,
    RankingTask,
    SearchTask,
    Suite,
    TaskTexts,
)

Arrays = dict[str, NDArray[Any]]
KINDS = {
    kind.__name__: kind
    for kind in (Suite, RankingTask, SearchTask, ProbeTask, Pools, RankingRule, ProbeRule, Average, TaskTexts)
}


def encode(value: Any, arrays: Arrays, known: dict[int, Any] | None = None) -> Any:
    """JSON of a value; its arrays go to `arrays`. Texts that tasks share are written once."""
    known = {} if known is None else known
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return {"@objects": [encode(each, arrays, known) for each in value.tolist()]}
        arrays[name := f"a{len(arrays)}"] = value
        return {"@array": name}
    if is_dataclass(value) and not isinstance(value, type):
        if isinstance(value, TaskTexts) and id(value) in known:
            return {"@again": known[id(value)]}
        found = {each.name: encode(getattr(value, each.name), arrays, known) for each in fields(value) if each.init}
        number = len(known)
        if isinstance(value, TaskTexts):
            known[id(value)] = number
        return {"@kind": type(value).__name__, "@number": number, "@fields": found}
    if isinstance(value, Mapping):
        return {"@mapping": [[key, encode(each, arrays, known)] for key, each in value.items()]}
    if isinstance(value, tuple):
        return {"@tuple": [encode(each, arrays, known) for each in value]}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return [encode(each, arrays, known) for each in value]


def decode(value: Any, arrays: Mapping[str, NDArray[Any]], known: dict[int, Any] | None = None) -> Any:
    """The value that `encode` was given."""
    known = {} if known is None else known
    if isinstance(value, list):
        return [decode(each, arrays, known) for each in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"@array": name}:
            return arrays[name]
        case {"@objects": items}:
            found = np.empty(len(items), object)
            found[:] = [decode(each, arrays, known) for each in items]
            return found
        case {"@again": number}:
            return known[number]
        case {"@mapping": items}:
            return {key: decode(each, arrays, known) for key, each in items}
        case {"@tuple": items}:
            return tuple(decode(each, arrays, known) for each in items)
        case {"@kind": kind, "@number": number, "@fields": inner} if kind in KINDS:
            made = KINDS[kind](**{name: decode(each, arrays, known) for name, each in inner.items()})
            if isinstance(made, TaskTexts):
                known[number] = made
            return made
    raise ArtifactError(
        f"a suite of the bundle holds {sorted(value)[:3]}, which is no part of one; make the bundle again"
    )
