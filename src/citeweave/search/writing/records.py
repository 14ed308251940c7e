"""What a segment is written from: the papers of a corpus, or the living papers of other segments.

    chosen = Chosen.of([(records_of(corpus), np.arange(len(corpus)))])      all papers of a corpus, by id
    chosen = Chosen.of([(of_segment(a), rows_a), (of_segment(b), rows_b)])  two segments become one

Nothing is copied here: columns stay where they are. Knows no vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import TextColumn
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.index import IdIndex
from citeweave.corpus.outside_names import OutsideNames
from citeweave.graph.intent_overlay import CitationPlaces, IntentOverlay
from citeweave.hashing import Keys
from citeweave.search.citing_sentences import mentions_of
from citeweave.search.segment import INTENT_BITS, Segment

TEXTS = ("id", "title", "abstract", "venue", "authors", "fields", "ids", "extra")
BLOCK = 65_536
"""Papers whose texts are held at a time."""


@dataclass(frozen=True, slots=True)
class Records:
    """Papers as columns; rows are those of their source."""

    texts: Mapping[str, TextColumn]
    years: NDArray[np.int16]
    flags: NDArray[np.uint8]
    reference_offsets: NDArray[np.int64]
    reference_keys: Keys
    """Keys of the papers that each paper cites, ascending and distinct."""

    cited_as: NDArray[np.int32]
    ids: IdIndex
    outside_names: OutsideNames | None = None

    def __len__(self) -> int:
        return len(self.years)


def of_segment(segment: Segment) -> Records:
    """The papers of a segment, deleted ones included."""
    texts = {
        "id": segment.ids,
        "title": segment.titles,
        "abstract": segment.abstracts,
        "venue": segment.venues,
        "authors": segment.authors,
        "fields": segment.fields,
        "ids": segment.other_ids,
        "extra": segment.extras,
    }
    return Records(
        texts,
        segment.years,
        segment.flags,
        segment.reference_offsets,
        segment.reference_keys,
        segment.cited_as,
        segment.id_index,
        segment.outside_names,
    )


def records_of(corpus: Corpus, overlay: IntentOverlay | None = None) -> Records:
    """The papers of a corpus; the overlay's intents stand for the corpus's own."""
    columns = (
        corpus.ids,
        corpus.titles,
        corpus.abstracts,
        corpus.venues,
        corpus.authors,
        corpus.fields,
        corpus.other_ids,
        corpus.extras,
    )
    offsets, keys = _references(corpus)
    texts = dict(zip(TEXTS, columns, strict=True))
    counts, names = cited_as_of(corpus, overlay), corpus.outside_names
    return Records(texts, corpus.years, corpus.flags, offsets, keys, counts, corpus.index, names)


def _references(corpus: Corpus) -> tuple[NDArray[np.int64], Keys]:
    """Offsets and keys of what every paper cites, inside the corpus by the cited paper's own id, outside as given."""
    inside = corpus.ids.keys()[corpus.cited]  # (citations,)
    citing = np.concatenate([corpus.citing, corpus.references_outside("citing")])
    keys = np.concatenate([inside, corpus.references_outside("key")])
    order = np.lexsort((keys, citing))
    citing, keys = citing[order], keys[order]
    first = np.ones(len(keys), bool)
    first[1:] = (citing[1:] != citing[:-1]) | (keys[1:] != keys[:-1])
    first &= citing >= 0
    counts = np.bincount(citing[first], minlength=len(corpus))
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), keys[first]


