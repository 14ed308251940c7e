"""Fill in missing vectors of an index: embed papers with words only, or their sentences, while others search.

    fill_vectors("index", shard=256, stop=event.is_set)
    fill_vectors("index", precomputed=PrecomputedVectors(Vectors.open("vectors")))     only the others are embedded here
    fill_vectors("index", sentences=True)                                              also sentences of embedded papers

A finished shard is a state of the index: its papers can be found at once, and an interruption costs one shard at most.
Between two shards another writer may write. At the end all segments are merged into one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter
from citeweave.core.errors import UserError
from citeweave.core.files import hash_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.encoders.encoder import TorchEncoder
from citeweave.encoders.model_names import stored_name
from citeweave.search.citing_sentences import copy_citing_sentences
from citeweave.search.index import Index
from citeweave.search.index_model import Embedding, model_metadata, open_embedding, write_heads
from citeweave.search.segment import NOT_YET, Segment
from citeweave.search.segment_papers import SelectedPapers, segment_records
from citeweave.search.segment_vectors import (
    PrecomputedVectors,
    copy_vectors,
    find_keys,
    write_segment,
    write_sentence_vectors,
    write_vectors,
)
from citeweave.search.state import open_writer
from citeweave.search.update import compact_index, delete_rows, merge_last_segments
from citeweave.vectors.vectors import id_keys

SHARD = 256
"""Papers that are embedded between two states of the index."""

Rows = NDArray[np.int64]


def fill_vectors(
    folder: str | Path,
    *,
    shard: int = SHARD,
    stop: Callable[[], bool] = lambda: False,
    model: str | Path | TorchEncoder | None = None,
    device: str = "auto",
    precomputed: PrecomputedVectors | None = None,
    sentences: bool = False,
    reporter: Reporter = QUIET,
) -> int:
    """Fill in the vectors of papers of an index that have words only, until none is left or `stop()`; return how many.

    With `sentences`, also the sentences of all papers, from now on. `model` is where the index's model is now, or the
    loaded model itself.
    """
    if shard < 1:
        raise UserError(f"--shard is {shard}; it must be at least 1 paper")
    folder, index = Path(folder), Index.open(folder)
    sentences = sentences or bool(index.state.facts.get("sentences"))
    waiting = [len(pending_rows(index)), len(pending_sentence_rows(index)) if sentences else 0]
    if not any(waiting):
        if index.state.facts.get("filling"):  # interrupted before its last step
            compact_index(folder)
        return 0
    loaded = model if isinstance(model, TorchEncoder) else None
    where = None if isinstance(model, TorchEncoder) else model
    embedding = open_embedding(index, where, device=device, encoder=loaded, sentences=sentences)
    path = stored_name(where) if where and index.provenance is None else index.model
    if precomputed is not None:
        precomputed.check(embedding, index.corpus)
    with reporter.task("embedding", sum(waiting), "papers") as advance:
        filling = _VectorFill(folder, embedding, path, shard, precomputed, stop, advance)
        filling.embed_papers()
        # no more than were waiting: a paper whose sentences cannot be read stays pending
        filling.embed_sentences(waiting[1])
        if not filling.stopped:
            compact_index(folder)
    return filling.done


def pending_rows(index: Index) -> Rows:
    """Return the rows of live papers that were not embedded yet."""
    parts = [
        segment.start + np.flatnonzero(segment.alive & (segment.embedded == NOT_YET)) for segment in index.segments
    ]
    return np.concatenate([np.empty(0, np.int64), *parts])


def pending_sentence_rows(index: Index) -> Rows:
    """Return the rows of papers that have a vector but no sentence vectors."""
    return np.flatnonzero(index.with_vector & ~index.with_sentences)


@dataclass(slots=True)
class _VectorFill:
    """A run that embeds the pending papers of an index, shard by shard."""

    folder: Path
    embedding: Embedding
    model_path: str
    """Where the model is: an index of words only may get another one than was planned."""
    shard: int
    precomputed: PrecomputedVectors | None
    stop: Callable[[], bool]
    advance: Callable[[int], None]
    done: int = 0
    stopped: bool = False

    def embed_papers(self) -> None:
        """Fill in vectors of papers that have none: first all precomputed ones at once, then shard by shard."""
        precomputed = self.precomputed
        if precomputed is not None:
            self._write_shard(lambda index: _precomputed_rows(index, precomputed), self._write_papers, precomputed)
        while self._write_shard(lambda index: pending_rows(index)[: self.shard], self._write_papers, None):
            pass

    def embed_sentences(self, max_papers: int) -> None:
        """Fill in missing sentence vectors of papers that have only their own vector."""
        end, precomputed = (
            self.done + max_papers,
            self.precomputed if self.precomputed and self.precomputed.sentences else None,
        )
        if precomputed is not None and max_papers:
            self._write_shard(
                lambda index: _precomputed_sentence_rows(index, precomputed), self._write_sentences, precomputed
            )
        while self.done < end and self._write_shard(
            lambda index: pending_sentence_rows(index)[: self.shard], self._write_sentences, None
        ):
            pass

    def _write_shard(
        self, choose: Callable[[Index], Rows], write: _Write, precomputed: PrecomputedVectors | None
    ) -> bool:
        """Write some papers again with more vectors as one state of the index; False where nothing is left to do."""
        self.stopped = self.stopped or self.stop()
        if self.stopped:
            return False
        with open_writer(self.folder) as writer:
            index = Index.open(self.folder)
            rows = choose(index)
            if not len(rows):
                return False
            parts = index.split(rows)
            segments = [segment for segment, _, _ in parts]
            chosen = SelectedPapers.of([(segment_records(segment), inner) for segment, _, inner in parts])
            recipe = {
                "filled": hash_json(rows.tolist()),
                "state": index.number,
                "revision": self.embedding.encoder.revision,
            }
            recipe |= {"sentences": self.embedding.sentences, "given": precomputed.hashes() if precomputed else []}
            writer.clean([writer.segment(recipe)])

            def fill(artifact: ArtifactWriter) -> dict[str, Any]:
                metadata = write(artifact, chosen, segments, precomputed)
                tables = [segment.citing_sentences for segment in segments]
                return {**metadata, **copy_citing_sentences(artifact.folder, chosen.places, tables)}

            entry = write_segment(writer, recipe, chosen, fill)
            write_heads(self.folder, self.embedding.heads)
            facts = {
                **index.state.facts,
                **model_metadata(self.embedding),
                "filling": True,
                "sentences": self.embedding.sentences,
            }
            facts["model_path"] = self.model_path
            writer.commit([*delete_rows(writer, index, rows), entry], facts)
            merge_last_segments(writer)
        self.advance(len(rows))
        self.done += len(rows)
        return True

    def _write_papers(
        self, artifact: ArtifactWriter, chosen: SelectedPapers, _: list[Segment], precomputed: PrecomputedVectors | None
    ) -> dict[str, Any]:
        return write_vectors(artifact, chosen, self.embedding, precomputed)

    def _write_sentences(
        self,
        artifact: ArtifactWriter,
        chosen: SelectedPapers,
        segments: list[Segment],
        precomputed: PrecomputedVectors | None,
    ) -> dict[str, Any]:
        metadata = copy_vectors(artifact.folder, chosen, segments, sentences=False)
        write_sentence_vectors(artifact, self.embedding, precomputed)
        return metadata


_Write = Callable[[ArtifactWriter, SelectedPapers, list[Segment], PrecomputedVectors | None], dict[str, Any]]
"""Writes the vectors of selected papers of some segments; returns metadata for the new segment's manifest."""


def _precomputed_rows(index: Index, precomputed: PrecomputedVectors) -> Rows:
    """Return the pending rows of an index whose vectors are precomputed."""
    rows = pending_rows(index)
    parts = [rows[at[precomputed.has(segment_records(segment))[own]]] for segment, at, own in index.split(rows)]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _precomputed_sentence_rows(index: Index, precomputed: PrecomputedVectors) -> Rows:
    """Return the rows of an index that lack sentence vectors and whose sentence vectors are precomputed."""
    rows = pending_sentence_rows(index)
    assert precomputed.sentences is not None
    known = find_keys(index.keys_of(rows), id_keys(precomputed.sentences.ids))
    lengths = np.append(precomputed.sentences.lengths(), 0)  # for -1
    return rows[lengths[known] > 0]
