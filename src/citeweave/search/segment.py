r"""Citation marks in a sentence: taken out before it is encoded, so that names and years do not count as its content.

    >>> without_marks("We use the parser of [CIT] to split texts (?).")
    'We use the parser of to split texts.'
    >>> without_marks("As shown before (Chen et al., 2014; Dyer, 2015a), Smith et al. (2010) and [12, 14-16] agree.")
    'As shown before, and agree.'
    >>> without_marks(r"Trees~\cite{chen2014} grow (in spring).")
    'Trees grow (in spring).'

Printed marks are found by `corpus/citation_marks.py`; here is what only drafts have, and names without a year. Does not
say which paper a mark means.

Citing sentences in an index: what others wrote where they cited a paper, and with which intent.

    sentences/matrix.npy     a vector a sentence, without its marks                      (sentences, dimension)
    sentences/codes/         of the matrix where it is large: `similarity/topk`
    sentences/text           the sentences as the corpus has them
    sentences/citing         id of the citing paper, empty where it is not known
    sentences/paper.npy      cited paper: a row of the segment ...                       (mentions,), ascending
    sentences/sentence.npy   ... in which sentence ...                                   (mentions,)
    sentences/intents.npy    ... with which intents, bits of `Intent`; 0 = unknown       (mentions,)

A sentence that cites three papers is kept once and mentioned three times; it goes with the papers that it cites. Does
not rank anything: `citing.py` does.

A segment of an index: papers that were written together and are never changed, only left out one by one.

    segments/000003-1f2e3d4c/
      papers/             id title abstract venue authors fields ids extra (texts), year flags key text_key record_key, cited_as
      ids/                from any id of a paper to its row
      references/         offsets.npy and key.npy: the papers that each paper cites, by the key of their id, ascending;
                          cited.npy and row.npy: the same the other way round, by the cited paper's key
      outside_names/      what cited papers that are not there are called: `corpus/paper.py`
      words/              postings for `words/`
      embedded.npy        1 = has a vector, 2 = none can be made of its text, 0 = not tried yet
      matrix.npy          the encoder's vectors, one row a paper, zeros where it has none; spaces/0.npy ... an aspect each
      abstract_sentences/ matrix.npy, offsets.npy, numbers.npy: vectors of the sentences of the abstracts
      codes/              of matrix.npy where it is large: `similarity/topk`; codes/0/ ... of the spaces;
                          abstract_sentences/codes/
      sentences/          citing sentences, `citing_sentences.py`
      manifest.json       an artifact as any other; its facts name the passes that made the papers' vectors

Rows stand in the order of the ids' UTF-8 bytes. A key is `hash_texts` of an id. Does not search.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import Manifest, check_files, read_manifest
from citeweave.core.columns import TextColumn, open_matrix, open_numbers
from citeweave.core.errors import ArtifactError
from citeweave.core.randomness import Keys, stream
from citeweave.corpus.citation_marks import find_marks
from citeweave.corpus.corpus import Corpus, IdIndex
from citeweave.corpus.paper import OutsideName, OutsideNames
from citeweave.corpus.plain_text import clean_text
from citeweave.graph.intent_overlay import CitationPlaces, IntentOverlay
from citeweave.search.words import WordTable
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.topk import Codes
from citeweave.vectors.vectors import DTYPES, MAX_DIMENSION, Provenance

MAX_SENTENCE = 20_000
"""Characters of a sentence that are looked at; no encoder reads so many."""

_OF_DRAFTS = re.compile(
    r"~?[\[(<{]\s?(?:CIT|CITE|CITATION|REF|cit|cite|citation|ref|TODO)?\s?[?]{0,3}\s?[\])>}]"  # [CIT] (?) []
    r"|[@#]?\b(?:CITATION|CITREF|TARGETCIT)\b"
)
_NAMES_ALONE = re.compile(r"\b[A-Z][\w'’-]{1,40} et al\b\.?,?(?:’s|'s)?")
_BLANK_BEFORE = re.compile(r"\s+(?=[.,;:!?](?:\s|$))")


def without_marks(sentence: str) -> str:
    """The sentence on one line, without the marks of its citations."""
    text = clean_text(sentence[:MAX_SENTENCE])
    parts, at = [], 0
    for start, end in find_marks(text):
        parts.append(text[at:start].removesuffix("~"))  # LaTeX ties a mark to its word
        at = end
    text = " ".join([*parts, text[at:]])
    for pattern in (_OF_DRAFTS, _NAMES_ALONE):
        text = pattern.sub(" ", text)
    return _BLANK_BEFORE.sub("", clean_text(text))


# Citing sentences in an index: what others wrote where they cited a paper, and with which intent.

READ_AS = "citing sentence without marks, 2"
"""What the encoder reads; a change of `marks.py` or `corpus/citation_marks.py` that matters changes the number."""

CODES = "codes"


@dataclass(frozen=True, slots=True)
class SegmentMentions:
    """Which papers which contexts cite; parallel columns."""

    paper: NDArray[np.int64]
    """Row of the corpus."""

    context: NDArray[np.int64]
    intents: NDArray[np.uint8]

    def take(self, at: NDArray[Any]) -> SegmentMentions:
        return SegmentMentions(self.paper[at], self.context[at], self.intents[at])


def mentions_of(corpus: Corpus, overlay: IntentOverlay | None = None) -> SegmentMentions:
    """All mentions of a corpus, with the intents that the overlay or else the corpus itself knows.

    A sentence's own intents count; those of the citation as a whole where the sentence's are not known.
    """
    table = corpus.contexts
    counts = np.diff(table.cited_offsets)
    context = np.repeat(np.arange(len(table)), counts)  # (mentions,)
    paper = np.asarray(table.cited, np.int64)
    own, whole = (table.intents, corpus.intents) if overlay is None else (overlay.context_mask, overlay.mask)
    intents = np.asarray(own)[context]  # (mentions,)
    if len(whole):
        places = CitationPlaces(corpus).find(np.asarray(table.citing)[context], paper)
        intents = np.where((intents == 0) & (places >= 0), np.asarray(whole)[places], intents)
    return SegmentMentions(paper, context, intents.astype(np.uint8))


def choose_mentions(mentions: SegmentMentions, most: int) -> SegmentMentions:
    """At most so many mentions of a paper with the same intents, at random; sorted by paper and context."""
    order = stream(0, "citing sentences").permutation(len(mentions.paper))
    groups = mentions.paper * 256 + mentions.intents  # (mentions,)
    order = order[np.argsort(groups[order], kind="stable")]
    ranks = np.arange(len(order)) - np.searchsorted(groups[order], groups[order])  # place in its group
    kept = order[ranks < most]
    return mentions.take(kept[np.lexsort((mentions.context[kept], mentions.paper[kept]))])


class SentenceTexts(Sequence[str]):
    """The chosen contexts as the encoder reads them, slice by slice."""

    def __init__(self, corpus: Corpus, contexts: NDArray[np.int64]) -> None:
        self._texts, self._contexts = corpus.contexts.texts, contexts

    def __len__(self) -> int:
        return len(self._contexts)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if not isinstance(at, slice):
            return without_marks(self._texts[int(self._contexts[at])])
        return [without_marks(text) for text in self._texts.take(self._contexts[at])]


class CitingSentences:
    """The sentences of an opened segment."""

    def __init__(self, folder: Path, papers: int, provenance: Provenance | None) -> None:
        self.texts, self.citing = TextColumn(folder, "text"), TextColumn(folder, "citing")
        self.paper: NDArray[np.int32] = open_numbers(folder / "paper.npy", np.int32)
        self.sentence: NDArray[np.int32] = open_numbers(folder / "sentence.npy", np.int32)
        self.intents: NDArray[np.uint8] = open_numbers(folder / "intents.npy", np.uint8)
        sentences = len(self.texts)
        sound = (
            provenance is not None
            and len(self.citing) == sentences
            and len(self.paper) == len(self.sentence) == len(self.intents)
            and _within(self.paper, 0, papers)
            and _within(self.sentence, 0, sentences)
            and bool((np.diff(self.paper) >= 0).all())
        )
        if not sound or provenance is None:
            raise ArtifactError(f"{folder} is damaged: its columns do not fit together; build the index again")
        self.matrix: NDArray[Any] = open_matrix(
            folder / "matrix.npy", provenance.dtype, (sentences, provenance.dimension)
        )
        self.codes: Codes | None = None
        """For a quick scan of the matrix; None where it is small."""
        if (folder / CODES / "codes.npy").is_file():
            self.codes = Codes.open(folder / CODES)
            self.codes.check(self.matrix)

    def __len__(self) -> int:
        return len(self.texts)


def _within(values: NDArray[Any], low: int, high: int) -> bool:
    return not len(values) or (int(values.min()) >= low and int(values.max()) < high)


# A segment of an index: papers that were written together and are never changed, only left out one by one.

KIND, VERSION = "index_segment", 2
INTENT_BITS = 8
"""Columns of `cited_as`: one a bit of `Intent`."""

NOT_YET, HAS_VECTOR, HAS_NONE = 0, 1, 2
PAPERS_ALONE, TOGETHER, PRECOMPUTED = "papers alone", "papers and sentences together", "precomputed"
"""How the network read the papers for their vectors. The vectors of one model differ between these in their last bits."""

PAPER_NUMBERS = {
    "year": np.int16,
    "flags": np.uint8,
    "key": np.uint64,
    "text_key": np.uint64,
    "record_key": np.uint64,
}


class Segment:
    """A segment folder, memory-mapped as a whole when it is opened: it may be removed while it is in use."""

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
        """Hashes of title and abstract, and of all that is known of a paper, (papers,)."""
        self.size = len(self.ids)
        texts = (self.titles, self.abstracts, self.venues, self.authors, self.fields, self.other_ids, self.extras)
        self._fits(all(len(column) == self.size for column in (*texts, *numbers.values())))
        self.cited_as: NDArray[np.int32] = open_matrix(papers / "cited_as.npy", np.int32, (self.size, INTENT_BITS))
        """Citations with each intent, by bit; (papers, 8)."""
        self.id_index = IdIndex.open(folder / "ids")
        self.outside_names = OutsideNames.open(folder)
        """What papers that are cited and not there are called; None where nobody said."""
        self._open_references(folder / "references")
        self._open_vectors()
        sentences = folder / "sentences"
        self.citing_sentences = CitingSentences(sentences, self.size, self.provenance) if sentences.is_dir() else None
        self.words = WordTable.open(folder / "words")
        self.alive: NDArray[np.bool_] = np.ones(self.size, bool)
        """Papers that are not deleted in the state that the segment was opened for, (papers,)."""
        self.start = 0
        """Row of the index at which the segment begins."""

    @classmethod
    def open(cls, folder: Path) -> Segment:
        manifest = read_manifest(folder, KIND, VERSION)
        check_files(folder, manifest)
        return cls(folder, manifest)

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"Segment({self.name}: {self.size:,} papers)"

    def placed(self, start: int, deleted: NDArray[np.int32]) -> Segment:
        """The same segment as another state has it."""
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
        """How the papers' vectors were made; several ways where the vectors of other segments were carried over."""
        passes = self.manifest.facts.get("passes", [PAPERS_ALONE] if self.provenance else [])
        self._fits(isinstance(passes, list) and all(isinstance(each, str) for each in passes))
        return list(passes)

    def references(self, row: int) -> Keys:
        """Keys of the papers that a paper cites, ascending."""
        return np.asarray(self.reference_keys[self.reference_offsets[row] : self.reference_offsets[row + 1]])

    def citing(self, key: np.uint64) -> NDArray[np.int32]:
        """Rows of the papers that cite the paper with this key, deleted ones included, ascending."""
        first, last = (np.searchsorted(self._cited, key, side=side) for side in ("left", "right"))
        return self._checked(np.asarray(self._citing[first:last]))

    def rows_of(self, keys: Keys) -> NDArray[np.int32]:
        """The row of the paper that has an id with this key, deleted ones included, or -1."""
        return self._checked(self.id_index.rows_of(keys))

    def outside_name(self, key: int) -> OutsideName | None:
        """What the paper whose id has this key is called, where it is cited and not there, or was deleted."""
        name = self.outside_names.find(key) if self.outside_names is not None else None
        if name is None:
            row = int(self.rows_of(np.array([key], np.uint64))[0])
            name = OutsideName(self.ids[row]) if row >= 0 and int(self.keys[row]) == key else None
        return name

    def _checked(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        # when they are used, not at opening: looking at all of them would read large files as a whole
        self._fits(not len(rows) or (int(rows.min()) >= -1 and int(rows.max()) < self.size))
        return rows

    def _open_references(self, folder: Path) -> None:
        self.reference_offsets: NDArray[np.int64] = open_numbers(folder / "offsets.npy", np.int64)
        self.reference_keys: Keys = open_numbers(folder / "key.npy", np.uint64)
        self._cited: Keys = open_numbers(folder / "cited.npy", np.uint64)
        self._citing: NDArray[np.int32] = open_numbers(folder / "row.npy", np.int32)
        offsets, count = self.reference_offsets, len(self.reference_keys)
        self._fits(len(offsets) == self.size + 1 and offsets[0] == 0 and offsets[-1] == count)
        self._fits(len(self._cited) == len(self._citing) == count and not (np.diff(offsets) < 0).any())

    def _open_vectors(self) -> None:
        facts, folder = self.manifest.facts, self.folder
        self.provenance = provenance_of(facts.get("provenance"), folder)
        self.embedded: NDArray[np.uint8] = open_numbers(folder / "embedded.npy", np.uint8)
        self._fits(len(self.embedded) == self.size)
        self.matrix: NDArray[Any] | None = None
        self.spaces: list[NDArray[Any]] = []
        self.codes: Codes | None = None
        self.space_codes: list[Codes | None] = []
        self.sentences: SentenceVectors | None = None
        self.sentence_codes: Codes | None = None
        if self.provenance is None:
            self._fits(not (self.embedded == HAS_VECTOR).any())
            return
        dtype = self.provenance.dtype
        self.matrix = open_matrix(folder / "matrix.npy", dtype, (self.size, self.provenance.dimension))
        widths = facts.get("spaces", [])
        self._fits(isinstance(widths, list) and all(type(width) is int and width > 0 for width in widths))
        self.spaces = [
            open_matrix(folder / "spaces" / f"{number}.npy", dtype, (self.size, width))
            for number, width in enumerate(widths)
        ]
        self.codes = _codes(folder / "codes", self.matrix)
        """For a quick scan of the matrix, None where it is small."""
        self.space_codes = [_codes(folder / "codes" / str(at), space) for at, space in enumerate(self.spaces)]
        self._open_sentences(folder / "abstract_sentences", self.provenance)

    def _open_sentences(self, folder: Path, provenance: Provenance) -> None:
        if not folder.is_dir():
            return
        offsets, numbers = (
            open_numbers(folder / "offsets.npy", np.int64),
            open_numbers(folder / "numbers.npy", np.int32),
        )
        fits = len(offsets) == self.size + 1 and offsets[0] == 0 and offsets[-1] == len(numbers)
        self._fits(bool(fits) and not (np.diff(offsets) < 0).any())
        matrix = open_matrix(folder / "matrix.npy", provenance.dtype, (len(numbers), provenance.dimension))
        self.sentences = SentenceVectors(self.ids, offsets, matrix, numbers, provenance)
        self.sentence_codes = _codes(folder / "codes", matrix)

    def _fits(self, sound: bool) -> None:
        if not sound:
            raise ArtifactError(f"{self.folder} is damaged: its columns do not fit together; build the index again")


def provenance_of(told: Any, folder: Path) -> Provenance | None:
    """Where vectors come from, as a manifest or a state tells it; None where there are none."""
    if told is None:
        return None
    try:
        found = Provenance(**told)
    except TypeError:
        found = None
    texts = () if found is None else (found.model, found.revision, found.text_recipe, found.source)
    if (
        found is None
        or not all(isinstance(text, str) for text in texts)
        or found.dtype not in DTYPES
        or type(found.dimension) is not int
        or not 1 <= found.dimension <= MAX_DIMENSION
    ):
        raise ArtifactError(f"{folder} does not say where its vectors come from: it is damaged; build the index again")
    return found


def _codes(folder: Path, matrix: NDArray[Any]) -> Codes | None:
    if not (folder / "codes.npy").is_file():
        return None
    codes = Codes.open(folder)
    codes.check(matrix)
    return codes
