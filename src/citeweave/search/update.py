"""Update an index: add, replace and delete papers, embedding only new texts; merge its segments.

    add_papers("index", corpus)                  all papers of a corpus; papers that the index has are replaced if they differ
    add_papers("index", corpus, rows)            some of them
    delete_papers("index", ["doi:10.1/x"])       by any id
    update_index("index", corpus)                afterwards the index has exactly the papers of the corpus
    compact_index("index")                       all papers in one segment

A paper is the same where its id is; a paper whose id another one claims as a further id gives way to that one. Papers
are compared by hashes of their columns (`segment_papers.py`), and vectors of papers with the same title and abstract are
copied. An interrupted change leaves the index as it was, and the same call resumes. After any series of changes a search
returns what it would in a newly built index, except that citing sentences and counts of intents are those of the corpus
in which a paper came last.

    sizes of segments, oldest first      1000 600 | + 400      the last two are alike: 1000 1000, and so 2000
                                         1000 600 | + 7        stays

After every change the last segments are merged as long as the one before is not more than twice as large: a million
papers added one by one leave about twenty segments, and each was copied about twenty times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter
from citeweave.core.errors import UserError
from citeweave.core.files import hash_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.encoders.encoder import TorchEncoder
from citeweave.graph.intent_overlay import IntentOverlay
from citeweave.search.citing_sentences import READ_AS, copy_citing_sentences, embed_citing_sentences
from citeweave.search.index import Index
from citeweave.search.index_model import Embedding, model_metadata, open_embedding, write_heads
from citeweave.search.segment import Segment
from citeweave.search.segment_papers import PaperRecords, SelectedPapers, corpus_records, hash_records, segment_records
from citeweave.search.segment_vectors import (
    PrecomputedVectors,
    copy_vectors,
    split_precomputed,
    write_segment,
    write_vectors,
    write_without_vectors,
)
from citeweave.search.state import IndexWriter, SegmentEntry, open_writer


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """What an update does to the rows of an index and of a corpus."""

    to_embed: NDArray[np.int64]
    """Rows of the corpus: new papers, and papers with another title or abstract."""

    to_copy: NDArray[np.int64]
    """Rows of the corpus, ascending: papers of which only other metadata changed; their vectors are copied."""

    copied_rows: NDArray[np.int64]
    """Rows of the index that the papers to copy have now."""

    to_delete: NDArray[np.int64]
    """Rows of the index that are deleted or replaced, ascending."""

    unchanged: int
    updated: int

    @property
    def added(self) -> int:
        """Number of papers that the index does not have yet."""
        return len(self.to_embed) + len(self.to_copy) - self.updated

    @property
    def deleted(self) -> int:
        """Number of papers that are deleted and not replaced."""
        return len(self.to_delete) - self.updated

    @property
    def is_empty(self) -> bool:
        """Whether the update changes no paper."""
        return not (len(self.to_embed) or len(self.to_copy) or len(self.to_delete))


def _plan_update(index: Index, records: PaperRecords, rows: NDArray[np.int64], *, delete_others: bool) -> UpdatePlan:
    """Plan an index's update to the papers at these rows, ascending; with `delete_others` no other paper stays."""
    hashed = hash_records(records)
    keys = records.texts["id"].keys()[rows]
    current = index.rows_of_keys(keys)  # rows of the index by any id, (rows,)
    own = np.zeros(len(rows), bool)
    own[current >= 0] = index.keys_of(current[current >= 0]) == keys[current >= 0]
    same_text, same = own.copy(), own.copy()
    texts, full = np.zeros(len(rows), np.uint64), np.zeros(len(rows), np.uint64)
    for segment, at, inner in index.split(current[own]):
        places = np.flatnonzero(own)[at]
        texts[places], full[places] = segment.text_keys[inner], segment.record_keys[inner]
    same_text &= texts == hashed.text[rows]
    same &= full == hashed.record[rows]
    to_copy = same_text & ~same
    unchanged = current[same]
    leaving = (
        np.flatnonzero(index.alive) if delete_others else _replaced_rows(index, records, rows[~same], current[~same])
    )
    return UpdatePlan(
        to_embed=rows[~same & ~to_copy],
        to_copy=rows[to_copy],
        copied_rows=current[to_copy],
        to_delete=np.setdiff1d(leaving, unchanged),
        unchanged=len(unchanged),
        updated=int((own & ~same).sum()),
    )


