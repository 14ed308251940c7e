"""The commands `index`, `change` and `store` of search indexes; `serve` and `explore` over HTTP; `mcp` for assistants."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import citeweave as cw
from citeweave.cli.options import (
    CommonArguments,
    CorpusFolder,
    Device,
    Given,
    IndexFolder,
    OutputArguments,
    OwnModel,
    QuietArguments,
    table,
)
from citeweave.core.errors import CiteweaveError, UserError, require
from citeweave.core.files import open_input
from citeweave.core.options import Flag, Named, Positional, Range
from citeweave.search.options import IndexOptions
from citeweave.serve.options import LibraryOptions, ServeOptions

if TYPE_CHECKING:
    from citeweave.core.progress import Reporter
    from citeweave.search.index import Index
    from citeweave.search.index_vectors import PrecomputedVectors
    from citeweave.serve.library import Library


@dataclass(frozen=True, kw_only=True)
class PrecomputedArguments(CommonArguments):
    """Vectors made elsewhere, for `index` and `change`."""

    vectors: Path | None = None
    """Folder of vectors of the same model from `citeweave embed`."""

    sentence_vectors: Path | None = None
    """Folder of precomputed sentence vectors of the same model."""

    trust_ids: bool = False
    """With --vectors: also accept vectors computed for another corpus, matched by paper id."""

    intents: Path | None = None
    """Output folder of `citeweave annotate`; default: the intents in the corpus."""

    def open_precomputed(self) -> PrecomputedVectors | None:
        """Open the vectors of --vectors and --sentence-vectors for an index."""
        from citeweave.search.index_vectors import PrecomputedVectors
        from citeweave.vectors.sentence_vectors import SentenceVectors

        if self.vectors is not None:
            sentences = None if self.sentence_vectors is None else SentenceVectors.open(self.sentence_vectors)
            return PrecomputedVectors(cw.Vectors.open(self.vectors), sentences, self.trust_ids)
        if self.sentence_vectors is not None:
            raise UserError("--sentence-vectors goes with --vectors; give those of the papers too")
        if self.trust_ids:
            raise UserError("--trust-ids goes with --vectors; leave it out")
        return None

    @property
    def overlay(self) -> cw.IntentOverlay | None:
        """The intents of --intents."""
        return None if self.intents is None else cw.IntentOverlay.open(self.intents)


@dataclass(frozen=True, kw_only=True)
class IndexArguments(OutputArguments, PrecomputedArguments):
    corpus: CorpusFolder
    model: OwnModel = ""

    contexts: Annotated[bool, Flag("--contexts/--no-contexts")] = False
    """Also index the sentences in which papers are cited, for `citeweave search --cite`."""

    max_contexts: int = 10
    """With --contexts: maximum number of sentences per cited paper and intent."""

    options: Annotated[Mapping[str, Any], Given(IndexOptions, only=("dtype", "runtime", "device"))]
    sentences: Annotated[bool, Flag("--sentences/--no-sentences")] = False
    """Also embed every sentence of the abstracts; implied by --sentence-vectors."""

    words_only: bool = False
    """Index words only; add vectors later with `citeweave change --fill`."""


def index(args: IndexArguments) -> None:
    """Build a search index for a corpus, or update an index from a newer corpus; an interrupted run resumes."""
    from citeweave.search.build import index_corpus
    from citeweave.search.describe import describe_index

    if args.contexts and args.max_contexts < 1:
        raise UserError(f"--max-contexts is {args.max_contexts}; it must be at least 1, or leave out --contexts")
    with_sentences = args.sentences or args.sentence_vectors is not None
    contexts = args.max_contexts if args.contexts else 0
    options = IndexOptions(contexts=contexts, sentences=with_sentences, vectors=not args.words_only, **args.options)
    common: dict[str, Any] = {"overlay": args.overlay, "precomputed": args.open_precomputed(), **args.writing}
    result = index_corpus(cw.Corpus.open(args.corpus), args.model, args.output, options, **common)
    summary = {**describe_index(result.index), "output": str(args.output)}
    if result.changed is not None:
        summary["changed"] = result.changed.as_json()
    args.print(summary, _index_text(args.output, summary))


def _index_text(folder: Path, summary: dict[str, Any]) -> str:
    """Describe what an index holds, on a few lines."""
    rows: list[tuple[str, object]] = [("papers", summary["papers"])]
    for name, label in (
        ("without_vector", "  no vector: no text"),
        ("not_embedded", "  no vector yet"),
        ("with_sentences", "  with vectors of their sentences"),
    ):
        if summary[name]:
            rows.append((label, summary[name]))
    if summary["with_intents"]:
        rows.append(("cited with a known intent", summary["with_intents"]))
    if "sentences" in summary:
        rows += [("citing sentences", summary["sentences"]), ("  mentions of papers in them", summary["mentions"])]
        if summary["sentences_left_out"]:
            rows.append(("  left out: only citation marks", summary["sentences_left_out"]))
    for name, count in summary.get("changed", {}).items():
        rows.append((f"{name.replace('_', ' ')} now", count))
    spaces = f", aspects {', '.join(summary['aspects'])}" if summary["aspects"] else ""
    by = (
        f"{summary['dimension']} dimensions ({summary['dtype']}) of {summary['model']}{spaces}, computed by {summary['runtime']}"
        if summary["model"]
        else "words"
    )
    return f"{folder}: {by}\n{table(rows)}"


MAX_BYTES = 256 << 20
"""Of a file of ids."""


@dataclass(frozen=True, kw_only=True)
class ChangeArguments(PrecomputedArguments):
    index: IndexFolder
    add: Path | None = None
    """Corpus whose papers are added or replaced."""

    delete: Path | None = None
    """File with the ids of papers to delete, one per line."""

    fill: bool = False
    """Embed the papers that have words only."""

    sentences: bool = False
    """With --fill: also embed every sentence of the abstracts."""

    words_only: bool = False
    """With --add: index words only."""

    model: str = ""
    """Folder of the model that the index was built with, if moved."""

    device: Device = "auto"


def change(args: ChangeArguments) -> None:
    """Delete papers of an index, add papers, or fill in missing vectors, in this order; each step completes or changes nothing."""
    _check(args)
    from citeweave.search.build import ChangeOptions, fill_vectors
    from citeweave.search.describe import describe_index

    opened, precomputed = cw.Index.open(args.index), args.open_precomputed()
    model, reporter, changed = args.model or None, args.reporter, dict[str, Any]()
    if args.delete is not None:
        changed = _delete(opened, args.delete)
    if args.add is not None:
        # papers added with words only get their vectors when the index is filled
        later = args.fill and (args.words_only or opened.provenance is None)
        options = ChangeOptions(not args.words_only, model, args.device, precomputed=None if later else precomputed)
        common: dict[str, Any] = {"options": options, "overlay": args.overlay, "reporter": reporter}
        added = cw.add_papers(args.index, cw.Corpus.open(args.add), **common).as_json()
        changed = {**changed, **added, "deleted": added["deleted"] + changed.get("deleted", 0)}
    if args.fill:
        changed["embedded"] = fill_vectors(
            args.index,
            model=model,
            device=args.device,
            precomputed=precomputed,
            sentences=args.sentences,
            reporter=reporter,
        )
    summary = {**describe_index(cw.Index.open(args.index)), "index": str(args.index), "changed": changed}
    args.print(summary, _index_text(args.index, summary))


def _check(args: ChangeArguments) -> None:
    """Refuse options of `change` that do not go together, before anything is opened."""
    if args.add is None and args.delete is None and not args.fill:
        raise UserError("say what to change: --add CORPUS, --delete FILE or --fill")
    if args.add is None and (args.words_only or args.intents is not None):
        raise UserError("--words-only and --intents go with --add; leave them out")
    if args.sentences and not args.fill:
        raise UserError("--sentences goes with --fill; leave it out, or add --fill")
    if args.add is None and not args.fill and (args.vectors or args.sentence_vectors):
        raise UserError("--vectors and --sentence-vectors go with --add or --fill; leave them out")


def _delete(index: Index, path: Path) -> dict[str, Any]:
    """Delete the papers listed in a file; return how many, and how many ids the index does not have."""
    ids = _read_ids(path)
    unknown = int((index.rows(ids) < 0).sum())
    deleted = cw.delete_papers(index.folder, ids)
    return {"deleted": deleted, "not_found": unknown} if unknown else {"deleted": deleted}


def _read_ids(path: Path) -> list[str]:
    """Read the ids of a file, one per line."""
    try:
        with open_input(path) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); give a file with one id per line") from None
    if len(data) > MAX_BYTES:
        raise UserError(f"{path} is larger than {MAX_BYTES >> 20} MiB; give a file with one id per line")
    ids = [line for raw in data.decode("utf-8", "replace").splitlines() if (line := raw.strip())]
    if not ids:
        raise UserError(f"{path} names no paper; give a file with one id per line")
    return ids


@dataclass(frozen=True, kw_only=True)
class StoreArguments(CommonArguments):
    index: IndexFolder
    lance: str | None = None
    """Folder of LanceDB, or s3://bucket/name."""

    milvus: str | None = None
    """Milvus Lite file, such as papers.db, or http(s)://host:port of a server; its token is read from the environment variable CITEWEAVE_MILVUS_TOKEN."""

    collection: str = "papers"
    """With --milvus: name of the collection."""

    overwrite: bool = False
    """Replace the contents even if another index filled the store."""


