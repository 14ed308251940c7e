"""What an index holds, counted: for `citeweave index`, `citeweave change` and anybody who asks.

What a folder that citeweave made is, and whether it is still what was written.

    describe_folder("index/", verify=True)    {"kind": "index", "version": 2, "hash": "...", "files": 61, "bytes": ...}

With `verify` every byte of every file is read: any artifact with a manifest, or an index with its segments, its lists of
deleted papers and its aspect heads. Does not repair.

Building an index: the papers of a corpus with their words, vectors in every space, and citing sentences.

    build_index(corpus, "weave", "index")
    build_index(corpus, "model/", "index", IndexOptions(contexts=10), overlay=IntentOverlay.open("intents/"))
    build_index(corpus, "weave", "index", IndexOptions(vectors=False))       words only, in seconds

An interrupted run goes on where it stopped: finished shards of papers and sentences are kept. An index that was made of
the same corpus, model, intents and options is opened and nothing is computed. An index that is there is not touched
before the new one is whole. Later changes are made by `changing.py`.

One verb for an index that is not there yet and for one that is: build it, or bring it to the corpus.

index_corpus(corpus, "weave", "index")        built
index_corpus(newer, "", "index")              only what is new is embedded, by the index's own model

An index that is there keeps its model and options; asked for others, it is refused unless it may be overwritten. Only
vectors of sentences can be asked for later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from citeweave.core.artifact import ArtifactWriter, Manifest, any_manifest, check_files, kind_of, read_manifest
from citeweave.core.errors import ArtifactError, EmptyResultError, UserError, choose
from citeweave.core.files import hash_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.publish import remove_artifact, remove_leftovers
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.text import TextRecipe
from citeweave.encoders.aspects import find_heads
from citeweave.encoders.embed import SHARD
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.model_names import DEFAULT_MODEL, remembered
from citeweave.encoders.runtimes import AUTO, runtime_of
from citeweave.graph.intent_overlay import IntentOverlay
from citeweave.search import segment
from citeweave.search.fill_vectors import fill_vectors, pending
from citeweave.search.index import Index
from citeweave.search.precomputed import Given, make_vectors, model_facts, open_embedding, split_given, write_heads
from citeweave.search.segment import READ_AS
from citeweave.search.segment_papers import SelectedPapers, records_of
from citeweave.search.segment_vectors import Embedding, embed_citing_sentences, leave_empty, write_segment
from citeweave.search.state import SEGMENTS, VERSION, Entry, IndexWriter, damaged_index, is_index, read_state, writing
from citeweave.search.update import Changed, ChangeOptions, join_last, update_index
from citeweave.vectors.vectors import DTYPES


def describe(index: Index) -> dict[str, Any]:
    """Counts of living papers and of what is known about them, and the model; as JSON."""
    known, facts = index.provenance, index.state.facts
    waiting = len(pending(index))
    told = {
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
        told["sentences"], told["mentions"] = count_citing_sentences(index)
        told["sentences_left_out"] = sum(int(s.manifest.facts.get("sentences_left_out", 0)) for s in index.segments)
    return told


def count_citing_sentences(index: Index) -> tuple[int, int]:
    """Citing sentences that mention a living paper, and those mentions."""
    sentences = mentions = 0
    for each in index.segments:
        table = each.citing_sentences
        if table is not None:
            living = each.alive[table.paper]  # (mentions,)
            mentions += int(living.sum())
            sentences += len(table) if living.all() else len(np.unique(table.sentence[living]))
    return sentences, mentions


# What a folder that citeweave made is, and whether it is still what was written.


def describe_folder(folder: str | Path, *, verify: bool = False) -> dict[str, Any]:
    """Kind, format version, hash, and how many files and bytes there are; an error where a file has changed."""
    folder = Path(folder)
    if is_index(folder):
        return _describe_index(folder, verify=verify)
    manifest = any_manifest(folder)
    check_files(folder, manifest, content=verify)
    told = {"kind": manifest.kind, "version": manifest.version, "hash": manifest.hash}
    return {**told, **_sizes([manifest]), **_verified(verify), "facts": manifest.facts}


def _describe_index(folder: Path, *, verify: bool) -> dict[str, Any]:
    state = read_state(folder)
    try:
        manifests = [_manifest(folder / SEGMENTS / entry.name, verify=verify) for entry in state.segments]
    except ArtifactError as error:
        raise damaged_index(folder, error) from None
    index = Index.open(folder)  # compares segments, lists of deleted papers and heads with the state
    if verify:
        _ = index.heads
    told = {"kind": "index", "version": VERSION, "state": state.number, "papers": len(index)}
    return {**told, **_sizes(manifests), **_verified(verify), "facts": state.facts}


def _manifest(place: Path, *, verify: bool) -> Manifest:
    manifest = read_manifest(place, segment.KIND, segment.VERSION)
    check_files(place, manifest, content=verify)
    return manifest


def _sizes(manifests: list[Manifest]) -> dict[str, int]:
    sizes = [described.get("bytes", 0) for manifest in manifests for described in manifest.files.values()]
    return {"files": len(sizes), "bytes": sum(sizes)}


def _verified(verify: bool) -> dict[str, str]:
    return {"verified": "every file is as it was written"} if verify else {}


# Building an index: the papers of a corpus with their words, vectors in every space, and citing sentences.


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """What an index holds, and what makes it."""

    dtype: str = "float16"
    """Type of the vectors' numbers, `float16` or `float32`."""

    contexts: int = 0
    """Citing sentences kept of a paper, so many with the same intents; 0 = none."""

    runtime: str = "auto"
    """What computes the network, now and when a text is searched for: see `load_encoder`."""

    device: str = "auto"
    shard: int = SHARD
    """Papers between two savings; as the device no part of the result."""

    sentences: bool = False
    """Also a vector of every sentence of an abstract."""

    vectors: bool = True
    """False: words only; `fill_vectors` adds the vectors later."""

    def __post_init__(self) -> None:
        choose(self.dtype, DTYPES, "--dtype")
        if self.contexts < 0:
            raise UserError(f"--most-contexts is {self.contexts}; it must be 0, for none, or more")
        if self.contexts and not self.vectors:
            raise UserError("citing sentences are kept by their vectors; leave out --contexts, or make vectors")


