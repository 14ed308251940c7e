"""Texts without padding: which models can read a stream of texts end to end, and what they make of it.

    packed/stream.py      the tokens of a batch as one stream
    packed/attention.py   attention that stays inside each text
    packed/bert.py        the layers of BERT and RoBERTa over a stream
    packed/kernels.py     their attention on a GPU

`packed_tokens` runs a model: BERT and RoBERTa by their own layers, ModernBERT, DistilBERT, ELECTRA and BERT with adapters
through transformers' attention interface. Models that add a bias of their own to the attention (MPNet, DeBERTa, T5)
cannot be packed. A packed model trains with the dropout of its states alone: its attention drops nothing at random.
Imports torch: import this module inside functions.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from citeweave.encoders.packed.attention import HAS_VARLEN, Spans, attend
from citeweave.encoders.packed.bert import bert_stream, is_plain
from citeweave.encoders.packed.stream import Packed, pack
from citeweave.encoders.pooling import States, mean_spans

__all__ = ["Packed", "can_compile", "can_pack", "first_states", "pack", "packed_tokens"]

INTERFACE = "citeweave_packed"
"""Name of packed attention among transformers' attention functions."""

PACKING_MODELS = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "modernbert")
"""Types of models whose attention takes no mask but the one of the padding."""


@dataclass(frozen=True, slots=True)
class PackedStates:
    """Last states of the tokens of a packed batch."""

    stream: Tensor
    """(tokens, dimension)"""

    bounds: Tensor
    """(texts + 2,), the filler's at the end."""

    begins: NDArray[np.int64]
    """(texts + 2,), the same where the processor is, so that nobody waits for the device."""

    def cls(self) -> Tensor:
        return self.stream[self.bounds[:-2].long()].float()  # (texts, dimension)

    def mean(self) -> Tensor:
        sums = torch.segment_reduce(self.stream.float(), "sum", offsets=self.bounds.long(), axis=0)  # (texts + 1, ...)
        return (sums / self.bounds.diff()[:, None])[:-1]  # (texts, dimension)

    def spans(self, texts: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Tensor:
        before = self.begins[texts]  # (spans,)
        return mean_spans(self.stream, before + starts, before + ends)

    def tokens(self) -> Tensor:
        return self.stream[: self.begins[-2]]


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
    found = importlib.util.find_spec("triton") is not None
    return found and device.startswith("cuda") and HAS_VARLEN and is_plain(model)


def computes_in(model: Any, device: str) -> torch.dtype:
    """What `torch.autocast` around the call asks for, else the dtype of the weights."""
    kind = device.partition(":")[0]
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    found: torch.dtype = model.dtype
    return found


def packed_tokens(model: Any, packed: Packed, *, compiled: bool = False) -> PackedStates:
    """Run a model that `PACKING_MODELS` names over a stream; differentiable."""
    if not is_plain(model):
        return PackedStates(_interface_stream(model, packed), packed.bounds, packed.begins)
    dtype = computes_in(model, packed.ids.device.type)
    return PackedStates(bert_stream(model, packed, dtype, compiled=compiled), packed.bounds, packed.begins)


def first_states(model: Any, packed: Packed, *, compiled: bool = False) -> States:
    """The same of the first tokens alone, which spares a plain model most of its last layer."""
    if not is_plain(model):
        return packed_tokens(model, packed, compiled=compiled)
    dtype = computes_in(model, packed.ids.device.type)
    return FirstStates(bert_stream(model, packed, dtype, first_only=True, compiled=compiled))


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
