"""What SOURCE of `citeweave explore` is.

    library.bib, export.ris, items.json      files of any format that `citeweave import` reads
    ~/Zotero, ~/Zotero/storage               a data folder of Zotero, through its database
    "My Library/"                            a folder with an export, or with files to import
    corpus/, index/                          made by citeweave
    openalex:citation recommendation         a query, `s2:` for Semantic Scholar

Only the last asks anybody. Does not read the papers: see `preparing.py`.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from citeweave.artefacts.manifest import kind_of
from citeweave.corpus.clients.services import SERVICES
from citeweave.corpus.readers import guess_format
from citeweave.errors import UserError
from citeweave.opening import Source
from citeweave.search.state import is_index
from citeweave.serve.libraries.zotero import find_database

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
