"""What has to happen to an index so that it has the papers of a corpus as they are now.

    plan = plan_change(index, records, rows, all_others_go=True)
    plan.fresh, plan.moved        rows of the corpus: text to embed, text as before
    plan.gone                     rows of the index that will be deleted, replaced ones among them

Papers are compared by hashes of their columns (`writing/papers.py`). Changes nothing.

Fewer segments: several become one, without their deleted papers.

    compact_index("index")         all papers in one segment

    sizes of segments, oldest first      1000 600 | + 400      the last two are alike: 1000 1000, and so 2000
                                         1000 600 | + 7        stays

After every change the last segments are joined as long as the one before is not more than twice as large: a million
papers added one by one leave about twenty segments, and each was copied about twenty times. Vectors are copied, never
made again.

Changing an index: papers come, change and go; only texts that are new are embedded.

    add_papers("index", corpus)                  those of a corpus; papers that are there are replaced where they differ
    add_papers("index", corpus, rows)            some of them
    delete_papers("index", ["doi:10.1/x"])       by any id
    update_index("index", corpus)                afterwards the index has exactly the papers of the corpus

A paper is the same where its id is; a paper whose id another one claims as a further id gives way to that one. Vectors
of papers whose title and abstract are as before are carried over. An interrupted change leaves the index as it was, and
the same call again goes on. After any series of changes a search finds what it would find in an index built anew, except
that citing sentences and counts of intents are those of the corpus in which a paper came last.
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
from citeweave.search.index import Index
from citeweave.search.precomputed import Given, make_vectors, model_facts, open_embedding, split_given, write_heads
from citeweave.search.segment import READ_AS, Segment
from citeweave.search.segment_papers import Records, SelectedPapers, hash_records, of_segment, records_of
from citeweave.search.segment_vectors import (
    Embedding,
    embed_citing_sentences,
    leave_empty,
    take_citing_sentences,
    take_vectors,
    write_segment,
)
from citeweave.search.state import Entry, IndexWriter, writing


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """Rows by what happens to them."""

    fresh: NDArray[np.int64]
    """Rows of the corpus: new papers, and papers with another title or abstract."""

    moved: NDArray[np.int64]
    """Rows of the corpus, ascending: papers of which something else changed."""

    before: NDArray[np.int64]
    """Rows of the index: those that the moved papers have now."""

    gone: NDArray[np.int64]
    """Rows of the index, ascending."""

    unchanged: int
    updated: int

    @property
    def added(self) -> int:
        return len(self.fresh) + len(self.moved) - self.updated

    @property
    def deleted(self) -> int:
        """Papers that go and do not come again."""
        return len(self.gone) - self.updated

    @property
    def nothing(self) -> bool:
        return not len(self.fresh) and not len(self.moved) and not len(self.gone)


def plan_change(index: Index, records: Records, rows: NDArray[np.int64], *, all_others_go: bool) -> UpdatePlan:
    """The plan for the papers at these rows, ascending; with `all_others_go` no other paper stays."""
    hashed = hash_records(records)
    keys = records.texts["id"].keys()[rows]
    found = index.rows_of_keys(keys)  # by any id, (rows,)
    own = np.zeros(len(rows), bool)
    own[found >= 0] = index.keys_of(found[found >= 0]) == keys[found >= 0]
    same_text, same = own.copy(), own.copy()
    texts, wholes = np.zeros(len(rows), np.uint64), np.zeros(len(rows), np.uint64)
    for segment, at, inner in index.split(found[own]):
        places = np.flatnonzero(own)[at]
        texts[places], wholes[places] = segment.text_keys[inner], segment.record_keys[inner]
    same_text &= texts == hashed.text[rows]
    same &= wholes == hashed.record[rows]
    moved = same_text & ~same
    kept = found[same]
    leaving = np.flatnonzero(index.alive) if all_others_go else _replaced(index, records, rows[~same], found[~same])
    return UpdatePlan(
        fresh=rows[~same & ~moved],
        moved=rows[moved],
        before=found[moved],
        gone=np.setdiff1d(leaving, kept),
        unchanged=len(kept),
        updated=int((own & ~same).sum()),
    )


def _replaced(index: Index, records: Records, rows: NDArray[np.int64], found: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of the index that give way to these papers: those with one of their ids as its own, or the other way round."""
    taken = np.zeros(len(records), bool)
    taken[rows] = True
    keys = np.asarray(records.ids.keys)[taken[records.ids.rows]]
    claimed = index.rows_of_keys(keys)
    known = claimed >= 0
    own = index.keys_of(claimed[known]) == keys[known]
    return np.unique(np.concatenate([found[found >= 0], claimed[known][own]]))


# Fewer segments: several become one, without their deleted papers.

_ALIKE = 2


def compact_index(folder: str | Path) -> Index:
    """All living papers in one segment."""
    with writing(Path(folder)) as writer:
        entries = writer.known().segments
        facts = {name: value for name, value in writer.known().facts.items() if name != "filling"}
        if len(entries) > 1 or any(entry.deleted for entry in entries):
            writer.commit(merge_segments(writer, Index.open(folder).segments), facts)
        elif facts != writer.known().facts:
            writer.commit(entries, facts)
        else:
            writer.clean()
    return Index.open(folder)


