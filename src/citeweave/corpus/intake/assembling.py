"""Writes the paper columns of a corpus from staged records and their assignment to rows.

For every paper each column comes from its best record; what that one leaves empty comes from the next
best. Ids and extra facts are united.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from citeweave.columns import BLOCK, TextColumn, TextWriter, open_numbers, release, write_numbers
from citeweave.corpus.index import IdIndex
from citeweave.corpus.intake.merging import Assignment, Ints, Staged
from citeweave.corpus.intake.spill import Spill
from citeweave.corpus.layout import LOCAL, PAPER_NUMBERS, STUB, UNKNOWN_COUNT
from citeweave.hashing import hash_text, hash_texts
from citeweave.tally import Tally

_CHOSEN_TEXTS = ("title", "abstract", "venue", "authors", "fields")


def write_papers(folder: Path, staged: Staged, assignment: Assignment, tally: Tally) -> None:
    """All columns of `papers/`, except the index."""
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


def write_merges(folder: Path, staged: Staged, assignment: Assignment) -> None:
    """Which records were merged: for every record of a paper that has several, its row, id and part."""
    rows = assignment.several
    write_numbers(folder / "row.npy", assignment.row[rows], np.int32)
    write_numbers(folder / "part.npy", np.searchsorted(staged.offsets, rows, side="right") - 1, np.int32)
    _write_texts(folder, "id", staged, rows)


def build_index(folder: Path, staged: Staged, assignment: Assignment, work: Path, *, memory: int) -> IdIndex:
    """Every id of every record, and every title key that leads to one paper only, with its row."""
    dtype = np.dtype([("key", "<u8"), ("row", "<i4")])
    titles, (named, final) = staged.numbers("title_key"), _local_keys(folder)
    expected = staged.key_count() + int(np.count_nonzero(titles)) + len(final)
    spill = Spill(work, dtype, key="key", top=2**64, expected=expected, memory=memory)
    for block in staged.id_keys():
        spill.add(_keyed_rows(dtype, block["key"], assignment.row[block["row"]]))
    spill.add(_keyed_rows(dtype, titles, assignment.row))
    spill.add(_keyed_rows(dtype, final, named))
    keys, rows = [], []
    for block in spill.blocks():
        same = np.concatenate([[False], block["key"][1:] == block["key"][:-1]])
        differs = np.concatenate([[False], same[1:] & (block["row"][1:] != block["row"][:-1])])
        doubtful = np.isin(block["key"], block["key"][differs])  # one title, several papers: leads nowhere
        single = block[~same & ~doubtful]
        keys.append(single["key"])
        rows.append(single["row"])
    index = IdIndex.of(np.concatenate([np.empty(0, np.uint64), *keys]), np.concatenate([np.empty(0, np.int32), *rows]))
    index.save(folder.parent / "index")
    return index


def _keyed_rows(dtype: np.dtype[Any], keys: NDArray[np.uint64], rows: NDArray[Any]) -> NDArray[np.void]:
    usable = (rows >= 0) & (keys != 0)
    records = np.empty(int(usable.sum()), dtype)
    records["key"], records["row"] = keys[usable], rows[usable]
    return records


def _local_keys(folder: Path) -> tuple[Ints, NDArray[np.uint64]]:
    """Rows and keys of the papers whose id is a name inside one file; all other ids are keys of staged records."""
    rows = np.flatnonzero(open_numbers(folder / "flags.npy", np.uint8) & LOCAL)
    return rows, hash_texts(TextColumn(folder, "id").take(rows))


def _first_filled(assignment: Assignment, filled: NDArray[np.bool_]) -> Ints:
    """For every paper its best staged row that is filled, or its best row where none is."""
    chosen = assignment.winner.copy()
    rows = assignment.several[filled[assignment.several]][::-1]
    chosen[assignment.row[rows]] = rows  # written from worst to best: the best filled one stays
    return chosen


def _write_texts(folder: Path, name: str, staged: Staged, chosen: Ints) -> None:
    writer = TextWriter(folder, name)
    columns = staged.texts(name)
    for start in range(0, len(chosen), BLOCK):
        _copy(writer, staged, columns, chosen[start : start + BLOCK])
    release(*columns)
    writer.close()


def _copy(writer: TextWriter, staged: Staged, columns: list[TextColumn], rows: Ints) -> None:
    for part, local in _by_part(staged, rows):
        writer.append_bytes(*columns[part].gather(local))


def _by_part(staged: Staged, rows: Ints) -> Iterator[tuple[int, Ints]]:
    """Runs of rows that lie in one part, with their places in it."""
    parts = np.searchsorted(staged.offsets, rows, side="right") - 1
    cuts = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(rows)]
    for first, end in itertools.pairwise(cuts):
        if end > first:
            part = int(parts[first])
            yield part, rows[first:end] - staged.offsets[part]


def _write_ids(folder: Path, staged: Staged, assignment: Assignment, tally: Tally) -> None:
    """The id column: names that two files use for different papers are numbered."""
    local = np.flatnonzero(staged.numbers("flags")[assignment.first] & LOCAL)
    if not len(local):
        _write_texts(folder, "id", staged, assignment.first)
        return
    _write_texts(folder / "numbering", "id", staged, assignment.first)

    plain = TextColumn(folder / "numbering", "id")
    renamed = _numbered(plain, local, tally)
    writer = TextWriter(folder, "id")
    for start in range(0, len(plain), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(plain)))
        writer.append([renamed.get(row, text) for row, text in zip(rows.tolist(), plain.take(rows), strict=True)])
    writer.close()
    del plain  # Windows removes no file that is mapped
    for path in (folder / "numbering").iterdir():
        path.unlink()
    (folder / "numbering").rmdir()


def _numbered(ids: TextColumn, local: Ints, tally: Tally) -> dict[int, str]:
    """New ids for local names that stand for several papers; the first use keeps the name."""
    keys = ids.keys()
    distinct, place, counts = np.unique(keys, return_inverse=True, return_counts=True)
    clashing = np.flatnonzero(counts[place] > 1)
    seen = set(ids.take(np.setdiff1d(clashing, local)))
    made: set[str] = set()
    renamed: dict[int, str] = {}
    for row in np.intersect1d(clashing, local).tolist():
        name = ids[row]
        if name not in seen:
            seen.add(name)
            continue
        numbers = (f"{name}~{number}" for number in itertools.count(2))
        renamed[row] = next(new for new in numbers if new not in made and hash_text(new) not in distinct)
        made.add(renamed[row])
    tally.note("entry key used in several files for different papers, numbered", len(renamed))
    return renamed


def _united_flags(staged: Staged, assignment: Assignment) -> NDArray[np.uint8]:
    """LOCAL as the record that gave the id has it, STUB only where every record is one."""
    flags = staged.numbers("flags")
    return (flags[assignment.first] & np.uint8(LOCAL)) | (flags[assignment.winner] & np.uint8(STUB))


def _write_united(folder: Path, staged: Staged, assignment: Assignment) -> None:
    """`ids` and `extra`: copied for papers of one record, united for the others."""
    united = _Groups(staged, assignment)
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


def _take(staged: Staged, columns: list[TextColumn], rows: Ints) -> list[str]:
    return [text for part, local in _by_part(staged, rows) for text in columns[part].take(local)]


class _Groups:
    """The papers that have several records."""

    def __init__(self, staged: Staged, assignment: Assignment) -> None:
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
        """Every id of every record except the paper's own, best record first."""
        own = self._staged.text("id", int(self._assignment.first[paper]))
        found: dict[str, None] = {}
        for row in self._members(paper):
            if not self._flags[row] & LOCAL:
                found[self._staged.text("id", row)] = None
            found.update(dict.fromkeys(self._staged.text("ids", row).split("\n")))
        return "\n".join(text for text in found if text and text != own)

    def extra(self, paper: int) -> str:
        """Facts of all records; where two differ the better record's holds."""
        united: dict[str, Any] = {}
        for row in reversed(self._members(paper)):
            text = self._staged.text("extra", row)
            united.update(json.loads(text) if text else {})
        return orjson.dumps(united, option=orjson.OPT_SORT_KEYS).decode() if united else ""
