"""An index: papers that can be found by their vectors, words, ids and references; a folder that changes.

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

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.encoders.aspects import ALL, AspectHeads, find_heads
from citeweave.encoders.runtimes import AUTO, runtime_of
from citeweave.errors import ArtefactError, UserError, choose
from citeweave.search.indexed import Hit, IndexedPaper, IndexedPapers, joined
from citeweave.search.near_ids import near_ids
from citeweave.search.segment import HAS_VECTOR, Segment, provenance_of
from citeweave.search.state import HEADS, SEGMENTS, STATE, State, damaged_index, read_deleted, read_state
from citeweave.similarity.topk import Codes

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
            raise ArtefactError(f"{folder}/{STATE} does not describe an index; build it again") from None
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
            raise ArtefactError(f"{self.folder}/{HEADS} does not fit the state; build the index again")
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
                raise ArtefactError(f"{segment.folder} does not fit {self.folder}/{STATE}; build the index again")
            try:
                self.provenance.check_same(segment.provenance)
            except UserError as error:
                raise ArtefactError(f"{segment.folder} is not of this index: {error}") from None


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
                    raise ArtefactError(
                        f"{segment.folder} is another segment than {folder}/{STATE} names; build the index again"
                    )
                segments.append(segment.placed(start, read_deleted(folder, entry, state.lists)))
                start += segment.size
            return Index(folder, state, segments, stamp)
        except (ArtefactError, OSError) as error:
            if last or _stamp(folder) == stamp:
                raise damaged_index(folder, error) if isinstance(error, ArtefactError) else error from None
    raise AssertionError


def _stamp(folder: Path) -> tuple[int, ...]:
    """What changes when another state is published."""
    try:
        found = (folder / STATE).stat()
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size
