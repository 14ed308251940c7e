"""Columns of a Parquet table of citations as arrays: ids as numbers or texts, strengths, intents, flags.

    >>> ids = numbers_or_texts(pa.array([7, None, -1]), "citing", "s2:", Path("x.parquet"))
    >>> ids.given.tolist(), ids.sound.tolist(), ids.where(ids.given & ids.sound).texts()
    ([True, False, True], [True, True, False], ['s2:7'])

Nothing here opens files or knows what the columns are called.

Shards of edges: Parquet files with one citation a row, and Parquet tables of papers; also tables as `plain.py` reads.

    edges/part-000.parquet    citing int64, cited int64 [, count, intents, influential]
    papers.parquet            id int64 [, year]            papers of which no more is known
    papers.parquet            id, title, abstract, year    the keys of plain papers

Ids may be numbers or texts; a number 42 and a text "42" are the same id. Columns named after Semantic Scholar's corpus
ids (`citingcorpusid`, `corpusid`) hold such ids: 42 is `s2:42`. Numbers never become Python objects. One file is read
piece by piece, so it may be larger than memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from citeweave.core.errors import InputError
from citeweave.core.files import check_regular
from citeweave.core.inputs import FileHead, Source, batches, open_parquet
from citeweave.core.progress import Tally
from citeweave.core.randomness import Keys, hash_numbers, hash_spans
from citeweave.corpus.paper import CitationBlock, NumberedCitations, NumberedPapers, Paper, StagedRecord, parse_intents
from citeweave.corpus.plain_text import clean_text, year_of
from citeweave.corpus.readers import plain
from citeweave.corpus.readers.edge_tables import CITATION_HEADS, INTENTS, STRENGTHS, prefix_of

Mask = NDArray[np.bool_]

_BETWEEN_INTENTS = re.compile(r"[|;,]")
_EXACT = 2.0**53
"""Whole numbers above it cannot all be told apart as floating-point ones."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Ids that are a prefix and a number."""

    prefix: str
    numbers: NDArray[Any]
    given: Mask
    """False where there is none."""

    sound: Mask
    """False where it is negative, a fraction or too large."""

    def __len__(self) -> int:
        return len(self.numbers)

    def where(self, mask: Mask) -> Numbers:
        return self if mask.all() else Numbers(self.prefix, self.numbers[mask], self.given[mask], self.sound[mask])

    def keys(self) -> Keys:
        return hash_numbers(self.prefix, self.numbers)

    def texts(self) -> list[str]:
        return [f"{self.prefix}{number}" for number in self.numbers.tolist()]


@dataclass(frozen=True, slots=True)
class TextIds:
    """Ids that are texts, clean of blanks and control signs."""

    column: pa.Array
    given: Mask

    @property
    def sound(self) -> Mask:
        return np.ones(len(self), np.bool_)

    def __len__(self) -> int:
        return len(self.column)

    def where(self, mask: Mask) -> TextIds:
        return self if mask.all() else TextIds(self.column.filter(pa.array(mask)), self.given[mask])

    def keys(self) -> Keys:
        """Straight from the column's bytes."""
        _, offsets, data = self.column.buffers()
        ends = np.frombuffer(offsets, np.int64)[self.column.offset : self.column.offset + len(self) + 1]
        return hash_spans(np.frombuffer(data or b"", np.uint8), ends[:-1], ends[1:])

    def texts(self) -> list[str]:
        return [str(text) for text in self.column.to_pylist()]


