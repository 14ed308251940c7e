"""Records of a derived corpus: texts come as papers, what relates them as textless hubs and citations.

>>> [paper.id for paper in hubs("set", 2)]
['set:0', 'set:1']
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from citeweave.corpus.paper import CitationBlock, Paper, StagedRecord
from citeweave.hashing import Keys

STEP = 1 << 20
"""Citations handed on at a time."""


@dataclass(frozen=True, slots=True)
class DerivedRecords:
    """What a corpus is built of, streaming, and what there is of it in numbers."""

    records: Iterable[StagedRecord]
    facts: dict[str, Any]


def hubs(kind: str, number: int) -> Iterator[Paper]:
    """Papers without text, known only by their citations: no text of a sample, in any pool that asks for text."""
    for each in range(number):
        yield Paper(f"{kind}:{each}", stub=True)


def cites(citing: Keys, cited: Keys) -> Iterator[CitationBlock]:
    """Citations by the keys of ids, both of shape (citations,)."""
    for start in range(0, len(citing), STEP):
        left, right = citing[start : start + STEP], cited[start : start + STEP]
        none = np.zeros(len(left), np.uint8)
        yield CitationBlock(left, right, none, np.ones(len(left), np.float32), none.astype(bool), lambda: ([], []))
