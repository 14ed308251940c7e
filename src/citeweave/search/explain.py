"""Explain how papers of an index are connected: why two are alike, a paper's citation neighborhood, papers it lacks.

    explanation = explain(index, index.row("rain"), index.row("flood"))
    explanation.pairs[0]                             SentencePair(left=0, right=0, mass=0.41, distance=0.2)
    explanation.matches[0]                           CloseSentences(left=0, right=0, cosine=0.8, strength="strong")
    explanation.cites, explanation.shared            "left": the left one cites the right one; papers that both cite
    shared_words(index, 3, 7)                        [SharedWord("transformer", score=2.1), ...]
    find_neighborhood(index, row)                    the paper, what it cites and what cites it, and all citations among these
    find_missing_papers(index)                       what many papers of the index cite and it lacks, the most cited first

Shared references are bibliographic coupling (Kessler 1963), papers that cite both are co-citation (Small 1973). The
weight of a word in a paper is what BM25 would give the paper for it; in two papers, the smaller of both. A part of which
the index knows nothing is empty, and `note` says so. Only citations that the index knows count. Does not say which reason
counts most, and does not download anything.
"""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError, require
from citeweave.core.hash_keys import Keys
from citeweave.core.ragged import spans
from citeweave.corpus.corpus import STUB
from citeweave.corpus.paper import OutsideName
from citeweave.search.display import explanation_as_html
from citeweave.search.index import Index, IndexedPaper
from citeweave.search.words import WordStatistics, length_norm, searchable_text
from citeweave.vectors.bm25 import words_of
from citeweave.vectors.document_distance import DocumentDistance, SentencePair, match
from citeweave.vectors.sentence_distances import PaperPairs

ABSTRACT_DISTANCE = DocumentDistance("transport", temperature=5000.0, metric="cosine")
"""ASPIRE's temperature for complete abstracts: all sentences count alike."""

MAX_PAIRS, MAX_PAPERS, MAX_WORDS, MAX_MATCHES = 12, 50, 8, 6

CLOSE, STRONG = 0.99, 0.999
"""Share of the pairs of sentences of different papers of an index than which a match, and a strong one, is closer."""

_SAMPLED, _ALWAYS = 300, 0.95
"""Papers whose sentences are compared with each other for that; cosine that is a match in every index."""


