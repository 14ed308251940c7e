"""Shards of edges: Parquet files with one citation a row, and Parquet tables of papers; also tables as `plain.py` reads.

    edges/part-000.parquet    citing int64, cited int64 [, count, intents, influential]
    papers.parquet            id int64 [, year]            papers of which no more is known
    papers.parquet            id, title, abstract, year    the keys of plain papers

Ids may be numbers or texts; a number 42 and a text "42" are the same id. Columns named after Semantic Scholar's corpus
ids (`citingcorpusid`, `corpusid`) hold such ids: 42 is `s2:42`. Numbers never become Python objects. One file is read
piece by piece, so it may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from citeweave.corpus.cleaning import year_of
from citeweave.corpus.paper import CitationBlock, NumberedCitations, NumberedPapers, Paper, StagedRecord
from citeweave.corpus.readers import plain
from citeweave.corpus.readers.edge_tables import CITATION_HEADS, INTENTS, STRENGTHS, prefix_of
from citeweave.corpus.readers.parquet_columns import (
    Numbers,
    Texts,
    flags_of,
    intents_of,
    numbers_or_texts,
    strengths_of,
)
from citeweave.errors import InputError
from citeweave.files import check_regular
from citeweave.opening import Head, Source
from citeweave.parquet import batches, open_parquet
from citeweave.tally import Tally

_MAGIC = b"PAR1"
_ROWS = 1 << 20
_BUFFER = 1 << 22
"""Bytes of a column read at a time; without it a row group lies in memory as a whole, and some files are one."""

_IDS = ("id", "paper_id", "corpusid", "corpus_id")
_PLAIN = ("title", "abstract", "references", "outbound_citations")
"""A table of papers with one of these says more than ids and years."""
_INFLUENTIAL = ("influential", "isinfluential")


def recognises(head: Head) -> bool:
    return head.data.startswith(_MAGIC)


def is_another_table(path: Path) -> bool:
    """Whether a Parquet file holds something else than citations and papers; a damaged one does not tell."""
    try:
        check_regular(path)
        names = {name.lower() for name in pq.ParquetFile(path).schema_arrow.names}
    except (pa.ArrowException, OSError):
        return False
    return not any(set(pair) <= names for pair in CITATION_HEADS) and not _has_papers(names)


def _has_papers(names: set[str]) -> bool:
    """Ids alone, or with what papers have; a table of ids and names is one of authors or of journals.

    Names that begin with two underscores are pandas' own.

    >>> _has_papers({"id"}), _has_papers({"id", "year", "x"}), _has_papers({"id", "name"}), _has_papers({"title"})
    (True, True, False, False)
    """
    named = {name for name in names if not name.startswith("__")}
    return bool(named.intersection(_IDS)) and (named <= {*_IDS} or not named.isdisjoint({"year", *_PLAIN}))


def read(source: Source, tally: Tally) -> Iterator[StagedRecord]:
    if source.start(len(_MAGIC)) != _MAGIC:
        yield from plain.read(source, tally)
        return
    try:
        file = open_parquet(source.path, buffer_size=_BUFFER, pre_buffer=False)
        names = {name.lower(): name for name in reversed(file.schema_arrow.names)}
        if len(names) < len(file.schema_arrow.names):
            raise InputError(f"{source.path} has several columns of one name; rename them")
        yield from _read(source, file, names, tally)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise InputError(
            f"{source.path} is damaged, or a Parquet file inside another compression ({reason}); get it again or unpack it"
        ) from None


def _read(source: Source, file: pq.ParquetFile, names: dict[str, str], tally: Tally) -> Iterator[StagedRecord]:
    ends = next((pair for pair in CITATION_HEADS if set(pair) <= names.keys()), None)
    id = next((name for name in _IDS if name in names), None) if _has_papers(set(names)) else None
    if ends is not None:
        yield from _read_citations(source, file, names, ends, tally)
    elif id is not None and any(name in names for name in _PLAIN):
        bare = not any(name in names for name in ("title", "abstract"))
        for batch in batches(file, source.path, rows=1 << 13):
            rows = ({name.lower(): value for name, value in row.items()} for row in batch.to_pylist())
            yield from plain.read_papers(rows, tally, bare=bare)
    elif id is not None:
        yield from _read_papers(source, file, names, id, tally)
    else:
        kinds = ", ".join(f"{field.name} ({field.type})" for field in pq.read_schema(source.path))
        raise InputError(
            f"{source.path} has the columns {kinds[:500]}; citations need two named citing and cited (or source and "
            "target, from and to), papers one named id, alone or with year, title, abstract or references; rename its columns"
        )


def _batches(
    source: Source, file: pq.ParquetFile, names: dict[str, str], wanted: list[str]
) -> Iterator[dict[str, pa.Array]]:
    """The wanted columns, some rows at a time."""
    for batch in batches(file, source.path, rows=_ROWS, columns=[names[name] for name in wanted]):
        yield {name: batch.column(names[name]) for name in wanted}


def _read_citations(
    source: Source, file: pq.ParquetFile, names: dict[str, str], ends: tuple[str, str], tally: Tally
) -> Iterator[StagedRecord]:
    strength, intents, influential = (
        next((name for name in group if name in names), None) for group in (STRENGTHS, INTENTS, _INFLUENTIAL)
    )
    wanted = [*ends, *(name for name in (strength, intents, influential) if name is not None)]
    for columns in _batches(source, file, names, wanted):
        citing, cited = (numbers_or_texts(columns[name], name, prefix_of(name), source.path) for name in ends)
        tally.reject("citations", "no citing paper", int((~citing.given).sum()))
        tally.reject("citations", "no cited paper", int((citing.given & ~cited.given).sum()))
        both = citing.given & cited.given
        good = both & citing.sound & cited.sound
        tally.reject("citations", "id is no whole number from 0 on", int((both & ~good).sum()))
        known: dict[str, NDArray[Any] | None] = {"intents": None, "strength": None, "influential": None}
        if strength is not None:
            known["strength"] = strengths_of(columns[strength], strength, source.path)[good]
        if intents is not None:
            known["intents"] = intents_of(columns[intents], intents, source.path)[good]
        if influential is not None:
            known["influential"] = flags_of(columns[influential], influential, source.path)[good]
        if good.any():
            yield _block(citing.where(good), cited.where(good), known)


def _block(
    citing: Numbers | Texts, cited: Numbers | Texts, known: dict[str, NDArray[Any] | None]
) -> NumberedCitations | CitationBlock:
    if isinstance(citing, Numbers) and isinstance(cited, Numbers) and citing.prefix == cited.prefix:
        return NumberedCitations(citing.prefix, citing.numbers, cited.numbers, **known)
    size = len(citing)
    intents, strength, influential = known["intents"], known["strength"], known["influential"]
    return CitationBlock(
        citing.keys(),
        cited.keys(),
        np.zeros(size, np.uint8) if intents is None else intents,
        np.ones(size, np.float32) if strength is None else strength,
        np.zeros(size, np.bool_) if influential is None else influential,
        lambda: (citing.texts(), cited.texts()),
    )


def _read_papers(
    source: Source, file: pq.ParquetFile, names: dict[str, str], id: str, tally: Tally
) -> Iterator[StagedRecord]:
    """Papers that are known by their ids, and perhaps their years, alone."""
    for name in sorted(names.keys() - {id, "year"}):
        if not name.startswith("__"):
            tally.note(f"column {name[:40]!r} of papers is not read")
    for columns in _batches(source, file, names, [id, *(name for name in ("year",) if name in names)]):
        ids = numbers_or_texts(columns[id], id, prefix_of(id), source.path)
        tally.reject("papers", "no id", int((~ids.given).sum()))
        tally.reject("papers", "id is no whole number from 0 on", int((ids.given & ~ids.sound).sum()))
        good = ids.given & ids.sound
        years = _years(columns["year"])[good] if "year" in columns else None
        found = ids.where(good)
        if isinstance(found, Numbers):
            yield NumberedPapers(found.prefix, found.numbers.astype(np.int64), years)
        else:
            told = [0] * len(found) if years is None else years.tolist()
            yield from (Paper(text, year=year or None) for text, year in zip(found.texts(), told, strict=True))


def _years(column: pa.Array) -> NDArray[np.int16]:
    """Years as whole numbers, 0 where there is none; each different value is looked at once."""
    encoded = column.dictionary_encode()
    known = np.array([year_of(value) or 0 for value in encoded.dictionary.to_pylist()] + [0], np.int16)
    years: NDArray[np.int16] = known[encoded.indices.fill_null(len(known) - 1).to_numpy(zero_copy_only=False)]
    return years
