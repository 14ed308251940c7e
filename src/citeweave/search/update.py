"""Update an index by building its next generation: add, replace and delete papers, fill in vectors.

    add_papers("index", corpus)                  all papers of a corpus; papers that the index has are replaced if they differ
    add_papers("index", corpus, rows)            some of them
    delete_papers("index", ["doi:10.1/x"])       by any id
    update_index("index", corpus)                afterwards the index has exactly the papers of the corpus
    fill_vectors("index")                        papers that have words only are embedded

A paper is the same where its id is; a paper whose id another one claims as a further id gives way to that one. Papers
are compared by hashes of their columns (`index_papers.py`), and vectors of papers with the same title and abstract are
carried over. An interrupted change leaves the index as it was, and the same call resumes. After any series of changes a
search returns what it would in a newly built index, except that citing sentences and counts of intents are those of the
corpus in which a paper came last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.core.files import hash_json
from citeweave.core.progress import QUIET, Advance, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.encoders.encoder import TorchEncoder
from citeweave.encoders.model_names import stored_name
from citeweave.graph.intent_overlay import IntentOverlay
from citeweave.search.citing_sentences import READ_AS
from citeweave.search.generation import Generation
from citeweave.search.index import Index
from citeweave.search.index_columns import NOT_YET
from citeweave.search.index_model import Embedding, open_embedding
from citeweave.search.index_papers import PaperRecords, SelectedPapers, corpus_records, hash_records, index_records
from citeweave.search.index_vectors import PrecomputedVectors
from citeweave.search.state import open_writer

SHARD = 256
"""Papers that `fill_vectors` embeds between two saves."""


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
    folder = Path(folder)
    with open_writer(folder) as writer:
        index = Index.open(folder)
        rows = np.unique(index.rows(ids))
        rows = rows[rows >= 0]
        if len(rows):
            kept = np.setdiff1d(np.arange(index.size), rows)
            chosen, facts = SelectedPapers.of([(index_records(index), kept)]), {**index.facts, "built_from": ""}
            recipe = {"deleted": hash_json(rows.tolist()), "last": index.manifest.hash}
            Generation(chosen, facts, None, index).publish(writer, recipe)
        else:
            writer.clean()
    return len(rows)


# --- replacing papers ------------------------------------------------------------------------------------


class UpdatePlan(NamedTuple):
    """What an update does to the papers of an index."""

    kept: NDArray[np.int64]
    """Rows of the index that stay, ascending; all others are deleted, or taken from the corpus."""

    has_new_texts: bool
    counts: ChangeCounts


def _plan_update(index: Index, records: PaperRecords, rows: NDArray[np.int64], *, delete_others: bool) -> UpdatePlan:
    """Plan an index's update to the papers at these rows, ascending; with `delete_others` no other paper stays."""
    hashed = hash_records(records)
    keys = records.texts["id"].keys()[rows]
    current = index.rows_of_keys(keys)  # rows of the index by any id, (rows,)
    own = current >= 0
    own[own] = index.keys[current[own]] == keys[own]
    same_text, same = own.copy(), own.copy()
    same_text[own] = index.text_keys[current[own]] == hashed.text[rows[own]]
    same[own] = index.record_keys[current[own]] == hashed.record[rows[own]]
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
    own = index.keys_of(claimed[known]) == keys[known]
    return np.unique(np.concatenate([current[current >= 0], claimed[known][own]]))


