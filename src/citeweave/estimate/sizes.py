"""How large a literature is: what estimates are computed from.

    >>> parse_count("52e6", "--papers"), parse_count("52_000_000", "--papers"), parse_count("52M", "--papers")
    (52000000, 52000000, 52000000)
    >>> parse_count("-3", "--papers")
    Traceback (most recent call last):
    citeweave.errors.UserError: --papers is '-3'; it must be a whole number of 1 or more, such as 52e6, 52M or 52_000_000

Reads of a corpus its columns alone, no text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

import numpy as np

from citeweave.errors import UserError
from citeweave.estimate.constants import value
from citeweave.estimate.networks import tokens_of

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9}
LARGEST = 10**13


@dataclass(frozen=True, slots=True)
class Sizes:
    """A literature by its numbers."""

    papers: int
    citations: int
    texts: int
    """Papers with a title and an abstract: those that are read and mined."""

    tokens: float = 230.0
    """Of such a text, in the mean."""

    contexts: int = 0
    """Sentences that cite."""

    only_edges: bool = False
    """Whether citations come as a table of edges, not as records in JSON."""

    paths: dict[str, float] = field(default_factory=dict)
    """Signal over two hops -> papers met on the way from one paper, in the mean; guessed where it is missing."""

    @property
    def references(self) -> float:
        """Of a paper, in the mean."""
        return self.citations / self.papers

    def paths_of(self, signal: str) -> float:
        """Papers met over two hops: the square of the references of a paper, times how unevenly lists are long."""
        known = self.paths.get(signal)
        return self.references**2 * value(f"unevenness.{_KIND.get(signal, 'coupled')}") if known is None else known


_KIND = {"cocited": "cocited", "cocited_nearby": "cocited", "second_hop": "second_hop"}
"""Two lists of references, one and one of citing papers, or (all others) two of citing papers."""


def parse_count(text: str, option: str, *, least: int = 1) -> int:
    """A whole number, as it is written or with K, M, B or an exponent."""
    rule = f"it must be a whole number of {least} or more, such as 52e6, 52M or 52_000_000"
    found = re.fullmatch(r"([0-9_.,]+(?:e\+?\d{1,2})?)([KMBG]?)", text.strip(), re.IGNORECASE)
    try:
        number = Decimal(found[1].replace("_", "").replace(",", "")) * _UNITS[found[2].upper()] if found else None
    except InvalidOperation:
        number = None
    if number is None or number != number.to_integral_value() or number < least:
        raise UserError(f"{option} is {text!r}; {rule}")
    if number > LARGEST:
        raise UserError(f"{option} is {text!r}; no literature is that large: give at most 1e13")
    return int(number)


def given_sizes(papers: int, citations: int, *, texts: int | None = None, tokens: float = 230.0) -> Sizes:
    """Of a literature that is not here; three in ten citations come with a sentence, as in Semantic Scholar's."""
    texts = papers if texts is None else texts
    if texts > papers:
        raise UserError(f"--texts is {texts:,} and --papers {papers:,}; no more papers can have texts than there are")
    if citations > papers * (papers - 1):
        raise UserError(f"--citations is {citations:,}; {papers:,} papers have at most {papers * (papers - 1):,}")
    if not 3 <= tokens <= 100_000:
        raise UserError(f"--tokens is {tokens:g}; a text has from 3 to 100,000 of them")
    return Sizes(papers, citations, texts, tokens, round(0.3 * citations))


def corpus_sizes(corpus: Corpus) -> Sizes:
    """Of a corpus that is here, counted."""
    lengths = corpus.titles.lengths() + corpus.abstracts.lengths()  # (papers,)
    has_text = (corpus.titles.lengths() > 0) & (corpus.abstracts.lengths() > 0)
    texts = int(has_text.sum())
    tokens = tokens_of(float(lengths[has_text].mean()), 100_000) if texts else 3.0
    papers, citations = max(1, len(corpus)), len(corpus.citing)
    citing = np.bincount(np.asarray(corpus.citing), minlength=papers).astype(float)  # (papers,)
    cited = np.bincount(np.asarray(corpus.cited), minlength=papers).astype(float)  # (papers,)
    kinds = {
        "cocited": float((citing**2).sum()) / papers,
        "coupled": float((cited**2).sum()) / papers,
        "second_hop": float((citing * cited).sum()) / papers,
    }
    names = ("cocited", "cocited_nearby", "coupled", "second_hop", "connected_of_connected")
    paths = {name: kinds[_KIND.get(name, "coupled")] for name in names}
    return Sizes(papers, citations, texts, tokens, len(corpus.contexts), paths=paths)
