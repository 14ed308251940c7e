"""The command line: one thin module per family of commands; heavy imports happen inside the command that needs them."""

from __future__ import annotations

import io
import signal
import sys

import typer

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

app = typer.Typer(
    name="citeweave",
    help="Vector representations of scientific papers from their text and their citations.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("synthesize")(corpus.synthesize)
app.command("import")(corpus.import_)
app.command("info")(corpus.info)
app.command("derive")(corpus.derive)
app.command("annotate")(intents.annotate)
app.add_typer(intents.app, name="intents")
app.command("graph")(vectors.graph)
app.command("mine")(mine.mine)
app.command("align")(mine.align)
app.command("train")(train.train)
app.command("bundle")(train.bundle)
app.command("run")(run.run)
app.command("sweep")(run.sweep)
app.command("recipes")(run.recipes)
app.command("estimate")(run.estimate)
app.command("audit")(tools.audit)
app.command("convert")(mine.convert)
app.command("model")(train.model)
app.command("embed")(vectors.embed)
app.command("similar")(similar.similar)
app.command("explain")(similar.explain)
app.command("index")(index.index)
app.command("change")(index.change)
app.command("search")(search.search)
app.command("store")(index.store)
app.command("serve")(serve.serve)
app.command("explore")(serve.explore)
app.command("match")(match.match)
app.command("evaluate")(evaluate.evaluate)
app.command("compare")(evaluate.compare)
app.command("benchmark")(evaluate.benchmark)
app.command("copy")(tools.copy)
app.command("cache")(tools.cache)
app.command("doctor")(tools.doctor)
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