@dataclass(frozen=True, slots=True)
class _IndexChange:
    """A change that brings papers of a corpus into an existing index."""

    folder: Path
    corpus: Corpus
    overlay: IntentOverlay | None
    options: ChangeOptions
    reporter: Reporter

    def apply(self, rows: NDArray[np.int64], *, delete_others: bool) -> ChangeCounts:
        """Update the index: build the generation in which the papers at these rows of the corpus are as the corpus has them."""
        if self.overlay is not None:
            self.overlay.check(self.corpus)
        records = corpus_records(self.corpus, self.overlay)
        with open_writer(self.folder) as writer:
            index = Index.open(self.folder)
            facts = self._metadata(index)
            plan = _plan_update(index, records, rows, delete_others=delete_others)
            if not (plan.counts.added or plan.counts.updated or plan.counts.deleted) and facts == index.facts:
                writer.clean()
                return plan.counts
            embedding = self._open_embedding(index, plan)
            if embedding is not None:
                facts["abstract_sentences"] = embedding.sentences
            chosen = SelectedPapers.of([(index_records(index), plan.kept), (records, rows)])
            precomputed = self.options.precomputed if embedding else None
            recipe = {
                "corpus": self.corpus.hash,
                "rows": hash_json(rows.tolist()),
                "kept": hash_json(plan.kept.tolist()),
                "intents": facts["intents"],
                "revision": embedding.encoder.revision if embedding else "",
                "sentences": bool(embedding and embedding.sentences),
                "read_as": READ_AS,
                "given": precomputed.hashes() if precomputed else [],
                "last": index.manifest.hash,
            }
            Generation(chosen, facts, embedding, index, self.corpus, self.overlay, precomputed, self.reporter).publish(
                writer, recipe
            )
        return plan.counts

    def _metadata(self, index: Index) -> dict[str, Any]:
        """Return the metadata of the index's next state, before its model is known."""
        facts = index.facts
        if facts.get("intents") and self.overlay is None:
            raise UserError(
                f"{self.folder} was made with intents that `citeweave annotate` found; give those of {self.corpus.folder} "
                "with --intents, or build the index again without"
            )
        own = {"corpus": self.corpus.hash, "corpus_name": self.corpus.folder.name, "built_from": ""}
        return {**facts, **own, "intents": self.overlay.hash if self.overlay else ""}

    def _open_embedding(self, index: Index, plan: UpdatePlan) -> Embedding | None:
        """Load the index's model where there is anything to embed."""
        options = self.options
        if options.precomputed is not None and (not options.vectors or index.provenance is None):
            raise UserError(
                f"vectors are given, but papers are added to {self.folder} with words only; give them when the vectors "
                f"are made: `citeweave change {self.folder} --fill --vectors FOLDER`"
            )
        if not options.vectors or index.provenance is None:
            return None
        if not plan.has_new_texts and not (index.facts.get("contexts") and len(self.corpus.contexts)):
            return None
        embedding = open_embedding(
            index, options.model, device=options.device, encoder=options.encoder, sentences=options.sentences
        )
        if options.precomputed is not None:
            options.precomputed.check(embedding, self.corpus.hash)
        return embedding


# --- filling in vectors ----------------------------------------------------------------------------------


def pending_rows(index: Index) -> NDArray[np.int64]:
    """Return the rows of papers that were not embedded yet."""
    return np.flatnonzero(index.embedded == NOT_YET)


def pending_sentence_rows(index: Index) -> NDArray[np.int64]:
    """Return the rows of papers that have a vector but no sentence vectors."""
    return np.flatnonzero(index.with_vector & ~index.with_sentences)


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
    """Fill in the vectors of papers of an index that have words only; return how many, 0 where `stop()` came first.

    With `sentences`, also the sentences of all papers, from now on. `model` is where the index's model is now, or the
    loaded model itself.
    """
    if shard < 1:
        raise UserError(f"--shard is {shard}; it must be at least 1 paper")
    folder = Path(folder)
    try:
        with open_writer(folder) as writer:
            index = Index.open(folder)
            sentences = sentences or bool(index.facts.get("abstract_sentences"))
            waiting = len(pending_rows(index)) + (len(pending_sentence_rows(index)) if sentences else 0)
            if not waiting:
                writer.clean()
                return 0
            loaded = model if isinstance(model, TorchEncoder) else None
            where = None if isinstance(model, TorchEncoder) else model
            embedding = open_embedding(index, where, device=device, encoder=loaded, sentences=sentences, shard=shard)
            if precomputed is not None:
                precomputed.check(embedding, index.corpus)
            path = stored_name(where) if where and index.provenance is None else index.model
            facts = {**index.facts, "abstract_sentences": embedding.sentences, "model_path": path}
            recipe = {
                "filled": index.manifest.hash,
                "revision": embedding.encoder.revision,
                "sentences": embedding.sentences,
                "given": precomputed.hashes() if precomputed else [],
            }
            Generation.of_same_papers(
                index, facts, embedding, precomputed=precomputed, reporter=_StoppableReporter(reporter, stop)
            ).publish(writer, recipe)
    except _Stopped:
        return 0
    return waiting


class _Stopped(BaseException):
    """The work was stopped, like an interruption by the user: what is done is saved, and the next call resumes."""


class _StoppableReporter(Reporter):
    """Passes progress on, and ends the work once `stop()` says so."""

    def __init__(self, outer: Reporter, stop: Callable[[], bool]) -> None:
        super().__init__(quiet=outer.quiet, stream=outer.stream)
        self._outer, self._stop = outer, stop

    def say(self, message: str) -> None:
        self._outer.say(message)

    @contextmanager
    def task(self, label: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        with self._outer.task(label, total, unit) as onward:

            def advance(amount: int) -> None:
                onward(amount)
                if self._stop():
                    raise _Stopped

            yield advance
