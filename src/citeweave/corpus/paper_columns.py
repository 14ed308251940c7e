"""Write the columns of papers and the id index of a corpus; stage papers that are known only as cited ids.

Each column of a paper comes from its best record; where that is empty, from the next best. Ids and extra metadata are
united. `stage_outside` (`--outside keep`) adds a paper for every id that occurs only in citations: numbered ids first, by
number, then all others, by their key. Does not decide which records are the same paper: `merge.py` does.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np
import orjson
from numpy.typing import NDArray

from citeweave.core.columns import BLOCK, TextColumn, TextWriter, open_numbers, release, write_numbers
from citeweave.core.hash_keys import Keys, hash_numbers, hash_text, hash_texts
from citeweave.core.progress import Tally
from citeweave.corpus.corpus import LOCAL, PAPER_NUMBERS, STUB, UNKNOWN_COUNT, IdIndex
from citeweave.corpus.external_sort import ExternalSort
from citeweave.corpus.merge import Ints, RowAssignment, StagedPapers
from citeweave.corpus.numbered_citations import NumberedTable
from citeweave.corpus.paper import NumberedPapers, Paper
from citeweave.corpus.staged_parts import PartWriter, StagedFile, is_complete

_CHOSEN_TEXTS = ("title", "abstract", "venue", "authors", "fields")


def write_papers(folder: Path, staged: StagedPapers, assignment: RowAssignment, tally: Tally) -> None:
    """Write all columns of `papers/` from the staged records that were merged into each paper."""
    _write_ids(folder, staged, assignment, tally)
    for name in _CHOSEN_TEXTS:
        chosen = _first_filled(assignment, staged.lengths(name) > 0)
        _write_texts(folder, name, staged, chosen)
    for name, kind in PAPER_NUMBERS.items():
        values = staged.numbers(name)
        filled = values != UNKNOWN_COUNT if name == "citation_count" else values > 0
        chosen = _first_filled(assignment, filled)
        write_numbers(folder / f"{name}.npy", values[chosen], kind)
    titles = staged.numbers("title_key")
    write_numbers(folder / "title_key.npy", titles[_first_filled(assignment, titles != 0)], np.uint64)
    write_numbers(folder / "flags.npy", _united_flags(staged, assignment), np.uint8)
    _write_united(folder, staged, assignment)


def write_merges(folder: Path, staged: StagedPapers, assignment: RowAssignment) -> None:
    """Write `merges/`: row, id and part of every record of a paper that has several records."""
    rows = assignment.several
    write_numbers(folder / "row.npy", assignment.row[rows], np.int32)
    write_numbers(folder / "part.npy", np.searchsorted(staged.offsets, rows, side="right") - 1, np.int32)
    _write_texts(folder, "id", staged, rows)


def build_index(folder: Path, staged: StagedPapers, assignment: RowAssignment, work: Path, *, memory: int) -> IdIndex:
    """Write the id index of a corpus: from keys of every record's ids, and of titles that only one paper has, to rows."""
    dtype = np.dtype([("key", "<u8"), ("row", "<i4")])
    titles, (local_rows, local_keys) = staged.numbers("title_key"), _local_keys(folder)
    expected = staged.key_count() + int(np.count_nonzero(titles)) + len(local_keys)
    sort = ExternalSort(work, dtype, key="key", top=2**64, expected=expected, memory=memory)
    for block in staged.id_keys():
        sort.add(_keyed_rows(dtype, block["key"], assignment.row[block["row"]]))
    sort.add(_keyed_rows(dtype, titles, assignment.row))
    sort.add(_keyed_rows(dtype, local_keys, local_rows))
    keys, rows = [], []
    for block in sort.blocks():
        same = np.concatenate([[False], block["key"][1:] == block["key"][:-1]])
        differs = np.concatenate([[False], same[1:] & (block["row"][1:] != block["row"][:-1])])
        doubtful = np.isin(block["key"], block["key"][differs])  # one title of several papers is left out
        single = block[~same & ~doubtful]
        keys.append(single["key"])
        rows.append(single["row"])
    index = IdIndex.of(np.concatenate([np.empty(0, np.uint64), *keys]), np.concatenate([np.empty(0, np.int32), *rows]))
    index.save(folder.parent / "index")
    return index


