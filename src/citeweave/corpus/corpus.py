"""A corpus: papers, citations and contexts as columns in a folder, opened memory-mapped.

    corpus/
      manifest.json
      papers/     id title abstract venue authors fields ids extra (texts), year citation_count updated flags
      citations/  citing cited intents strength influential        sorted by citing and cited row
      contexts/   citing citing_key text section intents extra, cited and outside (ragged, with offsets)
      references_outside/   citing key intents strength influential: references to papers not in the corpus
      outside_names/        key id title year: what those papers are called
      index/      from the key of an id to a row
      merges/     which records became one paper
      changes/    only in a corpus that updates another: what became of every row

A row is an integer and an id is a text. Nothing is loaded that is not asked for:

    corpus = Corpus.open("corpus/")
    corpus.titles[7], corpus.years[7], corpus.row("doi:10.1/x"), corpus.paper(7)

From ids to rows: a sorted table of id keys, memory-mapped, one or two cache misses a lookup.

Keys are spread evenly (`core/randomness.py`), so their leading bits tell where to look: `starts[b]` is the
position of the first key whose leading bits are at least b.

What a corpus is on disk: its columns and their types, declared once.

Writers (`intake/`) and readers (`corpus.py`) both go by these tables; another layout is another VERSION.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from citeweave.core.arguments import as_texts
from citeweave.core.artifact import Manifest, check_files, read_manifest
from citeweave.core.columns import TextColumn, offsets_fit, open_numbers, release, write_numbers
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.files import file_state
from citeweave.core.randomness import Keys, hash_texts
from citeweave.corpus.paper import Citation, Context, Intent, OutsideNames, Paper

_Opened = TypeVar("_Opened")


class Corpus:
    """A literature on disk. Every property is a memory-mapped column, opened when first used."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._states: dict[str, tuple[int, ...]] = {}
        """Of every file when the corpus was opened."""

    @classmethod
    def open(cls, folder: str | Path) -> Corpus:
        """Open a corpus folder; its files' sizes are checked, their content is not read."""
        folder = Path(folder)
        manifest = read_manifest(folder, KIND, VERSION)
        corpus = cls(folder, manifest)
        names = [name for name, described in manifest.files.items() if "bytes" in described]
        corpus._states = {name: file_state(folder / name) for name in names if (folder / name).is_file()}
        check_files(folder, manifest)
        return corpus

    def __len__(self) -> int:
        return len(self.years)

    def __repr__(self) -> str:
        return f"Corpus({str(self.folder)!r}: {len(self):,} papers, {len(self.citing):,} citations)"

    @property
    def hash(self) -> str:
        """Hash of the content: what later stages name as their input."""
        return self.manifest.hash

    @cached_property
    def ids(self) -> TextColumn:
        return self._texts("id")

    @cached_property
    def titles(self) -> TextColumn:
        return self._texts("title")

    @cached_property
    def abstracts(self) -> TextColumn:
        return self._texts("abstract")

    @cached_property
    def venues(self) -> TextColumn:
        return self._texts("venue")

    @cached_property
    def authors(self) -> TextColumn:
        """Names, one a line."""
        return self._texts("authors")

    @cached_property
    def fields(self) -> TextColumn:
        """Fields of study, one a line, most important first."""
        return self._texts("fields")

    @cached_property
    def other_ids(self) -> TextColumn:
        """Further ids of the paper, one a line."""
        return self._texts("ids")

    @cached_property
    def extras(self) -> TextColumn:
        """Whatever else the source knows, as a JSON object or nothing."""
        return self._texts("extra")

    @cached_property
    def years(self) -> NDArray[np.int16]:
        """Year of publication, 0 where unknown."""
        return self._numbers("year")

    @cached_property
    def citation_counts(self) -> NDArray[np.int32]:
        """Citations in the whole literature as the source says, -1 where it does not."""
        return self._numbers("citation_count")

    @cached_property
    def flags(self) -> NDArray[np.uint8]:
        """Bits: 1 = the id is a name inside one file, 2 = known only as a reference of other papers."""
        return self._same("papers/flags.npy", open_numbers(self.folder / "papers" / "flags.npy", np.uint8))

    @cached_property
    def citing(self) -> NDArray[np.int32]:
        """Row of the citing paper of every citation, ascending."""
        return self._citations("citing")

    @cached_property
    def cited(self) -> NDArray[np.int32]:
        return self._citations("cited")

    @cached_property
    def intents(self) -> NDArray[np.uint8]:
        """Bits of `Intent` for every citation; 0 where unknown."""
        return self._citations("intents")

    @cached_property
    def strengths(self) -> NDArray[np.float32]:
        return self._citations("strength")

    @cached_property
    def influential(self) -> NDArray[np.bool_]:
        return self._citations("influential")

    @cached_property
    def contexts(self) -> Contexts:
        table = self._same("contexts/", Contexts(self.folder / "contexts"))
        self.check_rows(table.cited)
        self.check_rows(table.citing, least=-1)
        release(table.cited, table.citing)
        return table

    @cached_property
    def index(self) -> IdIndex:
        return self._same("index/", IdIndex.open(self.folder / "index"))

    @cached_property
    def changes(self) -> Changes | None:
        """What the update that made this corpus did to the rows, None where it updated nothing."""
        folder = self.folder / "changes"
        if not folder.is_dir():
            return None
        change, previous = (
            open_numbers(folder / "change.npy", np.uint8),
            open_numbers(folder / "previous.npy", np.int32),
        )
        return self._same("changes/", Changes(change, previous))

    def references_outside(self, name: str) -> NDArray[Any]:
        """A column of the references to papers outside: citing (row), key (of the cited id), intents, ..."""
        file = f"references_outside/{name}.npy"
        return self._same(file, open_numbers(self.folder / file, REFERENCE_COLUMNS[name]))

    @cached_property
    def outside_names(self) -> OutsideNames | None:
        """What the papers outside are called; None where the corpus does not say."""
        return self._same("outside_names/", OutsideNames.open(self.folder))

    def merges(self) -> tuple[NDArray[np.int32], NDArray[np.int32], TextColumn]:
        """Row, part and id of every record that shares its paper with another record."""
        folder = self.folder / "merges"
        rows, parts = (open_numbers(folder / f"{name}.npy", np.int32) for name in ("row", "part"))
        return self._same("merges/", (rows, parts, TextColumn(folder, "id")))

    def rows(self, ids: Sequence[str]) -> NDArray[np.int32]:
        """The row of every id (any id of the paper), -1 where the corpus has no such paper."""
        ids = as_texts(ids, "ids")
        return self.index.rows_of(hash_texts(ids))

    def row(self, id: str) -> int:
        """The row of one id."""
        row = int(self.rows([id])[0])
        if row == NOT_FOUND:
            raise UserError(
                f"paper {id!r} is not in {self.folder}; `citeweave info {self.folder}` shows what ids look like"
            )
        return row

    def paper(self, row: int | str) -> Paper:
        """One paper, by its row or any of its ids."""
        row = self.row(row) if isinstance(row, str) else row
        if not 0 <= row < len(self):
            raise UserError(f"row {row} is not in {self.folder}; it has rows 0 to {len(self) - 1}, or give an id")
        extra = self.extras[row]
        count, flags = int(self.citation_counts[row]), int(self.flags[row])
        return Paper(
            id=self.ids[row],
            title=self.titles[row],
            abstract=self.abstracts[row],
            year=int(self.years[row]) or None,
            venue=self.venues[row],
            authors=lines(self.authors[row]),
            fields=lines(self.fields[row]),
            ids=lines(self.other_ids[row]),
            citation_count=None if count == UNKNOWN_COUNT else count,
            updated=int(self._numbers("updated")[row]),
            extra=self._object(extra),
            local_id=bool(flags & LOCAL),
            stub=bool(flags & STUB),
        )

    def citation(self, number: int) -> Citation:
        """One citation with the papers' ids."""
        citing, cited = self._ids_of(np.array([self.citing[number], self.cited[number]]))
        return Citation(
            citing=citing,
            cited=cited,
            intents=Intent(int(self.intents[number])),
            strength=float(self.strengths[number]),
            influential=bool(self.influential[number]),
        )

    def context(self, number: int) -> Context:
        """One context with the papers' ids; papers outside the corpus are left out."""
        table = self.contexts
        citing, extra = int(table.citing[number]), table.extras[number]
        return Context(
            citing=self._ids_of(np.array([citing]))[0] if citing >= 0 else "",
            text=table.texts[number],
            cited=tuple(self._ids_of(table.cited_rows(number))),
            section=table.sections[number],
            intents=Intent(int(table.intents[number])),
            extra=self._object(extra),
        )

    def check_unchanged(self, start: str = "") -> None:
        """Refuse files, those whose names start so, that were replaced or removed since the corpus was opened."""
        for name, state in self._states.items():
            path = self.folder / name
            if name.startswith(start) and not (path.is_file() and file_state(path) == state):
                raise ArtifactError(f"{path} was replaced while it was read; run the same command again")

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """A block that opens files of the corpus itself, all of them of the one that was opened."""
        try:
            yield
        except ArtifactError:
            raise
        except Exception:
            self.check_unchanged()  # which explains why its columns did not fit
            raise
        self.check_unchanged()

    def check_rows(self, rows: NDArray[np.integer[Any]], *, least: int = 0) -> None:
        """Refuse rows out of the corpus's own columns that no paper has: of a large corpus nobody looked at them."""
        if len(rows) and not (int(rows.min()) >= least and int(rows.max()) < len(self)):
            raise self._damage("a citation names a row that no paper has")

    def _ids_of(self, rows: NDArray[np.integer[Any]]) -> list[str]:
        self.check_rows(rows)
        return self.ids.take(rows)

    def _object(self, text: str) -> dict[str, Any]:
        """A JSON object of a column, or nothing."""
        try:
            found = json.loads(text) if text else {}
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._damage("what else is known of a paper is no JSON")
        return found

    def _damage(self, what: str) -> ArtifactError:
        return ArtifactError(
            f"{self.folder} is damaged: {what}; `citeweave info {self.folder} --verify` names the file, make it again"
        )

    def _texts(self, name: str) -> TextColumn:
        return self._same(f"papers/{name}.", TextColumn(self.folder / "papers", name))

    def _numbers(self, name: str) -> NDArray[Any]:
        file = f"papers/{name}.npy"
        return self._same(file, open_numbers(self.folder / file, PAPER_NUMBERS[name]))

    def _citations(self, name: str) -> NDArray[Any]:
        file = f"citations/{name}.npy"
        return self._same(file, open_numbers(self.folder / file, CITATION_COLUMNS[name]))

    def _same(self, start: str, opened: _Opened) -> _Opened:
        """What was opened, unless its files, whose names start so, were replaced since the corpus was opened."""
        self.check_unchanged(start)
        return opened


