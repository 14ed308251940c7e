"""Attention that stays inside each text of a stream.

On CUDA it is `torch.nn.attention.varlen` (half precision, torch 2.10 or later); on a CPU plain attention under a mask,
slow and exact, which exists for tests and for comparison. Neither drops attention weights at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

try:
    from torch.nn.attention import varlen
except ImportError:  # torch before 2.10
    HAS_VARLEN = False
else:
    HAS_VARLEN = True


@dataclass(frozen=True, slots=True)
class Spans:
    """Which queries see which keys: those of the same text."""

    queries: Tensor
    """(texts + 1,) int32 bounds of the texts among the queries."""

    keys: Tensor
    """(texts + 1,) int32 bounds of the texts among the keys."""

    longest_query: int
    longest_key: int


def attend(query: Tensor, key: Tensor, value: Tensor, spans: Spans, window: int | None = None) -> Tensor:
    """Attention of queries (queries, heads, size) to keys and values (tokens, heads, size) of their own text.

    With `window` a token sees as many neighbours to either side.
    """
    if not query.is_cuda:
        return _attend_masked(query, key, value, spans, window)
    more: dict[str, Any] = {} if window is None else {"window_size": (window, window)}
    found: Any = varlen.varlen_attn(
        query, key, value, spans.queries, spans.keys, spans.longest_query, spans.longest_key, **more
    )
    return cast(Tensor, found)


def _attend_masked(query: Tensor, key: Tensor, value: Tensor, spans: Spans, window: int | None) -> Tensor:
    ours, theirs = _texts_of(query, spans.queries), _texts_of(key, spans.keys)  # (queries,), (tokens,)
    seen = ours[:, None] == theirs[None, :]  # (queries, tokens)
    if window is not None:
        places = torch.arange(len(key), device=key.device)
        seen &= (places[:, None] - places[None, :]).abs() <= window
    query, key, value = (states.transpose(0, 1) for states in (query, key, value))  # (heads, tokens, size) each
    found = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
    return found.transpose(0, 1)  # (queries, heads, size)


def _texts_of(states: Tensor, bounds: Tensor) -> Tensor:
    return torch.searchsorted(bounds, torch.arange(len(states), device=bounds.device, dtype=bounds.dtype), right=True)
