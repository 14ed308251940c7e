"""MPNet's attention in one kernel: its bias of relative positions goes into torch's scaled dot products as a mask.

transformers adds that bias to every layer's scores by itself and keeps them all for the gradient. Bias and padding are the same
in all layers, so they are added once per batch here:

    bias   (1, heads, tokens, tokens)    by the distance of two tokens, learned (Song et al. 2020, MPNet)
    mask   (texts, 1, 1, tokens)         least number at padding
    sum    (texts, heads, tokens, tokens)

Vectors and gradients are those of transformers up to rounding, except that on CUDA the bias itself has no gradient.
`fuse_attention` changes a loaded model in place. Imports torch: import this module inside functions.
"""

from __future__ import annotations

from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def fuse_attention(model: Any) -> Any:
    """Return a loaded MPNet model with fused attention, its weights as they were."""
    model.encoder.forward = MethodType(_encode, model.encoder)
    for layer in model.encoder.layer:
        layer.attention.attn.forward = MethodType(_attend, layer.attention.attn)
    return model


def _encode(self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, **options: Any) -> Any:
    """Run all layers with bias and padding added once; transformers' outputs."""
    from transformers import modeling_outputs

    bias = self.compute_position_bias(hidden_states[:1])  # (1, heads, tokens, tokens)
    if attention_mask is not None:
        least = torch.finfo(bias.dtype).min
        padding = attention_mask
        if padding.dtype == torch.bool:
            padding = torch.zeros_like(padding, dtype=bias.dtype).masked_fill(~padding, least)
        bias = (bias + padding).clamp(min=least)  # (texts, heads, tokens, tokens)
    device = hidden_states.device.type
    if torch.is_autocast_enabled(device):
        bias = bias.to(torch.get_autocast_dtype(device))
    if device != "cpu":
        bias = bias.detach()  # its gradient would take the scores of all layers, which the fast kernel never stores
    states, every = hidden_states, cast(tuple[Tensor, ...], (hidden_states,))
    for layer in self.layer:
        states = layer(states, position_bias=bias)[0]  # (texts, tokens, dimension)
        every = (*every, states) if options.get("output_hidden_states") else ()
    if not options.get("return_dict"):
        return (states, every) if every else (states,)
    output: Any = modeling_outputs.BaseModelOutput
    return output(last_hidden_state=states, hidden_states=every or None)


def _attend(self: Any, hidden_states: Tensor, *masks: Tensor | None, **_: Any) -> tuple[Tensor]:
    """Return the attention of one layer, (texts, tokens, dimension); the one mask that is given is the sum of all."""
    bias = next(mask for mask in masks if mask is not None)
    texts, tokens, _size = hidden_states.shape
    query, key, value = (
        part(hidden_states).view(texts, tokens, -1, self.attention_head_size).transpose(1, 2)
        for part in (self.q, self.k, self.v)
    )  # (texts, heads, tokens, size) each
    dropped = self.dropout.p if self.training else 0.0
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        found = scaled_dot_product_attention(query, key, value, bias.to(query.dtype), dropout_p=dropped)
    return (self.o(found.transpose(1, 2).flatten(2)),)
