"""Folders of models of untrusted people: sound ones that were spoiled.

`HOSTILE` load or nearly do, and then hang, grow or fail: sizes, patterns, pipes and settings that do not fit. `MODELS` are
traps with code, pickles, files elsewhere and numbers that are not there; `NOT_READ` have such things beside a sound model.
"""

import hashlib
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

import citeweave as cw
from citeweave.encoders.delta import base_revision, open_model
from citeweave.encoders.untrusted_model import read_tensors

from .traps import Lab, Maker, Trap, change_json, later, unpickle, unyaml

Spoil = Callable[[Path], object]


@later
def _json(folder: Path, name: str, **values: Any) -> None:
    if not (folder / name).is_file():
        (folder / name).write_text("{}")
    change_json(folder / name, lambda told: told.update(values))


_config, _tokenizer, _texts = (partial(_json, f"{name}.json") for name in ("config", "tokenizer", "tokenizer_config"))


def _split(pattern: str) -> Spoil:
    how = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return _tokenizer(pre_tokenizer=how)


def _replaced(times: int, content: str) -> Spoil:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": content}
    return _tokenizer(normalizer={"type": "Sequence", "normalizers": [step] * times})


@later
def _instead(folder: Path, name: str, put: Callable[[Path], object] = lambda path: None) -> None:
    """Without a file; or with something else in its place."""
    (folder / name).unlink(missing_ok=True)
    put(folder / name)


