"""An open index of papers: one row per paper, found by id and citation, while others may change the folder.

    index/
      state.json         which segments count now, and which of their papers are deleted: `state.py`
      segments/          papers with all that is shown of them and searched: `segment.py`
      heads/             the model's aspect heads, so that a text can be projected into the same spaces

    index = Index.open("index/")
    row = index.row("doi:10.1/x")
    index.paper(row).abstract, index.references(row), index.hit(row, score=0.5)

A row of the index is a row of its concatenated segments, deleted papers included. A key is `hash_texts` of an id. An open
index stays as it was while others change the folder: `index.fresh()` is the index as it is now. Holds all it shows: the
corpus may move. Does not search (`nearest.py`, `words.py`, `answer.py`) and does not change (`build.py`, `update.py`).
"""

from __future__ import annotations

import difflib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import ArtifactError, UserError, choose
from citeweave.core.hash_keys import Keys, hash_texts
from citeweave.corpus.corpus import LOCAL, STUB, lines
from citeweave.corpus.text import sentence_texts
from citeweave.encoders.aspects import ALL, AspectHeads, find_heads
from citeweave.encoders.runtimes import AUTO, runtime_of
from citeweave.search.segment import HAS_VECTOR, Segment, parse_provenance
from citeweave.search.state import HEADS, SEGMENTS, STATE, IndexState, damaged_index, read_deleted, read_state
from citeweave.vectors.topk import Codes
from citeweave.vectors.vectors import id_keys

_TRIES = 5
_MAX_NEAR_IDS, _AROUND = 3, 200
"""Ids that a message suggests, and ids before and behind the place of an unknown one that are compared with it."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A paper of an open index, by its row, with its score in a search."""

    id: str
    title: str
    year: int | None
    score: float
    """A cosine unless the search says otherwise; higher is better."""

    row: int

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id, "title": self.title, "year": self.year, "score": self.score, "row": self.row}


@dataclass(frozen=True, slots=True)
class IndexedPaper:
    """The complete record of a paper in an open index."""

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
    """Further metadata of the source, as JSON."""

    @property
    def extra(self) -> dict[str, Any]:
        """Further metadata of an indexed paper from its source; empty where it cannot be parsed."""
        try:
            metadata = json.loads(self.extra_json or "{}")
        except (ValueError, RecursionError):
            return {}
        return metadata if isinstance(metadata, dict) else {}


