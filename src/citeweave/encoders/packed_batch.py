"""Packed batches: texts end to end without padding, and attention inside each text.

    texts      [CLS] a b [SEP] | [CLS] c [SEP] | filler
    positions   0    1 2  3       0    1  2      0 0 ...
    bounds      0                 4              7     8          (texts + 2,): the filler is the last text

The filler pads the stream to a multiple of `STEP` tokens, so that matrix products keep their fast shapes; nothing reads it.
Attention is computed on CUDA by `triton_attention.py` or `torch.nn.attention.varlen` (half precision, torch 2.10 or later); on a
CPU by plain attention under a mask, slow and exact, for tests and comparison. Imports torch: import this module inside
functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citeweave.core.ragged import number_within, owners_of, to_offsets

try:
    from torch.nn.attention import varlen
except ImportError:  # torch before 2.10
    HAS_VARLEN = False
else:
    HAS_VARLEN = True
try:
    from citeweave.encoders.triton_attention import SIZES, TILE, attend_tiles
except ImportError:  # no triton, as on a machine without CUDA; then nothing reads the tiles
    SIZES, TILE = (), 64

STEP = 256
"""The stream's length is a multiple of this."""

FAR = 127
"""Tokens farther apart than this have MPNet's bias of this distance, as its last bucket begins at 91."""

ROUND_LONGEST = 512
"""The longest text is rounded up to a multiple of this, because it is a constant in compiled code."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed batch: texts as one stream of tokens. See `pack`."""

    ids: Tensor
    """(tokens,)"""

    positions: Tensor
    """(tokens,), from 0 in every text."""

    bounds: Tensor
    """(texts + 2,) int32: where texts begin; the last one is the filler."""

    tiles: Tensor
    """(tiles, 3) int32: begin and end of a text, and the first token of one of its tiles; for `triton_attention.py`."""

    longest: int
    """No text has more tokens than this."""

    begins: NDArray[np.int64]
    """(texts + 2,): `bounds` in the CPU's memory."""

    bias: Tensor | None = None
    """(heads, 2 FAR + 1): what MPNet adds to a score, by the key's distance from the query, farther ones as FAR."""