def cited_as_of(corpus: Corpus, overlay: IntentOverlay | None) -> NDArray[np.int32]:
    """Citations of every paper with each intent, (papers, 8)."""
    masks = np.array(corpus.intents if overlay is None else overlay.mask)  # (citations,)
    if overlay is None and len(masks):
        mentions = mentions_of(corpus)
        places = CitationPlaces(corpus).find(np.asarray(corpus.contexts.citing)[mentions.context], mentions.paper)
        np.bitwise_or.at(masks, places[places >= 0], mentions.intents[places >= 0])
    columns = [
        np.bincount(corpus.cited[(masks >> bit & 1).astype(bool)], minlength=len(corpus)) for bit in range(INTENT_BITS)
    ]
    return np.stack(columns, axis=1).astype(np.int32)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Papers of one or several sources in the order of their ids: what a segment will hold."""

    records: tuple[Records, ...]
    source: NDArray[np.int32]
    """Which of the records each paper is of, (papers,)."""

    row: NDArray[np.int64]
    """Its row there, (papers,)."""

    @classmethod
    def of(cls, parts: Sequence[tuple[Records, NDArray[Any]]]) -> Chosen:
        names: list[str] = []
        for records, rows in parts:
            names += records.texts["id"].take(rows)
        # by code point, which is the order of the UTF-8 bytes
        order = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
        counts = [len(rows) for _, rows in parts]
        source = np.repeat(np.arange(len(parts), dtype=np.int32), counts)[order]
        row = np.concatenate([np.empty(0, np.int64), *(np.asarray(rows, np.int64) for _, rows in parts)])[order]
        return cls(tuple(records for records, _ in parts), source, row)

    def __len__(self) -> int:
        return len(self.row)

    def places(self, source: int) -> NDArray[np.int64]:
        """For every row of a source the row of the segment, -1 where it is not taken."""
        found = np.full(len(self.records[source]), -1, np.int64)
        own = np.flatnonzero(self.source == source)
        found[self.row[own]] = own
        return found

    def numbers(self, columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """A column of numbers, or rows of a matrix, one array a source; as the segment has them."""
        whole = np.empty((len(self), *columns[0].shape[1:]), columns[0].dtype)
        for at, column in enumerate(columns):
            own = np.flatnonzero(self.source == at)
            whole[own] = column[self.row[own]]
        return whole

    def texts(self, name: str) -> Iterator[tuple[NDArray[np.int64], bytes]]:
        """Lengths and bytes of a text column, block by block."""
        for start in range(0, len(self), BLOCK):
            block = slice(start, start + BLOCK)
            source, row = self.source[block], self.row[block]
            if len(self.records) == 1:
                yield self.records[0].texts[name].gather(row)
            else:
                yield self._mixed(name, source, row)

    def _mixed(self, name: str, source: NDArray[Any], row: NDArray[np.int64]) -> tuple[NDArray[np.int64], bytes]:
        lengths, pieces = np.empty(len(row), np.int64), [b""] * len(row)
        for at, records in enumerate(self.records):
            own = np.flatnonzero(source == at)
            lengths[own], data = records.texts[name].gather(row[own])
            ends = np.cumsum(lengths[own])
            for place, begin, end in zip(own.tolist(), (ends - lengths[own]).tolist(), ends.tolist(), strict=True):
                pieces[place] = data[begin:end]
        return lengths, b"".join(pieces)

    def ragged(
        self, offsets: Sequence[NDArray[np.int64]], values: Sequence[NDArray[Any]]
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Offsets and values of a column of lists, one pair a source."""
        counts = self.numbers([np.diff(each) for each in offsets]) if len(self) else np.zeros(0, np.int64)
        bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)  # (papers + 1,)
        whole = np.empty((int(bounds[-1]), *values[0].shape[1:]), values[0].dtype)
        for at, (begins, column) in enumerate(zip(offsets, values, strict=True)):
            own = np.flatnonzero(self.source == at)
            whole[spread(bounds[own], counts[own])] = column[spread(begins[self.row[own]], counts[own])]
        return bounds, whole


def spread(starts: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.int64]:
    """Places of lists that begin at `starts` and have `counts` members, one behind the other.

    >>> spread(np.array([10, 40]), np.array([3, 2])).tolist()
    [10, 11, 12, 40, 41]
    """
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))
