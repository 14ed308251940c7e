"""Building an index: embed the papers, project them into every aspect, carry over what is shown.

    build_index(corpus, "minilm", "index")
    build_index(corpus, "model/", "index", IndexOptions(contexts=10), overlay=IntentOverlay.open("intents/"))

An interrupted run goes on where it stopped: finished shards of papers and sentences are kept. An index that was made of
the same corpus, model, intents and options is opened and nothing is computed. Adding and removing papers is not there.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import MatrixWriter, TextWriter, write_numbers
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.index import IdIndex
from citeweave.corpus.text import TextRecipe
from citeweave.encoders.aspects import AspectHeads, find_heads, save_heads
from citeweave.encoders.embedding import SHARD, EmbeddingOptions, embed_papers, embed_texts
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.locating import MINILM, locate
from citeweave.encoders.torch_encoder import TorchEncoder
from citeweave.errors import EmptyResultError, UserError, choose
from citeweave.files import ArtefactWriter, link_or_copy, matches, new_artefact
from citeweave.graph.intent_overlay import CitationPlaces, IntentOverlay
from citeweave.progress import QUIET, Reporter
from citeweave.search.citing_sentences import (
    READ_AS,
    Mentions,
    SentenceTexts,
    choose_mentions,
    mentions_of,
    write_citing_sentences,
)
from citeweave.search.index import INTENT_BITS, KIND, NO_VECTOR, VERSION, Index
from citeweave.similarity.provenance import DTYPES
from citeweave.similarity.vectors import Vectors

_BLOCK = 16_384


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """What an index holds, and what makes it."""

    dtype: str = "float16"
    """Type of the vectors' numbers, `float16` or `float32`."""

    contexts: int = 0
    """Citing sentences kept of a paper, so many with the same intents; 0 = none."""

    runtime: str = "torch"
    """What computes the network, now and when a text is searched for: see `load_encoder`."""

    device: str = "auto"
    shard: int = SHARD
    """Papers between two savings; as the device no part of the result."""

    def __post_init__(self) -> None:
        choose(self.dtype, DTYPES, "--dtype")
        if self.contexts < 0:
            raise UserError(f"--most-contexts is {self.contexts}; it must be 0, for none, or more")


_OPTIONS = IndexOptions()


