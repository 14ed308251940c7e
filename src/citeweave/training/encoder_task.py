"""The training task of an encoder: loss and gradients of a batch of any size, encoded in parts; validation.

A batch that fits is encoded at once. A larger one is encoded in parts with the same result:

    a loss that is a sum over groups    part after part, gradients add up
    a loss over the complete batch      vectors first, without gradients; then the loss and its gradient at the vectors;
                                        then every part again, with gradients (Gao et al. 2021, gradient caching)

Several processes share the papers of a step, each with about as many tokens; losses see the vectors of all of them. A
process with only one part keeps it between the two encodings of a loss over the complete batch. Dropout is drawn by
seed, step and part, so that a part encoded twice is the same twice, and a resumed run draws what an uninterrupted one
would. Has no optimizer (`trainer.py`).

Validation measures the network as it is; stopping early is decided in `trainer.py`:

    accuracy       share of held-out triplets whose positive is nearer than their negative, by L2 of their vectors, or
                   by the distance between papers that a loss on sentences trains; of samples with aspects, by cosine in
                   the space of their aspect
    loss           the losses of training on held-out samples, in batches of the same kind that no seed changes; only
                   where training.watch names it
    cite.map ...   pools of the corpus suite, ranked by cosine: the suite's own metric on fewer queries
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citeweave.core.errors import UserError
from citeweave.core.randomness import stream
from citeweave.encoders.batches import batches
from citeweave.encoders.model_folder import Settings
from citeweave.encoders.network import Network
from citeweave.evaluation.ranking_metrics import average_precision, rank_as_trec
from citeweave.training.data import (
    AnchorGroups,
    Batch,
    Batches,
    BatchRows,
    Numbers,
    RankingPools,
    TrainingData,
    build_batch,
    group_costs,
    paper_rows,
    split_batch,
)
from citeweave.training.distributed import ProcessGroup, balance_costs
from citeweave.training.objective import MaskedLanguage, Objective
from citeweave.training.options import ACCURACY, LOSS, TrainingOptions
from citeweave.training.paper_vectors import count_forwards, encode_rows
from citeweave.training.sentence_objective import BatchVectors, document_distances, trained_distance
from citeweave.vectors.vectors import unit_rows

_Part = TypeVar("_Part")


@dataclass(frozen=True, slots=True)
class EncodingTurn(Generic[_Part]):
    """Part of a batch that this process encodes in a training step, with its number among those of all processes."""

    number: int
    part: _Part | None
    """None where others encode one more part than this process."""

    forwards: int = 0
    """Minimum number of forwards of the network."""


@dataclass(frozen=True, slots=True)
class Stepper:
    """Takes training steps: loss and gradients of one batch at a time, for a network, its data and its objective."""

    data: TrainingData
    network: Network
    settings: Settings
    objective: Objective
    micro_tokens: int
    half: bool
    """Whether to compute in bfloat16."""

    seed: int
    processes: ProcessGroup = field(default_factory=ProcessGroup)
    language: MaskedLanguage | None = None
    """Second loss: masked language modeling."""

    frozen: Tensor | None = None
    """Vectors of all papers, (papers, dimension), where the encoder is not trained."""

    sharded: bool = False
    """Whether the network is sharded by FSDP: then all processes need equally many forwards."""

    def backward(self, batch: Batch, step: int) -> Tensor:
        """Return the loss of a step's batch and add its gradient to the parameters, not yet summed over processes."""
        if self.frozen is not None:
            return self._backward_frozen(batch)
        if not self.objective.terms:
            return self.processes.sum(self._backward_language(batch.papers, step))
        total = int(self.data.tokens.lengths()[batch.papers].sum())
        # in parts, a paper of two groups would be encoded twice and its masked tokens would count twice
        if self.objective.splits and self.language is None:
            loss = self._backward_by_groups(batch, step)
        elif self.processes.count == 1 and total <= self.micro_tokens:
            loss = self._backward_part(batch, batch, step, EncodingTurn(0, batch))
        else:
            loss = self._backward_cached(batch, step)
        return self.processes.sum(loss)

    def _backward_frozen(self, batch: Batch) -> Tensor:
        """Compute the loss on precomputed vectors: every process has the complete batch and a share of its gradient."""
        assert self.frozen is not None
        loss = self.objective(self.frozen_rows(batch.papers), batch, batch) / self.processes.count
        loss.backward()  # type: ignore[no-untyped-call]
        return self.processes.sum(loss.detach())

    def frozen_rows(self, papers: Numbers) -> Tensor:
        """Return the precomputed vectors of papers by a frozen encoder, (papers, dimension)."""
        assert self.frozen is not None
        return self.frozen[torch.from_numpy(papers).to(self.frozen.device)]

    def _backward_language(self, papers: Numbers, step: int) -> Tensor:
        """Sum loss and gradients of masked language modeling alone, which needs no vectors of papers."""
        total = self._zero()
        for turn in self._plan_turns(self._paper_parts(papers), np.asarray):
            assert turn.part is not None, "mlm is refused with sharded networks"
            torch.manual_seed(self._dropout_seed(step, turn.number))
            loss = self._masked_loss(turn.part, papers, step)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def _dropout_seed(self, step: int, number: int) -> int:
        return int(stream(self.seed, "training", "dropout", step, number).integers(2**62))

    def _backward_by_groups(self, batch: Batch, step: int) -> Tensor:
        """Sum loss and gradients over parts of complete groups."""
        total = self._zero()
        for turn in self._plan_turns(self._group_parts(batch), lambda part: part.papers):
            if turn.part is None:
                self._encode_placeholder(batch.papers, step, turn).backward()  # type: ignore[no-untyped-call]
            else:
                total += self._backward_part(batch, turn.part, step, turn)
        return total

    def _backward_part(self, complete: Batch, part: Batch, step: int, turn: EncodingTurn[Batch]) -> Tensor:
        """Return one part's share of the batch's loss, and add its gradient to the weights."""
        vectors = self.encode(part.papers, step, turn.number, turn.forwards)  # (rows of the part, dimension)
        loss = self.objective(vectors, part, complete)
        if self.language is not None:
            loss = loss + self._masked_loss(part.papers, complete.papers, step)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _backward_cached(self, batch: Batch, step: int) -> Tensor:
        """Compute a loss over the complete batch with cached gradients of its vectors (Gao et al. 2021)."""
        turns = self._plan_turns(self._paper_parts(batch.papers), np.asarray)
        keeps = len(turns) == 1
        with torch.set_grad_enabled(keeps):
            encoded = [self._encode_turn(batch.papers, step, turn) for turn in turns]
        cached = self._gather(batch.papers, turns, encoded).requires_grad_()  # (rows, dimension)
        loss = self.objective(cached, batch, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self._divide_head_gradients()
        masked = self._zero()
        for turn in turns:
            # (rows of the part, dimension)
            vectors = encoded[0] if keeps else self._encode_turn(batch.papers, step, turn)
            product = vectors.sum() * 0
            if turn.part is not None:
                assert cached.grad is not None
                product = (vectors * cached.grad[self._places(batch.papers, turn.part)]).sum()  # chain rule
                if self.language is not None:
                    loss_of_part = self._masked_loss(turn.part, batch.papers, step)
                    masked += loss_of_part.detach()
                    product = product + loss_of_part
            product.backward()  # type: ignore[no-untyped-call]
        return loss.detach() / self.processes.count + masked

    def encode_all(self, papers: Numbers) -> NDArray[np.float32]:
        """Encode distinct papers without gradients and dropout, shared by all processes; rows (rows, dimension)."""
        if self.frozen is not None:
            return self.frozen_rows(papers).cpu().numpy()
        turns = self._plan_turns(self._paper_parts(papers), np.asarray)
        with self.without_dropout():
            rows = self._gather(papers, turns, [self._encode_turn(papers, 0, turn) for turn in turns])
        return rows.cpu().numpy()

    def held_out_loss(self, rows: Tensor, batch: Batch) -> float:
        """Return the loss of a held-out batch with rows (rows, dimension); `mlm` masks what it masks at step 0."""
        with self.without_dropout():
            loss = float(self.objective(rows, batch, batch))
            if self.language is not None:
                parts = self._paper_parts(batch.papers)
                loss += sum(
                    float(self._masked_loss(part, batch.papers, 0))
                    for rank in range(self.processes.count)
                    for part in parts(rank)
                )
        return loss

    @contextmanager
    def without_dropout(self) -> Iterator[None]:
        """Run the network as it is used later: no dropout, no gradients."""
        was_training = self.network.model.training
        self.network.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.network.model.train(was_training)

    def _encode_turn(self, papers: Numbers, step: int, turn: EncodingTurn[Numbers]) -> Tensor:
        """Encode this process's part of the papers, or a placeholder where it has none."""
        if turn.part is None:
            return self._encode_placeholder(papers, step, turn)
        return self.encode(turn.part, step, turn.number, turn.forwards)

    def _encode_placeholder(self, papers: Numbers, step: int, turn: EncodingTurn[_Part]) -> Tensor:
        """Encode the shortest paper as often as other processes encode their parts, with weight 0."""
        shortest = papers[[np.argmin(self.data.tokens.lengths()[papers])]]  # (1,)
        return self.encode(shortest, step, turn.number, turn.forwards).sum() * 0

    def _gather(self, papers: Numbers, turns: Sequence[EncodingTurn[Numbers]], encoded: Sequence[Tensor]) -> Tensor:
        """Gather the rows (rows, dimension) of all papers from the parts of all processes."""
        total = int(paper_rows(self.data.sentences, papers).offsets[-1])
        gathered = torch.zeros((total, self.network.dimension), device=self.network.device)
        for turn, rows in zip(turns, encoded, strict=True):
            if turn.part is not None:
                gathered[self._places(papers, turn.part)] = rows.detach().float()
        return self.processes.sum(gathered)

    def _places(self, papers: Numbers, some: Numbers) -> Tensor:
        """Return the rows of some papers among the rows of all."""
        rows = paper_rows(self.data.sentences, papers)
        return torch.from_numpy(rows.places(np.searchsorted(papers, some))).to(self.network.device)

    def _divide_head_gradients(self) -> None:
        """Divide the aspect heads' gradients, which every process has in full, before they are summed."""
        if self.objective.inputs.heads is not None:
            for weight in self.objective.inputs.heads.parameters():
                if weight.grad is not None:
                    weight.grad /= self.processes.count

    def _masked_loss(self, papers: Numbers, complete: Numbers, step: int) -> Tensor:
        """Return some papers' share of the masked-language loss of the batch."""
        assert self.language is not None
        with self.in_precision():
            return self.language.loss(papers, complete, step)

    def encode(self, papers: Numbers, step: int, number: int, forwards: int = 0) -> Tensor:
        """Encode distinct papers in training precision with the dropout of this step and part; (rows, dimension)."""
        torch.manual_seed(self._dropout_seed(step, number))
        with self.in_precision():
            return encode_rows(self.data, self.network, self.settings, papers, min_forwards=forwards)

    def in_precision(self) -> AbstractContextManager[object]:
        """Return the context in which the network computes: bfloat16 autocast, or none."""
        return torch.autocast(self.network.device.partition(":")[0], torch.bfloat16) if self.half else nullcontext()

    def _group_parts(self, batch: Batch) -> Callable[[int], list[Batch]]:
        """Return a function from a rank to its parts of a batch: complete groups."""
        lengths = self.data.tokens.lengths()
        assigned = balance_costs(group_costs(batch.groups, lengths), self.processes.count)

        def parts(rank: int) -> list[Batch]:
            mine = batch if len(assigned) == 1 else build_batch(batch.groups.take(assigned[rank]))
            return split_batch(mine, lengths, self.micro_tokens) if len(mine.anchors) else []

        return parts

    def _paper_parts(self, papers: Numbers) -> Callable[[int], list[Numbers]]:
        """Return a function from a rank to its parts of the papers, of similar length."""
        lengths = self.data.tokens.lengths()[papers]
        assigned = balance_costs(lengths, self.processes.count)

        def parts(rank: int) -> list[Numbers]:
            mine = assigned[rank]
            return [papers[mine[rows]] for rows in batches(lengths[mine], self.micro_tokens)]

        return parts

    def _plan_turns(
        self, parts: Callable[[int], Sequence[_Part]], papers: Callable[[_Part], Numbers]
    ) -> list[EncodingTurn[_Part]]:
        """Plan the parts that this process encodes; a sharded network needs equal turns and forwards on all processes."""
        rank, count = self.processes.rank, self.processes.count
        mine = parts(rank)
        if not self.sharded:
            return [EncodingTurn(rank + count * at, part) for at, part in enumerate(mine)]
        with self.in_precision():
            forwards = [
                [count_forwards(self.data, self.network, papers(part)) for part in parts(each)] for each in range(count)
            ]
        turns = max(map(len, forwards))
        return [
            EncodingTurn(
                rank + count * at,
                mine[at] if at < len(mine) else None,
                max(each[at] for each in forwards if at < len(each)),
            )
            for at in range(turns)
        ]

    def _zero(self) -> Tensor:
        return torch.zeros((), device=self.network.device)


# Validation

BLOCK = 512
"""Triplets whose sentences are compared at a time."""

TRIPLETS = 5000
"""Maximum number of held-out triplets; the first ones, whose anchors were drawn at random."""


@dataclass(frozen=True, slots=True)
class Validation:
    """Validation of the network of a stepper on held-out triplets and pools."""

    stepper: Stepper
    held_out: Batches | None = None
    """Batches of held-out samples whose loss is measured; None = it is not."""

    distance: str = "cosine"
    """Distance by which pools are ranked: `cosine`, as in the corpus suite, or `l2`."""

    def evaluate(self) -> dict[str, float]:
        """Evaluate the network as it is; return every metric of the validation, each but the loss between 0 and 1."""
        data = self.stepper.data
        triplets, owner = held_out_triplets(data)  # (triplets, 3), (triplets,)
        pools, batches = data.pools, [] if self.held_out is None else list(self.held_out)
        read = [triplets.ravel(), *(pool.papers() for pool in pools.values()), *(batch.papers for batch in batches)]
        papers = np.unique(np.concatenate(read))
        if not len(papers):
            return {}
        rows, layout = self.stepper.encode_all(papers), paper_rows(data.sentences, papers)
        metrics = {}
        if batches:
            metrics[LOSS] = self._measure_loss(rows, layout, papers, batches)
        if len(triplets):
            metrics[ACCURACY] = self._measure_accuracy(rows, layout, np.searchsorted(papers, triplets), owner)
        vectors = rows[layout.own]  # (papers, dimension)
        precisions = {
            f"{name}.map": _mean_precision(vectors, papers, pool, distance=self.distance)
            for name, pool in pools.items()
        }
        return metrics | precisions

    def _measure_loss(
        self, rows: NDArray[np.float32], layout: BatchRows, papers: Numbers, batches: Sequence[Batch]
    ) -> float:
        """Measure the mean of the losses of held-out batches, each weighted by its size."""
        assert self.held_out is not None
        sizes = [self.held_out.count_units(batch) for batch in batches]
        losses = []
        for batch in batches:
            own = rows[layout.places(np.searchsorted(papers, batch.papers))]  # (rows of the batch, dimension)
            tensor = torch.from_numpy(own).to(self.stepper.network.device)
            losses.append(self.stepper.held_out_loss(tensor, batch))
        return float(np.average(losses, weights=sizes))

    def _measure_accuracy(
        self, rows: NDArray[np.float32], layout: BatchRows, triplets: Numbers, owner: Numbers
    ) -> float:
        """Measure the accuracy of triplets by the distance that the losses train."""
        if self.stepper.objective.inputs.heads is not None:
            return self._measure_accuracy_in_aspects(rows[layout.own], triplets, owner)
        distance = trained_distance(self.stepper.objective.terms)
        if distance is None:
            return _triplet_accuracy(rows[layout.own], triplets)
        scaled = rows / self.stepper.objective.inputs.scales.sentences
        vectors, nearer = BatchVectors(torch.from_numpy(scaled).to(self.stepper.network.device), layout), 0
        for start in range(0, len(triplets), BLOCK):
            anchors, positives, negatives = triplets[start : start + BLOCK].T
            near, far = (document_distances(vectors, anchors, others, distance) for others in (positives, negatives))
            nearer += int((near < far).sum())
        return nearer / len(triplets)

    def _measure_accuracy_in_aspects(self, vectors: NDArray[np.float32], triplets: Numbers, owner: Numbers) -> float:
        """Measure the accuracy of triplets in the space of their group's aspect, by cosine like their loss."""
        heads, groups = self.stepper.objective.inputs.heads, self.stepper.data.validation
        assert heads is not None and groups.aspects is not None
        aspects = groups.aspects[owner]  # (triplets,)
        tensor, correct = torch.from_numpy(vectors).to(self.stepper.network.device), 0.0
        for aspect in np.unique(aspects).tolist():
            mine = triplets[aspects == aspect]
            with torch.no_grad():
                projected = torch.nn.functional.normalize(heads.project(aspect, tensor), dim=1)  # (papers, size)
            correct += _triplet_accuracy(projected.float().cpu().numpy(), mine) * len(mine)
        return correct / len(triplets)


def held_out_batches(groups: AnchorGroups, options: TrainingOptions) -> Batches:
    """Return the batches of held-out samples whose loss is measured: the same for every seed, of limited size."""
    sizes = 1 + groups.positives.lengths() + groups.negatives.lengths()  # (groups,)
    count = max(1, int(np.searchsorted(np.cumsum(sizes), 3 * TRIPLETS, "right")))
    first = groups.take(np.arange(min(count, len(groups))))
    return Batches(first, dataclasses.replace(options, seed=0, share=1.0))


def held_out_triplets(data: TrainingData) -> tuple[Numbers, Numbers]:
    """Return the held-out triplets of validation, (triplets, 3), and the group of each, (triplets,).

    Samples without negatives get positives of other samples as negatives.
    """
    groups = data.validation
    if len(groups.negatives.papers):
        return groups.triplets()[:TRIPLETS], groups.triplet_owners()[:TRIPLETS]
    owner = groups.positives.owners()  # (pairs,)
    anchors, positives = groups.anchors[owner], groups.positives.papers
    others = np.roll(positives, -1 - len(positives) // 2)  # positives of an unrelated sample
    related = np.zeros(len(anchors), bool)
    if data.related is not None:
        known = data.related.take(anchors)
        related[known.owners()[known.papers == np.repeat(others, known.lengths())]] = True
    keep = np.flatnonzero(~related & (others != positives) & (others != anchors))[:TRIPLETS]
    return np.stack([anchors, positives, others], axis=1)[keep], owner[keep]


def _triplet_accuracy(vectors: NDArray[np.float32], triplets: Numbers) -> float:
    """Return the share of triplets whose positive is nearer by L2 than their negative; a tie is a miss.

    >>> _triplet_accuracy(np.array([[0.0], [1.0], [3.0]], np.float32), np.array([[0, 1, 2], [0, 2, 1]]))
    0.5
    """
    anchors, positives, negatives = (vectors[column] for column in triplets.T)  # (triplets, dimension) each
    near, far = (np.linalg.norm(anchors - others, axis=1) for others in (positives, negatives))
    return float((near < far).mean())


def _mean_precision(
    vectors: NDArray[np.float32], papers: Numbers, pools: RankingPools, *, distance: str = "cosine"
) -> float:
    """Return the mean average precision of the pools' rankings, by cosine or by `l2`."""
    candidates = np.searchsorted(papers, pools.candidates.papers)
    queries = np.repeat(np.searchsorted(papers, pools.queries), pools.candidates.lengths())
    if distance == "l2":
        scores = -np.linalg.norm(vectors[queries] - vectors[candidates], axis=1)  # (pairs,)
    else:
        unit = unit_rows(vectors)
        scores = np.einsum("pd,pd->p", unit[queries], unit[candidates])  # (pairs,)
    grades, offsets = pools.relevant.astype(np.int64), pools.candidates.offsets
    ranked = rank_as_trec(scores, grades, offsets, ties=np.arange(len(scores)))
    return float(average_precision(ranked).mean())


class EncoderTask:
    """Training task of an encoder: batches of samples, validation on held-out ones."""

    def __init__(self, stepper: Stepper, options: TrainingOptions) -> None:
        self.stepper, self.processes = stepper, stepper.processes
        self._batches = Batches(stepper.data.groups, options)
        held_out = held_out_batches(stepper.data.validation, options) if options.watch == LOSS else None
        self._validation = Validation(stepper, held_out)

    @property
    def steps_per_epoch(self) -> int:
        if not self._batches.units:
            raise UserError(
                "there is no sample with a positive and a negative to train on, or no complete block of triplets; mine "
                "with other rules"
            )
        return self._batches.per_epoch

    @property
    def dropped(self) -> int:
        """Number of triplets in incomplete blocks that are not trained on."""
        return self._batches.dropped

    @property
    def memory_advice(self) -> str:
        tokens = self.stepper.micro_tokens
        return f"{tokens:,} tokens are encoded at a time: resume with --set training.micro_tokens={tokens // 2}"

    def backward(self, step: int) -> Tensor:
        batch = self._batches.at(step)
        self.stepper.network.model.train()
        return self.stepper.backward(batch, step)

    def validate(self) -> dict[str, float]:
        return self._validation.evaluate()
