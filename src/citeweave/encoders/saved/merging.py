"""A model's weights as its own classes name them, with low-rank changes added in (Hu et al. 2022, LoRA).

    encoder.layer.0.attention.self.query.base_layer.weight  W  (out, in)
    encoder.layer.0.attention.self.query.lora_A.default.weight  A  (rank, in)        in memory, as peft trains them
    encoder.layer.0.attention.self.query.lora_B.default.weight  B  (out, rank)
    encoder.layer.0.attention.self.query.weight  W + B A alpha / rank                merged

Reads layers that peft has made without importing peft. Does not train: `training/partial.py` makes such layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from citeweave.encoders.saved.aspect_words import is_of_pooling
from citeweave.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

_ADAPTER = "default"


@dataclass(frozen=True, slots=True)
class LowRank:
    """The change of one linear layer."""

    a: Tensor
    """Shape (rank, in)."""

    b: Tensor
    """Shape (out, rank)."""

    alpha: float

    @property
    def rank(self) -> int:
        return int(self.a.shape[0])

    def change(self) -> Tensor:
        """What is added to the weights, (out, in), in float32."""
        return (self.b.float() @ self.a.float()) * (self.alpha / self.rank)


def low_rank_layers(model: Any) -> dict[str, LowRank]:
    """The low-rank changes of a model, by the name of the layer they change; empty where it has none."""
    found = {}
    for name, layer in model.named_modules():
        if not (hasattr(layer, "lora_A") and hasattr(layer, "base_layer") and len(layer.lora_A)):
            continue
        if list(layer.lora_A) != [_ADAPTER] or len(layer.lora_magnitude_vector) or layer.merged:
            raise UserError(f"{name} has adapters other than one plain LoRA named {_ADAPTER!r}; merge them with peft")
        a, b = layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight
        found[name] = LowRank(a.detach(), b.detach(), float(layer.scaling[_ADAPTER]) * int(a.shape[0]))
    return found


def merged_weights(model: Any) -> dict[str, Tensor]:
    """Every weight of the plain model by its own name, on the device where it is; without those of its pooling."""
    changes = low_rank_layers(model)
    weights = {}
    for name, tensor in model.state_dict().items():
        if is_of_pooling(name) or ".lora_" in name:
            continue
        plain = name.replace(".base_layer.", ".")
        layer, _, kind = plain.rpartition(".")
        changed = kind == "weight" and layer in changes
        weights[plain] = (tensor.float() + changes[layer].change()).to(tensor.dtype) if changed else tensor
    return weights
