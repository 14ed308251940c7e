"""Embed the sentences of a corpus's abstracts into a SentenceVectors folder, shard by shard.

    embed_sentences(corpus, encoder, "sentences")

Each sentence is read in the context of its paper (`sentences.py`); where there is no abstract the title is the one
sentence. Goes on after an interruption as `embedding.py` does. Reads titles and abstracts only, without a token store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from citeweave.artefacts.writing import matches
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.text import TextRecipe, sentence_texts
from citeweave.encoders.embedding import EmbeddingOptions, encoders_of, plan_of
from citeweave.encoders.sentences import encode_sentences
from citeweave.encoders.streaming.shards import Arrays, Hired, Maker
from citeweave.encoders.streaming.vector_shards import write_ragged
from citeweave.encoders.torch_encoder import TorchEncoder
from citeweave.errors import UserError
from citeweave.progress import QUIET, Reporter
from citeweave.similarity.sentence_vectors import KIND, VERSION, SentenceVectors

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


def sentence_maker(corpus: Corpus, encoder: TorchEncoder, dtype: str) -> Maker:
    """Sentences of the abstracts to ragged arrays."""

    def read(start: int, stop: int) -> Iterator[list[Split]]:
        for at in range(start, stop, _READ):
            end = min(at + _READ, stop)
            pairs = zip(corpus.titles[at:end], corpus.abstracts[at:end], strict=True)
            yield [(title, sentence_texts(abstract) or [text for text in [title] if text]) for title, abstract in pairs]

    def encode(papers: list[Split], reporter: Reporter) -> Arrays:
        found = encode_sentences(
            encoder, [title for title, _ in papers], [split for _, split in papers], reporter=reporter
        )
        with np.errstate(over="ignore"):  # what is not finite is counted when it is written
            matrix = found.matrix.astype(dtype)  # (sentences, dimension)
        return {
            "matrix": matrix,
            "offsets": found.offsets,
            "numbers": found.numbers,
            "lost": np.array([found.lost]),
        }

    return Maker(read, encode)
