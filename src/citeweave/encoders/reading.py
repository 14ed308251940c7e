"""What a network reads of a text: token ids, cut to the model's length.

    "A title[SEP]An abstract."   ->   [CLS] a title [SEP] an abstract . [SEP]

The placeholder between the parts of a text becomes the tokenizer's own separator token, or a blank where it has none.
Does not pad: texts of a batch meet in `network.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.text import SEPARATOR

Tokens = NDArray[np.int64]
"""Ids of tokens, shape (tokens,)."""


@dataclass(frozen=True, slots=True)
class TextReader:
    """A tokenizer together with what a model wants of it. See `make_reader`."""

    tokenizer: Any
    max_tokens: int
    opening: Tokens
    """Special tokens before a text, such as [CLS]."""

    closing: Tokens
    """Special tokens after a text, such as [SEP]."""

    separator: Tokens
    """What stands between two parts; empty where the tokenizer has no separator token."""

    lower: bool = False
    prompt: str = ""

    def read(self, texts: Sequence[str]) -> list[Tokens]:
        """Ids of every text with the special tokens around it, at most max_tokens of them.

        A text without a token of its own has none at all, shape (0,).
        """
        found = self.tokenizer(
            [self._prepare(self.prompt + text) if text else "" for text in texts],
            truncation=True,
            max_length=self.max_tokens,
            return_attention_mask=False,
            return_token_type_ids=False,
        )["input_ids"]
        empty = len(self.opening) + len(self.closing)
        return [np.array(ids if len(ids) > empty else [], np.int64) for ids in found]

    def pieces(self, texts: Sequence[str]) -> list[Tokens]:
        """Ids of every text alone: no special tokens around it, no prompt, not cut."""
        if not texts:
            return []
        found = self.tokenizer(
            [self._prepare(text) for text in texts],
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )["input_ids"]
        return [np.array(ids, np.int64) for ids in found]

    def _prepare(self, text: str) -> str:
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode()  # tokenizers take no lone surrogates
        parts = (text.lower() if self.lower else text for text in text.split(SEPARATOR))
        return (self.tokenizer.sep_token or " ").join(parts)


def make_reader(tokenizer: Any, max_tokens: int, *, lower: bool = False, prompt: str = "") -> TextReader:
    """Find out which special tokens a tokenizer sets around a text."""
    probe = tokenizer("a", return_special_tokens_mask=True)
    ids = np.array(probe["input_ids"], np.int64)
    own = np.flatnonzero(np.array(probe["special_tokens_mask"]) == 0)  # (tokens of "a" itself,)
    first, last = (int(own[0]), int(own[-1]) + 1) if len(own) else (len(ids), len(ids))
    between = [] if tokenizer.sep_token_id is None else [tokenizer.sep_token_id]
    return TextReader(
        tokenizer, max_tokens, ids[:first], ids[last:], np.array(between, np.int64), lower=lower, prompt=prompt
    )
