"""Edge shards: Parquet tables with one citation per row, Parquet tables of papers, and plain tables.

    edges/part-000.parquet    citing int64, cited int64 [, count, intents, influential]
    papers.parquet            id int64 [, year]            papers of which nothing else is known
    papers.parquet            id, title, abstract, year    the keys of plain papers

Ids may be numbers or texts; a number 42 and a text "42" are the same id. Columns named after Semantic Scholar's corpus ids
(`citingcorpusid`, `corpusid`) hold such ids: 42 is `s2:42`. Numbers never become Python objects. A file is read piece by
piece, so it may be larger than memory.

    >>> ids = _read_ids(pa.array([7, None, -1]), "citing", "s2:", Path("x.parquet"))
    >>> ids.present.tolist(), ids.valid.tolist(), ids.where(ids.present & ids.valid).texts()
    ([True, False, True], [True, True, False], ['s2:7'])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from citeweave.core.hash_keys import Keys, hash_numbers, hash_spans
from citeweave.core.inputs import FileHead, Source, open_parquet, read_parquet_batches
from citeweave.core.progress import Tally
from citeweave.corpus.paper import CitationBlock, NumberedCitations, NumberedPapers, Paper, StagedRecord, parse_intents
from citeweave.corpus.plain_text import clean_text, year_of
from citeweave.corpus.readers import plain
from citeweave.corpus.readers.edge_tables import BETWEEN_INTENTS, CITATION_HEADS, INTENTS, STRENGTHS, id_prefix

Mask = NDArray[np.bool_]

_EXACT = 2.0**53
"""Integers above it are not all distinct as floating-point numbers."""


@dataclass(frozen=True, slots=True)
class NumberIds:
    """Ids of a Parquet column that are a prefix and a number."""

    prefix: str
    numbers: NDArray[Any]
    present: Mask
    """False where there is none."""

    valid: Mask
    """False where it is negative, a fraction or too large."""

    def __len__(self) -> int:
        return len(self.numbers)

    def where(self, mask: Mask) -> NumberIds:
        return self if mask.all() else NumberIds(self.prefix, self.numbers[mask], self.present[mask], self.valid[mask])

    def keys(self) -> Keys:
        return hash_numbers(self.prefix, self.numbers)

    def texts(self) -> list[str]:
        return [f"{self.prefix}{number}" for number in self.numbers.tolist()]


@dataclass(frozen=True, slots=True)
class TextIds:
    """Ids in a Parquet column of an edge shard that are texts, without blanks around them and control characters."""

    column: pa.Array
    present: Mask

    @property
    def valid(self) -> Mask:
        return np.ones(len(self), np.bool_)

    def __len__(self) -> int:
        return len(self.column)

    def where(self, mask: Mask) -> TextIds:
        return self if mask.all() else TextIds(self.column.filter(pa.array(mask)), self.present[mask])

    def keys(self) -> Keys:
        """Return the hash keys of the ids, straight from the bytes of the column."""
        _, offsets, data = self.column.buffers()
        ends = np.frombuffer(offsets, np.int64)[self.column.offset : self.column.offset + len(self) + 1]
        return hash_spans(np.frombuffer(data or b"", np.uint8), ends[:-1], ends[1:])

    def texts(self) -> list[str]:
        return [str(text) for text in self.column.to_pylist()]


def _read_ids(column: pa.Array, name: str, prefix: str, path: Path) -> NumberIds | TextIds:
    """Return the ids of a Parquet column; `prefix` goes before numbers, also before those written as texts."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    present: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_integer(kind):
        numbers = column.cast(kind).fill_null(0).to_numpy(zero_copy_only=False)
        valid = numbers < 2**63 if numbers.dtype == np.uint64 else numbers >= 0
        return NumberIds(prefix, numbers, present, valid)
    if pa.types.is_floating(kind):
        # how pandas stores integers of which some are missing
        values = column.cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
        present &= ~np.isnan(values)
        valid = ~present | ((values >= 0) & (values < _EXACT) & (values == np.floor(values)))
        return NumberIds(prefix, np.where(present & valid, values, 0).astype(np.int64), present, valid)
    if _is_text(kind) or pa.types.is_null(kind):
        return _prefixed(_clean(column.cast(pa.large_string()).fill_null("")), prefix)
    raise _wrong_type(column, name, path, "ids are whole numbers or texts; convert it")


