"""The words that speak most for two papers being alike: those that weigh much in both.

    shared_words(index, 3, 7)        [SharedWord("transformer", score=2.1), ...]

A word weighs in a paper what BM25 would give the paper for it; in two papers, the smaller of both.

Why two papers of an index are alike: sentences that match, references and citations they share, words.

    why = explain(index, index.row("rain"), index.row("flood"))
    why.pairs[0]                  Pair(left=0, right=0, mass=0.41, distance=0.2)
    why.cites, why.shared         "left": the left one cites the right one; papers that both cite

Shared references are bibliographic coupling (Kessler 1963), papers that cite both are co-citation (Small 1973). A part of
which the index knows nothing is empty, and `note` says so. Does not judge which reason counts most.

The citations around a paper, and the papers that a library cites but does not have.

    neighborhood(index, row)      the paper, what it cites and what cites it, and all citations among these
    lacking(index)                 what many papers of the index cite and it lacks, the most cited first

Only citations that the index knows count. Does not fetch anything.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, require
from citeweave.core.randomness import Keys
from citeweave.corpus.corpus import STUB
from citeweave.corpus.paper import OutsideName
from citeweave.search.index import Index, IndexedPaper
from citeweave.search.segment_papers import spread
from citeweave.search.words import WordIndex, WordStatistics, length_norm, statistics_of, text_of
from citeweave.vectors.bm25 import words_of
from citeweave.vectors.document_distance import DocumentDistance, match
from citeweave.vectors.explain import SentencePair
from citeweave.vectors.pair_scores import PaperPairs


class PaperText(Protocol):
    """What is asked of a paper."""

    @property
    def title(self) -> str: ...
    @property
    def abstract(self) -> str: ...


class PaperIndex(WordIndex, Protocol):
    """An index that gives the text of a row."""

    def paper(self, row: int, /) -> PaperText: ...


class SharedWord(NamedTuple):
    """A word of two papers."""

    word: str
    score: float
    """What BM25 gives for it to the paper that it matters less to."""


def shared_words(index: PaperIndex, left_row: int, right_row: int, most: int = 8) -> list[SharedWord]:
    """The words that both papers have, the weightiest first, of equal ones by the alphabet."""
    numbers = statistics_of(index)
    left, right = (_counts(index, row) for row in (left_row, right_row))
    shared = [
        SharedWord(word, min(_part(numbers, left, word), _part(numbers, right, word))) for word in left.keys() & right
    ]
    return sorted(shared, key=lambda found: (-found.score, found.word))[:most]


def _counts(index: PaperIndex, row: int) -> Counter[str]:
    paper = index.paper(row)
    return Counter(words_of(text_of(paper.title, paper.abstract)))


def _part(numbers: WordStatistics, counts: Counter[str], word: str) -> float:
    times, norm = counts[word], float(length_norm(counts.total(), numbers.mean_length))
    return numbers.weight(word.encode("utf-8", "replace")) * times / (norm + times)


# Why two papers of an index are alike: sentences that match, references and citations they share, words.

WHOLE = DocumentDistance("transport", temperature=5000.0, metric="cosine")
"""ASPIRE's temperature for whole abstracts: all sentences count alike."""

MOST_PAIRS, MOST_PAPERS, MOST_WORDS = 12, 50, 8


@dataclass(frozen=True, slots=True)
class Why:
    """The reasons."""

    left: IndexedPaper
    right: IndexedPaper
    left_sentences: list[str]
    right_sentences: list[str]
    pairs: list[SentencePair]
    """The pairs of sentences with the largest mass, as shares of 1; numbers as in the sentences."""

    distance: float | None
    """Of the papers; None where one has no vectors of sentences."""

    cites: str
    """`left` where the left paper cites the right one, `right`, `both`, or empty."""

    shared: list[IndexedPaper]
    """References of both that the index has, the first MOST_PAPERS by id."""

    shared_unknown: int
    """References of both that it does not have."""

    citing: list[IndexedPaper]
    """Papers that cite both, the first MOST_PAPERS by id."""

    counts: dict[str, int]
    """How many references and citations each has, and how many they share, those not listed included."""

    words: list[str]
    note: str

    def as_json(self) -> dict[str, Any]:
        return {
            "left": _told(self.left) | {"sentences": self.left_sentences},
            "right": _told(self.right) | {"sentences": self.right_sentences},
            "pairs": [pair._asdict() for pair in self.pairs],
            "distance": self.distance,
            "cites": self.cites,
            "shared_references": {"known": [_told(paper) for paper in self.shared], "unknown": self.shared_unknown},
            "co_cited_by": [_told(paper) for paper in self.citing],
            "counts": self.counts,
            "words": self.words,
            "note": self.note,
        }

    def brief(self) -> dict[str, Any]:
        """What stands under a hit."""
        return {
            "cites": self.cites,
            "shared_references": self.counts["shared_references"],
            "co_cited_by": self.counts["co_cited_by"],
            "pairs": [{"left": pair.left, "right": pair.right, "mass": pair.mass} for pair in self.pairs],
            "words": self.words,
        }


