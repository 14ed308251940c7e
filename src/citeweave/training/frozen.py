"""Vectors of papers by an encoder that is not trained: every paper is read once, whatever the number of steps.

    training.parts = "heads"        only the aspect heads learn: minutes on two cores, where the encoder would take hours

Papers are read by the fastest runtime of this processor (`encoders/fastest.py`): in int8 their vectors differ a little
from those in float32, with which the model is used later.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from citeweave.encoders.encoder import BATCH_TOKENS, batch_place
from citeweave.encoders.fastest import fastest
from citeweave.encoders.torch_encoder import WINDOW, TorchEncoder
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
    start.network.model.eval()
    chosen = fastest(start.network, start.reader, start.settings, start.name)
    if chosen.runtime.name == "torch":
        return start
    return dataclasses.replace(start, network=chosen.network, batch_tokens=BATCH_TOKENS[batch_place(chosen.network)])
