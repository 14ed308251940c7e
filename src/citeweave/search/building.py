"""Building an index: the papers of a corpus with their words, vectors in every space, and citing sentences.

    build_index(corpus, "weave", "index")
    build_index(corpus, "model/", "index", IndexOptions(contexts=10), overlay=IntentOverlay.open("intents/"))
    build_index(corpus, "weave", "index", IndexOptions(vectors=False))       words only, in seconds

An interrupted run goes on where it stopped: finished shards of papers and sentences are kept. An index that was made of
the same corpus, model, intents and options is opened and nothing is computed. An index that is there is not touched
before the new one is whole. Later changes are made by `changing.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from citeweave.artefacts.manifest import kind_of
from citeweave.artefacts.ownership import remove_artefact
from citeweave.artefacts.publishing import remove_leftovers
from citeweave.artefacts.writing import ArtefactWriter
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.text import TextRecipe
from citeweave.encoders.aspects import find_heads
from citeweave.encoders.embedding import SHARD
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.locating import remembered
from citeweave.encoders.runtimes import AUTO, runtime_of
from citeweave.errors import ArtefactError, EmptyResultError, UserError, choose
from citeweave.files import hash_json
from citeweave.graph.intent_overlay import IntentOverlay
from citeweave.progress import QUIET, Reporter
from citeweave.search.citing_sentences import READ_AS
from citeweave.search.compacting import join_last
from citeweave.search.index import Index
from citeweave.search.state import Entry, IndexWriter, is_index, writing
from citeweave.search.verifying import describe_folder
from citeweave.search.writing.citing import embed_citing_sentences
from citeweave.search.writing.given import Given, make_vectors, split_given
from citeweave.search.writing.model import model_facts, write_heads
from citeweave.search.writing.records import Chosen, records_of
from citeweave.search.writing.segments import write_segment
from citeweave.search.writing.vectors import Embedding, leave_empty
from citeweave.similarity.provenance import DTYPES


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


_OPTIONS = IndexOptions()


def build_index(
    corpus: Corpus,
    model: str | Path,
    folder: str | Path,
    options: IndexOptions = _OPTIONS,
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
        remove_artefact(folder)  # of format version 1
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
    except ArtefactError:
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
                self._segment(writer, told, Chosen.of([(records, rows)]), self.given if is_given else None)
                for told, (is_given, rows) in zip(recipes, parts, strict=True)
            ]
        except (EmptyResultError, UserError):
            for told in recipes:  # again would end the same way
                remove_leftovers(writer.segment(told))
            raise

    def _segment(self, writer: IndexWriter, recipe: dict[str, Any], chosen: Chosen, given: Given | None) -> Entry:
        def fill(artefact: ArtefactWriter) -> dict[str, Any]:
            if self.how is None:
                return leave_empty(artefact.folder, len(chosen))
            facts = make_vectors(artefact, chosen, self.how, given, self.reporter)
            if not facts["with_vector"] and self.given is None:
                raise EmptyResultError(
                    f"no paper of {self.corpus.folder} has a text that {self.how.encoder.name} can read; check the input"
                )
            return {**facts, **self._citing(artefact, chosen, self.how)}

        return write_segment(writer, recipe, chosen, fill)

    def _citing(self, artefact: ArtefactWriter, chosen: Chosen, how: Embedding) -> dict[str, Any]:
        if not self.options.contexts:
            return {}
        told = embed_citing_sentences(
            artefact,
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
