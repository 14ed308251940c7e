"""From papers to the rows that losses read: a paper's own vector, and behind it the vectors of its sentences.

The paper is read once: its own vector is pooled as the encoder's settings say, a sentence's is the mean of the states
of its tokens, raw, as in `encoders/sentences.py`. Without sentences in the data there is one row a paper.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from citeweave.encoders.batching import batches
from citeweave.encoders.model_folder import Settings
from citeweave.encoders.network import Network
from citeweave.encoders.reading import Tokens
from citeweave.encoders.sentences import span_vectors
from citeweave.encoders.text_vectors import text_vectors
from citeweave.training.data import Numbers, TrainingData
from citeweave.training.sentence_level.spans import SentenceSpans, paper_rows

PADDED_TOKENS = 4096
"""Tokens of a padded forward, padding included: texts of like length go together."""


def encode_rows(
    data: TrainingData, network: Network, settings: Settings, papers: Numbers, *, readings: int = 0
) -> Tensor:
    """Rows (rows, dimension) of papers; texts alike in length are padded together where the network needs padding.

    The network reads `readings` times at least: of a sharded one all processes must read equally often. What is read
    too much counts nothing.
    """
    tokens = data.tokens.take(papers)
    lengths = np.array([len(ids) for ids in tokens], np.int64)  # (papers,)
    if network.packs:
        rows, done = _rows(data.sentences, network, settings, papers, tokens), 1
    else:
        layout, found, order = paper_rows(data.sentences, papers), [], []
        for part in batches(lengths, PADDED_TOKENS):
            found.append(_rows(data.sentences, network, settings, papers[part], [tokens[row] for row in part.tolist()]))
            order.append(layout.of(part))
        back = np.argsort(np.concatenate(order))  # (rows,)
        rows, done = torch.cat(found)[torch.from_numpy(back).to(network.device)], len(found)
    shortest = int(np.argmin(lengths))
    for _ in range(readings - done):
        rows = rows + 0 * _rows(data.sentences, network, settings, papers[[shortest]], [tokens[shortest]]).sum()
    return rows


def count_readings(data: TrainingData, network: Network, papers: Numbers) -> int:
    """How often `encode_rows` calls the network for some papers."""
    return 1 if network.packs else len(list(batches(data.tokens.lengths()[papers], PADDED_TOKENS)))


def _rows(
    spans: SentenceSpans | None, network: Network, settings: Settings, papers: Numbers, tokens: Sequence[Tokens]
) -> Tensor:
    if spans is None:
        return text_vectors(network, tokens, settings)
    wanted = spans.places(papers)  # (sentences,)
    return span_vectors(network, tokens, spans.counts()[papers], spans.starts[wanted], spans.ends[wanted], settings)
