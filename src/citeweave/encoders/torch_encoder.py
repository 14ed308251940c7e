"""An encoder that runs on torch: a reader, a network and a pooling.

Texts are read in windows, so that tokens in memory stay few; in a window they are sorted by length and put into batches
by tokens. In float32 a vector does not depend on its batch beyond 1e-5; in half precision it does, within that
precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.arguments import as_texts
from citeweave.encoders.backing_off import run_batches
from citeweave.encoders.model_folder import Settings
from citeweave.encoders.network import Network
from citeweave.encoders.reading import TextReader, Tokens
from citeweave.encoders.runtimes import Runtime
from citeweave.encoders.saved_batches import NOT_SAVED, Results, SavedBatches
from citeweave.encoders.text_vectors import text_vectors
from citeweave.extras import require
from citeweave.progress import QUIET, Advance, Reporter

WINDOW = 8192
"""Texts that are tokenized and sorted at a time."""


@dataclass(frozen=True, slots=True)
class TorchEncoder:
    """See `Encoder` for what it promises and `load_encoder` for making one."""

    name: str
    revision: str
    reader: TextReader
    network: Network
    settings: Settings
    batch_tokens: int
    """Tokens of a batch, padding included."""

    runtime: Runtime = field(default_factory=Runtime)
    """What computes the network; its label names it in reports."""

    @property
    def dimension(self) -> int:
        return self.network.dimension

    def encode(self, texts: str | Sequence[str], *, reporter: Reporter = QUIET) -> NDArray[np.float32]:
        """Vectors of the texts, (texts, dimension); zeros for a text without a token of its own. One text is one row."""
        texts = as_texts(texts)
        vectors = np.zeros((len(texts), self.dimension), np.float32)  # (texts, dimension)
        with reporter.task("embedding", len(texts), "papers") as advance:
            for start in range(0, len(texts), WINDOW):
                tokens = self.reader.read(texts[start : start + WINDOW])
                self._fill(vectors[start : start + WINDOW], tokens, advance, reporter)
        return vectors

    def encode_tokens(
        self, tokens: Sequence[Tokens], *, reporter: Reporter = QUIET, saved: SavedBatches = NOT_SAVED
    ) -> NDArray[np.float32]:
        """The same of texts that `reader` has read: all are sorted by length at once."""
        vectors = np.zeros((len(tokens), self.dimension), np.float32)  # (texts, dimension)
        with reporter.task("embedding", len(tokens), "papers") as advance:
            self._fill(vectors, tokens, advance, reporter, saved)
        return vectors

    def _fill(
        self,
        vectors: NDArray[np.float32],
        tokens: Sequence[Tokens],
        advance: Advance,
        reporter: Reporter,
        saved: SavedBatches = NOT_SAVED,
    ) -> None:
        torch = require("torch", extra="minilm")
        lengths = np.array([len(ids) for ids in tokens], np.int64)  # (texts,)
        advance(int((lengths == 0).sum()))
        on_their_way: list[tuple[NDArray[np.int64], Any]] = []

        def encode(rows: NDArray[np.int64]) -> None:
            with torch.inference_mode():
                found = text_vectors(self.network, [tokens[row] for row in rows.tolist()], self.settings)
            on_their_way.append((rows, found.to("cpu", non_blocking=True)))  # a GPU is at the next batch meanwhile

        def settle() -> None:
            if self.network.device != "cpu":
                torch.cuda.synchronize(self.network.device)
            for rows, found in on_their_way:
                vectors[rows] = found.numpy()  # (texts of a batch, dimension)
            on_their_way.clear()

        results = Results([vectors], lambda rows: [rows], lambda rows: advance(len(rows)), settle)
        run_batches(lengths, self.batch_tokens, encode, results=results, saved=saved, reporter=reporter)