class IndexedPapers:
    """Papers of an open index: its segments as rows of one table, deleted papers included; the part that needs no vectors."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = tuple(segments)
        sizes = [segment.size for segment in segments]
        self.starts: NDArray[np.int64] = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        """First row of every segment, and the number of rows, (segments + 1,)."""
        self.size = int(self.starts[-1])
        self._starts = self.starts.tolist()  # a list is faster for single rows

    @cached_property
    def alive(self) -> NDArray[np.bool_]:
        """Rows whose papers are not deleted, (size,)."""
        return _join_masks([segment.alive for segment in self.segments])

    @cached_property
    def years(self) -> NDArray[np.int16]:
        """Year of every row, 0 where unknown, (size,)."""
        return np.concatenate([np.empty(0, np.int16), *(segment.years for segment in self.segments)])

    def place(self, row: int) -> tuple[Segment, int]:
        """Return the segment that holds a row of the index, and the row within that segment."""
        if not 0 <= row < self.size:
            raise IndexError(row)
        segment = self.segments[bisect_right(self._starts, row) - 1]
        return segment, row - segment.start

    def id(self, row: int) -> str:
        """Return the id of the paper in a row."""
        segment, at = self.place(row)
        return segment.ids[at]

    def title(self, row: int) -> str:
        segment, at = self.place(row)
        return segment.titles[at]

    def year(self, row: int) -> int:
        """Return the year of the paper in a row, 0 where it is unknown."""
        segment, at = self.place(row)
        return int(segment.years[at])

    def paper(self, row: int) -> IndexedPaper:
        """Return the complete record of the paper in a row of the index."""
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
        """Return the paper in a row of the index as a hit with this score."""
        segment, at = self.place(row)
        return Hit(segment.ids[at], segment.titles[at], int(segment.years[at]) or None, score, row)

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of every id, -1 where no live paper has it."""
        return self.rows_of_keys(id_keys(ids))

    def rows_of_keys(self, keys: Keys) -> NDArray[np.int64]:
        """Return the row in the index of the live paper that has an id with each key, -1 where none has."""
        result = np.full(len(keys), -1, np.int64)
        for segment in reversed(self.segments):  # what was written last counts
            missing = np.flatnonzero(result < 0)
            rows = segment.rows_of(np.asarray(keys, np.uint64)[missing])
            known = rows >= 0
            known[known] = segment.alive[rows[known]]
            result[missing[known]] = segment.start + rows[known]
        return result

    def key_of(self, row: int) -> np.uint64:
        """Return the key of the own id of the paper in a row."""
        segment, at = self.place(row)
        return np.uint64(segment.keys[at])

    def keys_of(self, rows: NDArray[Any]) -> Keys:
        """Return the keys of the own ids of the papers in some rows."""
        keys = np.empty(len(rows), np.uint64)
        for segment, at, own in self.split(rows):
            keys[at] = segment.keys[own]
        return keys

    def references(self, row: int) -> Keys:
        """Return the keys of the papers that a paper cites, ascending; those in the index by their own id."""
        segment, at = self.place(row)
        return self._own_keys(segment.references(at))

    def citing(self, key: np.uint64 | int) -> NDArray[np.int64]:
        """Return the rows of the index's live papers that cite the paper with this key, by any of its ids; ascending."""
        keys = [np.uint64(key)]
        row = int(self.rows_of_keys(np.array(keys, np.uint64))[0])
        if row >= 0:
            segment, at = self.place(row)
            names = [segment.ids[at], *lines(segment.other_ids[at])]
            keys = list({*keys, *hash_texts(names).tolist()})
        citing = [np.empty(0, np.int64)]
        for segment in self.segments:
            for each in keys:
                rows = segment.citing(np.uint64(each))
                citing.append(segment.start + rows[segment.alive[rows]].astype(np.int64))
        return np.unique(np.concatenate(citing))

    def _own_keys(self, keys: Keys) -> Keys:
        """Replace keys of any id of a paper by those of its own id; distinct and ascending."""
        rows = self.rows_of_keys(keys)
        known = rows >= 0
        own = np.array(keys)
        own[known] = self.keys_of(rows[known])
        return np.unique(own)

    def sentence_texts(self, row: int) -> list[str]:
        """Return the sentences of a paper's abstract, or its title where it has none."""
        segment, at = self.place(row)
        return sentence_texts(segment.abstracts[at]) or [text for text in [segment.titles[at]] if text]

    def split(self, rows: NDArray[Any]) -> list[tuple[Segment, NDArray[np.int64], NDArray[np.int64]]]:
        """Split rows of the index by segment: the segment, places in `rows`, and rows within the segment."""
        rows = np.asarray(rows, np.int64)
        if len(rows) and (rows.min() < 0 or rows.max() >= self.size):
            raise IndexError(f"a row is outside 0 to {self.size - 1}")
        owner = np.searchsorted(self.starts, rows, side="right") - 1  # number of the segment, (rows,)
        parts = []
        for number in np.unique(owner).tolist():
            at = np.flatnonzero(owner == number)
            parts.append((self.segments[number], at, rows[at] - self.starts[number]))
        return parts


