"""What SOURCE of `citeweave explore` is.

    library.bib, export.ris, items.json      files of any format that `citeweave import` reads
    ~/Zotero, ~/Zotero/storage               a data folder of Zotero, through its database
    "My Library/"                            a folder with an export, or with files to import
    corpus/, index/                          made by citeweave
    openalex:citation recommendation         a query, `s2:` for Semantic Scholar

Only the last asks anybody. Does not read the papers: see `preparing.py`.

From a source to a folder with a corpus and an index of its words; done again only where the source changed.

    my-library-3f9a.../
      library.json     the source, its stamp, what the services said
      corpus/          the papers of the source
      fetched/         records that a query or --enrich brought, as JSONL; fetched/answers are the services' own
      richer/          the corpus with the fetched records, where there are any
      index/           words at once, vectors by and by

Does not make vectors and does not serve: see `background.py` and `exploring.py`.
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
from citeweave.core.errors import (
    ArtifactError,
    EmptyResultError,
    InputError,
    UserError,
    choose,
)
from citeweave.core.files import write_json
from citeweave.core.inputs import Source
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.publish import remove_artifact
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import ImportOptions, import_papers
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
from citeweave.search.build import IndexOptions, build_index
from citeweave.search.index import Index
from citeweave.search.state import is_index, read_state
from citeweave.search.update import ChangeOptions, update_index
from citeweave.serve.zotero import find_database, write_csl, write_csl_of_rdf

_EXPORTS = (".bib", ".bibtex", ".ris", ".json", ".rdf", ".nbib", ".jsonl")
RDF = ".rdf"
_QUERY = re.compile(r"([a-z0-9]+):(?!/)\s*(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LibrarySource:
    """The source of a library: a bibliography file, a Zotero folder, a corpus, an index, or a query."""

    kind: str
    """`files`, `zotero`, `corpus`, `index` or `query`."""

    name: str
    """What people call it."""

    place: str
    """Absolute path, or the query as `service:words`: what tells two sources apart."""

    files: tuple[Path, ...] = ()
    """What is read: export files, or the one folder or database."""

    service: str = ""
    query: str = ""

    def stamp(self) -> list[list[object]]:
        """Return path, size and time of every source file, to notice changes; empty for a query."""
        found: list[list[object]] = []
        for path in self.files:
            inner = sorted(path.rglob("*")) if path.is_dir() else [path, *_beside(path)]
            for one in inner:
                if one.is_file():
                    told = one.stat()
                    found.append([str(one), told.st_size, told.st_mtime_ns])
        return found


def find_source(text: str) -> LibrarySource:
    """Determine what kind of library source a path or query is, by its name only."""
    asked = _QUERY.fullmatch(text.strip())
    path = Path(text).expanduser()
    if asked and not path.exists():
        return _query(asked[1], " ".join(asked[2].split()))
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
            f"{text} is neither a file nor a folder but a pipe or a device; save what it gives as a file first"
        )
    return _folder(path)


def _query(service: str, words: str) -> LibrarySource:
    if service not in SERVICES:
        known = " or ".join(f"{name}:WORDS" for name in SERVICES)
        raise UserError(f"{service}: is no service that citeweave asks; give {known}, or a file or folder that exists")
    if not words:
        raise UserError(
            f'{service}: has no words to search for; give them, such as "{service}:citation recommendation"'
        )
    return LibrarySource("query", words[:60], f"{service}:{words}", service=service, query=words)


def _folder(path: Path) -> LibrarySource:
    if is_index(path):
        return LibrarySource("index", path.name, str(path), (path,))
    if kind_of(path) == "corpus":
        return LibrarySource("corpus", path.name, str(path), (path,))
    if kind_of(path) == "index":
        raise UserError(f"{path} is an index of an older format; make it again with `citeweave index`")
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
    """Whether a file of a folder is a bibliography by its name and first bytes; the PDFs beside it are not read."""
    ending = path.suffix.lower()
    if ending not in _EXPORTS or path.name.startswith(".") or not path.is_file():
        return False
    return ending == RDF or guess_format(Source(path)) is not None


def _beside(path: Path) -> list[Path]:
    return [path.with_name(path.name + ending) for ending in ("-journal", "-wal")]


def library_folder(source: LibrarySource) -> Path:
    """Return the folder for the work on a library source, in the user's data folder unless --folder is given.

    The name holds a hash of the whole place, so that two files of one name have two folders.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", source.name).strip("-.")[:40] or "library"
    return data_folder() / f"{plain}-{hashlib.sha256(source.place.encode('utf-8', 'surrogateescape')).hexdigest()[:10]}"


