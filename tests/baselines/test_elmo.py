"""The language model: padding changes nothing, directions do not look ahead, and it learns."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from citeweave.baselines import elmo  # noqa: E402

LONG, SHORT = list("abcdef"), list("bdf")


@pytest.fixture
def network():
    torch.manual_seed(0)
    return elmo.new_network(torch, 8, 12).eval()


def test_a_vector_is_the_mean_over_words_and_layers_and_padding_changes_none(network):
    with torch.inference_mode():
        together = elmo.text_means(torch, network, elmo.build_batch(torch, [LONG, SHORT]))
        for text, vector in zip((LONG, SHORT), together, strict=True):
            alone = elmo.build_batch(torch, [text])
            expected = torch.stack(elmo.layers(torch, network, alone)).mean(dim=(0, 2))
            assert np.allclose(elmo.text_means(torch, network, alone), expected.numpy(), atol=1e-5)
            assert np.allclose(vector, expected[0].numpy(), atol=1e-5)


def test_each_direction_sees_its_own_side_only(network):
    with torch.inference_mode():
        one, last = (elmo.layers(torch, network, elmo.build_batch(torch, [text])) for text in (LONG, [*LONG[:-1], "z"]))
    assert len(one) == 3 and one[0].shape == (1, 6, 16)
    for before, after in zip(one[1:], last[1:], strict=True):
        assert torch.allclose(before[0, :-1, :8], after[0, :-1, :8]), "from the left the last word is not seen"
        assert not torch.allclose(before[0, 0, 8:], after[0, 0, 8:]), "from the right it is"


def test_it_learns_what_comes_next(network):
    texts = [elmo.split_tokens("to be or not to be"), elmo.split_tokens("not or")]
    numbers = {word: number for number, word in enumerate(dict.fromkeys(word for text in texts for word in text))}
    optimizer, losses = torch.optim.Adam(network.parameters(), lr=0.05), []
    for _ in range(60):
        targets = elmo.build_targets(torch, texts, numbers)
        loss = elmo.language_loss(torch, network, elmo.build_batch(torch, texts), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    # what comes after "to" is certain, what comes after "or" is not: well below one of four words
    assert losses[0] > 1.3 and losses[-1] < 0.2
