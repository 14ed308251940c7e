"""Vectors of sentences and of tokens, read in the complete paper; one pass gives papers and sentences as two passes do."""

import dataclasses

import numpy as np
import pytest

from citeweave.corpus.text import paper_text
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.encoders.runtimes import Runtime
from citeweave.encoders.sentence_encoder import (
    _join_spans,
    encode_papers_and_sentences,
    encode_sentences,
    encode_tokens,
    lay_out_sentences,
    reads_together,
    span_vectors,
    tokenize_papers,
)

from .conftest import Recorder, cls_and_mean, cosines, needs_instruction, refused, watched

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")
PAPERS = {
    "complete": ("The cell grows", ["We find how models learn.", "A paper shows that the cell grows.", "Data."]),
    "no title": ("", ["data in graphs", "of citations ."]),
    "title cut": ("how models learn " * 20, ["cut away", "too"]),
    "no abstract": ("Graphs of data", []),
    "an empty sentence": ("Graphs", ["the cell", "", "grows"]),
    "sentences cut": ("data", ["models " * 30, "learn " * 30, "lost"]),
}
TITLES, SENTENCES = (list(part) for part in zip(*PAPERS.values(), strict=True))


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
def test_sentences_are_means_of_their_tokens(bert, budget, monkeypatch):
    encoder = load_encoder(bert, batch_tokens=budget)
    found = encode_sentences(encoder, TITLES, SENTENCES)
    assert found.matrix.dtype == np.float32 and found.offsets.tolist() == [0, 3, 5, 5, 5, 7, 9]
    assert found.numbers.tolist() == [0, 1, 2, 0, 1, 0, 2, 0, 1] and found.lost == 2 + 1 + 1
    for paper, (title, sentences) in enumerate(zip(TITLES, SENTENCES, strict=True)):
        rows = slice(found.offsets[paper], found.offsets[paper + 1])
        numbers, vectors = by_hand(bert, title, sentences)
        assert found.numbers[rows].tolist() == numbers
        if numbers:
            np.testing.assert_allclose(found.matrix[rows], vectors, atol=2e-5)
    monkeypatch.setattr("citeweave.encoders.sentence_encoder.WINDOW", 2)  # windows join without a seam
    parts = encode_sentences(encoder, TITLES, SENTENCES)
    np.testing.assert_allclose(parts.matrix, found.matrix, atol=1e-5)
    assert parts.offsets.tolist() == found.offsets.tolist() and parts.lost == found.lost


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
        tokens = [layout.tokens for layout in layouts]
        vectors = span_vectors(network.token_states(tokens), *_join_spans(layouts), None)  # (sentences, dimension)
        encoder.network.model.zero_grad()
        vectors.square().sum().backward()
        found.append(vectors.detach().numpy())
        gradients.append(encoder.network.model.embeddings.word_embeddings.weight.grad.clone())
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
    np.testing.assert_allclose(gradients[0], gradients[1], atol=1e-4)
    assert float(gradients[0].abs().max()) > 0.01


def test_pooling_and_length_1_do_not_count(bert):
    plain = encode_sentences(load_encoder(bert), TITLES, SENTENCES)
    other = encode_sentences(load_encoder(bert, pooling="layers", normalize=True), TITLES, SENTENCES)
    np.testing.assert_array_equal(plain.matrix, other.matrix)


def test_nothing_to_read(bert):
    for titles, sentences in (([], []), (["data"], [[]]), (["data"], [["", " "]])):
        found = encode_sentences(load_encoder(bert), titles, sentences)
        assert found.matrix.shape == (0, 32) and found.offsets.tolist() == [0] * (len(titles) + 1)
        assert found.lost == sum(map(len, sentences))
    refused("1 titles for the sentences of 2 papers", encode_sentences, load_encoder(bert), ["data"], [[], []])


TOKEN_TITLES = ["The cell grows", "", "", "how models learn " * 20]
TOKEN_SENTENCES = [["We find how models learn.", "", "Data."], ["data in graphs", "of citations ."], [], ["cut away"]]


@pytest.mark.parametrize("budget", [1, 10_000])
def test_tokens_are_the_last_states_of_the_complete_paper(bert, budget):
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(bert), AutoModel.from_pretrained(bert).eval()
    encoder = load_encoder(bert, batch_tokens=budget)
    found = encode_tokens(encoder, TOKEN_TITLES, TOKEN_SENTENCES)
    text = f"{TOKEN_TITLES[0]}{tokenizer.sep_token}{' '.join(TOKEN_SENTENCES[0])}"
    with torch.inference_mode():
        states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, 1:-1]  # without [CLS] and [SEP]
    expected, first = torch.nn.functional.normalize(states, dim=1), found[0]
    assert first.units.dtype == torch.float16
    torch.testing.assert_close(first.units.float(), expected, atol=2e-3, rtol=0)
    title = len(tokenizer(TOKEN_TITLES[0], add_special_tokens=False)["input_ids"])
    assert first.numbers.tolist() == [0, 2] and first.starts[0] == title + 1  # behind the separator
    assert first.ends[0] == first.starts[1] and first.ends[1] == len(expected)
    assert torch.equal(first.of(np.array([2])), first.units[first.starts[1] :])
    packed = dataclasses.replace(encoder, network=dataclasses.replace(encoder.network, packed=True))
    for one, other in zip(found, encode_tokens(packed, TOKEN_TITLES, TOKEN_SENTENCES), strict=True):
        torch.testing.assert_close(one.units, other.units, atol=2e-3, rtol=0)


