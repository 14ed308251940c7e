"""Build the index of a corpus, or bring an existing one up to date with it; describe and verify an index folder.

    build_index(corpus, "weave", "index")
    build_index(corpus, "model/", "index", IndexOptions(contexts=10), overlay=IntentOverlay.open("intents/"))
    build_index(corpus, "weave", "index", IndexOptions(vectors=False))       words only, in seconds
    index_corpus(newer, "", "index")                                         updated: only new texts are embedded
    describe_folder("index/", verify=True)    {"kind": "index", "version": 3, "hash": "...", "files": 61, "bytes": ...}

An interrupted build resumes: finished shards of papers and sentences are kept. An index built from the same corpus, model,
intents and options is opened and nothing is computed. An existing index is not touched before the new one is complete.
Later changes are made by `update.py`. Verifying reads every byte of every file; it does not repair.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from citeweave.core.artifact import Manifest, check_files, read_any_manifest
from citeweave.core.errors import ArtifactError, UserError
from citeweave.core.files import hash_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.text import TextRecipe
from citeweave.encoders.aspects import find_heads
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.model_names import DEFAULT_MODEL, stored_name
from citeweave.encoders.runtimes import AUTO, runtime_of
from citeweave.graph.intent_overlay import IntentOverlay
from citeweave.search.citing_sentences import READ_AS
from citeweave.search.generation import Generation
from citeweave.search.index import Index
from citeweave.search.index_columns import NOT_YET
from citeweave.search.index_model import Embedding, model_metadata, open_embedding
from citeweave.search.index_papers import SelectedPapers, corpus_records
from citeweave.search.index_vectors import PrecomputedVectors
from citeweave.search.options import IndexOptions
from citeweave.search.state import (
    GENERATIONS,
    VERSION,
    damaged_index,
    is_index,
    open_writer,
    read_generation,
    read_state,
)
from citeweave.search.update import ChangeCounts, ChangeOptions, fill_vectors, update_index

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
    """Build the index of a corpus with a model, by name or folder; the overlay's intents replace the corpus's own.

    Precomputed vectors are not made again; they do not count when two indexes are compared.
    """
    if overlay is not None:
        overlay.check(corpus)
    if options.contexts and not len(corpus.contexts):
        raise UserError(f"--contexts needs citing sentences, and {corpus.folder} has none; leave it out")
    if precomputed is not None and options.runtime == AUTO:  # queries are encoded as the vectors were
        options = replace(options, runtime=runtime_of(precomputed.vectors.provenance.revision))
    folder, embedding = Path(folder), _load_embedding(model, options)
    if precomputed is not None:
        if embedding is None:
            raise UserError("vectors are given for an index of words only; leave out one of the two")
        precomputed.check(embedding, corpus.hash)
    facts = _index_metadata(corpus, model, options, overlay, embedding)
    with open_writer(folder, create=True, overwrite=overwrite) as writer:
        is_same = writer.state is not None and _built_from(folder) == facts["built_from"]
        if is_same and not (overwrite and _is_damaged(folder)):
            reporter.say(f"{folder} already exists: same papers, model and intents")
            writer.clean()
            return Index.open(folder)
        if writer.state is not None and not overwrite:
            raise UserError(
                f"{folder} holds an index made from other inputs or options; choose another -o or --overwrite"
            )
        recipe = {
            "built_from": facts["built_from"],
            "read_as": READ_AS,
            "given": precomputed.hashes() if precomputed else [],
        }
        chosen = SelectedPapers.of([(corpus_records(corpus, overlay), np.arange(len(corpus)))])
        Generation(
            chosen, facts, embedding, corpus=corpus, overlay=overlay, precomputed=precomputed, reporter=reporter
        ).publish(writer, recipe)
    return Index.open(folder)


def _built_from(folder: Path) -> str:
    try:
        return str(read_generation(folder, read_state(folder)).facts.get("built_from"))
    except ArtifactError:
        return ""


def _is_damaged(folder: Path) -> bool:
    """Return whether any file of an existing index differs from what was written."""
    try:
        describe_folder(folder, verify=True)
    except ArtifactError:
        return True
    return False


def _load_embedding(model: str | Path, options: IndexOptions) -> Embedding | None:
    if not options.vectors:
        return None
    encoder = load_encoder(model, device=options.device, runtime=options.runtime)
    return Embedding(encoder, find_heads(model), options.dtype, options.sentences, options.shard)


def _index_metadata(
    corpus: Corpus, model: str | Path, options: IndexOptions, overlay: IntentOverlay | None, embedding: Embedding | None
) -> dict[str, Any]:
    """Return the metadata of a new index's state; `built_from` is a hash of all that decides the result."""
    facts: dict[str, Any] = {
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
    made_by = facts["provenance"] and facts["provenance"]["revision"]
    return {
        **facts,
        "built_from": hash_json([facts["model_path"] if embedding is None else made_by, _without_path(facts)]),
    }


def _without_path(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name not in ("model_path", "corpus_name", "runtime")}


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

    An existing index keeps its model and options: others are refused unless it may be overwritten, except that sentence
    vectors can be added. An empty model means that of the existing index, else the default one.
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
    if precomputed is not None and not options.vectors:
        raise UserError("vectors are given for an index of words only; leave out one of the two")
    if precomputed is not None:
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
    """Refuse another model or other options than an existing index was built with."""
    facts = index.facts
    wanted = {"dtype": options.dtype, "contexts": options.contexts}
    if not options.sentences:  # missing ones can be made
        wanted["abstract_sentences"] = False
    other = [name for name, value in wanted.items() if facts.get(name) != value]
    if options.runtime not in (AUTO, index.runtime):
        other.append("runtime")
    if other:
        differing = ", ".join(f"{name} {facts.get(name)}" for name in other)
        raise UserError(
            f"{index.folder} holds an index made with other inputs or options ({differing}); choose another -o or --overwrite"
        )
    if stored_name(model) != index.model:
        open_embedding(index, model, device=options.device)  # the same model elsewhere, or it is refused


# --- describing an index ---------------------------------------------------------------------------------


def describe_index(index: Index) -> dict[str, Any]:
    """Describe what was built into an index, as JSON: papers, vectors, sentences, references, model."""
    known, facts = index.provenance, index.facts
    with_vector, waiting = int(index.with_vector.sum()), int((index.embedded == NOT_YET).sum())
    description = {
        "state": index.number,
        "corpus": index.corpus,
        "corpus_name": facts.get("corpus_name", ""),
        "model": known.model if known else "",
        "revision": known.revision if known else "",
        "passes": facts.get("passes", []),
        "runtime": index.runtime if known else "",
        "aspects": list(index.aspects),
        "papers": len(index),
        "with_vector": with_vector,
        "not_embedded": waiting,
        "without_vector": len(index) - with_vector - waiting,
        "with_abstract": int((index.abstracts.lengths() > 0).sum()),
        "with_sentences": int(index.with_sentences.sum()),
        "with_intents": int(index.cited_as.any(axis=1).sum()),
        "references": len(index.reference_keys),
        "dimension": known.dimension if known else 0,
        "dtype": str(facts.get("dtype", "")),
    }
    if facts.get("contexts"):
        description |= {name: facts.get(name, 0) for name in ("sentences", "mentions", "sentences_left_out")}
    return description


def describe_folder(folder: str | Path, *, verify: bool = False) -> dict[str, Any]:
    """Describe a built index, or any artifact folder: kind, version, hash, files, bytes; `verify` checks every byte."""
    folder = Path(folder)
    if is_index(folder):
        return _describe_index_folder(folder, verify=verify)
    manifest = read_any_manifest(folder)
    check_files(folder, manifest, content=verify)
    description = {"kind": manifest.kind, "version": manifest.version, "hash": manifest.hash}
    return {**description, **_sizes(manifest), **_verified(verify), "facts": manifest.facts}


def _describe_index_folder(folder: Path, *, verify: bool) -> dict[str, Any]:
    state = read_state(folder)
    try:
        manifest = read_generation(folder, state)
        check_files(folder / GENERATIONS / state.generation, manifest, content=verify)
    except ArtifactError as error:
        raise damaged_index(folder, error) from None
    index = Index.open(folder)
    if verify:
        _ = index.heads
    description = {"kind": "index", "version": VERSION, "state": state.number, "papers": len(index)}
    return {**description, **_sizes(manifest), **_verified(verify), "facts": manifest.facts}


def _sizes(manifest: Manifest) -> dict[str, int]:
    sizes = [described.get("bytes", 0) for described in manifest.files.values()]
    return {"files": len(sizes), "bytes": sum(sizes)}


def _verified(verify: bool) -> dict[str, str]:
    return {"verified": "every file is as it was written"} if verify else {}
