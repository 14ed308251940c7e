"""A segment of an index: an immutable, memory-mapped folder of papers, their references and vectors.

    segments/000003-1f2e3d4c/
      papers/             id title abstract venue authors fields ids extra (texts), year flags key text_key record_key, cited_as
      ids/                from any id of a paper to its row
      references/         offsets.npy and key.npy: the papers that each paper cites, by the key of their id, ascending;
                          cited.npy and row.npy: the same the other way round, by the cited paper's key
      outside_names/      names of cited papers that the segment does not have: `corpus/paper.py`
      words/              postings for search by words: `words.py`
      embedded.npy        1 = has a vector, 2 = none can be made of its text, 0 = not tried yet
      matrix.npy          the encoder's vectors, one row per paper, zeros where it has none; spaces/0.npy ... one per aspect
      abstract_sentences/ matrix.npy, offsets.npy, numbers.npy: vectors of the sentences of the abstracts
      codes/              quantized codes of a large matrix.npy: `vectors/topk`; codes/0/ ... of the spaces;
                          abstract_sentences/codes/
      sentences/          citing sentences: `citing_sentences.py`
      manifest.json       as of every artifact; it names the passes that made the papers' vectors

Rows stand in the order of the ids' UTF-8 bytes. A key is `hash_texts` of an id. Papers are never changed here: a state of
the index lists those that are deleted (`state.py`). Does not search, and does not write (`segment_papers.py`,
`segment_vectors.py`).
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import Manifest, check_files, read_manifest
from citeweave.core.columns import TextColumn, open_matrix, open_numbers
from citeweave.core.errors import ArtifactError
from citeweave.core.hash_keys import Keys
from citeweave.corpus.corpus import IdIndex
from citeweave.corpus.paper import OutsideName, OutsideNames
from citeweave.search.citing_sentences import CitingSentences
from citeweave.search.words import WordTable
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.topk import Codes
from citeweave.vectors.vectors import DTYPES, MAX_DIMENSION, Provenance

KIND, VERSION = "index_segment", 2
INTENT_BITS = 8
"""Columns of `cited_as`: one per bit of `Intent`."""

NOT_YET, HAS_VECTOR, HAS_NONE = 0, 1, 2
PAPERS_ALONE, TOGETHER, PRECOMPUTED = "papers alone", "papers and sentences together", "precomputed"
"""The passes of the network that made the papers' vectors, which differ between them in their last bits."""

PAPER_NUMBERS = {
    "year": np.int16,
    "flags": np.uint8,
    "key": np.uint64,
    "text_key": np.uint64,
    "record_key": np.uint64,
}


