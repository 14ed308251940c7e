"""Embed the sentences of a corpus's abstracts into a SentenceVectors folder, shard by shard.

    embed_sentences(corpus, encoder, "sentences")
    embed_papers_and_sentences(corpus, encoder, work)        also the papers' own vectors, from the same pass

Each sentence is read in the context of its paper (`sentences.py`); where there is no abstract the title is the one
sentence. Goes on after an interruption as `embedding.py` does. Reads titles and abstracts only, without a token store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from citeweave.core.artifact import matches
from citeweave.core.errors import EmptyResultError, UserError
from citeweave.core.files import hash_json
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.text import TextRecipe, sentence_texts
from citeweave.encoders.batches import SavedBatches
from citeweave.encoders.embed import EmbeddingOptions, PaperTexts, encoders_of, plan_of
from citeweave.encoders.encoder import TorchEncoder
from citeweave.encoders.sentence_encoder import (
    EncodedSentences,
    PaperAndSentenceTokens,
    encode_papers_and_sentences,
    encode_sentences,
    tokenize_papers,
)
from citeweave.encoders.shards import (
    Arrays,
    FinishedShards,
    Hired,
    Maker,
    fill_shards,
    kept_rows,
    write_ragged,
    write_vectors,
)
from citeweave.vectors.sentence_vectors import KIND, VERSION, SentenceVectors
from citeweave.vectors.vectors import Vectors

_OPTIONS = EmbeddingOptions()
_READ = 512

Split = tuple[str, list[str]]
"""A title and the sentences of its abstract."""


def embed_sentences(
    corpus: Corpus,
    encoder: TorchEncoder | Sequence[TorchEncoder],
    folder: str | Path,
    options: EmbeddingOptions = _OPTIONS,
    *,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> SentenceVectors:
    """Vectors of all sentences as a folder; of `options` the text and the tokens are not asked."""
    if options.text != TextRecipe() or options.tokens is not None:
        raise UserError("sentences are read with their title, out of the abstract; leave out --text and --tokens")
    encoders = encoders_of(encoder)
    if not all(isinstance(one, TorchEncoder) for one in encoders):
        raise UserError("sentence vectors need the states of single tokens; take --runtime torch")
    plan = plan_of(corpus, encoders[0], options, overwrite=overwrite)
    if matches(Path(folder), KIND, VERSION, plan.recipe):
        reporter.say(f"{folder} is there already: same papers, texts and model")
        return SentenceVectors.open(folder)
    makers: Sequence[Maker] | Hired
    if options.elsewhere is not None:
        makers = options.elsewhere.hire(corpus, encoders[0], "sentences", options.as_given())
    else:
        makers = [sentence_maker(corpus, one, options.dtype) for one in encoders if isinstance(one, TorchEncoder)]
    return write_ragged(Path(folder), plan, makers, reporter=reporter)


@dataclass(frozen=True, slots=True)
class EmbeddedCorpus:
    """The two folders that one pass makes; None where no paper has a vector of that kind."""

    vectors: Vectors | None
    sentences: SentenceVectors | None


def embed_papers_and_sentences(
    corpus: Corpus,
    encoder: TorchEncoder,
    work: Path,
    options: EmbeddingOptions = _OPTIONS,
    *,
    reporter: Reporter = QUIET,
) -> EmbeddedCorpus:
    """Vectors of all papers and of their sentences, from one pass of an encoder that `reads_together`.

    `work` belongs to the caller: it keeps the shards, which hold both, so that an interrupted run resumes with both, and
    gets the folders `vectors` and `sentences`. Of `options` the dtype and the shard count.
    """
    plan = plan_of(corpus, encoder, options, overwrite=True)
    shards = work / f"shards-{hash_json(plan.recipe)[:16]}-{plan.shard}{plan.batches}"
    shards.mkdir(parents=True, exist_ok=True)
    maker = paper_and_sentence_maker(corpus, encoder, options.dtype)
    fill_shards(shards, len(corpus), plan.shard, [maker], save_every=plan.save_every, reporter=reporter)
    vectors: Vectors | None = None
    sentences: SentenceVectors | None = None
    with suppress(EmptyResultError):
        vectors = write_vectors(work / "vectors", plan, FinishedShards(shards, "papers"))
    with suppress(EmptyResultError):
        sentences = write_ragged(work / "sentences", plan, FinishedShards(shards, "sentences"))
    return EmbeddedCorpus(vectors, sentences)


def sentence_maker(corpus: Corpus, encoder: TorchEncoder, dtype: str) -> Maker:
    """Sentences of the abstracts to ragged arrays."""

    def read(start: int, stop: int) -> Iterator[list[Split]]:
        for at in range(start, stop, _READ):
            yield _split(corpus, at, min(at + _READ, stop))

    def encode(papers: list[Split], reporter: Reporter, saved: SavedBatches) -> Arrays:
        titles, sentences = [title for title, _ in papers], [split for _, split in papers]
        encoded = encode_sentences(encoder, titles, sentences, reporter=reporter, saved=saved)
        return _ragged(encoded, dtype)

    return Maker(read, encode)


def paper_and_sentence_maker(corpus: Corpus, encoder: TorchEncoder, dtype: str) -> Maker:
    """Papers to the arrays of both folders, those of papers named `papers.` and those of sentences `sentences.`."""
    texts = PaperTexts(corpus, TextRecipe())

    def read(start: int, stop: int) -> Iterator[list[PaperAndSentenceTokens]]:
        for at in range(start, stop, _READ):
            end = min(at + _READ, stop)
            papers = _split(corpus, at, end)
            titles, sentences = [title for title, _ in papers], [split for _, split in papers]
            yield tokenize_papers(encoder.reader, texts[at:end], titles, sentences)

    def encode(papers: list[PaperAndSentenceTokens], reporter: Reporter, saved: SavedBatches) -> Arrays:
        encoded = encode_papers_and_sentences(encoder, papers, reporter=reporter, saved=saved)
        own, ragged = kept_rows(encoded.vectors, dtype), _ragged(encoded.sentences, dtype)
        return {f"papers.{name}": array for name, array in own.items()} | {
            f"sentences.{name}": array for name, array in ragged.items()
        }

    return Maker(read, encode)


def _split(corpus: Corpus, start: int, stop: int) -> list[Split]:
    pairs = zip(corpus.titles[start:stop], corpus.abstracts[start:stop], strict=True)
    return [(title, sentence_texts(abstract) or [text for text in [title] if text]) for title, abstract in pairs]


def _ragged(encoded: EncodedSentences, dtype: str) -> Arrays:
    with np.errstate(over="ignore"):  # what is not finite is counted when it is written
        matrix = encoded.matrix.astype(dtype)  # (sentences, dimension)
    return {
        "matrix": matrix,
        "offsets": encoded.offsets,
        "numbers": encoded.numbers,
        "lost": np.array([encoded.lost]),
    }
