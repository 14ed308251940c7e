"""What the settings of a stranger's model must not ask of transformers: files elsewhere, pickles, code of the hub.

    check_config(path, config)       config.json names no other weights, and no kernels of the hub to compute attention
    check_sizes(path, config, held)  the network that it describes is not larger than the weights could be
    check_shards(path, index)        model.safetensors.index.json names safetensors beside it, and nothing else

transformers believes both: a shard may be any path and any kind of file, a pickle too. Code that `auto_map` names is not
run, because nothing is loaded with remote code. Reads no file.

What an untrusted tokenizer.json must not do to us: patterns that never end, replacements that grow without bound.

    check_tokenizer(folder)          refuses what would take exponential time or memory to read a text

The tokenizers library compiles the patterns of the file and runs them on every text. Reads one file and runs nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from citeweave.core.errors import InputError, UserError
from citeweave.core.files import read_input

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


# What an untrusted tokenizer.json must not do to us: patterns that never end, replacements that grow without bound.

TOKENIZER = "tokenizer.json"
MAX_BYTES = 1 << 28
"""The largest known vocabularies have some 30 MB."""

_MAX_PATTERN, _MAX_CONTENT, _MAX_GROWING = 4000, 64, 8
_MEMBER = re.compile(
    r"""
    (?P<escape>\\.) | (?P<set>\[\^?\]?(?:\\.|[^\]\\])*\]) | (?P<open>\() | (?P<close>\))
    | (?P<repeat>[*+]|\{\d+,\}) | (?P<either>\|) | (?P<other>.)
    """,
    re.DOTALL | re.VERBOSE,
)


def check_tokenizer(folder: Path) -> None:
    """Refuse a tokenizer whose patterns or replacements could take for ever, or all memory."""
    path = folder / TOKENIZER
    if not path.is_file():
        return
    if path.stat().st_size > MAX_BYTES:
        raise InputError(f"{path} has more than {MAX_BYTES:,} bytes; no tokenizer is that large")
    try:
        steps = list(_steps(json.loads(read_input(path))))
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not JSON; copy the whole folder of the model again") from None
    for step in steps:
        text = _pattern(step, "Regex")
        if len(text) > _MAX_PATTERN or is_exponential(text):
            raise InputError(
                f"{path}: the pattern {text[:60]!r} repeats a group that can match in several ways, which may take for "
                "ever; do not use this tokenizer"
            )
    if any(len(str(step.get("prepend", ""))) > _MAX_CONTENT for step in steps):
        raise InputError(
            f"{path} sets more than {_MAX_CONTENT} characters before every text; do not use this tokenizer"
        )
    growing = [str(step["content"]) for step in steps if _grows(step)]
    if len(growing) > _MAX_GROWING or any(len(content) > _MAX_CONTENT for content in growing):
        raise InputError(
            f"{path} has {len(growing)} replacements that make texts longer; it may have {_MAX_GROWING}, each of at most "
            f"{_MAX_CONTENT} characters: do not use this tokenizer"
        )


def is_exponential(pattern: str) -> bool:
    r"""Whether a group that is repeated without bound has an alternative, or a repetition without bound, inside it.

    >>> is_exponential("(a+)+$"), is_exponential("(?:a|aa)*b"), is_exponential("((a)*x){2,}")
    (True, True, True)
    >>> is_exponential(r" ?[^\s(+]+|(?:'s|'t)|\s+(?!\S)|(ab)+|\(+")
    False
    """
    groups, ended = [False], False  # of every open group, and of the one that ended just now, whether it may vary
    for found in _MEMBER.finditer(pattern):
        kind = found.lastgroup
        if kind == "repeat" and ended:
            return True
        if kind == "open":
            groups.append(False)
        elif kind in ("repeat", "either"):
            groups[-1] = True
        ended = groups.pop() if kind == "close" and len(groups) > 1 else False
        groups[-1] = groups[-1] or ended
    return False


def _pattern(step: dict[str, Any], kind: str) -> str:
    pattern = step.get("pattern")
    text = pattern.get(kind) if isinstance(pattern, dict) else None
    return text if isinstance(text, str) else ""


def _grows(step: dict[str, Any]) -> bool:
    content = step.get("content") if step.get("type") == "Replace" else None
    return isinstance(content, str) and len(content) > max(1, len(_pattern(step, "String")))


def _steps(value: Any) -> Iterator[dict[str, Any]]:
    """Every step of the normalizer and the pre-tokenizer; the vocabulary, which is large, is left out."""
    waiting = (
        [value.get(part) for part in ("normalizer", "pre_tokenizer", "decoder")] if isinstance(value, dict) else []
    )
    while waiting:
        held = waiting.pop()
        if isinstance(held, dict):
            yield held
            waiting.extend(held.values())
        elif isinstance(held, list):
            waiting.extend(held)
