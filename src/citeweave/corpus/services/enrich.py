"""Abstracts, references and citations for a library that has only titles, from OpenAlex or Semantic Scholar.

    found = enrich_library(corpus, OpenAlex(client), Path("fetched"))
    found.found, found.not_found, found.ambiguous, found.citing      1480, 301, 7, 500
    richer = join_fetched(corpus, Path("fetched"), Path("richer"))

A paper that lacks an abstract or references is looked up by DOI, arXiv or PubMed id, else by its title: then only a record
of the very same title counts, of the same year or the next or the last, with no id that says otherwise. Two that fit are
ambiguous and none is taken. Papers that cite the library, and papers that much of the library cites, come too, so many at
most. What is sent to the service is ids and titles, nothing else of the library.

Does not change the corpus: `joining.py` makes an update of it, in which the library's papers keep their ids.

A library together with what `enrich_library` fetched for it: a new generation of its corpus.

    richer = join_fetched(corpus, Path("fetched"), Path("richer"))

The library's papers keep their ids and rows and gain abstracts, references and further ids. Papers around the library, which
cite it or which it cites, become stubs: rows that are known and can be shown, but are not of the library. References to
papers of which no record was fetched stay references to papers outside. Does not ask anybody.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, matches, new_artifact
from citeweave.core.errors import UserError
from citeweave.core.files import hash_file
from citeweave.core.inputs import Source
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import KIND, LOCAL, VERSION, Corpus, lines
from citeweave.corpus.identity import title_key
from citeweave.corpus.ingest import READERS_VERSION, build_corpus
from citeweave.corpus.merge import MergeOptions
from citeweave.corpus.paper import Paper, StagedRecord
from citeweave.corpus.plain_text import fold
from citeweave.corpus.readers import guess_format, reader_of
from citeweave.corpus.services.client import batches, write_records
from citeweave.corpus.staged_parts import PartWriter, StagedFile, is_complete

_LOOKED_UP = ("doi", "arxiv", "pmid", "pmcid", "openalex", "s2sha", "s2", "acl", "mag")
"""Kinds of ids that services know, best first."""

_AT_A_TIME = 500

PAPERS, AROUND = "papers", ("citing", "lacking")
"""Endings of the files' names: records of the library's papers, and of papers around it."""


class EnrichmentService(Protocol):
    """What both clients offer."""

    name: str

    def by_ids(self, ids: Iterable[str]) -> Iterator[dict[str, Any]]: ...
    def by_title(self, title: str) -> list[dict[str, Any]]: ...
    def citing(self, ids: Iterable[str], most: int) -> Iterator[dict[str, Any]]: ...
    def ids_of(self, record: dict[str, Any]) -> tuple[str, ...]: ...
    def title_of(self, record: dict[str, Any]) -> str: ...
    def year_of(self, record: dict[str, Any]) -> int | None: ...
    def references_of(self, record: dict[str, Any]) -> list[str]: ...
    def as_paper_of(self, record: dict[str, Any], id: str, year: int | None) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class EnrichOptions:
    """How much is fetched."""

    titles: int = 1000
    """Papers looked up by title, at most: each is one request, the dearest kind."""

    citing: int = 500
    """Papers that cite the library, at most."""

    lacking: int = 200
    """Papers that two or more of the library cite and that are not in it, at most."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 0:
                raise UserError(f"{name} of the enrichment is {value}; it must be 0, for none, or more")


