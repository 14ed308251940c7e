"""Vectors of sentences and tokens in the context of their paper (ASPIRE), with or without the paper's own vector.

    [CLS] title [SEP] sentence 0 sentence 1 ... [SEP]      truncated at the reader's length
    0     1     3     4          9          15             starts 4, 9; ends 9, 15
    vector of a sentence = mean of the last layer's states of its tokens (Mysore et al. 2022)

The title is read but has no vector. A sentence truncated in the middle keeps the tokens that are left; one without a token,
because it is truncated or empty, has no vector and is counted as lost. Vectors are raw: neither the encoder's pooling nor
its normalization applies. With `with_paper`, a paper that has sentences also gets its own vector, as the encoder pools
it, before them: sentence number PAPER_ROW.

`encode_tokens` gives a vector of length 1 for every token between the outer special tokens, in half precision.

    papers = tokenize_papers(encoder.reader, ["A title[SEP]One. Two."], ["A title"], [["One.", "Two."]])
    encoded = encode_papers_and_sentences(encoder, papers)
    encoded.vectors        (papers, dimension), as from `TorchEncoder.encode`
    encoded.sentences      as from `encode_sentences`

A paper's text nearly always has the same tokens as its title followed by its sentences. The network then reads them once,
and its states are pooled twice. Where the tokens differ, both are read in the same pass: for a paper without abstract, whose
title is also its only sentence, or a tokenizer for which the end of a sentence matters. The vectors differ from those of two
passes in their last bits only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, require
from citeweave.core.progress import QUIET, Advance, Reporter
from citeweave.core.ragged import Ragged, owners_of, to_offsets
from citeweave.encoders.batches import NOT_SAVED, BatchResults, ResultCopies, SavedBatches, run_batches
from citeweave.encoders.encoder import WINDOW, TorchEncoder
from citeweave.encoders.model_folder import Settings
from citeweave.encoders.pooling import TokenStates, normalize
from citeweave.encoders.tokens import TextReader, Tokens

if TYPE_CHECKING:
    from torch import Tensor

PAPER_ROW = -1
"""Sentence number of the row that is the paper's own vector."""

BYTES = 2
"""Bytes of a number of a token vector."""

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SentenceLayout:
    """The tokens of a paper for the sentence encoder, and which of them belong to which sentence."""

    tokens: Tokens
    starts: NDArray[np.int64]
    """First token of every sentence that has one, shape (sentences,)."""

    ends: NDArray[np.int64]
    """One past the last token of every sentence."""

    numbers: NDArray[np.int64]
    """Which sentence of the paper it is, from 0, ascending."""


def lay_out_sentences(
    reader: TextReader, titles: Sequence[str], sentences: Sequence[Sequence[str]]
) -> list[SentenceLayout]:
    """Tokenize the title and the sentences of papers separately, as ASPIRE does, and join them.

    A paper without title has no separator either; one without any token of its own has no tokens at all.
    """
    heads = reader.pieces([reader.prompt + title for title in titles])
    # tokenizers that mark word beginnings need the blank
    bodies = iter(reader.pieces([f" {text}" if at else text for texts in sentences for at, text in enumerate(texts)]))
    return [_layout(reader, head, [next(bodies) for _ in texts]) for head, texts in zip(heads, sentences, strict=True)]


def _layout(reader: TextReader, head: Tokens, own: list[Tokens]) -> SentenceLayout:
    start = np.concatenate([reader.opening, head, reader.separator if len(head) else head])
    bounds = np.cumsum([len(start), *map(len, own)])  # (sentences + 1,)
    room = reader.max_tokens - len(reader.closing)
    tokens = np.concatenate([start, *own])[:room]
    starts, ends = np.minimum(bounds[:-1], room), np.minimum(bounds[1:], room)
    numbers = np.flatnonzero(ends > starts)
    if len(tokens) == len(reader.opening):
        return SentenceLayout(np.zeros(0, np.int64), numbers, numbers, numbers)
    return SentenceLayout(np.concatenate([tokens, reader.closing]), starts[numbers], ends[numbers], numbers)


@dataclass(frozen=True, slots=True)
class EncodedSentences(Ragged):
    """Sentences of papers as the encoder returns them: the vectors of paper i are matrix[offsets[i]:offsets[i + 1]]."""

    matrix: NDArray[np.float32]
    """Shape (sentences, dimension)."""

    numbers: NDArray[np.int32]
    """Shape (sentences,): which sentence of its paper a row is, from 0, or PAPER_ROW."""

    lost: int
    """Number of sentences without a vector."""


