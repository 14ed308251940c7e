"""Citing sentences in an index: what others wrote where they cited a paper, and with which intent.

    sentences/vectors/       a vector a sentence, without its marks: `similarity/vectors.py`
    sentences/text           the sentences as the corpus has them
    sentences/citing.npy     row of the citing paper in the index, -1 where it has none; (sentences,)
    sentences/paper.npy      cited paper ...                                             (mentions,), ascending
    sentences/sentence.npy   ... in which sentence ...                                   (mentions,)
    sentences/intents.npy    ... with which intents, bits of `Intent`; 0 = unknown       (mentions,)

A sentence that cites three papers is kept once and mentioned three times. Does not rank anything: `citing.py` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import TextColumn, TextWriter, open_numbers, write_numbers
from citeweave.corpus.corpus import Corpus
from citeweave.errors import ArtefactError
from citeweave.graph.intent_overlay import CitationPlaces, IntentOverlay
from citeweave.randomness import stream
from citeweave.search.marks import without_marks
from citeweave.similarity.vectors import Vectors

READ_AS = "citing sentence without marks, 2"
"""What the encoder reads; a change of `marks.py` or `corpus/citation_marks.py` that matters changes the number."""


@dataclass(frozen=True, slots=True)
class Mentions:
    """Which papers which contexts cite; parallel columns."""

    paper: NDArray[np.int64]
    """Row of the corpus; after `on_rows` of the index."""

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


def write_citing_sentences(folder: Path, corpus: Corpus, mentions: Mentions, rows: NDArray[np.int64]) -> int:
    """Write the columns beside `folder/vectors`; `rows` leads from the corpus to the index. Says how many mentions."""
    vectors = Vectors.open(folder / "vectors")
    contexts = np.array([int(name) for name in vectors.ids], np.int64)  # ascending, (sentences,)
    writer = TextWriter(folder, "text")
    lengths, data = corpus.contexts.texts.gather(contexts)
    writer.append_bytes(lengths, data)
    writer.close()
    citing = np.asarray(corpus.contexts.citing, np.int64)[contexts]
    write_numbers(folder / "citing.npy", np.where(citing >= 0, np.maximum(rows[citing], -1), -1), np.int32)
    at = np.minimum(np.searchsorted(contexts, mentions.context), len(contexts) - 1)
    kept = (contexts[at] == mentions.context) & (rows[mentions.paper] >= 0)
    order = np.flatnonzero(kept)
    order = order[np.argsort(rows[mentions.paper[order]], kind="stable")]
    write_numbers(folder / "paper.npy", rows[mentions.paper[order]], np.int32)
    write_numbers(folder / "sentence.npy", at[order], np.int32)
    write_numbers(folder / "intents.npy", mentions.intents[order], np.uint8)
    return len(order)


class CitingSentences:
    """The sentences of an opened index."""

    def __init__(self, folder: Path, papers: int) -> None:
        self.vectors = Vectors.open(folder / "vectors")
        self.texts = TextColumn(folder, "text")
        self.citing: NDArray[np.int32] = open_numbers(folder / "citing.npy", np.int32)
        self.paper: NDArray[np.int32] = open_numbers(folder / "paper.npy", np.int32)
        self.sentence: NDArray[np.int32] = open_numbers(folder / "sentence.npy", np.int32)
        self.intents: NDArray[np.uint8] = open_numbers(folder / "intents.npy", np.uint8)
        sentences = len(self.vectors)
        sound = (
            len(self.texts) == len(self.citing) == sentences
            and len(self.paper) == len(self.sentence) == len(self.intents)
            and _within(self.citing, -1, papers)
            and _within(self.paper, 0, papers)
            and _within(self.sentence, 0, sentences)
            and bool((np.diff(self.paper) >= 0).all())
        )
        if not sound:
            raise ArtefactError(f"{folder} is damaged: its columns do not fit together; build the index again")

    def __len__(self) -> int:
        return len(self.vectors)


def _within(values: NDArray[Any], low: int, high: int) -> bool:
    return not len(values) or (int(values.min()) >= low and int(values.max()) < high)
