"""Where sentences end, for a machine without the package `sentencex`: what it says here is recorded and repeated there.

>>> boundaries = record(["One is here. Two is there."])
>>> [each["end_index"] for each in boundaries.get_sentence_boundaries("en", "One is here. Two is there.")]
[13, 26]
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.corpus.text import SEPARATOR, sentences
from citeweave.evaluation.tasks import Suite, TaskTexts

PACKAGE = "sentencex"


@dataclass(frozen=True)
class Boundaries:
    """Answers of sentencex by the hash of what it was asked."""

    keys: NDArray[np.uint64]
    """Ascending, (texts,)."""

    offsets: NDArray[np.int64]
    ends: NDArray[np.int32]

    def get_sentence_boundaries(self, language: str, text: str) -> list[dict[str, int]]:
        key = np.uint64(_key(text))
        at = int(np.searchsorted(self.keys, key))
        if at == len(self.keys) or self.keys[at] != key:
            raise UserError(
                f"{PACKAGE} is not installed, and the bundle does not know where the sentences of {text[:40]!r} end"
            )
        return [{"end_index": end} for end in self.ends[self.offsets[at] : self.offsets[at + 1]].tolist()]


def record(texts: Iterable[str]) -> Boundaries:
    """What sentencex says of these texts, piece by piece as it is asked."""
    known: dict[int, list[int]] = {}
    real: Any = importlib.import_module(PACKAGE)
    sys.modules[PACKAGE] = _Recorder(real, known)  # type: ignore[assignment]
    try:
        for text in dict.fromkeys(texts):
            sentences(text)
    finally:
        sys.modules[PACKAGE] = real
    keys = np.array(sorted(known), np.uint64)
    lists = [known[key] for key in keys.tolist()]
    offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return Boundaries(keys, offsets, np.array([end for own in lists for end in own], np.int32))


def provide(boundaries: Boundaries) -> None:
    """Let the recorded answers stand for the package, where it is not installed."""
    if PACKAGE not in sys.modules and importlib.util.find_spec(PACKAGE) is None:
        sys.modules[PACKAGE] = boundaries  # type: ignore[assignment]


def texts_to_split(titles: Sequence[str], abstracts: Sequence[str], suites: Iterable[Suite]) -> Iterable[str]:
    """Every text whose sentences may be asked for: of the papers and of the suites."""
    own = TaskTexts(range(len(titles)), titles, abstracts)  # type: ignore[arg-type]  # ids do not matter here
    every = {id(texts): texts for texts in (own, *(task.texts for suite in suites for task in suite.tasks))}
    for texts in every.values():
        yield from texts.abstracts
        for text in texts.paper_texts():
            yield from text.split(SEPARATOR)[1:]


@dataclass(frozen=True)
class _Recorder:
    real: Any
    known: dict[int, list[int]]

    def get_sentence_boundaries(self, language: str, text: str) -> list[dict[str, int]]:
        key = _key(text)
        if key not in self.known:
            found = self.real.get_sentence_boundaries(language, text)
            self.known[key] = [int(each["end_index"]) for each in found]
        return [{"end_index": end} for end in self.known[key]]


def _key(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "little")
