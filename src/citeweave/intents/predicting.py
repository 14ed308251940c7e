"""What a network says of citances: numbers (logits) in the order of the citances, in bounded memory.

Citances are read in windows; in a window they are sorted by length and put into batches by tokens. A citance without a
token gets zeros: all labels alike. Computes in float32, or in int8 what `in_int8` has turned into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from citeweave.encoders.backing_off import run_batches
from citeweave.encoders.fastest import is_small
from citeweave.encoders.runtimes import Runtime, network_in
from citeweave.encoders.saved_batches import NOT_SAVED, Results, SavedBatches
from citeweave.errors import UserError
from citeweave.intents.marking import Citance
from citeweave.intents.network import IntentNetwork
from citeweave.progress import QUIET, Reporter

WINDOW = 8192
"""Citances that are tokenized and sorted at a time."""

BATCH_TOKENS = {"cpu": 2048, "cuda": 65_536, "int8": 16_384}
"""What computes -> tokens of a batch, padding included, where the caller does not say."""


def predict_logits(
    network: IntentNetwork,
    citances: Sequence[Citance],
    task: str,
    *,
    batch_tokens: int = 0,
    reporter: Reporter = QUIET,
    saved: SavedBatches = NOT_SAVED,
) -> NDArray[np.float32]:
    """(citances, labels of the task)."""
    budget = batch_tokens or BATCH_TOKENS[_computes(network)]
    found = np.zeros((len(citances), network.shape.tasks[task]), np.float32)  # (citances, labels)
    was_training = network.training
    network.eval()
    try:
        with reporter.task("intents", len(citances), "sentences") as advance:
            for start in range(0, len(citances), WINDOW):
                window = citances[start : start + WINDOW]
                _fill(network, window, task, found[start : start + WINDOW], budget, reporter, saved)
                advance(len(window))
    finally:
        network.train(was_training)
    return found


def _fill(
    network: IntentNetwork,
    citances: Sequence[Citance],
    task: str,
    out: NDArray[np.float32],
    budget: int,
    reporter: Reporter,
    saved: SavedBatches,
) -> None:
    tokens = network.base.reader.read(citances)

    def run(rows: NDArray[np.int64]) -> None:
        with torch.inference_mode():
            logits = network.logits([tokens[row] for row in rows.tolist()], task)
        out[rows] = logits.float().cpu().numpy()  # (texts of a batch, labels)

    lengths, results = np.array([len(found.ids) for found in tokens], np.int64), Results([out], lambda rows: [rows])
    run_batches(lengths, budget, run, results=results, saved=saved, reporter=reporter)


def in_int8(network: IntentNetwork, threads: int = 0) -> None:
    """Let a merged network compute in int8, see `encoders/runtimes.py`; 0 threads means one per core."""
    base = network.base
    fast = network_in(Runtime("int8", threads=threads), base.network, base.reader.reader, base.name)
    network.base = replace(base, network=fast)
    network.encoder = torch.nn.Identity()  # its memory is free again


def try_int8(network: IntentNetwork, threads: int = 0) -> None:
    """The same where processor and encoder can; else the network stays as it is."""
    if network.device_kind == "cpu" and not is_small(network.base.network):
        with suppress(UserError):  # an encoder of another kind or size, or no runtime for it
            in_int8(network, threads)


def _computes(network: IntentNetwork) -> str:
    return "int8" if isinstance(network.encoder, torch.nn.Identity) else network.device_kind