class CloseSentences(NamedTuple):
    """Two sentences of two papers that say something alike, by their numbers in the abstracts."""

    left: int
    right: int
    cosine: float
    strength: str
    """`strong`, or `close`."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """An explanation of why two papers of an index are alike: matching sentences, references, citations, words."""

    left: IndexedPaper
    right: IndexedPaper
    left_sentences: list[str]
    right_sentences: list[str]
    pairs: list[SentencePair]
    """The pairs of sentences with the largest mass, as shares of 1, by the numbers of the sentences."""

    matches: list[CloseSentences]
    """Sentences of the abstracts that match, each in one pair, the closest first; none where a paper has only a title."""

    distance: float | None
    """Distance of the papers; None where one has no sentence vectors."""

    cites: str
    """`left` where the left paper cites the right one, `right`, `both`, or empty."""

    shared: list[IndexedPaper]
    """References of both that the index has, the first MAX_PAPERS by id."""

    shared_unknown: int
    """Number of references of both that it does not have."""

    citing: list[IndexedPaper]
    """Papers that cite both, the first MAX_PAPERS by id."""

    counts: dict[str, int]
    """Numbers of references and citations of each paper and of those they share, including those not listed."""

    words: list[str]
    note: str

    def as_json(self) -> dict[str, Any]:
        return {
            "left": _summary(self.left) | {"sentences": self.left_sentences},
            "right": _summary(self.right) | {"sentences": self.right_sentences},
            "pairs": [pair._asdict() for pair in self.pairs],
            "matches": [match._asdict() for match in self.matches],
            "distance": self.distance,
            "cites": self.cites,
            "shared_references": {"known": [_summary(paper) for paper in self.shared], "unknown": self.shared_unknown},
            "co_cited_by": [_summary(paper) for paper in self.citing],
            "counts": self.counts,
            "words": self.words,
            "note": self.note,
        }

    def _repr_html_(self) -> str:
        return explanation_as_html(self.as_json())

    def brief(self) -> dict[str, Any]:
        """Return a short explanation of why a hit is like the other paper, to be shown below the hit."""
        return {
            "cites": self.cites,
            "shared_references": self.counts["shared_references"],
            "co_cited_by": self.counts["co_cited_by"],
            "pairs": [{"left": pair.left, "right": pair.right, "mass": pair.mass} for pair in self.pairs],
            "words": self.words,
        }


def explain(index: Index, left_row: int, right_row: int, distance: DocumentDistance = ABSTRACT_DISTANCE) -> Explanation:
    """Explain why two papers of an index are alike: matching sentences, shared references, citations and words.

    citeweave.explain(index, "doi:10.1/x", "doi:10.1/y").shared      takes ids, too
    """
    rows = (left_row, right_row)
    references, cited_by = [index.references(row) for row in rows], [index.citing(index.key_of(row)) for row in rows]
    shared = np.intersect1d(references[0], references[1])
    known = index.rows_of_keys(shared)
    citing = np.intersect1d(cited_by[0], cited_by[1])
    pairs, total = _match_sentences(index, left_row, right_row, distance)
    counts = {
        "left_references": len(references[0]),
        "right_references": len(references[1]),
        "shared_references": len(shared),
        "left_cited_by": len(cited_by[0]),
        "right_cited_by": len(cited_by[1]),
        "co_cited_by": len(citing),
    }
    return Explanation(
        left=index.paper(left_row),
        right=index.paper(right_row),
        left_sentences=index.sentence_texts(left_row),
        right_sentences=index.sentence_texts(right_row),
        pairs=pairs,
        matches=_match_abstracts(index, left_row, right_row),
        distance=total,
        cites=_citing_side(index.keys[right_row] in references[0], index.keys[left_row] in references[1]),
        shared=_papers(index, known[known >= 0]),
        shared_unknown=int((known < 0).sum()),
        citing=_papers(index, citing),
        counts=counts,
        words=[each.word for each in shared_words(index, left_row, right_row, MAX_WORDS) if each.score > 0],
        note="" if total is not None else "not both papers have sentence vectors: no sentences are matched",
    )


def _match_sentences(
    index: Index, left: int, right: int, distance: DocumentDistance
) -> tuple[list[SentencePair], float | None]:
    """Return the sentence pairs of two papers with the most mass, and the papers' distance."""
    sentences = [index.sentence_vectors(row) for row in (left, right)]
    if sentences[0] is None or sentences[1] is None:
        return [], None
    torch = require("torch", extra="minilm")
    with torch.inference_mode():
        tensors = ([torch.from_numpy(np.array(own, np.float32))] for own in sentences)
        matched = match(PaperPairs.of(*tensors), distance)
    plan, apart = matched.plans[0].numpy(), matched.sentences[0].numpy()  # (left sentences, right sentences)
    shares = plan.ravel() / (float(plan.sum()) or 1.0)
    numbers = [index.sentence_numbers(row) for row in (left, right)]
    order = np.lexsort((apart.ravel(), -shares))[:MAX_PAIRS]
    pairs = []
    for at in order[shares[order] > 1e-4].tolist():
        i, j = divmod(at, plan.shape[1])
        pairs.append(SentencePair(int(numbers[0][i]), int(numbers[1][j]), float(shares[at]), float(apart[i, j])))
    return pairs, float(matched.distances[0])


def _match_abstracts(index: Index, left: int, right: int) -> list[CloseSentences]:
    """Return the sentences of two abstracts that are closer than sentences of an index usually are, the closest first."""
    both = [index.sentence_vectors(row) for row in (left, right) if index.abstracts[row]]
    if len(both) < 2 or both[0] is None or both[1] is None:
        return []
    cosines = _unit(both[0]) @ _unit(both[1]).T  # (left sentences, right sentences)
    close, strong = usual_cosines(index)
    numbers = [index.sentence_numbers(row).tolist() for row in (left, right)]
    matches, free = list[CloseSentences](), np.ones(cosines.shape, bool)
    for at in np.argsort(-cosines, axis=None, kind="stable").tolist():
        i, j = divmod(at, cosines.shape[1])
        cosine = float(cosines[i, j])
        if cosine < close or len(matches) == MAX_MATCHES:
            break
        if free[i, j]:
            free[i], free[:, j] = False, False
            matches.append(
                CloseSentences(numbers[0][i], numbers[1][j], cosine, "strong" if cosine >= strong else "close")
            )
    return matches


_usual: weakref.WeakKeyDictionary[Index, tuple[float, float]] = weakref.WeakKeyDictionary()