class Contexts:
    """The citing sentences of a corpus, as columns."""

    def __init__(self, folder: Path) -> None:
        self.citing: NDArray[np.int32] = open_numbers(folder / "citing.npy", np.int32)
        """Row of the citing paper, -1 where it is not in the corpus."""
        self.texts = TextColumn(folder, "text")
        self.sections = TextColumn(folder, "section")
        self.extras = TextColumn(folder, "extra")
        self.intents: NDArray[np.uint8] = open_numbers(folder / "intents.npy", np.uint8)
        self.cited: NDArray[np.int32] = open_numbers(folder / "cited.npy", np.int32)
        """Rows of the cited papers of all contexts, one list after the other."""
        self.cited_offsets: NDArray[np.int64] = open_numbers(folder / "cited_offsets.npy", np.int64)
        self.outside: NDArray[np.uint64] = open_numbers(folder / "outside.npy", np.uint64)
        """Keys of the cited papers that are not in the corpus, one list after the other."""
        self.outside_offsets: NDArray[np.int64] = open_numbers(folder / "outside_offsets.npy", np.int64)
        self.citing_keys: NDArray[np.uint64] = open_numbers(folder / "citing_key.npy", np.uint64)
        # everybody follows these numbers without looking: damaged ones must stop here
        lists = ((self.cited_offsets, self.cited), (self.outside_offsets, self.outside))
        if not all(offsets_fit(offsets, len(self.citing), len(values)) for offsets, values in lists):
            raise ArtifactError(f"{folder} is damaged: its columns do not fit together; make the corpus again")

    def __len__(self) -> int:
        return len(self.citing)

    def cited_rows(self, number: int) -> NDArray[np.int32]:
        """Rows of the papers that one context cites, those in the corpus."""
        return self.cited[self.cited_offsets[number] : self.cited_offsets[number + 1]]


