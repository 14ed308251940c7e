"""Guessing hidden words beside the main loss: SciNCL's joint training with a masked language model.

A head in BERT's form (dense, gelu, layer norm, the word embeddings as the last layer) is trained along and left out of
the saved encoder. Which tokens are hidden depends on seed, step and paper alone, so a batch may go in parts.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from citeweave.encoders.network import Network
from citeweave.errors import UserError
from citeweave.randomness import stream
from citeweave.training.data import Numbers, TrainingData
from citeweave.training.losses import masked_language
from citeweave.training.masking import MaskedTokens, mask_tokens


class Head(nn.Module):
    """States of tokens (tokens, dimension) -> scores of words (tokens, vocabulary); Devlin et al. 2019 (BERT)."""

    def __init__(self, words: nn.Embedding) -> None:
        super().__init__()
        dimension = words.embedding_dim
        self.dense = nn.Linear(dimension, dimension)
        self.norm = nn.LayerNorm(dimension)
        self.bias = nn.Parameter(torch.zeros(words.num_embeddings))
        self._words = [words]  # in a list: its weights belong to the encoder, not to this head

    def forward(self, states: Tensor) -> Tensor:
        hidden = self.norm(nn.functional.gelu(self.dense(states)))  # (tokens, dimension)
        return nn.functional.linear(hidden, self._words[0].weight, self.bias)


class MaskedLanguage:
    """The loss of guessing some tokens of each paper; `weight` times its mean over all hidden tokens of a batch."""

    def __init__(
        self,
        data: TrainingData,
        network: Network,
        *,
        special: list[int],
        mask: int,
        weight: float,
        share: float,
        seed: int,
    ) -> None:
        self.data, self.network, self.weight = data, network, weight
        self._special, self._mask, self._share, self._seed = special, mask, share, seed
        words = network.model.get_input_embeddings()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.head = Head(words).to(network.device)

    def loss(self, papers: Numbers, whole: Numbers, step: int) -> Tensor:
        """The share of some papers in the loss of the whole batch."""
        hidden = [self._hide(int(paper), step) for paper in papers]
        total = sum(len(self._hide(int(paper), step).places) for paper in whole)
        states = self.network.layers_with_gradients([entry.tokens for entry in hidden])  # (papers, tokens, dimension)
        owner = np.repeat(np.arange(len(hidden)), [len(entry.places) for entry in hidden])
        places = np.concatenate([entry.places for entry in hidden])
        targets = torch.from_numpy(np.concatenate([entry.targets for entry in hidden])).to(states.device)
        logits = self.head(states[torch.from_numpy(owner), torch.from_numpy(places)])  # (hidden, vocabulary)
        return self.weight * masked_language(logits, targets) * (len(places) / max(1, total))

    def _hide(self, paper: int, step: int) -> MaskedTokens:
        (tokens,) = self.data.tokens.take(np.array([paper]))
        drawn = stream(self._seed, "training", "masking", step, paper)
        vocabulary = self.network.model.config.vocab_size
        return mask_tokens(tokens, self._special, vocabulary, self._mask, drawn, share=self._share)


def mask_token(tokenizer: object, name: str) -> int:
    """The id of the tokenizer's mask, without which nothing can be hidden."""
    found = getattr(tokenizer, "mask_token_id", None)
    if found is None:
        raise UserError(
            f"the tokenizer of {name} has no mask token, which the mlm loss needs; take another start model"
        )
    return int(found)
