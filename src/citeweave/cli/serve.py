"""The commands `serve` and `explore`: an index over HTTP, and a library in the browser."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from citeweave.cli.options import Debug, Device, Json, OwnModel, Quiet, named_paths, print_json, reporter_of
from citeweave.core.errors import CiteweaveError, UserError

if TYPE_CHECKING:
    from citeweave.core.progress import Reporter
    from citeweave.serve.library import Library
    from citeweave.serve.options import ServeOptions


_Index = Annotated[Path, typer.Argument(help="Index folder.", show_default=False)]
_Compare = Annotated[
    list[str], typer.Option("--compare", help="NAME=INDEX of another index to serve; may be repeated.")
]
_ServeSamples = Annotated[
    Path | None, typer.Option("--samples", help="Folder of mined samples to browse.", show_default=False)
]
_Corpus = Annotated[
    Path | None, typer.Option("--corpus", help="With --samples: the corpus they were mined from.", show_default=False)
]
_Host = Annotated[str, typer.Option("--host", help="Address to listen on; 127.0.0.1 is this machine only.")]
_ServePort = Annotated[int, typer.Option("--port", help="Port to listen on.")]
_Workers = Annotated[int, typer.Option("--workers", help="Number of server processes; each loads its own model.")]
_Allow = Annotated[
    list[str], typer.Option("--allow-host", help="Host name that clients may use, * for any; may be repeated.")
]
_Rate = Annotated[float, typer.Option("--rate", help="Maximum requests per second and client address; 0 = no limit.")]
_Time = Annotated[float, typer.Option("--time-limit", help="Time limit of a request in seconds.")]
_Concurrent = Annotated[int, typer.Option("--concurrent", help="Maximum number of concurrent requests per process.")]
_ServeRuntime = Annotated[
    str,
    typer.Option(
        "--runtime",
        help="Software that runs the model: auto, torch, openvino or int8; default: the index's.",
        show_default=False,
    ),
]
_Log = Annotated[str, typer.Option("--log", help="Log format: json, text or none.")]
_Model = Annotated[
    str,
    typer.Option("--model", help="Folder of the model that the index was built with, if moved.", show_default=False),
]


def serve(
    index: _Index,
    compare: _Compare = [],  # noqa: B006 - typer reads the default and makes a list of its own
    samples: _ServeSamples = None,
    corpus: _Corpus = None,
    host: _Host = "127.0.0.1",
    port: _ServePort = 8000,
    workers: _Workers = 1,
    allow_host: _Allow = [],  # noqa: B006
    rate: _Rate = 0.0,
    time_limit: _Time = 30.0,
    concurrent: _Concurrent = 64,
    log: _Log = "text",
    model: _Model = "",
    runtime: _ServeRuntime = "",
    device: Device = "auto",
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Serve an index over HTTP: the search page at /, the API documentation at /docs."""
    from citeweave.core.errors import require

    require("uvicorn", extra="serve")
    require("fastapi", extra="serve")
    from citeweave.serve.app import check_port, is_loopback
    from citeweave.serve.options import ServeOptions

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
    if not is_loopback(host):
        print(f"warning: {host} can be reached from other machines, and there is no password", file=sys.stderr)
    check_port(host, port)
    _run(folders, host, port, options, workers=workers, quiet=quiet)


def _run(folders: dict[str, Path], host: str, port: int, options: ServeOptions, *, workers: int, quiet: bool) -> None:
    """Serve in this process, or in several, until stopped."""
    from citeweave.serve.app import check_indexes, exit_at_once, run_app, run_workers

    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    reporter = reporter_of(quiet)
    if workers > 1:
        check_indexes(folders, options)  # errors are reported once, here
        reporter.say(f"serving {folders['main']} at {address}")
        run_workers(folders, host, port, options, workers=workers)
        return
    from citeweave.serve.app import create_app

    app = create_app(folders, options)
    reporter.say(f"serving {folders['main']} at {address}")
    run_app(app, host, port, options)
    reporter.say("stopped")
    exit_at_once()


def _check(port: int, workers: int) -> None:
    if not 1 <= port <= 65_535:
        raise UserError(f"--port is {port}; it must be from 1 to 65535")
    if not 1 <= workers <= 256:
        raise UserError(f"--workers is {workers}; it must be from 1 to 256")


