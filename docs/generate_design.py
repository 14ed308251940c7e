"""Writes the lists of rooms and files into docs/design.md, from the modules' first lines; `--check` fails if they are old."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

PAGE = Path(__file__).parent / "design.md"
SOURCE = Path(__file__).parent.parent / "src" / "citeweave"
ROOMS = (
    *("core", "corpus", "vectors", "remote", "graph", "encoders", "mining", "evaluation", "training", "search"),
    *("baselines", "intents", "pipeline", "serve", "cli"),
)
BEGIN, END = "<!-- generated -->\n", "<!-- end -->\n"


def first_line(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0]


def rooms() -> str:
    """One heading and one list of files per room; a package's `__init__.py` describes the room."""
    parts = []
    for room in ROOMS:
        files = sorted(
            path for path in (SOURCE / room).rglob("*.py") if path.read_text(encoding="utf-8").count("\n") > 1
        )
        items = [f"- `{path.relative_to(SOURCE).as_posix()}`: {first_line(path)}\n" for path in files]
        parts.append(f"\n### {room}\n\n{first_line(SOURCE / room / '__init__.py')}\n\n{''.join(items)}")
    return "".join(parts) + "\n"


def page() -> str:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}{rooms()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        sys.exit("docs/design.md is not up to date; run `make docs`")
