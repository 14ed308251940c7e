"""Writes docs/reference.md, the API reference, from the docstrings of all public names; `--check` only compares."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import citeweave

sys.path.insert(0, str(Path(__file__).parent))
from generate_cli import options_table

PAGE = Path(__file__).parent / "reference.md"
ROOMS = {
    "corpus": "Papers and citations",
    "search": "Search",
    "serve": "Explore and serve",
    "graph": "Citation graphs",
    "vectors": "Vectors",
    "encoders": "Encoders",
    "mining": "Training samples",
    "training": "Training",
    "pipeline": "Recipes",
    "evaluation": "Evaluation",
    "intents": "Citation intents",
    "baselines": "Baselines",
}
HEAD = """# API reference

Generated from docstrings by `make docs`; a test fails when it is not up to date.

    import citeweave

All names below are attributes of `citeweave`, loaded when first used. Wherever a function takes a corpus, a graph, vectors, samples, an
index or a report, the folder of one will do; wherever it takes an encoder or a recipe, its name. The signatures show this, also to type
checkers (`__init__.pyi`); an `Artifact` is any object with a folder. Functions that work for long take a
`reporter`: in a notebook they show progress by default, elsewhere with `reporter=Reporter()` of `citeweave.core.progress`. Errors that you
can act on are `citeweave.core.errors.CiteweaveError`, one line each.
"""


def reference() -> str:
    """The complete page: rooms in the order of `ROOMS`, names in each sorted, functions before classes."""
    rooms: dict[str, list[str]] = {room: [] for room in ROOMS}
    for module, names in citeweave._NAMES.items():
        rooms[module.split(".")[0]] += names.split()
    parts = [HEAD]
    for room, title in ROOMS.items():
        parts.append(f"## {title}\n")
        parts += [entry(name) for name in sorted(rooms[room], key=lambda name: (name[0].isupper(), name))]
    return "\n".join(parts)


def entry(name: str) -> str:
    """Heading, signature, docstring and, of a class, its options or its members."""
    thing = getattr(citeweave, name)
    lines = [f"### {name}\n"]
    if inspect.isfunction(thing):
        lines.append(f"```py\n{signature(name, thing)}\n```\n")
    lines.append(prose(thing))
    if inspect.isclass(thing):
        lines += members(thing)
    module = inspect.unwrap(thing).__module__ if inspect.isfunction(thing) else thing.__module__
    lines.append(f"Defined in `{module.replace('.', '/')}.py`.\n")
    return "\n".join(lines)


def prose(thing: Any) -> str:
    """A docstring as Markdown: its examples become blocks of code."""
    text = inspect.getdoc(thing) or ""
    blocks = [block for block in re.split(r"\n(?:[ \t]*\n)+", text) if block]
    return "".join(
        f"```pycon\n{textwrap.dedent(block)}\n```\n\n" if is_example(block) else f"{code(block)}\n\n"
        for block in blocks
    )


def is_example(block: str) -> bool:
    return block.lstrip().startswith(">>>")


def code(block: str) -> str:
    """A paragraph as it is, or an indented block of code as a fenced one."""
    indented = all(line.startswith("    ") for line in block.rstrip().splitlines())
    return f"```py\n{textwrap.dedent(block)}\n```" if indented else block


def signature(name: str, function: Any) -> str:
    """The signature of a function, one parameter per line where it is long; objects as defaults are shortened."""
    found = inspect.signature(function)
    shown = [parameter(each) for each in found.parameters.values()]
    kinds = [p.kind for p in found.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        shown.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    back = "" if found.return_annotation is found.empty else f" -> {str(found.return_annotation).strip(chr(39))}"
    line = f"{name}({', '.join(shown)}){back}"
    return line if len(line) <= 80 else f"{name}(\n    " + ",\n    ".join(shown) + f",\n){back}"


def parameter(each: inspect.Parameter) -> str:
    """One parameter with its type and its default: options and other objects by the name of their class."""
    kind = (
        f"{each.name}: {each.annotation}" if each.kind is not each.VAR_KEYWORD else f"**{each.name}: {each.annotation}"
    )
    if each.default is each.empty:
        return kind
    is_plain = each.default is None or isinstance(each.default, str | int | float | tuple | Path | dict)
    name = getattr(each.default, "__name__", f"{type(each.default).__name__}(...)")
    return f"{kind} = {repr(each.default) if is_plain else name}"


def members(kind: type) -> Iterator[str]:
    """Of options their table, of other classes their fields, properties and methods, one per line."""
    if kind.__name__.endswith("Options") or kind.__name__ in ("Filter", "Query"):
        yield f"{options_table(kind)}\n"
        return
    rows = [f"| `{name}` | {first_line(text)} |" for name, text in attributes(kind)]
    rows += [
        f"| `{name}{short_signature(each)}` | {first_line(inspect.getdoc(each) or '')} |"
        for name, each in methods(kind)
    ]
    if rows:
        yield "| member | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"


def attributes(kind: type) -> Iterator[tuple[str, str]]:
    """Fields of a dataclass and properties, with the texts below them in the source."""
    notes = notes_in(kind)
    names = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    names += [
        name
        for name, each in vars(kind).items()
        if not callable(each) and not name.startswith("_") and is_property(each)
    ]
    kinds = inspect.get_annotations(kind)
    for name in dict.fromkeys(names):
        yield (
            f"{name}: {kinds[name]}" if name in kinds else name,
            notes.get(name) or inspect.getdoc(vars(kind).get(name)) or "",
        )


def is_property(each: Any) -> bool:
    return isinstance(each, property) or type(each).__name__ == "cached_property"


def notes_in(kind: type) -> dict[str, str]:
    """The text below each field of a class in its source, where there is one."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    notes = {}
    for line, below in pairwise(tree.body):
        if (
            isinstance(line, ast.Assign | ast.AnnAssign)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            target = line.targets[0] if isinstance(line, ast.Assign) else line.target
            notes[ast.unparse(target)] = inspect.cleandoc(str(below.value.value))
    return notes


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods of a class and of its parents in this package, and whether `len` and `[]` work."""
    found: dict[str, Any] = {}
    for owner in kind.__mro__:
        if owner.__module__.startswith("citeweave"):
            for name, each in vars(owner).items():
                plain = getattr(each, "__func__", each)
                if inspect.isfunction(plain) and not name.startswith("_") and inspect.getdoc(plain):
                    found.setdefault(name, plain)
    yield from found.items()


def short_signature(function: Any) -> str:
    names = [
        p.name if p.default is p.empty else f"{p.name}=..." for p in inspect.signature(function).parameters.values()
    ]
    return f"({', '.join(name for name in names if name not in ('self', 'cls'))})"


def first_line(text: str) -> str:
    """The first paragraph of a docstring on one line of a table."""
    return " ".join(re.split(r"\n\s*\n", text)[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(reference(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != reference():
        sys.exit("docs/reference.md is not up to date; run `make docs`")
