"""Update a corpus: the old generation as one more staged part, deletions, and what changed in every row.

The old papers keep their order and ids; new ones follow. Files that do not change are shared with the old generation.
Does not delete or rewrite the old generation, and does not merge: `merge.py` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import TextColumn, open_numbers, write_numbers
from citeweave.core.files import hash_file, link_or_copy
from citeweave.core.hash_keys import Keys, mix_keys
from citeweave.core.progress import RECORD_KINDS, Tally
from citeweave.core.ragged import owners_of
from citeweave.corpus.corpus import CITATION_COLUMNS, PAPER_NUMBERS, PAPER_TEXTS, Changes, Corpus
from citeweave.corpus.id_index import NOT_FOUND
from citeweave.corpus.merge import RowAssignment
from citeweave.corpus.paper import NameCollector
from citeweave.corpus.staged_parts import NumberedTable, StagedPart

_TEXTS = ("title", "abstract")
_ATTRIBUTES = {"intents": "intents", "strength": "strengths", "influential": "influential"}
"""Column of citations -> the corpus's property."""


@dataclass(frozen=True, slots=True)
class Deletions:
    """The papers and citations that an update leaves out of the corpus that it continues."""

    rows: NDArray[np.integer[Any]]
    """Rows of the papers to delete."""

    citations: Keys = field(default_factory=lambda: np.empty(0, np.uint64))
    """Citations to delete, each by one key of citing and cited paper (`_pair_keys`), sorted."""

    not_found: int = 0
    """Papers and citations to delete that the corpus does not have."""


def find_deletions(base: Corpus, parts: Sequence[StagedPart]) -> Deletions:
    """Find the papers and citations to delete: those that the records of these parts describe, by id, title or name."""
    rows, pairs, missed = [np.empty(0, np.int32)], [np.empty(0, np.uint64)], 0
    for part in parts:
        deleted = np.full(part.paper_count, NOT_FOUND, np.int32)
        by_id = base.index.rows_of(part.numbers("papers", "key"))
        deleted[part.numbers("papers", "key_row")[by_id >= 0]] = by_id[by_id >= 0]
        for keys in (part.numbers("papers", "title_key"), part.texts("papers", "id").keys()):
            deleted = np.where(deleted >= 0, deleted, base.index.rows_of(keys))
        rows.append(deleted[deleted >= 0])
        missed += int((deleted < 0).sum())
        pairs.append(_pair_keys(base, part.numbers("citations", "citing"), part.numbers("citations", "cited")))
        blocks = (block for table in part.numbered() for block in table.blocks())
        pairs += [_pair_keys(base, block.keys("citing"), block.keys("cited")) for block in blocks]
    wanted = np.unique(np.concatenate(pairs))
    known = np.isin(wanted, BasePart(base).pair_keys())
    return Deletions(np.unique(np.concatenate(rows)), wanted[known], missed + int((~known).sum()))


def _pair_keys(base: Corpus, citing: Keys, cited: Keys) -> Keys:
    """Return one key per citation, the same for any of the papers' ids."""
    return mix_keys(_main_keys(base, citing), _main_keys(base, cited))


def _main_keys(base: Corpus, keys: Keys) -> Keys:
    """Return the key of the paper's own id for the key of any of its ids; keys of papers outside the corpus stay."""
    rows, own = base.index.rows_of(keys), base.ids.keys()
    return np.where(rows >= 0, own[np.maximum(rows, 0)], keys) if len(own) else keys


