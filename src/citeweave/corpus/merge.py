"""Merge staged records of the same paper: find them by shared ids or titles, give every paper a row, write its columns.

Applies the rule of `identity.py` to keys alone; the ids of a record are read only where two records share a title. Each
column of a paper comes from its best record; where that is empty, from the next best. Ids and extra metadata are united.
The id index of the corpus leads from every id of every record to the paper's row.
"""

from __future__ import annotations

import itertools
import json
import shutil
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from citeweave.core.columns import BLOCK, TextColumn, TextWriter, open_numbers, release, write_numbers
from citeweave.core.compiled import compiled
from citeweave.core.hash_keys import Keys, hash_text, hash_texts
from citeweave.core.progress import Tally
from citeweave.core.ragged import run_offsets, to_offsets
from citeweave.corpus.corpus import LOCAL, PAPER_NUMBERS, STUB, UNKNOWN_COUNT
from citeweave.corpus.external_sort import ExternalSort
from citeweave.corpus.id_index import IdIndex
from citeweave.corpus.options import ImportOptions
from citeweave.corpus.staged_parts import StagedPart

Ints = NDArray[np.int64]

_STEP = 1 << 20
_KEY_AND_ROW = np.dtype([("key", "<u8"), ("row", "<i8")])
_KEY_AND_PAPER = np.dtype([("key", "<u8"), ("row", "<i4")])


class StagedPapers:
    """The paper records of all staged parts as one table; staged row = offset of the part + row in the part."""

    def __init__(self, parts: Sequence[StagedPart]) -> None:
        self.parts = parts
        self.offsets = to_offsets([part.paper_count for part in parts])
        self._texts: dict[str, list[TextColumn]] = {}

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def numbers(self, name: str) -> NDArray[Any]:
        """Return a numeric column of all staged papers."""
        kind = {**PAPER_NUMBERS, "flags": np.uint8, "title_key": np.uint64}[name]
        return np.concatenate([np.empty(0, kind), *(part.numbers("papers", name) for part in self.parts)])

    def texts(self, name: str) -> list[TextColumn]:
        """Return a text column of every staged part, opened once."""
        if name not in self._texts:
            self._texts[name] = [part.texts("papers", name) for part in self.parts]
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
        return sum(len(part.numbers("papers", "key")) for part in self.parts if not (shared and part.distinct))

    def id_keys(self, *, shared: bool = False) -> Iterator[NDArray[np.void]]:
        """Yield what records are merged by: blocks of (id key, staged row); `shared` skips parts that share no key."""
        for offset, part in zip(self.offsets, self.parts, strict=False):
            if shared and part.distinct:
                continue
            keys, rows = part.numbers("papers", "key"), part.numbers("papers", "key_row")
            for start in range(0, len(keys), _STEP):
                yield _records(_KEY_AND_ROW, keys[start : start + _STEP], rows[start : start + _STEP] + offset)
            release(keys, rows)

    def title_keys(self) -> Iterator[NDArray[np.void]]:
        """Yield what records are merged by: blocks of (key of title and year, staged row) of papers with a distinctive title."""
        for offset, part in zip(self.offsets, self.parts, strict=False):
            titles = part.numbers("papers", "title_key")
            rows = np.flatnonzero(titles)
            yield _records(_KEY_AND_ROW, titles[rows], rows + offset)
            release(titles)

    def local_keys(self) -> Iterator[NDArray[np.void]]:
        """Yield blocks of (key, staged row) of names valid in one file only, such as the keys of BibTeX entries."""
        for offset, part in zip(self.offsets, self.parts, strict=False):
            rows = np.flatnonzero(part.numbers("papers", "flags") & LOCAL)
            yield _records(_KEY_AND_ROW, hash_texts(part.texts("papers", "id").take(rows)), rows + offset)

    def by_part(self, rows: Ints) -> Iterator[tuple[int, Ints]]:
        """Yield runs of staged rows that are in one part, with their rows in it."""
        parts = self.parts_of(rows)
        for first, end in itertools.pairwise(run_offsets(parts).tolist()):
            part = int(parts[first])
            yield part, rows[first:end] - self.offsets[part]

    def parts_of(self, rows: Ints) -> Ints:
        """Return the number of the part that each staged row is in."""
        return np.searchsorted(self.offsets, rows, side="right") - 1


