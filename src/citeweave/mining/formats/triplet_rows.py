"""Triplets as rows of the corpus, shared by all sample formats: records to samples, samples to records.

Reading turns rows of query, positive and negatives into samples and counts every record:

    q, a, 1        one sample: positives a b, negatives 1 2
    q, b, 2
    q, b, 3        another one: b is in the first already

Consecutive lines with the same query form a sample as long as no paper is repeated in it: positives and negatives
then pair up one to one, and `triplets()` returns the lines in their order. Nothing is sorted, and no more than a block
is held.

Writing yields the papers of the samples as ids, texts and records. Knows no format; `convert.py` refuses an option for
formats that do not have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import ArtifactError
from citeweave.core.progress import Advance, Count, Tally
from citeweave.corpus.corpus import Corpus, lines
from citeweave.corpus.text import paper_text
from citeweave.mining.options import ExportOptions
from citeweave.mining.samples import SampleBlock, SampleNames, Samples, block_from_lists

# Reading: records to samples.

NAMES = SampleNames(rules=("given positive", "given negative"))
POSITIVE, NEGATIVE = 0, 1

OUTSIDE = ("query not in the corpus", "positive not in the corpus", "negative not in the corpus")
TWICE = "one paper twice in the same record"
NO_ID = "no id"

ROWS = 1 << 13
"""Records looked up at once."""

MAX_SAMPLE = 1024
"""Maximum number of lines of one query in a sample; more become several samples."""

_WRITTEN_AT_ONCE = 1 << 16

Item = TypeVar("Item")


def blocks(items: Iterable[Item], size: int = ROWS) -> Iterator[list[Item]]:
    """Yield triplet rows or other items in lists of at most `size`.

    >>> list(blocks("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    rest = iter(items)
    while block := list(islice(rest, size)):
        yield block


def known_rows(rows: NDArray[np.int32], tally: Tally, kind: str) -> NDArray[np.int32]:
    """Return the triplet rows, (n, 2 + negatives), whose papers are all in the corpus and different; count the others."""
    missing = rows < 0
    outside = [missing[:, 0], missing[:, 1], missing[:, 2:].any(axis=1)]
    twice = (np.diff(np.sort(rows, axis=1), axis=1) == 0).any(axis=1)
    valid = np.ones(len(rows), bool)
    for reason, mask in zip((*OUTSIDE, TWICE), (*outside, twice), strict=True):
        tally.reject(kind, reason, int((mask & valid).sum()))
        valid &= ~mask
    tally.keep(kind, int(valid.sum()))
    return rows[valid]


def paired_samples(triplets: Iterable[NDArray[np.int32]]) -> Iterator[SampleBlock]:
    """Group triplet rows, in blocks of shape (n, 3) in their order, into samples."""
    pending = _PendingSamples()
    for block in triplets:
        for query, positive, negative in block.tolist():
            pending.add(query, positive, negative)
        if pending.size >= _WRITTEN_AT_ONCE:
            yield pending.take()
    if pending.size:
        yield pending.take(last=True)


def grouped_samples(rows: Iterable[NDArray[np.int32]]) -> Iterator[SampleBlock]:
    """Yield one sample for every triplet row with any number of negatives, (2 + negatives,), block by block."""
    for block in rows:
        if len(block):
            yield block_from_lists(
                block[:, 0].tolist(),
                block[:, 1:2].tolist(),
                block[:, 2:].tolist(),
                positive_rule=POSITIVE,
                negative_rule=NEGATIVE,
            )


class _PendingSamples:
    """Samples built from triplets that wait to be written; the last of them may still grow."""

    def __init__(self) -> None:
        self._anchors: list[int] = []
        self._positives: list[list[int]] = []
        self._negatives: list[list[int]] = []
        self._seen: set[int] = set()
        self.size = 0

    def add(self, query: int, positive: int, negative: int) -> None:
        """Add a triplet row to the last sample, or start a new one."""
        continues = self._anchors and self._anchors[-1] == query and len(self._positives[-1]) < MAX_SAMPLE
        if not continues or positive in self._seen or negative in self._seen:
            self._anchors.append(query)
            self._positives.append([])
            self._negatives.append([])
            self._seen = set()
        self._positives[-1].append(positive)
        self._negatives[-1].append(negative)
        self._seen |= {positive, negative}
        self.size += 1

    def take(self, *, last: bool = False) -> SampleBlock:
        """Return the complete samples of the triplet rows so far: all but the one that may still grow."""
        end = len(self._anchors) if last else len(self._anchors) - 1
        block = block_from_lists(
            self._anchors[:end],
            self._positives[:end],
            self._negatives[:end],
            positive_rule=POSITIVE,
            negative_rule=NEGATIVE,
        )
        del self._anchors[:end], self._positives[:end], self._negatives[:end]
        self.size = sum(map(len, self._positives))
        return block


# Writing: samples to records.

NO_TEXT = "paper without title and abstract"
NO_POSITIVE = "no positive"
NO_NEGATIVE = "no negative"

CELLS = 3 << 13
"""Papers written at once; bounds the texts in memory to some ten megabytes."""

PaperRows = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ExportedSamples:
    """Samples to write as triplet rows, with their corpus, options and counts, as the writers of all formats use them."""

    samples: Samples
    corpus: Corpus
    options: ExportOptions
    tally: Tally
    advance: Advance

    def triplets(self, *, with_text: bool) -> Iterator[PaperRows]:
        """Yield triplet rows, anchor, positive and negative, in blocks of shape (n, 3); count those without text."""
        triplets = self.samples.triplets()
        self.count_samples(needs_negatives=True)
        self.tally.counts["triplets"] = Count()
        for start in range(0, len(triplets), CELLS // 3):
            part = slice(start, start + CELLS // 3)
            block = np.stack([triplets.anchors[part], triplets.positives[part], triplets.negatives[part]], axis=1)
            yield self.writable(block, "triplets", with_text=with_text)

    def count_samples(self, *, needs_negatives: bool) -> None:
        """Count the samples that give triplet rows: with a positive and, if the format needs them, negatives."""
        self.tally.counts["samples"] = count = Count()
        no_positive = np.diff(self.samples.positives.offsets) == 0
        no_negative = (np.diff(self.samples.negatives.offsets) == 0) & ~no_positive & needs_negatives
        self.tally.reject("samples", NO_POSITIVE, int(no_positive.sum()))
        self.tally.reject("samples", NO_NEGATIVE, int(no_negative.sum()))
        count.kept = len(self.samples) - int(no_positive.sum()) - int(no_negative.sum())

    def writable(self, block: PaperRows, kind: str, *, with_text: bool) -> PaperRows:
        """Return the triplet rows of a block, (n, papers), whose papers all have text, if the format writes texts."""
        self.tally.counts.setdefault(kind, Count())
        rows = block[self.has_text(block).all(axis=1)] if with_text else block
        self.tally.reject(kind, NO_TEXT, len(block) - len(rows))
        self.tally.keep(kind, len(rows))
        self.advance(len(block))
        return rows

    def has_text(self, rows: PaperRows) -> NDArray[np.bool_]:
        """Return which papers have a title or an abstract, in the shape of the rows."""
        titles, abstracts = self.corpus.titles.offsets, self.corpus.abstracts.offsets
        return (titles[rows + 1] > titles[rows]) | (abstracts[rows + 1] > abstracts[rows])

    def ids(self, rows: PaperRows) -> NDArray[Any]:
        """Return the ids of the papers, in the shape of the rows."""
        distinct, places = np.unique(rows, return_inverse=True)
        ids = np.array(self.corpus.ids.take(distinct), object)
        return np.asarray(ids[places].reshape(rows.shape))

    def texts(self, rows: PaperRows) -> NDArray[Any]:
        """Return the texts of the papers as an encoder reads them, in the shape of the rows."""
        distinct, places = np.unique(rows, return_inverse=True)
        parts = zip(self.corpus.titles.take(distinct), self.corpus.abstracts.take(distinct), strict=True)
        texts = np.array([paper_text(title, abstract) for title, abstract in parts], object)
        return np.asarray(texts[places].reshape(rows.shape))

    def other_ids(self, row: int, prefix: str) -> str | None:
        """Return the first id of a paper with this prefix, without the prefix."""
        ids = (self.corpus.ids[row], *lines(self.corpus.other_ids[row]))
        return next((id.removeprefix(prefix) for id in ids if id.startswith(prefix)), None)


def check_rows(samples: Samples, corpus: Corpus) -> None:
    """Refuse to export samples of another corpus, or with rows that no paper has."""
    samples.check_corpus(corpus.hash, corpus.folder)
    for rows in (samples.anchors, samples.positives.rows, samples.negatives.rows):
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(corpus):
            raise ArtifactError(f"{samples.folder} is damaged: it names rows that no paper has; mine the samples again")