def encode_sentences(
    encoder: TorchEncoder,
    titles: Sequence[str],
    sentences: Sequence[Sequence[str]],
    *,
    with_paper: bool = False,
    on_tokens: Callable[[int, PaperTokens], None] | None = None,
    reporter: Reporter = QUIET,
    saved: SavedBatches = NOT_SAVED,
) -> EncodedSentences:
    """Encode the sentences of papers, each in the context of its title and abstract.

    `on_tokens` gets the number of every paper that is read, from 0, and its tokens as from `encode_tokens`.
    """
    if len(titles) != len(sentences):
        raise UserError(f"{len(titles)} titles for the sentences of {len(sentences)} papers; give one title per paper")
    if with_paper and encoder.settings.pooling not in ("cls", "mean"):
        raise UserError(
            f"pooling is {encoder.settings.pooling!r}; a paper's own vector with its sentences needs cls or mean"
        )
    blocks, numbers = [np.zeros((0, encoder.dimension), np.float32)], [np.zeros(0, np.int64)]
    with reporter.task("embedding sentences", len(titles), "papers") as advance:
        for start in range(0, len(titles), WINDOW):
            window = slice(start, start + WINDOW)
            layouts = lay_out_sentences(encoder.reader, titles[window], sentences[window])
            own = [_numbers(layout, with_paper=with_paper) for layout in layouts]
            papers = Ragged(to_offsets([len(each) for each in own]))
            settings = encoder.settings if with_paper else None
            keep = None if on_tokens is None else partial(_pass_on, on_tokens, start)
            blocks.append(_window(encoder, layouts, papers, settings, keep, advance, reporter, saved))
            numbers += own
    rows, offsets = np.concatenate(numbers).astype(np.int32), to_offsets([len(each) for each in numbers[1:]])
    lost = sum(map(len, sentences)) - int((rows != PAPER_ROW).sum())
    return EncodedSentences(offsets, np.concatenate(blocks), rows, lost)


def _pass_on(on_tokens: Callable[[int, PaperTokens], None], start: int, rows: Rows, papers: list[PaperTokens]) -> None:
    for row, paper in zip(rows.tolist(), papers, strict=True):
        on_tokens(start + row, paper)


def _numbers(layout: SentenceLayout, *, with_paper: bool) -> NDArray[np.int64]:
    """Return the sentence numbers of a paper's rows, PAPER_ROW first where it has its own vector."""
    return np.concatenate([[PAPER_ROW], layout.numbers]) if with_paper and len(layout.numbers) else layout.numbers


def _window(
    encoder: TorchEncoder,
    layouts: list[SentenceLayout],
    papers: Ragged,
    settings: Settings | None,
    keep: Callable[[Rows, list[PaperTokens]], None] | None,
    advance: Advance,
    reporter: Reporter,
    saved: SavedBatches,
) -> NDArray[np.float32]:
    """Encode the sentences of a window of papers, paper after paper, (sentences, dimension)."""
    torch = require("torch", extra="minilm")
    matrix = np.zeros((int(papers.offsets[-1]), encoder.dimension), np.float32)  # (sentences, dimension)
    # a paper without sentences is not read
    lengths = np.array([len(layout.tokens) if len(layout.numbers) else 0 for layout in layouts], np.int64)
    advance(int((lengths == 0).sum()))
    copies = ResultCopies(matrix)

    def encode(rows: Rows) -> None:
        batch = [layouts[row] for row in rows.tolist()]
        with torch.inference_mode():
            states = encoder.network.token_states([layout.tokens for layout in batch])
            copies.add(papers.places(rows), span_vectors(states, *_join_spans(batch), settings))
            if keep is not None:
                keep(rows, _papers_tokens(encoder, batch, states))

    results = BatchResults(
        [matrix], lambda rows: [papers.places(rows)], lambda rows: advance(len(rows)), copies.collect
    )
    run_batches(lengths, encoder.batch_tokens, encode, results=results, saved=saved, reporter=reporter)
    return matrix


def _join_spans(parts: Sequence[SentenceLayout | _TokenPass]) -> tuple[Rows, Rows, Rows]:
    """Return how many sentences each part has, and the starts and ends of all sentences."""
    starts, ends = (np.concatenate([getattr(one, side) for one in parts]) for side in ("starts", "ends"))
    return np.array([len(one.starts) for one in parts], np.int64), starts, ends