_BUILD_OPTIONS = IndexOptions()


def build_index(
    corpus: Corpus,
    model: str | Path,
    folder: str | Path,
    options: IndexOptions = _BUILD_OPTIONS,
    *,
    overlay: IntentOverlay | None = None,
    given: Given | None = None,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Index:
    """The index of a corpus by a model, a name or a folder; the overlay's intents stand for the corpus's own.

    Vectors that are given are not made again; they are no part of what makes two indexes equal.
    """
    if overlay is not None:
        overlay.check(corpus)
    if options.contexts and not len(corpus.contexts):
        raise UserError(f"--contexts needs citing sentences, and {corpus.folder} has none; leave it out")
    if given is not None and options.runtime == AUTO:  # questions are read as the vectors were made
        options = replace(options, runtime=runtime_of(given.vectors.provenance.revision))
    folder, how = Path(folder), _embedding(model, options)
    if given is not None:
        if how is None:
            raise UserError("vectors are given for an index of words only; leave out one of both")
        given.check(how, corpus.hash)
    facts = _facts(corpus, model, options, overlay, how)
    if overwrite and kind_of(folder) == "index" and not is_index(folder):
        remove_artifact(folder)  # of format version 1
    with writing(folder, create=True, overwrite=overwrite) as writer:
        is_same = writer.state is not None and writer.state.facts.get("built_from") == facts["built_from"]
        if is_same and not (overwrite and _is_damaged(folder)):
            reporter.say(f"{folder} is there already: same papers, model and intents")
            writer.clean()
            return Index.open(folder)
        if writer.state is not None and not overwrite:
            raise UserError(
                f"{folder} holds an index made from other inputs or options; choose another -o or --overwrite"
            )
        recipe = {"built_from": facts["built_from"], "read_as": READ_AS, "given": given.hashes() if given else []}
        made = _Building(corpus, how, options, overlay, given, reporter).segments(writer, recipe)
        write_heads(folder, how.heads if how else None)
        writer.commit(made, facts)
        join_last(writer)
    return Index.open(folder)


def _is_damaged(folder: Path) -> bool:
    try:
        describe_folder(folder, verify=True)
    except ArtifactError:
        return True
    return False


def _embedding(model: str | Path, options: IndexOptions) -> Embedding | None:
    if not options.vectors:
        return None
    encoder = load_encoder(model, device=options.device, runtime=options.runtime)
    return Embedding(encoder, find_heads(model), options.dtype, options.sentences, options.shard)


def _facts(
    corpus: Corpus, model: str | Path, options: IndexOptions, overlay: IntentOverlay | None, how: Embedding | None
) -> dict[str, Any]:
    """What a state tells; `built_from` is all that decides the result."""
    facts: dict[str, Any] = {
        "corpus": corpus.hash,
        "corpus_name": corpus.folder.name,
        "model_path": remembered(model),
        "runtime": options.runtime,
        "dtype": options.dtype,
        "contexts": options.contexts,
        "sentences": options.sentences,
        "intents": overlay.hash if overlay else "",
        "text_recipe": TextRecipe().hash,
        **model_facts(how),
    }
    made_by = facts["provenance"] and facts["provenance"]["revision"]
    return {**facts, "built_from": hash_json([facts["model_path"] if how is None else made_by, _without_path(facts)])}


def _without_path(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name not in ("model_path", "corpus_name", "runtime")}


@dataclass(frozen=True, slots=True)
class _Building:
    """The papers of a corpus on their way into a new index."""

    corpus: Corpus
    how: Embedding | None
    options: IndexOptions
    overlay: IntentOverlay | None
    given: Given | None
    reporter: Reporter

    def segments(self, writer: IndexWriter, recipe: dict[str, Any]) -> list[Entry]:
        """Write all papers: those with a given vector as one segment, those that are embedded as another."""
        records = records_of(self.corpus, self.overlay)
        parts = split_given(self.given, records, np.arange(len(records))) or [(False, np.arange(0))]
        recipes = [{**recipe, "part": "given"} if is_given else recipe for is_given, _ in parts]
        writer.clean([writer.segment(told) for told in recipes])
        try:
            return [
                self._segment(writer, told, SelectedPapers.of([(records, rows)]), self.given if is_given else None)
                for told, (is_given, rows) in zip(recipes, parts, strict=True)
            ]
        except (EmptyResultError, UserError):
            for told in recipes:  # again would end the same way
                remove_leftovers(writer.segment(told))
            raise

    def _segment(
        self, writer: IndexWriter, recipe: dict[str, Any], chosen: SelectedPapers, given: Given | None
    ) -> Entry:
        def fill(artifact: ArtifactWriter) -> dict[str, Any]:
            if self.how is None:
                return leave_empty(artifact.folder, len(chosen))
            facts = make_vectors(artifact, chosen, self.how, given, self.reporter)
            if not facts["with_vector"] and self.given is None:
                raise EmptyResultError(
                    f"no paper of {self.corpus.folder} has a text that {self.how.encoder.name} can read; check the input"
                )
            return {**facts, **self._citing(artifact, chosen, self.how)}

        return write_segment(writer, recipe, chosen, fill)

    def _citing(self, artifact: ArtifactWriter, chosen: SelectedPapers, how: Embedding) -> dict[str, Any]:
        if not self.options.contexts:
            return {}
        told = embed_citing_sentences(
            artifact,
            self.corpus,
            chosen.places(0),
            how.encoder,
            most=self.options.contexts,
            dtype=how.dtype,
            overlay=self.overlay,
            reporter=self.reporter,
        )
        if not told and self.given is None:
            raise UserError(f"no citing sentence of {self.corpus.folder} cites a paper of it; leave out --contexts")
        return told


# One verb for an index that is not there yet and for one that is: build it, or bring it to the corpus.

_COMMAND_OPTIONS = IndexOptions()


@dataclass(frozen=True, slots=True)
class Indexed:
    """An index and what became of its papers."""

    index: Index
    changed: Changed | None
    """None where the index was built."""


def index_corpus(
    corpus: Corpus,
    model: str | Path,
    folder: str | Path,
    options: IndexOptions = _COMMAND_OPTIONS,
    *,
    overlay: IntentOverlay | None = None,
    given: Given | None = None,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Indexed:
    """Build the index of a corpus, or update the one that is there; arguments as of `build_index`.

    An empty model is the one of the index that is there, else the default one.
    """
    folder = Path(folder)
    if overwrite or not is_index(folder):
        made = build_index(
            corpus,
            model or DEFAULT_MODEL,
            folder,
            options,
            overlay=overlay,
            given=given,
            overwrite=overwrite,
            reporter=reporter,
        )
        return Indexed(made, None)
    if given is not None and not options.vectors:
        raise UserError("vectors are given for an index of words only; leave out one of both")
    if given is not None:
        given.check_corpus(corpus.hash)  # before the words change
    index = Index.open(folder)
    model = model or index.model
    _check_options(index, model, options)
    how = ChangeOptions(
        options.vectors,
        str(model),
        options.device,
        given=given if index.provenance is not None else None,
        sentences=options.sentences,
    )
    changed = update_index(folder, corpus, options=how, overlay=overlay, reporter=reporter)
    if options.vectors:
        fill_vectors(
            folder, model=model, device=options.device, given=given, sentences=options.sentences, reporter=reporter
        )
    return Indexed(Index.open(folder), changed)


def _check_options(index: Index, model: str | Path, options: IndexOptions) -> None:
    """Refuse another model or other options than the index was made with."""
    facts = index.state.facts
    asked = {"dtype": options.dtype, "contexts": options.contexts}
    if not options.sentences:  # those that are missing are made
        asked["sentences"] = False
    other = [name for name, value in asked.items() if facts.get(name) != value]
    if options.runtime not in (AUTO, index.runtime):
        other.append("runtime")
    if other:
        told = ", ".join(f"{name} {facts.get(name)}" for name in other)
        raise UserError(
            f"{index.folder} holds an index made with other inputs or options ({told}); choose another -o or --overwrite"
        )
    if remembered(model) != index.model:
        open_embedding(index, model, device=options.device)  # the same model elsewhere, or it is refused