def _wrong_type(column: pa.Array, name: str, path: Path, rule: str) -> InputError:
    return InputError(f"{path}: column {name!r} is of type {column.type}; {rule}")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _prefixed(ids: TextIds, prefix: str) -> TextIds:
    if not prefix or not len(ids):
        return ids
    parts = (pa.scalar(prefix, pa.large_string()), ids.column, pa.scalar("", pa.large_string()))
    column = pc.if_else(pc.utf8_is_decimal(ids.column), pc.binary_join_element_wise(*parts), ids.column)
    return TextIds(column, ids.present)


def _clean(column: pa.Array) -> TextIds:
    """Return texts as ids; printable ASCII without blanks is left as it is."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    used = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]] if len(column) else np.empty(0, np.uint8)
    # printable ASCII without blanks needs no cleaning; anything else is cleaned text by text
    if ((used <= 32) | (used >= 127)).any():
        column = pa.array([clean_text(text) for text in _decoded(column)], pa.large_string())
        ends = np.frombuffer(column.buffers()[1], np.int64)[: len(column) + 1]
    return TextIds(column, np.diff(ends) > 0)


def _decoded(column: pa.Array) -> list[str]:
    """Decode texts: writers of Parquet promise UTF-8, and some break the promise."""
    return [bytes(text).decode("utf-8", "replace") for text in column.cast(pa.large_binary()).to_pylist()]


def _read_strengths(column: pa.Array, name: str, path: Path) -> NDArray[np.float32]:
    """Return the strengths of citations; 1 where there is none, or none that makes sense."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise _wrong_type(column, name, path, "strengths are numbers; convert it or rename it")
    values = column.cast(pa.float64(), safe=False).fill_null(1.0).to_numpy(zero_copy_only=False)
    return np.where((values >= 0) & (values < 1e9), values, 1.0).astype(np.float32)


def _read_intents(column: pa.Array, name: str, path: Path) -> NDArray[np.uint8]:
    """Return intents as bits, from words, texts with several words, or lists of words."""
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.uint8)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        out = np.zeros(len(column), np.uint8)
        rows = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
        np.bitwise_or.at(out, rows, _read_intents(column.flatten(), name, path))
        return out
    if pa.types.is_dictionary(kind) or _is_text(kind):
        return _map_distinct(column, lambda word: parse_intents(BETWEEN_INTENTS.split(str(word or ""))), np.uint8)
    raise _wrong_type(column, name, path, "intents are words or lists of words; convert it or rename it")


