"""Steps of one run from the start's weights, and weights between the two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from citeweave.training.finishing import mix_with_start
from citeweave.training.partial import choose_parts
from citeweave.training.schedules import factor, warmup_steps
from weaving.batches import Batch, draw
from weaving.bundle import Bundle, Ints
from weaving.losses import batch_loss
from weaving.network import StartedNetwork, parts_of
from weaving.plan import Plan
from weaving.relatives import allowed_pairs
from weaving.signals import Signals
from weaving.teachers import Teachers

CLIP = 1.0


class Trainer:
    """Holds what the runs of one bundle share."""

    def __init__(self, bundle: Bundle, network: StartedNetwork) -> None:
        self.bundle, self.network = bundle, network
        self.signals, self.teachers = Signals(bundle), Teachers(bundle, network)

    def train(self, plan: Plan, seed: int) -> dict[str, Tensor]:
        """The weights after all steps; by the same seed the same batches."""
        if plan.distill or plan.topical or plan.hard:
            _ = self.teachers.vectors  # the network reads them at its start
        network, model = self.network, self.network.network.model
        network.load(network.start)
        torch.manual_seed(seed)
        random = np.random.default_rng([seed, 7])
        trained = [weight for _, weight in choose_parts(model, plan.parts)]
        optimizer = torch.optim.AdamW(trained, lr=plan.rate, weight_decay=0.0, fused=network.device == "cuda")
        warmup = max(1, warmup_steps(plan.warmup, plan.steps))
        model.train()
        for step in range(plan.steps):
            for group in optimizer.param_groups:
                group["lr"] = plan.rate * factor("linear", step, plan.steps, warmup=warmup)
            self._backward(plan, draw(plan, self.signals, self.teachers, random))
            torch.nn.utils.clip_grad_norm_(trained, CLIP, error_if_nonfinite=True)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        model.eval()
        return network.weights()

    def _backward(self, plan: Plan, batch: Batch) -> None:
        """Add the gradients of a batch's loss to the weights'."""
        sequences = [
            self.bundle.view(row, view, plan.cut)
            for row, view in zip(batch.papers.tolist(), batch.views.tolist(), strict=True)
        ]
        loss = self._loss(plan, batch)
        lengths = np.array([len(each) for each in sequences])
        parts = [
            [sequences[row] for row in rows] for rows in parts_of(np.arange(len(lengths)), lengths, plan.micro_tokens)
        ]
        if len(parts) == 1:
            loss(self.network.texts(parts[0])).backward()  # type: ignore[no-untyped-call]
        else:
            cached_backward(self.network.texts, parts, loss)

    def _loss(self, plan: Plan, batch: Batch) -> Callable[[Tensor], Tensor]:
        """The loss as a function of the texts' vectors."""
        allowed = allowed_pairs(batch.papers, self.bundle.keys, self.bundle.memberships, masked=plan.masked)
        there, rows = self.network.on_device(allowed), self.network.on_device(batch.papers)
        start = self.teachers.vectors[rows] if plan.distill else None
        graph = self.teachers.graph[rows] if plan.graph else None
        return lambda vectors: batch_loss(plan, vectors, batch.pairs, there, start, graph)


def cached_backward(
    read: Callable[[Sequence[Ints]], Tensor], parts: Sequence[Sequence[Ints]], loss: Callable[[Tensor], Tensor]
) -> None:
    """A loss over all texts, whose parts are read twice; Gao et al. 2021, gradient caching.

    Vectors first, without gradients; then the loss and its gradient at the vectors; then every part again, with
    gradients and the same dropout.
    """
    on_card = torch.cuda.is_available()
    states = torch.get_rng_state(), torch.cuda.get_rng_state() if on_card else None
    with torch.no_grad():
        read_once = [read(part) for part in parts]
    vectors = torch.cat(read_once).requires_grad_()  # (texts, d)
    loss(vectors).backward()  # type: ignore[no-untyped-call]
    assert vectors.grad is not None
    torch.set_rng_state(states[0])
    if states[1] is not None:
        torch.cuda.set_rng_state(states[1])
    for part, gradient in zip(parts, torch.split(vectors.grad, [len(part) for part in parts]), strict=True):
        read(part).backward(gradient)  # type: ignore[no-untyped-call]


def between(start: Mapping[str, Tensor], trained: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """share * start + (1 - share) * trained; Wortsman et al. 2022 (WiSE-FT), equation 1.

    >>> between({"w": torch.tensor([2.0])}, {"w": torch.tensor([4.0])}, 0.25)["w"].item()
    3.5
    """
    found = {name: weight.clone() for name, weight in trained.items()}
    mix_with_start(found, start, share)
    return found
