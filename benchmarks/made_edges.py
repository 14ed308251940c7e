"""A synthetic literature as integer edges, on disk, for benchmarks of the graph.

    made = make_literature(Made(folder, papers=1000, queries=10), references=10.0)
    made.edges()      citing and cited rows, two columns of made.citations numbers
    made.rows()       ten of the papers

The citations are those of `citeweave synthesize`; no text is made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Made:
    """A synthetic literature on disk, and what is asked of it."""

    folder: Path
    papers: int
    queries: int
    dimension: int = 128
    peer_queries: int = 2000
    """The first of the queries, for peers that are too slow for all."""

    citations: int = 0

    def edges(self) -> tuple[Ints, Ints]:
        """Citing and cited rows, in no order."""
        citing, cited = np.load(self.folder / "edges.npy")  # (2, citations)
        return citing, cited

    def rows(self) -> Ints:
        """The papers whose relatives are asked for."""
        return np.random.default_rng(1).choice(self.papers, min(self.queries, self.papers), replace=False)


def make_literature(made: Made, references: float) -> Made:
    """The citations of citeweave's synthetic literature, each once, shuffled; no text is written."""
    from citeweave.corpus.options import SyntheticOptions
    from citeweave.corpus.synthetic.literature import draw_mentions

    options, step = SyntheticOptions(papers=made.papers, references=references), 100_000
    keys = []
    for start in range(0, made.papers, step):
        found = draw_mentions(options, start, min(start + step, made.papers))
        keys.append(np.unique(found.citing * made.papers + found.cited))
    edges = np.concatenate(keys)
    np.random.default_rng(0).shuffle(edges)
    made.folder.mkdir(parents=True)
    np.save(made.folder / "edges.npy", np.stack(np.divmod(edges, made.papers)))
    return replace(made, citations=len(edges))
