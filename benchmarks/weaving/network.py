"""The start model as a network over token ids, and what it makes of texts.

Weights stay float32; on CUDA it trains in bfloat16 and judges in float16, where three more bits of a cosine count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citeweave.encoders.network import Network
from citeweave.training.losses.cosines import unit
from weaving.bundle import Ints, begins
from weaving.files import read_model

JUDGED_TOKENS = {"cuda": 400_000, "cpu": 8_000}
"""Tokens read at a time without gradients."""


@dataclass(frozen=True)
class Read:
    """Unit vectors of texts, of their sentences and of their tokens, text after text."""

    texts: Tensor
    """(texts, d)"""

    sentences: Tensor
    """(sentences, d)"""

    tokens: Tensor
    """(tokens, d), in half precision on CUDA; special tokens among them."""

    token_begins: Ints
    """(texts + 1,)"""


class StartedNetwork:
    """A network that can be set back to its start."""

    def __init__(self, folder: Path, device: str) -> None:
        torch.set_float32_matmul_precision("high")
        model = read_model(folder / "weights.xz").to(device).eval()
        self.network, self.device = Network(model, device, 0, packed=True), device
        self.start = self.weights()

    def weights(self) -> dict[str, Tensor]:
        return {name: weight.detach().clone() for name, weight in self.network.model.state_dict().items()}

    def load(self, weights: Mapping[str, Tensor]) -> None:
        self.network.model.load_state_dict(weights)
        self.network.model.eval()

    def computing(self, dtype: torch.dtype) -> AbstractContextManager[Any]:
        return torch.autocast(self.device, dtype, enabled=self.device == "cuda")

    def texts(self, sequences: Sequence[Ints]) -> Tensor:
        """Mean states (texts, d), with gradients."""
        with self.computing(torch.bfloat16):
            return self.network.token_states(sequences).mean()

    def vectors(self, sequences: Sequence[Ints]) -> Tensor:
        """Unit vectors (texts, d), without gradients."""
        lengths = np.array([len(each) for each in sequences])
        found = torch.zeros(len(sequences), self.network.dimension, device=self.device)
        with torch.inference_mode(), self.computing(torch.float16):
            for rows in parts_of(np.argsort(-lengths, kind="stable"), lengths, JUDGED_TOKENS[self.device]):
                states = self.network.token_states([sequences[row] for row in rows])
                found[self.on_device(rows)] = unit(states.mean())
        return found

    def read(self, sequences: Sequence[Ints], sentences: Sequence[tuple[Ints, Ints]]) -> Read:
        """The same with sentences, whose starts and ends are given for every text, and tokens."""
        lengths = np.array([len(each) for each in sequences])
        texts, spans, tokens = [], [], []
        with torch.inference_mode(), self.computing(torch.float16):
            for rows in parts_of(np.arange(len(lengths)), lengths, JUDGED_TOKENS[self.device]):
                states: Any = self.network.token_states([sequences[row] for row in rows])
                own = [sentences[row] for row in rows]
                owners = np.repeat(np.arange(len(rows)), [len(starts) for starts, _ in own])
                low, high = (np.concatenate([each[side] for each in own]) for side in (0, 1))
                texts.append(unit(states.mean()))
                spans.append(unit(states.spans(owners, low, high)))
                tokens.append(unit(states.stream[: int(lengths[rows].sum())]).to(states.stream.dtype))
        return Read(torch.cat(texts), torch.cat(spans), torch.cat(tokens), begins(lengths))

    def on_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.device)


def parts_of(order: Ints, lengths: Ints, tokens: int) -> Iterator[Ints]:
    """The rows in this order, in parts of at most so many tokens, or of one row.

    >>> [part.tolist() for part in parts_of(np.arange(4), np.array([3, 3, 9, 1]), 6)]
    [[0, 1], [2], [3]]
    """
    part: list[int] = []
    size = 0
    for row in order.tolist():
        if part and size + lengths[row] > tokens:
            yield np.array(part)
            part, size = [], 0
        part.append(row)
        size += int(lengths[row])
    if part:
        yield np.array(part)
