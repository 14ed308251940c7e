"""Vectors of tokens: the last states of a paper that is read once, without the special tokens around it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from citeweave.encoders.encoder import load_encoder
from citeweave.encoders.sentence_encoder import encode_tokens

torch = pytest.importorskip("torch", reason="pip install 'citeweave[minilm]'")

TITLES = ["The cell grows", "", "", "how models learn " * 20]
SENTENCES = [["We find how models learn.", "", "Data."], ["data in graphs", "of citations ."], [], ["cut away"]]


@pytest.mark.parametrize("budget", [1, 10_000])
def test_tokens_are_the_last_states_of_the_whole_paper(bert, budget):
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(bert), AutoModel.from_pretrained(bert).eval()
    found = encode_tokens(load_encoder(bert, batch_tokens=budget), TITLES, SENTENCES)
    text = f"{TITLES[0]}{tokenizer.sep_token}{' '.join(SENTENCES[0])}"
    with torch.inference_mode():
        states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, 1:-1]  # without [CLS] and [SEP]
    expected = torch.nn.functional.normalize(states, dim=1)
    assert found[0].units.dtype == torch.float16
    torch.testing.assert_close(found[0].units.float(), expected, atol=2e-3, rtol=0)
    title = len(tokenizer(TITLES[0], add_special_tokens=False)["input_ids"])
    assert found[0].numbers.tolist() == [0, 2] and found[0].starts[0] == title + 1  # behind the separator
    assert found[0].ends[0] == found[0].starts[1] and found[0].ends[1] == len(expected)
    assert torch.equal(found[0].of(np.array([2])), found[0].units[found[0].starts[1] :])


def test_papers_without_title_without_text_and_cut(bert):
    found = encode_tokens(load_encoder(bert, max_tokens=12), TITLES, SENTENCES)
    assert found[1].starts.tolist()[0] == 0 and found[1].ends.tolist()[-1] == len(found[1].units)
    assert len(found[2].units) == 0 and len(found[2].of(np.array([0]))) == 0
    assert len(found[3].units) == 10 and found[3].numbers.tolist() == []  # all that is read is the title


def test_packed_and_padded_tokens_are_the_same(bert):
    encoder = load_encoder(bert)
    packed = dataclasses.replace(encoder, network=dataclasses.replace(encoder.network, packed=True))
    for one, other in zip(*(encode_tokens(each, TITLES, SENTENCES) for each in (encoder, packed)), strict=True):
        torch.testing.assert_close(one.units, other.units, atol=2e-3, rtol=0)
