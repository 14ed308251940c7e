"""What an export can be told; every option belongs to some formats, and `convert.py` refuses it for others.

What comes in: rows of query, positive and negatives become samples, every record accounted for.

    q, a, 1        one sample: positives a b, negatives 1 2
    q, b, 2
    q, b, 3        another one: b is in the first already

Lines that follow each other and have one query form a sample as long as no paper comes back in it: positives and
negatives then pair up one to one, and `triplets()` gives the lines back in their order. Nothing is sorted, and no more
than a block is held. Shared by the readers of all formats; knows none of them.

What goes out: the papers of the samples as ids, texts and records, and every triplet accounted for.

Shared by the writers of all formats; knows none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import ArtifactError, UserError, choose
from citeweave.core.progress import Advance, Count, Tally
from citeweave.corpus.corpus import Corpus, lines
from citeweave.corpus.text import paper_text
from citeweave.mining.samples import SampleBlock, SampleNames, Samples, block_of

COLUMNS = ("triplet", "group")
FILE_TYPES = ("parquet", "jsonl")


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of `export_samples`."""

    gzip: bool = False
    """scincl: write `train_triples.csv.gz`."""

    leave_out: tuple[str, ...] = ("easy",)
    """specter: rules whose negatives stay out of data.json, because SPECTER draws easy negatives itself."""

    val: float = 0.0
    """specter: share of the queries that goes to val.txt."""

    test: float = 0.0
    """specter: share of the queries that goes to test.txt."""

    columns: str = "triplet"
    """sentence_transformers: one negative a row (`triplet`), or all negatives of the sample (`group`)."""

    negatives: int = 0
    """sentence_transformers, group: how many negatives a row has; 0 = as many as most rows can have."""

    file_type: str = "parquet"
    """sentence_transformers: `parquet` or `jsonl`."""

    ids: bool = False
    """sentence_transformers: also write the papers' ids, by which rows are read back quickly. Its trainer takes every
    column for a text, so they are to be removed before training."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "leave_out", tuple(self.leave_out))
        choose(self.columns, COLUMNS, "--columns")
        choose(self.file_type, FILE_TYPES, "--file-type")
        for name, share in (("--val", self.val), ("--test", self.test)):
            if not 0 <= share < 1:
                raise UserError(f"{name} is {share}; it must be a share of the queries from 0 to less than 1")
        if self.val + self.test >= 1:
            raise UserError(f"--val {self.val} and --test {self.test} leave nothing to train on; make them smaller")
        if not 0 <= self.negatives <= 1000:
            raise UserError(f"--negatives is {self.negatives}; it must be 1 to 1000, or 0 for what most rows have")


# What comes in: rows of query, positive and negatives become samples, every record accounted for.

NAMES = SampleNames(rules=("given positive", "given negative"))
POSITIVE, NEGATIVE = 0, 1

OUTSIDE = ("query not in the corpus", "positive not in the corpus", "negative not in the corpus")
TWICE = "one paper twice in the same record"
NO_ID = "no id"

ROWS = 1 << 13
"""Records looked up at once."""

LARGEST_SAMPLE = 1024
"""Lines of one query that become one sample; more become several."""

_WRITTEN_AT_ONCE = 1 << 16

Item = TypeVar("Item")


def blocks(items: Iterable[Item], size: int = ROWS) -> Iterator[list[Item]]:
    """
    >>> list(blocks("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    rest = iter(items)
    while block := list(islice(rest, size)):
        yield block


def known_rows(rows: NDArray[np.int32], tally: Tally, kind: str) -> NDArray[np.int32]:
    """Of records of shape (n, 2 + negatives) those whose papers are all known and all different."""
    missing = rows < 0
    outside = [missing[:, 0], missing[:, 1], missing[:, 2:].any(axis=1)]
    twice = (np.diff(np.sort(rows, axis=1), axis=1) == 0).any(axis=1)
    good = np.ones(len(rows), bool)
    for reason, found in zip((*OUTSIDE, TWICE), (*outside, twice), strict=True):
        tally.reject(kind, reason, int((found & good).sum()))
        good &= ~found
    tally.keep(kind, int(good.sum()))
    return rows[good]


def paired_samples(triplets: Iterable[NDArray[np.int32]]) -> Iterator[SampleBlock]:
    """Samples of triplets, given in blocks of shape (n, 3) in their order."""
    pending = _Pending()
    for block in triplets:
        for query, positive, negative in block.tolist():
            pending.add(query, positive, negative)
        if pending.size >= _WRITTEN_AT_ONCE:
            yield pending.take()
    if pending.size:
        yield pending.take(last=True)


def grouped_samples(rows: Iterable[NDArray[np.int32]]) -> Iterator[SampleBlock]:
    """One sample for every row of shape (2 + negatives,), given in blocks."""
    for block in rows:
        if len(block):
            yield block_of(
                block[:, 0].tolist(),
                block[:, 1:2].tolist(),
                block[:, 2:].tolist(),
                positive_rule=POSITIVE,
                negative_rule=NEGATIVE,
            )


class _Pending:
    """Samples that wait to be written; the last of them may still grow."""

    def __init__(self) -> None:
        self._anchors: list[int] = []
        self._positives: list[list[int]] = []
        self._negatives: list[list[int]] = []
        self._seen: set[int] = set()
        self.size = 0

    def add(self, query: int, positive: int, negative: int) -> None:
        goes_on = self._anchors and self._anchors[-1] == query and len(self._positives[-1]) < LARGEST_SAMPLE
        if not goes_on or positive in self._seen or negative in self._seen:
            self._anchors.append(query)
            self._positives.append([])
            self._negatives.append([])
            self._seen = set()
        self._positives[-1].append(positive)
        self._negatives[-1].append(negative)
        self._seen |= {positive, negative}
        self.size += 1

    def take(self, *, last: bool = False) -> SampleBlock:
        """The samples that are complete: all but the one that may still grow."""
        end = len(self._anchors) if last else len(self._anchors) - 1
        block = block_of(
            self._anchors[:end],
            self._positives[:end],
            self._negatives[:end],
            positive_rule=POSITIVE,
            negative_rule=NEGATIVE,
        )
        del self._anchors[:end], self._positives[:end], self._negatives[:end]
        self.size = sum(map(len, self._positives))
        return block


# What goes out: the papers of the samples as ids, texts and records, and every triplet accounted for.

NO_TEXT = "paper without title and abstract"
NO_POSITIVE = "no positive"
NO_NEGATIVE = "no negative"

CELLS = 3 << 13
"""Papers of a block that is written at once; bounds the texts in memory to some ten megabytes."""

PaperRows = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ExportedSamples:
    """What a writer is given."""

    samples: Samples
    corpus: Corpus
    options: ExportOptions
    tally: Tally
    advance: Advance

    def triplets(self, *, with_text: bool) -> Iterator[PaperRows]:
        """Anchor, positive and negative in blocks of shape (n, 3); what has no text to show is counted."""
        triplets = self.samples.triplets()
        self.count_samples(needs_negatives=True)
        self.tally.counts["triplets"] = Count()
        for start in range(0, len(triplets), CELLS // 3):
            part = slice(start, start + CELLS // 3)
            block = np.stack([triplets.anchors[part], triplets.positives[part], triplets.negatives[part]], axis=1)
            yield self.writable(block, "triplets", with_text=with_text)

    def count_samples(self, *, needs_negatives: bool) -> None:
        """How many samples have what the format wants of them."""
        self.tally.counts["samples"] = count = Count()
        no_positive = np.diff(self.samples.positives.offsets) == 0
        no_negative = (np.diff(self.samples.negatives.offsets) == 0) & ~no_positive & needs_negatives
        self.tally.reject("samples", NO_POSITIVE, int(no_positive.sum()))
        self.tally.reject("samples", NO_NEGATIVE, int(no_negative.sum()))
        count.kept = len(self.samples) - int(no_positive.sum()) - int(no_negative.sum())

    def writable(self, block: PaperRows, kind: str, *, with_text: bool) -> PaperRows:
        """The rows of a block, of shape (n, papers), whose papers can all be shown."""
        self.tally.counts.setdefault(kind, Count())
        kept = block[self.has_text(block).all(axis=1)] if with_text else block
        self.tally.reject(kind, NO_TEXT, len(block) - len(kept))
        self.tally.keep(kind, len(kept))
        self.advance(len(block))
        return kept

    def has_text(self, rows: PaperRows) -> NDArray[np.bool_]:
        titles, abstracts = self.corpus.titles.offsets, self.corpus.abstracts.offsets
        return (titles[rows + 1] > titles[rows]) | (abstracts[rows + 1] > abstracts[rows])

    def ids(self, rows: PaperRows) -> NDArray[Any]:
        """The ids of the papers, in the shape of the rows."""
        distinct, places = np.unique(rows, return_inverse=True)
        ids = np.array(self.corpus.ids.take(distinct), object)
        return np.asarray(ids[places].reshape(rows.shape))

    def texts(self, rows: PaperRows) -> NDArray[Any]:
        """The texts of the papers as an encoder reads them, in the shape of the rows."""
        distinct, places = np.unique(rows, return_inverse=True)
        parts = zip(self.corpus.titles.take(distinct), self.corpus.abstracts.take(distinct), strict=True)
        texts = np.array([paper_text(title, abstract) for title, abstract in parts], object)
        return np.asarray(texts[places].reshape(rows.shape))

    def other_ids(self, row: int, prefix: str) -> str | None:
        """The first id of a paper that has this prefix, without it."""
        ids = (self.corpus.ids[row], *lines(self.corpus.other_ids[row]))
        return next((id.removeprefix(prefix) for id in ids if id.startswith(prefix)), None)


def check_rows(samples: Samples, corpus: Corpus) -> None:
    """Refuse samples of another corpus, and rows that no paper has."""
    samples.check_corpus(corpus.hash, corpus.folder)
    for rows in (samples.anchors, samples.positives.rows, samples.negatives.rows):
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(corpus):
            raise ArtifactError(f"{samples.folder} is damaged: it names rows that no paper has; mine the samples again")
