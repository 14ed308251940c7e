"""What the settings of a stranger's model must not ask of transformers: files elsewhere, pickles, code of the hub.

    check_config(path, config)       config.json names no other weights, and no kernels of the hub to compute attention
    check_sizes(path, config, held)  the network that it describes is not larger than the weights could be
    check_shards(path, index)        model.safetensors.index.json names safetensors beside it, and nothing else

transformers believes both: a shard may be any path and any kind of file, a pickle too. Code that `auto_map` names is not
run, because nothing is loaded with remote code. Reads no file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from citeweave.errors import InputError, UserError

_SHARD = re.compile(r"\w[\w.-]*\.safetensors")
_SIDES = (
    "hidden_size",
    "vocab_size",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "embedding_size",
)
_LAYERS = ("num_hidden_layers", "num_layers", "num_hidden_groups", "inner_group_num", "num_attention_heads")
_MOST_LAYERS = 1000
_SMALL = 1 << 28
"""Numbers of a table that may be made in any case: a gigabyte."""

_IMPLEMENTATION = re.compile(r"_?\w+_implementation(_internal)?")


def check_config(path: Path, config: dict[str, Any]) -> None:
    """Refuse a config.json that leads to weights or code elsewhere."""
    for key, value in _pairs(config):
        if key == "transformers_weights":
            raise UserError(f"{path} names other weights ({str(value)[:100]!r}); give a model with model.safetensors")
        if _IMPLEMENTATION.fullmatch(key) and "/" in str(value):
            raise UserError(
                f"{path} wants code of the hub ({key} is {str(value)[:100]!r}), which is never run here; remove {key}"
            )


def check_sizes(path: Path, config: dict[str, Any], held: int) -> None:
    """Refuse a network much larger than `held`, the bytes of its weights: it would be made before they are compared."""
    numbers = {key: value for key, value in config.items() if type(value) is int}
    width = numbers.get("hidden_size", 0)
    for key in _SIDES:
        if numbers.get(key, 0) * max(1, width) > max(held, _SMALL):
            raise InputError(
                f"{path}: {key} is {numbers[key]:,}, and the weights have {held:,} bytes; copy the model again"
            )
    for key in _LAYERS:
        if numbers.get(key, 0) > _MOST_LAYERS:
            raise InputError(f"{path}: {key} is {numbers[key]:,}; a model has {_MOST_LAYERS:,} at most")


def check_shards(path: Path, index: dict[str, Any]) -> None:
    """Refuse a list of shards that names anything but safetensors in its own folder."""
    shards = index.get("weight_map")
    if not isinstance(shards, dict):
        raise InputError(f"{path} lists no weights (weight_map); copy the whole folder of the model again")
    for name in shards.values():
        if not (isinstance(name, str) and _SHARD.fullmatch(name)):
            raise InputError(
                f"{path} names the shard {str(name)[:100]!r}; shards are safetensors in the folder of the model: do not use it"
            )


def _pairs(value: object) -> Iterator[tuple[str, object]]:
    """Every key of a JSON value with what it holds, however deep."""
    waiting = [value]
    while waiting:
        held = waiting.pop()
        if isinstance(held, dict):
            yield from held.items()
            waiting.extend(held.values())
        elif isinstance(held, list):
            waiting.extend(held)