def test_tokens_of_papers_without_title_without_text_and_cut(bert):
    found = encode_tokens(load_encoder(bert, max_tokens=12), TOKEN_TITLES, TOKEN_SENTENCES)
    assert found[1].starts.tolist()[0] == 0 and found[1].ends.tolist()[-1] == len(found[1].units)
    assert len(found[2].units) == 0 and len(found[2].of(np.array([0]))) == 0
    assert len(found[3].units) == 10 and found[3].numbers.tolist() == []  # all that is read is the title


# Papers and sentences of one pass

READ_TWICE = {
    "no abstract": PAPERS["no abstract"],
    "separator in a sentence": ("data", ["A paper [SEP] shows", "graphs."]),
}
TOGETHER = {
    **{name: paper for name, paper in PAPERS.items() if name != "an empty sentence"},
    **READ_TWICE,
    "empty": ("", []),
    "no token in a title": (" ", ["the cell", "grows"]),
}
TEXTS = [paper_text(title, " ".join(sentences)) for title, sentences in TOGETHER.values()]
GIVEN = (TEXTS, [title for title, _ in TOGETHER.values()],
         [sentences or [text for text in [title] if text] for title, sentences in TOGETHER.values()])  # fmt: skip


def together(encoder: TorchEncoder, texts: list[str], titles: list[str], sentences: list[list[str]], **more):
    return encode_papers_and_sentences(encoder, tokenize_papers(encoder.reader, texts, titles, sentences), **more)


def assert_as_in_two_passes(encoder: TorchEncoder, texts, titles, sentences) -> None:
    both = together(encoder, texts, titles, sentences)
    papers, apart = encoder.encode(texts), encode_sentences(encoder, titles, sentences)
    assert both.sentences.offsets.tolist() == apart.offsets.tolist()
    assert both.sentences.numbers.tolist() == apart.numbers.tolist() and both.sentences.lost == apart.lost
    for found, expected in ((both.vectors, papers), (both.sentences.matrix, apart.matrix)):
        np.testing.assert_allclose(found, expected, atol=1e-5)
        filled = expected.any(axis=1)
        assert filled.any() and not found[~filled].any()
        assert cosines(found[filled], expected[filled]).min() >= 0.99999


@pytest.mark.parametrize("runtime", ["torch", "packed", pytest.param("int8", marks=needs_instruction)])
@cls_and_mean
@pytest.mark.parametrize("budget", [1, 100, 10_000])
def test_vectors_are_those_of_two_passes(bert, runtime, options, budget):
    chosen = Runtime("torch", packed=True) if runtime == "packed" else runtime
    assert_as_in_two_passes(load_encoder(bert, device="cpu", runtime=chosen, batch_tokens=budget, **options), *GIVEN)


def test_vectors_are_those_of_two_passes_with_a_prompt_or_without_a_separator(encoder, save_bert, tmp_path):
    for prompt in ("", "find a paper : "):
        reader = dataclasses.replace(encoder.reader, prompt=prompt)
        assert_as_in_two_passes(dataclasses.replace(encoder, reader=reader), *GIVEN)
    assert_as_in_two_passes(load_encoder(save_bert(tmp_path / "model", sep=None), device="cpu"), *GIVEN)


@pytest.mark.parametrize("runtime", ["torch", pytest.param("int8", marks=needs_instruction)])
def test_vectors_of_a_real_model_are_those_of_two_passes(runtime):
    abstract = ["Poor countries have few rain gauges.", "We train a graph neural network.", "It is right within 10%."]
    titles = ["Rain seen by telephone masts", "Kriging of satellite images", ""]
    texts = [paper_text(titles[0], " ".join(abstract)), titles[1], " ".join(abstract * 40)]
    encoder = load_encoder("minilm", device="cpu", runtime=runtime)
    assert_as_in_two_passes(encoder, texts, titles, [abstract, titles[1:2], [*abstract * 40]])


def test_the_network_reads_a_paper_once(bert):
    encoder = watched(load_encoder(bert, device="cpu", pooling="mean", batch_tokens=60))
    recorder, read = Recorder(), encoder.network.texts
    together(encoder, *GIVEN, reporter=recorder)
    assert recorder.totals == [len(TEXTS)] and recorder.done == len(TEXTS), "progress counts every paper once"
    once = [text for text in encoder.reader.read(TEXTS) if len(text)]
    assert len(once) == len(TEXTS) - 1 and len(read) == len(once) + len(READ_TWICE)
    assert all(text.tolist() in read for text in once)
    for passes in (lambda: encoder.encode(TEXTS), lambda: encode_sentences(encoder, *GIVEN[1:])):
        read.clear()
        passes()
        assert len(read) >= len(once) - 1  # the one with a long title has no sentence left


def test_one_pass_of_nothing_and_poolings_that_need_a_pass_of_their_own(bert, encoder):
    for count in (0, 2):
        both = together(encoder, [""] * count, [""] * count, [[]] * count)
        assert both.vectors.shape == (count, 32) and not both.vectors.any()
        assert both.sentences.matrix.shape == (0, 32) and both.sentences.offsets.tolist() == [0] * (count + 1)
    for name, whether in {"cls": True, "mean": True, "layers": False}.items():
        assert reads_together(load_encoder(bert, device="cpu", pooling=name)) == whether