def _map_distinct(column: pa.Array, parse: Callable[[Any], int | None], kind: type[np.generic]) -> NDArray[Any]:
    """Return a number for every value, 0 where there is none; each distinct value is parsed once."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    known = np.array([parse(value) or 0 for value in encoded.dictionary.to_pylist()] + [0], kind)
    numbers: NDArray[Any] = known[encoded.indices.fill_null(len(known) - 1).to_numpy(zero_copy_only=False)]
    return numbers


def _read_flags(column: pa.Array, name: str, path: Path) -> Mask:
    """Return flags from booleans or numbers; False for 0 and where there is no value."""
    kind = column.type
    if not (pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise _wrong_type(column, name, path, "it must be true or false; convert it or rename it")
    flags: Mask = column.cast(pa.bool_()).fill_null(False).to_numpy(zero_copy_only=False)
    return flags


# Reading tables.

_MAGIC = b"PAR1"
_ROWS = 1 << 20
_BUFFER = 1 << 22
"""Bytes of a column read at a time; without it a complete row group is in memory, and some files are one."""

_IDS = ("id", "paper_id", "corpusid", "corpus_id")
_PAPER_COLUMNS = ("title", "abstract", "references", "outbound_citations")
"""A table of papers with one of these holds more than ids and years."""
_ATTRIBUTES: dict[str, tuple[tuple[str, ...], Callable[[pa.Array, str, Path], NDArray[Any]]]] = {
    "intents": (INTENTS, _read_intents),
    "strength": (STRENGTHS, _read_strengths),
    "influential": (("influential", "isinfluential"), _read_flags),
}
"""Attributes of citations: names of their columns, and how they are read."""


def recognizes(head: FileHead) -> bool:
    """Return whether a file is a Parquet table."""
    return head.data.startswith(_MAGIC)


def is_another_table(path: Path) -> bool:
    """Return whether a Parquet file holds neither citations nor papers; False for a damaged one."""
    try:
        check_regular(path)
        names = {name.lower() for name in pq.ParquetFile(path).schema_arrow.names}
    except (pa.ArrowException, OSError):
        return False
    return not any(set(pair) <= names for pair in CITATION_HEADS) and not _has_papers(names)


def _has_papers(names: set[str]) -> bool:
    """Return whether column names are those of papers: ids alone, or ids with year, title, abstract or references.

    A table of ids and names is one of authors or journals. Names that begin with two underscores are pandas' own.

    >>> _has_papers({"id"}), _has_papers({"id", "year", "x"}), _has_papers({"id", "name"}), _has_papers({"title"})
    (True, True, False, False)
    """
    named = {name for name in names if not name.startswith("__")}
    return bool(named.intersection(_IDS)) and (named <= {*_IDS} or not named.isdisjoint({"year", *_PAPER_COLUMNS}))


def read(source: Source, tally: Tally) -> Iterator[StagedRecord]:
    """Yield the citations or papers of a Parquet table, or of a plain table."""
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
    elif id is not None and any(name in names for name in _PAPER_COLUMNS):
        bare = not any(name in names for name in ("title", "abstract"))
        for batch in read_parquet_batches(file, source.path, rows=1 << 13):
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
    """Yield the wanted columns, some rows at a time."""
    for batch in read_parquet_batches(file, source.path, rows=_ROWS, columns=[names[name] for name in wanted]):
        yield {name: batch.column(names[name]) for name in wanted}


def _read_citations(
    source: Source, file: pq.ParquetFile, names: dict[str, str], ends: tuple[str, str], tally: Tally
) -> Iterator[StagedRecord]:
    known = {key: [name for name in group if name in names] for key, (group, _) in _ATTRIBUTES.items()}
    named = {key: found[0] for key, found in known.items() if found}
    for columns in _batches(source, file, names, [*ends, *named.values()]):
        citing, cited = (_read_ids(columns[name], name, id_prefix(name), source.path) for name in ends)
        tally.reject("citations", "no citing paper", int((~citing.present).sum()))
        tally.reject("citations", "no cited paper", int((citing.present & ~cited.present).sum()))
        both = citing.present & cited.present
        good = both & citing.valid & cited.valid
        tally.reject("citations", "id is not a non-negative integer", int((both & ~good).sum()))
        attributes = {key: _ATTRIBUTES[key][1](columns[name], name, source.path)[good] for key, name in named.items()}
        if good.any():
            yield _block(citing.where(good), cited.where(good), attributes)


def _block(
    citing: NumberIds | TextIds, cited: NumberIds | TextIds, attributes: dict[str, NDArray[Any]]
) -> NumberedCitations | CitationBlock:
    if isinstance(citing, NumberIds) and isinstance(cited, NumberIds) and citing.prefix == cited.prefix:
        return NumberedCitations(citing.prefix, citing.numbers, cited.numbers, **attributes)
    unknown = {"intents": np.uint8(0), "strength": np.float32(1), "influential": np.False_}
    complete = {key: np.full(len(citing), value) for key, value in unknown.items()} | attributes
    return CitationBlock(citing.keys(), cited.keys(), **complete, ids=lambda: (citing.texts(), cited.texts()))


def _read_papers(
    source: Source, file: pq.ParquetFile, names: dict[str, str], id: str, tally: Tally
) -> Iterator[StagedRecord]:
    """Yield papers of which only ids, and perhaps years, are known."""
    for name in sorted(names.keys() - {id, "year"}):
        if not name.startswith("__"):
            tally.note(f"column {name[:40]!r} of papers is not read")
    for columns in _batches(source, file, names, [id, *(name for name in ("year",) if name in names)]):
        ids = _read_ids(columns[id], id, id_prefix(id), source.path)
        tally.reject("papers", "no id", int((~ids.present).sum()))
        tally.reject("papers", "id is not a non-negative integer", int((ids.present & ~ids.valid).sum()))
        good = ids.present & ids.valid
        years = _map_distinct(columns["year"], year_of, np.int16)[good] if "year" in columns else None
        chosen = ids.where(good)
        if isinstance(chosen, NumberIds):
            yield NumberedPapers(chosen.prefix, chosen.numbers.astype(np.int64), years)
        else:
            known_years = [0] * len(chosen) if years is None else years.tolist()
            yield from (Paper(text, year=year or None) for text, year in zip(chosen.texts(), known_years, strict=True))
