"""The next generation of an index: papers selected from a corpus and the last generation, written as one folder.

    chosen = SelectedPapers.of([(corpus_records(corpus), np.arange(len(corpus)))])                 all papers of a corpus
    chosen = SelectedPapers.of([(index_records(index), others), (corpus_records(corpus), rows)])   papers are added
    generation = Generation(chosen, facts, embedding, last=index, corpus=corpus)
    generation.publish(writer, recipe)       written, resumed where it was interrupted, then the current one
    hash_records(records)                    to be compared with the hashes of an index

A text key is a hash of title and abstract, a record key one of all columns, references and counts of intents. Selecting
copies nothing. Vectors of papers and sentences whose text the last generation has are carried over (`index_vectors.py`);
files that would be the same are shared with it. Who selects the papers: `build.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, artifact_matches, new_artifact
from citeweave.core.columns import MatrixWriter, TextColumn, TextWriter, write_numbers
from citeweave.core.errors import EmptyResultError, UserError
from citeweave.core.files import link_or_copy
from citeweave.core.hash_keys import Keys, mix_keys
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.publish import remove_leftovers
from citeweave.core.ragged import count_owners, spans, to_offsets
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.id_index import IdIndex
from citeweave.corpus.paper import NameCollector, OutsideName, OutsideNames, TakeNames
from citeweave.encoders.aspects import save_heads
from citeweave.graph.intent_overlay import CitationPlaces, IntentOverlay
from citeweave.search.citing_sentences import SentenceSources, corpus_mentions, write_citing_sentences
from citeweave.search.index import HEADS, INTENT_BITS, Index
from citeweave.search.index_vectors import Embedding, GenerationVectors, PrecomputedVectors, model_metadata
from citeweave.search.state import KIND, VERSION, IndexWriter
from citeweave.search.words import searchable_text
from citeweave.search.write_words import write_words

TEXTS = {
    "id": "ids",
    "title": "titles",
    "abstract": "abstracts",
    "venue": "venues",
    "authors": "authors",
    "fields": "fields",
    "ids": "other_ids",
    "extra": "extras",
}
"""Text columns of papers: their names on disk, and as attributes of a corpus or an index."""

BLOCK = 65_536
"""Papers whose texts are in memory at a time."""

_OF_PAPERS = ("papers", "ids", "references", "outside_names", "words")
"""Files that the papers alone decide."""


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


def index_records(index: Index) -> PaperRecords:
    """Return the papers of an index's older generation as records for the next one."""
    references = index.reference_offsets, index.reference_keys
    return _records(index, *references, index.cited_as, index.id_index)


def corpus_records(corpus: Corpus, overlay: IntentOverlay | None = None) -> PaperRecords:
    """Return the papers of a corpus as records for an index; the overlay's intents replace the corpus's own."""
    return _records(corpus, *_corpus_references(corpus), _count_intents(corpus, overlay), corpus.index)


def _records(
    source: Index | Corpus, offsets: NDArray[np.int64], keys: Keys, cited_as: NDArray[np.int32], ids: IdIndex
) -> PaperRecords:
    texts = {name: getattr(source, column) for name, column in TEXTS.items()}
    return PaperRecords(texts, source.years, source.flags, offsets, keys, cited_as, ids, source.outside_names)


def _corpus_references(corpus: Corpus) -> tuple[NDArray[np.int64], Keys]:
    """Return offsets and keys of what every paper cites: papers of the corpus by their own id, others as cited."""
    inside = corpus.ids.keys()[corpus.cited]  # (citations,)
    citing = np.concatenate([corpus.citing, corpus.references_outside("citing")])
    keys = np.concatenate([inside, corpus.references_outside("key")])
    order = np.lexsort((keys, citing))
    citing, keys = citing[order], keys[order]
    first = citing >= 0
    first[1:] &= (citing[1:] != citing[:-1]) | (keys[1:] != keys[:-1])
    return count_owners(citing[first], len(corpus)), keys[first]


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
        counts = self.numbers([np.diff(each) for each in offsets])
        bounds = to_offsets(counts)  # (papers + 1,)
        gathered = np.empty((int(bounds[-1]), *values[0].shape[1:]), values[0].dtype)
        for at, (begins, column) in enumerate(zip(offsets, values, strict=True)):
            own = np.flatnonzero(self.source == at)
            gathered[spans(bounds[own], counts[own])] = column[spans(begins[self.row[own]], counts[own])]
        return bounds, gathered