def _records(dtype: np.dtype[Any], keys: Keys, rows: NDArray[Any]) -> NDArray[np.void]:
    """Return (key, row) records."""
    records = np.empty(len(keys), dtype)
    records["key"], records["row"] = keys, rows
    return records


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
    staged: StagedPapers, folder: Path, options: ImportOptions, *, base_papers: int, dropped: NDArray[np.bool_]
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


@compiled()
def _root(parent: Ints, row: int) -> int:
    """Return the root of a staged row in the union-find forest, halving its path."""
    while parent[row] != row:
        parent[row] = parent[parent[row]]
        row = parent[row]
    return row


@compiled()
def _join_equal(keys: NDArray[np.uint64], rows: Ints, parent: Ints) -> None:
    """Join adjacent staged rows of equal key in the union-find forest; the smaller row stays the root."""
    for i in range(1, len(keys)):
        if keys[i] == keys[i - 1]:
            first, second = _root(parent, rows[i - 1]), _root(parent, rows[i])
            if first < second:
                parent[second] = first
            else:
                parent[first] = second


@compiled()
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
        offsets = run_offsets(block["key"])
        for run in np.flatnonzero(np.diff(offsets) > 1).tolist():
            members = np.ascontiguousarray(block["row"][offsets[run] : offsets[run + 1]])
            if len({_root(parent, row) for row in members.tolist()}) == 1:
                continue
            if _ids_conflict(staged, members.tolist(), flags, same_file=same_file):
                conflicts += 1
            else:
                _join_equal(np.zeros(len(members), np.uint64), members, parent)
    return conflicts


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
    heads = several[run_offsets(row[several])[:-1]]
    winner[row[heads]] = heads
    return RowAssignment(row, papers, several, winner, _first_rows(row, flags, papers, base_papers), conflicts)


def _first_rows(row: NDArray[np.int32], flags: NDArray[np.uint8], papers: int, base_papers: int) -> Ints:
    """Return the record that gives each paper its id: one of the base corpus, else the first with a global id."""
    first = np.full(papers, -1, np.int64)
    in_base = np.arange(len(row)) < base_papers
    for wanted in (flags & STUB > 0, flags & LOCAL > 0, flags & (LOCAL | STUB) == 0, in_base):
        staged = np.flatnonzero((row >= 0) & wanted)[::-1]
        first[row[staged]] = staged  # written backwards: the first record is written last and remains
    return first


# --- columns of merged papers -----------------------------------------------------------------------

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
    flags = staged.numbers("flags")
    # LOCAL as in the record that gave the id, STUB where every record is one
    united = (flags[assignment.first] & np.uint8(LOCAL)) | (flags[assignment.winner] & np.uint8(STUB))
    write_numbers(folder / "flags.npy", united, np.uint8)
    _write_united(folder, staged, assignment)


def write_merges(folder: Path, staged: StagedPapers, assignment: RowAssignment) -> None:
    """Write `merges/`: row, id and part of every record of a paper that has several records."""
    rows = assignment.several
    write_numbers(folder / "row.npy", assignment.row[rows], np.int32)
    write_numbers(folder / "part.npy", staged.parts_of(rows), np.int32)
    _write_texts(folder, "id", staged, rows)


