"""Pairs of papers that belong together, by what says so: `cite:p` are the citations of peerread_plus.

    cite      a paper and what it cites in its corpus
    ref       a paper and the title of what it cites outside
    cosent    papers that one sentence cites together: co-citation by proximity (Gipp and Beel 2009)
    copaper   papers that the same papers cite: co-citation (Small 1973), by the cosine of their citing papers
    couple    papers with common references: bibliographic coupling (Kessler 1963), rare references counting more
    title     a title and its abstract

Behind the colon: p peerread_plus, e elife; for `title` also acl.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from citeweave.errors import choose
from weaving.bundle import ABSTRACT, CORPORA, TITLE, WHOLE, Bundle, Ints

NEIGHBOURS = 10
"""Most pairs of one paper by `copaper` and `couple`."""

BLOCK = 2048


@dataclass(frozen=True)
class Pairs:
    """Pairs of papers with weights to draw by, and which view of either is read."""

    left: Ints
    right: Ints
    weights: NDArray[np.float64]
    views: tuple[int, int] = (WHOLE, WHOLE)

    @cached_property
    def _sums(self) -> NDArray[np.float64]:
        return np.cumsum(self.weights)

    def draw(self, count: int, random: np.random.Generator) -> Ints:
        """Places of so many pairs, with replacement, each with a chance by its weight."""
        at: Ints = np.searchsorted(self._sums, random.random(count) * self._sums[-1], side="right")
        return np.minimum(at, len(self.left) - 1)


class Signals:
    """Pairs by name, made when first asked for."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._made: dict[str, Pairs] = {}

    def __getitem__(self, name: str) -> Pairs:
        if name not in self._made:
            kind, _, of = name.partition(":")
            choose(kind, tuple(SIGNALS), "a signal of mix")
            choose(of, (*CORPORA, "acl") if kind == "title" else tuple(CORPORA), f"the corpus of signal {kind}")
            self._made[name] = SIGNALS[kind](self._bundle, CORPORA.get(of, of))
        return self._made[name]


def cited_inside(bundle: Bundle, corpus: str) -> Pairs:
    left, right = _citations(bundle, corpus)
    inside = right < bundle.parts[corpus][1]
    return Pairs(left[inside], right[inside], np.ones(int(inside.sum())))


def cited_outside(bundle: Bundle, corpus: str) -> Pairs:
    """A list counts by the square root of its length."""
    left, right = _citations(bundle, corpus)
    outside = right >= bundle.parts[corpus][1]
    left, right = left[outside], right[outside]
    return Pairs(left, right, 1 / np.sqrt(np.bincount(left, minlength=len(bundle))[left]))


def _citations(bundle: Bundle, corpus: str) -> tuple[Ints, Ints]:
    """Citing and cited papers that both have a text."""
    citing, cited, counts = bundle.lists(corpus, "references")
    left = np.repeat(citing, counts)
    has_text = np.zeros(bundle.nodes, bool)
    has_text[: len(bundle)] = bundle.lengths > 3
    kept = has_text[left] & has_text[cited] & (left != cited)
    return left[kept], cited[kept]


def cited_in_one_sentence(bundle: Bundle, corpus: str) -> Pairs:
    """Of sentences that cite two to six papers; each sentence counts the same."""
    _, cited, counts = bundle.lists(corpus, "contexts")
    found: list[tuple[int, int, float]] = []
    for own in np.split(cited, np.cumsum(counts)[:-1]):
        papers = np.unique(own).tolist()
        if 2 <= len(papers) <= 6:
            pairs = list(combinations(papers, 2))
            found += [(left, right, 1 / len(pairs)) for left, right in pairs]
    left, right, weights = zip(*found, strict=True)
    return Pairs(np.array(left), np.array(right), np.array(weights))


def cited_by_the_same(bundle: Bundle, corpus: str) -> Pairs:
    """Two or more papers cite both."""
    low, high = bundle.parts[corpus]
    found = strongest(bundle.incidence(corpus)[:, low:high].T.tocsr(), fewest=2)
    return Pairs(found.left + low, found.right + low, found.weights)


def citing_the_same(bundle: Bundle, corpus: str) -> Pairs:
    """Three or more references in common, outside ones too."""
    lists = bundle.incidence(corpus).tocsc()
    found = strongest(lists.multiply(rarity(np.diff(lists.indptr), lists.shape[0])[None]).tocsr(), fewest=3)
    citing = bundle.lists(corpus, "references")[0]
    return Pairs(citing[found.left], citing[found.right], found.weights)


def rarity(counts: Ints, total: int) -> NDArray[np.float64]:
    """log(total / count), the inverse document frequency of Spärck Jones (1972); 0 for what one list alone has.

    >>> rarity(np.array([1, 2, 4]), 4).round(4).tolist()
    [0.0, 0.6931, 0.0]
    """
    return np.where(counts > 1, np.log(total / np.maximum(counts, 1)), 0.0)


def strongest(matrix: sp.csr_matrix, *, fewest: int, most: int = NEIGHBOURS) -> Pairs:
    """Of every row the others of the highest cosine that share `fewest` columns or more with it."""
    shared = (matrix != 0).astype(np.float32)
    norms = np.asarray(np.sqrt(matrix.multiply(matrix).sum(axis=1))).ravel()
    unit = (sp.diags(1 / np.maximum(norms, 1e-9)) @ matrix).tocsr()
    left: list[Ints] = [np.zeros(0, np.int64)]
    right: list[Ints] = [np.zeros(0, np.int64)]
    weights: list[NDArray[np.float64]] = [np.zeros(0)]
    for low in range(0, matrix.shape[0], BLOCK):
        rows = slice(low, low + BLOCK)
        cosines = (unit[rows] @ unit.T).multiply(shared[rows] @ shared.T >= fewest).tocsr()
        for at in range(cosines.shape[0]):
            own = slice(cosines.indptr[at], cosines.indptr[at + 1])
            places, values = cosines.indices[own], cosines.data[own]
            others = (places != low + at) & (values > 0)
            best = np.argsort(-values[others], kind="stable")[:most]
            left.append(np.full(len(best), low + at))
            right.append(places[others][best].astype(np.int64))
            weights.append(values[others][best].astype(np.float64))
    return Pairs(np.concatenate(left), np.concatenate(right), np.concatenate(weights))


def titles(bundle: Bundle, corpus: str) -> Pairs:
    """Not of papers whose titles a suite asks for."""
    rows = np.arange(*bundle.parts[corpus])
    wanted = bundle.has_abstract[rows] & (bundle.heads[rows] > 4) & ~bundle.banned[rows] & ~bundle.asked_titles[rows]
    return Pairs(rows[wanted], rows[wanted], np.ones(int(wanted.sum())), (TITLE, ABSTRACT))


SIGNALS: dict[str, Callable[[Bundle, str], Pairs]] = {
    "cite": cited_inside,
    "ref": cited_outside,
    "cosent": cited_in_one_sentence,
    "copaper": cited_by_the_same,
    "couple": citing_the_same,
    "title": titles,
}
