"""Vectors for papers that have words only, or none of their sentences: shard by shard, while others search.

    fill_vectors("index", shard=256, stop=event.is_set)
    fill_vectors("index", given=Given(Vectors.open("vectors")))      made elsewhere; only the others are embedded here
    fill_vectors("index", sentences=True)                            also of the sentences of papers that have vectors

A finished shard is a state of the index: its papers can be found at once, and an interruption costs one shard at most.
Between two shards another writer has its turn. At the end all segments become one.
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
from citeweave.encoders.model_names import remembered
from citeweave.search.index import Index
from citeweave.search.precomputed import (
    Given,
    make_sentences,
    make_vectors,
    model_facts,
    open_embedding,
    places_of,
    write_heads,
)
from citeweave.search.segment import NOT_YET, Segment
from citeweave.search.segment_papers import SelectedPapers, of_segment
from citeweave.search.segment_vectors import Embedding, take_citing_sentences, take_vectors, write_segment
from citeweave.search.state import writing
from citeweave.search.update import compact_index, gone, join_last
from citeweave.vectors.vectors import id_keys

SHARD = 256
"""Papers between two states."""

Rows = NDArray[np.int64]


def fill_vectors(
    folder: str | Path,
    *,
    shard: int = SHARD,
    stop: Callable[[], bool] = lambda: False,
    model: str | Path | TorchEncoder | None = None,
    device: str = "auto",
    given: Given | None = None,
    sentences: bool = False,
    reporter: Reporter = QUIET,
) -> int:
    """Embed the papers that were not tried yet, until none is left or `stop` says so; how many were.

    With `sentences`, also the sentences of all papers, from now on. `model` is where the index's model is now, or itself.
    """
    if shard < 1:
        raise UserError(f"--shard is {shard}; it must be at least 1 paper")
    folder, index = Path(folder), Index.open(folder)
    sentences = sentences or bool(index.state.facts.get("sentences"))
    todo = [len(pending(index)), len(pending_sentences(index)) if sentences else 0]
    if not any(todo):
        if index.state.facts.get("filling"):  # interrupted before its last step
            compact_index(folder)
        return 0
    loaded = model if isinstance(model, TorchEncoder) else None
    where = None if isinstance(model, TorchEncoder) else model
    how = open_embedding(index, where, device=device, encoder=loaded, sentences=sentences)
    path = remembered(where) if where and index.provenance is None else index.model
    if given is not None:
        given.check(how, index.corpus)
    with reporter.task("embedding", sum(todo), "papers") as advance:
        filling = _Filling(folder, how, path, shard, given, stop, advance)
        filling.papers()
        # no more than were there: one whose sentences cannot be read would come again and again
        filling.sentences(todo[1])
        if not filling.stopped:
            compact_index(folder)
    return filling.done


def pending(index: Index) -> Rows:
    """Rows of living papers for which no vector was tried."""
    parts = [
        segment.start + np.flatnonzero(segment.alive & (segment.embedded == NOT_YET)) for segment in index.segments
    ]
    return np.concatenate([np.empty(0, np.int64), *parts])


def pending_sentences(index: Index) -> Rows:
    """Rows of papers that have a vector but none of a sentence."""
    return np.flatnonzero(index.with_vector & ~index.with_sentences)


@dataclass(slots=True)
class _Filling:
    """Papers that get vectors, shard after shard."""

    folder: Path
    how: Embedding
    model_path: str
    """Where the model is: of an index of words it may be another one than was meant at first."""
    shard: int
    given: Given | None
    stop: Callable[[], bool]
    advance: Callable[[int], None]
    done: int = 0
    stopped: bool = False

    def papers(self) -> None:
        """Vectors of papers that have none; first of all those that are given, at once."""
        given = self.given
        if given is not None:
            self._one(lambda index: _given_rows(index, pending(index), given), self._whole, given)
        while self._one(lambda index: pending(index)[: self.shard], self._whole, None):
            pass

    def sentences(self, most: int) -> None:
        """Vectors of the sentences of papers that have their own already."""
        end, given = self.done + most, self.given if self.given and self.given.sentences else None
        if given is not None and most:
            self._one(lambda index: _given_sentences(index, given), self._sentences, given)
        while self.done < end and self._one(lambda at: pending_sentences(at)[: self.shard], self._sentences, None):
            pass

    def _one(self, choose: Callable[[Index], Rows], make: _Make, given: Given | None) -> bool:
        """Write some papers again, with more vectors than before, as one state; False where there is no more to do."""
        self.stopped = self.stopped or self.stop()
        if self.stopped:
            return False
        with writing(self.folder) as writer:
            index = Index.open(self.folder)
            rows = choose(index)
            if not len(rows):
                return False
            found = index.split(rows)
            segments = [segment for segment, _, _ in found]
            chosen = SelectedPapers.of([(of_segment(segment), inner) for segment, _, inner in found])
            recipe = {"filled": hash_json(rows.tolist()), "state": index.number, "revision": self.how.encoder.revision}
            recipe |= {"sentences": self.how.sentences, "given": given.hashes() if given else []}
            writer.clean([writer.segment(recipe)])

            def fill(artifact: ArtifactWriter) -> dict[str, Any]:
                facts = make(artifact, chosen, segments, given)
                tables = [segment.citing_sentences for segment in segments]
                return {**facts, **take_citing_sentences(artifact.folder, chosen, tables)}

            entry = write_segment(writer, recipe, chosen, fill)
            write_heads(self.folder, self.how.heads)
            facts = {**index.state.facts, **model_facts(self.how), "filling": True, "sentences": self.how.sentences}
            facts["model_path"] = self.model_path
            writer.commit([*gone(writer, index, rows), entry], facts)
            join_last(writer)
        self.advance(len(rows))
        self.done += len(rows)
        return True

    def _whole(
        self, artifact: ArtifactWriter, chosen: SelectedPapers, _: list[Segment], given: Given | None
    ) -> dict[str, Any]:
        return make_vectors(artifact, chosen, self.how, given)

    def _sentences(
        self, artifact: ArtifactWriter, chosen: SelectedPapers, segments: list[Segment], given: Given | None
    ) -> dict[str, Any]:
        facts = take_vectors(artifact.folder, chosen, segments, sentences=False)
        make_sentences(artifact, self.how, given)
        return facts


_Make = Callable[[ArtifactWriter, SelectedPapers, list[Segment], Given | None], dict[str, Any]]
"""Writes the vectors of the chosen papers of some segments."""


def _given_rows(index: Index, rows: Rows, given: Given) -> Rows:
    """Those of these rows for which no model is needed."""
    found = [rows[at[given.has(of_segment(segment))[own]]] for segment, at, own in index.split(rows)]
    return np.concatenate([np.empty(0, np.int64), *found])


def _given_sentences(index: Index, given: Given) -> Rows:
    rows = pending_sentences(index)
    assert given.sentences is not None
    known = places_of(index.keys_of(rows), id_keys(given.sentences.ids))
    lengths = np.append(given.sentences.lengths(), 0)  # for -1
    return rows[lengths[known] > 0]
