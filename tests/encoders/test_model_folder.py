"""Folders of models: what sentence-transformers writes is read, what cannot be read is refused by name."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from citeweave.core.errors import InputError, UserError
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.model_folder import Settings, read_model_folder

TEXTS = ["The cell grows.", "data", "how models learn from graphs of citations " * 10]

MODULES = ["sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling"]


def write_modules(folder: Path, kinds: list[str], pooling: dict[str, object], **transformer: object) -> Path:
    """The files of sentence-transformers 2 to 5, around a plain folder."""
    listed = [
        {
            "idx": number,
            "name": str(number),
            "path": f"{number}_{kind.rpartition('.')[2]}" if number else "",
            "type": kind,
        }
        for number, kind in enumerate(kinds)
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
    theirs = st.SentenceTransformer(modules=parts, device="cpu")
    theirs.save(str(tmp_path / "st"))
    ours = load_encoder(tmp_path / "st", device="cpu")
    assert (ours.settings.pooling, ours.settings.normalize, ours.settings.max_tokens) == (pooling, normalize, 20)
    np.testing.assert_allclose(ours.encode(TEXTS), theirs.encode(TEXTS, show_progress_bar=False), atol=1e-5)


def test_older_folders_are_read_too(model):
    kinds = [*MODULES, "sentence_transformers.models.Normalize"]
    pooling = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
    write_modules(model, kinds, pooling, max_seq_length=12, do_lower_case=True)
    assert read_model_folder(model).settings == Settings("mean", 12, normalize=True, lower=True)
    assert load_encoder(model, pooling="cls", normalize=False, max_tokens=9).settings == Settings("cls", 9, lower=True)


def test_texts_are_lowered_but_not_the_separator(save_bert, tmp_path):
    model = write_modules(
        save_bert(tmp_path / "cased", lower=False), MODULES, {"pooling_mode": "mean"}, do_lower_case=True
    )
    upper, lower = load_encoder(model).encode(["DATA[SEP]Models", "data[SEP]models"])
    np.testing.assert_allclose(upper, lower, atol=1e-5)
    ids = load_encoder(model).reader.read(["DATA[SEP]MODELS"])[0]
    assert load_encoder(model).reader.tokenizer.decode(ids).split() == ["[CLS]", "data", "[SEP]", "models", "[SEP]"]


def test_a_default_prompt_stands_before_every_text(model):
    write_modules(model, MODULES, {"pooling_mode": "mean"})
    plain = load_encoder(model)
    (model / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"p": "a paper "}, "default_prompt_name": "p"})
    )
    prompted = load_encoder(model)
    np.testing.assert_allclose(prompted.encode(["shows"]), plain.encode(["a paper shows"]), atol=1e-5)
    assert prompted.revision != plain.revision and not prompted.encode([""]).any()
    write_modules(model, MODULES, {"pooling_mode": "mean", "include_prompt": False})
    with pytest.raises(UserError, match="leaves its prompt out"):
        load_encoder(model)


def test_unknown_modules_are_refused_by_name(model):
    write_modules(model, [*MODULES, "sentence_transformers.models.Dense", "evil.Normalize"], {"pooling_mode": "mean"})
    with pytest.raises(
        UserError, match="does not support: sentence_transformers.models.Dense, evil.Normalize; it supports"
    ):
        load_encoder(model)
    write_modules(model, MODULES[:1], {"pooling_mode": "mean"})
    with pytest.raises(UserError, match="lists Transformer; it must be Transformer, .*Pooling"):
        load_encoder(model)


def test_poolings_without_a_name_here_are_refused_unless_replaced(model):
    write_modules(model, MODULES, {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True})
    with pytest.raises(
        UserError, match="the pooling of model is 'cls[+]max'; it must be one of aspect_words, cls, layers, mean, mix"
    ):
        load_encoder(model)
    assert load_encoder(model, pooling="mean").settings.pooling == "mean"
    write_modules(model, [MODULES[0], "sentence_transformers.models.WeightedLayerPooling"], {})
    modules = json.loads((model / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "1_Pooling", "type": MODULES[1]})
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "1_Pooling/config.json").write_text('{"pooling_mode": "cls"}')
    with pytest.raises(UserError, match="the pooling of model is 'mix[+]cls'"):
        load_encoder(model)


def test_other_tasks_are_refused(model):
    write_modules(model, MODULES, {"pooling_mode": "mean"}, transformer_task="any-to-any")
    with pytest.raises(UserError, match="made for the task 'any-to-any'"):
        load_encoder(model)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("modules.json", "{", "is not JSON"),
        ("modules.json", "[" * 100_000, "is not JSON"),
        ("modules.json", "{}", "not a list of modules"),
        ("modules.json", " " * (4 << 20) + "[]", "larger than a settings file"),
        ("modules.json", json.dumps([{"type": MODULES[0], "path": "../../else"}]), "outside the model's own"),
        ("modules.json", json.dumps([{"type": MODULES[0], "path": "/etc"}]), "outside the model's own"),
        ("1_Pooling/config.json", "[]", "not a JSON object"),
        ("sentence_bert_config.json", '{"max_seq_length": "long"}', "max_seq_length is 'long'"),
        ("config.json", "{", "is not JSON"),
        ("config.json", '{"model_type": "no_such_model"}', "cannot be loaded as an encoder"),
        ("model.safetensors", "damaged", "cannot be loaded as an encoder"),
        ("tokenizer.json", "damaged", "tokenizer.json is not JSON"),
    ],
)
def test_damaged_folders_are_an_error_that_names_the_file(model, name, content, message):
    write_modules(model, MODULES, {"pooling_mode": "mean"})
    (model / name).write_text(content)
    with pytest.raises(InputError, match=message):
        load_encoder(model)


def test_pickled_weights_are_never_loaded(model):
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(UserError, match="only as a pickle.*AutoModel.from_pretrained"):
        load_encoder(model)
    (model / "pytorch_model.bin").unlink()
    with pytest.raises(InputError, match="has no weights"):
        load_encoder(model)


def test_code_in_a_folder_is_never_run(model, tmp_path):
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}}
    (model / "config.json").write_text(json.dumps(config))
    (model / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(InputError, match="cannot be loaded as an encoder"):
        load_encoder(model)
    assert not (tmp_path / "ran").exists()


def test_a_tokenizer_of_another_model_is_refused_and_ids_that_fill_up_need_no_row(model):
    before = load_encoder(model, device="cpu").encode(["the cell", "how models learn from data"])
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "pad_token": "[FILL]"}))
    assert np.allclose(load_encoder(model, device="cpu").encode(["the cell", "how models learn from data"]), before)
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "sep_token": "[END]"}))
    with pytest.raises(
        InputError, match=r"its tokenizer gives ids up to \d+, and its network reads \d+; .*copy the whole"
    ):
        load_encoder(model)


def test_weights_of_another_model_are_refused(model):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(InputError, match="lacks 16 of the model's weights, such as encoder.layer.2"):
        load_encoder(model)


def test_a_model_with_a_decoder_is_refused(model):
    transformers = pytest.importorskip("transformers", reason="pip install 'citeweave[minilm]'")
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 1}
    transformers.T5Model(transformers.T5Config(vocab_size=90, **sizes)).save_pretrained(model)
    with pytest.raises(UserError, match="an encoder with a decoder"):
        load_encoder(model)


def test_folders_that_hold_no_whole_model(model, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no encoder"):
        load_encoder(tmp_path / "empty")
    (tmp_path / "empty/adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="holds an adapter"):
        load_encoder(tmp_path / "empty")
    write_modules(model, MODULES, {"pooling_mode": "mean"})
    (model / "config.json").unlink()
    with pytest.raises(InputError, match="config.json is missing"):
        load_encoder(model)


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {
                "pre_tokenizer": {
                    "type": "Split",
                    "pattern": {"Regex": "(a+)+$"},
                    "behavior": "Isolated",
                    "invert": False,
                }
            },
            r"the pattern '\(a\+\)\+\$' repeats a group that can match in several ways",
        ),
        (
            {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}},
            "1 replacements that make texts longer",
        ),
        ({"normalizer": {"type": "Prepend", "prepend": "a" * 1000}}, "sets more than 64 characters before every text"),
        ({"model": {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "[UNK]"}}, "cannot be (used|loaded)"),
    ],
)
def test_tokenizers_that_never_end_are_refused(model, values, message):
    change(model / "tokenizer.json", **values)
    with pytest.raises(InputError, match=message):
        load_encoder(model, device="cpu")


def test_settings_that_do_not_fit_are_refused_at_loading(model):
    before = (model / "config.json").read_text()
    change(model / "config.json", type_vocab_size=0)
    with pytest.raises(InputError, match="cannot be (used|loaded) as an encoder"):
        load_encoder(model, device="cpu")
    (model / "config.json").write_text(before)
    change(model / "tokenizer_config.json", model_max_length="many")
    with pytest.raises(InputError, match="cannot be (used|loaded) as an encoder"):
        load_encoder(model, device="cpu")


def test_a_pipe_is_not_waited_for(model):
    os.mkfifo(model / "special_tokens_map.json")
    with pytest.raises(InputError, match="special_tokens_map.json is a pipe or a device"):
        load_encoder(model, device="cpu")
