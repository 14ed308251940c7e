"""A library that can be searched at once by its words, while the rest is made behind it.

    with open_library("my.bib") as library:
        library.index_folder, library.working(), library.lacks()
        app = create_app(library)

Local sources need no network. A source that did not change is not read again; one that did is, and only what is new in it
is embedded. Does not serve: see `app.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from citeweave.corpus.corpus import Corpus
from citeweave.corpus.layout import STUB
from citeweave.errors import ArtefactError, UserError
from citeweave.locks import LockedError, take_lock
from citeweave.progress import QUIET, Reporter
from citeweave.serve.libraries.background import BackgroundWork, work_on
from citeweave.serve.libraries.preparing import RECORD, LibraryFolder, LibraryOptions, check_model, prepare_words
from citeweave.serve.libraries.sources import LibrarySource, find_source, library_folder

_LOCK = ".lock"
_OPTIONS = LibraryOptions()


class Library:
    """What a server needs to know of a library."""

    def __init__(self, source: LibrarySource, places: LibraryFolder | None, work: BackgroundWork | None) -> None:
        self.source, self.places, self._work = source, places, work
        self._counted: tuple[str, list[str]] = ("", [])

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def index_folder(self) -> Path:
        return self.source.files[0] if self.places is None else self.places.index

    @property
    def corpus_folder(self) -> Path | None:
        """The papers of the source, without what was fetched for them; None for an index."""
        return None if self.places is None else Path(self.places.record().get("base", self.places.corpus))

    def working(self) -> dict[str, Any] | None:
        """What is being done behind: what, done, total, seconds_left; None where nothing is."""
        return None if self._work is None else self._work.working()

    def lacks(self) -> list[str]:
        """What the library cannot do for want of data, and what helps."""
        if self.places is None:
            return []
        record = self.places.record()
        lacks = self._counts(self.places)
        if stopped := record.get("asked", {}).get("stopped"):
            lacks = [*lacks, stopped]
        return [*lacks, self._work.error] if self._work is not None and self._work.error else lacks

    def finish(self, reporter: Reporter = QUIET) -> str:
        """Do in this process what is otherwise done behind; why some of it was not done, empty where all was."""
        if self._work is None or self.places is None:
            return ""
        self._work.error = work_on(self.places, self._work.options, reporter=reporter)
        return self._work.error or self.places.record().get("asked", {}).get("stopped", "")

    def start(self) -> None:
        """Begin the work behind."""
        if self._work is not None:
            self._work.start()

    def stop(self) -> None:
        if self._work is not None:
            self._work.stop()

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the work behind."""
        if self._work is not None:
            self._work.join(seconds)

    def _counts(self, places: LibraryFolder) -> list[str]:
        """Lines about the corpus, counted once for each."""
        corpus = corpus_of(places)
        if corpus is None:
            return []
        if self._counted[0] != corpus.hash:
            enriched = places.record().get("enriched", {}).values()
            told = lacks_of(corpus, enriched=any(not each.get("stopped") for each in enriched))
            own = self.source.kind != "corpus"  # what an import left out of a corpus was told then
            self._counted = (corpus.hash, [*left_out_of(self.corpus_folder if own else None), *told])
        return self._counted[1]


def corpus_of(places: LibraryFolder) -> Corpus | None:
    """The corpus of a library, with what was fetched for it."""
    for folder in (places.richer, Path(places.record().get("base", places.corpus))):
        try:
            return Corpus.open(folder)
        except (ArtefactError, OSError):
            continue
    return None


def left_out_of(folder: Path | None) -> list[str]:
    """What of the source became no paper, and why."""
    try:
        records = Corpus.open(folder).manifest.facts["records"]["papers"] if folder else {}
    except (ArtefactError, OSError, KeyError, TypeError):
        return []
    why = {reason: int(count) for reason, count in records.get("rejected", {}).items() if count}
    reasons = ", ".join(f"{reason} ({count:,})" for reason, count in why.items())
    return (
        [f"{sum(why.values()):,} of {records['read']:,} entries of the source are left out: {reasons}"] if why else []
    )


def lacks_of(corpus: Corpus, *, enriched: bool = False) -> list[str]:
    """What the papers of a corpus are without; papers around a library do not count."""
    own = (np.asarray(corpus.flags) & STUB) == 0  # (papers,)
    papers = int(own.sum())
    no_abstract = int((own & (corpus.abstracts.lengths() == 0)).sum())
    cites = np.zeros(len(corpus), np.bool_)  # (papers,)
    cites[np.asarray(corpus.citing)] = True
    cites[np.asarray(corpus.references_outside("citing"))] = True
    no_references = int((own & ~cites).sum())
    lacks = []
    if no_abstract:
        lacks.append(f"{no_abstract:,} of {papers:,} papers have no abstract")
    if no_references:
        lacks.append(f"{no_references:,} of {papers:,} papers have no references, so none in common with others")
    if lacks and not enriched:
        lacks.append("`citeweave explore --enrich openalex` fetches abstracts, references and citations")
    return lacks


@contextmanager
def open_library(
    source: str,
    folder: Path | None = None,
    options: LibraryOptions = _OPTIONS,
    *,
    reporter: Reporter = QUIET,
) -> Iterator[Library]:
    """A library whose words can be searched; `start` or `finish` brings the rest. One process at a time."""
    found = find_source(source)
    if found.kind == "index":
        if options.enrich:
            raise UserError(
                f"{source} is an index, which cannot be enriched; give the corpus or the file it was made of"
            )
        yield Library(found, None, None)
        return
    check_model(options)
    place = (folder or library_folder(found)).expanduser().absolute()
    if folder is not None:
        _refuse_strangers(place)
    with _alone(place):
        places = prepare_words(found, place, options, reporter=reporter)
        library = Library(found, places, BackgroundWork(places, options, reporter))
        try:
            yield library
        finally:
            library.stop()


def _refuse_strangers(folder: Path) -> None:
    """Refuse a folder in which something else lies: a library would replace what has the names of its parts."""
    if not folder.is_dir() or (folder / RECORD).is_file():
        return
    if strangers := sorted({path.name for path in folder.iterdir()} - {_LOCK, f"{_LOCK}.held"}):
        raise UserError(
            f"{folder} holds {strangers[0]!r} and no {RECORD}, so it is no library's folder; choose another --folder"
        )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes off a library's folder."""
    try:
        lock = take_lock(folder / _LOCK)
    except LockedError:
        raise UserError(
            f"{folder} is being explored already; look for its page in the browser, or end the other command"
        ) from None
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}); name another place with --folder") from None
    with lock:
        yield
