"""How the sentences of a paper lie among its tokens.

    [CLS] title [SEP] sentence 0 sentence 1 ... [SEP]      cut at the reader's length
    0     1     3     4          9          15             starts 4, 9; ends 9, 15

A sentence cut in the middle keeps the tokens that are there; one without a token, because it is cut away or empty, is
not among the numbers. Knows no network.

Vectors of the sentences of a paper, each read in the context of the whole paper (Mysore et al. 2022, ASPIRE).

    [CLS] title [SEP] sentence 0 sentence 1 ... [SEP]      cut at the encoder's length
    vector of a sentence = mean of the last layer's states of its tokens

The title is read but has no vector. A sentence cut in the middle keeps the tokens that are there; one without a token,
because it is cut away or empty, has no vector and is counted as lost. Vectors are raw: whether the encoder's own
vectors are set to length 1 does not count here, nor does its pooling. With `whole`, a paper that has sentences also gets
its own vector, as the encoder pools it, before them: sentence number WHOLE.

Vectors of the tokens of a paper, read once and whole, as `sentences.py` reads it.

    [CLS] title [SEP] sentence 0 sentence 1 ... [SEP]      cut at the encoder's length
          ------------------------------------             these are the paper's tokens, each of length 1

The special tokens around the text are left out; the one between title and abstract is a token like any other. Vectors are
the last layer's states, whatever the encoder's pooling, kept in half precision where the network is.

Vectors of papers and of their sentences from one pass of the network.

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

from citeweave.core.errors import UserError, require
from citeweave.core.progress import QUIET, Advance, Reporter
from citeweave.encoders.batches import NOT_SAVED, Results, SavedBatches, run_batches
from citeweave.encoders.encoder import WINDOW, TorchEncoder
from citeweave.encoders.model_folder import Settings
from citeweave.encoders.network import Network
from citeweave.encoders.pooling import TokenStates
from citeweave.encoders.text_vectors import normalized
from citeweave.encoders.tokens import TextReader, Tokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class SentenceLayout:
    """The tokens of a paper, and where those of its sentences are."""

    tokens: Tokens
    starts: NDArray[np.int64]
    """First token of every sentence that has one, shape (sentences,)."""

    ends: NDArray[np.int64]
    """The token behind its last one."""

    numbers: NDArray[np.int64]
    """Which sentence of the paper it is, from 0, ascending."""


def lay_out(reader: TextReader, titles: Sequence[str], sentences: Sequence[Sequence[str]]) -> list[SentenceLayout]:
    """Tokenize title and sentences apart, as ASPIRE does, and put them behind each other.

    A paper without title is read without its separator too; one without any token of its own has no tokens at all.
    """
    heads = reader.pieces([reader.prompt + title for title in titles])
    # tokenizers that mark the beginning of words need the blank
    bodies = iter(reader.pieces([f" {text}" if at else text for texts in sentences for at, text in enumerate(texts)]))
    return [_lay_out(reader, head, [next(bodies) for _ in texts]) for head, texts in zip(heads, sentences, strict=True)]


def _lay_out(reader: TextReader, head: Tokens, own: list[Tokens]) -> SentenceLayout:
    start = np.concatenate([reader.opening, head, reader.separator if len(head) else head])
    bounds = np.cumsum([len(start), *map(len, own)])  # (sentences + 1,)
    room = reader.max_tokens - len(reader.closing)
    tokens = np.concatenate([start, *own])[:room]
    starts, ends = np.minimum(bounds[:-1], room), np.minimum(bounds[1:], room)
    numbers = np.flatnonzero(ends > starts)
    if len(tokens) == len(reader.opening):
        return SentenceLayout(np.zeros(0, np.int64), numbers, numbers, numbers)
    return SentenceLayout(np.concatenate([tokens, reader.closing]), starts[numbers], ends[numbers], numbers)


# Vectors of the sentences of a paper, each read in the context of the whole paper (Mysore et al. 2022, ASPIRE).

WHOLE = -1
"""Number of the row that is the paper's own vector."""


@dataclass(frozen=True, slots=True)
class EncodedSentences:
    """Vectors of sentences, paper after paper: those of paper i are matrix[offsets[i]:offsets[i + 1]]."""

    matrix: NDArray[np.float32]
    """Shape (sentences, dimension)."""

    offsets: NDArray[np.int64]
    """Shape (papers + 1,)."""

    numbers: NDArray[np.int32]
    """Shape (sentences,): which sentence of its paper a row is, from 0, or WHOLE."""

    lost: int
    """Sentences without a vector."""


