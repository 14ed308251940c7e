"""Material: what rules draw from: a corpus, its graph, vectors and tables, each restricted to the papers in play.

The pool are the papers with text, or those of given ones that have it. Vectors may come in any order and for any
subset of the papers: `tying.py` ties them to rows of the corpus.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.corpus import Corpus, lines
from citeweave.errors import UserError
from citeweave.graph.signals import Relations
from citeweave.mining.aspect_names import NODES
from citeweave.mining.sharing import Sharing, sharing_of
from citeweave.mining.tables import Table
from citeweave.mining.tying import PoolVectors, tie_vectors
from citeweave.similarity.vectors import Vectors

_MOST_FIELDS = 63


@dataclass
class Material:
    """Everything a rule may draw from."""

    corpus: Corpus
    text: str = "abstract"
    """Which papers take part: abstract, title, either, any."""

    relations: Relations | None = None
    vectors: Mapping[str, Vectors] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)
    seed: int = 0
    workers: int = 0
    memory: int = 512 << 20
    device: str = "cpu"
    given: NDArray[np.int64] | None = None
    """Rows that may be chosen; None = any."""

    anchors: NDArray[np.int64] | None = None
    """Rows that are asked about, which may lie outside of the pool; None = those of the pool."""

    cells: dict[tuple[str, int], object] = field(default_factory=dict)
    """k-means cells that were made, by vectors and number."""

    _tied: dict[str, PoolVectors] = field(default_factory=dict)
    _shared: dict[tuple[str, ...], Sharing] = field(default_factory=dict)

    @cached_property
    def has_text(self) -> NDArray[np.bool_]:
        """Which papers have the text that is asked for; shape (papers,)."""
        if self.text == "any":
            return np.ones(len(self.corpus), bool)
        offsets = (column.offsets for column in (self.corpus.titles, self.corpus.abstracts))
        has_title, has_abstract = (ends[1:] > ends[:-1] for ends in offsets)
        return {"abstract": has_title & has_abstract, "title": has_title, "either": has_title | has_abstract}[self.text]

    @cached_property
    def in_pool(self) -> NDArray[np.bool_]:
        """Which papers may be chosen; shape (papers,)."""
        if self.given is None:
            return self.has_text
        chosen = np.zeros(len(self.corpus), bool)
        chosen[self.given] = self.has_text[self.given]
        return chosen

    @cached_property
    def pool(self) -> NDArray[np.int32]:
        """The rows in play, ascending."""
        return np.flatnonzero(self.in_pool).astype(np.int32)

    @property
    def asked_for(self) -> int:
        """How many papers the pool could have if all had text."""
        return len(self.corpus) if self.given is None else len(np.unique(self.given))

    def check_pool(self) -> None:
        """Refuse a given pool none of whose papers has the text that is asked for."""
        if self.given is not None and not len(self.pool):
            raise UserError(
                f"none of the {self.asked_for:,} papers of the pool has the text that the rules ask for "
                f"(mining.text = {self.text!r}); a corpus of citations alone is mined with --set mining.text=any"
            )

    @cached_property
    def fields(self) -> NDArray[np.uint64]:
        """A bit for each of the 63 most frequent fields of study, one for all others; shape (papers,)."""
        return field_masks(self.corpus)

    def graph(self, why: str) -> Relations:
        if self.relations is None:
            raise UserError(f"{why} needs the citation graph; give it with --graph")
        return self.relations

    def table(self, name: str) -> Table:
        if name not in self.tables:
            known = f" (known: {', '.join(self.tables)})" if self.tables else ""
            raise UserError(f"a rule draws from table {name!r}, which is not given{known}; give --table {name}=FILE")
        return self.tables[name]

    def sharing(self, relations: tuple[str, ...]) -> Sharing:
        """What papers share by these relations together."""
        if relations not in self._shared:
            self._shared[relations] = sharing_of(self.corpus, relations, self.in_pool)
        return self._shared[relations]

    def tied(self, name: str) -> PoolVectors:
        """Vectors by their name in the rules."""
        if name not in self._tied:
            if name not in self.vectors:
                option = "--graph FOLDER" if name == NODES else f"--vectors {name}=FOLDER"
                if name.startswith(f"{NODES}-"):
                    option = "--graph FOLDER of a graph made with --per-intent"
                raise UserError(f"a rule needs the vectors {name!r}, which are not given; give {option}")
            self._tied[name] = tie_vectors(
                self.vectors[name], self.corpus, self.in_pool, papers=self._in_play(), memory=self.memory
            )
        return self._tied[name]

    def _in_play(self) -> NDArray[np.int64] | None:
        """Pool and anchors, ascending, where a pool is given; None = all papers."""
        if self.given is None:
            return None
        asked = np.zeros(0, np.int64) if self.anchors is None else self.anchors
        return np.union1d(self.pool.astype(np.int64), asked)


def field_masks(corpus: Corpus) -> NDArray[np.uint64]:
    """Fields of study as bits, most frequent first."""
    count = Counter(name for text in corpus.fields for name in lines(text))
    bits = {name: np.uint64(1) << np.uint64(place) for place, (name, _) in enumerate(count.most_common(_MOST_FIELDS))}
    rare = np.uint64(1) << np.uint64(_MOST_FIELDS)
    masks = np.zeros(len(corpus), np.uint64)
    for row, text in enumerate(corpus.fields):
        for name in lines(text):
            masks[row] |= bits.get(name, rare)
    return masks
