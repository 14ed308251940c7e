"""One step: a batch of papers in, a loss and the gradients of all weights out, whatever its size.

A batch that fits is encoded at once. A larger one goes in parts with the same result:

    a loss that is a sum over groups    part after part, gradients add up
    a loss over the whole batch         vectors first, without gradients; then the loss and its gradient at the vectors;
                                        then every part again, with gradients (Gao et al. 2021, gradient caching)

Several processes share the parts of a step. Dropout is drawn by seed, step and part, so that a part encoded twice is
the same twice, and a resumed run draws what an uninterrupted one would. Knows no optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from citeweave.encoders.batching import batches
from citeweave.encoders.model_folder import Settings
from citeweave.encoders.network import Network
from citeweave.randomness import stream
from citeweave.training.batches import Batch, split
from citeweave.training.data import Numbers, TrainingData
from citeweave.training.masked_language import MaskedLanguage
from citeweave.training.objective import Objective
from citeweave.training.processes import Processes
from citeweave.training.sentence_level.encoding import encode_rows
from citeweave.training.sentence_level.spans import paper_rows

_Part = TypeVar("_Part")


@dataclass(frozen=True, slots=True)
class Stepper:
    """See `backward`."""

    data: TrainingData
    network: Network
    settings: Settings
    objective: Objective
    micro_tokens: int
    half: bool
    """Whether the network computes in bfloat16."""

    seed: int
    processes: Processes = field(default_factory=Processes)
    language: MaskedLanguage | None = None
    """A second loss, on the words: see `masked_language.py`."""

    frozen: Tensor | None = None
    """Vectors of all papers, (papers, dimension), where the encoder is not trained: see `frozen.py`."""

    def backward(self, batch: Batch, step: int) -> Tensor:
        """The loss of a batch; its gradient is added to every parameter's, summed over all processes by the caller."""
        if self.frozen is not None:
            return self._of_frozen(batch)
        lengths = self.data.tokens.lengths()
        total = int(lengths[batch.papers].sum())
        budget = min(self.micro_tokens, -(-total // self.processes.count))
        # a paper of two groups would be read twice in parts, and its words would count twice
        if self.objective.splits and self.language is None:
            loss = self._by_groups(batch, split(batch, lengths, budget), step)
        elif total <= budget:
            loss = self._at_once(batch, batch, step, 0)
        else:
            loss = self._cached(batch, [batch.papers[rows] for rows in batches(lengths[batch.papers], budget)], step)
        return self.processes.sum(loss)

    def _of_frozen(self, batch: Batch) -> Tensor:
        """Nothing is read, so that every process has the whole batch, and a share of its gradient."""
        assert self.frozen is not None
        loss = self.objective(self.rows_of(batch.papers), batch, batch) / self.processes.count
        loss.backward()  # type: ignore[no-untyped-call]
        return self.processes.sum(loss.detach())

    def rows_of(self, papers: Numbers) -> Tensor:
        """Vectors of papers by an encoder that is not trained, (papers, dimension)."""
        assert self.frozen is not None
        return self.frozen[torch.from_numpy(papers).to(self.frozen.device)]

    def _by_groups(self, whole: Batch, parts: Sequence[Batch], step: int) -> Tensor:
        total = self._zero()
        for number, part in self._mine(parts):
            total += self._at_once(whole, part, step, number)
        return total

    def _at_once(self, whole: Batch, part: Batch, step: int, number: int) -> Tensor:
        """The share of the batch's loss that one part has; its gradient reaches the weights."""
        vectors = self.encode(part.papers, step, number)  # (rows of the part, dimension)
        loss = self.objective(vectors, part, whole)
        if self.language is not None:
            loss = loss + self._words(part.papers, whole.papers, step)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _cached(self, batch: Batch, parts: list[Numbers], step: int) -> Tensor:
        rows = paper_rows(self.data.sentences, batch.papers)

        def places(papers: Numbers) -> Tensor:
            return torch.from_numpy(rows.of(np.searchsorted(batch.papers, papers))).to(self.network.device)

        known = torch.zeros((rows.total, self.network.dimension), device=self.network.device)
        with torch.no_grad():
            for number, papers in self._mine(parts):
                known[places(papers)] = self.encode(papers, step, number)
        known = self.processes.sum(known).requires_grad_()  # (rows, dimension)
        loss = self.objective(known, batch, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self._share_heads()
        words = self._zero()
        for number, papers in self._mine(parts):
            vectors = self.encode(papers, step, number)  # (rows of the part, dimension)
            assert known.grad is not None
            product = (vectors * known.grad[places(papers)]).sum()  # its gradient is the chain rule's
            if self.language is not None:
                words += (guessed := self._words(papers, batch.papers, step)).detach()
                product = product + guessed
            product.backward()  # type: ignore[no-untyped-call]
        return loss.detach() / self.processes.count + words

    def _share_heads(self) -> None:
        """Every process has the whole gradient of the aspect heads; their sum must be that."""
        if self.objective.material.heads is not None:
            for weight in self.objective.material.heads.parameters():
                if weight.grad is not None:
                    weight.grad /= self.processes.count

    def _words(self, papers: Numbers, whole: Numbers, step: int) -> Tensor:
        assert self.language is not None
        with self.computing():
            return self.language.loss(papers, whole, step)

    def encode(self, papers: Numbers, step: int, number: int) -> Tensor:
        """Rows (rows, dimension) of different papers, with gradients where they are asked for: see `encode_rows`."""
        torch.manual_seed(int(stream(self.seed, "training", "dropout", step, number).integers(2**62)))
        with self.computing():
            return encode_rows(self.data, self.network, self.settings, papers)

    def computing(self) -> AbstractContextManager[object]:
        """What the network computes in."""
        return torch.autocast(self.network.device.partition(":")[0], torch.bfloat16) if self.half else nullcontext()

    def _mine(self, parts: Sequence[_Part]) -> Iterator[tuple[int, _Part]]:
        """The parts of this process, with their numbers among all."""
        return (
            (number, part) for number, part in enumerate(parts) if number % self.processes.count == self.processes.rank
        )

    def _zero(self) -> Tensor:
        return torch.zeros((), device=self.network.device)
