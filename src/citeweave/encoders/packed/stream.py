"""The tokens of a batch end to end in one stream.

    texts      [CLS] a b [SEP] | [CLS] c [SEP] | filler
    positions   0    1 2  3       0    1  2      0 0 ...
    bounds      0                 4              7     8          (texts + 2,): the filler is the last text

The filler brings the stream to a multiple of `STEP` tokens, so that matrix products keep their fast shapes; nothing
reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

STEP = 256
"""The stream's length is a multiple of this."""

TILE = 64
"""Tokens of a text that one program of `kernels.py` computes."""

ROUND_LONGEST = 512
"""The longest text is rounded up to a multiple of this: the number is part of compiled code."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A batch of texts as one stream. See `pack`."""

    ids: Tensor
    """(tokens,)"""

    positions: Tensor
    """(tokens,), from 0 in every text."""

    bounds: Tensor
    """(texts + 2,) int32: where texts begin; the last one is the filler."""

    tiles: Tensor
    """(tiles, 3) int32: begin and end of a text, and the first token of one of its tiles; for `kernels.py`."""

    longest: int
    """No text has more tokens than this."""

    begins: NDArray[np.int64]
    """(texts + 2,): `bounds` where the processor is."""


def pack(batch: Sequence[NDArray[np.int64]], pad: int, device: str) -> Packed:
    """Lay texts, each of one token or more, end to end.

    >>> packed = pack([np.array([5, 6, 7]), np.array([8])], pad=0, device="cpu")
    >>> packed.ids[:6].tolist(), packed.positions[:6].tolist(), packed.bounds.tolist()
    ([5, 6, 7, 8, 0, 0], [0, 1, 2, 0, 0, 0], [0, 3, 4, 256])
    """
    lengths = np.fromiter(map(len, batch), np.int64, len(batch))  # (texts,)
    tokens = int(lengths.sum())
    filler = STEP - tokens % STEP  # one token or more, so that every text has a first one
    lengths = np.append(lengths, filler)  # (texts + 1,)
    bounds = np.concatenate([[0], np.cumsum(lengths)])  # (texts + 2,)
    ids = np.full(tokens + filler, pad, np.int32)  # (tokens,)
    np.concatenate(batch, out=ids[:tokens], casting="same_kind")
    positions = np.zeros(len(ids), np.int32)  # (tokens,); the filler may be longer than the model has positions
    positions[:tokens] = np.arange(tokens) - np.repeat(bounds[:-2], lengths[:-1])
    longest = -(-int(lengths.max()) // ROUND_LONGEST) * ROUND_LONGEST
    arrays = (ids, positions, bounds.astype(np.int32), _tiles(bounds, TILE))
    on_device = [_sent(array, device) for array in arrays]
    return Packed(on_device[0], on_device[1], on_device[2], on_device[3], longest, bounds)


def _tiles(bounds: NDArray[np.int64], rows: int) -> NDArray[np.int32]:
    """Begin and end of every text, once for each of its tiles, and the tile's first token: (tiles, 3).

    >>> _tiles(np.array([0, 5, 8]), 2).tolist()
    [[0, 5, 0], [0, 5, 2], [0, 5, 4], [5, 8, 5], [5, 8, 7]]
    """
    counts = -(-np.diff(bounds) // rows)  # (texts,)
    text = np.repeat(np.arange(len(counts)), counts)  # (tiles,)
    number = np.arange(len(text)) - np.repeat(np.cumsum(counts) - counts, counts)  # (tiles,), in its text
    begin = bounds[text]  # (tiles,)
    return np.stack([begin, bounds[text + 1], begin + rows * number], axis=1).astype(np.int32)


def _sent(array: NDArray[np.int32], device: str) -> Tensor:
    """Pinned memory lets the copy run beside the kernels of the batch before."""
    tensor = torch.from_numpy(array)
    return tensor if device == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
