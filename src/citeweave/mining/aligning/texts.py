"""The texts that alignment reads: the sentences of some papers and some citing sentences, each different text once.

    texts = gather_texts(corpus, papers, contexts, work)
    texts.of_paper(7)          numbers of the texts of its sentences, in their order
    texts.take(numbers)        the texts themselves

Sentences are those of `corpus.text.sentence_texts`, numbered as sentence vectors are. A title is no sentence. Citing
sentences are taken as they stand, citation marks included, as in ASPIRE's code. Texts lie on disk, only their keys in
memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import TextColumn, TextWriter
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.text import sentence_texts
from citeweave.hashing import Keys, hash_texts
from citeweave.progress import QUIET, Reporter

MOST_SENTENCES = 1 << 15
"""Sentences of an abstract that are looked at: their numbers are stored in 16 bits."""

_READ = 2048
_NAME = "text"


@dataclass(frozen=True, slots=True)
class AlignmentTexts:
    """Different texts, numbered in the order in which they first occur, and who has which."""

    papers: NDArray[np.int64]
    """Rows of the corpus, ascending."""

    offsets: NDArray[np.int64]
    """Shape (papers + 1,): the sentences of each in `numbers`."""

    contexts: NDArray[np.int64]
    """Numbers of citing sentences, ascending; their texts follow those of the papers in `numbers`."""

    numbers: NDArray[np.int64]
    """Shape (sentences + contexts,): which text each is."""

    first: NDArray[np.int64]
    """Shape (texts,): where each occurs first."""

    column: TextColumn

    def __len__(self) -> int:
        return len(self.first)

    def of_paper(self, row: int) -> NDArray[np.int64]:
        """Texts of the paper's sentences."""
        at = int(np.searchsorted(self.papers, row))
        return self.numbers[self.offsets[at] : self.offsets[at + 1]]

    def of_contexts(self, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Texts of these citing sentences."""
        return self.numbers[int(self.offsets[-1]) + np.searchsorted(self.contexts, contexts)]

    def counts(self, rows: NDArray[np.integer]) -> NDArray[np.int64]:
        """Sentences of each of these papers."""
        return np.diff(self.offsets)[np.searchsorted(self.papers, rows)]

    def take(self, numbers: NDArray[np.int64]) -> list[str]:
        return self.column.take(self.first[numbers])


def gather_texts(
    corpus: Corpus,
    papers: NDArray[np.int64],
    contexts: NDArray[np.int64],
    work: Path,
    *,
    reporter: Reporter = QUIET,
) -> AlignmentTexts:
    """Split the abstracts of the papers, and add the citing sentences; both are given ascending."""
    writer, keys, counts = TextWriter(work, _NAME), [np.zeros(0, np.uint64)], [0]
    with reporter.task("splitting abstracts", len(papers), "papers") as advance:
        for start in range(0, len(papers), _READ):
            split = [
                sentence_texts(text)[:MOST_SENTENCES] for text in corpus.abstracts.take(papers[start : start + _READ])
            ]
            keys.append(_write(writer, [text for texts in split for text in texts]))
            counts += [len(texts) for texts in split]
            advance(len(split))
    for start in range(0, len(contexts), _READ):
        keys.append(_write(writer, corpus.contexts.texts.take(contexts[start : start + _READ])))
    writer.close()
    _, first, inverse = np.unique(np.concatenate(keys), return_index=True, return_inverse=True)
    order = np.argsort(first)  # neighbours in the corpus stay neighbours
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    offsets = np.cumsum(counts, dtype=np.int64)
    return AlignmentTexts(papers, offsets, contexts, place[inverse], first[order], TextColumn(work, _NAME))


def _write(writer: TextWriter, texts: list[str]) -> Keys:
    writer.append(texts)
    return hash_texts(texts)
