"""Checks of untrusted model files: config.json, shard lists, tokenizer.json and safetensors, before anything uses them.

    check_config(path, config)       config.json names no other weights, and no kernels of the hub to compute attention
    check_sizes(path, config, held)  the network that it describes is not larger than the weights could be
    check_shards(path, index)        model.safetensors.index.json names safetensors beside it, and nothing else
    check_tokenizer(folder)          no patterns or replacements that take exponential time or memory on a text
    read_tensors(path, {"layer_weights": (7,)})["layer_weights"].shape == (7,)

transformers trusts config.json and the shard list: a shard may be any path and any kind of file, even a pickle. Code named
in `auto_map` is not run, because nothing is loaded with remote code. The tokenizers library compiles the patterns of
tokenizer.json and runs them on every text. Names, shapes and dtypes of small safetensors files are checked before a number
is read, so that memory stays within what the caller expects. Complete models are loaded by transformers (`network.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import InputError, UserError, require
from citeweave.core.files import open_input, read_input

if TYPE_CHECKING:
    from torch import Tensor

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
_MAX_LAYERS = 1000
_SMALL = 1 << 28
"""Size of a table that is accepted in any case: a gigabyte of float32."""

_IMPLEMENTATION = re.compile(r"_?\w+_implementation(_internal)?")

TOKENIZER = "tokenizer.json"
MAX_BYTES = 1 << 28
"""Largest tokenizer.json that is accepted; known vocabularies have up to some 30 MB."""

_MAX_PATTERN, _MAX_CONTENT, _MAX_GROWING = 4000, 64, 8
_MEMBER = re.compile(
    r"""
    (?P<escape>\\.) | (?P<set>\[\^?\]?(?:\\.|[^\]\\])*\]) | (?P<open>\() | (?P<close>\))
    | (?P<repeat>[*+]|\{\d+,\}) | (?P<either>\|) | (?P<other>.)
    """,
    re.DOTALL | re.VERBOSE,
)

_MAX_HEADER = 8 << 20
"""Largest header of a safetensors file; that of a model with 10,000 tensors has 1.5 million bytes."""

_NUMBERS = ("F32", "F16", "BF16")


def check_config(path: Path, config: dict[str, Any]) -> None:
    """Refuse an untrusted model's config.json that refers to other weights or to code of the hub."""
    for key, value in ((key, value) for table in _tables(config) for key, value in table.items()):
        if key == "transformers_weights":
            raise UserError(f"{path} names other weights ({str(value)[:100]!r}); give a model with model.safetensors")
        if _IMPLEMENTATION.fullmatch(key) and "/" in str(value):
            raise UserError(
                f"{path} requires code of the hub ({key} is {str(value)[:100]!r}), which is never run here; remove {key}"
            )


def check_sizes(path: Path, config: dict[str, Any], held: int) -> None:
    """Refuse an untrusted network much larger than `held`, the bytes of its weights, before it is allocated."""
    numbers = {key: value for key, value in config.items() if type(value) is int}
    width = numbers.get("hidden_size", 0)
    for key in _SIDES:
        if numbers.get(key, 0) * max(1, width) > max(held, _SMALL):
            raise InputError(
                f"{path}: {key} is {numbers[key]:,}, and the weights have {held:,} bytes; copy the model again"
            )
    for key in _LAYERS:
        if numbers.get(key, 0) > _MAX_LAYERS:
            raise InputError(f"{path}: {key} is {numbers[key]:,}; a model has at most {_MAX_LAYERS:,}")


def check_shards(path: Path, index: dict[str, Any]) -> None:
    """Refuse an untrusted model's list of shards that names anything but safetensors in its own folder."""
    shards = index.get("weight_map")
    if not isinstance(shards, dict):
        raise InputError(f"{path} lists no weights (weight_map); copy the complete folder of the model again")
    for name in shards.values():
        if not (isinstance(name, str) and _SHARD.fullmatch(name)):
            raise InputError(
                f"{path} names the shard {str(name)[:100]!r}; shards are safetensors in the folder of the model: do not use it"
            )


def _tables(*values: object) -> Iterator[dict[str, Any]]:
    """Yield every JSON object inside values, at any depth."""
    waiting = [*values]
    while waiting:
        held = waiting.pop()
        if isinstance(held, dict):
            yield held
            waiting.extend(held.values())
        elif isinstance(held, list):
            waiting.extend(held)


# --- tokenizer.json ------------------------------------------------------------------------------------