@dataclass(frozen=True, slots=True)
class Enriched:
    """What an enrichment found."""

    asked: int
    """Papers that lacked an abstract or references."""

    found: int = 0
    not_found: int = 0
    """Looked up in vain; with `found` and `ambiguous` less than `asked` where the service stopped."""

    ambiguous: int = 0
    citing: int = 0
    """Papers that cite the library."""

    lacking: int = 0
    stopped: str = ""
    """Why the service gave no more, empty where it gave all."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


_OPTIONS = EnrichOptions()


def enrich_library(
    corpus: Corpus,
    service: EnrichmentService,
    folder: Path,
    options: EnrichOptions = _OPTIONS,
    *,
    reporter: Reporter = QUIET,
) -> Enriched:
    """Fetch what the papers of a corpus lack into JSONL files of a folder."""
    rows = lacking_rows(corpus)
    search = _Lookup(corpus, service, rows, options)
    with reporter.task("looking up papers", len(rows), "papers") as advance:
        papers = write_records(search.records(advance), folder / f"{service.name}_{PAPERS}.jsonl")
    stopped, citing, lacking = papers.stopped, 0, 0
    if not stopped and options.citing and search.own:
        with reporter.task("fetching citing papers", options.citing, "papers") as advance:
            wanted = service.citing(search.own, options.citing)
            told = write_records(wanted, folder / f"{service.name}_{AROUND[0]}.jsonl", advance)
        citing, stopped = told.count, told.stopped
    if not stopped and options.lacking:
        with reporter.task("fetching papers that the library lacks", options.lacking, "papers") as advance:
            wanted = service.by_ids(search.most_cited_outside(options.lacking))
            told = write_records(wanted, folder / f"{service.name}_{AROUND[1]}.jsonl", advance)
        lacking, stopped = told.count, told.stopped
    missed = search.looked_up - papers.count - search.ambiguous
    return Enriched(len(rows), papers.count, missed, search.ambiguous, citing, lacking, stopped)


def lacking_rows(corpus: Corpus) -> NDArray[np.int64]:
    """Rows of papers with no abstract or no reference, (papers,)."""
    cites = np.zeros(len(corpus), np.bool_)  # (papers of the corpus,)
    cites[np.asarray(corpus.citing)] = True
    cites[np.asarray(corpus.references_outside("citing"))] = True
    return np.flatnonzero((corpus.abstracts.lengths() == 0) | ~cites)


class _Lookup:
    """The search for the papers of some rows, and what it saw on the way."""

    def __init__(
        self, corpus: Corpus, service: EnrichmentService, rows: NDArray[np.int64], options: EnrichOptions
    ) -> None:
        self._corpus, self._service, self._rows, self._options = corpus, service, rows.tolist(), options
        self._cited = Counter[str]()
        self.own: list[str] = []
        """The service's ids of the papers that were found."""
        self.ambiguous = self.looked_up = 0

    def records(self, advance: Any) -> Iterator[dict[str, Any]]:
        """One record for each paper that was found."""
        for part in batches(self._rows, _AT_A_TIME):
            ids = {row: _known_ids(self._corpus, row) for row in part}
            found = set()
            for row, record in self._by_ids(ids):
                found.add(row)
                self.looked_up += 1
                yield self._seen(record)
            advance(len(found))
            for row in part:
                if row not in found:
                    by_title = self._by_title(row)
                    self.looked_up += 1
                    advance(1)
                    if by_title is not None:
                        yield self._seen(by_title)

    def most_cited_outside(self, most: int) -> list[str]:
        """Ids of papers that two or more of the found ones cite and that the corpus does not have, most cited first."""
        often = [(count, id) for id, count in self._cited.items() if count > 1]
        ordered = [id for _, id in sorted(often, key=lambda pair: (-pair[0], pair[1]))]
        own = set(self.own)
        inside = self._corpus.rows(ordered) if ordered else np.empty(0, np.int32)
        return list(
            itertools.islice((id for id, row in zip(ordered, inside, strict=True) if row < 0 and id not in own), most)
        )

    def _seen(self, record: dict[str, Any]) -> dict[str, Any]:
        self.own.extend(self._service.ids_of(record)[:1])
        self._cited.update(self._service.references_of(record))
        return record

    def _by_ids(self, ids: dict[int, list[str]]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Rows with their records, each row once; the best id of each is asked for, then the others."""
        open_rows = dict(ids)
        for place in range(max((len(known) for known in ids.values()), default=0)):
            asked = {known[place]: row for row, known in open_rows.items() if place < len(known)}
            if not asked:
                break
            for record in self._service.by_ids(asked):
                told = self._service.ids_of(record)
                id = next((id for id in told if id in asked and asked[id] in open_rows), None)
                if id is not None:
                    row = asked[id]
                    del open_rows[row]
                    yield row, self._service.as_paper_of(record, id, None)

    def _by_title(self, row: int) -> dict[str, Any] | None:
        title, year = self._corpus.titles[row], int(self._corpus.years[row]) or None
        # a title too short to trust is never joined by the import either
        if self._options.titles <= 0 or title_key(title, year) is None or year is None:
            return None
        self._options = EnrichOptions(self._options.titles - 1, self._options.citing, self._options.lacking)
        known = dict(id.split(":", 1) for id in _known_ids(self._corpus, row))
        fits = [one for one in self._service.by_title(title) if self._is_same(one, title, year, known)]
        exact = [one for one in fits if self._service.year_of(one) == year]
        chosen = exact if len(exact) == 1 else fits
        if len(chosen) > 1:
            self.ambiguous += 1
        return self._service.as_paper_of(chosen[0], "", year) if len(chosen) == 1 else None

    def _is_same(self, record: dict[str, Any], title: str, year: int, known: dict[str, str]) -> bool:
        told = self._service.year_of(record)
        if fold(self._service.title_of(record)) != fold(title) or told is None or abs(told - year) > 1:
            return False
        pairs = [id.split(":", 1) for id in self._service.ids_of(record)]
        return all(known.get(kind, value) == value for kind, value in pairs)


def _known_ids(corpus: Corpus, row: int) -> list[str]:
    """The ids of a paper that services know, best first; its key in a file is none."""
    own = [] if corpus.flags[row] & LOCAL else [corpus.ids[row]]
    ids = [*own, *lines(corpus.other_ids[row])]
    by_kind = {kind: id for id in reversed(ids) for kind, colon, _ in [id.partition(":")] if colon}
    return [by_kind[kind] for kind in _LOOKED_UP if kind in by_kind]


# A library together with what `enrich_library` fetched for it: a new generation of its corpus.


def join_fetched(corpus: Corpus, folder: Path, output: Path, *, reporter: Reporter = QUIET) -> Corpus:
    """The corpus with the records of a folder; the corpus itself where there are none."""
    files = fetched_files(folder)
    if not files:
        return corpus
    recipe = {
        "update": corpus.hash,
        "fetched": {path.name: hash_file(path) for path in files},
        "readers": READERS_VERSION,
    }
    if not matches(output, KIND, VERSION, recipe):
        with new_artifact(output, KIND, VERSION, recipe, overwrite=True) as writer:
            parts = [_stage(path, writer, corpus) for path in files]
            build_corpus(writer, parts, MergeOptions(outside="keep"), base=corpus, reporter=reporter)
            writer.facts["skipped_files"] = {}
            writer.finish()
    return Corpus.open(output)


def fetched_files(folder: Path) -> list[Path]:
    """The files that an enrichment wrote, in a fixed order."""
    return sorted(path for kind in (PAPERS, *AROUND) for path in folder.glob(f"*_{kind}.jsonl"))


def _stage(path: Path, writer: ArtifactWriter, corpus: Corpus) -> StagedFile:
    folder = writer.work("parts") / path.stem
    if not is_complete(folder):
        part = PartWriter(folder, keep_ids=True)
        source = Source(path)
        format = guess_format(source) or "openalex"
        part.add(_told_apart(reader_of(format).read(source, part.tally), corpus))
        part.finish({"name": path.name, "format": format})
    return StagedFile(folder)


def _told_apart(records: Iterable[StagedRecord], corpus: Corpus) -> Iterator[StagedRecord]:
    """Papers that the corpus does not have, or no longer, become stubs; stubs of a reader, known by title alone, go."""
    for record in records:
        if not isinstance(record, Paper):
            yield record
        elif not record.stub:
            names = [record.id, *record.ids, title_key(record.title, record.year) or record.id]
            yield replace(record, stub=bool((corpus.rows(names) < 0).all()))