def data_folder() -> Path:
    """Return $CITEWEAVE_DATA, or the system's folder for a user's application data."""
    if named := os.environ.get("CITEWEAVE_DATA"):
        return Path(named)
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "citeweave"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "citeweave"
    return Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "citeweave"


# From a source to a folder with a corpus and an index of its words; done again only where the source changed.

RECORD, FORMAT, VERSION = "library.json", "citeweave-library", 1
_CLIENTS: dict[str, type[OpenAlex] | type[SemanticScholar]] = {"openalex": OpenAlex, "s2": SemanticScholar}


@dataclass(frozen=True, slots=True)
class LibraryOptions:
    """Options of preparing a library: enrichment, model, runtime, number of papers."""

    model: str = ""
    """What makes the vectors; empty = that of a library that is there already, else the default one."""

    runtime: str = "auto"
    """What computes them; auto means the fastest here, or what a library was made with before."""

    enrich: str = ""
    """Service that is asked for abstracts, references and citations; empty = none."""

    most: int = 1000
    """Papers of a query, at most."""

    refresh: bool = False
    """Ask the services again, whatever was kept."""

    device: str = "auto"

    def __post_init__(self) -> None:
        if self.enrich:
            choose(self.enrich, SERVICES, "--enrich")
        if not 1 <= self.most <= 100_000:
            raise UserError(f"--max-papers is {self.most}; it must be between 1 and 100,000")


_PREPARE_OPTIONS = LibraryOptions()