def _replaced_rows(
    index: Index, records: PaperRecords, rows: NDArray[np.int64], current: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the rows of the index that papers of a corpus replace, as one has the other's own id."""
    written = np.zeros(len(records), bool)
    written[rows] = True
    keys = np.asarray(records.ids.keys)[written[records.ids.rows]]
    claimed = index.rows_of_keys(keys)
    known = claimed >= 0
    own = index.keys_of(claimed[known]) == keys[known]
    return np.unique(np.concatenate([current[current >= 0], claimed[known][own]]))


# --- merging segments ------------------------------------------------------------------------------------

_MERGE_FACTOR = 2


def compact_index(folder: str | Path) -> Index:
    """Update an index by merging all of its segments into one, without its deleted papers."""
    with open_writer(Path(folder)) as writer:
        entries = writer.current().segments
        facts = {name: value for name, value in writer.current().facts.items() if name != "filling"}
        if len(entries) > 1 or any(entry.deleted for entry in entries):
            writer.commit(_merge_segments(writer, Index.open(folder).segments), facts)
        elif facts != writer.current().facts:
            writer.commit(entries, facts)
        else:
            writer.clean()
    return Index.open(folder)


def merge_last_segments(writer: IndexWriter) -> None:
    """Merge the last segments of an index where they are alike in size, after an update, as a state of its own."""
    entries = writer.current().segments
    sizes = [entry.papers - entry.deleted for entry in entries]
    first, total = len(sizes) - 1, sizes[-1] if sizes else 0
    index = Index.open(writer.folder)
    while first > 0 and sizes[first - 1] <= _MERGE_FACTOR * total:
        # papers with words only wait for their vectors, and are copied then
        if (index.segments[first - 1].matrix is None) != (index.segments[first].matrix is None):
            break
        first -= 1
        total += sizes[first]
    if first < len(sizes) - 1:
        merged = _merge_segments(writer, index.segments[first:])
        writer.commit([*entries[:first], *merged], writer.current().facts)


def _merge_segments(writer: IndexWriter, segments: Sequence[Segment]) -> list[SegmentEntry]:
    """Write the live papers of some segments as one new segment; return no entry where none is alive."""
    live = [segment for segment in segments if segment.alive.any()]
    if not live:
        return []
    recipe = {"merged": [[segment.name, segment.manifest.hash, int(segment.alive.sum())] for segment in live]}
    recipe["state"] = [[str(writer.current().number)]]
    writer.clean([writer.segment(recipe)])
    chosen = SelectedPapers.of([(segment_records(segment), np.flatnonzero(segment.alive)) for segment in live])

    def fill(artifact: ArtifactWriter) -> dict[str, Any]:
        metadata = copy_vectors(artifact.folder, chosen, live)
        tables = [segment.citing_sentences for segment in live]
        return {**metadata, **copy_citing_sentences(artifact.folder, chosen.places, tables)}

    return [write_segment(writer, recipe, chosen, fill)]


# --- adding, replacing and deleting papers ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChangeCounts:
    """How many papers of an index an update added, replaced, deleted and left unchanged."""

    added: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0

    def as_json(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """Options for updating an index with new papers: whether and by what their vectors are made."""

    vectors: bool = True
    """False: words only; `fill_vectors` adds the vectors later. No difference for an index without any vector."""

    model: str | None = None
    """Where the index's model is now, if it moved."""

    device: str = "auto"
    encoder: TorchEncoder | None = None
    """The index's model where it is already loaded."""

    precomputed: PrecomputedVectors | None = None
    """Vectors made elsewhere; papers without one among them are embedded here."""

    sentences: bool = False
    """Also sentence vectors of new papers, even if the index has none yet; `fill_vectors` makes those of the others."""


_OPTIONS = ChangeOptions()


def add_papers(
    folder: str | Path,
    corpus: Corpus,
    rows: NDArray[Any] | None = None,
    *,
    vectors: bool = True,
    options: ChangeOptions = _OPTIONS,
    overlay: IntentOverlay | None = None,
    reporter: Reporter = QUIET,
) -> ChangeCounts:
    """Add the papers of a corpus, or those at some of its rows, to an index; papers that it has are replaced."""
    rows = np.arange(len(corpus)) if rows is None else np.unique(np.asarray(rows, np.int64))
    if len(rows) and (rows[0] < 0 or rows[-1] >= len(corpus)):
        bad = rows[0] if rows[0] < 0 else rows[-1]
        raise UserError(f"row {bad} is not one of the {len(corpus):,} papers of {corpus.folder}; give rows of it")
    options = options if vectors else replace(options, vectors=False)
    return _IndexChange(Path(folder), corpus, overlay, options, reporter).apply(rows, delete_others=False)


def update_index(
    folder: str | Path,
    corpus: Corpus,
    *,
    vectors: bool = True,
    options: ChangeOptions = _OPTIONS,
    overlay: IntentOverlay | None = None,
    reporter: Reporter = QUIET,
) -> ChangeCounts:
    """Update an index to exactly the papers of a newer corpus: add new ones, replace changed ones, delete the rest."""
    options = options if vectors else replace(options, vectors=False)
    return _IndexChange(Path(folder), corpus, overlay, options, reporter).apply(
        np.arange(len(corpus)), delete_others=True
    )


def delete_papers(folder: str | Path, ids: Sequence[str]) -> int:
    """Delete papers from an index by any of their ids; return how many it had."""
    with open_writer(Path(folder)) as writer:
        index = Index.open(folder)
        rows = np.unique(index.rows(ids))
        rows = rows[rows >= 0]
        if len(rows):
            writer.clean()
            writer.commit(delete_rows(writer, index, rows), {**index.state.facts, "built_from": ""})
    return len(rows)


def delete_rows(writer: IndexWriter, index: Index, rows: NDArray[np.int64]) -> list[SegmentEntry]:
    """Delete rows of an index in an update: write longer lists; return its segment entries, which no state names yet."""
    entries = list(index.state.segments)
    for number, segment in enumerate(index.segments):
        own = rows[(rows >= segment.start) & (rows < segment.start + segment.size)] - segment.start
        if len(own):
            entries[number] = writer.delete(entries[number], own)
    return entries


@dataclass(frozen=True, slots=True)
class _IndexChange:
    """A change that brings papers of a corpus into an existing index."""

    folder: Path
    corpus: Corpus
    overlay: IntentOverlay | None
    options: ChangeOptions
    reporter: Reporter

    def apply(self, rows: NDArray[np.int64], *, delete_others: bool) -> ChangeCounts:
        """Update the index: write the papers at these rows of the corpus into it and publish its new state."""
        if self.overlay is not None:
            self.overlay.check(self.corpus)
        records = corpus_records(self.corpus, self.overlay)
        with open_writer(self.folder) as writer:
            index = Index.open(self.folder)
            facts = self._metadata(index)
            plan = _plan_update(index, records, rows, delete_others=delete_others)
            if plan.is_empty:
                writer.clean()
                if facts != index.state.facts:
                    writer.commit(index.state.segments, facts)
                return ChangeCounts(unchanged=plan.unchanged)
            embedding = self._open_embedding(index, plan)
            entries = self._write_segments(writer, index, records, plan, embedding)
            if embedding is not None:
                facts |= model_metadata(embedding)
                write_heads(self.folder, embedding.heads)
            writer.commit([*delete_rows(writer, index, plan.to_delete), *entries], facts)
            merge_last_segments(writer)
        return ChangeCounts(plan.added, plan.updated, plan.deleted, plan.unchanged)

    def _metadata(self, index: Index) -> dict[str, Any]:
        """Return the metadata of the index's next state, before its model is known."""
        facts = index.state.facts
        if facts.get("intents") and self.overlay is None:
            raise UserError(
                f"{self.folder} was made with intents that `citeweave annotate` found; give those of {self.corpus.folder} "
                "with --intents, or build the index again without"
            )
        own = {"corpus": self.corpus.hash, "corpus_name": self.corpus.folder.name, "built_from": ""}
        return {**facts, **own, "intents": self.overlay.hash if self.overlay else ""}

    def _open_embedding(self, index: Index, plan: UpdatePlan) -> Embedding | None:
        """Load the index's model where there is anything to embed."""
        if self.options.precomputed is not None and (not self.options.vectors or index.provenance is None):
            raise UserError(
                f"vectors are given, but papers are added to {self.folder} with words only; give them when the vectors "
                f"are made: `citeweave change {self.folder} --fill --vectors FOLDER`"
            )
        if not self.options.vectors or index.provenance is None:
            return None
        sentences = index.state.facts.get("contexts") and len(self.corpus.contexts)
        if not len(plan.to_embed) and not (sentences and len(plan.to_copy)):
            return None
        options = self.options
        embedding = open_embedding(
            index, options.model, device=options.device, encoder=options.encoder, sentences=options.sentences
        )
        if options.precomputed is not None:
            options.precomputed.check(embedding, self.corpus.hash)
        return embedding

    def _write_segments(
        self, writer: IndexWriter, index: Index, records: PaperRecords, plan: UpdatePlan, embedding: Embedding | None
    ) -> list[SegmentEntry]:
        """Write the papers that are embedded, and those whose vectors are copied, as new segments."""
        recipe = {
            "corpus": self.corpus.hash,
            "intents": self.overlay.hash if self.overlay else "",
            "revision": embedding.encoder.revision if embedding else "",
            "sentences": bool(embedding and embedding.sentences),
            "read_as": READ_AS,
            "state": index.number,
        }
        copy_recipe = {**recipe, "moved": hash_json(plan.to_copy.tolist())}
        precomputed = self.options.precomputed if embedding else None
        if precomputed is not None:
            recipe["given"] = precomputed.hashes()
        parts = split_precomputed(precomputed, records, plan.to_embed)
        embed_recipes = [{**recipe, "fresh": hash_json(rows.tolist())} for _, rows in parts]
        writer.clean([writer.segment(each) for each in (copy_recipe, *embed_recipes)])
        entries = []
        if len(plan.to_copy):
            chosen = SelectedPapers.of([(records, plan.to_copy)])
            current = _current_papers(index, chosen, plan)

            def carry(artifact: ArtifactWriter) -> dict[str, Any]:
                metadata = copy_vectors(artifact.folder, current, index.segments)
                return {**metadata, **self._write_citing_sentences(artifact, index, chosen, embedding)}

            entries.append(write_segment(writer, copy_recipe, chosen, carry))
        for each, (is_precomputed, rows) in zip(embed_recipes, parts, strict=True):
            chosen = SelectedPapers.of([(records, rows)])
            entries.append(
                self._write_embedded(writer, index, each, chosen, embedding, precomputed if is_precomputed else None)
            )
        return entries

    def _write_embedded(
        self,
        writer: IndexWriter,
        index: Index,
        recipe: dict[str, Any],
        chosen: SelectedPapers,
        embedding: Embedding | None,
        precomputed: PrecomputedVectors | None,
    ) -> SegmentEntry:
        """Write new papers as a segment, with vectors where the index has a model."""

        def fill(artifact: ArtifactWriter) -> dict[str, Any]:
            if embedding is None:
                return write_without_vectors(artifact.folder, len(chosen))
            metadata = write_vectors(artifact, chosen, embedding, precomputed, self.reporter)
            return {**metadata, **self._write_citing_sentences(artifact, index, chosen, embedding)}

        return write_segment(writer, recipe, chosen, fill)

    def _write_citing_sentences(
        self, artifact: ArtifactWriter, index: Index, chosen: SelectedPapers, embedding: Embedding | None
    ) -> dict[str, Any]:
        """Write the sentences of the corpus that cite a new segment's papers, where the index keeps them."""
        max_per_intents = int(index.state.facts.get("contexts", 0))
        if not max_per_intents or embedding is None or not len(self.corpus.contexts):
            return {}
        return embed_citing_sentences(
            artifact,
            self.corpus,
            chosen.places(0),
            embedding.encoder,
            max_per_intents=max_per_intents,
            dtype=embedding.dtype,
            overlay=self.overlay,
            reporter=self.reporter,
        )


def _current_papers(index: Index, chosen: SelectedPapers, plan: UpdatePlan) -> SelectedPapers:
    """Return the same papers in the same order, as rows of the index's current segments."""
    rows = plan.copied_rows[np.searchsorted(plan.to_copy, chosen.row)]  # rows of the index
    source = np.searchsorted(index.starts, rows, side="right") - 1
    records = tuple(segment_records(segment) for segment in index.segments)
    return SelectedPapers(records, source.astype(np.int32), rows - index.starts[source])
