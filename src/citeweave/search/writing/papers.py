"""The columns of a segment that need no model: texts, years, ids, references, words, and what tells changes.

    write_papers(folder, chosen)
    hash_records(records)          text keys and record keys of a source, to be compared with those of an index

A text key is a hash of title and abstract, a record key one of all columns, references and counts of intents.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from citeweave.columns import MatrixWriter, TextColumn, TextWriter, write_numbers
from citeweave.corpus.index import IdIndex
from citeweave.corpus.outside_names import NameCollector, OutsideName, Take
from citeweave.hashing import Keys, mix
from citeweave.search.segment import INTENT_BITS
from citeweave.search.words.writing import text_of, write_words
from citeweave.search.writing.records import TEXTS, Chosen, Records

_BLOCK = 16_384


class RecordKeys(NamedTuple):
    """Hashes by which a change is seen, (papers,) each."""

    text: Keys
    record: Keys


def write_papers(folder: Path, chosen: Chosen) -> RecordKeys:
    """Write the papers' columns, ids, references and words into the folder of a segment."""
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
    index = _ids(chosen)
    index.save(folder / "ids")
    _write_outside_names(folder, chosen, keys, index)
    columns = {name: TextColumn(papers, name) for name in TEXTS}
    write_numbers(papers / "key.npy", columns["id"].keys())
    hashed = hash_records(Records(columns, years, flags, offsets, keys, cited_as, index))
    write_numbers(papers / "text_key.npy", hashed.text)
    write_numbers(papers / "record_key.npy", hashed.record)
    write_words(folder / "words", _texts(columns["title"], columns["abstract"]))
    return hashed


def hash_records(records: Records) -> RecordKeys:
    """Text and record keys of all papers of a source."""
    text = mix(records.texts["title"].keys(), records.texts["abstract"].keys())
    whole = mix(text, np.asarray(records.years).astype(np.uint64))
    whole = mix(whole, np.asarray(records.flags).astype(np.uint64))
    for name in ("id", "venue", "authors", "fields", "ids", "extra"):
        whole = mix(whole, records.texts[name].keys())
    for bit in range(INTENT_BITS):
        whole = mix(whole, np.ascontiguousarray(records.cited_as[:, bit]).astype(np.uint64))
    return RecordKeys(text, mix(whole, _sums(records.reference_offsets, records.reference_keys)))


def _sums(offsets: np.ndarray[tuple[int], np.dtype[np.int64]], keys: Keys) -> Keys:
    """One number of every list of keys: their sum, which wraps around; (papers,)."""
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(keys, dtype=np.uint64)])
    return np.asarray(total[offsets[1:]] - total[offsets[:-1]])


def _write_references(folder: Path, chosen: Chosen) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Keys]:
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


def _write_outside_names(folder: Path, chosen: Chosen, references: Keys, index: IdIndex) -> None:
    """What the cited papers that are not in the segment are called: as the sources say, or as papers left out of it."""
    names = NameCollector(references[index.rows_of(references) < 0])
    for records in chosen.records:
        if records.outside_names is not None:
            names.offer(records.outside_names.keys, records.outside_names.take)
    for records in chosen.records:
        names.offer(records.texts["id"].keys(), _named_by(records.texts["id"]))
    names.write(folder)


def _named_by(ids: TextColumn) -> Take:
    return lambda rows: [OutsideName(id) for id in ids.take(np.array(rows))]


def _ids(chosen: Chosen) -> IdIndex:
    """From every id of the papers to their rows; where two claim one id, the source that came last has it."""
    keys, rows = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for at in reversed(range(len(chosen.records))):
        ids = chosen.records[at].ids
        places = chosen.places(at)[ids.rows]
        keys.append(np.asarray(ids.keys)[places >= 0])
        rows.append(places[places >= 0])
    known, first = np.unique(np.concatenate(keys), return_index=True)
    return IdIndex.of(known, np.concatenate(rows)[first].astype(np.int32))


def _texts(titles: TextColumn, abstracts: TextColumn) -> Iterator[str]:
    for start in range(0, len(titles), _BLOCK):
        block = slice(start, start + _BLOCK)
        for title, abstract in zip(titles[block], abstracts[block], strict=True):
            yield text_of(title, abstract)
