"""Argument conversion for public functions: artifacts by folder, models by name, one text or several.

    build_index("corpus/", "weave", "index/")                  the folder of a corpus is opened
    embed_papers(corpus, "weave", "vectors/")                  a model's name is loaded
    delete_papers(index, "doi:10.1/x")                         one id becomes a list of one id; an index becomes its folder
    explain(index, "doi:10.1/x", "doi:10.1/y")                 ids become rows
    build_graph(7, "graph/")                                   UserError: build_graph: corpus is 7 (int); it must be ...

Works from a function's annotations, so a new function needs nothing here. Its signature then shows what it accepts, as does
`__init__.pyi` to type checkers:

    >>> accepted("Corpus"), accepted("Mapping[str, Sequence[Report]]"), accepted("int", "left_row")
    ('Corpus | str | Path', 'Mapping[str, str | Path | Sequence[Report | str | Path]]', 'int | str')

A wrong argument is refused by name before the
function runs. In a notebook a function that takes a reporter shows progress unless it is given one (`reporter=QUIET` for
silence). Inside the package functions call each other without this.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from operator import index
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.notebook import in_notebook
from citeweave.core.progress import Reporter


class ArgumentType(NamedTuple):
    """An argument type of public functions: a class whose objects can be passed as a folder or a name, and how to open them."""

    module: str
    opener: str
    """A class with `open`, or a function that is called with the name."""

    words: str
    method: str = ""
    """Attribute that identifies a type which users may implement; empty where only our own class counts."""

    maker: str = ""
    """The public function that makes such an object, for messages."""

    stands_in: tuple[str, ...] = ("str", "Path")
    """The types that can be passed in its place."""

    def _resolve(self) -> Any:
        return getattr(importlib.import_module(f"citeweave.{self.module}"), self.opener)

    def open(self, name: str | Path) -> Any:
        """Open the artifact of a folder, or load the model of a name."""
        opener = self._resolve()
        return opener.open(name) if hasattr(opener, "open") else opener(str(name))

    def holds(self, value: object) -> bool:
        """Return whether a value already is of this type."""
        return hasattr(value, self.method) if self.method else isinstance(value, self._resolve())


ARGUMENT_TYPES = {
    "Corpus": ArgumentType("corpus.corpus", "Corpus", "a Corpus or its folder", maker="import_papers"),
    "CitationGraph": ArgumentType(
        "graph.citations", "CitationGraph", "a CitationGraph or its folder", maker="make_graph"
    ),
    "IntentOverlay": ArgumentType(
        "graph.intent_overlay", "IntentOverlay", "an IntentOverlay or its folder", maker="annotate_intents"
    ),
    "Samples": ArgumentType("mining.samples", "Samples", "Samples or their folder", maker="mine_samples"),
    "Vectors": ArgumentType("vectors.vectors", "Vectors", "Vectors or their folder", maker="embed_papers"),
    "Index": ArgumentType("search.index", "Index", "an Index or its folder", maker="build_index"),
    "Report": ArgumentType("evaluation.report", "Report", "a Report or its folder", maker="evaluate"),
    "Encoder": ArgumentType(
        "encoders.encoder", "load_encoder", "an encoder, or the name or folder of a model", "encode"
    ),
    "QueryEncoder": ArgumentType(
        "search.nearest", "QueryEncoder", "a query encoder", maker="open_query_encoder", stands_in=()
    ),
    "System": ArgumentType("evaluation.open_system", "open_system", "a system from open_system, or its name", "scores"),
    "Recipe": ArgumentType("pipeline.recipe", "load_recipe", "a recipe, its name, or a TOML file", "tables"),
    "Classifier": ArgumentType("intents.classifier", "IntentClassifier", "a classifier or its folder", "predict"),
    "Signal": ArgumentType("graph.signals", "Signal", "a Signal or its name", stands_in=("str",)),
    "Query": ArgumentType("search.query", "Query", "a Query or a text", stands_in=("str",)),
}
_WORDS = {
    "str": "a text",
    "Path": "a path",
    "int": "a whole number",
    "Mapping": "a mapping of names",
    "Sequence": "a list",
}


def convert_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a public function so that it takes folders, names and single texts in place of objects and lists."""
    signature, namespace = inspect.signature(function), getattr(function, "__globals__", {})

    @functools.wraps(function)
    def converted(*positional: Any, **named: Any) -> Any:
        try:
            bound = signature.bind(*positional, **named)
        except TypeError as error:
            names = ", ".join(signature.parameters)
            raise TypeError(f"{function.__name__}: {error}; its arguments are {names}") from None
        if "reporter" in signature.parameters and in_notebook():
            bound.arguments.setdefault("reporter", Reporter())
        for name, value in bound.arguments.items():
            annotation = str(signature.parameters[name].annotation)
            if annotation == "int" and name.endswith("row") and isinstance(value, str):
                value = next(each.row(value) for each in bound.arguments.values() if hasattr(each, "row"))
            argument = Argument(f"{function.__name__}: {name}", annotation, namespace)
            bound.arguments[name] = argument.convert(value)
        return function(*bound.args, **bound.kwargs)

    converted.__signature__ = accepted_signature(signature)  # type: ignore[attr-defined]
    return converted


