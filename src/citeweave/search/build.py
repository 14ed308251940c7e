"""Build the index of a corpus, or bring an existing one up to date with it; describe and verify an index folder.

    build_index(corpus, "weave", "index")
    build_index(corpus, "model/", "index", IndexOptions(contexts=10), overlay=IntentOverlay.open("intents/"))
    build_index(corpus, "weave", "index", IndexOptions(vectors=False))       words only, in seconds
    index_corpus(newer, "", "index")                                         updated: only new texts are embedded
    describe_folder("index/", verify=True)    {"kind": "index", "version": 2, "hash": "...", "files": 61, "bytes": ...}

An interrupted build resumes: finished shards of papers and sentences are kept. An index built from the same corpus, model,
intents and options is opened and nothing is computed. An existing index is not touched before the new one is complete.
Later changes are made by `update.py`. Verifying reads every byte of every file; it does not repair.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from citeweave.core.artifact import ArtifactWriter, Manifest, check_files, kind_of, read_any_manifest, read_manifest
from citeweave.core.errors import ArtifactError, EmptyResultError, UserError, choose
from citeweave.core.files import hash_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.publish import remove_artifact, remove_leftovers
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.text import TextRecipe
from citeweave.encoders.aspects import find_heads
from citeweave.encoders.embed import SHARD
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.model_names import DEFAULT_MODEL, stored_name
from citeweave.encoders.runtimes import AUTO, runtime_of
from citeweave.graph.intent_overlay import IntentOverlay
from citeweave.search import segment
from citeweave.search.citing_sentences import READ_AS, embed_citing_sentences
from citeweave.search.fill_vectors import fill_vectors, pending_rows
from citeweave.search.index import Index
from citeweave.search.index_model import Embedding, model_metadata, open_embedding, write_heads
from citeweave.search.segment_papers import SelectedPapers, corpus_records
from citeweave.search.segment_vectors import (
    PrecomputedVectors,
    split_precomputed,
    write_segment,
    write_vectors,
    write_without_vectors,
)
from citeweave.search.state import (
    SEGMENTS,
    VERSION,
    IndexWriter,
    SegmentEntry,
    damaged_index,
    is_index,
    open_writer,
    read_state,
)
from citeweave.search.update import ChangeCounts, ChangeOptions, merge_last_segments, update_index
from citeweave.vectors.vectors import DTYPES


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """Options for building an index: what it holds besides words, and how its vectors are made."""

    dtype: str = "float16"
    """Type of the vectors' numbers, `float16` or `float32`."""

    contexts: int = 0
    """Maximal citing sentences per paper and set of intents; 0 = none."""

    runtime: str = "auto"
    """Runtime that computes the network, now and when texts are searched for: see `load_encoder`."""

    device: str = "auto"
    shard: int = SHARD
    """Papers between two saves; like the device, it does not change the result."""

    sentences: bool = False
    """Also one vector per sentence of an abstract."""

    vectors: bool = True
    """False: words only; `fill_vectors` adds the vectors later."""

    def __post_init__(self) -> None:
        choose(self.dtype, DTYPES, "--dtype")
        if self.contexts < 0:
            raise UserError(f"--max-contexts is {self.contexts}; it must be 0, for none, or more")
        if self.contexts and not self.vectors:
            raise UserError("citing sentences are kept by their vectors; leave out --contexts, or make vectors")


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
    if overwrite and kind_of(folder) == "index" and not is_index(folder):
        remove_artifact(folder)  # of format version 1
    with open_writer(folder, create=True, overwrite=overwrite) as writer:
        is_same = writer.state is not None and writer.state.facts.get("built_from") == facts["built_from"]
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
        entries = _IndexBuild(corpus, embedding, options, overlay, precomputed, reporter).write_segments(writer, recipe)
        write_heads(folder, embedding.heads if embedding else None)
        writer.commit(entries, facts)
        merge_last_segments(writer)
    return Index.open(folder)


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
        "sentences": options.sentences,
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
class _IndexBuild:
    """A build that writes the papers of a corpus into a new index."""

    corpus: Corpus
    embedding: Embedding | None
    options: IndexOptions
    overlay: IntentOverlay | None
    precomputed: PrecomputedVectors | None
    reporter: Reporter

    def write_segments(self, writer: IndexWriter, recipe: dict[str, Any]) -> list[SegmentEntry]:
        """Build the segments of a new index: papers with a precomputed vector as one, papers to embed as another."""
        records = corpus_records(self.corpus, self.overlay)
        parts = split_precomputed(self.precomputed, records, np.arange(len(records))) or [(False, np.arange(0))]
        recipes = [{**recipe, "part": "given"} if is_precomputed else recipe for is_precomputed, _ in parts]
        writer.clean([writer.segment(each) for each in recipes])
        try:
            return [
                self._write_segment(
                    writer, each, SelectedPapers.of([(records, rows)]), self.precomputed if is_precomputed else None
                )
                for each, (is_precomputed, rows) in zip(recipes, parts, strict=True)
            ]
        except (EmptyResultError, UserError):
            for each in recipes:  # a second try would fail the same way
                remove_leftovers(writer.segment(each))
            raise

    def _write_segment(
        self,
        writer: IndexWriter,
        recipe: dict[str, Any],
        chosen: SelectedPapers,
        precomputed: PrecomputedVectors | None,
    ) -> SegmentEntry:
        def fill(artifact: ArtifactWriter) -> dict[str, Any]:
            if self.embedding is None:
                return write_without_vectors(artifact.folder, len(chosen))
            metadata = write_vectors(artifact, chosen, self.embedding, precomputed, self.reporter)
            if not metadata["with_vector"] and self.precomputed is None:
                raise EmptyResultError(
                    f"no paper of {self.corpus.folder} has a text that {self.embedding.encoder.name} can read; check the input"
                )
            return {**metadata, **self._write_citing_sentences(artifact, chosen, self.embedding)}

        return write_segment(writer, recipe, chosen, fill)

    def _write_citing_sentences(
        self, artifact: ArtifactWriter, chosen: SelectedPapers, embedding: Embedding
    ) -> dict[str, Any]:
        """Write the sentences of the corpus that cite a new segment's papers, where the options want them."""
        if not self.options.contexts:
            return {}
        counts = embed_citing_sentences(
            artifact,
            self.corpus,
            chosen.places(0),
            embedding.encoder,
            max_per_intents=self.options.contexts,
            dtype=embedding.dtype,
            overlay=self.overlay,
            reporter=self.reporter,
        )
        if not counts and self.precomputed is None:
            raise UserError(f"no citing sentence of {self.corpus.folder} cites a paper of it; leave out --contexts")
        return counts


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
    facts = index.state.facts
    wanted = {"dtype": options.dtype, "contexts": options.contexts}
    if not options.sentences:  # missing ones can be made
        wanted["sentences"] = False
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
    """Describe what was built into an index, as JSON: live papers, vectors, sentences, references, model."""
    known, facts = index.provenance, index.state.facts
    waiting = len(pending_rows(index))
    description = {
        "state": index.number,
        "segments": len(index.segments),
        "corpus": index.corpus,
        "corpus_name": facts.get("corpus_name", ""),
        "model": known.model if known else "",
        "revision": known.revision if known else "",
        "passes": sorted({name for each in index.segments for name in each.passes}),
        "runtime": index.runtime if known else "",
        "aspects": list(index.aspects),
        "papers": len(index),
        "deleted": index.size - len(index),
        "with_vector": int(index.with_vector.sum()),
        "not_embedded": waiting,
        "without_vector": len(index) - int(index.with_vector.sum()) - waiting,
        "with_abstract": sum(int((s.alive & (s.abstracts.lengths() > 0)).sum()) for s in index.segments),
        "with_sentences": int(index.with_sentences.sum()),
        "with_intents": sum(int((s.alive & s.cited_as.any(axis=1)).sum()) for s in index.segments),
        "references": sum(int(np.diff(s.reference_offsets)[s.alive].sum()) for s in index.segments),
        "dimension": known.dimension if known else 0,
        "dtype": str(facts.get("dtype", "")),
    }
    if facts.get("contexts"):
        description["sentences"], description["mentions"] = count_citing_sentences(index)
        description["sentences_left_out"] = sum(
            int(s.manifest.facts.get("sentences_left_out", 0)) for s in index.segments
        )
    return description