def _keyed_rows(dtype: np.dtype[Any], keys: NDArray[np.uint64], rows: NDArray[Any]) -> NDArray[np.void]:
    """Return (key, row) records for the id index, without missing keys and papers without a row."""
    usable = (rows >= 0) & (keys != 0)
    records = np.empty(int(usable.sum()), dtype)
    records["key"], records["row"] = keys[usable], rows[usable]
    return records


def _local_keys(folder: Path) -> tuple[Ints, NDArray[np.uint64]]:
    """Return rows and keys of the papers whose id is a name inside one file; staged records have the keys of all others."""
    rows = np.flatnonzero(open_numbers(folder / "flags.npy", np.uint8) & LOCAL)
    return rows, hash_texts(TextColumn(folder, "id").take(rows))


def _first_filled(assignment: RowAssignment, filled: NDArray[np.bool_]) -> Ints:
    """Return for every paper its best staged row where a column is filled, or its best row where none is."""
    chosen = assignment.winner.copy()
    rows = assignment.several[filled[assignment.several]][::-1]
    chosen[assignment.row[rows]] = rows  # written from worst to best: the best filled one remains
    return chosen


def _write_texts(folder: Path, name: str, staged: StagedPapers, chosen: Ints) -> None:
    """Write a text column of papers from the chosen staged rows."""
    writer = TextWriter(folder, name)
    columns = staged.texts(name)
    for start in range(0, len(chosen), BLOCK):
        _copy(writer, staged, columns, chosen[start : start + BLOCK])
    release(*columns)
    writer.close()


def _copy(writer: TextWriter, staged: StagedPapers, columns: list[TextColumn], rows: Ints) -> None:
    for part, local in _by_part(staged, rows):
        writer.append_bytes(*columns[part].gather(local))


