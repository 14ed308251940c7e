"""An open index of papers: one row per paper, found by id, citation and vector, while others may change the folder.

    index/
      state.json          which generation counts now: `state.py`
      maps/               maps of the papers: `map.py`
      generations/000003-1f2e3d4c/
        manifest.json       as of every artifact; its facts name the corpus, the model and the options
        papers/             id title abstract venue authors fields ids extra (texts), year flags key text_key record_key, cited_as
        ids/                from any id of a paper to its row
        references/         offsets.npy and key.npy: the papers that each paper cites, by the key of their id, ascending;
                            cited.npy and row.npy: the same the other way round, by the cited paper's key
        outside_names/      names of cited papers that the index does not have: `corpus/paper.py`
        words/              postings for search by words: `words.py`
        embedded.npy        1 = has a vector, 2 = none can be made of its text, 0 = not tried yet
        matrix.npy          the encoder's vectors, one row per paper, zeros where it has none; spaces/0.npy ... one per aspect
        abstract_sentences/ matrix.npy, offsets.npy, numbers.npy: vectors of the sentences of the abstracts
        codes/              quantized codes of a large matrix.npy: `vectors/topk`; codes/0/ ... of the spaces;
                            abstract_sentences/codes/
        sentences/          citing sentences: `citing_sentences.py`
        heads/              the model's aspect heads, so that a text can be projected into the same spaces

    index = Index.open("index/")
    row = index.row("doi:10.1/x")
    index.paper(row).abstract, index.references(row), index.hit(row, score=0.5)

Rows stand in the order of the ids' UTF-8 bytes. A key is `hash_texts` of an id. A change builds the next generation
(`build.py`, `generation.py`). An open index stays as it was; `index.fresh()` is the index as it is now. Holds all it
shows: the corpus may move. Does not search (`nearest.py`, `words.py`, `answer.py`).
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
from citeweave.core.columns import TextColumn, offsets_fit, open_matrix, open_numbers
from citeweave.core.errors import ArtifactError, UserError, choose
from citeweave.core.hash_keys import Keys, hash_texts
from citeweave.core.ragged import spans
from citeweave.corpus.corpus import LOCAL, STUB, lines
from citeweave.corpus.id_index import IdIndex
from citeweave.corpus.identity import likely_ids
from citeweave.corpus.paper import OutsideName, OutsideNames
from citeweave.corpus.paper_rows import PaperRows
from citeweave.corpus.text import sentence_texts
from citeweave.encoders.aspects import ALL, AspectHeads, find_heads
from citeweave.encoders.runtimes import AUTO, runtime_of
from citeweave.search.citing_sentences import CitingSentences, open_codes
from citeweave.search.query import Hit
from citeweave.search.state import GENERATIONS, STATE, IndexState, damaged_index, read_generation, read_state
from citeweave.search.words import WordTable
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.topk import Codes
from citeweave.vectors.vectors import DTYPES, MAX_DIMENSION, Provenance, id_keys

HEADS, SENTENCES = "heads", "abstract_sentences"
INTENT_BITS = 8
"""Columns of `cited_as`: one per bit of `Intent`."""

NOT_YET, HAS_VECTOR, HAS_NONE = 0, 1, 2
_PAPER_NUMBERS = {"year": np.int16, "flags": np.uint8, "key": np.uint64, "text_key": np.uint64, "record_key": np.uint64}
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


class Index(PaperRows[IndexedPaper]):
    """A searchable index of papers as it was when opened: `build_index` makes one, `answer` searches it.

        index = Index.open("index/")
        index[0], index["doi:10.1/x"], "doi:10.1/x" in index, len(index)
        index.fresh()                               the index as it is now, after changes by others

    Its columns are memory-mapped, and their folder may be removed meanwhile.
    """

    def __init__(self, folder: Path, state: IndexState, manifest: Manifest, stamp: tuple[int, ...]) -> None:
        self.folder, self.number, self._stamp = folder, state.number, stamp
        """Folder of the index, and number of its generation, which grows with every change."""
        self.place, self.manifest, self.facts = folder / GENERATIONS / state.generation, manifest, manifest.facts
        self._open_papers(self.place / "papers")
        self._open_references(self.place / "references")
        self._open_model()
        self._open_vectors(self.place)

    def _open_papers(self, papers: Path) -> None:
        self.ids, self.titles, self.abstracts = (TextColumn(papers, name) for name in ("id", "title", "abstract"))
        self.venues, self.authors, self.fields = (TextColumn(papers, name) for name in ("venue", "authors", "fields"))
        self.other_ids, self.extras = TextColumn(papers, "ids"), TextColumn(papers, "extra")
        numbers = {name: open_numbers(papers / f"{name}.npy", dtype) for name, dtype in _PAPER_NUMBERS.items()}
        self.years: NDArray[np.int16] = numbers["year"]
        """Year of every row, 0 where unknown, (papers,)."""
        self.flags: NDArray[np.uint8] = numbers["flags"]
        self.keys: Keys = numbers["key"]
        """Key of every paper's own id, (papers,)."""
        self.text_keys, self.record_keys = numbers["text_key"], numbers["record_key"]
        """Hashes of title and abstract, and of a paper's complete record, (papers,)."""
        self.size = len(self.ids)
        texts = (self.titles, self.abstracts, self.venues, self.authors, self.fields, self.other_ids, self.extras)
        self._require(all(len(column) == self.size for column in (*texts, *numbers.values())))
        self.cited_as: NDArray[np.int32] = open_matrix(papers / "cited_as.npy", np.int32, (self.size, INTENT_BITS))
        """Citations with each intent, by bit; (papers, 8)."""
        self.id_index = IdIndex.open(self.place / "ids")
        self.outside_names = OutsideNames.open(self.place)
        """Names of cited papers that the index does not have; None where no source names any."""
        self.words = WordTable(self.place / "words")

    def _open_references(self, folder: Path) -> None:
        self.reference_offsets: NDArray[np.int64] = open_numbers(folder / "offsets.npy", np.int64)
        self.reference_keys: Keys = open_numbers(folder / "key.npy", np.uint64)
        self._cited: Keys = open_numbers(folder / "cited.npy", np.uint64)
        self._citing: NDArray[np.int32] = open_numbers(folder / "row.npy", np.int32)
        count = len(self.reference_keys)
        self._require(offsets_fit(self.reference_offsets, self.size, count))
        self._require(len(self._cited) == len(self._citing) == count)

    def _open_model(self) -> None:
        facts = self.facts
        self.provenance = _parse_provenance(facts.get("provenance"), self.place)
        """Provenance of all vectors; None where the index has words only."""
        try:
            self.model, runtime = str(facts["model_path"]), str(facts["runtime"])
            """Where the model was when the index was made."""
            self.corpus, self.aspects = str(facts["corpus"]), tuple(str(name) for name in facts["aspects"])
        except (KeyError, TypeError):
            raise ArtifactError(f"{self.place / MANIFEST} does not describe an index; build it again") from None
        self.any_runtime = runtime == AUTO
        """Whether texts may be encoded by another runtime than the papers were, where that one does not run."""
        self.runtime = runtime_of(self.provenance.revision) if self.any_runtime and self.provenance else runtime
        """The runtime that computes the model."""

    def _open_vectors(self, folder: Path) -> None:
        """Open the vectors, in the encoder's space and in those of the aspects, with their codes."""
        self.embedded: NDArray[np.uint8] = open_numbers(folder / "embedded.npy", np.uint8)
        self._require(len(self.embedded) == self.size)
        self.matrix: NDArray[Any] | None = None
        self.aspect_matrices: list[NDArray[Any]] = []
        self.matrix_codes: Codes | None = None
        """Quantized codes for a fast scan of the matrix, None where it is small."""
        self.aspect_codes: list[Codes | None] = []
        self.sentences: SentenceVectors | None = None
        self.sentence_codes: Codes | None = None
        self.citing_sentences: CitingSentences | None = None
        if self.provenance is None:
            self._require(not (self.embedded == HAS_VECTOR).any() and not (folder / "sentences").is_dir())
            return
        dtype = self.provenance.dtype
        self.matrix = open_matrix(folder / "matrix.npy", dtype, (self.size, self.provenance.dimension))
        self.matrix_codes = open_codes(folder / "codes", self.matrix)
        widths = self.facts.get("spaces", [])
        self._require(isinstance(widths, list) and all(type(width) is int and width > 0 for width in widths))
        self._require(len(widths) == len(self.aspects))
        for number, width in enumerate(widths):
            space = open_matrix(folder / "spaces" / f"{number}.npy", dtype, (self.size, width))
            self.aspect_matrices.append(space)
            self.aspect_codes.append(open_codes(folder / "codes" / str(number), space))
        self._open_sentences(folder / SENTENCES, self.provenance)
        if (folder / "sentences").is_dir():
            self.citing_sentences = CitingSentences(folder / "sentences", self.size, self.provenance)

    def _open_sentences(self, folder: Path, provenance: Provenance) -> None:
        if not folder.is_dir():
            return
        offsets = open_numbers(folder / "offsets.npy", np.int64)
        numbers = open_numbers(folder / "numbers.npy", np.int32)
        self._require(offsets_fit(offsets, self.size, len(numbers)))
        matrix = open_matrix(folder / "matrix.npy", provenance.dtype, (len(numbers), provenance.dimension))
        self.sentences = SentenceVectors(self.ids, offsets, matrix, numbers, provenance)
        self.sentence_codes = open_codes(folder / "codes", matrix)

    def _require(self, sound: bool) -> None:
        """Refuse a damaged index, whose columns do not fit together."""
        if not sound:
            raise ArtifactError(f"{self.place} is damaged: its columns do not fit together; build the index again")

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
        ids = (self.ids[row], *lines(self.other_ids[row]))
        doi = next((id.removeprefix("doi:") for id in ids if id.startswith("doi:")), "")
        people, venue = lines(self.authors[row]), self.venues[row]
        year = int(self.years[row]) or None
        return Hit(self.ids[row], self.titles[row], year, score, row, authors=people, venue=venue, doi=doi)

    def row(self, id: str) -> int:
        """Return the row of the index of a paper by any of its ids; an unknown id is refused with ids that look like it."""
        row = next((row for row in self.rows(likely_ids(id)).tolist() if row >= 0), -1)
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
        row = int(self.rows_of_keys(np.array([key], np.uint64))[0])
        own = hash_texts([self.ids[row], *lines(self.other_ids[row])] if row >= 0 else [])
        keys = np.union1d(own, np.uint64(key))
        first, end = (np.searchsorted(self._cited, keys, side=side) for side in ("left", "right"))
        return np.unique(self._checked(self._citing[spans(first, end - first)])).astype(np.int64)

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
    def not_embedded(self) -> NDArray[np.bool_]:
        """Rows of papers that have words only, as they were not embedded yet, (size,)."""
        return np.asarray(self.embedded == NOT_YET)

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

    def locate_model(self, model: str | Path | None = None) -> str:
        """Return where the index's model is: at `model`, or where it was when the index was made, if it is still there."""
        where = str(model or self.model)
        if not model and Path(where).is_absolute() and not Path(where).is_dir():
            raise UserError(f"the model of {self.folder} is no longer at {where}; say with --model where it is")
        return where

    def check_aspect(self, aspect: str) -> None:
        """Refuse an aspect that the open index does not have; the empty name is the encoder's own space."""
        if aspect and not self.aspects:
            by = self.provenance.model if self.provenance else self.model
            add = f"citeweave change {self.folder} --fill --sentences"
            first = "" if self.with_sentences.any() else f" (first `{add}`)"
            raise UserError(
                f"--aspect is {aspect!r}, but {by}, the model of this index, has no aspect heads; search by sentences of a "
                f"paper instead, numbered from 0: `citeweave search {self.folder} --sentences ID:0,1`{first}. Or leave it "
                "out, or train a model with heads by `citeweave run sciaspect_hybrid` and index with it"
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


def _parse_provenance(value: Any, folder: Path) -> Provenance | None:
    """Parse the provenance of an index's vectors from its facts; None where there are no vectors."""
    if value is None:
        return None
    try:
        known = Provenance(**value)
        texts = (known.model, known.revision, known.text_recipe, known.source)
        if not all(isinstance(text, str) for text in texts) or known.dtype not in DTYPES:
            raise TypeError
        if type(known.dimension) is not int or not 1 <= known.dimension <= MAX_DIMENSION:
            raise TypeError
    except TypeError:
        raise ArtifactError(
            f"{folder} does not say where its vectors come from: it is damaged; build the index again"
        ) from None
    return known


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