class Index(IndexedPapers):
    """A searchable index of papers as it was when opened, memory-mapped."""

    def __init__(self, folder: Path, state: IndexState, segments: Sequence[Segment], stamp: tuple[int, ...]) -> None:
        super().__init__(segments)
        self.folder, self.state, self._stamp = folder, state, stamp
        self._living = sum(entry.papers - entry.deleted for entry in state.segments)
        facts = state.facts
        try:
            self.model, runtime = str(facts["model_path"]), str(facts["runtime"])
            """Where the model was when the index was made."""
            self.corpus, self.aspects = str(facts["corpus"]), tuple(str(name) for name in facts["aspects"])
        except (KeyError, TypeError):
            raise ArtifactError(f"{folder}/{STATE} does not describe an index; build it again") from None
        self.provenance = parse_provenance(facts.get("provenance"), folder)
        """Provenance of all vectors; None where the index has words only."""
        self.any_runtime = runtime == AUTO
        """Whether texts may be encoded by another runtime than the papers were, where that one does not run."""
        self.runtime = runtime_of(self.provenance.revision) if self.any_runtime and self.provenance else runtime
        """The runtime that computes the model."""
        self._check_segments()

    @classmethod
    def open(cls, folder: str | Path) -> Index:
        """Open the current state of an index folder, even while a writer changes it."""
        return _open_current(Path(folder), {})

    def __len__(self) -> int:
        return self._living

    def __repr__(self) -> str:
        by = self.provenance.label if self.provenance else "words"
        return f"Index({str(self.folder)!r}: {len(self):,} papers by {by})"

    @property
    def number(self) -> int:
        """Number of the state, which grows with every change."""
        return self.state.number

    def is_current(self) -> bool:
        """Return whether no newer state of the index was published since it was opened."""
        return _stamp(self.folder) == self._stamp

    def fresh(self) -> Index:
        """Return the index as it is now: itself, or opened again, sharing the segments that are still in use."""
        if self.is_current():
            return self
        known = {(segment.name, segment.manifest.hash): segment for segment in self.segments}
        return _open_current(self.folder, known)

    @cached_property
    def with_vector(self) -> NDArray[np.bool_]:
        """Rows of live papers that have a vector, (size,)."""
        return _join_masks([segment.with_vector for segment in self.segments])

    @cached_property
    def with_sentences(self) -> NDArray[np.bool_]:
        """Rows of live papers whose abstracts have sentence vectors, (size,)."""
        return _join_masks([segment.with_sentences for segment in self.segments])

    @cached_property
    def heads(self) -> AspectHeads | None:
        """The aspect heads of the open index's model, None where it has none."""
        if not self.aspects:
            return None
        # an absolute path, as a bare name may be that of a model
        heads = find_heads((self.folder / HEADS / str(self.state.facts.get("heads", ""))[:16]).resolve())
        if heads is None or heads.names != self.aspects or heads.hash != self.state.facts.get("heads"):
            raise ArtifactError(f"{self.folder}/{HEADS} does not fit the state; build the index again")
        return heads

    @cached_property
    def known_intents(self) -> int:
        """Bits of the intents with which some live paper of the open index is known to be cited."""
        bits = 0
        for segment in self.segments:
            cited = segment.cited_as[segment.alive].any(axis=0)  # (8,)
            bits |= sum(1 << bit for bit in np.flatnonzero(cited).tolist())
            table = segment.citing_sentences
            if table is not None:
                bits |= int(np.bitwise_or.reduce(table.intents[segment.alive[table.paper]], initial=0))
        return bits

    def row(self, id: str) -> int:
        """Return the row of the index of a paper by any of its ids; an unknown id is refused with ids that look like it."""
        row = int(self.rows([id])[0])
        if row < 0:
            near = _suggest_ids([(segment.ids, segment.alive) for segment in self.segments], id)
            papers = "1 paper" if len(self) == 1 else f"{len(self):,} papers"
            raise UserError(f"paper {id!r} is not in {self.folder}, which has {papers}{near}")
        return row

    def check_aspect(self, aspect: str) -> None:
        """Refuse an aspect that the open index does not have; the empty name is the encoder's own space."""
        if aspect and not self.aspects:
            by = self.provenance.model if self.provenance else self.model
            raise UserError(
                f"--aspect is {aspect!r}, but {by}, the model of this index, has no aspect "
                "heads; leave it out, or train one that has with `citeweave run sciaspect_hybrid` and index with it"
            )
        if aspect:
            choose(aspect, (*self.aspects, ALL), "--aspect")

    def spaces(self, segment: Segment, aspect: str) -> list[NDArray[Any]]:
        """Return matrices (papers, dimension) that side by side are the open index's vectors of a segment in a space."""
        self.check_aspect(aspect)
        assert segment.matrix is not None
        if not aspect:
            return [segment.matrix]
        names = self.aspects if aspect == ALL else (aspect,)
        return [segment.spaces[self.aspects.index(name)] for name in names]

    def codes(self, segment: Segment, aspect: str) -> Codes | None:
        """Return a segment's quantized codes in a space; None where it is small, or for several spaces side by side."""
        if aspect == ALL:
            return None
        return segment.space_codes[self.aspects.index(aspect)] if aspect else segment.codes

    def take(self, rows: NDArray[Any], aspect: str = "") -> NDArray[np.float32]:
        """Return the open index's vectors of the papers in these rows in a space, (rows, dimension); all must have one."""
        self.check_aspect(aspect)
        if self.provenance is None:
            raise UserError(f"{self.folder} has no vectors yet; make them with `citeweave change {self.folder} --fill`")
        width = self.heads.dimension(aspect) if aspect and self.heads else self.provenance.dimension
        vectors = np.zeros((len(rows), width), np.float32)
        for segment, at, own in self.split(rows):
            bad = np.flatnonzero(segment.embedded[own] != HAS_VECTOR)
            if len(bad):
                self._refuse_without_vector(segment, int(own[bad[0]]))
            parts = [np.asarray(part[own], np.float32) for part in self.spaces(segment, aspect)]
            vectors[at] = np.concatenate(parts, axis=1)
        return vectors

    def sentence_vectors(self, row: int) -> NDArray[Any] | None:
        """Return the sentence vectors of a paper's abstract, (sentences, dimension); None where it has none."""
        segment, at = self.place(row)
        if segment.sentences is None or segment.sentences.offsets[at] == segment.sentences.offsets[at + 1]:
            return None
        return segment.sentences.sentences(at)

    def sentence_numbers(self, row: int) -> NDArray[np.int32]:
        """Return which of a paper's `sentence_texts` each row of its `sentence_vectors` is."""
        segment, at = self.place(row)
        if segment.sentences is None:
            return np.empty(0, np.int32)
        return np.asarray(segment.sentences.numbers[slice(*segment.sentences.offsets[at : at + 2])])

    def _refuse_without_vector(self, segment: Segment, row: int) -> None:
        why = "as it has no text" if segment.embedded[row] else f"yet; `citeweave change {self.folder} --fill` makes it"
        raise UserError(f"paper {segment.ids[row]!r} has no vector in {self.folder}, {why}; search with another paper")

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


def _open_current(folder: Path, known: dict[tuple[str, str], Segment]) -> Index:
    """Open the current state of an index; where a writer removes a segment meanwhile, the state after it."""
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
    """Return what changes when another state of the index is published."""
    try:
        status = (folder / STATE).stat()
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _join_masks(parts: list[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Concatenate masks of segments into a read-only mask of the index."""
    mask = np.concatenate([np.empty(0, bool), *parts])
    mask.flags.writeable = False
    return mask


def _suggest_ids(segments: Iterable[tuple[Sequence[str], NDArray[np.bool_]]], id: str) -> str:
    """Return the end of a message about an unknown id: ids of the index that look like it.

    Of every segment its sorted ids, and which of them are alive; only those around the place of the id are compared.
    """
    around: list[str] = []
    for ids, alive in segments:
        place = bisect_left(ids, id)
        low, high = max(0, place - _AROUND), min(len(ids), place + _AROUND)
        around += [known for known, is_alive in zip(ids[low:high], alive[low:high].tolist(), strict=True) if is_alive]
    near = difflib.get_close_matches(id[:200], around, _MAX_NEAR_IDS)
    if near:
        return f"; did you mean {', '.join(map(repr, near))}?"
    return f" with ids such as {min(around)!r}" if around else ""