def check_tokenizer(folder: Path) -> None:
    """Refuse an untrusted tokenizer.json whose patterns or replacements could run forever or take all memory."""
    path = folder / TOKENIZER
    if not path.is_file():
        return
    if path.stat().st_size > MAX_BYTES:
        raise InputError(f"{path} has more than {MAX_BYTES:,} bytes; no tokenizer is that large")
    try:
        steps = list(_steps(json.loads(read_input(path))))
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not JSON; copy the complete folder of the model again") from None
    for step in steps:
        text = _pattern(step, "Regex")
        if len(text) > _MAX_PATTERN or _is_exponential(text):
            raise InputError(
                f"{path}: the pattern {text[:60]!r} repeats a group that can match in several ways, which may run "
                "forever; do not use this tokenizer"
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


def _is_exponential(pattern: str) -> bool:
    r"""Return whether a pattern repeats a group with an alternative or an unbounded repetition inside it.

    >>> _is_exponential("(a+)+$"), _is_exponential("(?:a|aa)*b"), _is_exponential("((a)*x){2,}")
    (True, True, True)
    >>> _is_exponential(r" ?[^\s(+]+|(?:'s|'t)|\s+(?!\S)|(ab)+|\(+")
    False
    """
    groups, ended = [False], False  # whether every open group, and the one that just ended, may vary
    for member in _MEMBER.finditer(pattern):
        kind = member.lastgroup
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
    """Yield every step of the normalizer, pre-tokenizer and decoder of a tokenizer.json; the vocabulary is skipped."""
    if isinstance(value, dict):
        yield from _tables(*(value.get(part) for part in ("normalizer", "pre_tokenizer", "decoder")))


# --- safetensors ---------------------------------------------------------------------------------------


def read_tensors(path: Path, expected: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file as float32, after checking names and shapes against `expected`."""
    any_float = {name: (_NUMBERS, shape) for name, shape in expected.items()}
    return {name: tensor.float() for name, tensor in read_stored(path, any_float, needed=set(expected)).items()}


def read_float_arrays(path: Path, expected: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[np.float32]]:
    """Read a safetensors file of float32 or float16 as float32 arrays, checked as by `read_tensors`, without torch."""
    floats = {name: (("F32", "F16"), shape) for name, shape in expected.items()}
    stored = _read_checked(path, floats, set(expected), "numpy")
    for name, array in stored.items():
        _refuse_infinite(path, name, bool(np.isfinite(array).all()))
    return {name: np.asarray(array, np.float32) for name, array in stored.items()}


def read_stored(
    path: Path, expected: Mapping[str, tuple[tuple[str, ...], tuple[int, ...]]], *, needed: set[str]
) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file as stored, after checking their dtypes (such as I8) and shapes."""
    tensors = _read_checked(path, expected, needed, "pt")
    for name, tensor in tensors.items():
        _refuse_infinite(path, name, not tensor.is_floating_point() or bool(tensor.isfinite().all()))
    return tensors


def _read_checked(path: Path, expected: Mapping[str, Any], needed: set[str], framework: str) -> dict[str, Any]:
    _check_header(path)
    safetensors = require("safetensors", extra="minilm")
    try:
        with safetensors.safe_open(path, framework=framework, device="cpu") as file:
            names = sorted(file.keys())
            _check_names(path, names, expected, needed)
            for name in names:
                _check_shape(path, name, file.get_slice(name), *expected[name])
            return {name: file.get_tensor(name) for name in names}
    except (OSError, safetensors.SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise InputError(f"{path} is not a complete safetensors file ({reason}); copy it again") from None


def _refuse_infinite(path: Path, name: str, is_finite: bool) -> None:
    if not is_finite:
        raise InputError(f"{path}: {name} holds numbers that are not finite; the training failed, or it is damaged")


def check_finite(tensors: dict[str, Tensor]) -> None:
    """Refuse to save weights that are not finite."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise UserError(f"{name} holds numbers that are not finite in {tensor.dtype}; the model is not saved")


def _check_header(path: Path) -> None:
    try:
        size = path.stat().st_size
        with open_input(path) as file:
            header = int.from_bytes(file.read(8), "little")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); copy the complete folder") from None
    if size < 8 or header > min(size - 8, _MAX_HEADER):
        raise InputError(
            f"{path} is not a complete safetensors file (a header of {header:,} bytes in {size:,}); copy it again"
        )


def _check_names(path: Path, names: list[str], expected: Mapping[str, object], needed: set[str]) -> None:
    if unknown := [name for name in names if name not in expected]:
        raise InputError(f"{path}: {unknown[0][:100]!r} is not an expected tensor ({len(unknown)} such)")
    if lacking := sorted(needed - set(names)):
        raise InputError(f"{path} lacks {len(lacking)} tensors, such as {lacking[0]}; copy it again")


def _check_shape(path: Path, name: str, part: Any, kinds: tuple[str, ...], expected: tuple[int, ...]) -> None:
    shape, numbers = tuple(part.get_shape()), str(part.get_dtype())
    if shape != expected or numbers not in kinds:
        raise InputError(
            f"{path}: {name} is {numbers} of shape {shape}; it must be {' or '.join(kinds)} of shape {expected}"
        )
