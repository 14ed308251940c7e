"""Mentions: in which sentences and sections of a citing paper another paper is cited, as sparse rows.

    contexts  paper 7, section "Method": cites 3, 5        mentions of 7:  3 (sentence 0, Method)
              paper 7, section "Method": cites 4                           5 (sentence 0, Method)
                                                                           4 (sentence 1, Method)

What proximity of two mentions is worth is said in `signals.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.corpus import Corpus


@dataclass(frozen=True, slots=True)
class Mentions:
    """All mentions of papers inside papers of the corpus, grouped by the citing paper."""

    offsets: NDArray[np.int64]
    """Shape (papers + 1,)."""

    cited: NDArray[np.int32]
    contexts: NDArray[np.int64]
    """Number of the citing sentence of every mention."""

    sections: NDArray[np.uint64]
    """Key of the section's name, 0 where it has none."""


def mentions_of(corpus: Corpus) -> Mentions:
    """The mentions of a corpus's contexts; contexts of citing papers outside the corpus are left out."""
    table = corpus.contexts
    lengths = np.diff(table.cited_offsets)
    citing = np.repeat(table.citing, lengths)  # (mentions,)
    numbers = np.repeat(np.arange(len(table), dtype=np.int64), lengths)
    keys = table.sections.keys()
    keys[table.sections.lengths() == 0] = 0
    order = np.argsort(citing, kind="stable")
    order = order[int(np.searchsorted(citing[order], 0)) :]
    counts = np.bincount(citing[order], minlength=len(corpus))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return Mentions(offsets, table.cited[order], numbers[order], keys[numbers[order]])
