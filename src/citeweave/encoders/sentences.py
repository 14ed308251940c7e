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

import numpy as np
from numpy.typing import NDArray

from citeweave.encoders.batching import batches
from citeweave.encoders.reading import TextReader, Tokens
from citeweave.encoders.torch_encoder import WINDOW, TorchEncoder
from citeweave.errors import UserError
from citeweave.extras import require
from citeweave.progress import QUIET, Reporter


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


@dataclass(frozen=True, slots=True)
class _Layout:
    """The tokens of a paper and whose they are."""

    tokens: Tokens
    owner: NDArray[np.int64]
    """Shape (tokens,): the sentence of every token, -1 for title and special tokens."""


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
    with reporter.task("embedding sentences", len(titles), "papers") as advance:
        for start in range(0, len(titles), WINDOW):
            layouts = _lay_out(encoder.reader, titles[start : start + WINDOW], sentences[start : start + WINDOW])
            kept = [np.unique(layout.owner[layout.owner >= 0]) for layout in layouts]
            found: list[NDArray[np.float32]] = [blocks[0]] * len(layouts)
            # a paper without any sentence needs no reading
            lengths = [len(layout.tokens) if len(own) else 0 for layout, own in zip(layouts, kept, strict=True)]
            advance(lengths.count(0))
            for rows in batches(np.array(lengths, np.int64), encoder.batch_tokens):
                means = _means(encoder, [layouts[row] for row in rows.tolist()])
                for row, mean in zip(rows.tolist(), means, strict=True):
                    found[row] = mean[kept[row]]
                advance(len(rows))
            blocks += found
            numbers += kept
    offsets = np.cumsum([len(own) for own in numbers], dtype=np.int64)  # the first one is empty: (papers + 1,)
    lost = sum(map(len, sentences)) - int(offsets[-1])
    return Sentences(np.concatenate(blocks), offsets, np.concatenate(numbers).astype(np.int32), lost)


def _lay_out(reader: TextReader, titles: Sequence[str], sentences: Sequence[Sequence[str]]) -> list[_Layout]:
    """Tokenize title and sentences apart, as ASPIRE does, and put them behind each other."""
    heads = reader.pieces([reader.prompt + title for title in titles])
    # tokenizers that mark the beginning of words need the blank
    bodies = iter(reader.pieces([f" {text}" if at else text for texts in sentences for at, text in enumerate(texts)]))
    layouts = []
    for head, texts in zip(heads, sentences, strict=True):
        own = [next(bodies) for _ in texts]
        start = np.concatenate([reader.opening, head, reader.separator if len(head) else head])
        tokens = np.concatenate([start, *own])[: reader.max_tokens - len(reader.closing)]
        owner = np.repeat(np.arange(-1, len(own)), [len(start), *map(len, own)])[: len(tokens)]
        closing = np.full(len(reader.closing), -1, np.int64)
        layouts.append(_Layout(np.concatenate([tokens, reader.closing]), np.concatenate([owner, closing])))
    return layouts


def _means(encoder: TorchEncoder, batch: list[_Layout]) -> NDArray[np.float32]:
    """Mean state of every sentence's tokens, (papers, most sentences of one, dimension); zeros where there is none."""
    torch = require("torch", extra="minilm")
    (states,), _ = encoder.network.layers([layout.tokens for layout in batch])  # (papers, tokens, dimension)
    most = 1 + max(int(layout.owner.max()) for layout in batch)
    owners = np.full(states.shape[:2], most, np.int64)  # (papers, tokens); tokens of no sentence go to a spare row
    for row, layout in enumerate(batch):
        owners[row, : len(layout.owner)] = np.where(layout.owner < 0, most, layout.owner)
    owners += np.arange(len(batch))[:, None] * (most + 1)
    counts = np.bincount(owners.ravel(), minlength=len(batch) * (most + 1))
    sums = torch.zeros((len(counts), states.shape[2]), device=states.device)  # (papers * (most + 1), dimension)
    sums.index_add_(0, torch.from_numpy(owners.ravel()).to(states.device), states.flatten(0, 1).float())
    means = sums.cpu().numpy() / np.maximum(counts, 1)[:, None].astype(np.float32)
    found: NDArray[np.float32] = means.reshape(len(batch), most + 1, -1)[:, :most]
    return found
