"""Papers of an index's next generation: selected from a corpus and the last one, and written as columns without vectors.

    chosen = SelectedPapers.of([(corpus_records(corpus), np.arange(len(corpus)))])                 all papers of a corpus
    chosen = SelectedPapers.of([(corpus_records(corpus), rows), (index_records(index), others)])   papers are added
    write_papers(folder, chosen)                                 texts, years, ids, references, words
    hash_records(records)                                        to be compared with the hashes of an index

A text key is a hash of title and abstract, a record key one of all columns, references and counts of intents. Selecting
copies nothing. Does not write vectors (`index_vectors.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import MatrixWriter, TextColumn, TextWriter, write_numbers
from citeweave.core.hash_keys import Keys, mix_keys
from citeweave.corpus.corpus import Corpus, IdIndex
from citeweave.corpus.paper import NameCollector, OutsideName, OutsideNames, TakeNames
from citeweave.graph.intent_overlay import CitationPlaces, IntentOverlay
from citeweave.search.citing_sentences import corpus_mentions
from citeweave.search.index_columns import INTENT_BITS, IndexColumns
from citeweave.search.words import searchable_text, write_words

TEXTS = ("id", "title", "abstract", "venue", "authors", "fields", "ids", "extra")
BLOCK = 65_536
"""Papers whose texts are in memory at a time."""


@dataclass(frozen=True, slots=True)
class PaperRecords:
    """Records of papers, of a corpus or an index, as columns from which those of an index are written."""

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


def index_records(index: IndexColumns) -> PaperRecords:
    """Return the papers of an index's older generation as records for the next one."""
    columns = (
        index.ids,
        index.titles,
        index.abstracts,
        index.venues,
        index.authors,
        index.fields,
        index.other_ids,
        index.extras,
    )
    return PaperRecords(
        dict(zip(TEXTS, columns, strict=True)),
        index.years,
        index.flags,
        index.reference_offsets,
        index.reference_keys,
        index.cited_as,
        index.id_index,
        index.outside_names,
    )


def corpus_records(corpus: Corpus, overlay: IntentOverlay | None = None) -> PaperRecords:
    """Return the papers of a corpus as records for an index; the overlay's intents replace the corpus's own."""
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
    offsets, keys = _corpus_references(corpus)
    texts = dict(zip(TEXTS, columns, strict=True))
    counts, names = _count_intents(corpus, overlay), corpus.outside_names
    return PaperRecords(texts, corpus.years, corpus.flags, offsets, keys, counts, corpus.index, names)


def _corpus_references(corpus: Corpus) -> tuple[NDArray[np.int64], Keys]:
    """Return offsets and keys of what every paper cites: papers of the corpus by their own id, others as cited."""
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


def _count_intents(corpus: Corpus, overlay: IntentOverlay | None) -> NDArray[np.int32]:
    """Count the citations of every paper with each intent, (papers, 8)."""
    masks = np.array(corpus.intents if overlay is None else overlay.mask)  # (citations,)
    if overlay is None and len(masks):
        mentions = corpus_mentions(corpus)
        places = CitationPlaces(corpus).find(np.asarray(corpus.contexts.citing)[mentions.context], mentions.paper)
        np.bitwise_or.at(masks, places[places >= 0], mentions.intents[places >= 0])
    columns = [
        np.bincount(corpus.cited[(masks >> bit & 1).astype(bool)], minlength=len(corpus)) for bit in range(INTENT_BITS)
    ]
    return np.stack(columns, axis=1).astype(np.int32)


