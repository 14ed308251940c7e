"""The network of the ELMo-style baseline: pieces of words, two LSTM layers in each direction, a softmax over words.

    pieces  of every word -> their mean -> words (words, H)
    words   (texts, length, H) -> LSTM 1 -> LSTM 2, from the left; and two others from the right
    layers  words twice | LSTM 1 of both directions | LSTM 2 of both directions, each (texts, length, 2 H)

As in Peters et al. (2018): neither direction sees the other, the second layer adds to the first, both directions share
words and softmax. Unlike there, a word is the mean of its n-grams of letters instead of a convolution over letters,
which learns far too slowly for minutes of training, and the softmax is adaptive (Grave et al. 2017) instead of sampled.
Knows no texts.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import ModuleDict

BUCKETS = 40_000
"""Rows that all pieces share."""

_SIZES = (3, 4, 5)


@dataclass(frozen=True)
class Batch:
    """Texts as a rectangle of words."""

    pieces: Tensor
    """The pieces of the different words of these texts, one word after the other."""

    starts: Tensor
    """(words,): where the pieces of each word begin."""

    places: Tensor
    """(texts, length): which of them stands where; anything beyond the end of a text."""

    lengths: Tensor
    """(texts,)"""


@lru_cache(maxsize=200_000)
def pieces_of(word: str) -> tuple[int, ...]:
    """The numbers of a word's pieces: itself and its n-grams of 3 to 5 letters, with marks around the word.

    >>> len(pieces_of("ab")), pieces_of("ab") == pieces_of("ba")
    (3, False)
    """
    marked = f"<{word}>"
    grams = {marked} | {marked[at : at + size] for size in _SIZES for at in range(len(marked) - size + 1)}
    return tuple(sorted(zlib.crc32(gram.encode("utf-8", "replace")) % BUCKETS for gram in grams))


def new_network(torch: Any, hidden: int, classes: int) -> ModuleDict:
    """Modules by name; `classes` words can be predicted, the most frequent first."""
    nn = torch.nn
    cutoffs = [cut for cut in (500, 3000) if cut < classes] or [max(classes // 2, 1)]
    lstm = {
        f"{side}{layer}": nn.LSTM(hidden, hidden, batch_first=True) for side in ("left", "right") for layer in (1, 2)
    }
    network: ModuleDict = nn.ModuleDict(
        {
            "words": nn.EmbeddingBag(BUCKETS, hidden, mode="mean"),
            "softmax": nn.AdaptiveLogSoftmaxWithLoss(hidden, classes, cutoffs, div_value=2.0),
            **lstm,
        }
    )
    return network


def layers(torch: Any, network: ModuleDict, batch: Batch) -> list[Tensor]:
    """The three layers, (texts, length, 2 hidden) each: from the left in the first half, from the right in the second."""
    words = network["words"](batch.pieces, batch.starts)[batch.places]  # (texts, length, hidden)
    turn = _turned(torch, batch)[:, :, None].expand_as(words)
    left, right = [words], [words.gather(1, turn)]
    for layer in (1, 2):
        for side, states in (("left", left), ("right", right)):
            new = network[f"{side}{layer}"](states[-1])[0]
            states.append(new + states[-1] if layer == 2 else new)
    return [torch.cat([one, other.gather(1, turn)], dim=2) for one, other in zip(left, right, strict=True)]


def language_loss(torch: Any, network: ModuleDict, batch: Batch, targets: Tensor) -> Tensor:
    """Mean surprise at the next word, read from the left, and at the word before, read from the right.

    `targets` (texts, length) are the numbers of the words for the softmax.
    """
    left, right = layers(torch, network, batch)[-1].chunk(2, dim=2)  # (texts, length, hidden) each
    # a word that has one after it in its text
    has_next = torch.arange(targets.shape[1] - 1)[None, :] < batch.lengths[:, None] - 1  # (texts, length - 1)
    states = torch.cat([left[:, :-1][has_next], right[:, 1:][has_next]])
    wanted = torch.cat([targets[:, 1:][has_next], targets[:, :-1][has_next]])
    loss: Tensor = network["softmax"](states, wanted).loss
    return loss


def text_means(torch: Any, network: ModuleDict, batch: Batch) -> NDArray[np.float32]:
    """Mean over words and layers, (texts, 2 hidden)."""
    inside = torch.arange(batch.places.shape[1])[None, :] < batch.lengths[:, None]  # (texts, length)
    total = sum(layers(torch, network, batch)) * inside[:, :, None]
    return np.asarray((total.sum(dim=1) / (3 * batch.lengths[:, None].clamp(min=1))).numpy())


def _turned(torch: Any, batch: Batch) -> Tensor:
    """(texts, length): the place that each place takes when every text is read backwards; its own inverse."""
    places = torch.arange(batch.places.shape[1])[None, :]
    lengths = batch.lengths[:, None]
    turned: Tensor = torch.where(places < lengths, lengths - 1 - places, places)
    return turned