def join_last(writer: IndexWriter) -> None:
    """Join the last segments where they are alike in size; called after a change, in a state of its own."""
    entries = writer.known().segments
    sizes = [entry.papers - entry.deleted for entry in entries]
    first, total = len(sizes) - 1, sizes[-1] if sizes else 0
    index = Index.open(writer.folder)
    while first > 0 and sizes[first - 1] <= _ALIKE * total:
        # words alone wait for their vectors, and will be copied then
        if (index.segments[first - 1].matrix is None) != (index.segments[first].matrix is None):
            break
        first -= 1
        total += sizes[first]
    if first < len(sizes) - 1:
        merged = merge_segments(writer, index.segments[first:])
        writer.commit([*entries[:first], *merged], writer.known().facts)


def merge_segments(writer: IndexWriter, segments: Sequence[Segment]) -> list[Entry]:
    """The living papers of some segments as one new segment; none where none lives."""
    living = [segment for segment in segments if segment.alive.any()]
    if not living:
        return []
    recipe = {"merged": [[segment.name, segment.manifest.hash, int(segment.alive.sum())] for segment in living]}
    recipe["state"] = [[str(writer.known().number)]]
    writer.clean([writer.segment(recipe)])
    chosen = SelectedPapers.of([(of_segment(segment), np.flatnonzero(segment.alive)) for segment in living])

    def fill(artifact: ArtifactWriter) -> dict[str, Any]:
        facts = take_vectors(artifact.folder, chosen, living)
        told = take_citing_sentences(artifact.folder, chosen, [segment.citing_sentences for segment in living])
        return {**facts, **told}

    return [write_segment(writer, recipe, chosen, fill)]


# Changing an index: papers come, change and go; only texts that are new are embedded.


@dataclass(frozen=True, slots=True)
class Changed:
    """How many papers a change touched."""

    added: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0

    def as_json(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """How papers are added."""

    vectors: bool = True
    """False: words only; `fill_vectors` adds the vectors later. Of an index without any vector, no difference."""

    model: str | None = None
    """Where the index's model is now, if it moved."""

    device: str = "auto"
    encoder: TorchEncoder | None = None
    """The index's model where it is loaded already."""

    given: Given | None = None
    """Vectors that were made elsewhere; papers without one among them are embedded here."""

    sentences: bool = False
    """Also vectors of the sentences of new papers where the index has none so far; `fill_vectors` makes those of the others."""


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
) -> Changed:
    """Add the papers of a corpus, or those at some of its rows, or replace what is known of them."""
    rows = np.arange(len(corpus)) if rows is None else np.unique(np.asarray(rows, np.int64))
    if len(rows) and (rows[0] < 0 or rows[-1] >= len(corpus)):
        bad = rows[0] if rows[0] < 0 else rows[-1]
        raise UserError(f"row {bad} is not one of the {len(corpus):,} papers of {corpus.folder}; give rows of it")
    options = options if vectors else replace(options, vectors=False)
    return _Change(Path(folder), corpus, overlay, options, reporter).make(rows, all_others_go=False)


def update_index(
    folder: str | Path,
    corpus: Corpus,
    *,
    vectors: bool = True,
    options: ChangeOptions = _OPTIONS,
    overlay: IntentOverlay | None = None,
    reporter: Reporter = QUIET,
) -> Changed:
    """Bring an index to a newer corpus: new papers come, changed ones are replaced, those that are missing go."""
    options = options if vectors else replace(options, vectors=False)
    return _Change(Path(folder), corpus, overlay, options, reporter).make(np.arange(len(corpus)), all_others_go=True)


def delete_papers(folder: str | Path, ids: Sequence[str]) -> int:
    """Take papers out of an index, by any of their ids; how many were there."""
    with writing(Path(folder)) as writer:
        index = Index.open(folder)
        rows = np.unique(index.rows(ids))
        rows = rows[rows >= 0]
        if len(rows):
            writer.clean()
            writer.commit(gone(writer, index, rows), {**index.state.facts, "built_from": ""})
    return len(rows)


def gone(writer: IndexWriter, index: Index, rows: NDArray[np.int64]) -> list[Entry]:
    """The segments of an index without these rows; their lists are written, but in no state yet."""
    entries = list(index.state.segments)
    for number, segment in enumerate(index.segments):
        own = rows[(rows >= segment.start) & (rows < segment.start + segment.size)] - segment.start
        if len(own):
            entries[number] = writer.delete(entries[number], own)
    return entries


