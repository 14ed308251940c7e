"""Which parameters of an encoder are trained: all, its biases only, or low-rank changes; with the lowest layers frozen.

    choose_parts(model, "all")                       everything that a vector goes through
    choose_parts(model, "layers")                    everything but the embeddings: half of a small model is its words
    choose_parts(model, "bias")                      bias terms (Ben Zaken et al. 2022, BitFit)
    choose_parts(model, "lora", lora_rank=8)         low-rank changes of the attention (Hu et al. 2022), made by peft
    choose_parts(model, "heads")                     nothing of the encoder, see `frozen.py`
    choose_parts(model, "all", frozen_layers=4)      without the embeddings and the first four layers

The head over the first token that BERT brings along (its "pooler") is never trained: no vector goes through it. The
weights of a pooling, a mix of layers or words for aspects, always are. Does not save: `encoders/delta.py` writes
what was chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from citeweave.core.errors import UserError, choose, require
from citeweave.core.randomness import stream
from citeweave.encoders.text_vectors import is_of_pooling

PARTS = ("all", "layers", "bias", "lora", "heads")

Named = list[tuple[str, nn.Parameter]]

_UNUSED = "pooler."
_EMBEDDINGS = "embed"


def choose_parts(
    model: Any,
    parts: str,
    *,
    frozen_layers: int = 0,
    lora_rank: int = 8,
    lora_alpha: float | None = None,
    seed: int = 0,
) -> Named:
    """Let only these parameters be trained; names and parameters, in the model's order.

    `lora` changes the model: its layers get matrices of their own, drawn by `seed`. `lora_alpha` is twice the rank where
    it is not given, and low-rank changes count alpha / rank times.
    """
    choose(parts, PARTS, "training.parts")
    if parts == "heads":
        model.requires_grad_(False)
        return []
    frozen = _frozen_names(model, frozen_layers)
    if parts == "lora":
        _add_low_rank(model, frozen, lora_rank, 2.0 * lora_rank if lora_alpha is None else lora_alpha, seed)
    chosen = []
    for name, parameter in model.named_parameters():
        wanted = is_of_pooling(name) or (name not in frozen and _is_wanted(name, parts))
        parameter.requires_grad_(wanted)
        if wanted:
            chosen.append((name, parameter))
    if all(is_of_pooling(name) for name, _ in chosen):
        raise UserError(
            f"training.parts is {parts!r} with {frozen_layers} frozen layers, which leaves nothing of this "
            f"{model.config.model_type} model to train; take other parts or fewer frozen layers"
        )
    return chosen


def encoder_layers(model: Any) -> tuple[str, nn.ModuleList]:
    """Name and list of the layers that a text goes through one after the other."""
    wanted = int(model.config.num_hidden_layers)
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == wanted:
            return name, module
    raise UserError(
        f"this {model.config.model_type} model has no list of {wanted} layers of its own, so that they can neither be "
        "frozen nor get low-rank changes; take training.parts all or bias, and no frozen layers"
    )


def _frozen_names(model: Any, count: int) -> set[str]:
    """Parameters of the embeddings and of the first layers; none for count 0."""
    if count == 0:
        return set()
    prefix, layers = encoder_layers(model)
    if not 0 < count <= len(layers):
        raise UserError(
            f"training.frozen_layers is {count}; this model has {len(layers)} layers, so take 0 to {len(layers)}"
        )
    starts = (_EMBEDDINGS, *(f"{prefix}.{number}." for number in range(count)))
    return {name for name, _ in model.named_parameters() if name.startswith(starts)}


def _is_wanted(name: str, parts: str) -> bool:
    if name.startswith(_UNUSED):
        return False
    if parts == "lora":
        return ".lora_" in name
    if parts == "layers":
        return not name.startswith(_EMBEDDINGS)
    return parts == "all" or name.rpartition(".")[2] == "bias"


def _add_low_rank(model: Any, frozen: set[str], rank: int, alpha: float, seed: int) -> None:
    """Matrices A (rank, in) and B (out, rank) beside linear layers; B begins at 0, so that nothing changes yet."""
    if any(".lora_" in name for name, _ in model.named_parameters()):
        raise UserError("this model has low-rank layers already; load it anew before choosing its parts again")
    layers = [name for name in _linear_layers(model) if f"{name}.weight" not in frozen]
    narrowest = min((min(model.get_submodule(name).weight.shape) for name in layers), default=0)
    if layers and not 1 <= rank <= narrowest:
        raise UserError(
            f"training.lora_rank is {rank}; for layers of {narrowest} numbers it must be from 1 to {narrowest}"
        )
    if not layers:
        return
    peft = require("peft", extra="lora")
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=layers, lora_dropout=0.0, bias="none")
    with torch.random.fork_rng(devices=[]):
        peft.inject_adapter_in_model(config, model)
    for name in layers:
        _draw(model.get_submodule(name).lora_A["default"].weight, seed, name)


def _linear_layers(model: Any) -> Sequence[str]:
    """The linear layers that get low-rank changes: those peft takes for this kind of model, else all in the layers."""
    prefix, _ = encoder_layers(model)
    known = require("peft.utils.constants", extra="lora").TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    ends = known.get(model.config.model_type)
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.startswith(f"{prefix}.")
    ]
    usual = [name for name in names if isinstance(ends, list) and name.rpartition(".")[2] in ends]
    return usual or names


def _draw(weight: nn.Parameter, seed: int, name: str) -> None:
    """The usual start of a linear layer, uniform within 1 / sqrt(in), the same on every device."""
    bound = 1.0 / np.sqrt(weight.shape[1])
    drawn = stream(seed, "lora", name).uniform(-bound, bound, tuple(weight.shape))  # (rank, in)
    with torch.no_grad():
        weight.copy_(torch.from_numpy(drawn))