def explain(index: Index, left_row: int, right_row: int, distance: DocumentDistance = WHOLE) -> Why:
    """Why the papers in two rows are alike."""
    rows = (left_row, right_row)
    keys = [index.key_of(row) for row in rows]
    references = [index.references(row) for row in rows]
    cited_by = [index.citing(key) for key in keys]
    shared = np.intersect1d(references[0], references[1])
    known = index.rows_of_keys(shared)
    citing = np.intersect1d(cited_by[0], cited_by[1])
    pairs, total = _pairs(index, left_row, right_row, distance)
    counts = {
        "left_references": len(references[0]),
        "right_references": len(references[1]),
        "shared_references": len(shared),
        "left_cited_by": len(cited_by[0]),
        "right_cited_by": len(cited_by[1]),
        "co_cited_by": len(citing),
    }
    return Why(
        left=index.paper(left_row),
        right=index.paper(right_row),
        left_sentences=index.sentence_texts(left_row),
        right_sentences=index.sentence_texts(right_row),
        pairs=pairs,
        distance=total,
        cites=_cites(bool(np.isin(keys[1], references[0])), bool(np.isin(keys[0], references[1]))),
        shared=_papers(index, known[known >= 0]),
        shared_unknown=int((known < 0).sum()),
        citing=_papers(index, citing),
        counts=counts,
        words=[one.word for one in shared_words(index, left_row, right_row, MOST_WORDS) if one.score > 0],
        note="" if total is not None else "not both papers have vectors of sentences: no sentences are matched",
    )


def _pairs(index: Index, left: int, right: int, distance: DocumentDistance) -> tuple[list[SentencePair], float | None]:
    sentences = [index.sentence_vectors(row) for row in (left, right)]
    if sentences[0] is None or sentences[1] is None:
        return [], None
    torch = require("torch", extra="minilm")
    with torch.inference_mode():
        given = ([torch.from_numpy(np.array(own, np.float32))] for own in sentences)
        matched = match(PaperPairs.of(*given), distance)
    plan, apart = matched.plans[0].numpy(), matched.sentences[0].numpy()  # (left sentences, right sentences)
    shares = plan.ravel() / (float(plan.sum()) or 1.0)
    numbers = [index.sentence_numbers(row) for row in (left, right)]
    order = np.lexsort((apart.ravel(), -shares))[:MOST_PAIRS]
    found = []
    for at in order[shares[order] > 1e-4].tolist():
        i, j = divmod(at, plan.shape[1])
        found.append(SentencePair(int(numbers[0][i]), int(numbers[1][j]), float(shares[at]), float(apart[i, j])))
    return found, float(matched.distances[0])


def _cites(left: bool, right: bool) -> str:
    return "both" if left and right else "left" if left else "right" if right else ""


def _papers(index: Index, rows: NDArray[np.int64]) -> list[IndexedPaper]:
    chosen = sorted(rows.tolist(), key=index.id)[:MOST_PAPERS]
    return [index.paper(row) for row in chosen]


def _told(paper: IndexedPaper) -> dict[str, Any]:
    return {"id": paper.id, "title": paper.title, "year": paper.year}


# The citations around a paper, and the papers that a library cites but does not have.

MOST_NODES, MOST_LACKING = 500, 1000
_LOOKED_AT = 2000
"""Neighbors of a paper whose own references are read."""


@dataclass(frozen=True, slots=True)
class Neighborhood:
    """Papers and the citations among them."""

    nodes: list[IndexedPaper]
    """The paper that was asked for comes first."""

    edges: list[tuple[int, int]]
    """(citing, cited), places in `nodes`."""

    left_out: int
    """Neighbors that are not among the nodes."""

    outside: int
    """References of the paper that the index does not have."""

    def as_json(self) -> dict[str, Any]:
        return {
            "nodes": [{"id": node.id, "title": node.title, "year": node.year, "row": node.row} for node in self.nodes],
            "edges": [{"citing": self.nodes[one].id, "cited": self.nodes[two].id} for one, two in self.edges],
            "left_out": self.left_out,
            "outside": self.outside,
        }