def build_index(folder: Path, staged: StagedPapers, assignment: RowAssignment, work: Path, *, memory: int) -> IdIndex:
    """Write the id index of a corpus: from keys of every record's ids, and of titles that only one paper has, to rows."""
    titles = staged.numbers("title_key")
    # names inside one file, of which staged records have no keys that are valid elsewhere
    local = np.flatnonzero(open_numbers(folder / "flags.npy", np.uint8) & LOCAL)
    expected = staged.key_count() + int(np.count_nonzero(titles)) + len(local)
    sort = ExternalSort(work, _KEY_AND_PAPER, key="key", top=2**64, expected=expected, memory=memory)
    for keys, rows in itertools.chain(
        ((block["key"], assignment.row[block["row"]]) for block in staged.id_keys()),
        [(titles, assignment.row), (hash_texts(TextColumn(folder, "id").take(local)), local)],
    ):
        usable = (rows >= 0) & (keys != 0)
        sort.add(_records(_KEY_AND_PAPER, keys[usable], rows[usable]))
    parts = [np.empty(0, _KEY_AND_PAPER)]
    for block in sort.blocks():
        starts = run_offsets(block["key"])[:-1]
        lowest, highest = (side.reduceat(block["row"], starts) for side in (np.minimum, np.maximum))
        parts.append(block[starts[lowest == highest]])  # one title of several papers is left out
    index = IdIndex.of(*(np.concatenate([part[name] for part in parts]) for name in ("key", "row")))
    index.save(folder.parent / "index")
    return index


def _first_filled(assignment: RowAssignment, filled: NDArray[np.bool_]) -> Ints:
    """Return for every paper its best staged row where a column is filled, or its best row where none is."""
    chosen = assignment.winner.copy()
    rows = assignment.several[filled[assignment.several]][::-1]
    chosen[assignment.row[rows]] = rows  # written from worst to best: the best filled one remains
    return chosen


def _write_texts(folder: Path, name: str, staged: StagedPapers, chosen: Ints) -> None:
    """Write a text column of papers from the chosen staged rows."""
    writer = TextWriter(folder, name)
    for start in range(0, len(chosen), BLOCK):
        _copy(writer, staged, name, chosen[start : start + BLOCK])
    release(*staged.texts(name))
    writer.close()


def _copy(writer: TextWriter, staged: StagedPapers, name: str, rows: Ints) -> None:
    for part, local in staged.by_part(rows):
        writer.append_bytes(*staged.texts(name)[part].gather(local))


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
    shutil.rmtree(folder / "numbering")


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


def _write_united(folder: Path, staged: StagedPapers, assignment: RowAssignment) -> None:
    """Write the columns `ids` and `extra`: copied for papers of one record, united for papers of several."""
    rows = assignment.row[assignment.several]
    offsets = run_offsets(rows)
    papers, flags = rows[offsets[:-1]], staged.numbers("flags")
    for name in ("ids", "extra"):
        writer = TextWriter(folder, name)
        columns = staged.texts(name)
        for start in range(0, assignment.papers, BLOCK):
            winners = assignment.winner[start : start + BLOCK]
            low, high = np.searchsorted(papers, [start, start + BLOCK]).tolist()
            if low == high:
                _copy(writer, staged, name, winners)
                continue
            texts = [text for part, local in staged.by_part(winners) for text in columns[part].take(local)]
            for at in range(low, high):
                paper, records = int(papers[at]), assignment.several[offsets[at] : offsets[at + 1]].tolist()
                own = staged.text("id", int(assignment.first[paper]))
                united = _united_ids(staged, records, own, flags) if name == "ids" else _united_extra(staged, records)
                texts[paper - start] = united
            writer.append(texts)
        release(*columns)
        writer.close()


def _united_ids(staged: StagedPapers, records: list[int], own: str, flags: NDArray[np.uint8]) -> str:
    """Return what a paper's column of ids holds: all ids of its merged records except its own, best record first."""
    ids: dict[str, None] = {}
    for row in records:
        if not flags[row] & LOCAL:
            ids[staged.text("id", row)] = None
        ids.update(dict.fromkeys(staged.text("ids", row).split("\n")))
    return "\n".join(text for text in ids if text and text != own)


def _united_extra(staged: StagedPapers, records: list[int]) -> str:
    """Return what a paper's column of extra metadata holds, as JSON; where its records differ, that of the better one."""
    united: dict[str, Any] = {}
    for row in reversed(records):
        text = staged.text("extra", row)
        united.update(json.loads(text) if text else {})
    return orjson.dumps(united, option=orjson.OPT_SORT_KEYS).decode() if united else ""
