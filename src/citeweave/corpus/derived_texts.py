"""Records and filters of a corpus of derived texts; `options.py` has the options, `derive.py` derives.

A derived text is written as a paper without a title. Texts are related by citations and by textless hubs:

    >>> [paper.id for paper in hub_papers("set", 2)]
    ['set:0', 'set:1']
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from citeweave.core.hash_keys import Keys, hash_texts
from citeweave.corpus.paper import CitationBlock, Paper, StagedRecord

# --- records of a derived corpus -------------------------------------------------------------------

STEP = 1 << 20
"""Citations per block."""


@dataclass(frozen=True, slots=True)
class DerivedRecords:
    """The records of a derived corpus, streamed, and their counts for its manifest."""

    records: Iterable[StagedRecord]
    counts: dict[str, Any]


def hub_papers(kind: str, count: int) -> Iterator[Paper]:
    """Yield textless hubs of a derived corpus: papers known only by their citations, never drawn where text is needed."""
    for number in range(count):
        yield Paper(f"{kind}:{number}", stub=True)


def citation_blocks(citing: Keys, cited: Keys) -> Iterator[CitationBlock]:
    """Yield the citations between derived texts in blocks, from the keys of their ids, both (citations,)."""
    for start in range(0, len(citing), STEP):
        left, right = citing[start : start + STEP], cited[start : start + STEP]
        none = np.zeros(len(left), np.uint8)
        yield CitationBlock(left, right, none, np.ones(len(left), np.float32), none.astype(bool), lambda: ([], []))


# --- filters of texts ------------------------------------------------------------------------------

_BRACKETS = re.compile(r"\(.*?\)|\[.*?\]", re.DOTALL)
_DIGITS = re.compile(r"\d+")


def word_reason(text: str, min_words: int, max_words: int) -> str:
    """Filter of derived texts: why a sentence is rejected for its number of words, empty where it is accepted.

    >>> word_reason("We agree.", 5, 80)
    'under 5 words'
    """
    words = len(text.split())
    if words < min_words:
        return f"under {min_words} words"
    return f"over {max_words} words" if words > max_words else ""


def bracket_reason(text: str) -> str:
    """Return why a citing sentence is rejected for lacking citation brackets, empty where it has some."""
    return "" if _BRACKETS.search(text) else "no brackets"


def repeat_keys(texts: list[str]) -> Keys:
    """Filter of derived texts: keys that are equal for repeated sentences, which differ only in numbers and white space.

    >>> first, second = repeat_keys(["As in [3] we walk.", "As in [14] we walk."])
    >>> bool(first == second)
    True
    """
    return hash_texts([" ".join(_DIGITS.sub("0", text).split()) for text in texts])


def count_rejected(rejected: dict[str, int], reason: str, number: int) -> None:
    """Add to the number of texts that were rejected for this reason."""
    if number:
        rejected[reason] = rejected.get(reason, 0) + number


def list_rejected(rejected: dict[str, int]) -> str:
    """Return the reasons why derived texts were rejected as one line for an error message.

    >>> list_rejected({"under 5 words": 1200, "no brackets": 3})
    '1,200 under 5 words; 3 no brackets'
    """
    return "; ".join(f"{number:,} {reason}" for reason, number in rejected.items())
