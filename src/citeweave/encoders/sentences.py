"""Vectors of the sentences of a paper, each read in the context of the whole paper (Mysore et al. 2022, ASPIRE).

    [CLS] title [SEP] sentence 0 sentence 1 ... [SEP]      cut at the encoder's length
    vector of a sentence = mean of the last layer's states of its tokens

The title is read but has no vector. A sentence cut in the middle keeps the tokens that are there; one without a token,
because it is cut away or empty, has no vector and is counted as lost. Vectors are raw: whether the encoder's own
vectors are set to length 1 does not count here, nor does its pooling. With `whole`, a paper that has sentences also gets
its own vector, as the encoder pools it, before them: sentence number WHOLE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from citeweave.encoders.backing_off import run_batches
from citeweave.encoders.model_folder import Settings
from citeweave.encoders.network import Network
from citeweave.encoders.reading import Tokens
from citeweave.encoders.saved_batches import NOT_SAVED, Results, SavedBatches
from citeweave.encoders.sentence_layout import SentenceLayout, lay_out
from citeweave.encoders.text_vectors import normalized
from citeweave.encoders.torch_encoder import WINDOW, TorchEncoder
from citeweave.errors import UserError
from citeweave.extras import require
from citeweave.progress import QUIET, Advance, Reporter

if TYPE_CHECKING:
    from torch import Tensor

WHOLE = -1
"""Number of the row that is the paper's own vector."""


@dataclass(frozen=True, slots=True)
class Sentences:
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
) -> Sentences:
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
    return Sentences(np.concatenate(blocks), np.cumsum(np.concatenate(counts)), found, lost)


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
