"""Which tokens a language model has to guess. Works on plain arrays; does not read texts and knows no tokenizer.

>>> from citeweave.core.randomness import stream
>>> masked = mask_tokens(np.arange(10, 30), special=[10, 29], vocabulary=100, mask_id=4, generator=stream(5, "masking"))
>>> masked.targets.tolist(), masked.tokens[masked.places].tolist()
([11, 12, 24, 26, 27, 28], [5, 4, 4, 15, 4, 4])

Guessing hidden words beside the main loss: SciNCL's joint training with a masked language model.

A head in BERT's form (dense, gelu, layer norm, the word embeddings as the last layer) is trained along and left out of
the saved encoder. Which tokens are hidden depends on seed, step and paper alone, so a batch may go in parts.

One step: a batch of papers in, a loss and the gradients of all weights out, whatever its size.

A batch that fits is encoded at once. A larger one goes in parts with the same result:

    a loss that is a sum over groups    part after part, gradients add up
    a loss over the whole batch         vectors first, without gradients; then the loss and its gradient at the vectors;
                                        then every part again, with gradients (Gao et al. 2021, gradient caching)

Several processes share the papers of a step, each about as many tokens; losses see the vectors of all of them. A process
whose papers are one part alone keeps it between the two readings of a loss over the whole batch. Dropout is drawn by
seed, step and part, so that a part encoded twice is the same twice, and a resumed run draws what an uninterrupted one
would. Knows no optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from citeweave.core.errors import UserError
from citeweave.core.randomness import stream
from citeweave.encoders.batches import batches
from citeweave.encoders.model_folder import Settings
from citeweave.encoders.network import Network
from citeweave.training.batches import Batch, assemble, deal, group_costs, split
from citeweave.training.data import Numbers, TrainingData, paper_rows
from citeweave.training.distributed import Processes
from citeweave.training.losses import masked_language
from citeweave.training.objective import Objective
from citeweave.training.sentence_objective import count_readings, encode_rows

MASKED, RANDOM = 0.8, 0.1
"""Of the chosen tokens: replaced by the mask, by any token; the rest stays as it is."""


class MaskedTokens(NamedTuple):
    """Tokens with some hidden, and what they were."""

    tokens: NDArray[Any]
    """(n,) what the model reads."""

    places: NDArray[np.int64]
    """(T,) where it has to guess, ascending."""

    targets: NDArray[np.int64]
    """(T,) what it has to guess."""


def mask_tokens(
    tokens: NDArray[Any],
    special: Sequence[int] | NDArray[Any],
    vocabulary: int,
    mask_id: int,
    generator: np.random.Generator,
    *,
    share: float = 0.15,
) -> MaskedTokens:
    """Choose each token with chance `share`; 80 % become the mask, 10 % any token, 10 % stay; Devlin et al. 2019 (BERT).

    tokens (n,) of one text or of many, one behind the other. `special` are the ids that are never chosen ([CLS], [SEP],
    padding). `vocabulary` is the number of tokens a random one is drawn from. `tokens` is not changed.
    """
    if not 0 <= share <= 1:
        raise UserError(f"share of masked tokens is {share}; it must be from 0 to 1, such as 0.15")
    # drawn for every token, so that what is special moves no other token's draw
    chance, fate = generator.random((2, len(tokens)))  # (n,) each
    places = np.flatnonzero((chance < share) & ~np.isin(tokens, special))  # (T,)
    other = generator.integers(vocabulary, size=len(tokens))[places]  # (T,)
    targets = tokens[places].astype(np.int64)  # (T,)
    fate = fate[places]  # (T,)
    hidden = tokens.copy()  # (n,)
    hidden[places] = np.select(
        [fate < MASKED, fate < MASKED + RANDOM], [np.full_like(targets, mask_id), other], targets
    )
    return MaskedTokens(hidden, places, targets)


# Guessing hidden words beside the main loss: SciNCL's joint training with a masked language model.


class MaskedLanguageHead(nn.Module):
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
            self.head = MaskedLanguageHead(words).to(network.device)

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


# One step: a batch of papers in, a loss and the gradients of all weights out, whatever its size.

_Part = TypeVar("_Part")


@dataclass(frozen=True, slots=True)
class Turn(Generic[_Part]):
    """A part that this process reads, by its number among those of all."""

    number: int
    part: _Part | None
    """None where others read one more than this process."""

    readings: int = 0
    """How often the network must read, at least."""


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

    sharded: bool = False
    """Whether no process holds the whole network: then all of them read equally often, see `sharding.py`."""

    def backward(self, batch: Batch, step: int) -> Tensor:
        """The loss of a batch; its gradient is added to every parameter's, summed over all processes by the caller."""
        if self.frozen is not None:
            return self._of_frozen(batch)
        total = int(self.data.tokens.lengths()[batch.papers].sum())
        # a paper of two groups would be read twice in parts, and its words would count twice
        if self.objective.splits and self.language is None:
            loss = self._by_groups(batch, step)
        elif self.processes.count == 1 and total <= self.micro_tokens:
            loss = self._at_once(batch, batch, step, Turn(0, batch))
        else:
            loss = self._cached(batch, step)
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

    def _by_groups(self, batch: Batch, step: int) -> Tensor:
        total = self._zero()
        for turn in self._turns_of(self._groups_of(batch), _papers_of):
            if turn.part is None:
                self._read_for_nothing(batch.papers, step, turn).backward()  # type: ignore[no-untyped-call]
            else:
                total += self._at_once(batch, turn.part, step, turn)
        return total

    def _at_once(self, whole: Batch, part: Batch, step: int, turn: Turn[Batch]) -> Tensor:
        """The share of the batch's loss that one part has; its gradient reaches the weights."""
        vectors = self.encode(part.papers, step, turn.number, turn.readings)  # (rows of the part, dimension)
        loss = self.objective(vectors, part, whole)
        if self.language is not None:
            loss = loss + self._words(part.papers, whole.papers, step)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _cached(self, batch: Batch, step: int) -> Tensor:
        turns = self._turns_of(self._lists_of(batch.papers), np.asarray)
        keeps = len(turns) == 1
        with torch.set_grad_enabled(keeps):
            read = [self._read(batch.papers, step, turn) for turn in turns]
        known = self._gather(batch.papers, turns, read).requires_grad_()  # (rows, dimension)
        loss = self.objective(known, batch, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self._share_heads()
        words = self._zero()
        for turn in turns:
            vectors = read[0] if keeps else self._read(batch.papers, step, turn)  # (rows of the part, dimension)
            if turn.part is None:
                product = vectors.sum() * 0
            else:
                assert known.grad is not None
                product = (vectors * known.grad[self._places(batch.papers, turn.part)]).sum()  # the chain rule's
            if self.language is not None and turn.part is not None:
                words += (guessed := self._words(turn.part, batch.papers, step)).detach()
                product = product + guessed
            product.backward()  # type: ignore[no-untyped-call]
        return loss.detach() / self.processes.count + words

    def read(self, papers: Numbers) -> Tensor:
        """Rows (rows, dimension) of different papers by the network as it is, without gradients; all processes share
        the reading."""
        turns = self._turns_of(self._lists_of(papers), np.asarray)
        with torch.no_grad():
            return self._gather(papers, turns, [self._read(papers, 0, turn) for turn in turns])

    def _read(self, papers: Numbers, step: int, turn: Turn[Numbers]) -> Tensor:
        if turn.part is None:
            return self._read_for_nothing(papers, step, turn)
        return self.encode(turn.part, step, turn.number, turn.readings)

    def _read_for_nothing(self, papers: Numbers, step: int, turn: Turn[_Part]) -> Tensor:
        """The shortest paper, as often as others read their parts; it counts nothing."""
        shortest = papers[[np.argmin(self.data.tokens.lengths()[papers])]]  # (1,)
        return self.encode(shortest, step, turn.number, turn.readings).sum() * 0

    def _gather(self, papers: Numbers, turns: Sequence[Turn[Numbers]], read: Sequence[Tensor]) -> Tensor:
        """Rows (rows, dimension) of all papers, of which every process has read some."""
        total = paper_rows(self.data.sentences, papers).total
        known = torch.zeros((total, self.network.dimension), device=self.network.device)
        for turn, rows in zip(turns, read, strict=True):
            if turn.part is not None:
                known[self._places(papers, turn.part)] = rows.detach().float()
        return self.processes.sum(known)

    def _places(self, papers: Numbers, some: Numbers) -> Tensor:
        """Where the rows of some papers lie among those of all."""
        rows = paper_rows(self.data.sentences, papers)
        return torch.from_numpy(rows.of(np.searchsorted(papers, some))).to(self.network.device)

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

    def encode(self, papers: Numbers, step: int, number: int, readings: int = 0) -> Tensor:
        """Rows (rows, dimension) of different papers, with gradients where they are asked for: see `encode_rows`."""
        torch.manual_seed(int(stream(self.seed, "training", "dropout", step, number).integers(2**62)))
        with self.computing():
            return encode_rows(self.data, self.network, self.settings, papers, readings=readings)

    def computing(self) -> AbstractContextManager[object]:
        """What the network computes in."""
        return torch.autocast(self.network.device.partition(":")[0], torch.bfloat16) if self.half else nullcontext()

    def _groups_of(self, batch: Batch) -> Callable[[int], list[Batch]]:
        """The parts of every process: whole groups."""
        lengths = self.data.tokens.lengths()
        dealt = deal(group_costs(batch.groups, lengths), self.processes.count)

        def parts(rank: int) -> list[Batch]:
            mine = batch if len(dealt) == 1 else assemble(batch.groups.take(dealt[rank]))
            return split(mine, lengths, self.micro_tokens) if len(mine.anchors) else []

        return parts

    def _lists_of(self, papers: Numbers) -> Callable[[int], list[Numbers]]:
        """The same of papers, alike in length."""
        lengths = self.data.tokens.lengths()[papers]
        dealt = deal(lengths, self.processes.count)

        def parts(rank: int) -> list[Numbers]:
            mine = dealt[rank]
            return [papers[mine[rows]] for rows in batches(lengths[mine], self.micro_tokens)]

        return parts

    def _turns_of(
        self, parts: Callable[[int], Sequence[_Part]], papers: Callable[[_Part], Numbers]
    ) -> list[Turn[_Part]]:
        """The parts of this process; of a sharded network there are as many turns, and readings in each, on all."""
        rank, count = self.processes.rank, self.processes.count
        mine = parts(rank)
        if not self.sharded:
            return [Turn(rank + count * at, part) for at, part in enumerate(mine)]
        with self.computing():
            readings = [
                [count_readings(self.data, self.network, papers(part)) for part in parts(each)] for each in range(count)
            ]
        most = max(map(len, readings))
        return [
            Turn(
                rank + count * at,
                mine[at] if at < len(mine) else None,
                max(each[at] for each in readings if at < len(each)),
            )
            for at in range(most)
        ]

    def _zero(self) -> Tensor:
        return torch.zeros((), device=self.network.device)


def _papers_of(part: Batch) -> Numbers:
    return part.papers