def store(args: StoreArguments) -> None:
    """Copy the vectors of an index to LanceDB or Milvus, or update such a copy, for `citeweave search --store`."""
    from citeweave.search.databases import open_store
    from citeweave.search.store import provenance_for_store, sync_store

    if (args.lance is None) == (args.milvus is None):
        raise UserError("give either --lance FOLDER or --milvus ADDRESS")
    name = f"lance:{args.lance}" if args.milvus is None else f"milvus:{args.milvus}#{args.collection}"
    opened, reporter = cw.Index.open(args.index), args.reporter
    with open_store(name, provenance_for_store(opened)) as target:
        done = sync_store(opened, target, overwrite=args.overwrite, reporter=reporter)
        if done.added or done.updated or done.deleted:
            target.compact()
        summary = {"index": str(args.index), "store": target.place, "papers": target.count(), **done.as_json()}
    rows = [(name, summary[name]) for name in ("papers", "added", "updated", "deleted", "unchanged")]
    args.print(summary, f"{summary['store']}\n{table(rows)}")


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
    _require_server()
    from citeweave.serve import app

    folders, host, port = {"main": args.index, **args.compare}, args.host, args.port
    name = f"[{host}]" if ":" in host else host
    names = [*args.options.allow_hosts, *([] if host in ("0.0.0.0", "::") else [name])]
    log = "none" if args.quiet else args.options.log
    options = replace(args.options, allow_hosts=tuple(names), log=log)
    if not app.is_loopback(host):
        print(f"warning: {host} can be reached from other machines, and there is no password", file=sys.stderr)
    app.check_port(host, port)
    announcement = f"serving {args.index} at http://{name}:{port}/"
    if args.workers > 1:
        app.check_indexes(folders, options)  # errors are reported once, here
        args.reporter.say(announcement)
        app.run_workers(folders, host, port, options, workers=args.workers)
        return
    created = app.create_app(folders, options)
    args.reporter.say(announcement)
    app.run_app(created, host, port, options)
    args.reporter.say("stopped")
    app.exit_at_once()


