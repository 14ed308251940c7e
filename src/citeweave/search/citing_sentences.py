"""Citing sentences in an index: what others wrote where they cited a paper, and with which intent.

    sentences/matrix.npy     a vector a sentence, without its marks                      (sentences, dimension)
    sentences/codes/         of the matrix where it is large: `similarity/topk`
    sentences/text           the sentences as the corpus has them
    sentences/citing         id of the citing paper, empty where it is not known
    sentences/paper.npy      cited paper: a row of the segment ...                       (mentions,), ascending
    sentences/sentence.npy   ... in which sentence ...                                   (mentions,)
    sentences/intents.npy    ... with which intents, bits of `Intent`; 0 = unknown       (mentions,)

A sentence that cites three papers is kept once and mentioned three times; it goes with the papers that it cites. Does
not rank anything: `citing.py` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import TextColumn, open_matrix, open_numbers
from citeweave.corpus.corpus import Corpus
from citeweave.errors import ArtefactError
from citeweave.graph.intent_overlay import CitationPlaces, IntentOverlay
from citeweave.randomness import stream
from citeweave.search.marks import without_marks
from citeweave.similarity.provenance import Provenance
from citeweave.similarity.topk import Codes

READ_AS = "citing sentence without marks, 2"
"""What the encoder reads; a change of `marks.py` or `corpus/citation_marks.py` that matters changes the number."""

CODES = "codes"


@dataclass(frozen=True, slots=True)
class Mentions:
    """Which papers which contexts cite; parallel columns."""

    paper: NDArray[np.int64]
    """Row of the corpus."""

    context: NDArray[np.int64]
    intents: NDArray[np.uint8]

    def take(self, at: NDArray[Any]) -> Mentions:
        return Mentions(self.paper[at], self.context[at], self.intents[at])


def mentions_of(corpus: Corpus, overlay: IntentOverlay | None = None) -> Mentions:
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
    return Mentions(paper, context, intents.astype(np.uint8))


def choose_mentions(mentions: Mentions, most: int) -> Mentions:
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
            raise ArtefactError(f"{folder} is damaged: its columns do not fit together; build the index again")
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
