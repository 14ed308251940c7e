"""Papers of several segments as rows of one table: what is shown of them, their ids, and who cites whom.

    papers = IndexedPapers(segments)
    papers.paper(7).title, papers.rows(["doi:10.1/x"]), papers.citing(papers.key_of(7))

The part of an index that needs no vectors and no files; `index.py` has the rest. A key is `hash_texts` of an id.

An index: papers that can be found by their vectors, words, ids and references; a folder that changes.

    index/
      state.json         which segments count now, and which of their papers are gone: `state.py`
      segments/          papers with all that is shown of them and searched in: `segment.py`
      heads/             the model's aspect heads, so that a text finds its way into the same spaces

    index = Index.open("index/")
    row = index.row("doi:10.1/x")
    index.paper(row).abstract, index.references(row), index.hit(row, score=0.5)

A row of the index is a place in its segments one behind the other, deleted papers included. What was opened stays as it
was while others change the folder: `index.fresh()` is the index as it is now. Carries all it shows: the corpus may move.
Does not search (`exact.py`, `searching.py`) and does not change anything (`building.py`, `changing.py`).
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import ArtifactError, UserError, choose
from citeweave.core.randomness import Keys, hash_texts
from citeweave.corpus.corpus import LOCAL, STUB, lines
from citeweave.corpus.text import sentence_texts
from citeweave.encoders.aspects import ALL, AspectHeads, find_heads
from citeweave.encoders.runtimes import AUTO, runtime_of
from citeweave.search.query import near_ids
from citeweave.search.segment import HAS_VECTOR, Segment, provenance_of
from citeweave.search.state import HEADS, SEGMENTS, STATE, State, damaged_index, read_deleted, read_state
from citeweave.vectors.topk import Codes
from citeweave.vectors.vectors import id_keys


@dataclass(frozen=True, slots=True)
class Hit:
    """A paper that was found."""

    id: str
    title: str
    year: int | None
    score: float
    """A cosine unless the search says otherwise; higher is better."""

    row: int
    """Of the index."""

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id, "title": self.title, "year": self.year, "score": self.score, "row": self.row}


@dataclass(frozen=True, slots=True)
class IndexedPaper:
    """All that an index knows of a paper."""

    row: int
    id: str
    title: str
    abstract: str
    year: int | None
    venue: str
    authors: tuple[str, ...]
    fields: tuple[str, ...]
    ids: tuple[str, ...]
    """Further ids."""

    local_id: bool = False
    """The id is a name inside one file."""

    stub: bool = False
    """Known only as a reference of other papers."""

    extra_json: str = ""
    """What else the source tells, as JSON."""

    @property
    def extra(self) -> dict[str, Any]:
        """What else the source tells; empty where that cannot be read."""
        try:
            told = json.loads(self.extra_json or "{}")
        except (ValueError, RecursionError):
            return {}
        return told if isinstance(told, dict) else {}


class IndexedPapers:
    """The rows of segments one behind the other, deleted papers included."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = tuple(segments)
        sizes = [segment.size for segment in segments]
        self.starts: NDArray[np.int64] = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        """First row of every segment, and the number of rows, (segments + 1,)."""
        self.size = int(self.starts[-1])
        self._starts = self.starts.tolist()  # asked for row by row

    @cached_property
    def alive(self) -> NDArray[np.bool_]:
        """Rows whose papers are not deleted, (size,)."""
        return joined([segment.alive for segment in self.segments])

    @cached_property
    def years(self) -> NDArray[np.int16]:
        """Year of every row, 0 where unknown, (size,)."""
        return np.concatenate([np.empty(0, np.int16), *(segment.years for segment in self.segments)])

    def place(self, row: int) -> tuple[Segment, int]:
        """The segment of a row, and the row there."""
        if not 0 <= row < self.size:
            raise IndexError(row)
        segment = self.segments[bisect_right(self._starts, row) - 1]
        return segment, row - segment.start

    def id(self, row: int) -> str:
        segment, at = self.place(row)
        return segment.ids[at]

    def title(self, row: int) -> str:
        segment, at = self.place(row)
        return segment.titles[at]

    def year(self, row: int) -> int:
        """0 where it is not known."""
        segment, at = self.place(row)
        return int(segment.years[at])

    def paper(self, row: int) -> IndexedPaper:
        segment, at = self.place(row)
        flags = int(segment.flags[at])
        return IndexedPaper(
            row=row,
            id=segment.ids[at],
            title=segment.titles[at],
            abstract=segment.abstracts[at],
            year=int(segment.years[at]) or None,
            venue=segment.venues[at],
            authors=lines(segment.authors[at]),
            fields=lines(segment.fields[at]),
            ids=lines(segment.other_ids[at]),
            local_id=bool(flags & LOCAL),
            stub=bool(flags & STUB),
            extra_json=segment.extras[at],
        )

    def hit(self, row: int, score: float) -> Hit:
        segment, at = self.place(row)
        return Hit(segment.ids[at], segment.titles[at], int(segment.years[at]) or None, score, row)

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The row of every id, -1 where no living paper has it."""
        return self.rows_of_keys(id_keys(ids))

    def rows_of_keys(self, keys: Keys) -> NDArray[np.int64]:
        """The row of the paper that has an id with this key, -1 where none has."""
        found = np.full(len(keys), -1, np.int64)
        for segment in reversed(self.segments):  # what was written last counts
            open_ = np.flatnonzero(found < 0)
            rows = segment.rows_of(np.asarray(keys, np.uint64)[open_])
            known = rows >= 0
            known[known] = segment.alive[rows[known]]
            found[open_[known]] = segment.start + rows[known]
        return found

    def key_of(self, row: int) -> np.uint64:
        """The key of a paper's own id."""
        segment, at = self.place(row)
        return np.uint64(segment.keys[at])

    def keys_of(self, rows: NDArray[Any]) -> Keys:
        """The keys of several papers' own ids."""
        found = np.empty(len(rows), np.uint64)
        for segment, at, own in self.split(rows):
            found[at] = segment.keys[own]
        return found

    def references(self, row: int) -> Keys:
        """Keys of the papers that a paper cites, ascending; those in the index by their own id."""
        segment, at = self.place(row)
        return self._own_keys(segment.references(at))

    def citing(self, key: np.uint64 | int) -> NDArray[np.int64]:
        """Rows of the living papers that cite the paper with this key, whichever of its ids they name; ascending."""
        keys = [np.uint64(key)]
        row = int(self.rows_of_keys(np.array(keys, np.uint64))[0])
        if row >= 0:
            segment, at = self.place(row)
            names = [segment.ids[at], *lines(segment.other_ids[at])]
            keys = list({*keys, *hash_texts(names).tolist()})
        found = [np.empty(0, np.int64)]
        for segment in self.segments:
            for each in keys:
                rows = segment.citing(np.uint64(each))
                found.append(segment.start + rows[segment.alive[rows]].astype(np.int64))
        return np.unique(np.concatenate(found))

    def _own_keys(self, keys: Keys) -> Keys:
        """Keys of any id of a paper -> those of its own id, distinct and ascending."""
        rows = self.rows_of_keys(keys)
        known = rows >= 0
        found = np.array(keys)
        found[known] = self.keys_of(rows[known])
        return np.unique(found)

    def sentence_texts(self, row: int) -> list[str]:
        """The sentences of a paper's abstract, or its title where it has none."""
        segment, at = self.place(row)
        return sentence_texts(segment.abstracts[at]) or [text for text in [segment.titles[at]] if text]

    def split(self, rows: NDArray[Any]) -> list[tuple[Segment, NDArray[np.int64], NDArray[np.int64]]]:
        """Rows by segment: the segment, places in `rows`, and rows of the segment."""
        rows = np.asarray(rows, np.int64)
        if len(rows) and (rows.min() < 0 or rows.max() >= self.size):
            raise IndexError(f"a row outside of 0 to {self.size - 1}")
        of = np.searchsorted(self.starts, rows, side="right") - 1
        found = []
        for number in np.unique(of).tolist():
            at = np.flatnonzero(of == number)
            found.append((self.segments[number], at, rows[at] - self.starts[number]))
        return found