def pack(batch: Sequence[NDArray[np.int64]], pad: int, device: str) -> Packed:
    """Pack tokenized texts, each of one token or more, end to end into one stream.

    >>> packed = pack([np.array([5, 6, 7]), np.array([8])], pad=0, device="cpu")
    >>> packed.ids[:6].tolist(), packed.positions[:6].tolist(), packed.bounds.tolist()
    ([5, 6, 7, 8, 0, 0], [0, 1, 2, 0, 0, 0], [0, 3, 4, 256])
    """
    lengths = np.fromiter(map(len, batch), np.int64, len(batch))  # (texts,)
    tokens = int(lengths.sum())
    filler = STEP - tokens % STEP  # at least one token, so that the filler has a first one too
    lengths = np.append(lengths, filler)  # (texts + 1,)
    bounds = to_offsets(lengths)  # (texts + 2,)
    ids = np.full(tokens + filler, pad, np.int32)  # (tokens,)
    np.concatenate(batch, out=ids[:tokens], casting="same_kind")
    positions = np.zeros(len(ids), np.int32)  # (tokens,); the filler may be longer than the model has positions
    positions[:tokens] = number_within(lengths[:-1])
    longest = -(-int(lengths.max()) // ROUND_LONGEST) * ROUND_LONGEST
    arrays = [_to_device(array, device) for array in (ids, positions, bounds.astype(np.int32), _tiles(bounds, TILE))]
    return Packed(arrays[0], arrays[1], arrays[2], arrays[3], longest, bounds)


def _tiles(bounds: NDArray[np.int64], rows: int) -> NDArray[np.int32]:
    """Return the begin and end of the text of each tile, and the tile's first token, (tiles, 3).

    >>> _tiles(np.array([0, 5, 8]), 2).tolist()
    [[0, 5, 0], [0, 5, 2], [0, 5, 4], [5, 8, 5], [5, 8, 7]]
    """
    counts = -(-np.diff(bounds) // rows)  # (texts,)
    text = owners_of(to_offsets(counts))  # (tiles,)
    begin = bounds[text]  # (tiles,)
    return np.stack([begin, bounds[text + 1], begin + rows * number_within(counts)], axis=1).astype(np.int32)


def _to_device(array: NDArray[np.int32], device: str) -> Tensor:
    """Copy an array to the device from pinned memory, which overlaps with the kernels of the previous batch."""
    tensor = torch.from_numpy(array)
    return tensor if device == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class Spans:
    """Bounds of packed texts among queries and keys: a query attends to the keys of its own text."""

    queries: Tensor
    """(texts + 1,) int32 bounds of the texts among the queries."""

    keys: Tensor
    """(texts + 1,) int32 bounds of the texts among the keys."""

    longest_query: int
    longest_key: int


def attend(
    query: Tensor, key: Tensor, value: Tensor, spans: Spans, window: int | None = None, bias: Tensor | None = None
) -> Tensor:
    """Compute attention inside packed texts, of queries (queries, heads, size) to keys and values of their own text.

    With `window` a token sees as many neighbors to either side. `bias` by distance is for queries that are all tokens.
    """
    if not query.is_cuda or bias is not None:
        return _attend_masked(query, key, value, spans, window, bias)
    more: dict[str, Any] = {} if window is None else {"window_size": (window, window)}
    states: Any = varlen.varlen_attn(
        query, key, value, spans.queries, spans.keys, spans.longest_query, spans.longest_key, **more
    )
    return cast(Tensor, states)


def _attend_masked(
    query: Tensor, key: Tensor, value: Tensor, spans: Spans, window: int | None, bias: Tensor | None
) -> Tensor:
    ours, theirs = _texts_of(query, spans.queries), _texts_of(key, spans.keys)  # (queries,), (tokens,)
    seen = ours[:, None] == theirs[None, :]  # (queries, tokens)
    if window is not None:
        places = torch.arange(len(key), device=key.device)
        seen &= (places[:, None] - places[None, :]).abs() <= window
    if bias is not None:
        places = torch.arange(len(key), device=key.device)
        added = bias[:, (places[None, :] - places[:, None]).clamp(-FAR, FAR) + FAR]  # (heads, queries, tokens)
        seen = added.masked_fill(~seen, -torch.inf).to(query.dtype)
    query, key, value = (states.transpose(0, 1) for states in (query, key, value))  # (heads, tokens, size) each
    states = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
    return states.transpose(0, 1)  # (queries, heads, size)


def _texts_of(states: Tensor, bounds: Tensor) -> Tensor:
    return torch.searchsorted(bounds, torch.arange(len(states), device=bounds.device, dtype=bounds.dtype), right=True)


def attend_wide(wide: Tensor, packed: Packed) -> Tensor:
    """Compute attention (tokens, heads, size) of queries, keys and values in one tensor (tokens, 3, heads, size)."""
    if wide.is_cuda and wide.shape[-1] in SIZES and wide.numel() < 2**31:  # the kernels count in 32 bits
        return attend_tiles(wide, packed.tiles, packed.bias)
    query, key, value = wide.unbind(1)
    spans = Spans(packed.bounds, packed.bounds, packed.longest, packed.longest)
    return attend(query, key, value, spans, bias=packed.bias)


def has_kernel(model: Any) -> bool:
    """Return whether `triton_attention.py` is there and has the size of this model's heads."""
    return model.config.hidden_size // model.config.num_attention_heads in SIZES


def distance_bias(model: Any, device: torch.device) -> Tensor | None:
    """Return what MPNet adds to the scores by relative position (Song et al. 2020), (heads, 2 FAR + 1); None for others.

    On CUDA it has no gradient, as in `mpnet_attention.py`.
    """
    table = getattr(model.encoder, "relative_attention_bias", None)
    if table is None:
        return None
    weights: Tensor = table.weight if device.type == "cpu" else table.weight.detach()  # (buckets, heads)
    buckets = model.encoder.relative_position_bucket(torch.arange(-FAR, FAR + 1), num_buckets=len(weights))
    places = _to_device(buckets.int().numpy(), str(device)).long()  # (2 FAR + 1,)
    return weights[places].T.float().contiguous()
