"""Vectors of the sentences of a paper, each read in the context of the whole paper (Mysore et al. 2022, ASPIRE).

    [CLS] title [SEP] sentence 0 sentence 1 ... [SEP]      cut at the encoder's length
    vector of a sentence = mean of the last layer's states of its tokens

The title is read but has no vector. A sentence cut in the middle keeps the tokens that are there; one without a token,
because it is cut away or empty, has no vector and is counted as lost. Vectors are raw: whether the encoder's own
vectors are set to length 1 does not count here, nor does its pooling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from citeweave.encoders.backing_off import run_batches
from citeweave.encoders.network import Network
from citeweave.encoders.sentence_layout import SentenceLayout, lay_out
from citeweave.encoders.torch_encoder import WINDOW, TorchEncoder
from citeweave.errors import UserError
from citeweave.extras import require
from citeweave.progress import QUIET, Advance, Reporter

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sentences:
    """Vectors of sentences, paper after paper: those of paper i are matrix[offsets[i]:offsets[i + 1]]."""

    matrix: NDArray[np.float32]
    """Shape (sentences, dimension)."""

    offsets: NDArray[np.int64]
    """Shape (papers + 1,)."""

    numbers: NDArray[np.int32]
    """Shape (sentences,): which sentence of its paper a row is, from 0."""

    lost: int
    """Sentences without a vector."""


def encode_sentences(
    encoder: TorchEncoder,
    titles: Sequence[str],
    sentences: Sequence[Sequence[str]],
    *,
    reporter: Reporter = QUIET,
) -> Sentences:
    """Vectors of every paper's sentences; a paper without title is read without its separator too."""
    if len(titles) != len(sentences):
        raise UserError(f"{len(titles)} titles for the sentences of {len(sentences)} papers; give one title a paper")
    blocks: list[NDArray[np.float32]] = [np.zeros((0, encoder.dimension), np.float32)]
    numbers: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    counts: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
    with reporter.task("embedding sentences", len(titles), "papers") as advance:
        for start in range(0, len(titles), WINDOW):
            layouts = lay_out(encoder.reader, titles[start : start + WINDOW], sentences[start : start + WINDOW])
            counts.append(np.array([len(layout.numbers) for layout in layouts], np.int64))
            numbers += [layout.numbers for layout in layouts]
            blocks.append(_window(encoder, layouts, advance, reporter))
    offsets = np.cumsum(np.concatenate(counts))  # (papers + 1,)
    lost = sum(map(len, sentences)) - int(offsets[-1])
    return Sentences(np.concatenate(blocks), offsets, np.concatenate(numbers).astype(np.int32), lost)


def _window(
    encoder: TorchEncoder, layouts: list[SentenceLayout], advance: Advance, reporter: Reporter
) -> NDArray[np.float32]:
    """Vectors of the sentences of some papers, one behind the other, (sentences, dimension)."""
    torch = require("torch", extra="minilm")
    counts = np.array([len(layout.numbers) for layout in layouts], np.int64)  # (papers,)
    begins = np.cumsum(counts) - counts
    matrix = np.zeros((int(counts.sum()), encoder.dimension), np.float32)  # (sentences, dimension)
    # a paper without any sentence needs no reading
    lengths = np.array([len(layout.tokens) if len(layout.numbers) else 0 for layout in layouts], np.int64)
    advance(int((lengths == 0).sum()))

    def encode(rows: NDArray[np.int64]) -> None:
        batch = [layouts[row] for row in rows.tolist()]
        with torch.inference_mode():
            found = sentence_vectors(encoder.network, batch).cpu().numpy()  # (sentences of the batch, dimension)
        places = np.repeat(begins[rows] - (np.cumsum(counts[rows]) - counts[rows]), counts[rows])
        matrix[places + np.arange(len(places))] = found
        advance(len(rows))

    run_batches(lengths, encoder.batch_tokens, encode, reporter=reporter)
    return matrix


def sentence_vectors(network: Network, batch: Sequence[SentenceLayout]) -> Tensor:
    """Mean states of the sentences of papers with tokens, (sentences, dimension); differentiable."""
    states = network.token_states([layout.tokens for layout in batch])
    texts = np.repeat(np.arange(len(batch)), [len(layout.numbers) for layout in batch])  # (sentences,)
    starts = np.concatenate([layout.starts for layout in batch])
    return states.spans(texts, starts, np.concatenate([layout.ends for layout in batch]))
