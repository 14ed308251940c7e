"""The commands `serve` and `explore`: an index over HTTP, and a library in the browser."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from citeweave.cli.options import CommonArguments, IndexFolder, OwnModel, QuietArguments
from citeweave.core.errors import CiteweaveError, UserError
from citeweave.core.options import Named, Positional, Range
from citeweave.serve.options import LibraryOptions, ServeOptions

if TYPE_CHECKING:
    from citeweave.core.progress import Reporter
    from citeweave.serve.library import Library


@dataclass(frozen=True, kw_only=True)
class ServeArguments(QuietArguments):
    index: IndexFolder
    compare: Annotated[Mapping[str, Path], Named("other=other-index")] = field(default_factory=dict)
    """NAME=INDEX of another index to serve; may be repeated."""

    host: str = "127.0.0.1"
    """Address to listen on; 127.0.0.1 is this machine only."""

    port: Annotated[int, Range(1, 65_535)] = 8000
    """Port to listen on."""

    workers: Annotated[int, Range(1, 256)] = 1
    """Number of server processes; each loads its own model."""

    options: ServeOptions


def serve(args: ServeArguments) -> None:
    """Serve an index over HTTP: the search page at /, the API documentation at /docs."""
    from citeweave.core.errors import require

    require("uvicorn", extra="serve")
    require("fastapi", extra="serve")
    from citeweave.serve.app import check_port, is_loopback

    folders = {"main": args.index, **args.compare}
    names = [
        *args.options.allow_hosts,
        *([] if args.host in ("0.0.0.0", "::") else [f"[{args.host}]" if ":" in args.host else args.host]),
    ]
    log = "none" if args.quiet else args.options.log
    options = replace(args.options, allow_hosts=tuple(names), log=log)
    if not is_loopback(args.host):
        print(f"warning: {args.host} can be reached from other machines, and there is no password", file=sys.stderr)
    check_port(args.host, args.port)
    _run(folders, args.host, args.port, options, workers=args.workers, reporter=args.reporter)


def _run(
    folders: dict[str, Path], host: str, port: int, options: ServeOptions, *, workers: int, reporter: Reporter
) -> None:
    """Serve in this process, or in several, until stopped."""
    from citeweave.serve.app import check_indexes, exit_at_once, run_app, run_workers

    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
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


_HOST = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class ExploreArguments(CommonArguments):
    source: Annotated[str, Positional()]
    """Library to open: a .bib, .ris or CSL JSON file, a Zotero folder, a corpus, an index, or the results of an OpenAlex ("openalex:WORDS") or Semantic Scholar ("s2:WORDS") search."""

    folder: Path | None = None
    """Folder for the library's corpus and index; default: one per source in $CITEWEAVE_DATA or your user data directory."""

    model: OwnModel = ""
    options: LibraryOptions

    samples: Path | None = None
    """Folder of mined training samples to browse; SOURCE must be the corpus they were mined from."""

    port: Annotated[int, Range(0, 65_535)] = 0
    """Port on which to serve the page; 0 = any free port."""

    browser: bool = True
    """Open the page in the browser."""

    once: bool = False
    """Prepare the library, then exit without serving the page."""


def explore(args: ExploreArguments) -> None:
    """Search, browse and map your own papers in the browser; later runs reuse what was computed."""
    from citeweave.serve.library import open_library

    reporter = args.reporter
    if not args.once:
        port = _check_serving(args.port)  # errors are reported before anything is read
    with open_library(args.source, args.folder, args.options, reporter=reporter) as library:
        for line in library.missing_data():
            reporter.say(line)
        if args.once:
            failure = library.finish(reporter)
            _print_counts(library, args)
            if failure:
                raise CiteweaveError(failure)
        else:
            named, corpus = _samples_of(library, args.samples)
            serve_options = ServeOptions(device=args.options.device, samples=named, corpus=corpus)
            _serve(library, serve_options, port, browser=args.browser, reporter=reporter)


def _check_serving(port: int) -> int:
    from citeweave.core.errors import require

    for package in ("fastapi", "uvicorn"):
        require(package, extra="serve")
    from citeweave.serve.app import check_port

    return check_port(_HOST, port)


def _print_counts(library: Library, args: ExploreArguments) -> None:
    from citeweave.search.index import Index
    from citeweave.serve.library import count_papers

    counts = count_papers(Index.open(library.index_folder))
    around = f", {counts['around']:,} more around them" if counts["around"] else ""
    args.print(
        {"name": library.name, "index": str(library.index_folder), **counts, "lacks": library.missing_data()},
        f"{library.name}: {counts['papers']:,} papers, {counts['with_vectors']:,} with vectors{around}; index: "
        f"{library.index_folder}",
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
