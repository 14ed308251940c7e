"""SciRepEval's training triplets: JSON lines of three papers with their texts, read and written.

    {"query": {"doc_id": "s2:1", "title": "T", "abstract": "A"}, "pos": {...}, "neg": {...}}

Reading: JSON lines or one list; a paper is named by `doc_id`, `corpus_id`, `sha` or `paper_id`, by its bare id in
place of the object, or, if it has no id, by its title and abstract, which must be exactly the corpus's. Ranking rows
(`candidates`) are not triplets. Writing: JSON lines with `doc_id`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from citeweave.core.inputs import FileHead, Source
from citeweave.core.progress import Tally
from citeweave.corpus.identity import distinct, number_id, sha_id
from citeweave.corpus.plain_text import strip_markup
from citeweave.corpus.readers.json_records import read_json_objects, starts_as_json
from citeweave.corpus.text import paper_text
from citeweave.mining.formats.triplet_rows import ExportedSamples, PaperRows, blocks, known_rows, paired_samples
from citeweave.mining.options import ExportOptions
from citeweave.mining.samples import SampleBlock
from citeweave.mining.tables import PaperLookup

PARTS = ("query", "pos", "neg")
FILE = "triplets.jsonl"
EVERY_FILE = (FILE,)

NOT_A_TRIPLET = "no query, pos and neg"
NAMELESS = "paper without id and text"

_Reference = tuple[tuple[str, ...], str]
"""The ids of a paper in the order to try them, and its text if it has no id."""


def recognize(head: FileHead) -> str | None:
    """Return "samples" for a file of SciRepEval triplets by its beginning, else None."""
    has_parts = starts_as_json(head) and all(f'"{part}"'.encode() in head.data for part in PARTS)
    return "samples" if has_parts else None


def read(
    sources: Sequence[Source], queries: Sequence[Source], lookup: PaperLookup, tally: Tally
) -> Iterator[SampleBlock]:
    """Read SciRepEval's triplets as blocks of samples."""
    return paired_samples(_triplets(sources, lookup, tally))


def _triplets(sources: Sequence[Source], lookup: PaperLookup, tally: Tally) -> Iterator[NDArray[np.int32]]:
    """Yield the triplets of all files as rows of the corpus, (n, 3) at a time."""
    for source in sources:
        for block in blocks(_references(source, tally)):
            flat = [reference for references in block for reference in references]
            yield known_rows(_look_up(flat, lookup).reshape(-1, 3), tally, "triplets")


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


def file_names(options: ExportOptions) -> tuple[str, ...]:
    """Return the names of the files of an export to SciRepEval's format."""
    return EVERY_FILE


def write(out: ExportedSamples, paths: dict[str, Path]) -> int:
    """Write samples as SciRepEval's JSON lines; return the number of triplets."""
    with paths[FILE].open("wb") as file:
        for block in out.triplets(with_text=True):
            file.writelines(_lines(out, block))
    return out.tally.counts["triplets"].kept


def _lines(out: ExportedSamples, block: PaperRows) -> Iterator[bytes]:
    """Yield one JSON line per triplet, with the texts of its papers."""
    rows, places = np.unique(block, return_inverse=True)
    columns = [column.take(rows) for column in (out.corpus.ids, out.corpus.titles, out.corpus.abstracts)]
    papers = [
        orjson.Fragment(orjson.dumps({"doc_id": id, "title": title, "abstract": abstract}))
        for id, title, abstract in zip(*columns, strict=True)
    ]
    for triplet in places.reshape(-1, 3).tolist():
        yield orjson.dumps(dict(zip(PARTS, (papers[place] for place in triplet), strict=True))) + b"\n"
