"""Deltas: what was trained comes back on top of its base, on no other, and a stranger's folder can only be refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from citeweave.core.errors import InputError, UserError
from citeweave.encoders.delta import open_model, save_delta
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.encoders.model_card import ModelCard
from citeweave.encoders.save import save_encoder

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

from citeweave.training.partial import choose_parts  # noqa: E402

CARD = ModelCard("tiny")
TEXTS = ["The cell grows.[SEP]We find how models learn.", "data", "how models learn from graphs of citations " * 10]


def train(encoder: TorchEncoder, parts: str, **options: Any) -> list[str]:
    """Move what may be trained by a fixed amount, as if by training."""
    if parts == "lora":
        pytest.importorskip("peft", reason="pip install 'citeweave[lora]'")
    chosen = choose_parts(encoder.network.model, parts, **options)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, parameter in chosen:
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return [name for name, _ in chosen]


def make_delta(base: Path | str, folder: Path, parts: str, pooling: str = "mean", **options: Any) -> TorchEncoder:
    encoder = load_encoder(base, pooling=pooling, normalize=True, max_tokens=20, device="cpu")
    before = encoder.encode(TEXTS)
    changed = train(encoder, parts, **options)
    assert np.abs(encoder.encode(TEXTS) - before).max() > 1e-2
    folder.mkdir()
    save_delta(folder, encoder.network.model, encoder.settings, base=str(base), changed=changed, kind=parts, card=CARD)
    return encoder


@pytest.mark.parametrize(
    ("parts", "pooling", "options"),
    [
        ("bias", "mean", {}),
        ("bias", "mix", {}),
        ("all", "cls", {"frozen_layers": 1}),
        ("lora", "mean", {"lora_rank": 3}),
        ("lora", "mix", {"lora_rank": 2, "lora_alpha": 3.0}),
    ],
)
def test_a_delta_gives_the_vectors_of_the_trained_model(bert, tmp_path, parts, pooling, options):
    trained = make_delta(bert, tmp_path / "delta", parts, pooling, **options)
    loaded = load_encoder(tmp_path / "delta", device="cpu")
    assert loaded.settings == trained.settings and loaded.revision != load_encoder(bert).revision
    np.testing.assert_allclose(loaded.encode(TEXTS), trained.encode(TEXTS), atol=1e-5)
    # the same trained model saved whole, its low-rank changes merged in
    (tmp_path / "whole").mkdir()
    save_encoder(tmp_path / "whole", trained.network, trained.reader.tokenizer, trained.settings, card=CARD)
    whole = load_encoder(tmp_path / "whole", device="cpu")
    np.testing.assert_allclose(whole.encode(TEXTS), trained.encode(TEXTS), atol=1e-5)
    sizes = [(tmp_path / name).stat().st_size for name in ("delta/delta.safetensors", "whole/model.safetensors")]
    assert sizes[0] < sizes[1]
    assert "citeweave.load_encoder(" in (tmp_path / "delta/README.md").read_text()


def test_sentence_transformers_loads_merged_low_rank_changes(bert, tmp_path):
    st = pytest.importorskip("sentence_transformers", reason="pip install 'citeweave[minilm]'")
    trained = make_delta(bert, tmp_path / "delta", "lora")
    (tmp_path / "whole").mkdir()
    save_encoder(tmp_path / "whole", trained.network, trained.reader.tokenizer, trained.settings, card=CARD)
    model = st.SentenceTransformer(str(tmp_path / "whole"), device="cpu")
    np.testing.assert_allclose(model.encode(TEXTS, show_progress_bar=False), trained.encode(TEXTS), atol=1e-5)


def test_the_same_delta_is_the_same_bytes_and_revision_wherever_its_base_is(bert, tmp_path):
    make_delta(bert, tmp_path / "one", "bias")
    elsewhere = shutil.copytree(bert, tmp_path / "elsewhere")
    make_delta(elsewhere, tmp_path / "two", "bias")
    assert (tmp_path / "one/delta.safetensors").read_bytes() == (tmp_path / "two/delta.safetensors").read_bytes()
    assert load_encoder(tmp_path / "one").revision == load_encoder(tmp_path / "two").revision


def test_a_delta_may_stand_on_another(bert, tmp_path):
    make_delta(bert, tmp_path / "one", "bias")
    trained = make_delta(tmp_path / "one", tmp_path / "two", "lora")
    np.testing.assert_allclose(load_encoder(tmp_path / "two").encode(TEXTS), trained.encode(TEXTS), atol=1e-5)


def test_a_delta_can_be_read_with_another_pooling(bert, tmp_path):
    trained = make_delta(bert, tmp_path / "delta", "bias", "mix")
    loaded = load_encoder(tmp_path / "delta", pooling="cls", device="cpu")
    assert loaded.settings.pooling == "cls"
    assert np.isfinite(loaded.encode(TEXTS)).all() and trained.settings.pooling == "mix"


def test_another_base_is_refused(bert, save_bert, tmp_path):
    base = shutil.copytree(bert, tmp_path / "base")
    make_delta(base, tmp_path / "delta", "bias")
    shutil.rmtree(base)
    save_bert(base, seed=1)
    with pytest.raises(UserError, match="is a delta of revision [0-9a-f]{12} of .*base', and revision .* is here"):
        load_encoder(tmp_path / "delta")
    shutil.rmtree(base)
    with pytest.raises(UserError, match='which cannot be opened: .*write its new path into "base" of .*delta.json'):
        load_encoder(tmp_path / "delta")


def test_a_delta_that_names_itself_is_refused(bert, tmp_path):
    make_delta(bert, tmp_path / "delta", "bias")
    edit(tmp_path / "delta", base=str(tmp_path / "delta"))
    with pytest.raises(UserError, match="is a delta on top of 4 others"):
        open_model(tmp_path / "delta")


def test_deltas_that_cannot_be_saved(bert, tmp_path):
    encoder = load_encoder(bert, device="cpu")
    with pytest.raises(UserError, match="a delta needs at least one parameter"):
        save_delta(tmp_path, encoder.network.model, encoder.settings, base=str(bert), changed=[], kind="all", card=CARD)
    name = "encoder.layer.0.output.dense.bias"
    with torch.no_grad():
        encoder.network.model.get_parameter(name)[0] = float("nan")
    with pytest.raises(UserError, match="dense.bias holds numbers that are not finite"):
        save_delta(
            tmp_path, encoder.network.model, encoder.settings, base=str(bert), changed=[name], kind="all", card=CARD
        )


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "delta.json"
    settings = json.loads(path.read_text()) | changes
    if set(changes) != {"base"}:
        del settings["seal"]  # a stranger needs none
    path.write_text(json.dumps(settings))


SETTINGS = {"pooling": "mean", "max_tokens": 20, "normalize": True, "lower": False, "prompt": ""}
LORA = {"rank": 2, "alpha": 4.0, "layers": ["encoder.layer.0.attention.self.query"]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "is of format 'other'"),
        ({"version": 2}, "of format version 2; .* Update citeweave"),
        ({"extra": 1}, "extra does not belong here"),
        ({"base": "../../etc"}, "without '[.][.]'"),
        ({"base": "models/../../x"}, "without '[.][.]'"),
        ({"base": ""}, "the base is ''"),
        ({"base": ["minilm"]}, "the base is"),
        ({"base": "a\nb"}, "the base is"),
        ({"base_revision": "zz"}, "twelve hex digits"),
        ({"settings": {}}, "does not belong here or is missing"),
        ({"settings": SETTINGS | {"evil": 1}}, "evil does not belong"),
        ({"settings": SETTINGS | {"max_tokens": True}}, "max_tokens is 'True'"),
        ({"settings": SETTINGS | {"max_tokens": -1}}, "max_tokens is '-1'"),
        ({"settings": [1]}, "list does not belong"),
        ({"lora": LORA | {"rank": 10**9}}, "the rank is"),
        ({"lora": LORA | {"rank": "2"}}, "the rank is '2'"),
        ({"lora": LORA | {"alpha": float("inf")}}, "alpha is 'inf'"),
        ({"lora": LORA | {"alpha": float("nan")}}, "alpha is 'nan'"),
        ({"lora": LORA | {"layers": "all"}}, "must be a list of names"),
        ({"lora": LORA | {"layers": ["evil.layer"]}}, "'evil.layer' is no linear layer of the base"),
        ({"lora": LORA}, "lacks encoder.layer.0.attention.self.query.lora_A"),
    ],
)
def test_settings_of_a_stranger_are_checked(bert, tmp_path, changes, message):
    make_delta(bert, tmp_path / "delta", "bias")
    edit(tmp_path / "delta", **changes)
    with pytest.raises(InputError, match=message):
        load_encoder(tmp_path / "delta", device="cpu")


def tensors(**found: Any) -> bytes:
    from safetensors.torch import save

    return bytes(save({name.replace("__", "."): tensor for name, tensor in found.items()}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a complete safetensors file"),
        (b"\xff" * 40, "a header of 18,446,744,073,709,551,615 bytes in 40"),
        ((50 << 20).to_bytes(8, "little") + b"{}", "a header of 52,428,800 bytes"),
        ((2).to_bytes(8, "little") + b"[]", "is not a complete safetensors file"),
        (b"\x80\x04\x95cposix\nsystem\n(S'true'\ntR.", "is not a complete safetensors file"),
        (tensors(evil=torch.ones(2)), "'evil' is not an expected tensor"),
        (tensors(layer_mix=torch.ones(9)), "layer_mix is F32 of shape [(]9,[)]; it must be"),
        (tensors(embeddings__LayerNorm__bias=torch.ones(32, dtype=torch.int64)), "is I64 of shape"),
        (tensors(embeddings__LayerNorm__bias=torch.ones(31)), "of shape [(]31,[)]"),
        (tensors(embeddings__LayerNorm__bias=torch.full((32,), torch.nan)), "not finite"),
    ],
)
def test_tensors_of_a_stranger_are_checked(bert, tmp_path, content, message):
    make_delta(bert, tmp_path / "delta", "bias")
    (tmp_path / "delta/delta.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_encoder(tmp_path / "delta", device="cpu")
    (tmp_path / "delta/delta.safetensors").unlink()
    with pytest.raises(InputError, match="delta.safetensors cannot be read"):
        load_encoder(tmp_path / "delta", device="cpu")