def usual_cosines(index: Index) -> tuple[float, float]:
    """Return the cosines from which sentences of an index match closely, and strongly; they depend on the model."""
    if index not in _usual:
        rows = np.flatnonzero(index.with_sentences)
        sampled = rows[np.unique(np.linspace(0, max(len(rows) - 1, 0), min(len(rows), _SAMPLED)).astype(np.int64))]
        vectors = [index.sentence_vectors(row) for row in sampled.tolist()]
        middle = np.stack([own[len(own) // 2] for own in vectors if own is not None])  # (papers, dimension)
        units = _unit(middle)
        cosines = (units @ units.T)[np.triu_indices(len(units), 1)]
        close, strong = np.quantile(cosines, [CLOSE, STRONG]).tolist() if len(cosines) else (0.0, 0.0)
        _usual[index] = min(close, _ALWAYS), min(strong, _ALWAYS)
    return _usual[index]


def _unit(vectors: NDArray[Any]) -> NDArray[np.float32]:
    own = np.asarray(vectors, np.float32)
    return np.asarray(own / np.maximum(np.linalg.norm(own, axis=1, keepdims=True), 1e-12), np.float32)


def _citing_side(left: bool, right: bool) -> str:
    return "both" if left and right else "left" if left else "right" if right else ""


def _papers(index: Index, rows: NDArray[np.int64]) -> list[IndexedPaper]:
    """Return the first MAX_PAPERS of these papers by id."""
    chosen = sorted(rows.tolist(), key=index.id)[:MAX_PAPERS]
    return [index.paper(row) for row in chosen]


def _summary(paper: IndexedPaper) -> dict[str, Any]:
    return {"id": paper.id, "title": paper.title, "year": paper.year}


# --- shared words ----------------------------------------------------------------------------------------


class SharedWord(NamedTuple):
    """A word that two papers share."""

    word: str
    score: float
    """The smaller of the BM25 weights that it has in the two papers."""


def shared_words(index: Index, left_row: int, right_row: int, max_words: int = 8) -> list[SharedWord]:
    """Return the words that explain why two papers are alike: those they share, the heaviest first, ties alphabetically."""
    statistics = index.words.statistics
    left, right = (_count_words(index, row) for row in (left_row, right_row))
    shared = [
        SharedWord(word, min(_word_weight(statistics, left, word), _word_weight(statistics, right, word)))
        for word in left.keys() & right
    ]
    return sorted(shared, key=lambda word: (-word.score, word.word))[:max_words]


def _count_words(index: Index, row: int) -> Counter[str]:
    paper = index.paper(row)
    return Counter(words_of(searchable_text(paper.title, paper.abstract)))


def _word_weight(statistics: WordStatistics, counts: Counter[str], word: str) -> float:
    """Return what BM25 gives a paper with these word counts for a word."""
    times, norm = counts[word], float(length_norm(counts.total(), statistics.mean_length))
    return statistics.weight(word.encode("utf-8", "replace")) * times / (norm + times)


# --- the neighborhood of a paper, and missing papers -------------------------------------------------------

MAX_NEIGHBORS, MAX_MISSING = 500, 1000
_MAX_READ = 2000
"""Neighbors of a paper whose own references are read."""


@dataclass(frozen=True, slots=True)
class Neighborhood:
    """The citation neighborhood of a paper: its citation neighbors, and the citations among them."""

    nodes: list[IndexedPaper]
    """The paper itself comes first."""

    edges: list[tuple[int, int]]
    """(citing, cited), places in `nodes`."""

    left_out: int
    """Neighbors that are not among the nodes."""

    outside: int
    """References of the paper that the index does not have."""

    def as_json(self) -> dict[str, Any]:
        return {
            "nodes": [{"id": node.id, "title": node.title, "year": node.year, "row": node.row} for node in self.nodes],
            "edges": [{"citing": self.nodes[a].id, "cited": self.nodes[b].id} for a, b in self.edges],
            "left_out": self.left_out,
            "outside": self.outside,
        }


def find_neighborhood(index: Index, row: int, max_papers: int = 50) -> Neighborhood:
    """Return a paper's neighborhood: at most `max_papers` citation neighbors, those with the most links among them first."""
    _check_number(max_papers, MAX_NEIGHBORS)
    cited = index.rows_of_keys(index.references(row))
    around = np.union1d(cited[cited >= 0], index.citing(index.key_of(row)))
    others = around[around != row].tolist()
    # of very many the first by id, so that the result does not depend on the index's history
    read = others if len(others) <= _MAX_READ else sorted(others, key=index.id)[:_MAX_READ]
    papers = [row, *read]
    links = _citations_among(index, papers)
    degrees = dict.fromkeys(papers, 0)
    for citing, cited_row in links:
        degrees[citing] += 1
        degrees[cited_row] += 1
    shown = [row, *sorted(read, key=lambda other: (-degrees[other], index.id(other)))[:max_papers]]
    places = {each: place for place, each in enumerate(shown)}
    edges = [(places[a], places[b]) for a, b in links if a in places and b in places]
    return Neighborhood(
        [index.paper(each) for each in shown], sorted(edges), len(others) + 1 - len(shown), int((cited < 0).sum())
    )


def _citations_among(index: Index, rows: list[int]) -> list[tuple[int, int]]:
    """Return the citations among the papers in these rows, (citing, cited)."""
    known, links = set(rows), list[tuple[int, int]]()
    for row in rows:
        cited = index.rows_of_keys(index.references(row)).tolist()
        links += [(row, other) for other in cited if other in known and other != row]
    return links


@dataclass(frozen=True, slots=True)
class MissingPaper:
    """A paper missing from the citation neighborhood: papers of the index cite it, but it does not have it."""

    key: int
    """Key of the id under which it is cited."""

    count: int
    """Papers of the index that cite it; of a paper that cites the library, those that it cites."""

    known: IndexedPaper | OutsideName | None
    """What the index knows of it as a reference, or its name where the index does not have it; None where nothing."""

    in_index: bool

    def as_json(self) -> dict[str, Any]:
        known = self.known
        return {
            "key": f"{self.key:016x}",
            "count": self.count,
            "id": known.id if known else "",
            "title": known.title if known else "",
            "year": (known.year or None) if known else None,
            "authors": list(known.authors) if isinstance(known, IndexedPaper) else [],
            "venue": known.venue if isinstance(known, IndexedPaper) else "",
            "in_index": self.in_index,
        }


def find_missing_papers(index: Index, max_papers: int = 50, *, min_citing: int = 2) -> list[MissingPaper]:
    """Return citation neighbors that an index lacks and at least `min_citing` of its papers cite, the most cited first."""
    _check_number(max_papers, MAX_MISSING)
    keys, counts = _count_cited(index)
    often = counts >= min_citing
    keys, counts, rows = keys[often], counts[often], index.rows_of_keys(keys[often])
    known = rows >= 0
    stub = known.copy()
    stub[known] = (index.flags[rows[known]] & STUB) != 0
    outside = np.flatnonzero(~known | stub)
    order = outside[np.lexsort((keys[outside], ~known[outside], -counts[outside]))][:max_papers]
    missing = []
    for key, count, row in zip(keys[order].tolist(), counts[order].tolist(), rows[order].tolist(), strict=True):
        paper = index.paper(row) if row >= 0 else index.outside_name(key)
        missing.append(MissingPaper(key, count, paper, in_index=row >= 0))
    return missing


def find_citing_papers(index: Index, max_papers: int = 50) -> list[MissingPaper]:
    """Return papers outside an index's library that cite it, the newest first, then those that cite most of its papers."""
    _check_number(max_papers, MAX_MISSING)
    counts: dict[int, int] = {}
    for row in np.flatnonzero((index.flags & STUB) != 0).tolist():
        cited = index.rows_of_keys(index.references(row))
        cited = np.unique(cited[cited >= 0])
        counts[row] = int(((index.flags[cited] & STUB) == 0).sum())
    rows = [row for row, count in counts.items() if count]
    newest = sorted(rows, key=lambda row: (-int(index.years[row]), -counts[row], index.id(row)))[:max_papers]
    return [MissingPaper(int(index.key_of(row)), counts[row], index.paper(row), in_index=True) for row in newest]


def discoveries_as_json(index: Index, max_papers: int = 50) -> dict[str, list[dict[str, Any]]]:
    """Return as JSON what a library may add: missing papers that its own cite, and papers that cite its own."""
    missing, citing = find_missing_papers(index, max_papers), find_citing_papers(index, max_papers)
    return {"papers": [paper.as_json() for paper in missing], "citing": [paper.as_json() for paper in citing]}


def _count_cited(index: Index) -> tuple[Keys, NDArray[np.int64]]:
    """Return the keys of all papers that papers cite, known ones by their own id, and how many cite each."""
    counted = np.diff(index.reference_offsets) * ((index.flags & STUB) == 0)
    all_citing = np.repeat(np.arange(index.size), counted)
    all_cited = index.reference_keys[spans(index.reference_offsets[:-1], counted)]
    keys, counts = np.unique(all_cited, return_counts=True)
    rows, own_keys = index.rows_of_keys(keys), keys.copy()
    own_keys[rows >= 0] = index.keys[rows[rows >= 0]]
    distinct, places = np.unique(own_keys, return_inverse=True)
    totals = np.bincount(places, counts, len(distinct)).astype(np.int64)
    several = np.bincount(places) > 1
    if several.any():  # cited by several ids: a paper that names two of them counts once
        at = places[np.searchsorted(keys, all_cited)]
        both = np.flatnonzero(several[at])
        pairs = np.unique(np.stack([at[both], all_citing[both]]), axis=1)
        totals[several] = np.bincount(pairs[0], minlength=len(distinct))[several]
    return distinct, totals


def _check_number(papers: int, limit: int) -> None:
    if not 1 <= papers <= limit:
        raise UserError(f"{papers} papers are asked for; ask for 1 to {limit}")
