"""Fields of request bodies and URL parameters, made from the options of a dataclass, with their bounds and descriptions.

    class GraphRequest(Body):
        __annotations__ = request_fields(GraphOptions)

    >>> from citeweave.search.query import Filter
    >>> sorted(request_fields(Filter))[:3]
    ['authors', 'collections', 'fields']

Of a request every key is named and every type strict, and every length bounded by the rules of the option.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from citeweave.core.options import MaxLength, NotBlank, OneOf, Range, inner_class, options_of, unpack
from citeweave.search.query import Query


class Body(BaseModel):
    """The JSON body of a request, which has no unknown key and no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True)


def request_fields(kind: type) -> dict[str, Any]:
    """Return the fields of a request body: the options that a class declares, with their bounds and descriptions."""
    fields = {}
    for name, option in options_of(kind).items():
        bounded, default = _bounded(option.type), option.default
        if option.inner is not None:
            bounded, default = bounded | None, None
        default = list(default) if isinstance(default, tuple) else default
        fields[name] = Annotated[bounded, Field(default=default, description=option.help, validate_default=False)]
    return fields


def _bounded(hint: Any) -> Any:
    """Return the type of an option as pydantic reads it, with the bounds that its rules set."""
    kind, rules = unpack(hint)
    origin, arguments = get_origin(kind), get_args(kind)
    bounds: dict[str, Any] = {"allow_inf_nan": False} if kind is float else {}
    for rule in rules:
        if isinstance(rule, Range):
            bounds |= {"ge": rule.min, "le": rule.max, "gt": rule.above, "lt": rule.below}
        elif isinstance(rule, MaxLength):
            bounds |= {"max_length": rule.length}
        elif isinstance(rule, NotBlank):
            bounds |= {"min_length": 1}
        elif isinstance(rule, OneOf):
            kind = Literal[tuple(rule.choices)]
    if origin is tuple:
        kind = list[_either(each for each in dict.fromkeys(arguments) if each is not ...)]  # type: ignore[misc]
        bounds |= {} if arguments[-1] is ... else {"min_length": len(arguments), "max_length": len(arguments)}
    elif origin in (Union, UnionType):
        kind = _either(arguments)
    elif option_class := inner_class(kind):
        body = {"__annotations__": request_fields(option_class), "__doc__": kind.__doc__, "__module__": __name__}
        kind = type(f"{kind.__name__}Request", (Body,), body)
    return Annotated[kind, Field(**bounds)] if bounds else kind


def _either(kinds: Iterable[Any]) -> Any:
    return reduce(or_, map(_bounded, kinds))


def like(name: str) -> Any:
    """Return the bounds and the description of an option of a query, for a URL parameter of the same meaning."""
    option = options_of(Query)[name]
    bounds = getattr(_bounded(option.type), "__metadata__", (Field(),))[0]
    return FieldInfo.merge_field_infos(bounds, description=option.help)
