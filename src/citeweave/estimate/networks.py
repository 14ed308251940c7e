"""What a network costs by its shape: operations, seconds, bytes; within a factor of two or three, not better.

    >>> base = Shape(hidden=768, layers=12, parameters=110_000_000)
    >>> round(forward_flops(base, tokens=230) / 1e6)
    178
    >>> seconds = train_seconds(base, texts=684_000 * 2.2 * 2, tokens=230, device="cuda")
    >>> 10 < seconds / 60 < 30
    True

Arithmetic is what counts, so one measured rate a device stands for all models. Knows no recipes and reads no corpus.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from citeweave.estimate.constants import CONSTANTS, value
from citeweave.files import read_input


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of an encoder that decide its cost."""

    hidden: int
    layers: int
    parameters: int


BERT_BASE = Shape(768, 12, 110_000_000)
"""SciBERT's and GTE-base's too."""

MINILM = Shape(384, 6, 22_700_000)
"""all-MiniLM-L6-v2."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What a device does, in useful floating-point operations a second, real tokens only."""

    embedding: float
    training: float
    source: str


RATES = {
    "cpu": Rate(value("network.core"), value("network.core"), str(CONSTANTS["network.core"])),
    "cuda": Rate(value("network.gpu.embedding"), value("network.gpu.training"), str(CONSTANTS["network.gpu.training"])),
}
"""Device -> its rate; that of `cpu` is for one core."""

BYTES_PER_TOKEN = 5.0
"""Of English abstracts under BERT's vocabulary."""

AROUND = 3
"""Special tokens of a text: first, between title and abstract, last."""


def forward_flops(shape: Shape, tokens: float) -> float:
    """Operations a token of texts so long: 24 h^2 L for the matrices, 4 h L s for attention (Kaplan et al., 2020)."""
    return 24 * shape.hidden**2 * shape.layers + 4 * shape.hidden * shape.layers * tokens


def tokens_of(mean_bytes: float, max_tokens: int) -> float:
    """Tokens of a text of so many bytes, cut at a length.

    >>> tokens_of(1000, 512), tokens_of(9000, 512)
    (203.0, 512.0)
    """
    return min(mean_bytes / BYTES_PER_TOKEN + AROUND, float(max_tokens))


def embed_seconds(shape: Shape, texts: float, tokens: float, device: str, cores: int = 1) -> float:
    """Time to encode so many texts."""
    return texts * tokens * forward_flops(shape, tokens) / _rate(device, cores, training=False)


def train_seconds(shape: Shape, texts: float, tokens: float, device: str, cores: int = 1) -> float:
    """Time to train on so many texts, counted at each encoding: backward costs twice what forward does."""
    return 3 * texts * tokens * forward_flops(shape, tokens) / _rate(device, cores, training=True)


def train_bytes(shape: Shape, micro_tokens: int, tokens: float, *, half: bool, trained: float = 1.0) -> float:
    """Memory of training: weights, and for the trained share of them gradients and Adam's two moments, in float32; and
    activations, 34 h bytes a token and layer beside attention in half precision (Korthikanti et al., 2022)."""
    states = shape.parameters * (4 + 12 * trained)
    per_token = shape.layers * (34 * shape.hidden + 5 * shape.hidden / 64 * tokens)
    return states + micro_tokens * per_token * (1 if half else 2)


def read_shape(folder: Path) -> Shape:
    """The shape of a model from its config.json; BERT-base's where it does not say."""
    try:
        config = json.loads(read_input(folder / "config.json"))
        hidden, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
        words = int(config["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return BERT_BASE
    return Shape(hidden, layers, 12 * hidden**2 * layers + hidden * words)


def _rate(device: str, cores: int, *, training: bool) -> float:
    rate = RATES["cuda" if device.startswith("cuda") else "cpu"]
    return (rate.training if training else rate.embedding) * (cores if device == "cpu" else 1)