_Source = Annotated[
    str,
    typer.Argument(
        help='Library to open: a .bib, .ris or CSL JSON file, a Zotero folder, a corpus, an index, or the results of an OpenAlex ("openalex:WORDS") or Semantic Scholar ("s2:WORDS") search.',
        show_default=False,
    ),
]
_Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        help="Folder for the library's corpus and index; default: one per source in $CITEWEAVE_DATA or your user data directory.",
        show_default=False,
    ),
]
_Enrich = Annotated[
    str,
    typer.Option(
        "--enrich",
        help="Fetch missing abstracts, references and citations from openalex (needs an API key) or s2 (Semantic Scholar).",
        show_default=False,
    ),
]
_MaxPapers = Annotated[
    int,
    typer.Option("--max-papers", help='For an "openalex:..." or "s2:..." source: maximum number of papers to fetch.'),
]
_Refresh = Annotated[bool, typer.Option("--refresh", help="Query services again instead of using cached responses.")]
_ExploreRuntime = Annotated[
    str,
    typer.Option(
        "--runtime", help="Runtime of the model: auto (the fastest here), torch, openvino or int8 (8-bit arithmetic)."
    ),
]
_ExploreSamples = Annotated[
    Path | None,
    typer.Option(
        "--samples",
        help="Folder of mined training samples to browse; SOURCE must be the corpus they were mined from.",
        show_default=False,
    ),
]
_ExplorePort = Annotated[int, typer.Option("--port", help="Port on which to serve the page; 0 = any free port.")]
_Browser = Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")]
_Once = Annotated[bool, typer.Option("--once", help="Prepare the library, then exit without serving the page.")]

_HOST = "127.0.0.1"


def explore(
    source: _Source,
    folder: _Folder = None,
    enrich: _Enrich = "",
    max_papers: _MaxPapers = 1000,
    refresh: _Refresh = False,
    model: OwnModel = "",
    runtime: _ExploreRuntime = "auto",
    samples: _ExploreSamples = None,
    port: _ExplorePort = 0,
    browser: _Browser = True,
    once: _Once = False,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Search, browse and map your own papers in the browser; later runs reuse what was computed."""
    from citeweave.serve.library import open_library
    from citeweave.serve.options import ServeOptions
    from citeweave.serve.prepare_library import LibraryOptions

    if not 0 <= port <= 65535:
        raise UserError(f"--port is {port}; it must be 0, for any free port, or up to 65535")
    options = LibraryOptions(model, runtime, enrich, max_papers, refresh, device)
    reporter = reporter_of(quiet or json)
    if not once:
        port = _check_serving(port)  # errors are reported before anything is read
    with open_library(source, folder, options, reporter=reporter) as library:
        for line in library.missing_data():
            reporter.say(line)
        if once:
            failure = library.finish(reporter)
            _print_counts(library, json=json, quiet=quiet)
            if failure:
                raise CiteweaveError(failure)
        else:
            named, corpus = _samples_of(library, samples)
            serve_options = ServeOptions(device=device, samples=named, corpus=corpus)
            _serve(library, serve_options, port, browser=browser, reporter=reporter)


def _check_serving(port: int) -> int:
    from citeweave.core.errors import require

    for package in ("fastapi", "uvicorn"):
        require(package, extra="serve")
    from citeweave.serve.app import check_port

    return check_port(_HOST, port)


def _print_counts(library: Library, *, json: bool, quiet: bool) -> None:
    from citeweave.search.index import Index
    from citeweave.serve.library import count_papers

    counts = count_papers(Index.open(library.index_folder))
    if json:
        print_json(
            {"name": library.name, "index": str(library.index_folder), **counts, "lacks": library.missing_data()}
        )
    elif not quiet:
        around = f", {counts['around']:,} more around them" if counts["around"] else ""
        print(
            f"{library.name}: {counts['papers']:,} papers, {counts['with_vectors']:,} with vectors{around}; index: "
            f"{library.index_folder}"
        )


def _samples_of(library: Library, samples: Path | None) -> tuple[str, str]:
    """Open samples and the corpus that they refer to."""
    if samples is None:
        return "", ""
    if library.corpus_folder is None:
        raise UserError(f"--samples {samples} refers to rows of a corpus; give as SOURCE the corpus it was mined from")
    return str(samples), str(library.corpus_folder)


def _serve(library: Library, options: ServeOptions, port: int, *, browser: bool, reporter: Reporter) -> None:
    """Serve a library to the browser until Ctrl-C, while the background work continues."""
    from citeweave.serve.app import create_app, create_server, exit_at_once, run_until_stopped

    address = f"http://{_HOST}:{port}/"
    server = create_server(create_app(library, options), _HOST, port, options)
    threading.Thread(target=_greet, args=(server, library, address, browser, reporter), daemon=True).start()
    run_until_stopped(server)
    library.stop()
    reporter.say("stopped; the same command resumes")
    exit_at_once()


def _greet(server: Any, library: Library, address: str, browser: bool, reporter: Reporter) -> None:
    """Announce the page when it is up, open the browser, and start the background work."""
    import webbrowser

    while not server.started:
        if server.should_exit:
            return
        time.sleep(0.02)
    reporter.say(f"{library.name} is at {address} (Ctrl-C stops it)")
    library.start()
    if browser and not webbrowser.open(address):
        reporter.say("no browser was found; open the address yourself")
