"""The command line: one thin module per family of commands; heavy imports happen inside the command that needs them."""

from __future__ import annotations

import io
import re
import signal
import sys
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from citeweave.cli import (
    corpus,
    evaluate,
    index,
    intents,
    match,
    mine,
    run,
    search,
    serve,
    similar,
    tools,
    train,
    vectors,
)
from citeweave.cli.needs import missing_module
from citeweave.cli.options import AddressCommand
from citeweave.core.errors import CiteweaveError

COMMANDS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "Search": {
        "explore": serve.explore,
        "search": search.search,
        "similar": similar.similar,
        "explain": similar.explain,
        "match": match.match,
    },
    "Corpora": {
        "import": corpus.import_,
        "info": corpus.info,
        "audit": tools.audit,
        "derive": corpus.derive,
        "synthesize": corpus.synthesize,
        "annotate": intents.annotate,
        "intents": intents.app,
        "graph": vectors.graph,
    },
    "Training": {
        "run": run.run,
        "sweep": run.sweep,
        "recipes": run.recipes,
        "estimate": run.estimate,
        "mine": mine.mine,
        "align": mine.align,
        "convert": mine.convert,
        "train": train.train,
        "bundle": train.bundle,
        "model": train.model,
    },
    "Evaluation": {
        "evaluate": evaluate.evaluate,
        "compare": evaluate.compare,
        "benchmark": evaluate.benchmark,
    },
    "Indexing and serving": {
        "embed": vectors.embed,
        "index": index.index,
        "change": index.change,
        "store": index.store,
        "serve": serve.serve,
    },
    "Tools": {
        "copy": tools.copy,
        "cache": tools.cache,
        "doctor": tools.doctor,
    },
}
"""Commands by the work they belong to, in the order of `citeweave --help`."""


class GroupedCommands(TyperGroup):
    """The commands of `citeweave --help`, in groups, each with the first clause of its own help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, _first_clause(self.commands[name].help)) for name in names])


def _first_clause(text: str | None) -> str:
    """Return the first clause of a command's help.

    >>> _first_clause("Embed the papers of a corpus; an interrupted run resumes.")
    'Embed the papers of a corpus'
    """
    return re.split(r"[:;]|\.(?=\s|$)", " ".join((text or "").split()))[0]


app = typer.Typer(
    name="citeweave",
    cls=GroupedCommands,
    help="Learn and use vector representations of scientific papers from their text and citations.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _name, _command in (item for group in COMMANDS.values() for item in group.items()):
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_name)
    else:
        app.command(_name)(_command)
for _registered in (*app.registered_commands, *intents.app.registered_commands):
    _registered.cls = AddressCommand


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
