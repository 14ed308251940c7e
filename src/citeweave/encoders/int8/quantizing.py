"""Weights of a BERT as int8: panels, scales and smoothing.

    y = W x + b    ->    y = (W diag(f)) (x / f) + b,    both factors rounded to int8, a scale for every 192 inputs

The smoothing f = max |x| ** 0.5 / max |W| ** 0.5 of an input's channel moves what is hard to round from the states,
where single channels stand out, to the weights (Xiao and others 2023, SmoothQuant). How large states grow is seen on
`sample_texts.py`. Does not compute a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.encoders.int8.rows import STRIDE
from citeweave.encoders.int8.tiles import COLUMNS
from citeweave.encoders.reading import Tokens
from citeweave.extras import require

GROUP = 192
"""Inputs that share a scale, at most."""

Floats = NDArray[np.float32]
Dense = tuple[Floats, NDArray[np.int8], Floats, Floats]
"""Factors of the inputs (inputs,), panels, scales of the panels and bias, as `kernels.dense` reads them."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer as `kernels.layer` reads it."""

    weights: tuple[Dense, Dense, Dense, Dense]
    norms: tuple[Floats, Floats, Floats, Floats]


def group_of(inputs: int) -> int:
    """The largest group that divides the inputs.

    >>> group_of(384), group_of(1536), group_of(48)
    (192, 192, 48)
    """
    return max(size for size in range(STRIDE, GROUP + 1, STRIDE) if inputs % size == 0)


def quantize_layers(model: Any, batch: Sequence[Tokens]) -> list[Layer]:
    """All layers of a BERT of transformers, smoothed for texts such as these."""
    sizes = _input_sizes(model, batch)
    layers = []
    for number, part in enumerate(model.encoder.layer):
        attention, prefix = part.attention, f"encoder.layer.{number}"
        to_heads = [attention.self.query, attention.self.key, attention.self.value]
        layers.append(
            Layer(
                (
                    _dense(to_heads, sizes[f"{prefix}.attention.self.query"]),
                    _dense([attention.output.dense], sizes[f"{prefix}.attention.output.dense"]),
                    _dense([part.intermediate.dense], sizes[f"{prefix}.intermediate.dense"]),
                    _dense([part.output.dense], sizes[f"{prefix}.output.dense"]),
                ),
                (*norm_of(attention.output.LayerNorm), *norm_of(part.output.LayerNorm)),
            )
        )
    return layers


def norm_of(module: Any) -> tuple[Floats, Floats]:
    """Gain and shift of a layer normalization."""
    return module.weight.detach().float().numpy().copy(), module.bias.detach().float().numpy().copy()


def _input_sizes(model: Any, batch: Sequence[Tokens]) -> dict[str, Floats]:
    """Name of a linear part -> the largest |input| of each channel over the tokens of the texts."""
    torch = require("torch", extra="minilm")
    found: dict[str, Floats] = {}

    def watch(name: str) -> Any:
        def see(module: Any, inputs: Any) -> None:
            seen = inputs[0].abs().flatten(0, -2).amax(0).numpy()  # (channels,)
            found[name] = np.maximum(found[name], seen) if name in found else seen

        return see

    linear = [(name, part) for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)]
    watching = [part.register_forward_pre_hook(watch(name)) for name, part in linear]
    try:
        with torch.inference_mode():
            for tokens in batch:
                model(input_ids=torch.from_numpy(tokens)[None])
    finally:
        for handle in watching:
            handle.remove()
    return found


def _dense(parts: Sequence[Any], sizes: Floats) -> Dense:
    matrix = np.concatenate([part.weight.detach().float().numpy() for part in parts])  # (outputs, inputs)
    bias = np.concatenate([part.bias.detach().float().numpy() for part in parts])  # (outputs,)
    smoothing = np.sqrt(np.maximum(sizes, 1e-3) / np.maximum(np.abs(matrix).max(axis=0), 1e-3))  # (inputs,)
    filler = -len(matrix) % COLUMNS  # outputs without weights, up to a whole panel
    panels, scales = _panels(np.pad(matrix * smoothing, ((0, filler), (0, 0))))
    return (1 / smoothing).astype(np.float32), panels, scales, np.pad(bias, (0, filler)).astype(np.float32)


def _panels(matrix: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Panels of twelve outputs, flat, and their scales (panels, groups, 12), flat."""
    outputs, inputs = matrix.shape
    grouped = matrix.reshape(outputs, -1, group_of(inputs))  # (outputs, groups, inputs of a group)
    scales = np.maximum(np.abs(grouped).max(axis=2), 1e-9) / 127  # (outputs, groups)
    small = np.rint(grouped / scales[:, :, None]).astype(np.int8)
    panels = small.reshape(-1, COLUMNS, inputs // 4, 4).transpose(0, 2, 1, 3)  # (panels, inputs / 4, 12, 4)
    by_panel = scales.reshape(-1, COLUMNS, scales.shape[1]).transpose(0, 2, 1)  # (panels, groups, 12)
    return np.ascontiguousarray(panels).reshape(-1), np.ascontiguousarray(by_panel, np.float32).reshape(-1)
