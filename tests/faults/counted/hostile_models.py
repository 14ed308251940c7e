"""Folders of models that load or nearly do, and then hang, grow or fail: each maker spoils a sound one.

Code and pickles are in `trapped_models.py`; here it is sizes, patterns, pipes and settings that do not fit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from .traps import change_json

Spoil = Callable[[Path], object]


def _json(name: str, **values: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        if not (folder / name).is_file():
            (folder / name).write_text("{}")
        change_json(folder / name, lambda told: told.update(values))

    return spoil


def _tokenizer(**values: Any) -> Spoil:
    return _json("tokenizer.json", **values)


def _split(pattern: str) -> Spoil:
    return _tokenizer(
        pre_tokenizer={"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    )


def _replaced(times: int, content: str) -> Spoil:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": content}
    return _tokenizer(normalizer={"type": "Sequence", "normalizers": [step] * times})


def _pipe(name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return spoil


def _link(name: str, target: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return spoil


def _written(name: str, content: bytes) -> Spoil:
    return lambda folder: (folder / name).write_bytes(content)


def _weights(change: Callable[[Any], Any]) -> Spoil:
    def spoil(folder: Path) -> None:
        held = load_file(folder / "model.safetensors")
        save_file({name: change(value) for name, value in held.items()}, folder / "model.safetensors", {"format": "pt"})

    return spoil


def _sentence_transformer(**values: Any) -> Spoil:
    """A folder of sentence-transformers with these settings."""

    def spoil(folder: Path) -> None:
        kinds = ("Transformer", "Pooling")
        modules = [
            {
                "idx": n,
                "name": str(n),
                "path": "" if n == 0 else "1_Pooling",
                "type": f"sentence_transformers.models.{kind}",
            }
            for n, kind in enumerate(kinds)
        ]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(values.get("pooling", {"pooling_mode": "mean"})))
        (folder / "sentence_bert_config.json").write_text(json.dumps(values.get("bert", {})))
        (folder / "config_sentence_transformers.json").write_text(json.dumps(values.get("told", {})))

    return spoil


def _template(folder: Path) -> None:
    """A special token that the vocabulary does not have."""
    single = [{"SpecialToken": {"id": "[NOBODY]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {"[NOBODY]": {"id": "[NOBODY]", "ids": [10**9], "tokens": ["[NOBODY]"]}}
    post = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": special}
    _tokenizer(post_processor=post)(folder)


def _vocabulary(change: Callable[[dict[str, int]], object]) -> Spoil:
    return lambda folder: change_json(folder / "tokenizer.json", lambda told: change(told["model"]["vocab"]))


HOSTILE: dict[str, Spoil] = {
    "a pattern of repeated repetitions": _split("(a+)+$"),
    "a pattern of alternatives": _split("(?:a|aa)+$"),
    "a pattern inside a pattern": _split("((?:x*a)*b)*$"),
    "a pattern of 100,000 signs": _split("a?" * 50_000),
    "a pattern that is none": _split("(["),
    "a replacement by a million signs": _replaced(1, "a" * 1_000_000),
    "forty doublings": _replaced(40, "aa"),
    "a prefix of ten million signs": _tokenizer(normalizer={"type": "Prepend", "prepend": "a" * 10_000_000}),
    "a token of the frame that is not there": _template,
    "ids beyond the network": _vocabulary(lambda vocab: vocab.update(cell=10**6)),
    "negative ids": _vocabulary(lambda vocab: vocab.update(cell=-5)),
    "two words of one id": _vocabulary(lambda vocab: vocab.update(cell=vocab["the"])),
    "no unknown word": _vocabulary(lambda vocab: vocab.pop("[UNK]")),
    "no words": _vocabulary(lambda vocab: vocab.clear()),
    "a tokenizer that is a list": _written("tokenizer.json", b"[]"),
    "a tokenizer that is cut off": lambda folder: (folder / "tokenizer.json").write_bytes(
        (folder / "tokenizer.json").read_bytes()[:500]
    ),
    "a tokenizer nested deeply": _written("tokenizer.json", b"[" * 100_000 + b"]" * 100_000),
    "a longest text that is a word": _json("tokenizer_config.json", model_max_length="many"),
    "a longest text of minus five": _json("tokenizer_config.json", model_max_length=-5),
    "a longest text of 10**30": _json("tokenizer_config.json", model_max_length=10**30),
    "padding that is not there": _json("tokenizer_config.json", pad_token="[NOBODY]"),
    "a template for chats": _json(
        "tokenizer_config.json", chat_template="{{ cycler.__init__.__globals__.os.system(1) }}"
    ),
    "no kinds of tokens": _json("config.json", type_vocab_size=0),
    "no heads": _json("config.json", num_attention_heads=0),
    "heads that do not divide": _json("config.json", num_attention_heads=7),
    "a width of nothing": _json("config.json", hidden_size=0),
    "a width below nothing": _json("config.json", hidden_size=-32),
    "a width that is a word": _json("config.json", hidden_size="wide"),
    "no places": _json("config.json", max_position_embeddings=0),
    "two places": _json("config.json", max_position_embeddings=2),
    "no layers": _json("config.json", num_hidden_layers=0),
    "an unknown activation": _json("config.json", hidden_act="os.system"),
    "an unknown number type": _json("config.json", dtype="float1"),
    "an unknown kind of model": _json("config.json", model_type="nobody"),
    "a model of pictures": _json("config.json", model_type="vit"),
    "a decoder": _json("config.json", is_decoder=True),
    "dropout of 5": _json("config.json", hidden_dropout_prob=5.0),
    "an epsilon that is a word": _json("config.json", layer_norm_eps="small"),
    "padding beyond the words": _json("config.json", pad_token_id=10**9),
    "a config that is a list": _written("config.json", b"[]"),
    "weights that are not numbers": _weights(lambda value: value * np.float32("nan")),
    "weights that are infinite": _weights(lambda value: value + np.float32("inf")),
    "weights of another shape": _weights(lambda value: value[:1]),
    "weights of half precision": _weights(lambda value: value.astype(np.float16)),
    "weights of whole numbers": _weights(lambda value: value.astype(np.int64)),
    "no weights": _weights(lambda value: value[:0]),
    "a pipe for a tokenizer": _pipe("tokenizer.json"),
    "a pipe for weights": _pipe("model.safetensors"),
    "a pipe for settings": _pipe("config.json"),
    "a pipe that nobody reads": _pipe("special_tokens_map.json"),
    "a link to itself": _link("tokenizer.json", "tokenizer.json"),
    "a link to a device": _link("tokenizer.json", "/dev/zero"),
    "a link to passwords": _link("tokenizer.json", "/etc/passwd"),
    "a longest text of a billion": _sentence_transformer(bert={"max_seq_length": 10**9}),
    "a longest text of nothing": _sentence_transformer(bert={"max_seq_length": 0}),
    "a longest text that is true": _sentence_transformer(bert={"max_seq_length": True}),
    "a pooling that nobody knows": _sentence_transformer(pooling={"pooling_mode": "evil"}),
    "a pooling that is a number": _sentence_transformer(pooling={"pooling_mode": 5}),
    "poolings by the thousand": _sentence_transformer(pooling={"pooling_mode": ["mean"] * 10_000}),
    "a prompt of a hundred thousand signs": _sentence_transformer(
        told={"default_prompt_name": "q", "prompts": {"q": "a" * 100_000}}
    ),
    "prompts that are a list": _sentence_transformer(told={"default_prompt_name": "q", "prompts": ["q"]}),
}