class Artifact(Protocol):
    """An open artifact, such as a `Corpus`, where its folder is wanted."""

    @property
    def folder(self) -> Path | None: ...


def accepted_signature(signature: inspect.Signature) -> inspect.Signature:
    """Return the signature of a public function with every type that its arguments may have."""
    parameters = []
    for position, parameter in enumerate(signature.parameters.values()):
        annotation = str(parameter.annotation)
        if parameter.kind is not parameter.VAR_KEYWORD:
            annotation = accepted(annotation, parameter.name)
        is_input = parameter.name in ("corpus", "model") or (position == 0 and parameter.name != "output")
        if is_input and str(parameter.annotation) == "str | Path":
            annotation += " | Artifact"
        parameters.append(parameter.replace(annotation=annotation))
    return signature.replace(parameters=parameters)


def accepted(annotation: str, name: str = "") -> str:
    """Return the annotation of an argument with all types that `Argument.convert` accepts for it.

    >>> accepted("Encoder | Sequence[Encoder]"), accepted("Sequence[str]"), accepted("Path | None")
    ('Encoder | str | Path | Sequence[Encoder | str | Path]', 'str | Sequence[str]', 'str | Path | None')
    """
    types, names, groups = [], set(), []
    for part in parts_of(annotation):
        if part.startswith("Sequence["):
            inner = accepted(part[len("Sequence[") : -1])
            groups.append(f"Sequence[{inner}]")
            names |= {"str", "Path"} & {*parts_of(inner)}
        elif part.startswith("Mapping[str, "):
            groups.append(f"Mapping[str, {accepted(part[len('Mapping[str, ') : -1])}]")
        elif part in ("str", "Path"):
            names |= {"str", part}
        elif part != "None":
            types.append(part)
            names |= {*ARGUMENT_TYPES[part].stands_in} if part in ARGUMENT_TYPES else set()
    if types == ["int"] and name.endswith("row"):
        names.add("str")
    last = ["None"] if "None" in parts_of(annotation) else []
    return " | ".join([*types, *sorted(names, reverse=True), *groups, *last])


