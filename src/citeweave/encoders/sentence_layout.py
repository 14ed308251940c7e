"""How the sentences of a paper lie among its tokens.

    [CLS] title [SEP] sentence 0 sentence 1 ... [SEP]      cut at the reader's length
    0     1     3     4          9          15             starts 4, 9; ends 9, 15

A sentence cut in the middle keeps the tokens that are there; one without a token, because it is cut away or empty, is
not among the numbers. Knows no network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from citeweave.encoders.reading import TextReader, Tokens


@dataclass(frozen=True, slots=True)
class SentenceLayout:
    """The tokens of a paper, and where those of its sentences are."""

    tokens: Tokens
    starts: NDArray[np.int64]
    """First token of every sentence that has one, shape (sentences,)."""

    ends: NDArray[np.int64]
    """The token behind its last one."""

    numbers: NDArray[np.int64]
    """Which sentence of the paper it is, from 0, ascending."""


def lay_out(reader: TextReader, titles: Sequence[str], sentences: Sequence[Sequence[str]]) -> list[SentenceLayout]:
    """Tokenize title and sentences apart, as ASPIRE does, and put them behind each other.

    A paper without title is read without its separator too; one without any token of its own has no tokens at all.
    """
    heads = reader.pieces([reader.prompt + title for title in titles])
    # tokenizers that mark the beginning of words need the blank
    bodies = iter(reader.pieces([f" {text}" if at else text for texts in sentences for at, text in enumerate(texts)]))
    return [_lay_out(reader, head, [next(bodies) for _ in texts]) for head, texts in zip(heads, sentences, strict=True)]


def _lay_out(reader: TextReader, head: Tokens, own: list[Tokens]) -> SentenceLayout:
    start = np.concatenate([reader.opening, head, reader.separator if len(head) else head])
    bounds = np.cumsum([len(start), *map(len, own)])  # (sentences + 1,)
    room = reader.max_tokens - len(reader.closing)
    tokens = np.concatenate([start, *own])[:room]
    starts, ends = np.minimum(bounds[:-1], room), np.minimum(bounds[1:], room)
    numbers = np.flatnonzero(ends > starts)
    if len(tokens) == len(reader.opening):
        return SentenceLayout(np.zeros(0, np.int64), numbers, numbers, numbers)
    return SentenceLayout(np.concatenate([tokens, reader.closing]), starts[numbers], ends[numbers], numbers)
