"""Traps in the folders of models: code, pickles, files elsewhere, numbers that are not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from citeweave.encoders.encoder import load_encoder
from citeweave.intents.network import load_delta

from .traps import Lab, Trap, change_json, safetensors_file

FLOATS = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


def _load(folder: Path) -> Callable[[], object]:
    return lambda: load_encoder(folder, device="cpu")


def _code(lab: Lab, folder: Path, name: str) -> Callable[[], object]:
    """A module that runs the command when it is imported."""
    path = folder / name
    path.write_text(f"import os\nos.system({lab.command!r})\nclass Evil: pass\n")
    return lambda: exec(path.read_text(), {})


def _configured(lab: Lab, name: str = "config.json", **values: Any) -> Path:
    folder = lab.copy("model")
    change_json(folder / name, lambda config: config.update(values))
    return folder


def modules_with_a_class_of_the_folder(lab: Lab) -> Trap:
    folder = lab.copy("model")
    fire = _code(lab, folder, "evil.py")
    (folder / "modules.json").write_text('[{"idx": 0, "name": "0", "path": "", "type": "evil.Evil"}]')
    return Trap(_load(folder), fire)


def modules_with_a_class_of_python(lab: Lab) -> Trap:
    folder = lab.copy("model")
    listed = [
        '{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}',
        '{"idx": 1, "name": "1", "path": "1", "type": "subprocess.Popen"}',
    ]
    (folder / "modules.json").write_text(f"[{', '.join(listed)}]")
    return Trap(_load(folder))


def modules_in_a_folder_that_leads_up(lab: Lab) -> Trap:
    folder = lab.copy("model")
    kind = "sentence_transformers.models.Transformer"
    (folder / "modules.json").write_text(f'[{{"idx": 0, "name": "0", "path": "../elsewhere", "type": "{kind}"}}]')
    return Trap(_load(folder))


def config_with_a_model_of_the_folder(lab: Lab) -> Trap:
    names = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"}
    folder = _configured(lab, auto_map=names, model_type="evil", architectures=["Evil"])
    return Trap(_load(folder), _code(lab, folder, "evil.py"))


def tokenizer_of_the_folder(lab: Lab) -> Trap:
    names = {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    folder = _configured(lab, "tokenizer_config.json", auto_map=names, tokenizer_class="Evil")
    (folder / "tokenizer.json").unlink()
    return Trap(_load(folder), _code(lab, folder, "evil.py"))


def tokenizer_with_unknown_parts(lab: Lab) -> Trap:
    folder = lab.copy("model")
    change_json(
        folder / "tokenizer.json",
        lambda tokenizer: tokenizer.update(pre_tokenizer={"type": "Python", "code": lab.command}),
    )
    return Trap(_load(folder))


def weights_as_a_pickle(lab: Lab) -> Trap:
    folder = lab.copy("model")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(lab.pickled)
    return Trap(_load(folder), lab.unpickle(folder / "pytorch_model.bin"))


def pickle_called_safetensors(lab: Lab) -> Trap:
    folder = lab.copy("model")
    (folder / "model.safetensors").write_bytes(lab.pickled)
    return Trap(_load(folder), lab.unpickle(folder / "model.safetensors"))


def _sharded(lab: Lab, shard: str) -> Path:
    folder = lab.copy("model")
    (folder / "model.safetensors").unlink()
    index = {"metadata": {"total_size": 1}, "weight_map": {"embeddings.word_embeddings.weight": shard}}
    (folder / "model.safetensors.index.json").write_text("{}")
    change_json(folder / "model.safetensors.index.json", lambda told: told.update(index))
    return folder


def shard_that_is_a_pickle(lab: Lab) -> Trap:
    folder = _sharded(lab, "pytorch_model-00001-of-00001.bin")
    (folder / "pytorch_model-00001-of-00001.bin").write_bytes(lab.pickled)
    return Trap(_load(folder), lab.unpickle(folder / "pytorch_model-00001-of-00001.bin"))


def shard_that_leads_up(lab: Lab) -> Trap:
    lab.file("elsewhere.safetensors", (lab.sound / "model" / "model.safetensors").read_bytes())
    return Trap(_load(_sharded(lab, "../elsewhere.safetensors")))


def shard_with_an_absolute_name(lab: Lab) -> Trap:
    path = lab.file("elsewhere.bin", lab.pickled)
    return Trap(_load(_sharded(lab, str(path))), lab.unpickle(path))


def _adapted(lab: Lab) -> Path:
    folder = lab.copy("model")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "/etc", "r": 1}')
    (folder / "adapter_model.bin").write_bytes(lab.pickled)
    return folder


def adapter_with_a_pickle(lab: Lab) -> Trap:
    folder = _adapted(lab)
    (folder / "config.json").unlink()
    return Trap(_load(folder), lab.unpickle(folder / "adapter_model.bin"))


def adapter_beside_a_whole_model(lab: Lab) -> Trap:
    folder = _adapted(lab)
    return Trap(_load(folder), lab.unpickle(folder / "adapter_model.bin"))


def config_that_names_a_pickle(lab: Lab) -> Trap:
    folder = _configured(lab, transformers_weights="adapter_model.bin")
    (folder / "adapter_model.bin").write_bytes(lab.pickled)
    return Trap(_load(folder), lab.unpickle(folder / "adapter_model.bin"))


def config_with_code_of_the_hub(lab: Lab) -> Trap:
    return Trap(_load(_configured(lab, attn_implementation="evil/kernel")))


def config_of_a_million_layers(lab: Lab) -> Trap:
    return Trap(_load(_configured(lab, num_hidden_layers=1_000_000)))


def config_of_a_billion_words(lab: Lab) -> Trap:
    return Trap(_load(_configured(lab, vocab_size=10**9)))


def config_nested_deeply(lab: Lab) -> Trap:
    folder = lab.copy("model")
    (folder / "config.json").write_text('{"model_type": "bert", "a": ' + "[" * 100_000 + "]" * 100_000 + "}")
    return Trap(_load(folder))


def _weights(lab: Lab, content: bytes) -> Trap:
    folder = lab.copy("model")
    (folder / "model.safetensors").write_bytes(content)
    return Trap(_load(folder))


def weights_with_a_header_of_16_eib(lab: Lab) -> Trap:
    return _weights(lab, safetensors_file({"a": FLOATS}, bytes(16), length=2**64 - 1))


def weights_that_overlap(lab: Lab) -> Trap:
    other = FLOATS | {"data_offsets": [8, 24]}
    return _weights(lab, safetensors_file({"a": FLOATS, "b": other}, bytes(24)))


def weights_beyond_the_file(lab: Lab) -> Trap:
    return _weights(lab, safetensors_file({"a": FLOATS | {"shape": [2**40], "data_offsets": [0, 2**42]}}, bytes(16)))


def weights_of_2_to_the_62_numbers(lab: Lab) -> Trap:
    return _weights(lab, safetensors_file({"a": FLOATS | {"shape": [2**31, 2**31]}}, bytes(16)))


def _delta(lab: Lab, base: str, content: bytes) -> Trap:
    from citeweave.encoders.delta import base_revision, open_model

    revision = base_revision(open_model(lab.sound / "model"))
    settings = {"pooling": "mean", "max_tokens": 32, "normalize": False, "lower": False, "prompt": ""}
    told = {
        "format": "citeweave-delta",
        "version": 1,
        "kind": "all",
        "base": base,
        "base_revision": revision,
        "lora": None,
    }
    path = lab.file("delta/delta.json", "{}")
    change_json(path, lambda delta: delta.update(told, settings=settings))
    lab.file("delta/delta.safetensors", content)
    return Trap(_load(path.parent))


def delta_of_a_base_that_leads_up(lab: Lab) -> Trap:
    return _delta(lab, "../../elsewhere", safetensors_file({"a": FLOATS}, bytes(16)))


def delta_with_a_pickle(lab: Lab) -> Trap:
    trap = _delta(lab, str(lab.sound / "model"), lab.pickled)
    return Trap(trap.open, lab.unpickle(lab.folder / "given" / "delta" / "delta.safetensors"))


def delta_with_numbers_that_overlap(lab: Lab) -> Trap:
    bias = "encoder.layer.0.output.dense.bias"
    two = {bias: FLOATS | {"shape": [32], "data_offsets": [0, 128]}, "b": FLOATS | {"data_offsets": [64, 80]}}
    return _delta(lab, str(lab.sound / "model"), safetensors_file(two, bytes(128)))


def delta_with_a_header_of_8_gib(lab: Lab) -> Trap:
    return _delta(lab, str(lab.sound / "model"), safetensors_file({"a": FLOATS}, bytes(16), length=2**33))


def classifier_with_a_pickle(lab: Lab) -> Trap:
    path = lab.file("delta.safetensors", lab.pickled)
    return Trap(lambda: load_delta(path), lab.unpickle(path))


MODELS = [
    modules_with_a_class_of_the_folder, modules_with_a_class_of_python, modules_in_a_folder_that_leads_up,
    config_with_a_model_of_the_folder, tokenizer_of_the_folder, tokenizer_with_unknown_parts, weights_as_a_pickle,
    pickle_called_safetensors, shard_that_is_a_pickle, shard_that_leads_up, shard_with_an_absolute_name,
    adapter_with_a_pickle, adapter_beside_a_whole_model, config_that_names_a_pickle, config_with_code_of_the_hub,
    config_of_a_million_layers, config_of_a_billion_words, config_nested_deeply, weights_with_a_header_of_16_eib,
    weights_that_overlap, weights_beyond_the_file, weights_of_2_to_the_62_numbers, delta_of_a_base_that_leads_up,
    delta_with_a_pickle, delta_with_numbers_that_overlap, delta_with_a_header_of_8_gib, classifier_with_a_pickle,
]  # fmt: skip


def model_card_with_a_tag(lab: Lab) -> Trap:
    folder = lab.copy("model")
    (folder / "README.md").write_text(f"---\ntags: !!python/object/apply:os.system ['{lab.command}']\n---\n# A model\n")

    def parse() -> object:
        import yaml

        return yaml.unsafe_load((folder / "README.md").read_text().split("---")[1])

    return Trap(_load(folder), parse)


def pickle_beside_weights(lab: Lab) -> Trap:
    folder = lab.copy("model")
    (folder / "pytorch_model.bin").write_bytes(lab.pickled)
    return Trap(_load(folder), lab.unpickle(folder / "pytorch_model.bin"))


def code_of_the_folder_for_a_known_model(lab: Lab) -> Trap:
    folder = _configured(lab, auto_map={"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"})
    return Trap(_load(folder), _code(lab, folder, "evil.py"))


def code_beside_a_model(lab: Lab) -> Trap:
    folder = lab.copy("model")
    for name in ("tokenizers.py", "modeling_bert.py"):
        _code(lab, folder, name)
    return Trap(_load(folder), _code(lab, folder, "torch.py"))


def onnx_with_numbers_elsewhere(lab: Lab) -> Trap:
    """A tensor of an ONNX graph with `location: ../../canary`; such files of a model's folder are never read."""
    folder = lab.copy("model")
    (folder / "onnx").mkdir()
    place = b"\x0a\x08location\x12\x0c../../canary"
    tensor = b"\x08\x04\x10\x01\x42\x01w" + b"\x6a" + bytes([len(place)]) + place + b"\x70\x01"
    graph = b"\x2a" + bytes([len(tensor)]) + tensor
    (folder / "onnx" / "model.onnx").write_bytes(b"\x08\x08\x3a" + bytes([len(graph)]) + graph)
    return Trap(_load(folder))


NOT_READ = [
    model_card_with_a_tag, pickle_beside_weights, code_of_the_folder_for_a_known_model, code_beside_a_model,
    onnx_with_numbers_elsewhere,
]  # fmt: skip
