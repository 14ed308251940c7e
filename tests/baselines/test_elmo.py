"""The language model: padding changes nothing, directions do not look ahead, and it learns."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from citeweave.baselines.elmo import (  # noqa: E402
    build_batch,
    build_targets,
    language_loss,
    layers,
    new_network,
    split_tokens,
    text_means,
)

LONG, SHORT = list("abcdef"), list("bdf")


@pytest.fixture
def network():
    torch.manual_seed(0)
    return new_network(torch, 8, 12).eval()


def test_padding_changes_no_vector(network):
    with torch.inference_mode():
        together = text_means(torch, network, build_batch(torch, [LONG, SHORT]))
        alone = text_means(torch, network, build_batch(torch, [SHORT]))
    assert np.allclose(together[1], alone[0], atol=1e-5)


def test_each_direction_sees_its_own_side_only(network):
    with torch.inference_mode():
        one = layers(torch, network, build_batch(torch, [LONG]))
        last = layers(torch, network, build_batch(torch, [[*LONG[:-1], "z"]]))
    assert len(one) == 3 and one[0].shape == (1, 6, 16)
    for before, after in zip(one[1:], last[1:], strict=True):
        assert torch.allclose(before[0, :-1, :8], after[0, :-1, :8]), "from the left the last word is not seen"
        assert not torch.allclose(before[0, 0, 8:], after[0, 0, 8:]), "from the right it is"


def test_a_vector_is_the_mean_over_words_and_layers(network):
    batch = build_batch(torch, [LONG])
    with torch.inference_mode():
        expected = torch.stack(layers(torch, network, batch)).mean(dim=(0, 2))
        assert np.allclose(text_means(torch, network, batch), expected.numpy(), atol=1e-5)


def test_it_learns_what_comes_next(network):
    texts = [split_tokens("to be or not to be"), split_tokens("not or")]
    numbers = {word: number for number, word in enumerate(dict.fromkeys(word for text in texts for word in text))}
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    losses = []
    for _ in range(60):
        loss = language_loss(torch, network, build_batch(torch, texts), build_targets(torch, texts, numbers))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    # what comes after "to" is certain, what comes after "or" is not: well below one of four words
    assert losses[0] > 1.3 and losses[-1] < 0.2