@dataclass(frozen=True, slots=True)
class SelectedPapers:
    """Papers of one or several sources (corpus, index) in the order of their ids: what the next generation will hold."""

    records: tuple[PaperRecords, ...]
    source: NDArray[np.int32]
    """Number of the records that each paper is from, (papers,)."""

    row: NDArray[np.int64]
    """Its row there, (papers,)."""

    @classmethod
    def of(cls, parts: Sequence[tuple[PaperRecords, NDArray[Any]]]) -> SelectedPapers:
        """Select rows of some records as the papers of an index and sort them by id."""
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
        """Return the row in the new index of every row of a source, -1 where it is not selected."""
        places = np.full(len(self.records[source]), -1, np.int64)
        own = np.flatnonzero(self.source == source)
        places[self.row[own]] = own
        return places

    def numbers(self, columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Gather a numeric column, or rows of a matrix, of the selected papers in order, from one array per source."""
        gathered = np.empty((len(self), *columns[0].shape[1:]), columns[0].dtype)
        for at, column in enumerate(columns):
            own = np.flatnonzero(self.source == at)
            gathered[own] = column[self.row[own]]
        return gathered

    def texts(self, name: str) -> Iterator[tuple[NDArray[np.int64], bytes]]:
        """Yield lengths and bytes of a text column of the selected papers, block by block."""
        for start in range(0, len(self), BLOCK):
            block = slice(start, start + BLOCK)
            source, row = self.source[block], self.row[block]
            if len(self.records) == 1:
                yield self.records[0].texts[name].gather(row)
            else:
                yield self._gather_texts(name, source, row)

    def _gather_texts(self, name: str, source: NDArray[Any], row: NDArray[np.int64]) -> tuple[NDArray[np.int64], bytes]:
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
        """Gather a column of lists of the selected papers in their order, from offsets and values per source."""
        counts = self.numbers([np.diff(each) for each in offsets]) if len(self) else np.zeros(0, np.int64)
        bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)  # (papers + 1,)
        gathered = np.empty((int(bounds[-1]), *values[0].shape[1:]), values[0].dtype)
        for at, (begins, column) in enumerate(zip(offsets, values, strict=True)):
            own = np.flatnonzero(self.source == at)
            gathered[spread(bounds[own], counts[own])] = column[spread(begins[self.row[own]], counts[own])]
        return bounds, gathered


def spread(starts: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.int64]:
    """Return the places of papers' lists, concatenated, that begin at `starts` and have `counts` members.

    >>> spread(np.array([10, 40]), np.array([3, 2])).tolist()
    [10, 11, 12, 40, 41]
    """
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))


# --- writing ---------------------------------------------------------------------------------------------

_BLOCK = 16_384


class RecordKeys(NamedTuple):
    """Hashes of each paper's text and of its complete record, which reveal a change; (papers,) each."""

    text: Keys
    record: Keys


def write_papers(folder: Path, chosen: SelectedPapers) -> RecordKeys:
    """Write the columns, ids, references and words of papers into the folder of a new index."""
    papers = folder / "papers"
    for name in TEXTS:
        writer = TextWriter(papers, name)
        for lengths, data in chosen.texts(name):
            writer.append_bytes(lengths, data)
        writer.close()
    years = chosen.numbers([records.years for records in chosen.records])
    flags = chosen.numbers([records.flags for records in chosen.records])
    write_numbers(papers / "year.npy", years, np.int16)
    write_numbers(papers / "flags.npy", flags, np.uint8)
    cited_as = chosen.numbers([records.cited_as for records in chosen.records])
    counts = MatrixWriter(papers / "cited_as.npy", np.int32, INTENT_BITS)
    counts.append(cited_as)
    counts.close()
    offsets, keys = _write_references(folder / "references", chosen)
    index = _index_ids(chosen)
    index.save(folder / "ids")
    _write_outside_names(folder, chosen, keys, index)
    columns = {name: TextColumn(papers, name) for name in TEXTS}
    write_numbers(papers / "key.npy", columns["id"].keys())
    hashed = hash_records(PaperRecords(columns, years, flags, offsets, keys, cited_as, index))
    write_numbers(papers / "text_key.npy", hashed.text)
    write_numbers(papers / "record_key.npy", hashed.record)
    write_words(folder / "words", _searchable_texts(columns["title"], columns["abstract"]))
    return hashed


def hash_records(records: PaperRecords) -> RecordKeys:
    """Hash the text (title and abstract) and the complete record of every paper that an index may hold."""
    text = mix_keys(records.texts["title"].keys(), records.texts["abstract"].keys())
    record = mix_keys(text, np.asarray(records.years).astype(np.uint64))
    record = mix_keys(record, np.asarray(records.flags).astype(np.uint64))
    for name in ("id", "venue", "authors", "fields", "ids", "extra"):
        record = mix_keys(record, records.texts[name].keys())
    for bit in range(INTENT_BITS):
        record = mix_keys(record, np.ascontiguousarray(records.cited_as[:, bit]).astype(np.uint64))
    return RecordKeys(text, mix_keys(record, _sum_keys(records.reference_offsets, records.reference_keys)))


def _sum_keys(offsets: np.ndarray[tuple[int], np.dtype[np.int64]], keys: Keys) -> Keys:
    """Return the wrapping sum of every list of reference keys, (papers,)."""
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(keys, dtype=np.uint64)])
    return np.asarray(total[offsets[1:]] - total[offsets[:-1]])


def _write_references(folder: Path, chosen: SelectedPapers) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Keys]:
    """Write what each paper cites, by paper and by cited paper; return offsets and keys."""
    offsets, keys = chosen.ragged(
        [records.reference_offsets for records in chosen.records],
        [records.reference_keys for records in chosen.records],
    )
    write_numbers(folder / "offsets.npy", offsets)
    write_numbers(folder / "key.npy", keys)
    rows = np.repeat(np.arange(len(chosen), dtype=np.int32), np.diff(offsets))
    order = np.argsort(keys, kind="stable")
    write_numbers(folder / "cited.npy", keys[order])
    write_numbers(folder / "row.npy", rows[order])
    return offsets, keys


def _write_outside_names(folder: Path, chosen: SelectedPapers, references: Keys, index: IdIndex) -> None:
    """Write the names of cited papers that the index lacks, from the sources or from papers left out of it."""
    names = NameCollector(references[index.rows_of(references) < 0])
    for records in chosen.records:
        if records.outside_names is not None:
            names.offer(records.outside_names.keys, records.outside_names.take)
    for records in chosen.records:
        names.offer(records.texts["id"].keys(), _outside_names(records.texts["id"]))
    names.write(folder)


def _outside_names(ids: TextColumn) -> TakeNames:
    return lambda rows: [OutsideName(id) for id in ids.take(np.array(rows))]


def _index_ids(chosen: SelectedPapers) -> IdIndex:
    """Map every id of the papers to their rows; where two claim one id, the source that came last has it."""
    keys, rows = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for at in reversed(range(len(chosen.records))):
        ids = chosen.records[at].ids
        places = chosen.places(at)[ids.rows]
        keys.append(np.asarray(ids.keys)[places >= 0])
        rows.append(places[places >= 0])
    known, first = np.unique(np.concatenate(keys), return_index=True)
    return IdIndex.of(known, np.concatenate(rows)[first].astype(np.int32))


def _searchable_texts(titles: TextColumn, abstracts: TextColumn) -> Iterator[str]:
    for start in range(0, len(titles), _BLOCK):
        block = slice(start, start + _BLOCK)
        for title, abstract in zip(titles[block], abstracts[block], strict=True):
            yield searchable_text(title, abstract)
