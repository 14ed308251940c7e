"""SciDocs' recommendation network: eleven features, 50 hidden units (relu, dropout 0.4), one score (sigmoid).

    ranker = train_ranker(triplets, val_triplets, seed=7)
    ranker.scores(features)    ->    (pairs,) between 0 and 1, the clicked paper's should be the highest

It learns from triplets: the clicked paper must score at least 0.1 more than another one of the same list. Settings are
those of allenai/scidocs (`train_similar_papers_model.json`, AllenNLP 0.9): batches of 128 in a new order every epoch,
5 epochs, Adadelta (rho 0.95, rate 1), every partial derivative cut to [-5, 5], weights begun evenly within
1 / sqrt(inputs). The epoch with the lowest validation loss is kept, the loss being the mean over batches.

The peer's numbers cannot be had to the last digit: there the random numbers also serve to begin an embedding of title
words that is never used. The same seed gives the same ranker here, whatever the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import UserError
from citeweave.extras import require
from citeweave.progress import QUIET, Reporter
from citeweave.randomness import stream

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

_BLOCK = 1 << 14
"""Pairs scored at a time; changes no value."""


@dataclass(frozen=True)
class Triplets:
    """Pairs of papers from one list, of which the first was clicked."""

    clicked: Floats
    """(triplets, 11)"""

    others: Floats
    """(triplets, 11)"""

    propensities: Floats
    """(triplets,) what each loss is divided by."""

    def __len__(self) -> int:
        return len(self.clicked)


@dataclass(frozen=True)
class RankerRecipe:
    """The settings of the network and of its training."""

    epochs: int = 5
    batch: int = 128
    hidden: int = 50
    dropout: float = 0.4
    margin: float = 0.1
    rho: float = 0.95
    clip: float = 5.0
    patience: int = 10
    """Stop after so many epochs without a lower validation loss."""


@dataclass(frozen=True)
class Ranker:
    """A trained network: plain arrays, needs no torch."""

    inner: Doubles
    """(features, hidden)"""

    inner_bias: Doubles
    """(hidden,)"""

    outer: Doubles
    """(hidden,)"""

    outer_bias: float
    epoch: int
    """The epoch that was kept, the first is 1."""

    train_losses: tuple[float, ...]
    val_losses: tuple[float, ...]
    """One an epoch; none without validation triplets."""

    def scores(self, features: NDArray[Any]) -> Doubles:
        """(pairs,) the score of every row of (pairs, features). Equal rows have equal scores, to the last bit."""
        assert features.shape[1] == len(self.inner), features.shape
        out = np.empty(len(features), np.float64)
        for start in range(0, len(features), _BLOCK):
            block = features[start : start + _BLOCK].astype(np.float64)
            hidden = np.tile(self.inner_bias, (len(block), 1))  # (block, hidden)
            for column, weights in zip(block.T, self.inner, strict=True):
                hidden += column[:, None] * weights  # a matrix product would sum in an order that depends on the block
            total = (np.maximum(hidden, 0) * self.outer).sum(axis=1) + self.outer_bias
            out[start : start + _BLOCK] = 1 / (1 + np.exp(-np.clip(total, -700, 700)))
        return out


def train_ranker(
    train: Triplets,
    val: Triplets | None = None,
    *,
    seed: int = 7,
    recipe: RankerRecipe | None = None,
    reporter: Reporter = QUIET,
) -> Ranker:
    """Learns the order of clicked and other papers."""
    recipe = recipe or RankerRecipe()
    if not len(train):
        raise UserError("the training clicks hold no list of two papers or more, so there is no order to learn")
    with _one_thread() as torch, reporter.task("training the ranker", recipe.epochs, "epochs") as advance:
        training = _Training(torch, train, recipe, seed)
        best, train_losses, val_losses = training.weights(), list[float](), list[float]()
        kept, lowest = 0, math.inf
        for epoch in range(1, recipe.epochs + 1):
            train_losses.append(training.run_epoch(epoch))
            if val is not None and len(val):
                val_losses.append(training.loss_of(val))
            if not val_losses or val_losses[-1] < lowest:
                best, kept, lowest = training.weights(), epoch, val_losses[-1] if val_losses else math.inf
            advance(1)
            if epoch - kept >= recipe.patience:
                break
    inner, inner_bias, outer, outer_bias = best
    return Ranker(inner, inner_bias, outer[:, 0], float(outer_bias[0]), kept, tuple(train_losses), tuple(val_losses))


@contextmanager
def _one_thread() -> Iterator[Any]:
    """torch on one thread: as fast for so small a network, and sums are made in the same order on every machine."""
    torch = require("torch", extra="minilm")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield torch
    finally:
        torch.set_num_threads(threads)


class _Training:
    """The network while it learns. Draws come from streams of its own: torch's global generator is left alone."""

    def __init__(self, torch: Any, data: Triplets, recipe: RankerRecipe, seed: int) -> None:
        self._torch, self._recipe, self._seed = torch, recipe, seed
        self._data = self._tensors(data)
        draw = stream(seed, "click ranker", "start")
        shapes = [(data.clicked.shape[1], recipe.hidden), (recipe.hidden, 1)]
        self._parameters = []
        for inputs, outputs in shapes:
            bound = 1 / math.sqrt(inputs)
            for shape in [(inputs, outputs), (outputs,)]:
                start = draw.uniform(-bound, bound, shape).astype(np.float32)
                self._parameters.append(torch.from_numpy(start).requires_grad_())
        self._optimizer = torch.optim.Adadelta(self._parameters, lr=1.0, rho=recipe.rho, eps=1e-6, foreach=False)

    def weights(self) -> list[Doubles]:
        return [tensor.detach().numpy().astype(np.float64) for tensor in self._parameters]

    def run_epoch(self, epoch: int) -> float:
        """One pass over the triplets; the mean of the batches' losses."""
        draw = stream(self._seed, "click ranker", "epoch", epoch)
        order = self._torch.from_numpy(draw.permutation(len(self._data[0])))
        losses = []
        for rows in order.split(self._recipe.batch):
            loss = self._loss([part[rows] for part in self._data], draw)
            self._optimizer.zero_grad()
            loss.backward()
            self._torch.nn.utils.clip_grad_value_(self._parameters, self._recipe.clip)
            self._optimizer.step()
            losses.append(loss.item())
        return float(np.mean(losses))

    def loss_of(self, data: Triplets) -> float:
        """The mean of the batches' losses, without dropout."""
        batches = zip(*(part.split(self._recipe.batch) for part in self._tensors(data)), strict=True)
        with self._torch.no_grad():
            return float(np.mean([self._loss(list(batch), None).item() for batch in batches]))

    def _tensors(self, data: Triplets) -> list[Any]:
        parts = (data.clicked, data.others, data.propensities)
        return [self._torch.from_numpy(np.ascontiguousarray(part, np.float32)) for part in parts]

    def _loss(self, batch: list[Any], draw: np.random.Generator | None) -> Any:
        """Mean of max(0, margin - (score of clicked - score of other)) / propensity."""
        clicked, others, propensities = batch
        scores = self._scores(self._torch.cat([clicked, others]), draw)  # (2 * batch,)
        gaps = scores[: len(clicked)] - scores[len(clicked) :]
        return ((self._recipe.margin - gaps).clamp(min=0) / propensities).mean()

    def _scores(self, features: Any, draw: np.random.Generator | None) -> Any:
        inner, inner_bias, outer, outer_bias = self._parameters
        hidden = (features @ inner + inner_bias).relu()  # (rows, hidden)
        if draw is not None and self._recipe.dropout > 0:
            stays = draw.random(tuple(hidden.shape), np.float32) >= self._recipe.dropout
            hidden = hidden * self._torch.from_numpy(stays) / (1 - self._recipe.dropout)
        return (hidden @ outer + outer_bias).sigmoid()[:, 0]
