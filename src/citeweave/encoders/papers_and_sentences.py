"""Vectors of papers and of their sentences from one pass of the network.

    papers = tokenize_papers(encoder.reader, ["A title[SEP]One. Two."], ["A title"], [["One.", "Two."]])
    encoded = encode_papers_and_sentences(encoder, papers)
    encoded.vectors        (papers, dimension), as `TorchEncoder.encode` gives them
    encoded.sentences      as `encode_sentences` gives them

A paper's text nearly always has the same tokens as its title followed by its sentences. The network then reads them once,
and its states are pooled twice. Where the tokens differ, both are read in the same pass: a paper without abstract, whose
title is also its only sentence; a tokenizer for which the end of a sentence matters. So the vectors differ from those of two
passes in their last bits only. Needs no more than the last layer: see `reads_together`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.encoders.backing_off import run_batches
from citeweave.encoders.model_folder import Settings
from citeweave.encoders.pooling import TokenStates
from citeweave.encoders.reading import TextReader, Tokens
from citeweave.encoders.saved_batches import NOT_SAVED, Results, SavedBatches
from citeweave.encoders.sentence_layout import SentenceLayout, lay_out
from citeweave.encoders.sentences import Sentences
from citeweave.encoders.text_vectors import normalized
from citeweave.encoders.torch_encoder import TorchEncoder
from citeweave.extras import require
from citeweave.progress import QUIET, Reporter

if TYPE_CHECKING:
    from torch import Tensor

Rows = NDArray[np.int64]


class PaperTokens(NamedTuple):
    """The tokens of one paper, for its own vector and for those of its sentences."""

    text: Tokens
    layout: SentenceLayout
    sentences: int
    """How many sentences the paper has, those without a token included."""


@dataclass(frozen=True, slots=True)
class PapersAndSentences:
    """Both kinds of vectors of some papers."""

    vectors: NDArray[np.float32]
    """Shape (papers, dimension); zeros for a paper without a token."""

    sentences: Sentences


class _Reading(NamedTuple):
    """Tokens that the network reads once, and what becomes of their states."""

    tokens: Tokens
    paper: int
    is_text: bool
    """Whether all tokens together give the paper's own vector."""

    starts: Rows
    """First token of each sentence that gets a vector from this reading."""

    ends: Rows


def reads_together(encoder: object) -> bool:
    """Whether papers and sentences can share a pass: the paper's vector is pooled from the last layer alone."""
    return isinstance(encoder, TorchEncoder) and encoder.settings.pooling in ("cls", "mean")


def tokenize_papers(
    reader: TextReader, texts: Sequence[str], titles: Sequence[str], sentences: Sequence[Sequence[str]]
) -> list[PaperTokens]:
    """Tokens of papers, given the text of each (see `paper_text`), and again its title and its sentences."""
    layouts = lay_out(reader, titles, sentences)
    return list(map(PaperTokens, reader.read(texts), layouts, map(len, sentences)))


def encode_papers_and_sentences(
    encoder: TorchEncoder,
    papers: Sequence[PaperTokens],
    *,
    reporter: Reporter = QUIET,
    saved: SavedBatches = NOT_SAVED,
) -> PapersAndSentences:
    """Vectors of papers and of their sentences; all papers are sorted by length at once."""
    assert reads_together(encoder), encoder.settings.pooling
    torch = require("torch", extra="minilm")
    readings = [reading for row, paper in enumerate(papers) for reading in _readings(row, paper)]
    offsets = np.cumsum([0, *(len(paper.layout.numbers) for paper in papers)], dtype=np.int64)  # (papers + 1,)
    vectors = np.zeros((len(papers), encoder.dimension), np.float32)  # (papers, dimension)
    matrix = np.zeros((int(offsets[-1]), encoder.dimension), np.float32)  # (sentences, dimension)
    with reporter.task("embedding", len(papers), "papers") as advance:
        advance(len(papers) - sum(reading.is_text for reading in readings))

        def encode(rows: Rows) -> None:
            batch = [readings[row] for row in rows.tolist()]
            with torch.inference_mode():
                states = encoder.network.token_states([reading.tokens for reading in batch])
                own, spans = _text_vectors(states, batch, encoder.settings).cpu(), _span_vectors(states, batch).cpu()
            of_papers, of_sentences = places(rows)
            vectors[of_papers] = own.numpy()[[reading.is_text for reading in batch]]
            matrix[of_sentences] = spans.numpy()

        def places(rows: Rows) -> tuple[Rows, Rows]:
            batch = [readings[row] for row in rows.tolist()]
            own = [np.arange(offsets[each.paper], offsets[each.paper + 1]) for each in batch if len(each.starts)]
            texts = np.array([each.paper for each in batch if each.is_text], np.int64)
            return texts, np.concatenate([np.empty(0, np.int64), *own])

        lengths = np.array([len(reading.tokens) for reading in readings], np.int64)  # (readings,)
        results = Results([vectors, matrix], places, lambda rows: advance(len(places(rows)[0])))
        run_batches(lengths, encoder.batch_tokens, encode, results=results, saved=saved, reporter=reporter)
    numbers = np.concatenate([np.empty(0, np.int64), *(paper.layout.numbers for paper in papers)]).astype(np.int32)
    lost = sum(paper.sentences for paper in papers) - len(numbers)
    return PapersAndSentences(vectors, Sentences(matrix, offsets, numbers, lost))


def _readings(row: int, paper: PaperTokens) -> list[_Reading]:
    """One reading where text and sentences have the same tokens, else one of each that has any."""
    text, layout = paper.text, paper.layout
    has_sentences, none = len(layout.numbers) > 0, np.empty(0, np.int64)
    if has_sentences and np.array_equal(text, layout.tokens):
        return [_Reading(text, row, True, layout.starts, layout.ends)]
    own = [_Reading(text, row, True, none, none)] if len(text) else []
    return [*own, _Reading(layout.tokens, row, False, layout.starts, layout.ends)] if has_sentences else own


def _text_vectors(states: TokenStates, batch: Sequence[_Reading], settings: Settings) -> Tensor:
    """Vectors of all tokens of each reading, (readings, dimension)."""
    if settings.pooling == "cls":
        return normalized(states.cls(), settings)
    # sums over spans do not depend on the padding, as those of `states.mean()` do in their last bits
    every = np.arange(len(batch))
    lengths = np.array([len(reading.tokens) for reading in batch], np.int64)
    return normalized(states.spans(every, np.zeros_like(every), lengths), settings)


def _span_vectors(states: TokenStates, batch: Sequence[_Reading]) -> Tensor:
    """Vectors of the sentences of each reading, one reading after the other, (sentences, dimension)."""
    texts = np.repeat(np.arange(len(batch)), [len(reading.starts) for reading in batch])
    starts, ends = (np.concatenate([getattr(reading, side) for reading in batch]) for side in ("starts", "ends"))
    return states.spans(texts, starts, ends)