class Argument:
    """One argument of a public function: its name in messages and its annotation."""

    def __init__(self, label: str, annotation: str, namespace: Mapping[str, Any]) -> None:
        self._label, self._namespace = label, namespace
        self._parts = parts_of(annotation)
        self._kinds = [ARGUMENT_TYPES[part] for part in self._parts if part in ARGUMENT_TYPES]

    def convert(self, value: Any) -> Any:
        """Return the argument as the function wants it.

        >>> Argument("delete_papers: ids", "Sequence[str]", {}).convert("doi:10.1/x")
        ['doi:10.1/x']
        """
        is_name = isinstance(value, str | Path)
        if is_name and not {"str", "Path"} & {*self._parts}:
            if any(kind.stands_in for kind in self._kinds):
                return self._open(value)
            if (inner := self._inside("Sequence[")) and {"str", *ARGUMENT_TYPES} & {*parts_of(inner)}:
                value = [value]
        if isinstance(value, str) and "Path" in self._parts and "str" not in self._parts:
            return Path(value)
        if self._parts == ["str", "Path"] and getattr(value, "folder", None) is not None:
            return value.folder
        if (inner := self._inside("Mapping[str, ")) and isinstance(value, Mapping):
            return {
                name: Argument(f"{self._label}[{name!r}]", inner, self._namespace).convert(item)
                for name, item in value.items()
            }
        if (inner := self._inside("Sequence[")) and isinstance(value, list | tuple):
            return [Argument(self._label, inner, self._namespace).convert(item) for item in value]
        # an annotation that is not fully known here accepts anything
        if not any(self._is(value, part) for part in self._parts):
            raise UserError(f"{self._label} is {show(value)}; it must be {self._expected()}{self._advice()}")
        return value

    def _open(self, name: str | Path) -> Any:
        """Open the artifact of a folder, or load the model of a name; the error says which argument is not one."""
        try:
            return next(kind for kind in self._kinds if kind.stands_in).open(name)
        except ArtifactError as error:
            raise ArtifactError(f"{self._label}: {error}{self._advice()}") from None

    def _inside(self, opening: str) -> str:
        """Return what a sequence or mapping in the annotation holds; empty where the argument is neither."""
        return next((part[len(opening) : -1] for part in self._parts if part.startswith(opening)), "")

    def _is(self, value: Any, part: str) -> bool:
        if part in ARGUMENT_TYPES:
            return ARGUMENT_TYPES[part].holds(value)
        if part == "None":
            return value is None
        if part == "int":
            return _is_integer(value)
        if part in ("str", "Path"):
            return isinstance(value, str if part == "str" else Path)
        if part.startswith("Mapping["):
            return isinstance(value, Mapping)
        if part.startswith("Sequence["):
            # an artifact can be indexed, too
            is_artifact = getattr(value, "folder", None) is not None
            return hasattr(value, "__getitem__") and not is_artifact and not isinstance(value, _SIMPLE)
        if part in ("Any", "object"):
            return True
        known = self._namespace.get(part)
        if inspect.isclass(known) and not getattr(known, "_is_protocol", False):
            return isinstance(value, known)
        return not (self._kinds and isinstance(value, _SIMPLE))

    def _expected(self) -> str:
        """Return in words what the argument must be."""
        others = [part for part in self._parts if part not in ARGUMENT_TYPES]
        words = [kind.words for kind in self._kinds] + [_WORDS.get(part.partition("[")[0], part) for part in others]
        return " or ".join(dict.fromkeys(words))

    def _advice(self) -> str:
        """Return which public functions make what the argument must be; empty where none does."""
        makers = [f"citeweave.{kind.maker}" for kind in self._kinds if kind.maker]
        return f" (made by {' or '.join(makers)})" if makers else ""


def as_texts(texts: str | Iterable[str], what: str = "texts") -> list[str]:
    """Return an argument of texts as a list; a single text becomes a list of one, not of its letters.

    >>> as_texts("hello world"), as_texts(("a", "b"))
    (['hello world'], ['a', 'b'])
    """
    items = [texts] if isinstance(texts, str) else list(texts)
    if wrong := [text for text in items if not isinstance(text, str)]:
        raise UserError(f"{what} hold {wrong[0]!r} ({type(wrong[0]).__name__}); they must be texts")
    return items


_SIMPLE = (str, bytes, int, float, Path)


def parts_of(annotation: str) -> list[str]:
    """Split an argument's annotation at the bars outside its brackets.

    >>> parts_of("Mapping[str, str | Path] | Corpus | None")
    ['Mapping[str, str | Path]', 'Corpus', 'None']
    """
    parts, depth = [""], 0
    for character in annotation:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _is_integer(value: Any) -> bool:
    """Return whether a value is an integer, NumPy integers included and booleans not."""
    try:
        return not isinstance(value, bool) and index(value) is not None
    except TypeError:
        return False


def show(value: object) -> str:
    """Return a value and its type for an error message, shortened.

    >>> show([1, 2]), show(b"x" * 100)
    ('[1, 2] (list)', "b'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx... (bytes)")
    """
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:40] + '...'} ({type(value).__name__})"
