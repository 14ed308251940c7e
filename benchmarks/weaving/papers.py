"""Papers of all parts of a bundle as tokens, one part behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.cleaning import clean_text, fold
from citeweave.corpus.text import sentence_texts
from citeweave.encoders.reading import TextReader
from citeweave.encoders.sentence_layout import lay_out
from citeweave.hashing import hash_texts

BLOCK = 4096
"""Papers laid out at a time."""


@dataclass
class Papers:
    """Papers in the order of `add`; row = place in all lists."""

    reader: TextReader
    tokens: list[NDArray[Any]] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    """Tokens of [CLS] title [SEP]; 0 where there is no title."""

    starts: list[NDArray[Any]] = field(default_factory=list)
    """Of every sentence its first token."""

    numbers: list[NDArray[Any]] = field(default_factory=list)
    """Of every sentence its number in the abstract."""

    keys: list[int] = field(default_factory=list)
    """Equal for equal titles."""

    parts: dict[str, tuple[int, int]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    """part/id -> row."""

    def add(self, part: str, ids: Sequence[str], titles: Sequence[str], sentences: Sequence[Sequence[str]]) -> None:
        first = len(self.tokens)
        for low in range(0, len(ids), BLOCK):
            self._lay_out(titles[low : low + BLOCK], sentences[low : low + BLOCK])
        self.keys += hash_texts([fold(title) for title in titles]).tolist()
        self.rows |= {f"{part}/{name}": first + at for at, name in enumerate(ids)}
        self.parts[part] = first, len(self.tokens)
        print(f"{part}: {len(ids):,} papers, {sum(map(len, self.tokens[first:])):,} tokens", flush=True)

    def _lay_out(self, titles: Sequence[str], sentences: Sequence[Sequence[str]]) -> None:
        clean = [_without_marks(clean_text(title)) for title in titles]
        texts = [[_without_marks(text) for text in each] for each in sentences]
        for layout, title in zip(lay_out(self.reader, clean, texts), clean, strict=True):
            self.tokens.append(layout.tokens.astype(np.uint16))
            self.starts.append(layout.starts.astype(np.uint16))
            self.numbers.append(layout.numbers.astype(np.uint8))
            head = int(layout.starts[0]) if len(layout.starts) else len(layout.tokens)
            self.heads.append(head if title else 0)

    def arrays(self) -> dict[str, Any]:
        """What `Bundle` reads of the papers."""
        return {
            "tokens": np.concatenate(self.tokens),
            "lengths": _lengths(self.tokens),
            "starts": np.concatenate(self.starts),
            "counts": _lengths(self.starts),
            "numbers": np.concatenate(self.numbers),
            "heads": np.array(self.heads, np.uint16),
            "keys": np.array(self.keys, np.uint64),
            "parts": self.parts,
        }


def split_sentences(abstracts: Sequence[str | None]) -> list[list[str]]:
    return [sentence_texts(clean_text(text)) if text else [] for text in abstracts]


def as_one_sentence(abstracts: Sequence[str | None]) -> list[list[str]]:
    return [[clean_text(text)] if text else [] for text in abstracts]


def _without_marks(text: str) -> str:
    """A text cannot end its own part: [SEP] written out would be read as the mark."""
    return text.replace("[SEP]", "[sep]")


def _lengths(lists: Sequence[NDArray[Any]]) -> NDArray[np.uint16]:
    return np.array([len(each) for each in lists], np.uint16)