def joined(parts: list[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Masks of segments as one of the index."""
    found = np.concatenate([np.empty(0, bool), *parts])
    found.flags.writeable = False
    return found


# An index: papers that can be found by their vectors, words, ids and references; a folder that changes.

__all__ = ["Hit", "Index", "IndexedPaper"]

_TRIES = 5


class Index(IndexedPapers):
    """An index as it was when it was opened, memory-mapped."""

    def __init__(self, folder: Path, state: State, segments: Sequence[Segment], stamp: tuple[int, ...]) -> None:
        super().__init__(segments)
        self.folder, self.state, self._stamp = folder, state, stamp
        self._living = sum(entry.papers - entry.deleted for entry in state.segments)
        facts = state.facts
        try:
            self.model, asked = str(facts["model_path"]), str(facts["runtime"])
            """Where the model was when the index was made."""
            self.corpus, self.aspects = str(facts["corpus"]), tuple(str(name) for name in facts["aspects"])
        except (KeyError, TypeError):
            raise ArtifactError(f"{folder}/{STATE} does not describe an index; build it again") from None
        self.provenance = provenance_of(facts.get("provenance"), folder)
        """Of all vectors; None where the index has words only."""
        self.any_runtime = asked == AUTO
        """Whether texts may be read by another runtime than papers were, where that one does not run."""
        self.runtime = runtime_of(self.provenance.revision) if self.any_runtime and self.provenance else asked
        """What computes the model."""
        self._check_segments()

    @classmethod
    def open(cls, folder: str | Path) -> Index:
        """Open the state of this moment, also while a writer works."""
        return _opened(Path(folder), {})

    def __len__(self) -> int:
        return self._living

    def __repr__(self) -> str:
        by = self.provenance.label if self.provenance else "words"
        return f"Index({str(self.folder)!r}: {len(self):,} papers by {by})"

    @property
    def number(self) -> int:
        """Of the state: another one for every change."""
        return self.state.number

    def is_current(self) -> bool:
        """Whether no other state was published since."""
        return _stamp(self.folder) == self._stamp

    def fresh(self) -> Index:
        """The index as it is now: itself, or opened again; segments that are still there are shared."""
        if self.is_current():
            return self
        known = {(segment.name, segment.manifest.hash): segment for segment in self.segments}
        return _opened(self.folder, known)

    @cached_property
    def with_vector(self) -> NDArray[np.bool_]:
        """Living rows that have a vector, (size,)."""
        return joined([segment.with_vector for segment in self.segments])

    @cached_property
    def with_sentences(self) -> NDArray[np.bool_]:
        """Living rows whose abstract's sentences have vectors, (size,)."""
        return joined([segment.with_sentences for segment in self.segments])

    @cached_property
    def heads(self) -> AspectHeads | None:
        """The model's aspect heads, None where it has none."""
        if not self.aspects:
            return None
        # a whole path, as a bare name may be that of a model
        found = find_heads((self.folder / HEADS / str(self.state.facts.get("heads", ""))[:16]).resolve())
        if found is None or found.names != self.aspects or found.hash != self.state.facts.get("heads"):
            raise ArtifactError(f"{self.folder}/{HEADS} does not fit the state; build the index again")
        return found

    @cached_property
    def known_intents(self) -> int:
        """Bits of the intents with which some living paper is known to be cited."""
        found = 0
        for segment in self.segments:
            cited = segment.cited_as[segment.alive].any(axis=0)  # (8,)
            found |= sum(1 << bit for bit in np.flatnonzero(cited).tolist())
            table = segment.citing_sentences
            if table is not None:
                found |= int(np.bitwise_or.reduce(table.intents[segment.alive[table.paper]], initial=0))
        return found

    def row(self, id: str) -> int:
        """The row of a paper by any of its ids."""
        row = int(self.rows([id])[0])
        if row < 0:
            near = near_ids([(segment.ids, segment.alive) for segment in self.segments], id)
            papers = "1 paper" if len(self) == 1 else f"{len(self):,} papers"
            raise UserError(f"paper {id!r} is not in {self.folder}, which has {papers}{near}")
        return row

    def check_aspect(self, aspect: str) -> None:
        """Refuse a space that the index does not have; the empty name is the encoder's own."""
        if aspect and not self.aspects:
            by = self.provenance.model if self.provenance else self.model
            raise UserError(
                f"--aspect is {aspect!r}, but {by}, the model of this index, has no aspect "
                "heads; leave it out, or train one that has with `citeweave run sciaspect_hybrid` and index with it"
            )
        if aspect:
            choose(aspect, (*self.aspects, ALL), "--aspect")

    def spaces(self, segment: Segment, aspect: str) -> list[NDArray[Any]]:
        """Matrices (papers, dimension) of a segment that side by side are its vectors of a space; it must have some."""
        self.check_aspect(aspect)
        assert segment.matrix is not None
        if not aspect:
            return [segment.matrix]
        names = self.aspects if aspect == ALL else (aspect,)
        return [segment.spaces[self.aspects.index(name)] for name in names]

    def codes(self, segment: Segment, aspect: str) -> Codes | None:
        """For a quick scan of a segment in a space; None where it is small, or several spaces stand side by side."""
        if aspect == ALL:
            return None
        return segment.space_codes[self.aspects.index(aspect)] if aspect else segment.codes

    def take(self, rows: NDArray[Any], aspect: str = "") -> NDArray[np.float32]:
        """Vectors of these papers in a space, (rows, dimension); all must have one."""
        self.check_aspect(aspect)
        if self.provenance is None:
            raise UserError(f"{self.folder} has no vectors yet; make them with `citeweave change {self.folder} --fill`")
        width = self.heads.dimension(aspect) if aspect and self.heads else self.provenance.dimension
        found = np.zeros((len(rows), width), np.float32)
        for segment, at, own in self.split(rows):
            bad = np.flatnonzero(segment.embedded[own] != HAS_VECTOR)
            if len(bad):
                self._no_vector(segment, int(own[bad[0]]))
            parts = [np.asarray(part[own], np.float32) for part in self.spaces(segment, aspect)]
            found[at] = np.concatenate(parts, axis=1)
        return found

    def sentence_vectors(self, row: int) -> NDArray[Any] | None:
        """Vectors of the sentences of a paper's abstract, (sentences, dimension); None where there are none."""
        segment, at = self.place(row)
        if segment.sentences is None or segment.sentences.offsets[at] == segment.sentences.offsets[at + 1]:
            return None
        return segment.sentences.sentences(at)

    def sentence_numbers(self, row: int) -> NDArray[np.int32]:
        """Which of `sentence_texts` the rows of `sentence_vectors` are."""
        segment, at = self.place(row)
        if segment.sentences is None:
            return np.empty(0, np.int32)
        return np.asarray(segment.sentences.numbers[slice(*segment.sentences.offsets[at : at + 2])])

    def _no_vector(self, segment: Segment, row: int) -> None:
        why = "as it has no text" if segment.embedded[row] else f"yet; `citeweave change {self.folder} --fill` makes it"
        raise UserError(f"paper {segment.ids[row]!r} has no vector in {self.folder}, {why}; ask with another paper")

    def _check_segments(self) -> None:
        for segment in self.segments:
            if segment.provenance is None:
                continue
            if self.provenance is None or len(segment.spaces) != len(self.aspects):
                raise ArtifactError(f"{segment.folder} does not fit {self.folder}/{STATE}; build the index again")
            try:
                self.provenance.check_same(segment.provenance)
            except UserError as error:
                raise ArtifactError(f"{segment.folder} is not of this index: {error}") from None


def _opened(folder: Path, known: dict[tuple[str, str], Segment]) -> Index:
    """Open the current state; where a writer removes a segment under our hands, the state after it."""
    for last in (*[False] * (_TRIES - 1), True):
        stamp = _stamp(folder)
        state = read_state(folder)
        try:
            segments, start = [], 0
            for entry in state.segments:
                segment = known.get((entry.name, entry.hash)) or Segment.open(folder / SEGMENTS / entry.name)
                if segment.manifest.hash != entry.hash or segment.size != entry.papers:
                    raise ArtifactError(
                        f"{segment.folder} is another segment than {folder}/{STATE} names; build the index again"
                    )
                segments.append(segment.placed(start, read_deleted(folder, entry, state.lists)))
                start += segment.size
            return Index(folder, state, segments, stamp)
        except (ArtifactError, OSError) as error:
            if last or _stamp(folder) == stamp:
                raise damaged_index(folder, error) if isinstance(error, ArtifactError) else error from None
    raise AssertionError


def _stamp(folder: Path) -> tuple[int, ...]:
    """What changes when another state is published."""
    try:
        found = (folder / STATE).stat()
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size
