"""The command line: one thin module per family of commands, imported when one of them is used."""

from __future__ import annotations

import difflib
import importlib
import io
import pkgutil
import re
import signal
import sys
from collections.abc import Mapping
from typing import Any

import click

from citeweave.cli.needs import missing_module
from citeweave.core.errors import CiteweaveError
from citeweave.version import __version__

COMMANDS: dict[str, dict[str, str]] = {
    "Your library": {
        "explore": "index",
        "search": "search",
        "similar": "similar",
        "explain": "similar",
        "match": "search",
    },
    "Corpora": {
        "import": "corpus",
        "info": "corpus",
        "audit": "tools",
        "derive": "corpus",
        "synthesize": "corpus",
        "annotate": "intents",
        "intents": "intents",
        "graph": "vectors",
    },
    "Training": {
        "run": "train",
        "sweep": "train",
        "recipes": "train",
        "estimate": "train",
        "mine": "mine",
        "align": "mine",
        "convert": "mine",
        "train": "train",
        "bundle": "train",
        "model": "train",
    },
    "Evaluation": {"evaluate": "evaluate", "compare": "evaluate", "benchmark": "evaluate"},
    "Indexes and services": {
        "embed": "vectors",
        "index": "index",
        "change": "index",
        "store": "index",
        "serve": "index",
        "mcp": "index",
    },
    "Tools": {"copy": "tools", "cache": "tools", "doctor": "tools"},
}
"""Commands by the work they belong to, in the order of `citeweave --help`, and the module of each."""

INNER = {"intents": ("Train and evaluate the citation-intent classifier.", ("train", "evaluate"))}
"""Commands that hold others, such as `citeweave intents train`: their help and the commands in them."""

MODULES = {name: module for group in COMMANDS.values() for name, module in group.items()}


def command_names() -> list[str]:
    """Return all commands as they are typed, such as `mine` and `intents train`."""
    return [f"{name} {inner}".strip() for name in MODULES for inner in INNER.get(name, ("", ("",)))[1]]


class LazyGroup(click.Group):
    """Commands whose modules are imported when they are used; `--help` shows the first clause of each one's help."""

    def __init__(self, name: str, help: str, titles: Mapping[str, Mapping[str, str]]) -> None:
        super().__init__(name, help=help, no_args_is_help=True)
        self._titles = titles
        self._modules = {name: module for group in titles.values() for name, module in group.items()}

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self._modules)

    def get_command(self, ctx: Any, name: str) -> click.Command | None:
        if name not in self._modules:
            return None
        if name in INNER:
            help, inner = INNER[name]
            return LazyGroup(name, help, {"Commands": dict.fromkeys(inner, self._modules[name])})
        from citeweave.cli.options import build_command

        module = importlib.import_module(f"citeweave.cli.{self._modules[name]}")
        return build_command(name, getattr(module, _function_of(name)))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"{error.message}{hint}", ctx) from None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, modules in self._titles.items():
            with formatter.section(title):
                helps = {name: INNER[name][0] if name in INNER else _help(modules[name], name) for name in modules}
                formatter.write_dl([(name, _first_clause(text)) for name, text in helps.items()])


def _function_of(command: str) -> str:
    return "import_" if command == "import" else command


def _help(module: str, command: str) -> str:
    """Read the help of a command from the source of its module, without importing it and what it imports."""
    source = (pkgutil.get_data("citeweave.cli", f"{module}.py") or b"").decode()
    found = re.search(rf'^def {_function_of(command)}\(args: \w+\) -> None:\n    """(.*?)"""', source, re.M | re.DOTALL)
    return found[1] if found else ""


def _first_clause(text: str) -> str:
    """Return the first clause of a command's help.

    >>> _first_clause("Embed the papers of a corpus; an interrupted run resumes.")
    'Embed the papers of a corpus'
    """
    return re.split(r"[:;]|\.(?=\s|$)", " ".join(text.split()))[0]


HELP = """Learn and use vector representations of scientific papers from their text and citations.

\b
  citeweave explore library.bib          your papers in the browser: search, reasons, a map
  citeweave import papers/ -o corpus/    a corpus from files in any supported format
  citeweave run scincl --corpus corpus/ --init minilm -o run/
                                         a model, evaluated before and after training
  citeweave evaluate weave --suite csfcube --data csfcube/ -o report/
                                         a model on a published benchmark
  citeweave serve index/                 an index over HTTP
"""

app = click.version_option(__version__, message="citeweave %(version)s")(LazyGroup("citeweave", HELP, COMMANDS))


def main(arguments: list[str] | None = None) -> None:
    """Run a command; errors are one line on standard error and an exit code, a traceback only with --debug."""
    arguments = sys.argv[1:] if arguments is None else arguments
    signal.signal(signal.SIGINT, _interrupt)
    _write_utf8()
    try:
        app(arguments)
    except CiteweaveError as error:
        _fail(str(error), error.exit_code, debug="--debug" in arguments)
    except _InterruptedError:
        _fail("interrupted; run the same command again to resume", 130, debug=False)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}; finished work is kept", 1, debug="--debug" in arguments)
    except Exception as error:  # an internal error must not show the user a traceback
        if (missing := missing_module(error)) is not None:
            _fail(str(missing), missing.exit_code, debug="--debug" in arguments)
        what = f"{type(error).__name__}: {error}"
        _fail(f"internal error ({what}); please report it with the output of --debug", 1, debug="--debug" in arguments)


def _write_utf8() -> None:
    """Write UTF-8 to files and pipes, whatever the encoding of the system; that of Windows lacks many characters."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.isatty() and stream.encoding.lower() != "utf-8":
            stream.reconfigure(encoding="utf-8", errors=stream.errors)


class _InterruptedError(BaseException):
    """Ctrl-C, as an exception that the command-line library does not catch first."""


def _interrupt(number: int, frame: object) -> None:
    raise _InterruptedError


def _fail(message: str, code: int, *, debug: bool) -> None:
    if debug:
        raise
    print("error:", " ".join(message.splitlines()), file=sys.stderr)
    raise SystemExit(code)