def _require_server() -> None:
    for package in ("fastapi", "uvicorn"):
        require(package, extra="serve")


@dataclass(frozen=True, kw_only=True)
class McpArguments(QuietArguments):
    index: IndexFolder
    model: str = ""
    """Folder of the model that the index was built with, if moved."""

    device: Device = "auto"


def mcp(args: McpArguments) -> None:
    """Let an assistant search an index, by the Model Context Protocol over standard input and output; see docs/assistants.md."""
    from citeweave.serve.assistant import serve_assistant
    from citeweave.serve.assistant_tools import AssistantLibrary

    library = AssistantLibrary(cw.Index.open(args.index), args.model, args.device)
    if sys.stdin.isatty():
        args.reporter.say(
            "waiting for an assistant on standard input; docs/assistants.md says how to add this command to one"
        )
    serve_assistant(library)


_HOST = "127.0.0.1"


_MAX_REJECTED = 10
"""Entries left out of a library that `explore` prints; the page lists up to 200."""


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
    reporter = args.reporter
    if not args.once:
        _require_server()
        from citeweave.serve.app import check_port

        port = check_port(_HOST, args.port)  # errors are reported before anything is read
    with cw.open_library(args.source, args.folder, args.options, reporter=reporter) as library:
        for line in library.missing_data():
            reporter.say(line)
        for entry in library.rejected[:_MAX_REJECTED]:
            reporter.say(f"left out: {entry}")
        if len(library.rejected) > _MAX_REJECTED:
            reporter.say("the page lists more entries that are left out")
        if args.once:
            failure = library.finish(reporter)
            _print_counts(library, args)
            if failure:
                raise CiteweaveError(failure)
        else:
            named, corpus = _samples_of(library, args.samples)
            serve_options = ServeOptions(device=args.options.device, samples=named, corpus=corpus)
            _serve(library, serve_options, port, browser=args.browser, reporter=reporter)


def _print_counts(library: Library, args: ExploreArguments) -> None:
    from citeweave.serve.library import count_papers

    counts = count_papers(cw.Index.open(library.index_folder))
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
