"""Vectors of papers in a training step, with gradients: each paper's own, followed by those of its sentences.

    rows = encode_rows(data, network, settings, papers)       (rows, dimension), laid out by `data.paper_rows`

A paper is encoded once: its own vector is pooled by the encoder's settings, a sentence's vector is the mean of the
states of its tokens, as in `encoders/sentence_encoder.py`. Without sentences in the data there is one row per paper.
Texts that the network cannot pack are padded, those of similar length together. Sets no dropout and no precision:
`encoder_task.py` does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from citeweave.encoders.batches import batches
from citeweave.encoders.model_folder import Settings
from citeweave.encoders.network import Network
from citeweave.encoders.pooling import text_vectors
from citeweave.encoders.sentence_encoder import span_vectors
from citeweave.encoders.tokens import Tokens
from citeweave.training.data import Numbers, SentenceSpans, TrainingData, paper_rows

PADDED_TOKENS = {"cpu": 4096, "cuda": 32768}
"""Tokens of a padded forward, padding included; texts of similar length are padded together."""


def encode_rows(
    data: TrainingData, network: Network, settings: Settings, papers: Numbers, *, min_forwards: int = 0
) -> Tensor:
    """Encode the papers of a step into the rows (rows, dimension) that losses read: each paper, then its sentences.

    The network runs at least `min_forwards` times, since all processes of a sharded one must run it equally often;
    surplus forwards have weight 0.
    """
    tokens = data.tokens.take(papers)
    lengths = np.array([len(ids) for ids in tokens], np.int64)  # (papers,)
    if network.packs:
        rows, forwards = _encode_part(data.sentences, network, settings, papers, tokens), 1
    else:
        layout, encoded, order = paper_rows(data.sentences, papers), [], []
        for part in batches(lengths, _padded_tokens(network)):
            part_tokens = [tokens[row] for row in part.tolist()]
            encoded.append(_encode_part(data.sentences, network, settings, papers[part], part_tokens))
            order.append(layout.places(part))
        back = np.argsort(np.concatenate(order))  # (rows,)
        rows, forwards = torch.cat(encoded)[torch.from_numpy(back).to(network.device)], len(encoded)
    shortest = int(np.argmin(lengths))
    for _ in range(min_forwards - forwards):
        rows = rows + 0 * _encode_part(data.sentences, network, settings, papers[[shortest]], [tokens[shortest]]).sum()
    return rows


def count_forwards(data: TrainingData, network: Network, papers: Numbers) -> int:
    """Count the forwards of the network that `encode_rows` needs for some papers."""
    lengths = data.tokens.lengths()[papers]  # (papers,)
    return 1 if network.packs else len(list(batches(lengths, _padded_tokens(network))))


def _padded_tokens(network: Network) -> int:
    return PADDED_TOKENS[network.device.partition(":")[0]]


def _encode_part(
    spans: SentenceSpans | None, network: Network, settings: Settings, papers: Numbers, tokens: Sequence[Tokens]
) -> Tensor:
    """Encode papers in one forward, with the vectors of their sentences where there are spans."""
    if spans is None:
        return text_vectors(network, tokens, settings)
    at = spans.places(papers)  # (sentences,)
    return span_vectors(
        network.token_states(tokens), spans.lengths()[papers], spans.starts[at], spans.ends[at], settings
    )