def encode_sentences(
    encoder: TorchEncoder,
    titles: Sequence[str],
    sentences: Sequence[Sequence[str]],
    *,
    whole: bool = False,
    reporter: Reporter = QUIET,
    saved: SavedBatches = NOT_SAVED,
) -> EncodedSentences:
    """Vectors of every paper's sentences; a paper without title is read without its separator too."""
    if len(titles) != len(sentences):
        raise UserError(f"{len(titles)} titles for the sentences of {len(sentences)} papers; give one title a paper")
    if whole and encoder.settings.pooling not in ("cls", "mean"):
        raise UserError(
            f"pooling is {encoder.settings.pooling!r}; a paper's own vector beside its sentences is cls or mean"
        )
    blocks: list[NDArray[np.float32]] = [np.zeros((0, encoder.dimension), np.float32)]
    numbers: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    counts: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
    with reporter.task("embedding sentences", len(titles), "papers") as advance:
        for start in range(0, len(titles), WINDOW):
            layouts = lay_out(encoder.reader, titles[start : start + WINDOW], sentences[start : start + WINDOW])
            own = [_numbers(layout, whole=whole) for layout in layouts]
            numbers += own
            counts.append(np.array([len(each) for each in own], np.int64))
            blocks.append(_window(encoder, layouts, advance, whole=whole, reporter=reporter, saved=saved))
    found = np.concatenate(numbers).astype(np.int32)
    lost = sum(map(len, sentences)) - int((found != WHOLE).sum())
    return EncodedSentences(np.concatenate(blocks), np.cumsum(np.concatenate(counts)), found, lost)


def _numbers(layout: SentenceLayout, *, whole: bool) -> NDArray[np.int64]:
    """What the rows of a paper are."""
    return np.concatenate([[WHOLE], layout.numbers]) if whole and len(layout.numbers) else layout.numbers


