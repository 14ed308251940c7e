"""Prepare a library for exploring: from a source to a folder with a corpus and an index of its words.

    library.bib, export.ris, items.json      files of any format that `citeweave import` reads
    ~/Zotero, ~/Zotero/storage               a data folder of Zotero, through its database
    "My Library/"                            a folder with an export, or with files to import
    corpus/, index/                          made by citeweave
    openalex:citation recommendation         a query to OpenAlex; `s2:` for Semantic Scholar

Only a query uses the network. The folder of a library, rebuilt only where its source changed:

    my-library-3f9a.../
      library.json     the source, its stamp, results of services
      corpus/          the papers of the source
      fetched/         records from a query or --enrich, as JSONL; fetched/.answers has the responses of services
      richer/          the corpus with the fetched records, if there are any
      index/           words at once, vectors later

Does not make vectors: see `library.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from citeweave.core.artifact import explain_version_mismatch, kind_of, seal_payload, unseal_payload
from citeweave.core.errors import ArtifactError, EmptyResultError, InputError, UserError
from citeweave.core.files import write_json
from citeweave.core.inputs import Source
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.publish import remove_artifact
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import import_papers
from citeweave.corpus.options import ImportOptions
from citeweave.corpus.readers import guess_format
from citeweave.corpus.services.client import Client, HttpOptions, write_records
from citeweave.corpus.services.enrich import EnrichmentResult, EnrichOptions, enrich_library, join_fetched
from citeweave.corpus.services.openalex import OpenAlex
from citeweave.corpus.services.semantic_scholar import SemanticScholar
from citeweave.corpus.services.service import SERVICES, service_of
from citeweave.encoders.delta import open_model
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.model_names import DEFAULT_MODEL, locate, stored_name
from citeweave.encoders.runtimes import Runtime, check_runtime
from citeweave.search.build import ChangeOptions, build_index, update_index
from citeweave.search.index import Index
from citeweave.search.options import IndexOptions
from citeweave.search.state import is_index, read_facts
from citeweave.serve.options import LibraryOptions
from citeweave.serve.zotero import find_database, write_csl, write_csl_from_rdf

_EXPORTS = (".bib", ".bibtex", ".ris", ".json", ".rdf", ".nbib", ".jsonl")
RDF = ".rdf"
_QUERY = re.compile(r"([a-z0-9]+):(?!/)\s*(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LibrarySource:
    """The source to prepare a library from: a bibliography file, a Zotero folder, a corpus, an index, or a query."""

    kind: str
    """`files`, `zotero`, `corpus`, `index` or `query`."""

    name: str
    """Name to show."""

    place: str
    """Absolute path, or the query as `service:words`; identifies the source."""

    files: tuple[Path, ...] = ()
    """Files to read: exports, or the one folder or database."""

    service: str = ""
    query: str = ""

    def stamp(self) -> list[list[object]]:
        """Return path, size and time of every source file of a prepared library, to notice changes; empty for a query."""
        stamps: list[list[object]] = []
        for path in self.files:
            inner = sorted(path.rglob("*")) if path.is_dir() else [path, *_journals(path)]
            for one in inner:
                if one.is_file():
                    status = one.stat()
                    stamps.append([str(one), status.st_size, status.st_mtime_ns])
        return stamps


def find_source(text: str) -> LibrarySource:
    """Determine from what kind of source to prepare a library, a path or a query, by its name only."""
    query = _QUERY.fullmatch(text.strip())
    path = Path(text).expanduser()
    if query and not path.exists():
        return _query_source(query[1], " ".join(query[2].split()))
    if not path.exists():
        raise UserError(
            f"{text} does not exist; give a .bib, .ris or CSL JSON file, a Zotero folder, a corpus, an index, "
            'or "openalex:WORDS"'
        )
    path = path.resolve()
    if path.is_file():
        if path.name == "zotero.sqlite":
            return LibrarySource("zotero", path.parent.name, str(path.parent), (path,))
        return LibrarySource("files", path.stem, str(path), (path,))
    if not path.is_dir():
        raise UserError(
            f"{text} is neither a file nor a folder but a pipe or a device; save its content as a file first"
        )
    return _folder_source(path)


def _query_source(service: str, words: str) -> LibrarySource:
    if service not in SERVICES:
        known = " or ".join(f"{name}:WORDS" for name in SERVICES)
        raise UserError(
            f"{service}: is not a service that citeweave knows; give {known}, or a file or folder that exists"
        )
    if not words:
        raise UserError(
            f'{service}: has no words to search for; give them, such as "{service}:citation recommendation"'
        )
    return LibrarySource("query", words[:60], f"{service}:{words}", service=service, query=words)


def _folder_source(path: Path) -> LibrarySource:
    if is_index(path):
        return LibrarySource("index", path.name, str(path), (path,))
    if kind_of(path) == "corpus":
        return LibrarySource("corpus", path.name, str(path), (path,))
    if kind_of(path) == "index":
        raise UserError(f"{path} is an index of an older format; build it again with `citeweave index`")
    if kind := kind_of(path):
        raise UserError(f"{path} holds {kind.replace('_', ' ')}, which cannot be explored; give a corpus or an index")
    if database := find_database(path):
        return LibrarySource("zotero", database.parent.name, str(database.parent), (database,))
    try:
        exports = tuple(sorted(one for one in path.iterdir() if _is_export(one)))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check its permissions") from None
    return LibrarySource("files", path.name, str(path), exports or (path,))


def _is_export(path: Path) -> bool:
    """Return whether a file of a source folder is a bibliography, by its name and first bytes; PDFs are not read."""
    ending = path.suffix.lower()
    if ending not in _EXPORTS or path.name.startswith(".") or not path.is_file():
        return False
    return ending == RDF or guess_format(Source(path)) is not None


def _journals(path: Path) -> list[Path]:
    return [path.with_name(path.name + ending) for ending in ("-journal", "-wal")]


def library_folder(source: LibrarySource) -> Path:
    """Return the folder of a library in the user's data folder; its name has a hash of the source's absolute path."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", source.name).strip("-.")[:40] or "library"
    return data_folder() / f"{plain}-{hashlib.sha256(source.place.encode('utf-8', 'surrogateescape')).hexdigest()[:10]}"


