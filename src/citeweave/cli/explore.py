"""citeweave explore"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from citeweave.cli.options import Debug, Device, Json, OwnModel, Quiet, print_json, reporter_of
from citeweave.errors import CiteweaveError, UserError

if TYPE_CHECKING:
    from citeweave.progress import Reporter
    from citeweave.serve.libraries.exploring import Library
    from citeweave.serve.options import ServeOptions

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
_Runtime = Annotated[
    str,
    typer.Option("--runtime", help="What computes the network: auto (the fastest here), torch, openvino or int8."),
]
_Samples = Annotated[
    Path | None, typer.Option("--samples", help="Mined samples of the corpus to look at.", show_default=False)
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
    model: OwnModel = "",
    runtime: _Runtime = "auto",
    samples: _Samples = None,
    port: _Port = 0,
    browser: _Browser = True,
    once: _Once = False,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Search, read and map your own papers on a page in the browser; the first start makes what the next ones use."""
    from citeweave.serve.libraries.exploring import open_library
    from citeweave.serve.libraries.preparing import LibraryOptions
    from citeweave.serve.options import ServeOptions

    if not 0 <= port <= 65535:
        raise UserError(f"--port is {port}; it must be between 0, for any that is free, and 65535")
    options = LibraryOptions(model, runtime, enrich, most, refresh, device)
    reporter = reporter_of(quiet or json)
    if not once:
        port = _check_serving(port)  # what is wrong is said before anything is read
    with open_library(source, folder, options, reporter=reporter) as library:
        for line in library.lacks():
            reporter.say(line)
        if once:
            failure = library.finish(reporter)
            _tell(library, json=json, quiet=quiet)
            if failure:
                raise CiteweaveError(failure)
        else:
            named, corpus = _samples_of(library, samples)
            told = ServeOptions(device=device, samples=named, corpus=corpus)
            _serve(library, told, port, browser=browser, reporter=reporter)


def _check_serving(port: int) -> int:
    from citeweave.extras import require

    for package in ("fastapi", "uvicorn"):
        require(package, extra="serve")
    from citeweave.serve.running import check_port

    return check_port(_HOST, port)


def _tell(library: Library, *, json: bool, quiet: bool) -> None:
    from citeweave.search.index import Index
    from citeweave.serve.counting import count_papers

    counts = count_papers(Index.open(library.index_folder))
    if json:
        print_json({"name": library.name, "index": str(library.index_folder), **counts, "lacks": library.lacks()})
    elif not quiet:
        around = f", {counts['around']:,} more around them" if counts["around"] else ""
        print(
            f"{library.name}: {counts['papers']:,} papers, {counts['with_vectors']:,} with vectors{around}; the index is "
            f"{library.index_folder}"
        )


def _samples_of(library: Library, samples: Path | None) -> tuple[str, str]:
    """Samples, and the corpus whose rows they name."""
    if samples is None:
        return "", ""
    if library.corpus_folder is None:
        raise UserError(f"--samples {samples} names rows of a corpus; give as SOURCE the corpus it was mined from")
    return str(samples), str(library.corpus_folder)


def _serve(library: Library, options: ServeOptions, port: int, *, browser: bool, reporter: Reporter) -> None:
    """Serve the page until Ctrl-C; the rest of the library is made meanwhile."""
    from citeweave.serve.app import create_app
    from citeweave.serve.running import leave_at_once, run_until_told, server_of

    address = f"http://{_HOST}:{port}/"
    server = server_of(create_app(library, options), _HOST, port, options)
    threading.Thread(target=_greet, args=(server, library, address, browser, reporter), daemon=True).start()
    run_until_told(server)
    library.stop()
    reporter.say("stopped; the same command goes on where this one ended")
    leave_at_once()


def _greet(server: Any, library: Library, address: str, browser: bool, reporter: Reporter) -> None:
    """Once the page is there: say so, open it, and begin the work behind."""
    import webbrowser

    while not server.started:
        if server.should_exit:
            return
        time.sleep(0.02)
    reporter.say(f"{library.name} is at {address} (Ctrl-C ends)")
    library.start()
    if browser and not webbrowser.open(address):
        reporter.say("there is no browser to open; open the address yourself")