def numbers_or_texts(column: pa.Array, name: str, prefix: str, path: Path) -> Numbers | TextIds:
    """The ids of a column; `prefix` is put before numbers, also before those that are written as texts."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    given = _given(column)
    if pa.types.is_integer(kind):
        numbers = column.cast(kind).fill_null(0).to_numpy(zero_copy_only=False)
        sound = numbers < 2**63 if numbers.dtype == np.uint64 else numbers >= 0
        return Numbers(prefix, numbers, given, sound)
    if pa.types.is_floating(kind):
        # what pandas makes of whole numbers some of which are missing
        values = column.cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
        given &= ~np.isnan(values)
        sound = ~given | ((values >= 0) & (values < _EXACT) & (values == np.floor(values)))
        return Numbers(prefix, np.where(given & sound, values, 0).astype(np.int64), given, sound)
    if _is_text(kind) or pa.types.is_null(kind):
        return _prefixed(_clean(column.cast(pa.large_string()).fill_null("")), prefix)
    raise InputError(f"{path}: column {name!r} is of type {column.type}; ids are whole numbers or texts; convert it")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _prefixed(ids: TextIds, prefix: str) -> TextIds:
    if not prefix or not len(ids):
        return ids
    parts = (pa.scalar(prefix, pa.large_string()), ids.column, pa.scalar("", pa.large_string()))
    column = pc.if_else(pc.utf8_is_decimal(ids.column), pc.binary_join_element_wise(*parts), ids.column)
    return TextIds(column, ids.given)


def _clean(column: pa.Array) -> TextIds:
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    used = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]] if len(column) else np.empty(0, np.uint8)
    # printable ASCII without blanks is clean as it is; anything else is looked at text by text
    if ((used <= 32) | (used >= 127)).any():
        column = pa.array([clean_text(text) for text in _decoded(column)], pa.large_string())
        ends = np.frombuffer(column.buffers()[1], np.int64)[: len(column) + 1]
    return TextIds(column, np.diff(ends) > 0)


def _decoded(column: pa.Array) -> list[str]:
    """Parquet's writers promise UTF-8 and some break the promise."""
    return [bytes(text).decode("utf-8", "replace") for text in column.cast(pa.large_binary()).to_pylist()]


def strengths_of(column: pa.Array, name: str, path: Path) -> NDArray[np.float32]:
    """Strengths of citations; 1 where there is none, or none that makes sense."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise InputError(
            f"{path}: column {name!r} is of type {column.type}; strengths are numbers; convert it or rename it"
        )
    values = column.cast(pa.float64(), safe=False).fill_null(1.0).to_numpy(zero_copy_only=False)
    return np.where((values >= 0) & (values < 1e9), values, 1.0).astype(np.float32)


def intents_of(column: pa.Array, name: str, path: Path) -> NDArray[np.uint8]:
    """Intents as bits: words, several of them in one text between signs, or lists of words."""
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.uint8)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        out = np.zeros(len(column), np.uint8)
        rows = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
        np.bitwise_or.at(out, rows, intents_of(column.flatten(), name, path))
        return out
    if pa.types.is_dictionary(kind) or _is_text(kind):
        encoded = column if pa.types.is_dictionary(kind) else column.dictionary_encode()
        words = [str(word or "") for word in encoded.dictionary.to_pylist()]
        bits = np.array([int(parse_intents(_BETWEEN_INTENTS.split(word))) for word in words] + [0], np.uint8)
        found: NDArray[np.uint8] = bits[encoded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)]
        return found
    raise InputError(
        f"{path}: column {name!r} is of type {kind}; intents are words or lists of words; convert it or rename it"
    )


def flags_of(column: pa.Array, name: str, path: Path) -> Mask:
    """True and False, or numbers, of which 0 is False; False where nothing is said."""
    kind = column.type
    if not (pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise InputError(
            f"{path}: column {name!r} is of type {column.type}; it must be true or false; convert it or rename it"
        )
    flags: Mask = column.cast(pa.bool_()).fill_null(False).to_numpy(zero_copy_only=False)
    return flags


def _given(column: pa.Array) -> Mask:
    if column.null_count == 0:
        return np.ones(len(column), np.bool_)
    given: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return given


# Shards of edges: Parquet files with one citation a row, and Parquet tables of papers; also tables as `plain.py` reads.

_MAGIC = b"PAR1"
_ROWS = 1 << 20
_BUFFER = 1 << 22
"""Bytes of a column read at a time; without it a row group lies in memory as a whole, and some files are one."""

_IDS = ("id", "paper_id", "corpusid", "corpus_id")
_PLAIN = ("title", "abstract", "references", "outbound_citations")
"""A table of papers with one of these says more than ids and years."""
_INFLUENTIAL = ("influential", "isinfluential")


def recognizes(head: FileHead) -> bool:
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
    citing: Numbers | TextIds, cited: Numbers | TextIds, known: dict[str, NDArray[Any] | None]
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