@later
def _written(folder: Path, name: str, content: bytes | str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


@later
def _weights(folder: Path, change: Callable[[Any], Any]) -> None:
    held = load_file(folder / "model.safetensors")
    save_file({name: change(value) for name, value in held.items()}, folder / "model.safetensors", {"format": "pt"})


def _modules(*paths_and_types: tuple[str, str]) -> Spoil:
    listed = [{"idx": n, "name": str(n), "path": path, "type": kind} for n, (path, kind) in enumerate(paths_and_types)]
    return _written("modules.json", json.dumps(listed))


THEIRS = "sentence_transformers.models"


@later
def _sentence_transformer(folder: Path, **values: Any) -> None:
    """A folder of sentence-transformers with these settings."""
    _modules(("", f"{THEIRS}.Transformer"), ("1_Pooling", f"{THEIRS}.Pooling"))(folder)
    names = {"pooling": "1_Pooling/config", "bert": "sentence_bert_config", "told": "config_sentence_transformers"}
    for part, name in names.items():
        _written(f"{name}.json", json.dumps({"pooling": {"pooling_mode": "mean"}, **values}.get(part, {})))(folder)


def _template(folder: Path) -> None:
    """A special token that the vocabulary does not have."""
    single = [{"SpecialToken": {"id": "[NOBODY]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {"[NOBODY]": {"id": "[NOBODY]", "ids": [10**9], "tokens": ["[NOBODY]"]}}
    post = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": special}
    _tokenizer(post_processor=post)(folder)


@later
def _vocabulary(folder: Path, change: Callable[[dict[str, int]], object]) -> None:
    change_json(folder / "tokenizer.json", lambda told: change(told["model"]["vocab"]))


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
    "a tokenizer that is cut off": lambda folder: os.truncate(folder / "tokenizer.json", 500),
    "a tokenizer nested deeply": _written("tokenizer.json", b"[" * 100_000 + b"]" * 100_000),
    "a longest text that is a word": _texts(model_max_length="many"),
    "a longest text of minus five": _texts(model_max_length=-5),
    "a longest text of 10**30": _texts(model_max_length=10**30),
    "padding that is not there": _texts(pad_token="[NOBODY]"),
    "a template for chats": _texts(chat_template="{{ cycler.__init__.__globals__.os.system(1) }}"),
    "no kinds of tokens": _config(type_vocab_size=0),
    "no heads": _config(num_attention_heads=0),
    "heads that do not divide": _config(num_attention_heads=7),
    "a width of nothing": _config(hidden_size=0),
    "a width below nothing": _config(hidden_size=-32),
    "a width that is a word": _config(hidden_size="wide"),
    "no places": _config(max_position_embeddings=0),
    "two places": _config(max_position_embeddings=2),
    "no layers": _config(num_hidden_layers=0),
    "an unknown activation": _config(hidden_act="os.system"),
    "an unknown number type": _config(dtype="float1"),
    "an unknown kind of model": _config(model_type="nobody"),
    "a model of pictures": _config(model_type="vit"),
    "a decoder": _config(is_decoder=True),
    "dropout of 5": _config(hidden_dropout_prob=5.0),
    "an epsilon that is a word": _config(layer_norm_eps="small"),
    "padding beyond the words": _config(pad_token_id=10**9),
    "a config that is a list": _written("config.json", b"[]"),
    "weights that are not numbers": _weights(lambda value: value * np.float32("nan")),
    "weights that are infinite": _weights(lambda value: value + np.float32("inf")),
    "weights of another shape": _weights(lambda value: value[:1]),
    "weights of half precision": _weights(lambda value: value.astype(np.float16)),
    "weights of whole numbers": _weights(lambda value: value.astype(np.int64)),
    "no weights": _weights(lambda value: value[:0]),
    "a pipe for a tokenizer": _instead("tokenizer.json", os.mkfifo),
    "a pipe for weights": _instead("model.safetensors", os.mkfifo),
    "a pipe for settings": _instead("config.json", os.mkfifo),
    "a pipe that nobody reads": _instead("special_tokens_map.json", os.mkfifo),
    "a link to itself": _instead("tokenizer.json", lambda path: path.symlink_to("tokenizer.json")),
    "a link to a device": _instead("tokenizer.json", lambda path: path.symlink_to("/dev/zero")),
    "a link to passwords": _instead("tokenizer.json", lambda path: path.symlink_to("/etc/passwd")),
    "a longest text of a billion": _sentence_transformer(bert={"max_seq_length": 10**9}),
    "a longest text of nothing": _sentence_transformer(bert={"max_seq_length": 0}),
    "a longest text that is true": _sentence_transformer(bert={"max_seq_length": True}),
    "a pooling that nobody knows": _sentence_transformer(pooling={"pooling_mode": "evil"}),
    "a pooling that is a number": _sentence_transformer(pooling={"pooling_mode": 5}),
    "poolings by the thousand": _sentence_transformer(pooling={"pooling_mode": ["mean"] * 10_000}),
    "a prompt of a hundred thousand signs": _sentence_transformer(told={"default_prompt_name": "q", "prompts": {"q": "a" * 100_000}}),
    "prompts that are a list": _sentence_transformer(told={"default_prompt_name": "q", "prompts": ["q"]}),
}  # fmt: skip


# --- traps ------------------------------------------------------------------------------------------------


def _payload(lab: Lab, path: Path) -> Callable[[], object]:
    """Put a payload there, by the kind of the file; what a careless program does with it."""
    if path.suffix == ".py":
        path.write_text(f"import os\nos.system({lab.command!r})\nclass Evil: pass\n")
        return lambda: exec(path.read_text(), {})
    if path.suffix == ".md":
        path.write_text(f"---\ntags: {lab.yaml}\n---\n# A model\n")
        return lambda: unyaml(path)
    path.write_bytes(lab.pickled)
    return unpickle(path)


@later
def _model(lab: Lab, *spoils: Spoil, fires: str = "") -> Trap:
    """A sound model, spoiled; `fires` is the file of the folder that has the payload."""
    folder = lab.copy("model")
    for spoil in spoils:
        spoil(folder)
    return Trap(lambda: cw.load_encoder(folder, device="cpu"), _payload(lab, folder / fires) if fires else None)


@later
def _sharded(folder: Path, shard: str) -> None:
    index = {"metadata": {"total_size": 1}, "weight_map": {"embeddings.word_embeddings.weight": shard}}
    (folder / "model.safetensors").rename(folder.parent / "elsewhere.safetensors")
    _written("model.safetensors.index.json", json.dumps(index))(folder)


def _shard_with_an_absolute_name(lab: Lab) -> Trap:
    path = lab.file("elsewhere.bin", lab.pickled)
    return Trap(_model(_sharded(str(path)))(lab).open, unpickle(path))


FLOATS = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


def _tensors(data: int = 16, *, length: int | None = None, **described: dict[str, Any]) -> bytes:
    """A file of this header, which need not be true."""
    text = json.dumps({name.replace("__", "."): FLOATS | told for name, told in described.items()}).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + bytes(data)


@later
def _delta(lab: Lab, content: bytes | None, base: str = "") -> Trap:
    """A delta with these numbers, or with a pickle."""
    told = {"format": "citeweave-delta", "version": 2, "kind": "all", "matrices": {}}
    told |= {"sha256": hashlib.sha256(content or lab.pickled).hexdigest()}
    told |= {"base": base or str(lab.sound / "model")}
    told["base_revision"] = base_revision(open_model(lab.sound / "model"))
    told["settings"] = {"pooling": "mean", "max_tokens": 32, "normalize": False, "lower": False, "prompt": ""}
    folder = lab.file("delta/delta.json", json.dumps(told)).parent
    path = lab.file("delta/delta.safetensors", content or lab.pickled)
    return Trap(lambda: cw.load_encoder(folder, device="cpu"), None if content else unpickle(path))


def _classifier(lab: Lab) -> Trap:
    path = lab.file("heads.safetensors", lab.pickled)
    return Trap(lambda: read_tensors(path, {"scicite.bias": (3,)}), unpickle(path))


EVIL = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"}
ADAPTER = _written("adapter_config.json", '{"peft_type": "LORA", "base_model_name_or_path": "/etc", "r": 1}')
BIAS = "encoder__layer__0__output__dense__bias"
SHARD = "pytorch_model-00001-of-00001.bin"


def _numbers(data: int = 16, **told: Any) -> Maker:
    return _model(_written("model.safetensors", _tensors(data, **told)))


MODELS: dict[str, Maker] = {
    "modules with a class of the folder": _model(_modules(("", "evil.Evil")), fires="evil.py"),
    "modules with a class of Python": _model(_modules(("", f"{THEIRS}.Transformer"), ("1", "subprocess.Popen"))),
    "modules in a folder that leads up": _model(_modules(("../elsewhere", f"{THEIRS}.Transformer"))),
    "a config with a model of the folder": _model(_config(auto_map=EVIL, model_type="evil", architectures=["Evil"]), fires="evil.py"),
    "a tokenizer of the folder": _model(
        _texts(auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]}, tokenizer_class="Evil"), _instead("tokenizer.json"), fires="evil.py",
    ),
    "a tokenizer with unknown parts": _model(_tokenizer(pre_tokenizer={"type": "Python", "code": "touch canary"})),
    "weights as a pickle": _model(_instead("model.safetensors"), fires="pytorch_model.bin"),
    "a pickle called safetensors": _model(fires="model.safetensors"),
    "a shard that is a pickle": _model(_sharded(SHARD), fires=SHARD),
    "a shard that leads up": _model(_sharded("../elsewhere.safetensors")),
    "a shard with an absolute name": _shard_with_an_absolute_name,
    "an adapter with a pickle": _model(ADAPTER, _instead("config.json"), fires="adapter_model.bin"),
    "an adapter beside a whole model": _model(ADAPTER, fires="adapter_model.bin"),
    "a config that names a pickle": _model(_config(transformers_weights="adapter_model.bin"), fires="adapter_model.bin"),
    "a config with code of the hub": _model(_config(attn_implementation="evil/kernel")),
    "a config of a million layers": _model(_config(num_hidden_layers=1_000_000)),
    "a config of a billion words": _model(_config(vocab_size=10**9)),
    "a config nested deeply": _model(_written("config.json", '{"model_type": "bert", "a": ' + "[" * 100_000 + "]" * 100_000 + "}")),
    "weights with a header of 16 EiB": _numbers(a={}, length=2**64 - 1),
    "weights that overlap": _numbers(24, a={}, b={"data_offsets": [8, 24]}),
    "weights beyond the file": _numbers(a={"shape": [2**40], "data_offsets": [0, 2**42]}),
    "weights of 2 to the 62 numbers": _numbers(a={"shape": [2**31, 2**31]}),
    "a delta of a base that leads up": _delta(_tensors(a={}), "../../elsewhere"),
    "a delta with a pickle": _delta(None),
    "a delta with numbers that overlap": _delta(_tensors(128, **{BIAS: {"shape": [32], "data_offsets": [0, 128]}}, b={"data_offsets": [64, 80]})),
    "a delta with a header of 8 GiB": _delta(_tensors(a={}, length=2**33)),
    "a classifier with a pickle": _classifier,
}  # fmt: skip


def _onnx_with_numbers_elsewhere() -> bytes:
    """A tensor of an ONNX graph with `location: ../../canary`; such files of a model's folder are never read."""
    place = b"\x0a\x08location\x12\x0c../../canary"
    tensor = b"\x08\x04\x10\x01\x42\x01w" + b"\x6a" + bytes([len(place)]) + place + b"\x70\x01"
    graph = b"\x2a" + bytes([len(tensor)]) + tensor
    return b"\x08\x08\x3a" + bytes([len(graph)]) + graph


CODE = "raise RuntimeError('code of the folder was run')"
NOT_READ: dict[str, Maker] = {
    "a model card with a tag": _model(fires="README.md"),
    "a pickle beside weights": _model(fires="pytorch_model.bin"),
    "code of the folder for a known model": _model(_config(auto_map=EVIL), fires="evil.py"),
    "code beside a model": _model(
        _written("tokenizers.py", CODE), _written("modeling_bert.py", CODE), fires="torch.py"
    ),
    "ONNX with numbers elsewhere": _model(_written("onnx/model.onnx", _onnx_with_numbers_elsewhere())),
}
