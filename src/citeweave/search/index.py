"""An open index of papers: one row per paper, found by id, citation and vector, while others may change the folder.

    index/
      state.json          which generation counts now: `state.py`
      generations/        the papers with all that is shown of them and searched: `index_columns.py`
      maps/               maps of the papers: `map.py`

    index = Index.open("index/")
    row = index.row("doi:10.1/x")
    index.paper(row).abstract, index.references(row), index.hit(row, score=0.5)

Rows stand in the order of the ids' UTF-8 bytes. A key is `hash_texts` of an id. A change builds the
next generation (`build.py`, `update.py`). An open index stays as it was; `index.fresh()` is the index as it
is now. Holds all it shows: the corpus may move. Does not search (`nearest.py`, `words.py`, `answer.py`).
"""

from __future__ import annotations

import difflib
import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import MANIFEST, Manifest, check_files
from citeweave.core.errors import ArtifactError, UserError, choose
from citeweave.core.hash_keys import Keys, hash_texts
from citeweave.corpus.corpus import LOCAL, STUB, lines
from citeweave.corpus.paper import OutsideName
from citeweave.corpus.text import sentence_texts
from citeweave.encoders.aspects import ALL, AspectHeads, find_heads
from citeweave.encoders.runtimes import AUTO, runtime_of
from citeweave.search.index_columns import HAS_VECTOR, HEADS, IndexColumns
from citeweave.search.query import Hit
from citeweave.search.state import GENERATIONS, STATE, IndexState, damaged_index, read_generation, read_state
from citeweave.vectors.topk import Codes
from citeweave.vectors.vectors import id_keys

_TRIES = 5
_MAX_NEAR_IDS, _AROUND = 3, 200
"""Ids that a message suggests, and ids before and behind the place of an unknown one that are compared with it."""


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


