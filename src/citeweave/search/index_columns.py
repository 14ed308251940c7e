"""The columns of one generation of an index: papers, references, words and vectors, opened memory-mapped.

    index/generations/000003-1f2e3d4c/
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

Rows stand in the order of the ids' UTF-8 bytes. A key is `hash_texts` of an id. A generation is immutable. Does not write
(`index_papers.py`, `index_vectors.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import Manifest
from citeweave.core.columns import TextColumn, open_matrix, open_numbers
from citeweave.core.errors import ArtifactError
from citeweave.core.hash_keys import Keys
from citeweave.corpus.corpus import IdIndex
from citeweave.corpus.paper import OutsideNames
from citeweave.search.citing_sentences import CitingSentences
from citeweave.search.words import WordTable
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.topk import Codes
from citeweave.vectors.vectors import DTYPES, MAX_DIMENSION, Provenance

HEADS, SENTENCES = "heads", "abstract_sentences"
INTENT_BITS = 8
"""Columns of `cited_as`: one per bit of `Intent`."""

NOT_YET, HAS_VECTOR, HAS_NONE = 0, 1, 2
PAPER_NUMBERS = {
    "year": np.int16,
    "flags": np.uint8,
    "key": np.uint64,
    "text_key": np.uint64,
    "record_key": np.uint64,
}


class IndexColumns:
    """The columns of an open index, memory-mapped completely: their folder may be removed while in use."""

    def __init__(self, place: Path, manifest: Manifest) -> None:
        self.place, self.manifest, self.facts = place, manifest, manifest.facts
        papers = place / "papers"
        self.ids, self.titles, self.abstracts = (TextColumn(papers, name) for name in ("id", "title", "abstract"))
        self.venues, self.authors, self.fields = (TextColumn(papers, name) for name in ("venue", "authors", "fields"))
        self.other_ids, self.extras = TextColumn(papers, "ids"), TextColumn(papers, "extra")
        numbers = {name: open_numbers(papers / f"{name}.npy", dtype) for name, dtype in PAPER_NUMBERS.items()}
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
        self.id_index = IdIndex.open(place / "ids")
        self.outside_names = OutsideNames.open(place)
        """Names of cited papers that the index does not have; None where no source names any."""
        self.words = WordTable.open(place / "words")
        self._open_references(place / "references")
        self.provenance = _parse_provenance(self.facts.get("provenance"), place)
        """Provenance of all vectors; None where the index has words only."""
        self._open_vectors()
        sentences = place / "sentences"
        self.citing_sentences = CitingSentences(sentences, self.size, self.provenance) if sentences.is_dir() else None

    def _open_references(self, folder: Path) -> None:
        self.reference_offsets: NDArray[np.int64] = open_numbers(folder / "offsets.npy", np.int64)
        self.reference_keys: Keys = open_numbers(folder / "key.npy", np.uint64)
        self._cited: Keys = open_numbers(folder / "cited.npy", np.uint64)
        self._citing: NDArray[np.int32] = open_numbers(folder / "row.npy", np.int32)
        offsets, count = self.reference_offsets, len(self.reference_keys)
        self._require(len(offsets) == self.size + 1 and offsets[0] == 0 and offsets[-1] == count)
        self._require(len(self._cited) == len(self._citing) == count and not (np.diff(offsets) < 0).any())

    def _open_vectors(self) -> None:
        """Open the vectors, in the encoder's space and in those of the aspects, with their codes."""
        folder = self.place
        self.embedded: NDArray[np.uint8] = open_numbers(folder / "embedded.npy", np.uint8)
        self._require(len(self.embedded) == self.size)
        self.matrix: NDArray[Any] | None = None
        self.aspect_matrices: list[NDArray[Any]] = []
        self.matrix_codes: Codes | None = None
        """Quantized codes for a fast scan of the matrix, None where it is small."""
        self.aspect_codes: list[Codes | None] = []
        self.sentences: SentenceVectors | None = None
        self.sentence_codes: Codes | None = None
        if self.provenance is None:
            self._require(not (self.embedded == HAS_VECTOR).any())
            return
        dtype = self.provenance.dtype
        self.matrix = open_matrix(folder / "matrix.npy", dtype, (self.size, self.provenance.dimension))
        widths = self.facts.get("spaces", [])
        self._require(isinstance(widths, list) and all(type(width) is int and width > 0 for width in widths))
        self.aspect_matrices = [
            open_matrix(folder / "spaces" / f"{number}.npy", dtype, (self.size, width))
            for number, width in enumerate(widths)
        ]
        self.matrix_codes = _open_codes(folder / "codes", self.matrix)
        self.aspect_codes = [
            _open_codes(folder / "codes" / str(at), space) for at, space in enumerate(self.aspect_matrices)
        ]
        self._open_sentences(folder / SENTENCES, self.provenance)

    def _open_sentences(self, folder: Path, provenance: Provenance) -> None:
        if not folder.is_dir():
            return
        offsets = open_numbers(folder / "offsets.npy", np.int64)
        numbers = open_numbers(folder / "numbers.npy", np.int32)
        sound = len(offsets) == self.size + 1 and offsets[0] == 0 and offsets[-1] == len(numbers)
        self._require(bool(sound) and not (np.diff(offsets) < 0).any())
        matrix = open_matrix(folder / "matrix.npy", provenance.dtype, (len(numbers), provenance.dimension))
        self.sentences = SentenceVectors(self.ids, offsets, matrix, numbers, provenance)
        self.sentence_codes = _open_codes(folder / "codes", matrix)

    def _require(self, sound: bool) -> None:
        """Refuse a damaged index, whose columns do not fit together."""
        if not sound:
            raise ArtifactError(f"{self.place} is damaged: its columns do not fit together; build the index again")


def _parse_provenance(value: Any, folder: Path) -> Provenance | None:
    """Parse the provenance of an index's vectors from its facts; None where there are no vectors."""
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