def _by_part(staged: StagedPapers, rows: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield runs of staged rows that are in one part, with their rows in it."""
    parts = np.searchsorted(staged.offsets, rows, side="right") - 1
    cuts = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(rows)]
    for first, end in itertools.pairwise(cuts):
        if end > first:
            part = int(parts[first])
            yield part, rows[first:end] - staged.offsets[part]


def _write_ids(folder: Path, staged: StagedPapers, assignment: RowAssignment, tally: Tally) -> None:
    """Write the id column of papers; names that two files use for different papers are numbered."""
    local = np.flatnonzero(staged.numbers("flags")[assignment.first] & LOCAL)
    if not len(local):
        _write_texts(folder, "id", staged, assignment.first)
        return
    _write_texts(folder / "numbering", "id", staged, assignment.first)

    plain = TextColumn(folder / "numbering", "id")
    renamed = _number_local_names(plain, local, tally)
    writer = TextWriter(folder, "id")
    for start in range(0, len(plain), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(plain)))
        writer.append([renamed.get(row, text) for row, text in zip(rows.tolist(), plain.take(rows), strict=True)])
    writer.close()
    del plain  # Windows cannot remove a file that is mapped
    for path in (folder / "numbering").iterdir():
        path.unlink()
    (folder / "numbering").rmdir()


def _number_local_names(ids: TextColumn, local: Ints, tally: Tally) -> dict[int, str]:
    """Return new ids, by row, for local names that several papers have; the first paper keeps the name."""
    keys = ids.keys()
    distinct, place, counts = np.unique(keys, return_inverse=True, return_counts=True)
    clashing = np.flatnonzero(counts[place] > 1)
    seen = set(ids.take(np.setdiff1d(clashing, local)))
    added: set[str] = set()
    renamed: dict[int, str] = {}
    for row in np.intersect1d(clashing, local).tolist():
        name = ids[row]
        if name not in seen:
            seen.add(name)
            continue
        numbers = (f"{name}~{number}" for number in itertools.count(2))
        renamed[row] = next(new for new in numbers if new not in added and hash_text(new) not in distinct)
        added.add(renamed[row])
    tally.note("entry key used in several files for different papers, numbered", len(renamed))
    return renamed


def _united_flags(staged: StagedPapers, assignment: RowAssignment) -> NDArray[np.uint8]:
    """Return the flags of every paper: LOCAL as in the record that gave the id, STUB where every record is one."""
    flags = staged.numbers("flags")
    return (flags[assignment.first] & np.uint8(LOCAL)) | (flags[assignment.winner] & np.uint8(STUB))


def _write_united(folder: Path, staged: StagedPapers, assignment: RowAssignment) -> None:
    """Write the columns `ids` and `extra`: copied for papers of one record, united for papers of several."""
    united = _MergedRecords(staged, assignment)
    for name, unite in (("ids", united.ids), ("extra", united.extra)):
        writer = TextWriter(folder, name)
        columns = staged.texts(name)
        for start in range(0, assignment.papers, BLOCK):
            rows = assignment.winner[start : start + BLOCK]
            papers = united.papers_between(start, start + BLOCK)
            if not papers:
                _copy(writer, staged, columns, rows)
                continue
            texts = _take(staged, columns, rows)
            for paper in papers:
                texts[paper - start] = unite(paper)
            writer.append(texts)
        release(*columns)
        writer.close()


def _take(staged: StagedPapers, columns: list[TextColumn], rows: Ints) -> list[str]:
    return [text for part, local in _by_part(staged, rows) for text in columns[part].take(local)]


class _MergedRecords:
    """The papers that were merged from several records, with the united ids and metadata of these."""

    def __init__(self, staged: StagedPapers, assignment: RowAssignment) -> None:
        self._staged, self._assignment = staged, assignment
        rows = assignment.row[assignment.several]
        self._papers, self._starts = np.unique(rows, return_index=True)
        self._ends = np.append(self._starts[1:], len(rows))
        self._flags = staged.numbers("flags")

    def papers_between(self, start: int, stop: int) -> list[int]:
        low, high = np.searchsorted(self._papers, [start, stop])
        return [int(paper) for paper in self._papers[low:high]]

    def _members(self, paper: int) -> list[int]:
        at = int(np.searchsorted(self._papers, paper))
        return [int(row) for row in self._assignment.several[self._starts[at] : self._ends[at]]]

    def ids(self, paper: int) -> str:
        """Return what a paper's column of ids holds: all ids of its merged records except its own, best record first."""
        own = self._staged.text("id", int(self._assignment.first[paper]))
        ids: dict[str, None] = {}
        for row in self._members(paper):
            if not self._flags[row] & LOCAL:
                ids[self._staged.text("id", row)] = None
            ids.update(dict.fromkeys(self._staged.text("ids", row).split("\n")))
        return "\n".join(text for text in ids if text and text != own)

    def extra(self, paper: int) -> str:
        """Return what a paper's column of extra metadata holds, as JSON; where its records differ, that of the better one."""
        united: dict[str, Any] = {}
        for row in reversed(self._members(paper)):
            text = self._staged.text("extra", row)
            united.update(json.loads(text) if text else {})
        return orjson.dumps(united, option=orjson.OPT_SORT_KEYS).decode() if united else ""


# --- papers known only as cited ids (`--outside keep`) -----------------------------------------------

_STEP = 1 << 20
_SEEN = np.dtype([("key", "<u8"), ("at", "<i8"), ("part", "<i4"), ("cited", "?")])
_NUMBER = np.dtype([("number", "<u8")])


def stage_outside(parts: Sequence[StagedFile], folder: Path, *, memory: int) -> StagedFile:
    """Stage papers that are known only as cited ids: one stub for every id in citations that no record has."""
    target = folder / "part"
    if not is_complete(target):
        writer = PartWriter(target, keep_ids=True)
        known = _KnownIds(parts)
        for prefix in sorted({table.prefix for part in parts for table in part.numbered()}):
            writer.add(_unknown_numbers(parts, prefix, known, folder, memory))
        for ids in _unknown_ids(parts, known, folder, memory):
            writer.add(Paper(id, stub=True) for id in ids)
        writer.finish({"name": "papers outside", "format": "outside", "distinct": True})
    return StagedFile(target)


class _KnownIds:
    """Keys of the ids and titles that records have, and of the cited numbers that were staged as papers."""

    def __init__(self, parts: Sequence[StagedFile]) -> None:
        self._keys = np.unique(np.concatenate([np.empty(0, np.uint64), *(_known_keys(part) for part in parts)]))
        self._index = self._indexed()

    def misses(self, keys: Keys) -> NDArray[np.bool_]:
        """Return which of these id keys no record has."""
        return np.ones(len(keys), np.bool_) if self._index is None else self._index.rows_of(keys) < 0

    def add(self, keys: list[Keys]) -> None:
        """Add keys of ids that were staged as papers."""
        self._keys = np.unique(np.concatenate([self._keys, *keys]))
        self._index = self._indexed()

    def _indexed(self) -> IdIndex | None:
        return IdIndex.of(self._keys, np.zeros(len(self._keys), np.int32)) if len(self._keys) else None


def _known_keys(part: StagedFile) -> Keys:
    titles = part.paper_numbers("title_key")
    keys: Keys = np.concatenate([part.paper_numbers("key"), titles[titles != 0]])
    return keys


def _unknown_numbers(
    parts: Sequence[StagedFile], prefix: str, known: _KnownIds, folder: Path, memory: int
) -> Iterator[NumberedPapers]:
    """Yield a stub paper for every cited number without a record, ascending."""
    tables = [table for part in parts for table in part.numbered() if table.prefix == prefix]
    by_key = any(part.keyed_count for part in parts)
    staged = []
    for numbers in _distinct_numbers(tables, folder, memory):
        keys = hash_numbers(prefix, numbers)
        missed = known.misses(keys)
        yield NumberedPapers(prefix, numbers[missed], stub=True)
        if by_key:
            staged.append(keys[missed])
    if by_key:
        known.add(staged)


def _distinct_numbers(tables: Sequence[NumberedTable], folder: Path, memory: int) -> Iterator[NDArray[np.int64]]:
    """Yield the distinct numbers of citing and cited ids, ascending: by a bitmap where it fits in memory, else sorted."""
    top = max(table.top for table in tables)
    if top // 8 <= memory:
        seen = np.zeros(top // 8 + 1, np.uint8)
        for block in (block for table in tables for block in table.blocks()):
            _mark(block.citing, seen)
            _mark(block.cited, seen)
        for start in range(0, len(seen), _STEP):
            bits = np.unpackbits(seen[start : start + _STEP], bitorder="little")
            yield np.flatnonzero(bits) + 8 * start
        return
    expected = 2 * sum(len(table) for table in tables)
    sort = ExternalSort(folder / "numbers", _NUMBER, key="number", top=top + 1, expected=expected, memory=memory)
    for block in (block for table in tables for block in table.blocks()):
        for column in (block.citing, block.cited):
            sort.add(np.unique(column).astype(np.uint64).view(_NUMBER))
    for sorted_block in sort.blocks():
        yield np.unique(sorted_block["number"]).astype(np.int64)


@numba.njit(cache=True, nogil=True)
def _mark(numbers: NDArray[Any], seen: NDArray[np.uint8]) -> None:
    """Set the bits of these id numbers in a bitmap."""
    for i in range(len(numbers)):
        number = np.uint64(numbers[i])
        seen[number >> np.uint64(3)] |= np.uint8(1) << np.uint8(number & np.uint64(7))


def _unknown_ids(parts: Sequence[StagedFile], known: _KnownIds, folder: Path, memory: int) -> Iterator[list[str]]:
    """Yield the ids without a number that occur in citations and that no record has, sorted by key."""
    expected = 2 * sum(part.keyed_count for part in parts)
    if not expected:
        return
    sort = ExternalSort(folder / "sort", _SEEN, key="key", top=2**64, expected=expected, memory=memory)
    for number, part in enumerate(parts):
        for cited, name in enumerate(("citing", "cited")):
            column = part.citations(name)
            for start in range(0, len(column), _STEP):
                keys, at = np.unique(column[start : start + _STEP], return_index=True)
                missed = known.misses(keys)
                records = np.empty(int(missed.sum()), _SEEN)
                records["key"], records["at"] = keys[missed], at[missed] + start
                records["part"], records["cited"] = number, cited
                sort.add(records)
                release(column)
    columns = [{flag: part.citation_ids(name) for flag, name in enumerate(("citing_id", "cited_id"))} for part in parts]
    for block in sort.blocks():
        first = block[np.concatenate([[True], block["key"][1:] != block["key"][:-1]])]
        rows = zip(first["part"].tolist(), first["cited"].tolist(), first["at"].tolist(), strict=True)
        yield [columns[part][int(cited)][at] for part, cited, at in rows]
        release(*(column for pair in columns for column in pair.values()))