def data_folder() -> Path:
    """Return where libraries are prepared: $CITEWEAVE_DATA, or the system's folder for a user's application data."""
    if named := os.environ.get("CITEWEAVE_DATA"):
        return Path(named)
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "citeweave"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "citeweave"
    return Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "citeweave"


# --- the folder of a library ---

RECORD, FORMAT, VERSION = "library.json", "citeweave-library", 1
_CLIENTS: dict[str, type[OpenAlex] | type[SemanticScholar]] = {"openalex": OpenAlex, "s2": SemanticScholar}


_PREPARE_OPTIONS = LibraryOptions()


class LibraryFolder:
    """The folder of a prepared library: paths of its corpus and index, and its record library.json."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.corpus, self.index = folder, folder / "corpus", folder / "index"
        self.fetched, self.enriched_corpus = folder / "fetched", folder / "richer"

    def record(self) -> dict[str, Any]:
        """Read the record library.json of a prepared library; empty if there is none that citeweave wrote."""
        try:
            payload = json.loads((self.folder / RECORD).read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(payload, dict) or payload.get("format") != FORMAT:
            return {}
        if payload.get("version") != VERSION:
            # a library of another version must not be overwritten
            reason = explain_version_mismatch(payload.get("version"), VERSION, "choose another --folder")
            raise ArtifactError(f"{self.folder} holds a library {reason}")
        try:
            return unseal_payload(payload)
        except ValueError:
            return {}

    def update_record(self, **fields: Any) -> None:
        """Set fields of library.json."""
        payload = {"format": FORMAT, "version": VERSION, **self.record(), **fields}
        write_json(self.folder / RECORD, seal_payload(payload))


def prepare_words(
    source: LibrarySource, folder: Path, options: LibraryOptions = _PREPARE_OPTIONS, *, reporter: Reporter = QUIET
) -> LibraryFolder:
    """Prepare a library to be searched by words: update its corpus and word index from its source."""
    library = LibraryFolder(folder)
    record = library.record()
    if "base" in record and record["place"] != source.place:
        raise UserError(f"{folder} holds the library of {record['place']}; choose another --folder")
    _check_new_model(library.index, options)
    folder.mkdir(parents=True, exist_ok=True)
    library.update_record(place=source.place, name=source.name, kind=source.kind)
    base = _base_corpus(source, library, options, reporter)
    library.update_record(base=str(base.folder))
    _index_words(
        library, join_fetched(base, library.fetched, library.enriched_corpus, reporter=reporter), options, reporter
    )
    return library


def check_model(options: LibraryOptions) -> None:
    """Refuse a library model or runtime that does not exist, before anything is changed."""
    runtime = Runtime.parse(options.runtime)
    if options.model:
        model = open_model(locate(options.model).folder)
        check_runtime(runtime, "float32", model.settings.pooling, options.device)


def _check_new_model(index: Path, options: LibraryOptions) -> None:
    """Load the library's new model before the vectors of the old one are removed."""
    with suppress(ArtifactError):
        metadata = read_facts(index)
        if metadata.get("provenance") and not _keeps_model(metadata, options):
            load_encoder(_model_name(metadata, options), device=options.device, runtime=options.runtime)


def _keeps_model(metadata: dict[str, Any], options: LibraryOptions) -> bool:
    models, runtimes = ("", metadata.get("model_path")), ("auto", metadata.get("runtime"))
    return stored_name(options.model) in models and options.runtime in runtimes


