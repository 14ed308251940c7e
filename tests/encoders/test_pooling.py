"""Vectors of texts as the settings ask for them, with gradients; the pooling aspect_words: how it reads, its formula, its files."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from citeweave.core.errors import InputError, UserError
from citeweave.encoders.delta import save_delta
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.encoders.model_folder import Settings
from citeweave.encoders.network import Network
from citeweave.encoders.paper_texts import chunk_maker
from citeweave.encoders.pooling import WORDS, add_aspect_words, aspect_word_weights, attend, text_vectors
from citeweave.encoders.runtimes import Runtime
from citeweave.encoders.save import save_encoder
from citeweave.encoders.sentence_encoder import encode_sentences
from citeweave.encoders.tokens import reader_settings

from .conftest import CARD, change, refused, save, theirs

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
BATCH = [np.arange(3, 9), np.arange(10, 31), np.array([7])]


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pooling", ["cls", "mean", "layers"])
def test_vectors_are_those_of_each_text_alone_and_gradients_reach_every_layer(encoder, pooling, normalize):
    network, settings = encoder.network, Settings(pooling, 48, normalize)
    for packed in (True, False):
        vectors = text_vectors(Network(network.model, "cpu", 0, packed=packed), BATCH, settings)
        for ids, vector in zip(BATCH, vectors, strict=True):
            layers = network.model(torch.from_numpy(ids)[None], output_hidden_states=True).hidden_states
            pooled = {"cls": layers[-1][0, 0], "mean": layers[-1][0].mean(0)}
            last = pooled[pooling] if pooling in pooled else torch.stack(layers).mean((0, 2))[0]
            torch.testing.assert_close(vector, last / last.norm() if normalize else last, atol=1e-5, rtol=1e-5)
    network.model.zero_grad()
    text_vectors(network, BATCH, Settings(pooling, 48)).pow(2).sum().backward()
    for layer in network.model.encoder.layer:
        assert float(layer.attention.self.value.weight.grad.abs().max()) > 0
    with torch.inference_mode():
        assert not text_vectors(network, BATCH, settings).requires_grad


TEXTS = [
    "The cell grows[SEP]We find that graphs learn. A paper shows how data grows. The models learn.",
    "A paper",
    "Citations of graphs[SEP]We find data.",
    "How models learn[SEP]" + "The cell grows and we find how models learn from data. " * 9,
]


def load(folder: Path, **options: Any) -> TorchEncoder:
    return load_encoder(folder, **{"pooling": "aspect_words", "device": "cpu", **options})


def drawn(bert: Path, **options: Any) -> TorchEncoder:
    """An encoder whose queries differ much from each other and from sentence to sentence."""
    encoder, draw = load(bert, **options), torch.Generator().manual_seed(1)
    own = {
        name: torch.randn(tensor.shape, generator=draw)
        for name, tensor in aspect_word_weights(encoder.network.model).items()
    }
    add_aspect_words(encoder.network.model, own)
    return encoder


def words_of(encoder: TorchEncoder, text: str) -> str:
    return " ".join(encoder.reader.tokenizer.convert_ids_to_tokens(encoder.reader.read([text])[0]))


READ_AS = [
    ("The cell[SEP]We learn. The data grows.", "[CLS] the cell [SEP] [CLS] we learn . [SEP] [CLS] the data grows . [SEP]"),
    ("The cell", "[CLS] the cell [SEP]"),
    ("", ""),
    ("[SEP]We learn.", "[CLS] we learn . [SEP]"),
    # 20 tokens: the third sentence is cut to the room that is left, and closed
    ("The cell[SEP]We learn. The data grows. We find that the cell grows.",
     "[CLS] the cell [SEP] [CLS] we learn . [SEP] [CLS] the data grows . [SEP] [CLS] we find that [SEP]"),
    # three tokens of room are one word; two would be none, and the sentence is left out
    ("The cell[SEP]We learn. We find that the cell. The data.",
     "[CLS] the cell [SEP] [CLS] we learn . [SEP] [CLS] we find that the cell . [SEP] [CLS] the [SEP]"),
    ("The cell[SEP]We learn. We find that the cell grows. The data.",
     "[CLS] the cell [SEP] [CLS] we learn . [SEP] [CLS] we find that the cell grows . [SEP]"),
    # what a paper writes itself begins no sentence
    ("The [CLS] cell[SEP]We [CLS] learn.", "[CLS] the cell [SEP] [CLS] we learn . [SEP]"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), READ_AS)
def test_every_sentence_is_between_special_tokens(bert, text, expected):
    assert words_of(load(bert, max_tokens=20), text) == expected


def test_other_poolings_read_as_before(bert):
    plain, own = load(bert, pooling="cls"), load(bert)
    assert words_of(plain, "The cell[SEP]We learn. We find.") == "[CLS] the cell [SEP] we learn . we find . [SEP]"
    assert "by_sentence" not in reader_settings(plain.reader) and reader_settings(own.reader)["by_sentence"]
    np.testing.assert_allclose(own.encode(["The cell"]), plain.encode(["The cell"]), atol=1e-5)  # one sentence


@settings(max_examples=30)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 4), st.integers(0, 100))
def test_attention_is_the_plain_formula(counts, words, seed):
    draw, size = np.random.default_rng(seed), 5
    sentences, queries = 3 * draw.normal(size=(sum(counts), size)), draw.normal(size=(words, size))
    expected = []
    for own in np.split(sentences, np.cumsum(counts)[:-1]):
        weights = [np.exp(own @ query / np.sqrt(size)) for query in queries]
        expected.append(np.mean([weight @ own / weight.sum() for weight in weights], axis=0))
    found = attend(torch.from_numpy(sentences), np.array(counts), torch.from_numpy(queries))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def test_vectors_are_those_of_the_formula_over_the_states_of_the_marks(bert):
    encoder = drawn(bert)
    tokens = encoder.reader.read(TEXTS[:1])[0]
    (states,), _ = encoder.network.padded([tokens])
    marks = states[0].detach()[torch.from_numpy(tokens == encoder.reader.opening[0])].double()  # (4, dimension)
    queries, weight, bias = (tensor.detach().double() for tensor in aspect_word_weights(encoder.network.model).values())
    weights = ((queries @ weight.T + bias) @ marks.T / 32**0.5).softmax(dim=1)  # (words, sentences)
    expected = (weights @ marks).mean(dim=0)
    np.testing.assert_allclose(encoder.encode(TEXTS[:1])[0], expected.numpy(), atol=1e-5)
    assert np.abs(encoder.encode(TEXTS[:1])[0] - marks.mean(dim=0).numpy()).max() > 1e-2  # the weights matter


def test_words_begin_as_the_start_model_reads_them(bert):
    encoder = load(bert)
    alone = load(bert, pooling="cls").encode(list(WORDS))
    numbers = aspect_word_weights(encoder.network.model)
    np.testing.assert_allclose(numbers["queries"].numpy(), alone, atol=1e-5)
    np.testing.assert_array_equal(numbers["weight"].detach().numpy(), np.eye(32))
    assert not numbers["bias"].any()


def test_packed_and_padded_agree_and_gradients_reach_all(bert):
    found = {}
    for packed in (True, False):
        encoder = drawn(bert, runtime=Runtime(packed=packed))
        assert encoder.network.packs is packed
        batch = encoder.reader.read(TEXTS)
        vectors = text_vectors(encoder.network, batch, encoder.settings)  # (texts, dimension)
        vectors.pow(3).sum().backward()
        model = encoder.network.model
        layer = model.encoder.layer[0].attention.self.query.weight
        gradients = [part.grad.numpy() for part in (model.aspect_words.weight, model.aspect_words.bias, layer)]
        assert all(np.abs(gradient).max() > 1e-4 for gradient in gradients)
        found[packed] = [vectors.detach().numpy(), *gradients]
    for one, other in zip(*found.values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_saved_model_gives_the_same_vectors_and_others_read_its_first_token(bert, tmp_path):
    encoder = drawn(bert, normalize=True, max_tokens=30)
    folder = save(encoder, tmp_path / "model")
    again = load_encoder(folder, device="cpu")
    assert again.settings == encoder.settings
    np.testing.assert_array_equal(again.encode(TEXTS), encoder.encode(TEXTS))
    assert "other vectors than those that were trained" in (folder / "README.md").read_text()
    np.testing.assert_allclose(theirs(folder, TEXTS), load(folder, pooling="cls").encode(TEXTS), atol=1e-5)
    other = load(bert, normalize=True, max_tokens=30)  # same weights below, other words
    assert again.revision != load_encoder(save(other, tmp_path / "other"), device="cpu").revision


def test_a_delta_keeps_the_words(bert, tmp_path):
    encoder = drawn(bert)
    (tmp_path / "delta").mkdir()
    options = {"base": str(bert), "changed": ["encoder.layer.0.output.dense.bias"], "kind": "bias", "card": CARD}
    save_delta(tmp_path / "delta", encoder.network.model, encoder.settings, **options)
    again = load_encoder(tmp_path / "delta", device="cpu")
    np.testing.assert_array_equal(again.encode(TEXTS), encoder.encode(TEXTS))
    plain = load(tmp_path / "delta", pooling="cls").encode(TEXTS)
    np.testing.assert_array_equal(plain, load(bert, pooling="cls").encode(TEXTS))


def test_files_of_untrusted_input_are_compared_first(bert, tmp_path):
    from safetensors.torch import save_file

    model = save(drawn(bert), tmp_path / "model")
    right = {"format": "citeweave-aspect-words", "version": 1, "words": list(WORDS)}
    numbers = {name: tensor.detach() for name, tensor in aspect_word_weights(drawn(bert).network.model).items()}
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"version": 2}, {}, "is citeweave-aspect-words of format version 2; .* Update citeweave"),
        ({"words": ["a"] * 10**5}, {}, "words is .*; it must be background, method"),
        ({}, {"bias": torch.zeros(33)}, "bias is F32 of shape [(]33,[)]; it must be"),
        ({}, {"more": torch.zeros(1)}, "'more' is not an expected tensor"),
        ({}, {"weight": None, "bias": None}, "lacks 2 tensors"),
        ({}, {"weight": torch.full((32, 32), torch.nan)}, "not finite"),
        ({}, {"queries": torch.zeros(4, 32)}, "a row of queries is all zero"),
    ]
    for config, tensors, message in cases:
        (model / "aspect_words/config.json").write_text(json.dumps(right | config))
        kept = {name: tensor for name, tensor in (numbers | tensors).items() if tensor is not None}
        save_file(kept, model / "aspect_words/model.safetensors")
        refused(message, load_encoder, model, device="cpu", error=InputError)
    shutil.rmtree(model / "aspect_words")
    (model / "aspect_words").mkdir()
    refused(r"config\.json cannot be read", load_encoder, model, device="cpu", error=InputError)


def test_what_cannot_be_done_is_said(bert, tmp_path):
    refused("pooling aspect_words needs weights on top of it; use torch", load, bert, runtime="openvino")
    encoder = load(bert)
    with pytest.raises(UserError, match="full texts are cut into chunks"):
        chunk_maker(None, None, encoder, "float32", several=False)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="with its sentences needs cls or mean"):
        encode_sentences(encoder, ["The cell"], [["We learn."]], with_paper=True)
    folder = save(drawn(bert), tmp_path / "model")
    change(folder / "1_Pooling/config.json", pooling_mode_cls_token=False, pooling_mode_mean_tokens=True)
    refused(r"aspect_words\+mean", load_encoder, folder, device="cpu")
    bare = encoder.reader.tokenizer
    bare.backend_tokenizer.post_processor = None
    bare.save_pretrained(shutil.copytree(bert, tmp_path / "bare"))
    refused("needs one token before every sentence", load, tmp_path / "bare")


def test_title_and_abstract_are_read_apart_and_their_mean_is_kept_in_the_folder(bert, tmp_path):
    apart = load_encoder(bert, pooling="title_abstract", normalize=False, device="cpu")
    plain = load_encoder(bert, pooling="cls", normalize=False, device="cpu")
    texts = ["models learn[SEP]the cell grows", "models learn", "[SEP]the cell grows", ""]
    title, abstract, whole = plain.encode(["models learn", "the cell grows", texts[0]])
    found = apart.encode(texts)
    np.testing.assert_allclose(found, [(title + abstract) / 2, title, abstract, np.zeros(32)], atol=1e-5)
    assert np.abs(found[0] - whole).max() > 1e-2 and apart.revision != plain.revision
    authors = plain.encode(["data graphs"])[0]
    (third,) = apart.encode([f"{texts[0]}[SEP]data graphs"])
    np.testing.assert_allclose(third, (title + abstract + authors) / 3, atol=1e-5)
    save_encoder(tmp_path, apart.network, apart.reader.tokenizer, apart.settings, card=CARD)
    again = load_encoder(tmp_path, device="cpu")
    assert (
        again.settings.pooling == "title_abstract" and again.revision == load_encoder(tmp_path, device="cpu").revision
    )
    np.testing.assert_allclose(again.encode(texts), found, atol=1e-6)
    assert "does not know how its parts are combined" in (tmp_path / "README.md").read_text()
    with pytest.raises(UserError, match="needs two texts per paper; use torch"):
        load_encoder(tmp_path, runtime="openvino", device="cpu")
    (tmp_path / "title_abstract/config.json").write_text('{"format": "other"}')
    with pytest.raises(InputError, match="format 'other'"):
        load_encoder(tmp_path, device="cpu")
