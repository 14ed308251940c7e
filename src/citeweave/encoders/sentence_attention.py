"""The pooling `aspect_words`: a paper's vector out of those of its sentences, weighed by what an aspect asks for.

    [CLS] title [SEP] [CLS] sentence 1 [SEP] [CLS] sentence 2 [SEP]      the state of every [CLS]: a sentence's vector
    background, method, result, miscellaneous  ->  linear layer          one query a word
    of every query: softmax over the sentences of (query . sentence) / sqrt(dimension), then their weighted mean
    the mean of the four is the paper's vector

SciAspect(Weighted): SciAspect thesis (TUM 2023), experiment 3.5; marks before sentences as Liu and Lapata 2019 set
them; attention as in Vaswani et al. 2017, equation 1. The words are embedded once with the start model, as the state of
[CLS] in `[CLS] word [SEP]`, so that queries and sentences begin in one space. Texts are read by `reading.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.encoders.network import Network
from citeweave.encoders.reading import TextReader, Tokens
from citeweave.encoders.saved.aspect_words import WORDS, word_numbers
from citeweave.extras import require

if TYPE_CHECKING:
    from torch import Tensor


def attended_vectors(network: Network, batch: Sequence[Tokens]) -> Tensor:
    """Vectors (texts, dimension) of texts that were read by sentence, padded or packed; differentiable."""
    torch = require("torch", extra="minilm")
    marks = [np.flatnonzero(tokens == tokens[0]) for tokens in batch]  # the first token of a text is its mark
    counts = np.array([len(own) for own in marks], np.int64)  # (texts,)
    starts = np.concatenate(marks)  # (sentences,)
    texts = np.repeat(np.arange(len(batch)), counts)  # (sentences,)
    sentences = network.token_states(batch).spans(texts, starts, starts + 1)  # (sentences, dimension)
    with torch.autocast(sentences.device.type, enabled=False):
        return attend(sentences, counts, queries_of(network.model))


def queries_of(model: Any) -> Tensor:
    """The words for aspects through the trained layer, (words, dimension)."""
    torch = require("torch", extra="minilm")
    numbers = word_numbers(model)
    found: Tensor = torch.nn.functional.linear(numbers["queries"], numbers["weight"], numbers["bias"])
    return found


def attend(sentences: Tensor, counts: NDArray[np.int64], queries: Tensor) -> Tensor:
    """Sentences (sentences, dimension), text after text, `counts` of each; queries (words, dimension) -> (texts, dimension).

    The mean over words of weighted means is one weighted mean, by the mean of the weights.
    """
    torch = require("torch", extra="minilm")
    most = int(counts.max())
    begins = np.cumsum(counts) - counts  # (texts,)
    places = np.minimum(begins[:, None] + np.arange(most), len(sentences) - 1)  # (texts, most)
    rows, is_there = (
        torch.from_numpy(array).to(sentences.device, non_blocking=True)
        for array in (places, np.arange(most) < counts[:, None])
    )
    padded = sentences[rows]  # (texts, most, dimension)
    scores = padded @ queries.T / sentences.shape[1] ** 0.5  # (texts, most, words)
    weights = scores.masked_fill(~is_there[:, :, None], -torch.inf).softmax(dim=1).mean(dim=2)  # (texts, most)
    found: Tensor = (weights[:, :, None] * padded).sum(dim=1)  # (texts, dimension)
    return found


def embed_words(network: Network, reader: TextReader) -> None:
    """Give the words for aspects of a model their vectors, where they have none yet."""
    torch = require("torch", extra="minilm")
    queries = word_numbers(network.model)["queries"]
    if bool(queries.any()):
        return
    batch = [np.concatenate([reader.opening, ids, reader.closing]) for ids in reader.pieces(WORDS)]
    with torch.no_grad():  # not inference_mode: training goes through these numbers
        queries.copy_(network.token_states(batch).cls())