@dataclass(frozen=True, slots=True)
class Changes:
    """What an update did to every row of the new corpus."""

    change: NDArray[np.uint8]
    """Bits: 1 = title or abstract, 2 = other columns, 4 = references, 8 = the paper is new. Shape (papers,)."""

    previous: NDArray[np.int32]
    """Row in the corpus that was updated, -1 for new papers. Shape (papers,)."""

    TEXT: ClassVar[int] = 1
    OTHER: ClassVar[int] = 2
    REFERENCES: ClassVar[int] = 4
    NEW: ClassVar[int] = 8


def lines(text: str) -> tuple[str, ...]:
    """The entries of a column that holds one a line.

    >>> lines("Ada Lovelace\\nAlan Turing"), lines("")
    (('Ada Lovelace', 'Alan Turing'), ())
    """
    return tuple(text.split("\n")) if text else ()


# From ids to rows: a sorted table of id keys, memory-mapped, one or two cache misses a lookup.

Rows = NDArray[np.int32]
NOT_FOUND = -1


class IdIndex:
    """Sorted keys with the row each leads to."""

    def __init__(self, keys: Keys, rows: Rows, starts: NDArray[np.int64]) -> None:
        self.keys, self.rows, self._starts = keys, rows, starts

    @classmethod
    def open(cls, folder: Path) -> IdIndex:
        keys = open_numbers(folder / "key.npy", np.uint64)
        rows = open_numbers(folder / "row.npy", np.int32)
        starts = open_numbers(folder / "starts.npy", np.int64)
        # compiled code follows these numbers without looking: a damaged table must stop here
        buckets = len(starts) - 1
        sound = buckets > 1 and buckets & (buckets - 1) == 0 and len(keys) == len(rows)
        if not sound or starts[0] != 0 or starts[-1] != len(keys) or (np.diff(starts) < 0).any():
            raise ArtifactError(f"{folder} is damaged: its tables do not fit together; make the corpus again")
        return cls(keys, rows, starts)

    @classmethod
    def of(cls, keys: Keys, rows: Rows) -> IdIndex:
        """An index of sorted, distinct keys."""
        return cls(keys, rows, _starts_of(keys))

    def save(self, folder: Path) -> None:
        write_numbers(folder / "key.npy", self.keys)
        write_numbers(folder / "row.npy", self.rows, np.int32)
        write_numbers(folder / "starts.npy", self._starts)

    def rows_of(self, keys: Keys) -> Rows:
        """The row of every key, or -1."""
        out = np.empty(len(keys), np.int32)
        _look_up(np.ascontiguousarray(keys), self.keys, self.rows, self._starts, _shift(len(self._starts)), out)
        return out