class Index(IndexColumns):
    """A searchable index of papers as it was when opened."""

    def __init__(self, folder: Path, state: IndexState, manifest: Manifest, stamp: tuple[int, ...]) -> None:
        super().__init__(folder / GENERATIONS / state.generation, manifest)
        self.folder, self.number, self._stamp, facts = folder, state.number, stamp, manifest.facts
        """Folder of the index, and number of its generation, which grows with every change."""
        try:
            self.model, runtime = str(facts["model_path"]), str(facts["runtime"])
            """Where the model was when the index was made."""
            self.corpus, self.aspects = str(facts["corpus"]), tuple(str(name) for name in facts["aspects"])
        except (KeyError, TypeError):
            raise ArtifactError(f"{self.place / MANIFEST} does not describe an index; build it again") from None
        self._require(self.provenance is None or len(self.aspect_matrices) == len(self.aspects))
        self.any_runtime = runtime == AUTO
        """Whether texts may be encoded by another runtime than the papers were, where that one does not run."""
        self.runtime = runtime_of(self.provenance.revision) if self.any_runtime and self.provenance else runtime
        """The runtime that computes the model."""

    @classmethod
    def open(cls, folder: str | Path) -> Index:
        """Open the current generation of an index, even while a change publishes the next one."""
        folder = Path(folder)
        for last in (*[False] * (_TRIES - 1), True):
            stamp = _stamp(folder)
            state = read_state(folder)
            try:
                manifest = read_generation(folder, state)
                check_files(folder / GENERATIONS / state.generation, manifest)
                return cls(folder, state, manifest, stamp)
            except (ArtifactError, OSError) as error:
                if last or _stamp(folder) == stamp:
                    raise damaged_index(folder, error) if isinstance(error, ArtifactError) else error from None
        raise AssertionError

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        by = self.provenance.label if self.provenance else "words"
        return f"Index({str(self.folder)!r}: {len(self):,} papers by {by})"

    def is_current(self) -> bool:
        """Return whether no newer generation of the index was published since it was opened."""
        return _stamp(self.folder) == self._stamp

    def fresh(self) -> Index:
        """Return the index as it is now: itself, or its newest generation."""
        return self if self.is_current() else Index.open(self.folder)

    # papers

    def id(self, row: int) -> str:
        """Return the id of the paper in a row."""
        return self.ids[row]

    def title(self, row: int) -> str:
        return self.titles[row]

    def year(self, row: int) -> int:
        """Return the year of the paper in a row, 0 where it is unknown."""
        return int(self.years[row])

    def paper(self, row: int) -> IndexedPaper:
        """Return the complete record of the paper in a row of the index."""
        flags = int(self.flags[row])
        return IndexedPaper(
            row=row,
            id=self.ids[row],
            title=self.titles[row],
            abstract=self.abstracts[row],
            year=int(self.years[row]) or None,
            venue=self.venues[row],
            authors=lines(self.authors[row]),
            fields=lines(self.fields[row]),
            ids=lines(self.other_ids[row]),
            local_id=bool(flags & LOCAL),
            stub=bool(flags & STUB),
            extra_json=self.extras[row],
        )

    def hit(self, row: int, score: float) -> Hit:
        """Return the paper in a row of the index as a hit with this score."""
        return Hit(self.ids[row], self.titles[row], int(self.years[row]) or None, score, row)

    def row(self, id: str) -> int:
        """Return the row of the index of a paper by any of its ids; an unknown id is refused with ids that look like it."""
        row = int(self.rows([id])[0])
        if row < 0:
            papers = "1 paper" if len(self) == 1 else f"{len(self):,} papers"
            raise UserError(f"paper {id!r} is not in {self.folder}, which has {papers}{_suggest_ids(self.ids, id)}")
        return row

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of every id, -1 where no paper has it."""
        return self.rows_of_keys(id_keys(ids))

    def rows_of_keys(self, keys: Keys) -> NDArray[np.int64]:
        """Return the row of the paper that has an id with each key, -1 where none has."""
        return self._checked(self.id_index.rows_of(np.asarray(keys, np.uint64))).astype(np.int64)

    def key_of(self, row: int) -> np.uint64:
        """Return the key of the own id of the paper in a row."""
        return np.uint64(self.keys[row])

    def keys_of(self, rows: NDArray[Any]) -> Keys:
        """Return the keys of the own ids of the papers in some rows."""
        return np.asarray(self.keys[rows])

    def sentence_texts(self, row: int) -> list[str]:
        """Return the sentences of a paper's abstract, or its title where it has none."""
        return sentence_texts(self.abstracts[row]) or [text for text in [self.titles[row]] if text]

    # citations

    def references(self, row: int) -> Keys:
        """Return the keys of the papers that a paper cites, ascending; those in the index by their own id."""
        keys = np.array(self.reference_keys[self.reference_offsets[row] : self.reference_offsets[row + 1]])
        rows = self.rows_of_keys(keys)
        keys[rows >= 0] = self.keys[rows[rows >= 0]]
        return np.unique(keys)

    def citing(self, key: np.uint64 | int) -> NDArray[np.int64]:
        """Return the rows of the papers that cite the paper with this key, by any of its ids; ascending."""
        keys = {int(key)}
        row = int(self.rows_of_keys(np.array([key], np.uint64))[0])
        if row >= 0:
            keys |= {*hash_texts([self.ids[row], *lines(self.other_ids[row])]).tolist()}
        spans = [
            np.searchsorted(self._cited, np.uint64(each), side=side) for each in keys for side in ("left", "right")
        ]
        parts = [self._citing[first:last] for first, last in zip(spans[::2], spans[1::2], strict=True)]
        return np.unique(self._checked(np.concatenate(parts))).astype(np.int64)

    def outside_name(self, key: int) -> OutsideName | None:
        """Return the name of a cited paper that the index lacks, by the key of its id."""
        return self.outside_names.find(key) if self.outside_names is not None else None

    @cached_property
    def known_intents(self) -> int:
        """Bits of the intents with which some paper of the open index is known to be cited."""
        bits = sum(1 << bit for bit in np.flatnonzero(self.cited_as.any(axis=0)).tolist())
        if self.citing_sentences is not None:
            bits |= int(np.bitwise_or.reduce(self.citing_sentences.intents, initial=0))
        return bits

    # vectors

    @cached_property
    def with_vector(self) -> NDArray[np.bool_]:
        """Rows of papers that have a vector, (size,)."""
        return np.asarray(self.embedded == HAS_VECTOR)

    @cached_property
    def with_sentences(self) -> NDArray[np.bool_]:
        """Rows of papers whose abstracts have sentence vectors, (size,)."""
        if self.sentences is None:
            return np.zeros(self.size, bool)
        return np.asarray(np.diff(self.sentences.offsets) > 0)

    @cached_property
    def heads(self) -> AspectHeads | None:
        """The aspect heads of the open index's model, None where it has none."""
        if not self.aspects:
            return None
        # an absolute path, as a bare name may be that of a model
        heads = find_heads((self.place / HEADS).resolve())
        if heads is None or heads.names != self.aspects or heads.hash != self.facts.get("heads"):
            raise ArtifactError(f"{self.place / HEADS} does not fit the index; build the index again")
        return heads

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

    def spaces(self, aspect: str) -> list[NDArray[Any]]:
        """Return matrices (papers, dimension) that side by side are the open index's vectors in a space."""
        self.check_aspect(aspect)
        assert self.matrix is not None
        if not aspect:
            return [self.matrix]
        names = self.aspects if aspect == ALL else (aspect,)
        return [self.aspect_matrices[self.aspects.index(name)] for name in names]

    def codes(self, aspect: str) -> Codes | None:
        """Return the quantized codes in a space; None where the index is small, or for several spaces side by side."""
        if aspect == ALL:
            return None
        return self.aspect_codes[self.aspects.index(aspect)] if aspect else self.matrix_codes

    def take(self, rows: NDArray[Any], aspect: str = "") -> NDArray[np.float32]:
        """Return the open index's vectors of the papers in these rows in a space, (rows, dimension); all must have one."""
        self.check_aspect(aspect)
        if self.provenance is None:
            raise UserError(f"{self.folder} has no vectors yet; make them with `citeweave change {self.folder} --fill`")
        rows = np.asarray(rows, np.int64)
        if len(rows) and (rows.min() < 0 or rows.max() >= self.size):
            raise IndexError(f"a row is outside 0 to {self.size - 1}")
        without = np.flatnonzero(~self.with_vector[rows])
        if len(without):
            self._refuse_without_vector(int(rows[without[0]]))
        return np.concatenate([np.asarray(space[rows], np.float32) for space in self.spaces(aspect)], axis=1)

    def sentence_vectors(self, row: int) -> NDArray[Any] | None:
        """Return the sentence vectors of a paper's abstract, (sentences, dimension); None where it has none."""
        if self.sentences is None or self.sentences.offsets[row] == self.sentences.offsets[row + 1]:
            return None
        return self.sentences.sentences(row)

    def sentence_numbers(self, row: int) -> NDArray[np.int32]:
        """Return which of a paper's `sentence_texts` each row of its `sentence_vectors` is."""
        if self.sentences is None:
            return np.empty(0, np.int32)
        return np.asarray(self.sentences.numbers[slice(*self.sentences.offsets[row : row + 2])])

    def _refuse_without_vector(self, row: int) -> None:
        why = "as it has no text" if self.embedded[row] else f"yet; `citeweave change {self.folder} --fill` makes it"
        raise UserError(f"paper {self.ids[row]!r} has no vector in {self.folder}, {why}; search with another paper")

    def _checked(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        # when they are used, not at opening, which would read large files completely
        self._require(not len(rows) or (int(rows.min()) >= -1 and int(rows.max()) < self.size))
        return rows


def _stamp(folder: Path) -> tuple[int, ...]:
    """Return what changes when the next generation of an index is published."""
    try:
        status = (folder / STATE).stat()
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _suggest_ids(ids: Sequence[str], id: str) -> str:
    """Return the end of a message about an unknown id: ids that look like it, of those around its place."""
    place = bisect_left(ids, id)
    around = list(ids[max(0, place - _AROUND) : min(len(ids), place + _AROUND)])
    near = difflib.get_close_matches(id[:200], around, _MAX_NEAR_IDS)
    if near:
        return f"; did you mean {', '.join(map(repr, near))}?"
    return f" with ids such as {min(around)!r}" if around else ""
