"""citeweave serve"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from citeweave.cli.options import Debug, Device, Quiet, named_paths, reporter_of
from citeweave.errors import UserError

if TYPE_CHECKING:
    from citeweave.serve.options import ServeOptions

_Index = Annotated[Path, typer.Argument(help="Folder of an index.", show_default=False)]
_Compare = Annotated[
    list[str], typer.Option("--compare", help="NAME=INDEX: another index to ask by name; may be repeated.")
]
_Samples = Annotated[
    Path | None, typer.Option("--samples", help="Folder of mined samples to look at.", show_default=False)
]
_Corpus = Annotated[
    Path | None, typer.Option("--corpus", help="With --samples: the corpus they were mined from.", show_default=False)
]
_Host = Annotated[str, typer.Option("--host", help="Address to listen at; 127.0.0.1 is this machine only.")]
_Port = Annotated[int, typer.Option("--port", help="Port to listen at.")]
_Workers = Annotated[int, typer.Option("--workers", help="Processes; each loads the model by itself.")]
_Allow = Annotated[
    list[str], typer.Option("--allow-host", help="Name under which clients may ask, * for any; may be repeated.")
]
_Rate = Annotated[float, typer.Option("--rate", help="Requests a second of one client address; 0 = any number.")]
_Time = Annotated[float, typer.Option("--time-limit", help="Seconds of a request.")]
_Concurrent = Annotated[int, typer.Option("--concurrent", help="Requests worked on at a time, in each process.")]
_Runtime = Annotated[
    str,
    typer.Option(
        "--runtime",
        help="What computes the network: auto, torch, openvino or int8; else as the index was made.",
        show_default=False,
    ),
]
_Log = Annotated[str, typer.Option("--log", help="Form of the log's lines: json, text or none.")]
_Model = Annotated[
    str, typer.Option("--model", help="Where the index's model is now, if it moved.", show_default=False)
]


def serve(
    index: _Index,
    compare: _Compare = [],  # noqa: B006 - typer reads the default and makes a list of its own
    samples: _Samples = None,
    corpus: _Corpus = None,
    host: _Host = "127.0.0.1",
    port: _Port = 8000,
    workers: _Workers = 1,
    allow_host: _Allow = [],  # noqa: B006
    rate: _Rate = 0.0,
    time_limit: _Time = 30.0,
    concurrent: _Concurrent = 64,
    log: _Log = "text",
    model: _Model = "",
    runtime: _Runtime = "",
    device: Device = "auto",
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Serve an index over HTTP: the page at /, the API's description at /docs."""
    from citeweave.extras import require

    require("uvicorn", extra="serve")
    require("fastapi", extra="serve")
    from citeweave.serve.options import ServeOptions
    from citeweave.serve.running import check_port, is_local

    _check(port, workers)
    folders = {"main": index, **named_paths(compare, "--compare", "other=other-index")}
    names = [*allow_host, *([] if host in ("0.0.0.0", "::") else [f"[{host}]" if ":" in host else host])]
    options = ServeOptions(
        allow_hosts=tuple(names),
        samples=str(samples or ""),
        corpus=str(corpus or ""),
        model=model,
        device=device,
        runtime=runtime,
        rate=rate,
        time_limit=time_limit,
        concurrent=concurrent,
        log="none" if quiet else log,
        debug=debug,
    )
    if not is_local(host):
        print(f"warning: {host} can be reached from other machines, and there is no password", file=sys.stderr)
    check_port(host, port)
    _run(folders, host, port, options, workers=workers, quiet=quiet)


def _run(folders: dict[str, Path], host: str, port: int, options: ServeOptions, *, workers: int, quiet: bool) -> None:
    """Serve in this process, or in several, until somebody stops it."""
    from citeweave.serve.running import check_places, leave_at_once, run_app, run_workers

    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    reporter = reporter_of(quiet)
    if workers > 1:
        check_places(folders, options)  # what is wrong is said once, here
        reporter.say(f"serving {folders['main']} at {address}")
        run_workers(folders, host, port, options, workers=workers)
        return
    from citeweave.serve.app import create_app

    app = create_app(folders, options)
    reporter.say(f"serving {folders['main']} at {address}")
    run_app(app, host, port, options)
    reporter.say("stopped")
    leave_at_once()


def _check(port: int, workers: int) -> None:
    if not 1 <= port <= 65_535:
        raise UserError(f"--port is {port}; it must be from 1 to 65535")
    if not 1 <= workers <= 256:
        raise UserError(f"--workers is {workers}; it must be from 1 to 256")