@dataclass(frozen=True, slots=True)
class _Change:
    """The papers of a corpus on their way into an index."""

    folder: Path
    corpus: Corpus
    overlay: IntentOverlay | None
    options: ChangeOptions
    reporter: Reporter

    def make(self, rows: NDArray[np.int64], *, all_others_go: bool) -> Changed:
        if self.overlay is not None:
            self.overlay.check(self.corpus)
        records = records_of(self.corpus, self.overlay)
        with writing(self.folder) as writer:
            index = Index.open(self.folder)
            facts = self._facts(index)
            plan = plan_change(index, records, rows, all_others_go=all_others_go)
            if plan.nothing:
                writer.clean()
                if facts != index.state.facts:
                    writer.commit(index.state.segments, facts)
                return Changed(unchanged=plan.unchanged)
            how = self._model(index, plan)
            made = self._segments(writer, index, records, plan, how)
            if how is not None:
                facts |= model_facts(how)
                write_heads(self.folder, how.heads)
            writer.commit([*gone(writer, index, plan.gone), *made], facts)
            join_last(writer)
        return Changed(plan.added, plan.updated, plan.deleted, plan.unchanged)

    def _facts(self, index: Index) -> dict[str, Any]:
        facts = index.state.facts
        if facts.get("intents") and self.overlay is None:
            raise UserError(
                f"{self.folder} was made with intents that `citeweave annotate` found; give those of {self.corpus.folder} "
                "with --intents, or build the index again without"
            )
        own = {"corpus": self.corpus.hash, "corpus_name": self.corpus.folder.name, "built_from": ""}
        return {**facts, **own, "intents": self.overlay.hash if self.overlay else ""}

    def _model(self, index: Index, plan: UpdatePlan) -> Embedding | None:
        """The index's model, where there is anything to embed."""
        if self.options.given is not None and (not self.options.vectors or index.provenance is None):
            raise UserError(
                f"vectors are given, and the papers come to {self.folder} with words only; give them when the vectors "
                f"are made: `citeweave change {self.folder} --fill --vectors FOLDER`"
            )
        if not self.options.vectors or index.provenance is None:
            return None
        sentences = index.state.facts.get("contexts") and len(self.corpus.contexts)
        if not len(plan.fresh) and not (sentences and len(plan.moved)):
            return None
        options = self.options
        how = open_embedding(
            index, options.model, device=options.device, encoder=options.encoder, sentences=options.sentences
        )
        if options.given is not None:
            options.given.check(how, self.corpus.hash)
        return how

    def _segments(
        self, writer: IndexWriter, index: Index, records: Records, plan: UpdatePlan, how: Embedding | None
    ) -> list[Entry]:
        recipe = {
            "corpus": self.corpus.hash,
            "intents": self.overlay.hash if self.overlay else "",
            "revision": how.encoder.revision if how else "",
            "sentences": bool(how and how.sentences),
            "read_as": READ_AS,
            "state": index.number,
        }
        moved = {**recipe, "moved": hash_json(plan.moved.tolist())}
        given = self.options.given if how else None
        if given is not None:
            recipe["given"] = given.hashes()
        parts = split_given(given, records, plan.fresh)
        fresh = [{**recipe, "fresh": hash_json(rows.tolist())} for _, rows in parts]
        writer.clean([writer.segment(told) for told in (moved, *fresh)])
        made = []
        if len(plan.moved):
            chosen = SelectedPapers.of([(records, plan.moved)])
            old = _as_before(index, chosen, plan)

            def carry(artifact: ArtifactWriter) -> dict[str, Any]:
                facts = take_vectors(artifact.folder, old, index.segments)
                return {**facts, **self._citing(artifact, index, chosen, how)}

            made.append(write_segment(writer, moved, chosen, carry))
        for told, (is_given, rows) in zip(fresh, parts, strict=True):
            made.append(
                self._fresh(writer, index, told, SelectedPapers.of([(records, rows)]), how, given if is_given else None)
            )
        return made

    def _fresh(
        self,
        writer: IndexWriter,
        index: Index,
        recipe: dict[str, Any],
        chosen: SelectedPapers,
        how: Embedding | None,
        given: Given | None,
    ) -> Entry:
        def fill(artifact: ArtifactWriter) -> dict[str, Any]:
            if how is None:
                return leave_empty(artifact.folder, len(chosen))
            facts = make_vectors(artifact, chosen, how, given, self.reporter)
            return {**facts, **self._citing(artifact, index, chosen, how)}

        return write_segment(writer, recipe, chosen, fill)

    def _citing(
        self, artifact: ArtifactWriter, index: Index, chosen: SelectedPapers, how: Embedding | None
    ) -> dict[str, Any]:
        most = int(index.state.facts.get("contexts", 0))
        if not most or how is None or not len(self.corpus.contexts):
            return {}
        return embed_citing_sentences(
            artifact,
            self.corpus,
            chosen.places(0),
            how.encoder,
            most=most,
            dtype=how.dtype,
            overlay=self.overlay,
            reporter=self.reporter,
        )


def _as_before(index: Index, chosen: SelectedPapers, plan: UpdatePlan) -> SelectedPapers:
    """The same papers in the same order, where the index has them now."""
    rows = plan.before[np.searchsorted(plan.moved, chosen.row)]  # rows of the index
    source = np.searchsorted(index.starts, rows, side="right") - 1
    records = tuple(of_segment(segment) for segment in index.segments)
    return SelectedPapers(records, source.astype(np.int32), rows - index.starts[source])
