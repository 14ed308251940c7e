"""Vectors of texts from a network and its settings, with gradients where they are asked for.

    vectors = text_vectors(network, [tokens, ...], Settings("mean", 256))       (texts, dimension)

Used under `torch.inference_mode` by encoders and with gradients by training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from citeweave.encoders.model_folder import ASPECT_WORDS, Settings
from citeweave.encoders.network import Network
from citeweave.encoders.pooling import pool
from citeweave.encoders.reading import Tokens
from citeweave.encoders.saved.layer_mix import PARAMETER
from citeweave.encoders.sentence_attention import attended_vectors

if TYPE_CHECKING:
    from torch import Tensor


def text_vectors(network: Network, batch: Sequence[Tokens], settings: Settings) -> Tensor:
    """Vectors (texts, dimension) of texts, each of one token or more, as the settings pool and normalize them."""
    if settings.pooling in ("layers", "mix"):
        layers, mask = network.padded(batch, every=True)
        vectors = pool(layers, mask, settings.pooling, getattr(network.model, PARAMETER, None))
    elif settings.pooling == ASPECT_WORDS:
        vectors = attended_vectors(network, batch)
    elif settings.pooling == "cls":
        vectors = network.states(batch, first_only=True).cls()
    else:
        vectors = network.states(batch).mean()
    return normalized(vectors, settings)


def normalized(vectors: Tensor, settings: Settings) -> Tensor:
    """Vectors (texts, dimension) at length 1 where the settings say so."""
    return vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-12) if settings.normalize else vectors