def count_citing_sentences(index: Index) -> tuple[int, int]:
    """Describe how many citing sentences with a mention of a live paper were built into an index, and those mentions."""
    sentences = mentions = 0
    for each in index.segments:
        table = each.citing_sentences
        if table is not None:
            live = each.alive[table.paper]  # (mentions,)
            mentions += int(live.sum())
            sentences += len(table) if live.all() else len(np.unique(table.sentence[live]))
    return sentences, mentions


def describe_folder(folder: str | Path, *, verify: bool = False) -> dict[str, Any]:
    """Describe a built index, or any artifact folder: kind, version, hash, files, bytes; `verify` checks every byte."""
    folder = Path(folder)
    if is_index(folder):
        return _describe_index_folder(folder, verify=verify)
    manifest = read_any_manifest(folder)
    check_files(folder, manifest, content=verify)
    description = {"kind": manifest.kind, "version": manifest.version, "hash": manifest.hash}
    return {**description, **_sizes([manifest]), **_verified(verify), "facts": manifest.facts}


def _describe_index_folder(folder: Path, *, verify: bool) -> dict[str, Any]:
    state = read_state(folder)
    try:
        manifests = [_check_segment(folder / SEGMENTS / entry.name, verify=verify) for entry in state.segments]
    except ArtifactError as error:
        raise damaged_index(folder, error) from None
    index = Index.open(folder)  # compares segments, lists of deleted papers and heads with the state
    if verify:
        _ = index.heads
    description = {"kind": "index", "version": VERSION, "state": state.number, "papers": len(index)}
    return {**description, **_sizes(manifests), **_verified(verify), "facts": state.facts}


def _check_segment(place: Path, *, verify: bool) -> Manifest:
    """Check the files of a segment against its manifest and return it."""
    manifest = read_manifest(place, segment.KIND, segment.VERSION)
    check_files(place, manifest, content=verify)
    return manifest


def _sizes(manifests: list[Manifest]) -> dict[str, int]:
    sizes = [described.get("bytes", 0) for manifest in manifests for described in manifest.files.values()]
    return {"files": len(sizes), "bytes": sum(sizes)}


def _verified(verify: bool) -> dict[str, str]:
    return {"verified": "every file is as it was written"} if verify else {}
