"""Texts without padding: the tokens of a batch end to end in one stream, and attention that stays inside each text.

    texts      [CLS] a b [SEP] | [CLS] c [SEP] | filler
    positions   0    1 2  3       0    1  2      0 0 ...
    bounds      0                 4              7     8          (texts + 2,): the filler is the last text

The filler brings the stream to a multiple of `STEP` tokens, so that matrix products keep their fast shapes; nothing
reads it. On CUDA attention is `torch.nn.attention.varlen` (half precision, torch 2.10 or later); on a CPU it is plain
attention under a mask, slow and exact, which exists for tests and for comparison. Neither drops attention weights
at random: a packed model trains with the dropout of its states alone.

`packed_states` runs a model: BERT and RoBERTa by their own layers (`bert_stream.py`), ModernBERT, DistilBERT, ELECTRA
and BERT with adapters through transformers' attention interface. Models that add a bias of their own to the attention
(MPNet, DeBERTa, T5) cannot be packed. Imports torch: import this module inside functions.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

try:
    from torch.nn.attention import varlen
except ImportError:  # torch before 2.10
    HAS_VARLEN = False
else:
    HAS_VARLEN = True

STEP = 256
"""The stream's length is a multiple of this."""

TILE = 64
"""Tokens of a text that one program of `attention_kernels` computes."""

ROUND_LONGEST = 512
"""The longest text is rounded up to a multiple of this: the number is part of compiled code."""

INTERFACE = "citeweave_packed"
"""Name of packed attention among transformers' attention functions."""

PACKING_MODELS = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "modernbert")
"""Types of models whose attention takes no mask but the one of the padding."""


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
    """(tiles, 3) int32: begin and end of a text, and the first token of one of its tiles; for `attention_kernels`."""

    longest: int
    """No text has more tokens than this."""


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
    return Packed(on_device[0], on_device[1], on_device[2], on_device[3], longest)


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


@dataclass(frozen=True, slots=True)
class PackedStates:
    """Last states of the tokens of a packed batch."""

    stream: Tensor
    """(tokens, dimension)"""

    bounds: Tensor
    """(texts + 2,), the filler's at the end."""

    def cls(self) -> Tensor:
        return self.stream[self.bounds[:-2].long()].float()  # (texts, dimension)

    def mean(self) -> Tensor:
        sums = torch.segment_reduce(self.stream.float(), "sum", offsets=self.bounds.long(), axis=0)  # (texts + 1, ...)
        return (sums / self.bounds.diff()[:, None])[:-1]  # (texts, dimension)


@dataclass(frozen=True, slots=True)
class FirstStates:
    """Last states of the first tokens alone."""

    first: Tensor
    """(texts + 1, dimension), the filler's at the end."""

    def cls(self) -> Tensor:
        return self.first[:-1].float()  # (texts, dimension)

    def mean(self) -> Tensor:
        raise AssertionError("states of the first tokens have no mean over all")


def can_pack(model: Any, device: str, *, slowly: bool = False) -> bool:
    """Whether this model can be packed and that pays on this device; `slowly` takes a CPU too, where it never pays."""
    if model.config.model_type not in PACKING_MODELS or getattr(model.config, "is_decoder", False):
        return False
    if not device.startswith("cuda"):
        return slowly
    if not HAS_VARLEN or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    return computes_in(model, device) in (torch.bfloat16, torch.float16)


def can_compile(model: Any, device: str) -> bool:
    """Whether compiled code would run this model; without triton torch.compile makes none for CUDA."""
    from citeweave.encoders.bert_stream import is_plain

    found = importlib.util.find_spec("triton") is not None
    return found and device.startswith("cuda") and HAS_VARLEN and is_plain(model)


def computes_in(model: Any, device: str) -> torch.dtype:
    """What `torch.autocast` around the call asks for, else the dtype of the weights."""
    kind = device.partition(":")[0]
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    found: torch.dtype = model.dtype
    return found


def packed_states(
    model: Any, packed: Packed, *, first_only: bool = False, compiled: bool = False
) -> PackedStates | FirstStates:
    """Run a model that `PACKING_MODELS` names over a stream; differentiable."""
    from citeweave.encoders.bert_stream import bert_stream, is_plain

    if not is_plain(model):
        return PackedStates(_interface_stream(model, packed), packed.bounds)
    dtype = computes_in(model, packed.ids.device.type)
    stream = bert_stream(model, packed, dtype, first_only=first_only, compiled=compiled)
    return FirstStates(stream) if first_only else PackedStates(stream, packed.bounds)


def _interface_stream(model: Any, packed: Packed) -> Tensor:
    """Any model whose attention goes through transformers' interface and whose positions can be given."""
    positions = packed.positions.long()[None]  # (1, tokens)
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    if (unused := getattr(table, "padding_idx", None)) is not None:  # RoBERTa counts its positions from here on
        positions = positions + unused + 1
    spans = Spans(packed.bounds, packed.bounds, packed.longest, packed.longest)
    with _packed_attention(model):
        found = model(input_ids=packed.ids.long()[None], position_ids=positions, citeweave_spans=spans)
    stream: Tensor = found.last_hidden_state[0]  # (tokens, dimension)
    return stream


@contextmanager
def _packed_attention(model: Any) -> Iterator[None]:
    from transformers import AttentionInterface

    AttentionInterface.register(INTERFACE, _attend_for_transformers)
    before = model.config._attn_implementation
    model.config._attn_implementation = INTERFACE
    try:
        yield
    finally:
        model.config._attn_implementation = before


def _attend_for_transformers(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, **more: Any
) -> tuple[Tensor, None]:
    """States (1, heads, tokens, size) in, (1, tokens, heads, size) out; the models' scaling is the usual one."""
    assert attention_mask is None and np.isclose(
        more.get("scaling") or query.shape[-1] ** -0.5, query.shape[-1] ** -0.5
    )
    window = more.get("sliding_window")
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))  # (tokens, heads, size) each
    inner = None if window is None else window - 1  # transformers counts the token itself
    return attend(query, key, value, more["citeweave_spans"], inner)[None], None
