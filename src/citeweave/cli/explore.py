"""citeweave explore"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from citeweave.cli.options import Debug, Device, Json, Quiet, print_json, reporter_of
from citeweave.errors import UserError

if TYPE_CHECKING:
    from citeweave.progress import Reporter
    from citeweave.serve.library import Library

_Source = Annotated[
    str,
    typer.Argument(
        help='A .bib, .ris or CSL JSON file, a Zotero folder, a corpus, an index, or "openalex:WORDS" or "s2:WORDS".',
        show_default=False,
    ),
]
_Folder = Annotated[
    Path | None,
    typer.Option("--folder", help="Where the work is kept; else a folder of your data.", show_default=False),
]
_Enrich = Annotated[
    str,
    typer.Option("--enrich", help="Fetch abstracts, references and citations: openalex or s2.", show_default=False),
]
_Most = Annotated[int, typer.Option("--most", help="With openalex: or s2: papers, at most.")]
_Refresh = Annotated[bool, typer.Option("--refresh", help="Ask the services again, whatever was kept.")]
_Model = Annotated[str, typer.Option("--model", help="minilm, folder of a model, or name of one on the hub.")]
_Runtime = Annotated[
    str,
    typer.Option("--runtime", help="torch, onnx, openvino or int8; else int8 where it runs.", show_default=False),
]
_Port = Annotated[int, typer.Option("--port", help="Port of the page; 0 = any that is free.")]
_Browser = Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")]
_Once = Annotated[bool, typer.Option("--once", help="Prepare everything, then end.")]

_HOST = "127.0.0.1"


def explore(
    source: _Source,
    folder: _Folder = None,
    enrich: _Enrich = "",
    most: _Most = 1000,
    refresh: _Refresh = False,
    model: _Model = "minilm",
    runtime: _Runtime = "",
    port: _Port = 0,
    browser: _Browser = True,
    once: _Once = False,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Search, read and map your own papers on a page in the browser; the first start makes what the next ones use."""
    from citeweave.serve.libraries.preparing import LibraryOptions
    from citeweave.serve.library import open_library

    if not 0 <= port <= 65535:
        raise UserError(f"--port is {port}; it must be between 0, for any that is free, and 65535")
    options = LibraryOptions(model, runtime, enrich, most, refresh, device)
    reporter = reporter_of(quiet or json)
    with open_library(source, folder, options, reporter=reporter) as library:
        for line in library.lacks():
            reporter.say(line)
        if once:
            library.finish(reporter)
            _tell(library, json=json, quiet=quiet)
        else:
            _serve(library, port, browser=browser, device=device, reporter=reporter)


def _tell(library: Library, *, json: bool, quiet: bool) -> None:
    from citeweave.search.index import Index

    index = Index.open(library.index_folder)
    vectors = int((index.with_vector & index.alive).sum())
    facts: dict[str, Any] = {
        "name": library.name,
        "index": str(library.index_folder),
        "papers": len(index),
        "with_vectors": vectors,
        "with_sentences": int((index.with_sentences & index.alive).sum()),
        "lacks": library.lacks(),
    }
    if json:
        print_json(facts)
    elif not quiet:
        print(f"{library.name}: {len(index):,} papers, {vectors:,} with vectors; the index is {library.index_folder}")


def _serve(library: Library, port: int, *, browser: bool, device: str, reporter: Reporter) -> None:
    """Serve the page until Ctrl-C; the rest of the library is made meanwhile."""
    from citeweave.extras import require

    for package in ("fastapi", "uvicorn"):
        require(package, extra="serve")
    from citeweave.serve.app import create_app
    from citeweave.serve.options import ServeOptions
    from citeweave.serve.running import server_of

    options = ServeOptions(device=device)
    port = _free_port(port)
    address = f"http://{_HOST}:{port}/"
    server = server_of(create_app(library, options), _HOST, port, options)
    threading.Thread(target=_greet, args=(server, library, address, browser, reporter), daemon=True).start()
    # uvicorn ends well at the first Ctrl-C and then sends it on to whoever was there before
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)
    server.run()
    library.stop()
    reporter.say("stopped; the same command goes on where this one ended")
    _leave()


def _leave() -> None:
    """End at once where a thread is still loading a model: Python's own end aborts a thread inside compiled code."""
    if any(thread.name.startswith("citeweave-") for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _greet(server: Any, library: Library, address: str, browser: bool, reporter: Reporter) -> None:
    """Once the page is there: say so, open it, and begin the work behind."""
    import webbrowser

    while not server.started:
        if server.should_exit:
            return
        time.sleep(0.02)
    reporter.say(f"{library.name} is at {address} (Ctrl-C ends)")
    if browser:
        webbrowser.open(address)
    library.start()


def _free_port(wanted: int) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, wanted))
        except OSError as error:
            raise UserError(
                f"--port {wanted} cannot be used ({error.strerror}); take another, or leave it out"
            ) from None
        return int(probe.getsockname()[1])