def _starts_of(keys: Keys) -> NDArray[np.int64]:
    """About four keys a bucket; a power of two of buckets and one more entry for the end."""
    bits = max(1, min(32, int(np.log2(max(len(keys), 8) / 4))))
    edges = np.arange(1, 2**bits, dtype=np.uint64) << np.uint64(64 - bits)
    inner = np.searchsorted(keys, edges).astype(np.int64)
    return np.concatenate([[0], inner, [len(keys)]]).astype(np.int64)


def _shift(starts: int) -> np.uint64:
    return np.uint64(64 - (starts - 1).bit_length() + 1)


@numba.njit(cache=True, nogil=True)
def _look_up(wanted: Keys, keys: Keys, rows: Rows, starts: NDArray[np.int64], shift: np.uint64, out: Rows) -> None:
    for i in range(len(wanted)):
        key = wanted[i]
        bucket = key >> shift
        out[i] = NOT_FOUND
        for at in range(starts[bucket], starts[bucket + np.uint64(1)]):
            if keys[at] >= key:
                if keys[at] == key:
                    out[i] = rows[at]
                break


# What a corpus is on disk: its columns and their types, declared once.

KIND = "corpus"
VERSION = 1

PAPER_TEXTS = ("id", "title", "abstract", "venue", "authors", "fields", "ids", "extra")
PAPER_NUMBERS = {"year": np.int16, "citation_count": np.int32, "updated": np.int32}
UNKNOWN_COUNT = -1

LOCAL, STUB = 1, 2
"""Bits of the column `flags`: the id is a name inside one file; the paper is known only as a reference."""

CITATION_COLUMNS = {
    "citing": np.int32,
    "cited": np.int32,
    "intents": np.uint8,
    "strength": np.float32,
    "influential": np.bool_,
}
REFERENCE_COLUMNS = {
    "citing": np.int32,
    "key": np.uint64,
    "intents": np.uint8,
    "strength": np.float32,
    "influential": np.bool_,
}
