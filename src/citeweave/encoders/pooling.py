"""From the states of a text's tokens to its one vector.

    cls      the state of the first token
    mean     the mean over the tokens, special ones included, padding not (as in sentence-transformers)
    layers   the mean over tokens and over all layers, the token embeddings among them (Peters et al. 2018, ELMo,
             with equal weights; the ELMo baseline of Cohan et al. 2020, SPECTER, appendix A)
    mix      the same with a learned weight a layer, see `layer_mix.py`
    aspect_words   sentences weighed by the words for aspects, see `sentence_attention.py`

`text_vectors` goes from tokens to vectors, with gradients where they are asked for; all else are functions of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from citeweave.encoders.model_folder import ASPECT_WORDS
from citeweave.encoders.saved.layer_mix import mix_layers
from citeweave.extras import require

if TYPE_CHECKING:
    from torch import Tensor


POOLINGS = ("cls", "mean", "layers", "mix", ASPECT_WORDS)


class States(Protocol):
    """Last states of the tokens of some texts, padded or packed."""

    def cls(self) -> Tensor:
        """States of the first tokens, (texts, dimension) float32."""

    def mean(self) -> Tensor:
        """Means over the tokens, (texts, dimension) float32."""


class TokenStates(States, Protocol):
    """States of every token, not only what is made of them."""

    def spans(self, texts: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Tensor:
        """Means over spans of tokens, each of one token or more, (spans, dimension) float32.

        Span i is from token starts[i] up to ends[i] of text texts[i]; spans come in order and do not overlap.
        """

    def tokens(self) -> Tensor:
        """States of all tokens, text after text without padding, (tokens, dimension)."""


@dataclass(frozen=True, slots=True)
class PaddedStates:
    """States (texts, tokens, dimension) and their mask (texts, tokens)."""

    states: Tensor
    mask: Tensor

    def cls(self) -> Tensor:
        return first_token(self.states)

    def mean(self) -> Tensor:
        return mean_tokens(self.states, self.mask)

    def spans(self, texts: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Tensor:
        before = texts * self.states.shape[1]  # (spans,)
        return mean_spans(self.states.flatten(0, 1), before + starts, before + ends)

    def tokens(self) -> Tensor:
        return self.states[self.mask.bool()]


def pool(layers: tuple[Tensor, ...], mask: Tensor, pooling: str, mix: Tensor | None = None) -> Tensor:
    """Vectors (texts, dimension) of the layers that a network gave; for cls and mean the last one counts."""
    if pooling == "mix":
        assert mix is not None
        return mean_tokens(mix_layers(layers, mix), mask)
    if pooling == "layers":
        return mean_tokens(mean_layers(layers), mask)
    return mean_tokens(layers[-1], mask) if pooling == "mean" else first_token(layers[-1])


def first_token(states: Tensor) -> Tensor:
    """States (texts, tokens, dimension) -> (texts, dimension); texts are padded at their end."""
    return states[:, 0].float()


def mean_tokens(states: Tensor, mask: Tensor) -> Tensor:
    """States (texts, tokens, dimension), mask (texts, tokens) with 1 at a token -> (texts, dimension)."""
    weights = mask.unsqueeze(-1).float()  # (texts, tokens, 1)
    return (states.float() * weights).sum(dim=1) / weights.sum(dim=1)  # every text has a token


def mean_spans(stream: Tensor, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Tensor:
    """States (tokens, dimension), spans in order and apart from each other -> (spans, dimension)."""
    torch = require("torch", extra="minilm")
    if not len(starts):
        return stream[:0].float()
    # every second segment is a span, the others are what lies between them
    bounds = np.concatenate([[0], np.stack([starts, ends], axis=1).ravel(), [len(stream)]])  # (2 spans + 2,)
    offsets = torch.from_numpy(bounds).to(stream.device, non_blocking=True)
    sums = torch.segment_reduce(stream.float(), "sum", offsets=offsets, axis=0)[1::2]  # (spans, dimension)
    means: Tensor = sums / offsets.diff()[1::2, None]
    return means


def mean_layers(layers: tuple[Tensor, ...]) -> Tensor:
    """The mean of layers of one shape, (texts, tokens, dimension), without a copy of all of them."""
    total = layers[0].float().clone()  # (texts, tokens, dimension)
    for layer in layers[1:]:
        total += layer
    return total / len(layers)
