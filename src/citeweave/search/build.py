"""Build the index of a corpus, and change it by building its next generation.

    build_index(corpus, "weave", "index")
    build_index(corpus, "model/", "index", IndexOptions(contexts=10), overlay=IntentOverlay.open("intents/"))
    build_index(corpus, "weave", "index", IndexOptions(vectors=False))       words only, in seconds
    fill_vectors("index")                        papers that have words only are embedded
    add_papers("index", corpus, rows)            some papers or all; those that the index has are replaced if they differ
    delete_papers("index", ["doi:10.1/x"])       by any id
    update_index("index", newer)                 afterwards the index has exactly the papers of the corpus
    index_corpus(newer, "", "index")             built or updated: only new texts are embedded

An interrupted build or change leaves an existing index as it was, and the same call resumes: finished shards of papers
and sentences are kept. An index built from the same corpus, model, intents and options is opened and nothing is computed.
A paper is the same where its id is; a paper whose id another one claims as a further id gives way to that one. Papers
are compared by hashes of their columns (`generation.py`), and vectors of papers with the same title and abstract are
carried over. After any series of changes a search returns what it would in a newly built index, except that citing
sentences and counts of intents are those of the corpus in which a paper came last. What an index holds: `describe.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.files import hash_json
from citeweave.core.progress import QUIET, Advance, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.text import TextRecipe
from citeweave.encoders.aspects import find_heads
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.encoders.model_names import DEFAULT_MODEL, stored_name
from citeweave.encoders.runtimes import AUTO, runtime_of
from citeweave.graph.intent_overlay import IntentOverlay
from citeweave.search.citing_sentences import READ_AS
from citeweave.search.describe import verify_index
from citeweave.search.generation import (
    ChangeCounts,
    Generation,
    SelectedPapers,
    corpus_records,
    index_records,
    plan_update,
)
from citeweave.search.index import Index
from citeweave.search.index_vectors import Embedding, PrecomputedVectors, model_metadata, open_embedding
from citeweave.search.options import IndexOptions
from citeweave.search.state import is_index, open_writer, read_facts

SHARD = 256
"""Papers that `fill_vectors` embeds between two saves."""

_NO_VECTORS_WANTED = "vectors are given for an index of words only; leave out one of the two"
_OPTIONS = IndexOptions()


def build_index(
    corpus: Corpus,
    model: str | Path,
    folder: str | Path,
    options: IndexOptions = _OPTIONS,
    *,
    overlay: IntentOverlay | None = None,
    precomputed: PrecomputedVectors | None = None,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Index:
    """Build a searchable index of a corpus: words and vectors of `model`, a name or folder; open it if it already exists.

    `options` says what it holds; the intents of `overlay` replace the corpus's own; precomputed vectors are used as they are.
    """
    if overlay is not None:
        overlay.check(corpus)
    if options.contexts and not len(corpus.contexts):
        raise UserError(f"--contexts needs citing sentences, and {corpus.folder} has none; leave it out")
    if precomputed is not None and options.runtime == AUTO:  # queries are encoded as the vectors were
        options = replace(options, runtime=runtime_of(precomputed.vectors.provenance.revision))
    folder, embedding = Path(folder), None
    if options.vectors:
        encoder = load_encoder(model, device=options.device, runtime=options.runtime)
        embedding = Embedding(encoder, find_heads(model), options.dtype, options.sentences, options.shard)
    if precomputed is not None:
        if embedding is None:
            raise UserError(_NO_VECTORS_WANTED)
        precomputed.check(embedding, corpus.hash)
    facts = _index_metadata(corpus, model, options, overlay, embedding)
    with open_writer(folder, create=True, overwrite=overwrite) as writer:
        exists = writer.state is not None
        if exists and _is_built_from(folder, facts["built_from"], verify=overwrite):
            reporter.say(f"{folder} already exists: same papers, model and intents")
            writer.clean()
            return Index.open(folder)
        if exists and not overwrite:
            raise UserError(f"{folder} was made from other inputs or options; choose another -o or --overwrite")
        hashes = precomputed.hashes() if precomputed else []
        recipe = {"built_from": facts["built_from"], "read_as": READ_AS, "given": hashes}
        chosen = SelectedPapers.of([(corpus_records(corpus, overlay), np.arange(len(corpus)))])
        generation = Generation(chosen, facts, embedding, None, corpus, overlay, precomputed, reporter)
        generation.publish(writer, recipe)
    return Index.open(folder)


def _is_built_from(folder: Path, inputs: str, *, verify: bool) -> bool:
    """Return whether an index was built from inputs and options with this hash and, with `verify`, is undamaged."""
    try:
        is_same = str(read_facts(folder).get("built_from")) == inputs
        if is_same and verify:
            verify_index(Index.open(folder))
    except ArtifactError:
        return False
    return is_same


def _index_metadata(
    corpus: Corpus, model: str | Path, options: IndexOptions, overlay: IntentOverlay | None, embedding: Embedding | None
) -> dict[str, Any]:
    """Return the metadata of a new index's state; `built_from` is a hash of all that decides the result."""
    facts = {
        "corpus": corpus.hash,
        "corpus_name": corpus.folder.name,
        "model_path": stored_name(model),
        "runtime": options.runtime,
        "dtype": options.dtype,
        "contexts": options.contexts,
        "abstract_sentences": options.sentences,
        "intents": overlay.hash if overlay else "",
        "text_recipe": TextRecipe().hash,
        **model_metadata(embedding),
    }
    made_by = facts["model_path"] if embedding is None else embedding.provenance.revision
    decisive = {name: value for name, value in facts.items() if name not in ("model_path", "corpus_name", "runtime")}
    return {**facts, "built_from": hash_json([made_by, decisive])}


