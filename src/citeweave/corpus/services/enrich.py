"""Enrichment of a library with abstracts, references and citations from OpenAlex or Semantic Scholar.

    result = enrich_library(corpus, OpenAlex(client), Path("fetched"))
    result.found, result.not_found, result.ambiguous, result.citing      1480, 301, 7, 500
    richer = join_fetched(corpus, Path("fetched"), Path("richer"))

A paper that lacks an abstract or references is looked up by DOI, arXiv or PubMed id, else by its title: then only a record
of exactly the same title counts, of the same year or one year apart, with no id that contradicts. Where two fit, the paper
is ambiguous and none is taken. Papers that cite the library, and papers that several of the library cite, are fetched too,
up to a limit. Only ids and titles are sent to the service, nothing else of the library.

`join_fetched` writes a new generation of the corpus. The library's papers keep their ids and rows and gain abstracts,
references and further ids. Papers around the library, which cite it or which it cites, become stubs: rows that are known
and can be shown, but do not belong to the library. References to papers without a fetched record stay references to papers
outside. It sends no requests.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, artifact_matches, new_artifact
from citeweave.core.files import hash_file
from citeweave.core.inputs import Source
from citeweave.core.options import Range, check
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import KIND, LOCAL, VERSION, Corpus, lines
from citeweave.corpus.identity import title_key
from citeweave.corpus.ingest import READERS_VERSION, build_corpus
from citeweave.corpus.options import ImportOptions
from citeweave.corpus.paper import Paper, StagedRecord
from citeweave.corpus.plain_text import fold
from citeweave.corpus.readers import guess_format, reader_of
from citeweave.corpus.services.client import split_batches, write_records
from citeweave.corpus.staged_parts import PartWriter, StagedFile, is_complete

_LOOKUP_IDS = ("doi", "arxiv", "pmid", "pmcid", "openalex", "s2sha", "s2", "acl", "mag")
"""Kinds of ids that services know, best first."""

_PAPERS_PER_LOOKUP = 500

PAPERS, AROUND = "papers", ("citing", "lacking")
"""Endings of the file names: records of the library's papers, and of papers around it."""


class EnrichmentService(Protocol):
    """What the clients of OpenAlex and Semantic Scholar offer to an enrichment."""

    name: str

    def by_ids(self, ids: Iterable[str]) -> Iterator[dict[str, Any]]: ...
    def by_title(self, title: str) -> list[dict[str, Any]]: ...
    def citing(self, ids: Iterable[str], limit: int) -> Iterator[dict[str, Any]]: ...
    def ids_of(self, record: dict[str, Any]) -> tuple[str, ...]: ...
    def title_of(self, record: dict[str, Any]) -> str: ...
    def year_of(self, record: dict[str, Any]) -> int | None: ...
    def references_of(self, record: dict[str, Any]) -> list[str]: ...
    def adapt_record(self, record: dict[str, Any], id: str, year: int | None) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class EnrichOptions:
    """How much an enrichment fetches."""

    titles: Annotated[int, Range(0)] = 1000
    """Most papers looked up by title: each is one request, the most expensive kind."""

    citing: Annotated[int, Range(0)] = 500
    """Most papers fetched that cite the library."""

    lacking: Annotated[int, Range(0)] = 200
    """Most papers fetched that two or more of the library cite and that are not in it."""

    def __post_init__(self) -> None:
        check(self, "enrichment")


@dataclass(frozen=True, slots=True)
class EnrichmentResult:
    """How many papers an enrichment looked up, found and fetched."""

    asked: int
    """Papers that lacked an abstract or references."""

    found: int = 0
    not_found: int = 0
    """Looked up without success; with `found` and `ambiguous` fewer than `asked` if the service stopped."""

    ambiguous: int = 0
    citing: int = 0
    """Papers that cite the library."""

    lacking: int = 0
    stopped: str = ""
    """Why the service sent no more, empty where it sent everything."""

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
) -> EnrichmentResult:
    """Fetch what the papers of a corpus lack into JSONL files of a folder."""
    rows = incomplete_rows(corpus)
    lookup = _Lookup(corpus, service, rows, options)
    with reporter.task("looking up papers", len(rows), "papers") as advance:
        papers = write_records(lookup.records(advance), folder / f"{service.name}_{PAPERS}.jsonl")
    stopped, citing, lacking = papers.stopped, 0, 0
    if not stopped and options.citing and lookup.own:
        with reporter.task("fetching citing papers", options.citing, "papers") as advance:
            wanted = service.citing(lookup.own, options.citing)
            result = write_records(wanted, folder / f"{service.name}_{AROUND[0]}.jsonl", advance)
        citing, stopped = result.count, result.stopped
    if not stopped and options.lacking:
        with reporter.task("fetching papers that the library lacks", options.lacking, "papers") as advance:
            wanted = service.by_ids(lookup.most_cited_outside(options.lacking))
            result = write_records(wanted, folder / f"{service.name}_{AROUND[1]}.jsonl", advance)
        lacking, stopped = result.count, result.stopped
    not_found = lookup.looked_up - papers.count - lookup.ambiguous
    return EnrichmentResult(len(rows), papers.count, not_found, lookup.ambiguous, citing, lacking, stopped)


def incomplete_rows(corpus: Corpus) -> NDArray[np.int64]:
    """Return the rows of papers without an abstract or without references, (papers,)."""
    cites = np.zeros(len(corpus), np.bool_)  # (papers of the corpus,)
    cites[np.asarray(corpus.citing)] = True
    cites[np.asarray(corpus.references_outside("citing"))] = True
    return np.flatnonzero((corpus.abstracts.lengths() == 0) | ~cites)