# --- comparing a corpus with an index --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChangeCounts:
    """How many papers of an index an update added, replaced, deleted and left unchanged."""

    added: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0

    def as_json(self) -> dict[str, int]:
        return asdict(self)


class UpdatePlan(NamedTuple):
    """What an update does to the papers of an index."""

    kept: NDArray[np.int64]
    """Rows of the index that stay, ascending; all others are deleted, or taken from the corpus."""

    has_new_texts: bool
    counts: ChangeCounts


def plan_update(index: Index, records: PaperRecords, rows: NDArray[np.int64], *, delete_others: bool) -> UpdatePlan:
    """Plan an index's update to the papers at these rows, ascending; with `delete_others` no other paper stays."""
    text_keys, record_keys = hash_records(records)
    keys = records.texts["id"].keys()[rows]
    current = index.rows_of_keys(keys)  # rows of the index by any id, (rows,)
    own = current >= 0
    own[own] = index.keys[current[own]] == keys[own]
    same_text, same = own.copy(), own.copy()
    same_text[own] = index.text_keys[current[own]] == text_keys[rows[own]]
    same[own] = index.record_keys[current[own]] == record_keys[rows[own]]
    unchanged, everything = current[same], np.arange(index.size)
    leaving = everything if delete_others else _replaced_rows(index, records, rows[~same], current[~same])
    deleted, updated = np.setdiff1d(leaving, unchanged), int((own & ~same).sum())
    counts = ChangeCounts(int((~own).sum()), updated, len(deleted) - updated, len(unchanged))
    kept = np.setdiff1d(everything, np.concatenate([deleted, unchanged]))
    return UpdatePlan(kept, bool((~same_text).any()), counts)


def _replaced_rows(
    index: Index, records: PaperRecords, rows: NDArray[np.int64], current: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the rows of the index that papers of a corpus replace, as one has the other's own id."""
    written = np.zeros(len(records), bool)
    written[rows] = True
    keys = np.asarray(records.ids.keys)[written[records.ids.rows]]
    claimed = index.rows_of_keys(keys)
    known = claimed >= 0
    own = index.keys[claimed[known]] == keys[known]
    return np.unique(np.concatenate([current[current >= 0], claimed[known][own]]))


# --- writing the papers ----------------------------------------------------------------------------------


def write_papers(folder: Path, chosen: SelectedPapers) -> None:
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
    text_keys, record_keys = hash_records(PaperRecords(columns, years, flags, offsets, keys, cited_as, index))
    write_numbers(papers / "text_key.npy", text_keys)
    write_numbers(papers / "record_key.npy", record_keys)
    pairs = zip(columns["title"], columns["abstract"], strict=True)
    write_words(folder / "words", (searchable_text(title, abstract) for title, abstract in pairs))


def hash_records(records: PaperRecords) -> tuple[Keys, Keys]:
    """Hash the text (title and abstract) and the complete record of every paper that an index may hold, (papers,) each."""
    text = mix_keys(records.texts["title"].keys(), records.texts["abstract"].keys())
    record = mix_keys(text, np.asarray(records.years).astype(np.uint64))
    record = mix_keys(record, np.asarray(records.flags).astype(np.uint64))
    for name in ("id", "venue", "authors", "fields", "ids", "extra"):
        record = mix_keys(record, records.texts[name].keys())
    for bit in range(INTENT_BITS):
        record = mix_keys(record, np.ascontiguousarray(records.cited_as[:, bit]).astype(np.uint64))
    return text, mix_keys(record, _sum_keys(records.reference_offsets, records.reference_keys))


def _sum_keys(offsets: NDArray[np.int64], keys: Keys) -> Keys:
    """Return the wrapping sum of every list of reference keys, (papers,)."""
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(keys, dtype=np.uint64)])
    return np.asarray(total[offsets[1:]] - total[offsets[:-1]])


