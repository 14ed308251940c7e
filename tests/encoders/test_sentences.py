"""Vectors of sentences: means of the states of their own tokens, read in the whole paper."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from citeweave.core.errors import UserError
from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.sentence_encoder import encode_sentences, lay_out_sentences, sentence_vectors

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

TITLES = ["The cell grows", "", "how models learn " * 20, "Graphs", "Graphs", "data"]
SENTENCES = [
    ["We find how models learn.", "A paper shows that the cell grows.", "Data."],
    ["data in graphs", "of citations ."],
    ["cut away", "too"],
    [],
    ["the cell", "", "grows"],
    ["models " * 30, "learn " * 30, "lost"],
]


def by_hand(folder, title, sentences, max_tokens=48):
    """Numbers and vectors of one paper, by transformers alone."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    words = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (title, *sentences)]
    ids = [cls, *words[0], *([sep] if words[0] else [])]
    spans = []
    for sentence in words[1:]:
        spans.append((len(ids), min(len(ids) + len(sentence), max_tokens - 1)))
        ids += sentence
    with torch.inference_mode():
        states = model(torch.tensor([[*ids[: max_tokens - 1], sep]])).last_hidden_state[0].numpy()
    found = [(number, states[start:end].mean(axis=0)) for number, (start, end) in enumerate(spans) if start < end]
    return [number for number, _ in found], [vector for _, vector in found]


@pytest.mark.parametrize("budget", [1, 100, 10_000])
def test_sentences_are_means_of_their_tokens(bert, budget):
    found = encode_sentences(load_encoder(bert, batch_tokens=budget), TITLES, SENTENCES)
    assert found.matrix.dtype == np.float32 and found.offsets.tolist() == [0, 3, 5, 5, 5, 7, 9]
    assert found.numbers.tolist() == [0, 1, 2, 0, 1, 0, 2, 0, 1]
    assert found.lost == 2 + 1 + 1
    for paper, (title, sentences) in enumerate(zip(TITLES, SENTENCES, strict=True)):
        rows = slice(found.offsets[paper], found.offsets[paper + 1])
        numbers, vectors = by_hand(bert, title, sentences)
        assert found.numbers[rows].tolist() == numbers
        if numbers:
            np.testing.assert_allclose(found.matrix[rows], vectors, atol=2e-5)


def test_sentences_are_read_as_one_text(bert):
    """Title, separator and sentences are the tokens of the paper's text; so the sentences' tokens have its states."""
    reader = load_encoder(bert).reader
    (layout,) = lay_out_sentences(reader, TITLES[:1], SENTENCES[:1])
    assert layout.tokens.tolist() == reader.read(["The cell grows[SEP]" + " ".join(SENTENCES[0])])[0].tolist()
    assert layout.starts.tolist()[1:] == layout.ends.tolist()[:-1] and layout.ends[-1] == len(layout.tokens) - 1


def test_packed_and_padded_sentences_are_the_same_with_gradients(bert):
    encoder = load_encoder(bert)
    layouts = [layout for layout in lay_out_sentences(encoder.reader, TITLES, SENTENCES) if len(layout.numbers)]
    found, gradients = [], []
    for packed in (False, True):
        network = dataclasses.replace(encoder.network, packed=packed)
        vectors = sentence_vectors(network, layouts)  # (sentences, dimension)
        encoder.network.model.zero_grad()
        vectors.square().sum().backward()
        found.append(vectors.detach().numpy())
        gradients.append(encoder.network.model.embeddings.word_embeddings.weight.grad.clone())
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
    np.testing.assert_allclose(gradients[0], gradients[1], atol=1e-4)
    assert float(gradients[0].abs().max()) > 0.01


def test_windows_join_without_a_seam(bert, monkeypatch):
    whole = encode_sentences(load_encoder(bert), TITLES, SENTENCES)
    monkeypatch.setattr("citeweave.encoders.sentence_encoder.WINDOW", 2)
    parts = encode_sentences(load_encoder(bert), TITLES, SENTENCES)
    np.testing.assert_allclose(parts.matrix, whole.matrix, atol=1e-5)
    assert parts.offsets.tolist() == whole.offsets.tolist() and parts.lost == whole.lost


def test_pooling_and_length_1_do_not_count(bert):
    plain = encode_sentences(load_encoder(bert), TITLES, SENTENCES)
    other = encode_sentences(load_encoder(bert, pooling="layers", normalize=True), TITLES, SENTENCES)
    np.testing.assert_array_equal(plain.matrix, other.matrix)


def test_nothing_to_read(bert):
    for titles, sentences in (([], []), (["data"], [[]]), (["data"], [["", " "]])):
        found = encode_sentences(load_encoder(bert), titles, sentences)
        assert found.matrix.shape == (0, 32) and found.offsets.tolist() == [0] * (len(titles) + 1)
        assert found.lost == sum(map(len, sentences))
    with pytest.raises(UserError, match="1 titles for the sentences of 2 papers"):
        encode_sentences(load_encoder(bert), ["data"], [[], []])