# --- changing an index -----------------------------------------------------------------------------------


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


_CHANGE_OPTIONS = ChangeOptions()


def add_papers(
    folder: str | Path,
    corpus: Corpus,
    rows: NDArray[Any] | None = None,
    *,
    vectors: bool = True,
    options: ChangeOptions = _CHANGE_OPTIONS,
    overlay: IntentOverlay | None = None,
    reporter: Reporter = QUIET,
) -> ChangeCounts:
    """Add the papers of a corpus, or those at some of its rows, to an index; papers that it has are replaced."""
    rows = np.arange(len(corpus)) if rows is None else np.unique(np.asarray(rows, np.int64))
    if len(rows) and (rows[0] < 0 or rows[-1] >= len(corpus)):
        bad = rows[0] if rows[0] < 0 else rows[-1]
        raise UserError(f"row {bad} is not one of the {len(corpus):,} papers of {corpus.folder}; give rows of it")
    options = options if vectors else replace(options, vectors=False)
    return _change_papers(folder, corpus, rows, options, overlay, reporter, delete_others=False)


def update_index(
    folder: str | Path,
    corpus: Corpus,
    *,
    vectors: bool = True,
    options: ChangeOptions = _CHANGE_OPTIONS,
    overlay: IntentOverlay | None = None,
    reporter: Reporter = QUIET,
) -> ChangeCounts:
    """Update an index to exactly the papers of a newer corpus: add new ones, replace changed ones, delete the rest."""
    options = options if vectors else replace(options, vectors=False)
    rows = np.arange(len(corpus))
    return _change_papers(folder, corpus, rows, options, overlay, reporter, delete_others=True)


def delete_papers(folder: str | Path, ids: Sequence[str]) -> int:
    """Delete papers from an index by any of their ids; return how many it had."""
    folder = Path(folder)
    with open_writer(folder) as writer:
        index = Index.open(folder)
        rows = np.unique(index.rows(ids))
        rows = rows[rows >= 0]
        if not len(rows):
            writer.clean()
            return 0
        kept = np.setdiff1d(np.arange(index.size), rows)
        chosen, facts = SelectedPapers.of([(index_records(index), kept)]), {**index.facts, "built_from": ""}
        recipe = {"deleted": hash_json(rows.tolist()), "last": index.manifest.hash}
        Generation(chosen, facts, None, index).publish(writer, recipe)
    return len(rows)


def _change_papers(
    folder: str | Path,
    corpus: Corpus,
    rows: NDArray[np.int64],
    options: ChangeOptions,
    overlay: IntentOverlay | None,
    reporter: Reporter,
    *,
    delete_others: bool,
) -> ChangeCounts:
    """Build the generation of an index in which the papers at these rows of the corpus are as the corpus has them."""
    if overlay is not None:
        overlay.check(corpus)
    folder, records = Path(folder), corpus_records(corpus, overlay)
    with open_writer(folder) as writer:
        index = Index.open(folder)
        if index.facts.get("intents") and overlay is None:
            raise UserError(
                f"{folder} was made with intents that `citeweave annotate` found; give those of {corpus.folder} "
                "with --intents, or build the index again without"
            )
        own = {"corpus": corpus.hash, "corpus_name": corpus.folder.name, "built_from": ""}
        facts = {**index.facts, **own, "intents": overlay.hash if overlay else ""}
        plan = plan_update(index, records, rows, delete_others=delete_others)
        if not (plan.counts.added or plan.counts.updated or plan.counts.deleted) and facts == index.facts:
            writer.clean()
            return plan.counts
        embedding = _open_embedding(index, corpus, options, new_texts=plan.has_new_texts)
        if embedding is not None:
            facts["abstract_sentences"] = embedding.sentences
        precomputed = options.precomputed if embedding else None
        recipe = {
            "corpus": corpus.hash,
            "rows": hash_json(rows.tolist()),
            "kept": hash_json(plan.kept.tolist()),
            "intents": facts["intents"],
            "revision": embedding.encoder.revision if embedding else "",
            "sentences": bool(embedding and embedding.sentences),
            "read_as": READ_AS,
            "given": precomputed.hashes() if precomputed else [],
            "last": index.manifest.hash,
        }
        chosen = SelectedPapers.of([(index_records(index), plan.kept), (records, rows)])
        generation = Generation(chosen, facts, embedding, index, corpus, overlay, precomputed, reporter)
        generation.publish(writer, recipe)
    return plan.counts


