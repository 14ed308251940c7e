"""SciNCL's training triples: a CSV file of paper ids and JSON lines of papers, read and written.

    train_triples.csv      query_paper_id,positive_id,negative_id
    train_metadata.jsonl   {"paper_id": "1", "title": "T", "abstract": "A", "arxiv_id": null, "doi": "10.1/x"}

Papers come from the corpus, so that the metadata is written but not read. SciNCL's own loader splits lines at every
comma: ids with one in them are quoted as CSV requires, and counted.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import numpy as np
import orjson
from numpy.typing import NDArray

from citeweave.core.errors import InputError
from citeweave.core.inputs import FileHead, Source
from citeweave.core.progress import Tally
from citeweave.mining.formats.triplet_rows import CELLS, NO_ID, ExportedSamples, blocks, known_rows, paired_samples
from citeweave.mining.options import ExportOptions
from citeweave.mining.samples import SampleBlock
from citeweave.mining.tables import PaperLookup

HEADER = ("query_paper_id", "positive_id", "negative_id")
TRIPLES, METADATA = "train_triples.csv", "train_metadata.jsonl"
EVERY_FILE = (TRIPLES, f"{TRIPLES}.gz", METADATA)

BAD_LINE = "not a line of CSV"
FEW_COLUMNS = "fewer columns than the header"


def recognize(head: FileHead) -> str | None:
    """Return the role of a file in SciNCL's format by its beginning, None if it is not one."""
    line = head.data.split(b"\n", 1)[0].decode("utf-8", "replace")
    if set(HEADER) <= {name.strip(' \r"') for name in line.split(",")}:
        return "samples"
    record = head.record
    return "papers" if record is not None and {"paper_id", "title", "abstract"} <= record.keys() else None


def read(
    sources: Sequence[Source], queries: Sequence[Source], lookup: PaperLookup, tally: Tally
) -> Iterator[SampleBlock]:
    """Read SciNCL's triples as blocks of samples."""
    return paired_samples(_triplets(sources, lookup, tally))


def _triplets(sources: Sequence[Source], lookup: PaperLookup, tally: Tally) -> Iterator[NDArray[np.int32]]:
    """Yield the triples of all CSV files as rows of the corpus, (n, 3) at a time."""
    for source in sources:
        for block in blocks(_lines(source, tally)):
            rows = lookup.rows([id for ids in block for id in ids]).reshape(-1, 3)
            yield known_rows(rows, tally, "triplets")


def _lines(source: Source, tally: Tally) -> Iterator[list[str]]:
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


def file_names(options: ExportOptions) -> tuple[str, ...]:
    """Return the names of the files of an export to SciNCL's format."""
    return (f"{TRIPLES}.gz" if options.gzip else TRIPLES, METADATA)


def write(out: ExportedSamples, paths: dict[str, Path]) -> int:
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
