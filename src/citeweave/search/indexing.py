"""One verb for an index that is not there yet and for one that is: build it, or bring it to the corpus.

index_corpus(corpus, "weave", "index")        built
index_corpus(newer, "", "index")              only what is new is embedded, by the index's own model

An index that is there keeps its model and options; asked for others, it is refused unless it may be overwritten. Only
vectors of sentences can be asked for later.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from citeweave.corpus.corpus import Corpus
from citeweave.encoders.locating import DEFAULT_MODEL, remembered
from citeweave.encoders.runtimes import AUTO
from citeweave.errors import UserError
from citeweave.graph.intent_overlay import IntentOverlay
from citeweave.progress import QUIET, Reporter
from citeweave.search.building import IndexOptions, build_index
from citeweave.search.changing import Changed, ChangeOptions, update_index
from citeweave.search.filling import fill_vectors
from citeweave.search.index import Index
from citeweave.search.state import is_index
from citeweave.search.writing.given import Given
from citeweave.search.writing.model import open_embedding

_OPTIONS = IndexOptions()


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
    options: IndexOptions = _OPTIONS,
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