def _window(
    encoder: TorchEncoder,
    layouts: list[SentenceLayout],
    advance: Advance,
    *,
    whole: bool,
    reporter: Reporter,
    saved: SavedBatches,
) -> NDArray[np.float32]:
    """Vectors of the sentences of some papers, one behind the other, (sentences, dimension)."""
    torch = require("torch", extra="minilm")
    counts = np.array([len(_numbers(layout, whole=whole)) for layout in layouts], np.int64)  # (papers,)
    begins = np.cumsum(counts) - counts
    matrix = np.zeros((int(counts.sum()), encoder.dimension), np.float32)  # (sentences, dimension)
    # a paper without any sentence needs no reading
    lengths = np.array([len(layout.tokens) if len(layout.numbers) else 0 for layout in layouts], np.int64)
    advance(int((lengths == 0).sum()))

    def encode(rows: NDArray[np.int64]) -> None:
        batch = [layouts[row] for row in rows.tolist()]
        with torch.inference_mode():
            found = sentence_vectors(encoder.network, batch, encoder.settings if whole else None).cpu().numpy()
        matrix[places(rows)[0]] = found

    def places(rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        before = np.repeat(begins[rows] - (np.cumsum(counts[rows]) - counts[rows]), counts[rows])
        return [before + np.arange(len(before))]

    results = Results([matrix], places, lambda rows: advance(len(rows)))
    run_batches(lengths, encoder.batch_tokens, encode, results=results, saved=saved, reporter=reporter)
    return matrix


def sentence_vectors(network: Network, batch: Sequence[SentenceLayout], settings: Settings | None = None) -> Tensor:
    """Mean states of the sentences of papers with tokens, (sentences, dimension); differentiable.

    With settings every paper's own vector, as they pool it, stands before its sentences.
    """
    counts = np.array([len(layout.numbers) for layout in batch], np.int64)
    starts, ends = (np.concatenate([getattr(layout, side) for layout in batch]) for side in ("starts", "ends"))
    return span_vectors(network, [layout.tokens for layout in batch], counts, starts, ends, settings)


def span_vectors(
    network: Network,
    tokens: Sequence[Tokens],
    counts: NDArray[np.int64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    settings: Settings | None,
) -> Tensor:
    """`sentence_vectors` of papers given as tokens, with how many sentences each has, and where these are in it."""
    torch = require("torch", extra="minilm")
    states = network.token_states(tokens)
    texts = np.repeat(np.arange(len(tokens)), counts)  # (sentences,)
    sentences = states.spans(texts, starts, ends)  # (sentences, dimension)
    if settings is None:
        return sentences
    own = normalized(states.cls() if settings.pooling == "cls" else states.mean(), settings)  # (papers, dimension)
    places = np.empty(len(tokens) + len(texts), np.int64)  # paper 0, its sentences, paper 1, ...
    places[np.cumsum(counts + 1) - (counts + 1)] = np.arange(len(tokens))
    places[np.arange(len(texts)) + texts + 1] = len(tokens) + np.arange(len(texts))
    found: Tensor = torch.cat([own, sentences])[torch.from_numpy(places).to(own.device, non_blocking=True)]
    return found


# Vectors of the tokens of a paper, read once and whole, as `sentences.py` reads it.

BYTES = 2
"""Of a number that is kept."""


@dataclass(frozen=True, slots=True)
class PaperTokens:
    """The tokens of one paper, and where those of its sentences are."""

    units: Tensor
    """(tokens, dimension) float16, of length 1."""

    starts: NDArray[np.int64]
    """First token of every sentence that was read, (sentences,)."""

    ends: NDArray[np.int64]
    """The token behind its last one."""

    numbers: NDArray[np.int64]
    """Which sentence of the paper it is, from 0."""

    def of(self, sentences: NDArray[np.integer] | None) -> Tensor:
        """Tokens of these sentences alone, as far as they were read; None: all of the paper, its title's among them.

        >>> import torch
        >>> paper = PaperTokens(torch.eye(5), np.array([1, 3]), np.array([3, 4]), np.array([0, 2]))
        >>> [len(paper.of(None)), len(paper.of(np.array([1]))), paper.of(np.array([2, 0])).argmax(1).tolist()]
        [5, 0, [1, 2, 3]]
        """
        if sentences is None:
            return self.units
        spans = np.flatnonzero(np.isin(self.numbers, sentences)).tolist()
        torch = require("torch", extra="minilm")
        own = [self.units[self.starts[at] : self.ends[at]] for at in spans]
        found: Tensor = torch.cat([self.units[:0], *own])  # (tokens, dimension)
        return found


def encode_tokens(
    encoder: TorchEncoder, titles: Sequence[str], sentences: Sequence[Sequence[str]], *, reporter: Reporter = QUIET
) -> list[PaperTokens]:
    """Tokens of every paper; one without title is read without its separator too, one without text has none."""
    torch = require("torch", extra="minilm")
    layouts = lay_out(encoder.reader, titles, sentences)
    nothing = torch.zeros((0, encoder.dimension), dtype=torch.float16, device=encoder.network.device)
    found = [_place(layout, encoder.reader, nothing) for layout in layouts]
    lengths = np.array([len(layout.tokens) for layout in layouts], np.int64)  # (papers,)

    def encode(rows: NDArray[np.int64]) -> None:
        with torch.inference_mode():
            states = encoder.network.token_states([layouts[row].tokens for row in rows.tolist()]).tokens().float()
            units = (states / states.norm(dim=1, keepdim=True).clamp(min=1e-12)).half()  # (tokens, dimension)
        if not bool(torch.isfinite(units).all()):
            raise UserError(f"{encoder.name} gives tokens numbers that are not finite; check the model")
        for row, own in zip(rows.tolist(), units.split(lengths[rows].tolist()), strict=True):
            inner = own[len(encoder.reader.opening) : len(own) - len(encoder.reader.closing)]
            found[row] = _place(layouts[row], encoder.reader, inner.clone())  # a part would keep the whole batch

    run_batches(lengths, encoder.batch_tokens, encode, reporter=reporter)
    return found


def _place(layout: SentenceLayout, reader: TextReader, units: Tensor) -> PaperTokens:
    before = len(reader.opening)
    return PaperTokens(units, layout.starts - before, layout.ends - before, layout.numbers)


# Vectors of papers and of their sentences from one pass of the network.

Rows = NDArray[np.int64]


class PaperAndSentenceTokens(NamedTuple):
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

    sentences: EncodedSentences


class _TokenPass(NamedTuple):
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
) -> list[PaperAndSentenceTokens]:
    """Tokens of papers, given the text of each (see `paper_text`), and again its title and its sentences."""
    layouts = lay_out(reader, titles, sentences)
    return list(map(PaperAndSentenceTokens, reader.read(texts), layouts, map(len, sentences)))


def encode_papers_and_sentences(
    encoder: TorchEncoder,
    papers: Sequence[PaperAndSentenceTokens],
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
    return PapersAndSentences(vectors, EncodedSentences(matrix, offsets, numbers, lost))


def _readings(row: int, paper: PaperAndSentenceTokens) -> list[_TokenPass]:
    """One reading where text and sentences have the same tokens, else one of each that has any."""
    text, layout = paper.text, paper.layout
    has_sentences, none = len(layout.numbers) > 0, np.empty(0, np.int64)
    if has_sentences and np.array_equal(text, layout.tokens):
        return [_TokenPass(text, row, True, layout.starts, layout.ends)]
    own = [_TokenPass(text, row, True, none, none)] if len(text) else []
    return [*own, _TokenPass(layout.tokens, row, False, layout.starts, layout.ends)] if has_sentences else own


def _text_vectors(states: TokenStates, batch: Sequence[_TokenPass], settings: Settings) -> Tensor:
    """Vectors of all tokens of each reading, (readings, dimension)."""
    if settings.pooling == "cls":
        return normalized(states.cls(), settings)
    # sums over spans do not depend on the padding, as those of `states.mean()` do in their last bits
    every = np.arange(len(batch))
    lengths = np.array([len(reading.tokens) for reading in batch], np.int64)
    return normalized(states.spans(every, np.zeros_like(every), lengths), settings)


def _span_vectors(states: TokenStates, batch: Sequence[_TokenPass]) -> Tensor:
    """Vectors of the sentences of each reading, one reading after the other, (sentences, dimension)."""
    texts = np.repeat(np.arange(len(batch)), [len(reading.starts) for reading in batch])
    starts, ends = (np.concatenate([getattr(reading, side) for reading in batch]) for side in ("starts", "ends"))
    return states.spans(texts, starts, ends)