@dataclass(frozen=True, slots=True)
class LibraryFolder:
    """The folder of a library: paths of its corpus and index, and its record library.json."""

    folder: Path

    @property
    def corpus(self) -> Path:
        return self.folder / "corpus"

    @property
    def richer(self) -> Path:
        return self.folder / "richer"

    @property
    def fetched(self) -> Path:
        return self.folder / "fetched"

    @property
    def index(self) -> Path:
        return self.folder / "index"

    def record(self) -> dict[str, Any]:
        """Read library.json; empty if there is none that citeweave wrote."""
        try:
            told = json.loads((self.folder / RECORD).read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(told, dict) or told.get("format") != FORMAT:
            return {}
        if told.get("version") != VERSION:
            # what another version keeps there must not be taken for nothing and written over
            todo = explain_version_mismatch(told.get("version"), VERSION, "choose another --folder")
            raise ArtifactError(f"{self.folder} holds a library {todo}")
        try:
            return unseal_payload(told)
        except ValueError:
            return {}

    def note(self, **facts: Any) -> None:
        told = {"format": FORMAT, "version": VERSION, **self.record(), **facts}
        write_json(self.folder / RECORD, seal_payload(told))


def prepare_words(
    source: LibrarySource, folder: Path, options: LibraryOptions = _PREPARE_OPTIONS, *, reporter: Reporter = QUIET
) -> LibraryFolder:
    """Update a library's corpus and word index from its source."""
    library = LibraryFolder(folder)
    known = library.record()
    if "base" in known and known["place"] != source.place:
        raise UserError(f"{folder} holds the library of {known['place']}; choose another --folder")
    _check_change(library.index, options)
    folder.mkdir(parents=True, exist_ok=True)
    library.note(place=source.place, name=source.name, kind=source.kind)
    base = _base_corpus(source, library, options, reporter)
    library.note(base=str(base.folder))
    index_words(library, join_fetched(base, library.fetched, library.richer, reporter=reporter), options, reporter)
    return library


def check_model(options: LibraryOptions) -> None:
    """Refuse a library model or runtime that does not exist, before anything is changed."""
    runtime = Runtime.parse(options.runtime)
    if options.model:
        model = open_model(locate(options.model).folder)
        check_runtime(runtime, "float32", model.settings.pooling, options.device)


def _check_change(index: Path, options: LibraryOptions) -> None:
    """Load the library's new model before the vectors of the old one are removed."""
    with suppress(ArtifactError):
        facts = read_state(index).facts
        if facts.get("provenance") and not _keeps_model(facts, options):
            load_encoder(_model(facts, options), device=options.device, runtime=options.runtime)


def _keeps_model(facts: dict[str, Any], options: LibraryOptions) -> bool:
    models, runtimes = ("", facts.get("model_path")), ("auto", facts.get("runtime"))
    return stored_name(options.model) in models and options.runtime in runtimes


def _model(facts: dict[str, Any], options: LibraryOptions) -> str:
    return options.model or str(facts.get("model_path") or DEFAULT_MODEL)


def index_words(library: LibraryFolder, corpus: Corpus, options: LibraryOptions, reporter: Reporter = QUIET) -> None:
    """Index a library's corpus by words, keeping the vectors of unchanged papers."""
    facts: dict[str, Any] = {}
    if is_index(library.index):
        try:
            facts = read_state(library.index).facts
            if _keeps_model(facts, options):
                Index.open(library.index)
                if facts.get("corpus") != corpus.hash:
                    update_index(library.index, corpus, options=ChangeOptions(vectors=False), reporter=reporter)
                return
            reporter.say(
                f"another model or runtime than before: the vectors of {facts.get('model_path')} are made anew"
            )
        except ArtifactError as error:
            reporter.say(f"the index is made anew: {error}")
            remove_artifact(library.index)
    how = IndexOptions(vectors=False, sentences=True, runtime=options.runtime)
    build_index(corpus, _model(facts, options), library.index, how, overwrite=True, reporter=reporter)


def open_client(name: str, library: LibraryFolder, options: LibraryOptions, reporter: Reporter) -> Any:
    """Open a service client whose responses are cached in the library's folder."""
    limits = HttpOptions(keep_days=0.0) if options.refresh else HttpOptions()
    # hidden, so that an import of the folder does not take answers for records
    client = Client(service_of(name), library.fetched / ".answers" / name, limits, reporter=reporter)
    return _CLIENTS[name](client)


def enrich(library: LibraryFolder, options: LibraryOptions, reporter: Reporter = QUIET) -> EnrichmentResult:
    """Fetch what the library's papers lack from a service, and index it."""
    base = Corpus.open(library.record()["base"])
    service = open_client(options.enrich, library, options, reporter)
    found = enrich_library(base, service, library.fetched, EnrichOptions(), reporter=reporter)
    library.note(enriched={options.enrich: found.as_json()})
    index_words(library, join_fetched(base, library.fetched, library.richer, reporter=reporter), options, reporter)
    return found


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
            pass  # damaged or gone: made again
    files = [_readable(path, library) for path in source.files]
    corpus = _imported(files, library, reporter)
    library.note(stamp=stamp)
    return corpus


def _imported(files: list[Path], library: LibraryFolder, reporter: Reporter) -> Corpus:
    try:
        options = ImportOptions(workers=1)
        return import_papers(files, library.corpus, options, overwrite=True, reporter=reporter).corpus
    except UserError as error:
        if "--format" not in str(error):
            raise
        what = str(error).partition("; ")[0]  # there is no such option here
        raise InputError(
            f"{what}; give an export as BibTeX, RIS or CSL JSON, or make a corpus of it with `citeweave import` first"
        ) from None


def _readable(path: Path, library: LibraryFolder) -> Path:
    """Return a file that import can read: the path itself, or Zotero items converted to CSL JSON."""
    if path.suffix == ".sqlite":
        converted = library.folder / "zotero.json"
        write_csl(path, converted)
    elif path.suffix.lower() == RDF:
        converted = library.folder / f"{path.stem}.rdf.json"
        write_csl_of_rdf(path, converted)
    else:
        return path
    return converted


def _queried_corpus(
    source: LibrarySource, library: LibraryFolder, options: LibraryOptions, reporter: Reporter
) -> Corpus:
    """Import the papers that a query finds; repeated only if the last response was incomplete, or on request."""
    asked = {"query": source.query, "most": options.most}
    done = library.record().get("asked")
    if done != {**asked, "stopped": ""} or options.refresh:
        service = open_client(source.service, library, options, reporter)
        file = library.folder / "found.jsonl"
        with reporter.task(f"asking {service.client.service.name}", options.most, "papers") as advance:
            written = write_records(service.search(source.query, options.most), file, advance)
        if not written.count:
            raise EmptyResultError(
                written.stopped or f"{service.client.service.name} has no paper for {source.query!r}; try other words"
            )
        library.note(asked={**asked, "stopped": written.stopped})
        if written.stopped:
            reporter.say(written.stopped)
    return _imported([library.folder / "found.jsonl"], library, reporter)