def neighborhood(index: Index, row: int, most: int = 50) -> Neighborhood:
    """The paper and at most `most` of its neighbors: those that are linked to most others of them, then by id."""
    _check(most, MOST_NODES)
    cited = index.rows_of_keys(index.references(row))
    around = np.union1d(cited[cited >= 0], index.citing(index.key_of(row)))
    others = around[around != row].tolist()
    # very many: by id, so that it does not show how the index came to be
    looked_at = others if len(others) <= _LOOKED_AT else sorted(others, key=index.id)[:_LOOKED_AT]
    every = [row, *looked_at]
    links = _links(index, every)
    degrees = dict.fromkeys(every, 0)
    for citing, to in links:
        degrees[citing] += 1
        degrees[to] += 1
    kept = [row, *sorted(looked_at, key=lambda one: (-degrees[one], index.id(one)))[:most]]
    places = {one: place for place, one in enumerate(kept)}
    edges = [(places[citing], places[to]) for citing, to in links if citing in places and to in places]
    return Neighborhood(
        [index.paper(one) for one in kept], sorted(edges), len(others) + 1 - len(kept), int((cited < 0).sum())
    )


def _links(index: Index, rows: list[int]) -> list[tuple[int, int]]:
    """Citations among these papers, (citing, cited)."""
    known, found = set(rows), list[tuple[int, int]]()
    for row in rows:
        cited = index.rows_of_keys(index.references(row)).tolist()
        found += [(row, one) for one in cited if one in known and one != row]
    return found


@dataclass(frozen=True, slots=True)
class MissingPaper:
    """A paper that is cited and not there."""

    key: int
    """Of the id under which it is cited."""

    count: int
    """Papers of the index that cite it."""

    paper: IndexedPaper | None
    """What the index knows of it all the same, as of a reference."""

    name: OutsideName | None = None
    """What it is called where the index does not have it."""

    def as_json(self) -> dict[str, Any]:
        known = self.paper or self.name
        return {
            "key": f"{self.key:016x}",
            "count": self.count,
            "id": known.id if known else "",
            "title": known.title if known else "",
            "year": (known.year or None) if known else None,
            "in_index": self.paper is not None,
        }


@dataclass(frozen=True, slots=True)
class Lackings:
    """The papers that an index lacks."""

    papers: list[MissingPaper]

    def as_json(self) -> dict[str, Any]:
        return {"papers": [paper.as_json() for paper in self.papers]}


def lacking(index: Index, most: int = 50, *, fewest: int = 2) -> Lackings:
    """The papers outside that at least `fewest` living papers cite, the most cited first, then those with a title."""
    _check(most, MOST_LACKING)
    keys, counts = _cited(index)
    often = counts >= fewest
    keys, counts, rows = keys[often], counts[often], index.rows_of_keys(keys[often])
    known = rows >= 0
    stub = np.zeros(len(rows), bool)
    for segment, at, own in index.split(rows[known]):
        stub[np.flatnonzero(known)[at]] = (segment.flags[own] & STUB) != 0
    outside = np.flatnonzero(~known | stub)
    order = outside[np.lexsort((keys[outside], ~known[outside], -counts[outside]))][:most]
    return Lackings([_lacking(index, int(keys[at]), int(counts[at]), int(rows[at])) for at in order.tolist()])


def _lacking(index: Index, key: int, count: int, row: int) -> MissingPaper:
    if row >= 0:
        return MissingPaper(key, count, index.paper(row))
    names = (name for segment in index.segments if (name := segment.outside_name(key)) is not None)
    return MissingPaper(key, count, None, next(names, None))


def _cited(index: Index) -> tuple[Keys, NDArray[np.int64]]:
    """Keys of all papers that living papers cite, known ones by their own id, ascending, and how many do."""
    cited, citing = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for segment in index.segments:
        counted = np.diff(segment.reference_offsets) * (segment.alive & ((segment.flags & STUB) == 0))
        own = np.repeat(np.arange(segment.size), counted)
        cited.append(segment.reference_keys[spread(segment.reference_offsets[:-1], counted)])
        citing.append(own + segment.start)
    whole, names = np.concatenate(cited), np.concatenate(citing)
    keys, counts = np.unique(whole, return_counts=True)
    rows, own_keys = index.rows_of_keys(keys), keys.copy()
    own_keys[rows >= 0] = index.keys_of(rows[rows >= 0])
    found, places = np.unique(own_keys, return_inverse=True)
    totals = np.bincount(places, counts, len(found)).astype(np.int64)
    several = np.bincount(places) > 1
    if several.any():  # cited by several ids: who names two of them cites once
        at = places[np.searchsorted(keys, whole)]
        both = np.flatnonzero(several[at])
        pairs = np.unique(np.stack([at[both], names[both]]), axis=1)
        totals[several] = np.bincount(pairs[0], minlength=len(found))[several]
    return found, totals


def _check(most: int, limit: int) -> None:
    if not 1 <= most <= limit:
        raise UserError(f"{most} papers are asked for; ask for 1 to {limit}")
