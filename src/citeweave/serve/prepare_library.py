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

from citeweave.core.artifact import another_version, kind_of, sealed, unsealed
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
from citeweave.corpus.services.enrich import Enriched, EnrichOptions, enrich_library, join_fetched
from citeweave.corpus.services.openalex import OpenAlex
from citeweave.corpus.services.semantic_scholar import SemanticScholar
from citeweave.corpus.services.service import SERVICES, service_of
from citeweave.encoders.delta import open_model
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.model_names import DEFAULT_MODEL, locate, remembered
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
    """Where papers come from."""

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
        """Path, size and time of everything that is read: if none changed, nothing did. Empty for a query."""
        found: list[list[object]] = []
        for path in self.files:
            inner = sorted(path.rglob("*")) if path.is_dir() else [path, *_beside(path)]
            for one in inner:
                if one.is_file():
                    told = one.stat()
                    found.append([str(one), told.st_size, told.st_mtime_ns])
        return found


def find_source(text: str) -> LibrarySource:
    """Tell what a source is; nothing is read but names."""
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
    """Where the work on a source is kept unless --folder says otherwise: the data folder of this system's user.

    The name holds a hash of the whole place, so that two files of one name have two folders.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", source.name).strip("-.")[:40] or "library"
    return data_folder() / f"{plain}-{hashlib.sha256(source.place.encode('utf-8', 'surrogateescape')).hexdigest()[:10]}"


def data_folder() -> Path:
    """$CITEWEAVE_DATA, else what the system keeps for programs' data of a user."""
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
    """How a library is made."""

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
            raise UserError(f"--most is {self.most}; it must be between 1 and 100,000")


_PREPARE_OPTIONS = LibraryOptions()


@dataclass(frozen=True, slots=True)
class LibraryFolder:
    """The places of a library, and its record."""

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
        """What library.json tells, empty where there is none that we wrote."""
        try:
            told = json.loads((self.folder / RECORD).read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(told, dict) or told.get("format") != FORMAT:
            return {}
        if told.get("version") != VERSION:
            # what another version keeps there must not be taken for nothing and written over
            todo = another_version(told.get("version"), VERSION, "choose another --folder")
            raise ArtifactError(f"{self.folder} holds a library {todo}")
        try:
            return unsealed(told)
        except ValueError:
            return {}

    def note(self, **facts: Any) -> None:
        told = {"format": FORMAT, "version": VERSION, **self.record(), **facts}
        write_json(self.folder / RECORD, sealed(told))


def prepare_words(
    source: LibrarySource, folder: Path, options: LibraryOptions = _PREPARE_OPTIONS, *, reporter: Reporter = QUIET
) -> LibraryFolder:
    """Bring corpus and index of words up to the source."""
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
    """Refuse a model or a runtime that is not there, while nothing has been changed or remembered."""
    runtime = Runtime.parse(options.runtime)
    if options.model:
        model = open_model(locate(options.model).folder)
        check_runtime(runtime, "float32", model.settings.pooling, options.device)


def _check_change(index: Path, options: LibraryOptions) -> None:
    """Load the model that takes the place of another one, before the vectors of that one go."""
    with suppress(ArtifactError):
        facts = read_state(index).facts
        if facts.get("provenance") and not _keeps_model(facts, options):
            load_encoder(_model(facts, options), device=options.device, runtime=options.runtime)


def _keeps_model(facts: dict[str, Any], options: LibraryOptions) -> bool:
    models, runtimes = ("", facts.get("model_path")), ("auto", facts.get("runtime"))
    return remembered(options.model) in models and options.runtime in runtimes


def _model(facts: dict[str, Any], options: LibraryOptions) -> str:
    return options.model or str(facts.get("model_path") or DEFAULT_MODEL)


def index_words(library: LibraryFolder, corpus: Corpus, options: LibraryOptions, reporter: Reporter = QUIET) -> None:
    """The index of a corpus, by words where vectors are not there yet; those of unchanged papers are kept."""
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
    """A client whose answers are kept in the library's folder."""
    limits = HttpOptions(keep_days=0.0) if options.refresh else HttpOptions()
    # hidden, so that an import of the folder does not take answers for records
    client = Client(service_of(name), library.fetched / ".answers" / name, limits, reporter=reporter)
    return _CLIENTS[name](client)


def enrich(library: LibraryFolder, options: LibraryOptions, reporter: Reporter = QUIET) -> Enriched:
    """Fetch what the papers lack, and index it."""
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
    """A file that the import reads: the path itself, or what Zotero's own formats become."""
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
    """The papers that a query finds; asked again only where the last answer was cut short, or on request."""
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
