"""What a network reads of a text: token ids, cut to the model's length.

    "A title[SEP]An abstract."   ->   [CLS] a title [SEP] an abstract . [SEP]

The placeholder between the parts of a text becomes the tokenizer's own separator token, or a blank where it has none.
A reader by sentence, for the pooling `aspect_words`, sets the special tokens around every sentence; the first part, the
title, counts as one:

    "A title[SEP]One. Two."      ->   [CLS] a title [SEP] [CLS] one . [SEP] [CLS] two . [SEP]

Does not pad: texts of a batch meet in `network.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.text import SEPARATOR, sentence_texts

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
    by_sentence: bool = False
    """Whether special tokens are set around every sentence, not around the text."""

    def read(self, texts: Sequence[str]) -> list[Tokens]:
        """Ids of every text with the special tokens around it, at most max_tokens of them.

        A text without a token of its own has none at all, shape (0,).
        """
        if not texts:
            return []
        if self.by_sentence:
            return self._read_by_sentence(texts)
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

    def _read_by_sentence(self, texts: Sequence[str]) -> list[Tokens]:
        split = [self._sentences(text) if text else [] for text in texts]
        pieces = iter(self.pieces([sentence for own in split for sentence in own]))
        return [self._enclosed([next(pieces) for _ in own]) for own in split]

    def _sentences(self, text: str) -> list[str]:
        title, *others = text.split(SEPARATOR)
        return [self.prompt + title, *(sentence for part in others for sentence in sentence_texts(part))]

    def _enclosed(self, sentences: Sequence[Tokens]) -> Tokens:
        """Every sentence between the special tokens, until max_tokens; one that is begun is closed."""
        parts, room = [np.zeros(0, np.int64)], self.max_tokens
        for ids in sentences:
            # a paper may write [CLS] itself; left there it would begin a sentence
            own = ids[ids != self.opening[-1]][: max(0, room - len(self.opening) - len(self.closing))]
            if len(own):
                parts += [self.opening, own, self.closing]
                room -= len(self.opening) + len(own) + len(self.closing)
        return np.concatenate(parts)

    def _prepare(self, text: str) -> str:
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode()  # tokenizers take no lone surrogates
        parts = (text.lower() if self.lower else text for text in text.split(SEPARATOR))
        return (self.tokenizer.sep_token or " ").join(parts)


def make_reader(
    tokenizer: Any, max_tokens: int, *, lower: bool = False, prompt: str = "", by_sentence: bool = False
) -> TextReader:
    """Find out which special tokens a tokenizer sets around a text."""
    probe = tokenizer("a", return_special_tokens_mask=True)
    ids = np.array(probe["input_ids"], np.int64)
    own = np.flatnonzero(np.array(probe["special_tokens_mask"]) == 0)  # (tokens of "a" itself,)
    first, last = (int(own[0]), int(own[-1]) + 1) if len(own) else (len(ids), len(ids))
    between = [] if tokenizer.sep_token_id is None else [tokenizer.sep_token_id]
    around = (ids[:first], ids[last:], np.array(between, np.int64))
    return TextReader(tokenizer, max_tokens, *around, lower=lower, prompt=prompt, by_sentence=by_sentence)
