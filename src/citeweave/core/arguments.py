"""What the functions of the front door take: an artifact or its folder, a model or its name, one text or several.

    build_index("corpus/", "weave", "index/")                  the folder of a corpus is opened
    embed_papers(corpus, "weave", "vectors/")                  a model's name is loaded
    delete_papers(index, "doi:10.1/x")                         one id is a list of one id; an index is its folder
    explain(index, "doi:10.1/x", "doi:10.1/y")                 ids are rows
    make_graph(7, "graph/")                                    UserError: make_graph: corpus is 7 (int); it must be ...

Reads the annotations of a function, so a new one needs nothing here. What is wrong is refused by name before the function
runs. Inside the package functions call each other without this.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

from citeweave.core.errors import UserError


class Kind(NamedTuple):
    """A class of things that have a folder or a name."""

    module: str
    opener: str
    """A class with `open`, or what is called with the name."""

    words: str
    method: str = ""
    """Something that others may bring is known by an attribute, not by its class."""

    def _resolve(self) -> Any:
        return getattr(importlib.import_module(f"citeweave.{self.module}"), self.opener)

    def open(self, name: str | Path) -> Any:
        found = self._resolve()
        return found.open(name) if hasattr(found, "open") else found(str(name))

    def holds(self, value: object) -> bool:
        return hasattr(value, self.method) if self.method else isinstance(value, self._resolve())


KINDS = {
    "Corpus": Kind("corpus.corpus", "Corpus", "a Corpus or its folder"),
    "CitationGraph": Kind("graph.citations", "CitationGraph", "a CitationGraph or its folder"),
    "IntentOverlay": Kind("graph.intent_overlay", "IntentOverlay", "an IntentOverlay or its folder"),
    "Samples": Kind("mining.samples", "Samples", "Samples or their folder"),
    "Vectors": Kind("vectors.vectors", "Vectors", "Vectors or their folder"),
    "Index": Kind("search.index", "Index", "an Index or its folder"),
    "Report": Kind("evaluation.report", "Report", "a Report or its folder"),
    "Encoder": Kind("encoders.encoder", "load_encoder", "an encoder, or the name or folder of a model", "encode"),
    "Judged": Kind("evaluation.open_system", "open_judged", "something open_judged gives, or its name", "scores"),
    "Recipe": Kind("pipeline.recipe", "load_recipe", "a recipe, its name, or a TOML file", "tables"),
    "Classifier": Kind("intents.classifier", "IntentClassifier", "a classifier or its folder", "predict"),
    "Signal": Kind("graph.signals", "Signal", "a Signal or its name"),
    "Query": Kind("search.query", "Query", "a Query or a text"),
}
PLAIN: dict[str, tuple[type, str]] = {"str": (str, "a text"), "Path": (Path, "a path"), "int": (int, "a whole number")}


def accepting(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with arguments as people give them."""
    signature, known = inspect.signature(function), getattr(function, "__globals__", {})

    @functools.wraps(function)
    def called(*given: Any, **named: Any) -> Any:
        bound = signature.bind(*given, **named)
        for name, value in bound.arguments.items():
            annotation = str(signature.parameters[name].annotation)
            if annotation == "int" and name.endswith("row") and isinstance(value, str):
                value = next(each.row(value) for each in bound.arguments.values() if hasattr(each, "row"))
            argument = Argument(f"{function.__name__}: {name}", annotation, known)
            bound.arguments[name] = argument.take(value)
        return function(*bound.args, **bound.kwargs)

    return called


class Argument:
    """One argument of a function."""

    def __init__(self, what: str, annotation: str, known: Mapping[str, Any]) -> None:
        self._what, self._known = what, known
        self._parts = parts_of(annotation)
        self._kinds = [KINDS[part] for part in self._parts if part in KINDS]

    def take(self, value: Any) -> Any:
        """The value as the function wants it.

        >>> Argument("delete_papers: ids", "Sequence[str]", {}).take("doi:10.1/x")
        ['doi:10.1/x']
        """
        is_name = isinstance(value, str | Path)
        if is_name and not {"str", "Path"} & {*self._parts}:
            if self._kinds:
                return self._kinds[0].open(value)
            if (inner := self._inside("Sequence[")) and {"str", *KINDS} & {*parts_of(inner)}:
                value = [value]
        if self._parts == ["str", "Path"] and getattr(value, "folder", None) is not None:
            return value.folder
        if (inner := self._inside("Mapping[str, ")) and isinstance(value, Mapping):
            return {
                name: Argument(f"{self._what}[{name!r}]", inner, self._known).take(own) for name, own in value.items()
            }
        if (inner := self._inside("Sequence[")) and isinstance(value, list | tuple):
            return [Argument(self._what, inner, self._known).take(own) for own in value]
        if not self._fits(value):
            raise UserError(f"{self._what} is {_shown(value)}; it must be {self._wanted()}")
        return value

    def _inside(self, opening: str) -> str:
        """What a sequence or mapping holds; empty where the argument is none."""
        return next((part[len(opening) : -1] for part in self._parts if part.startswith(opening)), "")

    def _fits(self, value: Any) -> bool:
        """Whether the value may be meant; an annotation of which not all is known here lets anything pass."""
        return any(self._is(value, part) for part in self._parts)

    def _is(self, value: Any, part: str) -> bool:
        if part in KINDS:
            return KINDS[part].holds(value)
        if part == "None":
            return value is None
        if part == "int":
            return _is_whole(value)
        if part in PLAIN:
            return isinstance(value, PLAIN[part][0])
        if part.startswith("Mapping["):
            return isinstance(value, Mapping)
        if part.startswith("Sequence["):
            return hasattr(value, "__getitem__") and not isinstance(value, _SIMPLE)
        if part in ("Any", "object"):
            return True
        found = self._known.get(part)
        if inspect.isclass(found) and not getattr(found, "_is_protocol", False):
            return isinstance(value, found)
        return not (self._kinds and isinstance(value, _SIMPLE))

    def _wanted(self) -> str:
        words = [kind.words for kind in self._kinds]
        words += [PLAIN[part][1] if part in PLAIN else _described(part) for part in self._parts if part not in KINDS]
        return " or ".join(dict.fromkeys(words))


def as_texts(texts: str | Iterable[str], what: str = "texts") -> list[str]:
    """Texts as a list; one text is a list of one, not of its letters.

    >>> as_texts("hello world"), as_texts(("a", "b"))
    (['hello world'], ['a', 'b'])
    """
    found = [texts] if isinstance(texts, str) else list(texts)
    if wrong := [text for text in found if not isinstance(text, str)]:
        raise UserError(f"{what} hold {wrong[0]!r} ({type(wrong[0]).__name__}); they must be texts")
    return found


_SIMPLE = (str, bytes, int, float, Path)


def parts_of(annotation: str) -> list[str]:
    """
    >>> parts_of("Mapping[str, str | Path] | Corpus | None")
    ['Mapping[str, str | Path]', 'Corpus', 'None']
    """
    parts, depth = [""], 0
    for sign in annotation:
        depth += {"[": 1, "]": -1}.get(sign, 0)
        if sign == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]


def _is_whole(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and index(value) is not None
    except TypeError:
        return False


def _described(part: str) -> str:
    names = {"Mapping": "a mapping of names", "Sequence": "a list"}
    return names.get(part.partition("[")[0], part)


def _shown(value: object) -> str:
    """
    >>> _shown([1, 2]), _shown(b"x" * 100)
    ('[1, 2] (list)', "b'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx... (bytes)")
    """
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:40] + '...'} ({type(value).__name__})"