def span_vectors(
    states: TokenStates,
    counts: NDArray[np.int64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    settings: Settings | None,
) -> Tensor:
    """Return the mean states of the sentences of papers, (sentences, dimension); differentiable.

    `counts` is the number of sentences of each paper. With settings every paper's own vector, as they pool it, comes
    before its sentences.
    """
    torch = require("torch", extra="minilm")
    texts = owners_of(to_offsets(counts))  # (sentences,)
    sentences = states.spans(texts, starts, ends)  # (sentences, dimension)
    if settings is None:
        return sentences
    own = normalize(states.cls() if settings.pooling == "cls" else states.mean(), settings)  # (papers, dimension)
    places = np.empty(len(own) + len(texts), np.int64)  # paper 0, its sentences, paper 1, ...
    places[to_offsets(counts + 1)[:-1]] = np.arange(len(own))
    places[np.arange(len(texts)) + texts + 1] = len(own) + np.arange(len(texts))
    vectors: Tensor = torch.cat([own, sentences])[torch.from_numpy(places).to(own.device, non_blocking=True)]
    return vectors


@dataclass(frozen=True, slots=True)
class PaperTokens:
    """The token vectors of one paper from the sentence encoder, and which of them belong to which sentence."""

    units: Tensor
    """(tokens, dimension) float16, each of length 1."""

    starts: NDArray[np.int64]
    """First token of every sentence that has one, (sentences,)."""

    ends: NDArray[np.int64]
    """One past the last token of every sentence."""

    numbers: NDArray[np.int64]
    """Which sentence of the paper it is, from 0."""

    def of(self, sentences: NDArray[np.integer] | None) -> Tensor:
        """Return the token vectors of these sentences alone; None: all of the paper, including its title.

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
        tokens: Tensor = torch.cat([self.units[:0], *own])  # (tokens, dimension)
        return tokens


def encode_tokens(
    encoder: TorchEncoder, titles: Sequence[str], sentences: Sequence[Sequence[str]], *, reporter: Reporter = QUIET
) -> list[PaperTokens]:
    """Encode papers with the sentence encoder to one vector of length 1 per token; a paper without text has none."""
    torch = require("torch", extra="minilm")
    layouts = lay_out_sentences(encoder.reader, titles, sentences)
    empty = torch.zeros((0, encoder.dimension), dtype=torch.float16, device=encoder.network.device)
    papers = [_paper_tokens(layout, encoder.reader, empty) for layout in layouts]
    lengths = np.array([len(layout.tokens) for layout in layouts], np.int64)  # (papers,)

    def encode(rows: Rows) -> None:
        batch = [layouts[row] for row in rows.tolist()]
        with torch.inference_mode():
            read = _papers_tokens(encoder, batch, encoder.network.token_states([layout.tokens for layout in batch]))
        for row, paper in zip(rows.tolist(), read, strict=True):
            papers[row] = paper

    run_batches(lengths, encoder.batch_tokens, encode, reporter=reporter)
    return papers


def _papers_tokens(encoder: TorchEncoder, layouts: Sequence[SentenceLayout], states: TokenStates) -> list[PaperTokens]:
    """Return the token vectors of the papers of a batch by the states of their tokens."""
    torch = require("torch", extra="minilm")
    every = states.tokens().float()  # (tokens, dimension)
    units = (every / every.norm(dim=1, keepdim=True).clamp(min=1e-12)).half()
    if not bool(torch.isfinite(units).all()):
        raise UserError(f"{encoder.name} gives token vectors that are not finite; check the model")
    first, last = len(encoder.reader.opening), len(encoder.reader.closing)
    parts = units.split([len(layout.tokens) for layout in layouts])
    # a view would keep the batch
    inner = [own[first : len(own) - last].clone() for own in parts]
    return [_paper_tokens(layout, encoder.reader, own) for layout, own in zip(layouts, inner, strict=True)]


def _paper_tokens(layout: SentenceLayout, reader: TextReader, units: Tensor) -> PaperTokens:
    before = len(reader.opening)
    return PaperTokens(units, layout.starts - before, layout.ends - before, layout.numbers)


class PaperAndSentenceTokens(NamedTuple):
    """The tokens of one paper, for its own vector and for its sentence vectors."""

    text: Tokens
    layout: SentenceLayout
    sentences: int
    """Number of sentences of the paper, including those without a token."""


@dataclass(frozen=True, slots=True)
class PapersAndSentences:
    """The vectors of some papers and of their sentences, from one pass."""

    vectors: NDArray[np.float32]
    """Shape (papers, dimension); zeros for a paper without a token."""

    sentences: EncodedSentences


class _TokenPass(NamedTuple):
    """Tokens that the network reads once, and whether their states give the paper's vector, sentence vectors or both."""

    tokens: Tokens
    paper: int
    is_text: bool
    """Whether all tokens together give the paper's own vector."""

    starts: Rows
    """First token of each sentence that gets its vector from this pass."""

    ends: Rows


def reads_together(encoder: object) -> bool:
    """Return whether papers and sentences can share a pass: the pooling needs the last layer alone."""
    return isinstance(encoder, TorchEncoder) and encoder.settings.pooling in ("cls", "mean")


def tokenize_papers(
    reader: TextReader, texts: Sequence[str], titles: Sequence[str], sentences: Sequence[Sequence[str]]
) -> list[PaperAndSentenceTokens]:
    """Tokenize papers for both kinds of vectors: the text of each, and its title and sentences again."""
    layouts = lay_out_sentences(reader, titles, sentences)
    return list(map(PaperAndSentenceTokens, reader.read(texts), layouts, map(len, sentences)))


def encode_papers_and_sentences(
    encoder: TorchEncoder,
    papers: Sequence[PaperAndSentenceTokens],
    *,
    reporter: Reporter = QUIET,
    saved: SavedBatches = NOT_SAVED,
) -> PapersAndSentences:
    """Encode papers and their sentences in one pass; all papers are sorted by length at once."""
    assert reads_together(encoder), encoder.settings.pooling
    torch = require("torch", extra="minilm")
    passes = [one for row, paper in enumerate(papers) for one in _passes(row, paper)]
    numbers = np.concatenate([np.empty(0, np.int64), *(paper.layout.numbers for paper in papers)]).astype(np.int32)
    own = Ragged(to_offsets([len(paper.layout.numbers) for paper in papers]))
    vectors = np.zeros((len(papers), encoder.dimension), np.float32)  # (papers, dimension)
    matrix = np.zeros((len(numbers), encoder.dimension), np.float32)  # (sentences, dimension)
    with reporter.task("embedding", len(papers), "papers") as advance:
        advance(len(papers) - sum(one.is_text for one in passes))

        def encode(rows: Rows) -> None:
            batch = [passes[row] for row in rows.tolist()]
            with torch.inference_mode():
                states = encoder.network.token_states([one.tokens for one in batch])
                counts, starts, ends = _join_spans(batch)
                spans = states.spans(owners_of(to_offsets(counts)), starts, ends).cpu()
                texts = _text_vectors(states, batch, encoder.settings).cpu()
            of_papers, of_sentences = places(rows)
            vectors[of_papers] = texts.numpy()[[one.is_text for one in batch]]
            matrix[of_sentences] = spans.numpy()

        def places(rows: Rows) -> tuple[Rows, Rows]:
            batch = [passes[row] for row in rows.tolist()]
            texts = np.array([each.paper for each in batch if each.is_text], np.int64)
            return texts, own.places(np.array([each.paper for each in batch if len(each.starts)], np.int64))

        lengths = np.array([len(one.tokens) for one in passes], np.int64)  # (passes,)
        results = BatchResults([vectors, matrix], places, lambda rows: advance(len(places(rows)[0])))
        run_batches(lengths, encoder.batch_tokens, encode, results=results, saved=saved, reporter=reporter)
    lost = sum(paper.sentences for paper in papers) - len(numbers)
    return PapersAndSentences(vectors, EncodedSentences(own.offsets, matrix, numbers, lost))


def _passes(row: int, paper: PaperAndSentenceTokens) -> list[_TokenPass]:
    """Return one pass where a paper's text and sentences have the same tokens, else one for each that has any."""
    text, layout = paper.text, paper.layout
    has_sentences, none = len(layout.numbers) > 0, np.empty(0, np.int64)
    if has_sentences and np.array_equal(text, layout.tokens):
        return [_TokenPass(text, row, True, layout.starts, layout.ends)]
    own = [_TokenPass(text, row, True, none, none)] if len(text) else []
    return [*own, _TokenPass(layout.tokens, row, False, layout.starts, layout.ends)] if has_sentences else own


def _text_vectors(states: TokenStates, batch: Sequence[_TokenPass], settings: Settings) -> Tensor:
    """Return the paper vector of each pass, pooled from all its tokens, (passes, dimension)."""
    if settings.pooling == "cls":
        return normalize(states.cls(), settings)
    # sums over spans do not depend on the padding, as those of `states.mean()` do in their last bits
    every = np.arange(len(batch))
    lengths = np.array([len(one.tokens) for one in batch], np.int64)
    return normalize(states.spans(every, np.zeros_like(every), lengths), settings)