class _Lookup:
    """The lookup of incomplete papers at a service, and what it saw on the way."""

    def __init__(
        self, corpus: Corpus, service: EnrichmentService, rows: NDArray[np.int64], options: EnrichOptions
    ) -> None:
        self._corpus, self._service, self._rows, self._options = corpus, service, rows.tolist(), options
        self._cited = Counter[str]()
        self.own: list[str] = []
        """The service's ids of the papers that were found."""
        self.ambiguous = self.looked_up = 0

    def records(self, advance: Any) -> Iterator[dict[str, Any]]:
        """Yield what enrichment fetched: one record for each paper that the service knows."""
        for part in split_batches(self._rows, _PAPERS_PER_LOOKUP):
            ids = {row: _known_ids(self._corpus, row) for row in part}
            found_rows = set()
            for row, record in self._by_ids(ids):
                found_rows.add(row)
                self.looked_up += 1
                yield self._remember(record)
            advance(len(found_rows))
            for row in part:
                if row not in found_rows:
                    by_title = self._by_title(row)
                    self.looked_up += 1
                    advance(1)
                    if by_title is not None:
                        yield self._remember(by_title)

    def most_cited_outside(self, limit: int) -> list[str]:
        """Return which papers outside to enrich a library with: those that several of its papers cite, most cited first."""
        often = [(count, id) for id, count in self._cited.items() if count > 1]
        ordered = [id for _, id in sorted(often, key=lambda pair: (-pair[0], pair[1]))]
        own = set(self.own)
        inside = self._corpus.rows(ordered) if ordered else np.empty(0, np.int32)
        return list(
            itertools.islice((id for id, row in zip(ordered, inside, strict=True) if row < 0 and id not in own), limit)
        )

    def _remember(self, record: dict[str, Any]) -> dict[str, Any]:
        self.own.extend(self._service.ids_of(record)[:1])
        self._cited.update(self._service.references_of(record))
        return record

    def _by_ids(self, ids: dict[int, list[str]]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield rows with their records, each row once; the best id of each is tried first, then the others."""
        open_rows = dict(ids)
        for place in range(max((len(known) for known in ids.values()), default=0)):
            row_of_id = {known[place]: row for row, known in open_rows.items() if place < len(known)}
            if not row_of_id:
                break
            for record in self._service.by_ids(row_of_id):
                record_ids = self._service.ids_of(record)
                id = next((id for id in record_ids if id in row_of_id and row_of_id[id] in open_rows), None)
                if id is not None:
                    row = row_of_id[id]
                    del open_rows[row]
                    yield row, self._service.adapt_record(record, id, None)

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
        return self._service.adapt_record(chosen[0], "", year) if len(chosen) == 1 else None

    def _is_same(self, record: dict[str, Any], title: str, year: int, known: dict[str, str]) -> bool:
        record_year = self._service.year_of(record)
        if fold(self._service.title_of(record)) != fold(title) or record_year is None or abs(record_year - year) > 1:
            return False
        pairs = [id.split(":", 1) for id in self._service.ids_of(record)]
        return all(known.get(kind, value) == value for kind, value in pairs)


def _known_ids(corpus: Corpus, row: int) -> list[str]:
    """Return the ids of a paper that services know, best first; its local key is not one."""
    own = [] if corpus.flags[row] & LOCAL else [corpus.ids[row]]
    ids = [*own, *lines(corpus.other_ids[row])]
    by_kind = {kind: id for id in reversed(ids) for kind, colon, _ in [id.partition(":")] if colon}
    return [by_kind[kind] for kind in _LOOKUP_IDS if kind in by_kind]


# Joining the fetched records.


def join_fetched(corpus: Corpus, folder: Path, output: Path, *, reporter: Reporter = QUIET) -> Corpus:
    """Return the corpus joined with the fetched records of a folder; the corpus itself where there are none."""
    files = _fetched_files(folder)
    if not files:
        return corpus
    recipe = {
        "update": corpus.hash,
        "fetched": {path.name: hash_file(path) for path in files},
        "readers": READERS_VERSION,
    }
    if not artifact_matches(output, KIND, VERSION, recipe):
        with new_artifact(output, KIND, VERSION, recipe, overwrite=True) as writer:
            parts = [_stage(path, writer, corpus) for path in files]
            build_corpus(writer, parts, ImportOptions(outside="keep"), base=corpus, reporter=reporter)
            writer.facts["skipped_files"] = {}
            writer.finish()
    return Corpus.open(output)


def _fetched_files(folder: Path) -> list[Path]:
    """Return the files that an enrichment wrote, in a fixed order."""
    return sorted(path for kind in (PAPERS, *AROUND) for path in folder.glob(f"*_{kind}.jsonl"))


def _stage(path: Path, writer: ArtifactWriter, corpus: Corpus) -> StagedFile:
    folder = writer.scratch_folder("parts") / path.stem
    if not is_complete(folder):
        part = PartWriter(folder, keep_ids=True)
        source = Source(path)
        format = guess_format(source) or "openalex"
        part.add(_mark_stubs(reader_of(format).read(source, part.tally), corpus))
        part.finish({"name": path.name, "format": format})
    return StagedFile(folder)


def _mark_stubs(records: Iterable[StagedRecord], corpus: Corpus) -> Iterator[StagedRecord]:
    """Turn papers that the corpus does not have, or no longer, into stubs; drop stubs that a reader knows by title alone."""
    for record in records:
        if not isinstance(record, Paper):
            yield record
        elif not record.stub:
            names = [record.id, *record.ids, title_key(record.title, record.year) or record.id]
            yield replace(record, stub=bool((corpus.rows(names) < 0).all()))