def _model_name(metadata: dict[str, Any], options: LibraryOptions) -> str:
    return options.model or str(metadata.get("model_path") or DEFAULT_MODEL)


def _index_words(library: LibraryFolder, corpus: Corpus, options: LibraryOptions, reporter: Reporter = QUIET) -> None:
    """Index a library's corpus by words, keeping the vectors of unchanged papers."""
    metadata: dict[str, Any] = {}
    if is_index(library.index):
        try:
            metadata = read_facts(library.index)
            if _keeps_model(metadata, options):
                Index.open(library.index)
                if metadata.get("corpus") != corpus.hash:
                    update_index(library.index, corpus, options=ChangeOptions(vectors=False), reporter=reporter)
                return
            reporter.say(
                f"another model or runtime than before: the vectors of {metadata.get('model_path')} are computed again"
            )
        except ArtifactError as error:
            reporter.say(f"the index is built again: {error}")
            remove_artifact(library.index)
    index_options = IndexOptions(vectors=False, sentences=True, runtime=options.runtime)
    build_index(corpus, _model_name(metadata, options), library.index, index_options, overwrite=True, reporter=reporter)


def _open_client(name: str, library: LibraryFolder, options: LibraryOptions, reporter: Reporter) -> Any:
    """Open a service client whose responses are cached in the library's folder."""
    limits = HttpOptions(keep_days=0.0) if options.refresh else HttpOptions()
    # hidden, so that an import of the folder does not read responses as records
    client = Client(service_of(name), library.fetched / ".answers" / name, limits, reporter=reporter)
    return _CLIENTS[name](client)


def enrich(library: LibraryFolder, options: LibraryOptions, reporter: Reporter = QUIET) -> EnrichmentResult:
    """Fetch from a service what the papers of a library to prepare lack, and index it."""
    base = Corpus.open(library.record()["base"])
    service = _open_client(options.enrich, library, options, reporter)
    result = enrich_library(base, service, library.fetched, EnrichOptions(), reporter=reporter)
    library.update_record(enriched={options.enrich: result.as_json()})
    _index_words(
        library, join_fetched(base, library.fetched, library.enriched_corpus, reporter=reporter), options, reporter
    )
    return result


def _base_corpus(source: LibrarySource, library: LibraryFolder, options: LibraryOptions, reporter: Reporter) -> Corpus:
    if source.kind == "corpus":
        return Corpus.open(source.files[0])
    if source.kind == "query":
        return _queried_corpus(source, library, options, reporter)
    stamp = source.stamp()
    if library.record().get("stamp") == stamp:
        try:
            return Corpus.open(library.corpus)
        except ArtifactError:
            pass  # damaged or deleted: imported again
    files = [_as_importable(path, library) for path in source.files]
    corpus = _import_files(files, library, reporter)
    library.update_record(stamp=stamp)
    return corpus


def _import_files(files: list[Path], library: LibraryFolder, reporter: Reporter) -> Corpus:
    try:
        options = ImportOptions(workers=1)
        return import_papers(files, library.corpus, options, overwrite=True, reporter=reporter).corpus
    except UserError as error:
        if "--format" not in str(error):
            raise
        problem = str(error).partition("; ")[0]  # `explore` has no --format
        raise InputError(
            f"{problem}; give an export as BibTeX, RIS or CSL JSON, or import it with `citeweave import` first"
        ) from None


def _as_importable(path: Path, library: LibraryFolder) -> Path:
    """Return a file that import can read: the path itself, or Zotero items converted to CSL JSON."""
    if path.suffix == ".sqlite":
        converted = library.folder / "zotero.json"
        write_csl(path, converted)
    elif path.suffix.lower() == RDF:
        converted = library.folder / f"{path.stem}.rdf.json"
        write_csl_from_rdf(path, converted)
    else:
        return path
    return converted


def _queried_corpus(
    source: LibrarySource, library: LibraryFolder, options: LibraryOptions, reporter: Reporter
) -> Corpus:
    """Import the papers that a query finds; repeated only if the last response was incomplete, or on request."""
    query = {"query": source.query, "most": options.max_papers}
    done = library.record().get("asked")
    if done != {**query, "stopped": ""} or options.refresh:
        service = _open_client(source.service, library, options, reporter)
        file = library.folder / "found.jsonl"
        with reporter.task(f"asking {service.client.service.name}", options.max_papers, "papers") as advance:
            written = write_records(service.search(source.query, options.max_papers), file, advance)
        if not written.count:
            raise EmptyResultError(
                written.stopped or f"{service.client.service.name} has no paper for {source.query!r}; try other words"
            )
        library.update_record(asked={**query, "stopped": written.stopped})
        if written.stopped:
            reporter.say(written.stopped)
    return _import_files([library.folder / "found.jsonl"], library, reporter)