def _open_embedding(index: Index, corpus: Corpus, options: ChangeOptions, *, new_texts: bool) -> Embedding | None:
    """Load the index's model where a change leaves anything to embed."""
    words_only = not options.vectors or index.provenance is None
    if options.precomputed is not None and words_only:
        raise UserError(
            f"vectors are given, but papers are added to {index.folder} with words only; give them when the vectors "
            f"are made: `citeweave change {index.folder} --fill --vectors FOLDER`"
        )
    has_contexts = index.facts.get("contexts") and len(corpus.contexts)
    if words_only or not (new_texts or has_contexts):
        return None
    embedding = open_embedding(
        index, options.model, device=options.device, encoder=options.encoder, sentences=options.sentences
    )
    if options.precomputed is not None:
        options.precomputed.check(embedding, corpus.hash)
    return embedding


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
            waiting = index.not_embedded | (index.with_vector & ~index.with_sentences & sentences)
            if not waiting.any():
                writer.clean()
                return 0
            loaded, where = (model, None) if isinstance(model, TorchEncoder) else (None, model)
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
            chosen = SelectedPapers.of([(index_records(index), np.arange(index.size))])
            stoppable = _StoppableReporter(reporter, stop)
            generation = Generation(chosen, facts, embedding, index, precomputed=precomputed, reporter=stoppable)
            generation.publish(writer, recipe)
    except _Stopped:
        return 0
    return int(waiting.sum())


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


@dataclass(frozen=True, slots=True)
class IndexedCorpus:
    """An index that was built or updated, and how many papers changed."""

    index: Index
    changed: ChangeCounts | None
    """None where the index was built."""


def index_corpus(
    corpus: Corpus,
    model: str | Path,
    folder: str | Path,
    options: IndexOptions = _OPTIONS,
    *,
    overlay: IntentOverlay | None = None,
    precomputed: PrecomputedVectors | None = None,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> IndexedCorpus:
    """Build the index of a corpus, or update an existing one to it; arguments as of `build_index`.

    An existing index keeps its model, sentences and contexts: other options are refused unless it may be overwritten,
    except that sentence vectors can be added. An empty model means that of the existing index, else the default one.
    """
    folder = Path(folder)
    if overwrite or not is_index(folder):
        built = build_index(
            corpus,
            model or DEFAULT_MODEL,
            folder,
            options,
            overlay=overlay,
            precomputed=precomputed,
            overwrite=overwrite,
            reporter=reporter,
        )
        return IndexedCorpus(built, None)
    if precomputed is not None:
        if not options.vectors:
            raise UserError(_NO_VECTORS_WANTED)
        precomputed.check_corpus(corpus.hash)  # before the words change
    index = Index.open(folder)
    model = model or index.model
    _check_options(index, model, options)
    change_options = ChangeOptions(
        options.vectors,
        str(model),
        options.device,
        precomputed=precomputed if index.provenance is not None else None,
        sentences=options.sentences,
    )
    changed = update_index(folder, corpus, options=change_options, overlay=overlay, reporter=reporter)
    if options.vectors:
        fill_vectors(
            folder,
            model=model,
            device=options.device,
            precomputed=precomputed,
            sentences=options.sentences,
            reporter=reporter,
        )
    return IndexedCorpus(Index.open(folder), changed)


def _check_options(index: Index, model: str | Path, options: IndexOptions) -> None:
    """Refuse another model or other options than an existing index was built with; what is not asked for is kept."""
    dtype, contexts = str(index.facts.get("dtype")), int(index.facts.get("contexts", 0))
    has = [f"--dtype {dtype}", f"--contexts --max-contexts {contexts}" if contexts else "--no-contexts"]
    asked = [
        f"--dtype {options.dtype}",
        f"--contexts --max-contexts {options.contexts}" if options.contexts else has[1],
    ]
    has.append(f"--runtime {index.runtime}")
    asked.append(has[2] if options.runtime == AUTO else f"--runtime {options.runtime}")
    if other := " ".join(own for own, wanted in zip(has, asked, strict=True) if own != wanted):
        raise UserError(f"{index.folder} was made with {other}; give the same to update it, or choose another -o")
    if stored_name(model) != index.model:
        open_embedding(index, model, device=options.device)  # the same model elsewhere, or it is refused
