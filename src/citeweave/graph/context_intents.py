"""Citation intents that the citing sentences tell: those given with them, and those read off their headings.

Headings are a stand-in where no classifier has looked:

    "1 Introduction", "2. Related Work"      background
    "3 Methods", "4.1 Datasets"              method
    "Results and Discussion"                 result

What a heading says is coarse: a method may well be praised in an introduction. Citations whose contexts have no
telling heading keep the intents they had.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.corpus import Corpus
from citeweave.corpus.paper import Intent
from citeweave.graph.citations import CitationGraph

_WORDS = {
    Intent.BACKGROUND: r"introduc|related|background|previous|prior|literature|state of the art|motivation|overview|preliminar",
    Intent.METHOD: r"method|material|model|approach|architectur|algorithm|dataset|data set|setup|set-up|implement|training|procedure",
    Intent.RESULT: r"result|discussion|experiment|evaluation|comparison|analys|finding|ablation|performance",
}
_PATTERNS = {intent: re.compile(words, re.IGNORECASE) for intent, words in _WORDS.items()}


def heading_intents(heading: str) -> Intent:
    """
    >>> heading_intents("2. Related Work"), heading_intents("Results and Discussion"), heading_intents("The cerebellum")
    (<Intent.BACKGROUND: 1>, <Intent.RESULT: 4>, <Intent.UNKNOWN: 0>)
    """
    intents = Intent.UNKNOWN
    for intent, pattern in _PATTERNS.items():
        if pattern.search(heading):
            intents |= intent
    return intents


def intents_from_contexts(corpus: Corpus, graph: CitationGraph, *, headings: bool = False) -> NDArray[np.uint8]:
    """Intents of every edge: those it has, those of its contexts, and with `headings` what these tell; (edges,)."""
    table = corpus.contexts
    told = np.array(table.intents)  # (contexts,)
    if headings:
        known: dict[str, int] = {}
        told |= np.array([known.setdefault(text, int(heading_intents(text))) for text in table.sections], np.uint8)
    if not told.any():
        return np.array(graph.intents)
    counts = np.diff(table.cited_offsets)
    citing, cited = np.repeat(table.citing, counts).astype(np.int64), table.cited.astype(np.int64)  # (mentions,)
    bits = np.repeat(told, counts)
    use = (citing >= 0) & (bits > 0)
    codes = graph.sources().astype(np.int64) * graph.nodes + graph.cited.targets  # ascending, (edges,)
    wanted = citing[use] * graph.nodes + cited[use]
    at = np.minimum(np.searchsorted(codes, wanted), max(len(codes) - 1, 0))
    found = codes[at] == wanted if len(codes) else np.zeros(len(wanted), bool)
    intents = np.array(graph.intents)
    np.bitwise_or.at(intents, at[found], bits[use][found])
    return intents
