"""Vectors of the tokens of a paper, read once and whole, as `sentences.py` reads it.

    [CLS] title [SEP] sentence 0 sentence 1 ... [SEP]      cut at the encoder's length
          ------------------------------------             these are the paper's tokens, each of length 1

The special tokens around the text are left out; the one between title and abstract is a token like any other. Vectors are
the last layer's states, whatever the encoder's pooling, kept in half precision where the network is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from citeweave.encoders.backing_off import run_batches
from citeweave.encoders.reading import TextReader
from citeweave.encoders.sentence_layout import SentenceLayout, lay_out
from citeweave.encoders.torch_encoder import TorchEncoder
from citeweave.errors import UserError
from citeweave.extras import require
from citeweave.progress import QUIET, Reporter

if TYPE_CHECKING:
    from torch import Tensor

BYTES = 2
"""Of a number that is kept."""


@dataclass(frozen=True, slots=True)
class PaperTokens:
    """The tokens of one paper, and where those of its sentences are."""

    units: Tensor
    """(tokens, dimension) float16, of length 1."""

    starts: NDArray[np.int64]
    """First token of every sentence that was read, (sentences,)."""

    ends: NDArray[np.int64]
    """The token behind its last one."""

    numbers: NDArray[np.int64]
    """Which sentence of the paper it is, from 0."""

    def of(self, sentences: NDArray[np.integer] | None) -> Tensor:
        """Tokens of these sentences alone, as far as they were read; None: all of the paper, its title's among them.

        >>> import torch
        >>> paper = PaperTokens(torch.eye(5), np.array([1, 3]), np.array([3, 4]), np.array([0, 2]))
        >>> [len(paper.of(None)), len(paper.of(np.array([1]))), paper.of(np.array([2, 0])).argmax(1).tolist()]
        [5, 0, [1, 2, 3]]
        """
        if sentences is None:
            return self.units
        spans = np.flatnonzero(np.isin(self.numbers, sentences)).tolist()
        torch = require("torch", extra="minilm")
        own = [self.units[self.starts[at] : self.ends[at]] for at in spans]
        found: Tensor = torch.cat([self.units[:0], *own])  # (tokens, dimension)
        return found


def encode_tokens(
    encoder: TorchEncoder, titles: Sequence[str], sentences: Sequence[Sequence[str]], *, reporter: Reporter = QUIET
) -> list[PaperTokens]:
    """Tokens of every paper; one without title is read without its separator too, one without text has none."""
    torch = require("torch", extra="minilm")
    layouts = lay_out(encoder.reader, titles, sentences)
    nothing = torch.zeros((0, encoder.dimension), dtype=torch.float16, device=encoder.network.device)
    found = [_place(layout, encoder.reader, nothing) for layout in layouts]
    lengths = np.array([len(layout.tokens) for layout in layouts], np.int64)  # (papers,)

    def encode(rows: NDArray[np.int64]) -> None:
        with torch.inference_mode():
            states = encoder.network.token_states([layouts[row].tokens for row in rows.tolist()]).tokens().float()
            units = (states / states.norm(dim=1, keepdim=True).clamp(min=1e-12)).half()  # (tokens, dimension)
        if not bool(torch.isfinite(units).all()):
            raise UserError(f"{encoder.name} gives tokens numbers that are not finite; check the model")
        for row, own in zip(rows.tolist(), units.split(lengths[rows].tolist()), strict=True):
            inner = own[len(encoder.reader.opening) : len(own) - len(encoder.reader.closing)]
            found[row] = _place(layouts[row], encoder.reader, inner.clone())  # a part would keep the whole batch

    run_batches(lengths, encoder.batch_tokens, encode, reporter=reporter)
    return found


def _place(layout: SentenceLayout, reader: TextReader, units: Tensor) -> PaperTokens:
    before = len(reader.opening)
    return PaperTokens(units, layout.starts - before, layout.ends - before, layout.numbers)