class Segment:
    """An immutable part of an index, memory-mapped completely when opened: its folder may be removed while in use."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest, self.name = folder, manifest, folder.name
        papers = folder / "papers"
        self.ids, self.titles, self.abstracts = (TextColumn(papers, name) for name in ("id", "title", "abstract"))
        self.venues, self.authors, self.fields = (TextColumn(papers, name) for name in ("venue", "authors", "fields"))
        self.other_ids, self.extras = TextColumn(papers, "ids"), TextColumn(papers, "extra")
        numbers = {name: open_numbers(papers / f"{name}.npy", dtype) for name, dtype in PAPER_NUMBERS.items()}
        self.years: NDArray[np.int16] = numbers["year"]
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
        self.id_index = IdIndex.open(folder / "ids")
        self.outside_names = OutsideNames.open(folder)
        """Names of cited papers that the segment does not have; None where no source names any."""
        self._open_references(folder / "references")
        self._open_vectors()
        sentences = folder / "sentences"
        self.citing_sentences = CitingSentences(sentences, self.size, self.provenance) if sentences.is_dir() else None
        self.words = WordTable.open(folder / "words")
        self.alive: NDArray[np.bool_] = np.ones(self.size, bool)
        """Papers that are not deleted in the state that the segment was opened for, (papers,)."""
        self.start = 0
        """First row of the segment in the index."""

    @classmethod
    def open(cls, folder: Path) -> Segment:
        """Open the folder of a segment after checking it against its manifest."""
        manifest = read_manifest(folder, KIND, VERSION)
        check_files(folder, manifest)
        return cls(folder, manifest)

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"Segment({self.name}: {self.size:,} papers)"

    def placed(self, start: int, deleted: NDArray[np.int32]) -> Segment:
        """Return the same segment with the start row and the deleted papers of another state of the index."""
        other = copy.copy(self)
        other.start, other.alive = start, np.ones(self.size, bool)
        other.alive[deleted] = False
        other.alive.flags.writeable = False
        return other

    @property
    def with_vector(self) -> NDArray[np.bool_]:
        """Living papers that have a vector, (papers,)."""
        return np.asarray(self.alive & (self.embedded == HAS_VECTOR))

    @property
    def with_sentences(self) -> NDArray[np.bool_]:
        """Living papers whose abstract's sentences have vectors, (papers,)."""
        if self.sentences is None:
            return np.zeros(self.size, bool)
        return np.asarray(self.alive & (np.diff(self.sentences.offsets) > 0))

    @property
    def passes(self) -> list[str]:
        """The passes that made the papers' vectors; several where vectors of other segments were copied."""
        passes = self.manifest.facts.get("passes", [PAPERS_ALONE] if self.provenance else [])
        self._require(isinstance(passes, list) and all(isinstance(each, str) for each in passes))
        return list(passes)

    def references(self, row: int) -> Keys:
        """Return the keys of the papers that the paper in a row cites, ascending."""
        return np.asarray(self.reference_keys[self.reference_offsets[row] : self.reference_offsets[row + 1]])

    def citing(self, key: np.uint64) -> NDArray[np.int32]:
        """Return the rows of papers, deleted ones included, that cite the paper with this key; ascending."""
        first, last = (np.searchsorted(self._cited, key, side=side) for side in ("left", "right"))
        return self._checked(np.asarray(self._citing[first:last]))

    def rows_of(self, keys: Keys) -> NDArray[np.int32]:
        """Return the row of the paper that has an id with each key, deleted papers included; -1 where none has."""
        return self._checked(self.id_index.rows_of(keys))

    def outside_name(self, key: int) -> OutsideName | None:
        """Return the name of a cited paper that the segment lacks, or that was deleted, by the key of its id."""
        name = self.outside_names.find(key) if self.outside_names is not None else None
        if name is None:
            row = int(self.rows_of(np.array([key], np.uint64))[0])
            name = OutsideName(self.ids[row]) if row >= 0 and int(self.keys[row]) == key else None
        return name

    def _checked(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        # when they are used, not at opening, which would read large files completely
        self._require(not len(rows) or (int(rows.min()) >= -1 and int(rows.max()) < self.size))
        return rows

    def _open_references(self, folder: Path) -> None:
        self.reference_offsets: NDArray[np.int64] = open_numbers(folder / "offsets.npy", np.int64)
        self.reference_keys: Keys = open_numbers(folder / "key.npy", np.uint64)
        self._cited: Keys = open_numbers(folder / "cited.npy", np.uint64)
        self._citing: NDArray[np.int32] = open_numbers(folder / "row.npy", np.int32)
        offsets, count = self.reference_offsets, len(self.reference_keys)
        self._require(len(offsets) == self.size + 1 and offsets[0] == 0 and offsets[-1] == count)
        self._require(len(self._cited) == len(self._citing) == count and not (np.diff(offsets) < 0).any())

    def _open_vectors(self) -> None:
        """Open the vectors of the segment, in the encoder's space and in those of the aspects, with their codes."""
        facts, folder = self.manifest.facts, self.folder
        self.provenance = parse_provenance(facts.get("provenance"), folder)
        self.embedded: NDArray[np.uint8] = open_numbers(folder / "embedded.npy", np.uint8)
        self._require(len(self.embedded) == self.size)
        self.matrix: NDArray[Any] | None = None
        self.spaces: list[NDArray[Any]] = []
        self.codes: Codes | None = None
        self.space_codes: list[Codes | None] = []
        self.sentences: SentenceVectors | None = None
        self.sentence_codes: Codes | None = None
        if self.provenance is None:
            self._require(not (self.embedded == HAS_VECTOR).any())
            return
        dtype = self.provenance.dtype
        self.matrix = open_matrix(folder / "matrix.npy", dtype, (self.size, self.provenance.dimension))
        widths = facts.get("spaces", [])
        self._require(isinstance(widths, list) and all(type(width) is int and width > 0 for width in widths))
        self.spaces = [
            open_matrix(folder / "spaces" / f"{number}.npy", dtype, (self.size, width))
            for number, width in enumerate(widths)
        ]
        self.codes = _open_codes(folder / "codes", self.matrix)
        """Quantized codes for a fast scan of the matrix, None where it is small."""
        self.space_codes = [_open_codes(folder / "codes" / str(at), space) for at, space in enumerate(self.spaces)]
        self._open_sentences(folder / "abstract_sentences", self.provenance)

    def _open_sentences(self, folder: Path, provenance: Provenance) -> None:
        if not folder.is_dir():
            return
        offsets, numbers = (
            open_numbers(folder / "offsets.npy", np.int64),
            open_numbers(folder / "numbers.npy", np.int32),
        )
        sound = len(offsets) == self.size + 1 and offsets[0] == 0 and offsets[-1] == len(numbers)
        self._require(bool(sound) and not (np.diff(offsets) < 0).any())
        matrix = open_matrix(folder / "matrix.npy", provenance.dtype, (len(numbers), provenance.dimension))
        self.sentences = SentenceVectors(self.ids, offsets, matrix, numbers, provenance)
        self.sentence_codes = _open_codes(folder / "codes", matrix)

    def _require(self, sound: bool) -> None:
        """Refuse a damaged segment, whose columns do not fit together."""
        if not sound:
            raise ArtifactError(f"{self.folder} is damaged: its columns do not fit together; build the index again")


def parse_provenance(value: Any, folder: Path) -> Provenance | None:
    """Parse the provenance of a segment's vectors, or of a whole index's, from JSON; None where there are no vectors."""
    if value is None:
        return None
    try:
        provenance = Provenance(**value)
    except TypeError:
        provenance = None
    texts = (
        () if provenance is None else (provenance.model, provenance.revision, provenance.text_recipe, provenance.source)
    )
    if (
        provenance is None
        or not all(isinstance(text, str) for text in texts)
        or provenance.dtype not in DTYPES
        or type(provenance.dimension) is not int
        or not 1 <= provenance.dimension <= MAX_DIMENSION
    ):
        raise ArtifactError(f"{folder} does not say where its vectors come from: it is damaged; build the index again")
    return provenance


def _open_codes(folder: Path, matrix: NDArray[Any]) -> Codes | None:
    if not (folder / "codes.npy").is_file():
        return None
    codes = Codes.open(folder)
    codes.check(matrix)
    return codes
