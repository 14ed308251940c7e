"""Triplets of other projects, read and written: SciNCL's CSV, SciRepEval's JSON lines, and what all formats share.

Reading turns rows of query, positive and negatives into samples and counts every record:

    q, a, 1        one sample: positives a b, negatives 1 2
    q, b, 2
    q, b, 3        another one: b is in the first already

Consecutive lines with the same query form a sample as long as no paper is repeated in it: positives and negatives
then pair up one to one, and `triplets()` returns the lines in their order. Nothing is sorted, and no more than a block
is held. Writing yields the papers of the samples as ids, texts and records.

SciNCL's training triples:

    train_triples.csv      query_paper_id,positive_id,negative_id
    train_metadata.jsonl   {"paper_id": "1", "title": "T", "abstract": "A", "arxiv_id": null, "doi": "10.1/x"}

Papers come from the corpus, so that the metadata is written but not read. SciNCL's own loader splits lines at every
comma: ids with one in them are quoted as CSV requires, and counted.

SciRepEval's training triplets:

    {"query": {"doc_id": "s2:1", "title": "T", "abstract": "A"}, "pos": {...}, "neg": {...}}

Reading: JSON lines or one list; a paper is named by `doc_id`, `corpus_id`, `sha` or `paper_id`, by its bare id in
place of the object, or, if it has no id, by its title and abstract, which must be exactly the corpus's. Ranking rows
(`candidates`) are not triplets. Writing: JSON lines with `doc_id`.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from citeweave.core.errors import ArtifactError, InputError
from citeweave.core.inputs import FileHead, Source
from citeweave.core.json_files import read_json_objects, starts_as_json
from citeweave.core.progress import Advance, Count, Tally
from citeweave.corpus.corpus import Corpus, lines
from citeweave.corpus.identity import distinct, number_id, sha_id
from citeweave.corpus.plain_text import strip_markup
from citeweave.corpus.text import paper_text
from citeweave.mining.options import ExportOptions
from citeweave.mining.samples import SampleBlock, SampleNames, Samples, block_from_lists
from citeweave.mining.tables import PaperLookup

# Reading: records to samples.

NAMES = SampleNames(rules=("given positive", "given negative"))
POSITIVE, NEGATIVE = 0, 1

OUTSIDE = ("query not in the corpus", "positive not in the corpus", "negative not in the corpus")
TWICE = "one paper twice in the same record"
NO_ID = "no id"

ROWS = 1 << 13
"""Records looked up at once."""

MAX_SAMPLE = 1024
"""Maximum number of lines of one query in a sample; more become several samples."""

_WRITTEN_AT_ONCE = 1 << 16

Item = TypeVar("Item")


def blocks(items: Iterable[Item], size: int = ROWS) -> Iterator[list[Item]]:
    """Yield triplet rows or other items in lists of at most `size`.

    >>> list(blocks("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    rest = iter(items)
    while block := list(islice(rest, size)):
        yield block


def known_rows(rows: NDArray[np.int32], tally: Tally, kind: str) -> NDArray[np.int32]:
    """Return the triplet rows, (n, 2 + negatives), whose papers are all in the corpus and different; count the others."""
    missing = rows < 0
    outside = [missing[:, 0], missing[:, 1], missing[:, 2:].any(axis=1)]
    twice = (np.diff(np.sort(rows, axis=1), axis=1) == 0).any(axis=1)
    valid = np.ones(len(rows), bool)
    for reason, mask in zip((*OUTSIDE, TWICE), (*outside, twice), strict=True):
        tally.reject(kind, reason, int((mask & valid).sum()))
        valid &= ~mask
    tally.keep(kind, int(valid.sum()))
    return rows[valid]


def paired_samples(triplets: Iterable[NDArray[np.int32]]) -> Iterator[SampleBlock]:
    """Group triplet rows, in blocks of shape (n, 3) in their order, into samples."""
    pending = _PendingSamples()
    for block in triplets:
        for query, positive, negative in block.tolist():
            pending.add(query, positive, negative)
        if pending.size >= _WRITTEN_AT_ONCE:
            yield pending.take()
    if pending.size:
        yield pending.take(last=True)


def grouped_samples(rows: Iterable[NDArray[np.int32]]) -> Iterator[SampleBlock]:
    """Yield one sample for every triplet row with any number of negatives, (2 + negatives,), block by block."""
    for block in rows:
        if len(block):
            lists = block[:, 0].tolist(), block[:, 1:2].tolist(), block[:, 2:].tolist()
            yield block_from_lists(*lists, positive_rule=POSITIVE, negative_rule=NEGATIVE)


class _PendingSamples:
    """Samples built from triplets that wait to be written; the last of them may still grow."""

    def __init__(self) -> None:
        self._anchors: list[int] = []
        self._positives: list[list[int]] = []
        self._negatives: list[list[int]] = []
        self._seen: set[int] = set()
        self.size = 0

    def add(self, query: int, positive: int, negative: int) -> None:
        """Add a triplet row to the last sample, or start a new one."""
        continues = self._anchors and self._anchors[-1] == query and len(self._positives[-1]) < MAX_SAMPLE
        if not continues or positive in self._seen or negative in self._seen:
            self._anchors.append(query)
            self._positives.append([])
            self._negatives.append([])
            self._seen = set()
        self._positives[-1].append(positive)
        self._negatives[-1].append(negative)
        self._seen |= {positive, negative}
        self.size += 1

    def take(self, *, last: bool = False) -> SampleBlock:
        """Return the complete samples of the triplet rows so far: all but the one that may still grow."""
        end = len(self._anchors) if last else len(self._anchors) - 1
        lists = self._anchors[:end], self._positives[:end], self._negatives[:end]
        block = block_from_lists(*lists, positive_rule=POSITIVE, negative_rule=NEGATIVE)
        del self._anchors[:end], self._positives[:end], self._negatives[:end]
        self.size = sum(map(len, self._positives))
        return block


# Writing: samples to records.

NO_TEXT = "paper without title and abstract"
NO_POSITIVE = "no positive"
NO_NEGATIVE = "no negative"

CELLS = 3 << 13
"""Papers written at once; bounds the texts in memory to some ten megabytes."""

PaperRows = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ExportedSamples:
    """Samples to write as triplet rows, with their corpus, options and counts, as the writers of all formats use them."""

    samples: Samples
    corpus: Corpus
    options: ExportOptions
    tally: Tally
    advance: Advance

    def triplets(self, *, with_text: bool) -> Iterator[PaperRows]:
        """Yield triplet rows, anchor, positive and negative, in blocks of shape (n, 3); count those without text."""
        rows = self.samples.triplets().rows()
        self.count_samples(needs_negatives=True)
        self.tally.counts["triplets"] = Count()
        for start in range(0, len(rows), CELLS // 3):
            yield self.writable(rows[start : start + CELLS // 3], "triplets", with_text=with_text)

    def count_samples(self, *, needs_negatives: bool) -> None:
        """Count the samples that give triplet rows: with a positive and, if the format needs them, negatives."""
        self.tally.counts["samples"] = count = Count()
        no_positive = self.samples.positives.lengths() == 0
        no_negative = (self.samples.negatives.lengths() == 0) & ~no_positive & needs_negatives
        self.tally.reject("samples", NO_POSITIVE, int(no_positive.sum()))
        self.tally.reject("samples", NO_NEGATIVE, int(no_negative.sum()))
        count.kept = len(self.samples) - int(no_positive.sum()) - int(no_negative.sum())

    def writable(self, block: PaperRows, kind: str, *, with_text: bool) -> PaperRows:
        """Return the triplet rows of a block, (n, papers), whose papers all have text, if the format writes texts."""
        self.tally.counts.setdefault(kind, Count())
        rows = block[self.has_text(block).all(axis=1)] if with_text else block
        self.tally.reject(kind, NO_TEXT, len(block) - len(rows))
        self.tally.keep(kind, len(rows))
        self.advance(len(block))
        return rows

    def has_text(self, rows: PaperRows) -> NDArray[np.bool_]:
        """Return which papers have a title or an abstract, in the shape of the rows."""
        titles, abstracts = self.corpus.titles.offsets, self.corpus.abstracts.offsets
        return (titles[rows + 1] > titles[rows]) | (abstracts[rows + 1] > abstracts[rows])

    def ids(self, rows: PaperRows) -> NDArray[Any]:
        """Return the ids of the papers, in the shape of the rows."""
        distinct, places = np.unique(rows, return_inverse=True)
        ids = np.array(self.corpus.ids.take(distinct), object)
        return np.asarray(ids[places].reshape(rows.shape))

    def texts(self, rows: PaperRows) -> NDArray[Any]:
        """Return the texts of the papers as an encoder reads them, in the shape of the rows."""
        distinct, places = np.unique(rows, return_inverse=True)
        parts = zip(self.corpus.titles.take(distinct), self.corpus.abstracts.take(distinct), strict=True)
        texts = np.array([paper_text(title, abstract) for title, abstract in parts], object)
        return np.asarray(texts[places].reshape(rows.shape))

    def other_ids(self, row: int, prefix: str) -> str | None:
        """Return the first id of a paper with this prefix, without the prefix."""
        ids = (self.corpus.ids[row], *lines(self.corpus.other_ids[row]))
        return next((id.removeprefix(prefix) for id in ids if id.startswith(prefix)), None)


def check_rows(samples: Samples, corpus: Corpus) -> None:
    """Refuse to export samples of another corpus, or with rows that no paper has."""
    samples.check_corpus(corpus.hash, corpus.folder)
    for rows in (samples.anchors, samples.positives.rows, samples.negatives.rows):
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(corpus):
            raise ArtifactError(f"{samples.folder} is damaged: it names rows that no paper has; mine the samples again")


# SciNCL's triples.

HEADER = ("query_paper_id", "positive_id", "negative_id")
TRIPLES, METADATA = "train_triples.csv", "train_metadata.jsonl"
SCINCL_FILES = (TRIPLES, f"{TRIPLES}.gz", METADATA)

BAD_LINE = "not a line of CSV"
FEW_COLUMNS = "fewer columns than the header"


def recognize_scincl(head: FileHead) -> str | None:
    """Return the role of a file in SciNCL's format by its beginning, None if it is not one."""
    line = head.data.split(b"\n", 1)[0].decode("utf-8", "replace")
    if set(HEADER) <= {name.strip(' \r"') for name in line.split(",")}:
        return "samples"
    record = head.record
    return "papers" if record is not None and {"paper_id", "title", "abstract"} <= record.keys() else None


def read_scincl(
    sources: Sequence[Source], queries: Sequence[Source], lookup: PaperLookup, tally: Tally
) -> Iterator[SampleBlock]:
    """Read SciNCL's triples as blocks of samples."""
    parts = (block for source in sources for block in blocks(_read_csv(source, tally)))
    rows = (lookup.rows([id for ids in block for id in ids]).reshape(-1, 3) for block in parts)
    return paired_samples(known_rows(block, tally, "triplets") for block in rows)


def _read_csv(source: Source, tally: Tally) -> Iterator[list[str]]:
    """Yield the three ids of every line of a CSV file; count bad lines by reason."""
    lines = (line.decode("utf-8", "replace").removeprefix("\ufeff") for line in source.raw_lines(tally, "triplets"))
    reader = csv.reader(lines, strict=True)
    places = _column_places(reader, source.path)
    while True:
        before = reader.line_num
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:  # an unclosed quote swallows the lines after it
            tally.reject("triplets", BAD_LINE, reader.line_num - before)
            continue
        if not row:
            continue
        ids = [row[place].strip() for place in places] if len(row) > max(places) else []
        if all(ids) and ids:
            yield ids
        else:
            tally.reject("triplets", NO_ID if ids else FEW_COLUMNS)


def _column_places(reader: Iterator[list[str]], path: Path) -> list[int]:
    """Return the positions of the three id columns in the CSV header."""
    try:
        header = [name.strip() for name in next(reader, [])]
    except csv.Error:
        header = []
    if not set(HEADER) <= set(header):
        raise InputError(f"{path} does not begin with the line {','.join(HEADER)}; is it another format?")
    return [header.index(name) for name in HEADER]


def scincl_file_names(options: ExportOptions) -> tuple[str, ...]:
    """Return the names of the files of an export to SciNCL's format."""
    return (f"{TRIPLES}.gz" if options.gzip else TRIPLES, METADATA)


def write_scincl(out: ExportedSamples, paths: dict[str, Path]) -> int:
    """Write samples as SciNCL's CSV and metadata files; return the number of triples."""
    used = np.zeros(len(out.corpus), bool)
    (triples,) = (path for name, path in paths.items() if name != METADATA)
    with _new_text(triples, compressed=out.options.gzip) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        for block in out.triplets(with_text=False):
            writer.writerows(out.ids(block).tolist())
            used[block] = True
    rows = np.flatnonzero(used)
    with paths[METADATA].open("wb") as file:
        for start in range(0, len(rows), CELLS):
            file.writelines(_metadata(out, rows[start : start + CELLS]))
    return out.tally.counts["triplets"].kept


def _metadata(out: ExportedSamples, rows: NDArray[np.int64]) -> Iterator[bytes]:
    """Yield the lines of SciNCL's metadata file for some papers."""
    corpus = out.corpus
    columns = [column.take(rows) for column in (corpus.ids, corpus.titles, corpus.abstracts)]
    for row, id, title, abstract in zip(rows.tolist(), *columns, strict=True):
        out.tally.note("ids with a comma or quote, which SciNCL's own loader cannot read", int("," in id or '"' in id))
        out.tally.note("papers without title and abstract in the metadata", int(not title and not abstract))
        others = {"arxiv_id": out.other_ids(row, "arxiv:"), "doi": out.other_ids(row, "doi:")}
        yield orjson.dumps({"paper_id": id, "title": title, "abstract": abstract, **others}) + b"\n"


@contextmanager
def _new_text(path: Path, *, compressed: bool) -> Iterator[TextIO]:
    with path.open("wb") as raw:
        # no name and no time in the header, so that the same samples give the same bytes
        stream = gzip.GzipFile("", "wb", 6, raw, mtime=0) if compressed else raw
        with io.TextIOWrapper(stream, encoding="utf-8", newline="") as file:
            yield file


# SciRepEval's triplets.

PARTS = ("query", "pos", "neg")
SCIREPEVAL_FILE = "triplets.jsonl"

NOT_A_TRIPLET = "no query, pos and neg"
NAMELESS = "paper without id and text"

_Reference = tuple[tuple[str, ...], str]
"""The ids of a paper in the order to try them, and its text if it has no id."""


def recognize_scirepeval(head: FileHead) -> str | None:
    """Return "samples" for a file of SciRepEval triplets by its beginning, else None."""
    has_parts = starts_as_json(head) and all(f'"{part}"'.encode() in head.data for part in PARTS)
    return "samples" if has_parts else None


def read_scirepeval(
    sources: Sequence[Source], queries: Sequence[Source], lookup: PaperLookup, tally: Tally
) -> Iterator[SampleBlock]:
    """Read SciRepEval's triplets as blocks of samples."""
    parts = (block for source in sources for block in blocks(_references(source, tally)))
    rows = (_look_up([one for references in block for one in references], lookup).reshape(-1, 3) for block in parts)
    return paired_samples(known_rows(block, tally, "triplets") for block in rows)


def _references(source: Source, tally: Tally) -> Iterator[list[_Reference]]:
    """Yield the ids or texts of the three papers of every record; count bad records by reason."""
    for record in read_json_objects(source, tally, "triplets"):
        if any(record.get(part) is None for part in PARTS):
            tally.reject("triplets", NOT_A_TRIPLET)
            continue
        references = [_parse_reference(record[part]) for part in PARTS]
        if all(ids or text for ids, text in references):
            yield references
        else:
            tally.reject("triplets", NAMELESS)


def _look_up(references: list[_Reference], lookup: PaperLookup) -> NDArray[np.int32]:
    """Return the rows of papers by their ids, or by their texts if they have none."""
    rows = lookup.rows_of_any([ids for ids, _ in references])
    by_text = [place for place, (ids, _) in enumerate(references) if not ids]
    if by_text:
        rows[by_text] = lookup.rows_of_texts([references[place][1] for place in by_text])
    return rows


def _parse_reference(value: object) -> _Reference:
    """Return the ids of a paper of a triplet in the order to try them, and its text if it has none.

    >>> _parse_reference({"corpus_id": 7, "title": "T"}), _parse_reference("7"), _parse_reference({"title": "T", "abstract": "A"})
    ((('s2:7', '7'), ''), (('7', 's2:7'), ''), ((), 'T[SEP]A'))
    """
    if not isinstance(value, dict):
        return _spellings(value), ""
    number = number_id("s2", value.get("corpus_id"))
    doc, corpus_id, sha, paper = (_spellings(value.get(key)) for key in ("doc_id", "corpus_id", "sha", "paper_id"))
    ids = distinct([*doc, number, *corpus_id, *sha, *paper])
    return ids, "" if ids else paper_text(strip_markup(value.get("title")), strip_markup(value.get("abstract")))


def _spellings(value: object) -> tuple[str, ...]:
    """Return the spellings of a bare id: as it is, as Semantic Scholar's hash and as its corpus id."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ()
    text = str(value).strip() if isinstance(value, str) or abs(value) < 10**30 else ""
    return distinct([text, sha_id(text), number_id("s2", text)])


def write_scirepeval(out: ExportedSamples, paths: dict[str, Path]) -> int:
    """Write samples as SciRepEval's JSON lines; return the number of triplets."""
    with paths[SCIREPEVAL_FILE].open("wb") as file:
        for block in out.triplets(with_text=True):
            file.writelines(_json_lines(out, block))
    return out.tally.counts["triplets"].kept


def _json_lines(out: ExportedSamples, block: PaperRows) -> Iterator[bytes]:
    """Yield one JSON line per triplet, with the texts of its papers."""
    rows, places = np.unique(block, return_inverse=True)
    columns = [column.take(rows) for column in (out.corpus.ids, out.corpus.titles, out.corpus.abstracts)]
    papers = [
        orjson.Fragment(orjson.dumps({"doc_id": id, "title": title, "abstract": abstract}))
        for id, title, abstract in zip(*columns, strict=True)
    ]
    for triplet in places.reshape(-1, 3).tolist():
        yield orjson.dumps(dict(zip(PARTS, (papers[place] for place in triplet), strict=True))) + b"\n"
