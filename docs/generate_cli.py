"""Writes docs/cli.md from the commands' own --help; `--check` fails if it is not up to date."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path

from typer import Typer
from typer.main import get_command

from citeweave.cli import COMMANDS, app

PAGE = Path(__file__).parent / "cli.md"
NAMES = [
    f"{name} {inner.name}" if inner else name
    for group in COMMANDS.values()
    for name, command in group.items()
    for inner in (command.registered_commands if isinstance(command, Typer) else [None])
]
HEAD = """# The command line

Generated from `--help` by `make docs`; a test fails when it is not up to date.

Every command prints results on standard output and progress on standard error; `--json` prints one JSON
object and nothing else. Exit codes: 0 done, 1 our fault, 2 your mistake, 130 interrupted.

Options of nearly every command, left out below:

    --json     Print one JSON object on standard output.
    --quiet    Show no progress and no notes.
    --debug    Show tracebacks of errors.
    --help     Show this message and exit.
"""
COMMON = ("  --json ", "  --quiet ", "  --debug ", "  --help ")


def help_text(*command: str) -> str:
    """What the command prints, a hundred columns wide; all in one process, for starting Python takes longer."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        get_command(app).main([*command, "--help"], prog_name="citeweave", standalone_mode=False)
    lines = printed.getvalue().strip().splitlines()
    return "\n".join(line.rstrip() for line in lines if not line.startswith(COMMON)).removesuffix("\n\nOptions:")


def page() -> str:
    sections = [HEAD, f"```\n{help_text()}\n```\n"]
    sections += [f"## citeweave {command}\n\n```\n{help_text(*command.split())}\n```\n" for command in NAMES]
    return "\n".join(sections)


def main() -> None:
    os.environ |= {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    if "--check" in sys.argv:
        if not PAGE.exists() or PAGE.read_text() != page():
            sys.exit("docs/cli.md is not up to date; run `make docs`")
    else:
        PAGE.write_text(page())


if __name__ == "__main__":
    main()
