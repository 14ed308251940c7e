"""What goes out: the papers of the samples as ids, texts and records, and every triplet accounted for.

Shared by the writers of all formats; knows none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.corpus import Corpus, lines
from citeweave.corpus.text import paper_text
from citeweave.errors import ArtefactError
from citeweave.mining.converting.options import ExportOptions
from citeweave.mining.samples import Samples
from citeweave.progress import Advance
from citeweave.tally import Count, Tally

NO_TEXT = "paper without title and abstract"
NO_POSITIVE = "no positive"
NO_NEGATIVE = "no negative"

CELLS = 3 << 13
"""Papers of a block that is written at once; bounds the texts in memory to some ten megabytes."""

PaperRows = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Outgoing:
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
            raise ArtefactError(f"{samples.folder} is damaged: it names rows that no paper has; mine the samples again")
