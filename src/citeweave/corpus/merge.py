"""Merge staged records of the same paper: find them by shared ids or titles, and assign every paper a row.

Applies the rule of `identity.py` to keys alone; the ids of a record are read only where two records share a title. Does
not write columns: `paper_columns.py` does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import TextColumn, release
from citeweave.core.hash_keys import Keys, hash_texts
from citeweave.corpus.corpus import LOCAL, PAPER_NUMBERS, STUB
from citeweave.corpus.external_sort import ExternalSort
from citeweave.corpus.staged_parts import StagedPart

Ints = NDArray[np.int64]

_STEP = 1 << 20
_KEY_AND_ROW = np.dtype([("key", "<u8"), ("row", "<i8")])


class StagedPapers:
    """The paper records of all staged parts as one table; staged row = offset of the part + row in the part."""

    def __init__(self, parts: Sequence[StagedPart]) -> None:
        self.parts = parts
        self.offsets: Ints = np.cumsum([0, *(part.paper_count for part in parts)], dtype=np.int64)
        self._texts: dict[str, list[TextColumn]] = {}

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def numbers(self, name: str) -> NDArray[Any]:
        """Return a numeric column of all staged papers."""
        kind = {**PAPER_NUMBERS, "flags": np.uint8, "title_key": np.uint64}[name]
        return np.concatenate([np.empty(0, kind), *(part.paper_numbers(name) for part in self.parts)])

    def texts(self, name: str) -> list[TextColumn]:
        """Return a text column of every staged part, opened once."""
        if name not in self._texts:
            self._texts[name] = [part.paper_texts(name) for part in self.parts]
        return self._texts[name]

    def text(self, name: str, row: int) -> str:
        part = self.part_of(row)
        return self.texts(name)[part][row - int(self.offsets[part])]

    def part_of(self, row: int) -> int:
        return bisect_right(self.offsets, row) - 1

    def lengths(self, name: str) -> Ints:
        """Return the length in bytes of every staged text of a column."""
        lengths = np.concatenate([np.empty(0, np.int64), *(column.lengths() for column in self.texts(name))])
        release(*self.texts(name))
        return lengths

    def key_count(self, *, shared: bool = False) -> int:
        """Return the number of keys that `id_keys` yields."""
        return sum(len(part.paper_numbers("key")) for part in self.parts if not (shared and part.distinct))

    def id_keys(self, *, shared: bool = False) -> Iterator[NDArray[np.void]]:
        """Yield what records are merged by: blocks of (id key, staged row); `shared` skips parts that share no key."""
        for offset, part in zip(self.offsets, self.parts, strict=False):
            if shared and part.distinct:
                continue
            keys, rows = part.paper_numbers("key"), part.paper_numbers("key_row")
            for start in range(0, len(keys), _STEP):
                yield _keyed(keys[start : start + _STEP], rows[start : start + _STEP] + offset)
            release(keys, rows)

    def title_keys(self) -> Iterator[NDArray[np.void]]:
        """Yield what records are merged by: blocks of (key of title and year, staged row) of papers with a distinctive title."""
        for offset, part in zip(self.offsets, self.parts, strict=False):
            titles = part.paper_numbers("title_key")
            rows = np.flatnonzero(titles)
            yield _keyed(titles[rows], rows + offset)
            release(titles)

    def local_keys(self) -> Iterator[NDArray[np.void]]:
        """Yield blocks of (key, staged row) of names valid in one file only, such as the keys of BibTeX entries."""
        for offset, part in zip(self.offsets, self.parts, strict=False):
            rows = np.flatnonzero(part.paper_numbers("flags") & LOCAL)
            yield _keyed(hash_texts(part.paper_texts("id").take(rows)), rows + offset)


def _keyed(keys: Keys, rows: Ints) -> NDArray[np.void]:
    records = np.empty(len(keys), _KEY_AND_ROW)
    records["key"], records["row"] = keys, rows
    return records


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """Options for merging records into papers."""

    same_title: str = "across"
    """Merge records of equal title and year: `across` files, `always` (also within one), `never`."""

    outside: str = "drop"
    """Papers known only as references of others: `drop` them or `keep` them as rows."""

    memory: int = 256 * 2**20
    """Bytes that sorting may hold in memory at a time."""


@dataclass(frozen=True, slots=True)
class RowAssignment:
    """The row of the corpus that every staged record was merged into, and the best record of every paper."""

    row: NDArray[np.int32]
    """Corpus row of every staged record, -1 for records without a row. Shape (staged,)."""

    papers: int
    several: Ints
    """StagedPapers rows of papers that have several records, by paper and then best record first."""

    winner: Ints
    """Best staged row of every paper. Shape (papers,)."""

    first: Ints
    """First staged row of every paper, which gives it its id. Shape (papers,)."""

    conflicts: int
    """Titles shared by records that were not merged because their ids differ."""


def merge_papers(
    staged: StagedPapers, folder: Path, options: MergeOptions, *, base_papers: int, dropped: NDArray[np.bool_]
) -> RowAssignment:
    """Merge the staged records of each paper and assign every paper a row.

    The first `base_papers` staged rows are the papers of a corpus that is being updated: they keep their ids, and an
    entry with the same key in a newer version of its file is the same paper, unless their ids differ. `dropped` marks
    staged rows to leave out, such as deleted papers.
    """
    parent = np.arange(len(staged), dtype=np.int64)
    keys = staged.id_keys(shared=True), staged.key_count(shared=True)
    for block in _sort_by_key(*keys, folder, options.memory, dropped):
        _join_equal(block["key"], block["row"], parent)
    if base_papers:
        names = _sort_by_key(staged.local_keys(), len(staged), folder, options.memory, dropped)
        _join_unless_ids_differ(staged, parent, names, same_file=True)
    conflicts = 0
    if options.same_title != "never":
        titles = _sort_by_key(staged.title_keys(), len(staged), folder, options.memory, dropped)
        conflicts = _join_unless_ids_differ(staged, parent, titles, same_file=options.same_title == "always")
    _flatten(parent)
    return _assign(staged, parent, options.outside == "keep", base_papers, dropped, conflicts)


def _sort_by_key(
    blocks: Iterable[NDArray[np.void]], expected: int, folder: Path, memory: int, dropped: NDArray[np.bool_]
) -> Iterator[NDArray[np.void]]:
    """Yield (key, staged row) records sorted by key, without dropped rows."""
    sort = ExternalSort(folder, _KEY_AND_ROW, key="key", top=2**64, expected=expected, memory=memory)
    for block in blocks:
        sort.add(block[~dropped[block["row"]]])
    yield from sort.blocks()


@numba.njit(cache=True)
def _root(parent: Ints, row: int) -> int:
    """Return the root of a staged row in the union-find forest, halving its path."""
    while parent[row] != row:
        parent[row] = parent[parent[row]]
        row = parent[row]
    return row


@numba.njit(cache=True)
def _join_equal(keys: NDArray[np.uint64], rows: Ints, parent: Ints) -> None:
    """Join adjacent staged rows of equal key in the union-find forest; the smaller row stays the root."""
    for i in range(1, len(keys)):
        if keys[i] == keys[i - 1]:
            first, second = _root(parent, rows[i - 1]), _root(parent, rows[i])
            if first < second:
                parent[second] = first
            else:
                parent[first] = second


@numba.njit(cache=True)
def _flatten(parent: Ints) -> None:
    """Point every staged row at its root."""
    for row in range(len(parent)):
        parent[row] = parent[parent[row]]  # parents are never larger, so theirs are already final


def _join_unless_ids_differ(
    staged: StagedPapers, parent: Ints, blocks: Iterable[NDArray[np.void]], *, same_file: bool
) -> int:
    """Join records of equal title or name unless their ids conflict; return the number of conflicts."""
    flags, conflicts = staged.numbers("flags"), 0
    for block in blocks:
        for start, end in _runs(block["key"]):
            members = np.ascontiguousarray(block["row"][start:end])
            if len({_root(parent, row) for row in members.tolist()}) == 1:
                continue
            if _ids_conflict(staged, members.tolist(), flags, same_file=same_file):
                conflicts += 1
            else:
                _join_equal(np.zeros(len(members), np.uint64), members, parent)
    return conflicts


def _runs(keys: Keys) -> Iterator[tuple[int, int]]:
    """Yield start and end of every run of staged records with equal keys."""
    edges = np.flatnonzero(np.diff(keys)) + 1
    starts, ends = np.concatenate([[0], edges]), np.concatenate([edges, [len(keys)]])
    long = ends - starts > 1
    yield from zip(starts[long].tolist(), ends[long].tolist(), strict=True)


def _ids_conflict(staged: StagedPapers, rows: list[int], flags: NDArray[np.uint8], *, same_file: bool) -> bool:
    """Return whether records of one title have two different ids of one kind, or two ids of their own in one file."""
    seen: dict[str, str] = {}
    own: dict[int, str] = {}
    for row in rows:
        ids = staged.text("ids", row).split("\n")
        if not flags[row] & LOCAL:
            mine = staged.text("id", row)
            ids.append(mine)
            if not same_file and not flags[row] & STUB and own.setdefault(staged.part_of(row), mine) != mine:
                return True
        for one in ids:
            kind, colon, _ = one.partition(":")
            if colon and kind != "title" and seen.setdefault(kind, one) != one:
                return True
    return False


def _assign(
    staged: StagedPapers, root: Ints, keep_stubs: bool, base_papers: int, dropped: NDArray[np.bool_], conflicts: int
) -> RowAssignment:
    """Number the merged papers and choose the best record of each, from the root of every staged record."""
    flags = staged.numbers("flags")
    has_row = np.zeros(len(root), np.bool_)
    has_row[root[~dropped & ((flags & STUB == 0) | keep_stubs)]] = True
    row_of_root = np.cumsum(has_row, dtype=np.int32) - np.int32(1)
    row_of_root[~has_row] = -1
    row = row_of_root[root]
    row[dropped] = -1
    papers = int(has_row.sum())
    # never empty, even where every record is a stub; the last position is for records without a row
    has_several = np.bincount(row[row >= 0], minlength=papers + 1) > 1
    has_several[papers:] = False
    several = np.flatnonzero(has_several[row])
    preference = (flags & STUB == 0) * 2 + (staged.lengths("abstract") > 0)
    # the last key counts first: paper, then not a stub and with abstract, then newest at its source, then read last
    order = np.lexsort((-several, -staged.numbers("updated")[several], -preference[several], row[several]))
    several = several[order]
    winner = np.full(papers, -1, np.int64)
    alone = np.flatnonzero((row >= 0) & ~has_several[row])
    winner[row[alone]] = alone
    heads = np.flatnonzero(np.diff(row[several], prepend=-1)) if len(several) else several
    winner[row[several[heads]]] = several[heads]
    return RowAssignment(row, papers, several, winner, _first_rows(row, flags, papers, base_papers), conflicts)


def _first_rows(row: NDArray[np.int32], flags: NDArray[np.uint8], papers: int, base_papers: int) -> Ints:
    """Return the record that gives each paper its id: one of the base corpus, else the first with a global id."""
    first = np.full(papers, -1, np.int64)
    in_base = np.arange(len(row)) < base_papers
    for wanted in (flags & STUB > 0, flags & LOCAL > 0, flags & (LOCAL | STUB) == 0, in_base):
        staged = np.flatnonzero((row >= 0) & wanted)[::-1]
        first[row[staged]] = staged  # written backwards: the first record is written last and remains
    return first
