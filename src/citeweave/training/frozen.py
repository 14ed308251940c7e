"""Vectors of papers by an encoder that is not trained: every paper is read once, whatever the number of steps.

    training.parts = "heads"        only the aspect heads learn: minutes on two cores, where the encoder would take hours

Where the processor has an instruction for it (see `encoders/int8`), papers are read in int8: their vectors differ a
little from those in float32, with which the model is used later.
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from citeweave.encoders.encoder import BATCH_TOKENS
from citeweave.encoders.torch_encoder import WINDOW, TorchEncoder
from citeweave.errors import UserError
from citeweave.progress import Reporter
from citeweave.training.data import TrainingData


def frozen_vectors(start: TorchEncoder, data: TrainingData, reporter: Reporter) -> Tensor:
    """Vectors (papers, dimension) of all papers of the data, on the encoder's device."""
    encoder, papers = _fastest(start), len(data.tokens)
    found = np.zeros((papers, start.dimension), np.float32)
    for first in range(0, papers, WINDOW):
        rows = np.arange(first, min(first + WINDOW, papers))
        found[rows] = encoder.encode_tokens(data.tokens.take(rows), reporter=reporter)
    return torch.from_numpy(found).to(start.network.device)


def _fastest(start: TorchEncoder) -> TorchEncoder:
    """The encoder in int8, where processor and network can."""
    from citeweave.encoders.int8.instruction import has_instruction

    start.network.model.eval()
    if start.network.device == "cpu" and has_instruction():
        from citeweave.encoders.int8.forward import int8_network

        with suppress(UserError):  # a network of another kind or size
            network = int8_network(start.network, start.reader, start.name, 0)
            return dataclasses.replace(start, network=network, batch_tokens=BATCH_TOKENS["int8"])
    return start
