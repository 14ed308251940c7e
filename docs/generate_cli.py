"""Writes docs/cli.md from the commands' own --help, and tables of options from their classes; `--check` only compares."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from citeweave.cli import app, command_names
from citeweave.core.options import FLAT, INTERNAL, SIZE, format_size, options_of

PAGE = Path(__file__).parent / "cli.md"
HEAD = """# The command line

Generated from `--help` by `make docs`; a test fails when it is not up to date.

Every command prints results on standard output and progress on standard error; `--json` prints one JSON
object and nothing else. Exit codes: 0 done, 1 our fault, 2 your mistake, 130 interrupted.

Options of nearly every command, left out below:

    -o, --output  Output folder.
    --overwrite   Replace an output folder made from different inputs or options.
    --json        Print one JSON object on standard output.
    --quiet       Show no progress and no notes.
    --debug       Show tracebacks of errors.
    --help        Show this message and exit.
"""
COMMON = re.compile(
    r"^  (?:-o, --output PATH +Output\s+folder\.  \[required\]|--overwrite +Replace\s+an\s+output\s+folder\s+made\s+from\s+"
    r"different\s+inputs\s+or\s+options\.|--(?:json|quiet|debug|help) .*)\n",
    re.MULTILINE,
)


def help_text(*command: str) -> str:
    """What the command prints, a hundred columns wide; all in one process, for starting Python takes longer."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        app.main([*command, "--help"], prog_name="citeweave", standalone_mode=False)
    text = "\n".join(line.rstrip() for line in printed.getvalue().splitlines())
    return COMMON.sub("", f"{text}\n").strip().removesuffix("\n\nOptions:")


def page() -> str:
    texts = {command: help_text(*command.split()) for command in command_names()}
    texts["sweep"] = without_options(texts["sweep"], texts["run"])
    sections = [f"## citeweave {command}\n\n```\n{text}\n```\n" for command, text in texts.items()]
    return "\n".join([HEAD, f"```\n{help_text()}\n```\n", *sections])


def without_options(text: str, other: str) -> str:
    """Return the help of a command without the options that `run` also has."""
    flags = {*re.findall(r"^  (--[a-z-]+)", other, re.MULTILINE)}
    blocks = re.split(r"^(?=  --)", text, flags=re.MULTILINE)
    own = [block for block in blocks if block.split(maxsplit=1)[0] not in flags]
    return "".join(own).rstrip() + "\n\n  and the options of `citeweave run`, except --dry-run."


def options_table(kind: type) -> str:
    """Return the options of a dataclass as a Markdown table, for the docs; those of tables in it with their name."""
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *_rows(kind, "")])


def _rows(kind: type, prefix: str) -> Iterator[str]:
    for name, option in options_of(kind).items():
        if INTERNAL in option.rules:
            continue
        if option.inner is not None:
            yield from _rows(option.inner, prefix if FLAT in option.rules else f"{prefix}{name}.")
            continue
        shown = "" if option.default is MISSING else _toml(option.default, option.rules)
        text = option.help.replace("|", "\\|").removesuffix(".")
        yield f"| `{prefix}{name}` | {f'`{shown}`' if shown else ''} | {text} |"


def _toml(value: Any, rules: tuple[Any, ...]) -> str:
    """Return a default as a recipe writes it; empty if it has none."""
    if SIZE in rules:
        return f'"{format_size(value)}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(entry, ()) for entry in value)}]" if value else ""
    return "" if value is None or value == "" else f'"{value}"' if isinstance(value, str | Path) else f"{value}"


TABLE = re.compile(r"(<!-- options of ([a-z_.]+)\.(\w+) -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)


def with_tables(text: str) -> str:
    """Return a page with every marked table of options as the class declares them."""

    def table(found: re.Match[str]) -> str:
        kind = getattr(importlib.import_module(f"citeweave.{found[2]}"), found[3])
        return f"{found[1]}{options_table(kind)}{found[4]}"

    return TABLE.sub(table, text)


def main() -> None:
    os.environ |= {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    pages = {path: with_tables(path.read_text()) for path in PAGE.parent.glob("*.md")} | {PAGE: page()}
    for path, text in pages.items():
        if path.exists() and path.read_text() == text:
            continue
        if "--check" in sys.argv:
            sys.exit(f"docs/{path.name} is not up to date; run `make docs`")
        path.write_text(text)


if __name__ == "__main__":
    main()