class BasePart:
    """The corpus that is being updated, read as a staged part, without the citations that the update deletes."""

    name, format = "the corpus that was updated", ""
    distinct = False  # all ids of a paper are keys that lead to its row

    def __init__(self, corpus: Corpus, deleted_citations: Keys | None = None) -> None:
        self.corpus, self.folder, self.tally = corpus, corpus.folder, Tally()
        self._keys = corpus.ids.keys()
        self._remaining: NDArray[np.bool_] | slice = slice(None)
        self.paper_count, self.context_count = len(corpus), len(corpus.contexts)
        self.citation_count = len(self.numbers("citations", "influential"))
        for kind, count in zip(RECORD_KINDS, (self.paper_count, self.citation_count, self.context_count), strict=True):
            self.tally.keep(kind, count)
        if deleted_citations is not None and len(deleted_citations):
            self._remaining = ~np.isin(self.pair_keys(), deleted_citations)
            self.citation_count = int(self._remaining.sum())
            self.tally.unkeep("citations", "deleted on request", len(self._remaining) - self.citation_count)

    def pair_keys(self) -> Keys:
        """Return one key per citation of the corpus that is updated."""
        return mix_keys(self.numbers("citations", "citing"), self.numbers("citations", "cited"))

    def numbered(self) -> list[NumberedTable]:
        return []

    def offer_names(self, names: NameCollector) -> None:
        """Offer the names of papers outside the corpus that the old generation stores."""
        if (stored := self.corpus.outside_names) is not None:
            names.offer(stored.keys, stored.take)

    def texts(self, table: str, name: str) -> TextColumn:
        return TextColumn(self.folder / table, name)

    def numbers(self, table: str, name: str) -> NDArray[Any]:
        """Return a column as a staged part has it: ids by their keys, references to papers outside after citations."""
        match table, name:
            case "papers", "key":
                return self.corpus.index.keys
            case "papers", "key_row":
                return self.corpus.index.rows.astype(np.int64)
            case "papers", _:
                kinds = {**PAPER_NUMBERS, "flags": np.uint8, "title_key": np.uint64}
                return open_numbers(self.folder / "papers" / f"{name}.npy", kinds[name])
            case "citations", _:
                return self._citations(name)
        return self._contexts(name)

    def _citations(self, name: str) -> NDArray[Any]:
        corpus = self.corpus
        columns: list[NDArray[Any]]
        if name == "citing":
            columns = [self._keys[corpus.citing], self._keys[corpus.references_outside("citing")]]
        elif name == "cited":
            columns = [self._keys[corpus.cited], corpus.references_outside("key")]
        else:
            columns = [getattr(corpus, _ATTRIBUTES[name]), corpus.references_outside(name)]
        return np.concatenate(columns)[self._remaining]

    def _contexts(self, name: str) -> NDArray[Any]:
        contexts = self.corpus.contexts
        if name == "citing":
            return contexts.citing_keys
        if name == "intents":
            return contexts.intents
        lists = contexts.cited_offsets, contexts.outside_offsets
        if name == "cited_count":
            return np.diff(lists[0]) + np.diff(lists[1])
        keys = np.concatenate([self._keys[contexts.cited], contexts.outside])
        return keys[np.argsort(np.concatenate([owners_of(offsets) for offsets in lists]), kind="stable")]


def write_changes(folder: Path, base: Corpus, assignment: RowAssignment) -> dict[str, int]:
    """Write `changes/`, what the update changed in every row, and return counts by kind of change."""
    previous = np.full(assignment.papers, -1, np.int32)
    old_rows = np.arange(len(base), dtype=np.int32)[::-1]
    new_rows = assignment.row[: len(base)][::-1]
    # written backwards: the first of merged rows remains
    previous[new_rows[new_rows >= 0]] = old_rows[new_rows >= 0]
    change = np.where(previous < 0, np.uint8(Changes.NEW), np.uint8(0))
    known = np.flatnonzero(previous >= 0)
    for name in (*PAPER_TEXTS, "year", "citation_count"):
        bit = Changes.TEXT if name in _TEXTS else Changes.OTHER
        differs = _comparable(folder, name)[known] != _comparable(base.folder, name)[previous[known]]
        change[known[differs]] |= bit
    old, new = (
        _reference_keys(base.folder, len(base), assignment.row[: len(base)]),
        _reference_keys(folder, assignment.papers, np.arange(assignment.papers, dtype=np.int32)),
    )
    change[known[new[known] != old[previous[known]]]] |= Changes.REFERENCES
    write_numbers(folder / "changes" / "change.npy", change)
    write_numbers(folder / "changes" / "previous.npy", previous)
    bits = {"new": Changes.NEW, "text": Changes.TEXT, "other": Changes.OTHER, "references": Changes.REFERENCES}
    counts = {name: int((change & bit > 0).sum()) for name, bit in bits.items()}
    return {**counts, "gone": int((assignment.row[: len(base)] < 0).sum()), "unchanged": int((change == 0).sum())}


def share_unchanged(folder: Path, base: Corpus) -> int:
    """Replace files that the update did not change by links to the old generation, and return how many."""
    shared = 0
    for name, described in base.manifest.files.items():
        path = folder / name
        if path.is_file() and path.stat().st_size == described["bytes"] and hash_file(path) == described["sha256"]:
            path.unlink()
            link_or_copy(base.folder / name, path)
            shared += 1
    return shared


def _comparable(folder: Path, name: str) -> NDArray[Any]:
    """Return a paper column as numbers that can be compared between generations: keys of texts, or the numbers."""
    if name in PAPER_TEXTS:
        return TextColumn(folder / "papers", name).keys()
    return open_numbers(folder / "papers" / f"{name}.npy", PAPER_NUMBERS[name])


def _reference_keys(folder: Path, papers: int, row_of: NDArray[np.int32]) -> Keys:
    """Return one key for the reference list of every paper: the sum of keys of its citations, in rows of `row_of`."""
    columns = {
        name: open_numbers(folder / "citations" / f"{name}.npy", kind) for name, kind in CITATION_COLUMNS.items()
    }
    # shifted by one because a deleted cited paper has row -1
    cited = (row_of[columns["cited"]].astype(np.int64) + 1).astype(np.uint64)
    attributes = columns["intents"].astype(np.uint64) << np.uint64(32) | columns["strength"].view(np.uint32)
    sums = np.zeros(papers, np.uint64)
    np.add.at(sums, columns["citing"], mix_keys(cited, attributes))
    return sums