def _write_references(folder: Path, chosen: SelectedPapers) -> tuple[NDArray[np.int64], Keys]:
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


# --- the generation --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Generation:
    """The next generation of an index: which papers it holds, and where their vectors come from."""

    chosen: SelectedPapers
    """Papers of the last generation, then of the corpus, where both have any."""

    facts: dict[str, Any]
    """What the manifest records besides what is counted while it is written."""

    embedding: Embedding | None
    """None: no vector is made that is not known."""

    last: Index | None = None
    corpus: Corpus | None = None
    overlay: IntentOverlay | None = None
    precomputed: PrecomputedVectors | None = None
    reporter: Reporter = field(default_factory=lambda: QUIET)

    def publish(self, writer: IndexWriter, recipe: dict[str, Any]) -> None:
        """Write the generation, or resume or reuse what an interrupted writer began by the same recipe, and publish it."""
        place = writer.generation(recipe)
        writer.clean([place])
        if not artifact_matches(place, KIND, VERSION, recipe):
            try:
                with new_artifact(place, KIND, VERSION, recipe, overwrite=True) as artifact:
                    artifact.facts |= self._write(artifact)
                    artifact.finish()
            except (EmptyResultError, UserError):
                remove_leftovers(place)  # a second try would fail the same way
                raise
        writer.publish(place)

    def _write(self, artifact: ArtifactWriter) -> dict[str, Any]:
        self._write_papers(artifact.folder)
        vectors = GenerationVectors(
            artifact, self.embedding, self.last, self.precomputed, self._rows_of_corpus(), reporter=self.reporter
        )
        facts = {**self.facts, "papers": len(self.chosen), **vectors.write()}
        if self.embedding is not None:
            facts |= model_metadata(self.embedding)
            if self.last is None and self.precomputed is None and not facts["with_vector"] and self.corpus is not None:
                raise EmptyResultError(
                    f"no paper of {self.corpus.folder} has a text that {self.embedding.encoder.name} can read; check the input"
                )
        self._write_heads(artifact.folder)
        return facts | self._write_citing_sentences(artifact)

    def _write_papers(self, folder: Path) -> None:
        """Write the columns of the papers, or share those of the last generation where all papers are the same."""
        last, chosen = self.last, self.chosen
        if last is None or self.corpus is not None or len(chosen) != last.size:
            write_papers(folder, chosen)
            return
        for name in last.manifest.files:
            if name.partition("/")[0] in _OF_PAPERS:
                link_or_copy(last.place / name, folder / name)

    def _rows_of_corpus(self) -> NDArray[np.int64] | None:
        """Return the rows of papers that come from the corpus; None where there is none."""
        if self.corpus is None:
            return None
        return np.flatnonzero(self.chosen.source == len(self.chosen.records) - 1)

    def _write_heads(self, folder: Path) -> None:
        heads = self.embedding.heads if self.embedding else self.last.heads if self.last else None
        if heads is not None:
            (folder / HEADS).mkdir(exist_ok=True)
            save_heads(folder / HEADS, heads)

    def _write_citing_sentences(self, artifact: ArtifactWriter) -> dict[str, Any]:
        """Write the sentences that cite the papers, where the index keeps them."""
        wanted, last, chosen = int(self.facts.get("contexts", 0)), self.last, self.chosen
        if not wanted:
            return {}
        places = chosen.places(len(chosen.records) - 1)
        known = last.citing_sentences if last is not None else None
        facts = write_citing_sentences(
            artifact,
            SentenceSources(self.corpus, places, known, chosen.places(0), wanted, self.overlay),
            self.embedding.encoder if self.embedding else None,
            str(self.facts["dtype"]),
            self.reporter,
        )
        if not facts and last is None and self.precomputed is None and self.corpus is not None:
            raise UserError(f"no citing sentence of {self.corpus.folder} cites a paper of it; leave out --contexts")
        return facts