def build_index(
    corpus: Corpus,
    model: str | Path,
    folder: str | Path,
    options: IndexOptions = _OPTIONS,
    *,
    overlay: IntentOverlay | None = None,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Index:
    """The index of a corpus by a model, a name or a folder; the overlay's intents stand for the corpus's own."""
    if overlay is not None:
        overlay.check(corpus)
    if options.contexts and not len(corpus.contexts):
        raise UserError(f"--contexts needs citing sentences, and {corpus.folder} has none; leave it out")
    encoder, heads = load_encoder(model, device=options.device, runtime=options.runtime), find_heads(model)
    recipe = {
        "corpus": corpus.hash,
        "revision": encoder.revision,
        "heads": heads.hash if heads else "",
        "text_recipe": TextRecipe().hash,
        "dtype": options.dtype,
        "contexts": options.contexts,
        "read_as": READ_AS,
        "intents": overlay.hash if overlay else "",
    }
    folder = Path(folder)
    if matches(folder, KIND, VERSION, recipe):
        reporter.say(f"{folder} is there already: same papers, model and intents")
        return Index.open(folder)
    is_folder = str(model) != MINILM and Path(model).expanduser().is_dir()
    where = str(locate(model).folder.resolve()) if is_folder else str(model)
    with new_artefact(folder, KIND, VERSION, recipe, overwrite=overwrite) as artefact:
        try:
            facts = _Building(corpus, encoder, options, artefact, reporter).make(heads, overlay)
        except EmptyResultError:
            shutil.rmtree(artefact.folder, ignore_errors=True)  # going on would end the same way
            raise
        artefact.facts |= {"model_path": where, "runtime": options.runtime, **facts}
        return Index(folder, artefact.finish())


@dataclass(frozen=True, slots=True)
class _Building:
    """The parts of an index on their way into its folder."""

    corpus: Corpus
    encoder: TorchEncoder
    options: IndexOptions
    artefact: ArtefactWriter
    reporter: Reporter

    def make(self, heads: AspectHeads | None, overlay: IntentOverlay | None) -> dict[str, Any]:
        """Write all parts; what the manifest should tell."""
        how = EmbeddingOptions(dtype=self.options.dtype, shard=self.options.shard)
        made = embed_papers(
            self.corpus, self.encoder, self.artefact.work("papers") / "vectors", how, reporter=self.reporter
        )
        vectors = self._move(made, "vectors")
        kept = np.flatnonzero(np.isin(self.corpus.ids.keys(), vectors.ids.keys()))  # rows of the corpus, (papers,)
        assert len(kept) == len(vectors), (len(kept), len(vectors))
        rows = np.full(len(self.corpus), NO_VECTOR, np.int64)  # (papers of the corpus,)
        rows[kept] = np.arange(len(kept))
        if heads is not None:
            self._write_spaces(vectors, heads)
        mentions = mentions_of(self.corpus, overlay)
        cited_as = self._cited_as(mentions, overlay)[kept]  # (papers, 8)
        self._write_papers(kept, rows, cited_as)
        sentences = self._write_sentences(mentions, rows) if self.options.contexts else {}
        return {
            "corpus": self.corpus.hash,
            "corpus_name": self.corpus.folder.name,
            "model": self.encoder.name,
            "revision": self.encoder.revision,
            "aspects": list(heads.names) if heads else [],
            "papers": len(kept),
            "without_vector": len(self.corpus) - len(kept),
            "with_intents": int(cited_as.any(axis=1).sum()),
            "dimension": vectors.provenance.dimension,
            "dtype": self.options.dtype,
            **sentences,
        }

    def _move(self, made: Vectors, place: str) -> Vectors:
        """A finished folder out of the work folder, which keeps its own until all is there."""
        target = self.artefact.folder / place
        for path in sorted(made.folder.iterdir()):
            if path.is_file():
                link_or_copy(path, target / path.name)
        return Vectors.open(target)

    def _write_spaces(self, vectors: Vectors, heads: AspectHeads) -> None:
        save_heads(self.artefact.folder, heads)
        with self.reporter.task("projecting", len(vectors) * len(heads.names), "vectors") as advance:
            for number, name in enumerate(heads.names):
                path = self.artefact.folder / "spaces" / f"{number}.npy"
                writer = MatrixWriter(path, self.options.dtype, heads.dimension(name))
                for start in range(0, len(vectors), _BLOCK):
                    found = heads.project(vectors.matrix[start : start + _BLOCK], name)  # (block, dimension)
                    writer.append(at_length_1(found))
                    advance(len(found))
                writer.close()

    def _write_papers(self, kept: NDArray[np.int64], rows: NDArray[np.int64], cited_as: NDArray[np.int32]) -> None:
        folder = self.artefact.folder / "papers"
        titles = TextWriter(folder, "title")
        titles.append_bytes(*self.corpus.titles.gather(kept))
        titles.close()
        write_numbers(folder / "year.npy", np.asarray(self.corpus.years)[kept], np.int16)
        counts = MatrixWriter(folder / "cited_as.npy", np.int32, INTENT_BITS)
        counts.append(cited_as)
        counts.close()
        ids = self.corpus.index
        IdIndex.of(np.asarray(ids.keys), rows[ids.rows].astype(np.int32)).save(self.artefact.folder / "ids")

    def _cited_as(self, mentions: Mentions, overlay: IntentOverlay | None) -> NDArray[np.int32]:
        """Citations of every paper of the corpus with each intent, (papers of the corpus, 8)."""
        corpus = self.corpus
        masks = np.array(corpus.intents if overlay is None else overlay.mask)  # (citations,)
        if overlay is None and len(masks):
            places = CitationPlaces(corpus).find(np.asarray(corpus.contexts.citing)[mentions.context], mentions.paper)
            np.bitwise_or.at(masks, places[places >= 0], mentions.intents[places >= 0])
        columns = [
            np.bincount(corpus.cited[(masks >> bit & 1).astype(bool)], minlength=len(corpus))
            for bit in range(INTENT_BITS)
        ]
        return np.stack(columns, axis=1).astype(np.int32)

    def _write_sentences(self, mentions: Mentions, rows: NDArray[np.int64]) -> dict[str, Any]:
        usable = mentions.take(np.flatnonzero(rows[mentions.paper] >= 0))
        chosen = choose_mentions(usable, self.options.contexts)
        contexts = np.unique(chosen.context)  # (sentences,)
        if not len(contexts):
            raise UserError(f"no citing sentence of {self.corpus.folder} cites a paper of it; leave out --contexts")
        made = embed_texts(
            self.encoder,
            [str(number) for number in contexts.tolist()],
            SentenceTexts(self.corpus, contexts),
            self.artefact.work("sentences") / "vectors",
            text_recipe=READ_AS,
            dtype=self.options.dtype,
            reporter=self.reporter,
        )
        vectors = self._move(made, "sentences/vectors")
        count = write_citing_sentences(self.artefact.folder / "sentences", self.corpus, chosen, rows)
        return {"sentences": len(vectors), "sentences_left_out": len(contexts) - len(vectors), "mentions": count}


def at_length_1(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows (papers, dimension) at length 1, which float16 can hold; rows of zeros stay."""
    found: NDArray[np.float32] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return found
