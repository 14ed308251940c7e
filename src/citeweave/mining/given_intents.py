"""Where citation intents come from: the corpus itself, headings of citing sentences, or the folder of an overlay.

    given = GivenIntents("intents/")            made by `citeweave annotate corpus/ -o intents/`
    graph = given.put(graph, corpus)            the graph with these intents on its edges
    GivenIntents("corpus"), GivenIntents("sections")

An overlay is of one corpus. For a corpus made from that one (papers or references left it) its citations are found again
by the ids of the two papers. Does not find intents: `intents/annotating.py` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import BLOCK
from citeweave.corpus.corpus import Corpus
from citeweave.errors import UserError
from citeweave.graph.citations import CitationGraph
from citeweave.graph.context_intents import intents_from_contexts
from citeweave.graph.intent_overlay import CitationPlaces, IntentOverlay

CORPUS, SECTIONS = "corpus", "sections"


@dataclass(frozen=True, slots=True)
class GivenIntents:
    """The value of `--intents`."""

    where: str = CORPUS
    """`corpus`: those it has; `sections`: also read off headings; else the folder of an overlay."""

    of: Corpus | None = None
    """The corpus that an overlay is of, where intents are put on the graph of another that was made from it."""

    def __post_init__(self) -> None:
        if self.is_overlay and not Path(self.where).is_dir():
            raise UserError(
                f"--intents {self.where}: there is no such folder; give {CORPUS}, {SECTIONS}, or a folder that `citeweave "
                "annotate CORPUS -o FOLDER` made"
            )

    @property
    def is_overlay(self) -> bool:
        return self.where not in (CORPUS, SECTIONS)

    @property
    def source(self) -> str:
        """What is kept of it in recipes: the hash of an overlay, else its name."""
        return IntentOverlay.open(self.where).hash if self.is_overlay else self.where

    def put(self, graph: CitationGraph, corpus: Corpus) -> CitationGraph:
        """The graph with these intents on its edges; it is of this corpus."""
        if not self.is_overlay:
            headings = self.where == SECTIONS
            return graph.with_intents(intents_from_contexts(corpus, graph, headings=headings))
        overlay = IntentOverlay.open(self.where)
        if self.of is None or overlay.corpus == corpus.hash:
            return overlay.on(graph, corpus)
        overlay.check(self.of)
        return graph.with_intents(_found_again(overlay, self.of, graph, corpus))


def _found_again(overlay: IntentOverlay, of: Corpus, graph: CitationGraph, corpus: Corpus) -> NDArray[np.uint8]:
    """Intents of every edge, by the ids of its papers in the corpus that the overlay is of; (edges,)."""
    row = np.empty(len(corpus), np.int64)  # of each paper in `of`, -1 where it is not there
    for start in range(0, len(corpus), BLOCK):
        papers = np.arange(start, min(start + BLOCK, len(corpus)))
        row[papers] = of.rows(corpus.ids.take(papers))
    places = CitationPlaces(of).find(row[graph.sources()], row[graph.cited.targets])  # (edges,)
    known = places >= 0
    if graph.edges and not known.any():
        raise UserError(
            f"--intents {overlay.folder}: none of the {graph.edges:,} citations that are trained on is among those of "
            f"{of.folder}; annotate the corpus of which this run is, or give --intents auto"
        )
    intents = np.array(graph.intents)
    intents[known] = overlay.mask[places[known]]
    return intents
