"""An index after any number of changes: what it finds is what a plain list of its papers says, and what a new index finds.

One attempt is one batch: papers are added, replaced or deleted, and then the index is asked. After every tenth batch it
is compared with an index that is built from scratch.
"""

import hashlib
import itertools
import math
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import citeweave as cw
from citeweave.encoders.encoder import TorchEncoder
from citeweave.search import build, index_vectors, nearest
from citeweave.search.describe import describe_index
from citeweave.search.filters import filter_rows
from citeweave.search.nearest import nearest_papers
from citeweave.search.words import search_words, searchable_text, suggest
from citeweave.vectors.bm25 import words_of
from citeweave.vectors.vectors import new_vectors

from .stages import write_lines

# --- papers in several versions, and what an index of some of them must answer: computed anew from plain dictionaries

NUMBERS, VERSIONS = 600, 4
VENUES = ("ICML", "Ökologie", "", "数学年刊")
_RARE = ("Müller", "ﬁsh", "数学", "naïve", "β-decay", "C++")
WORDS = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnrst"] + list(_RARE)
_COMMON = np.array([1 / (place + 3) for place in range(len(WORDS))])

Paper = dict[str, Any]


def make_paper(number: int, rng: np.random.Generator) -> Paper:
    """One version of a paper; some have no abstract, a few the same text as others."""
    chances = _COMMON / _COMMON.sum()
    kind = rng.random()
    title = " ".join(rng.choice(WORDS, int(rng.integers(2, 6)), p=chances))
    abstract = " ".join(rng.choice(WORDS, int(rng.integers(5, 30)), p=chances)) + "." if kind > 0.3 else ""
    if kind < 0.05:
        title, abstract = "bal dem", ""
    paper: Paper = {"id": f"p:{number}", "title": title, "abstract": abstract}
    paper["year"] = int(rng.integers(1990, 2024)) if rng.random() < 0.8 else None
    paper |= {"venue": str(rng.choice(VENUES)), "ids": [f"doi:10.1/{number}"] if number % 4 == 0 else []}
    cited = rng.choice(NUMBERS + 50, 3, replace=False).tolist()
    return paper | {"references": [f"p:{one}" for one in cited if one != number]}


@lru_cache(maxsize=10_000)
def vector_of(text: str, dimension: int) -> NDArray[np.float16]:
    """A vector that only the text decides, near one of a few centers."""
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little"))
    center = np.random.default_rng(int(rng.integers(12))).normal(size=dimension)
    return np.asarray(center + rng.normal(size=dimension), np.float16)


class World:
    """All versions of all papers, as corpora and vectors."""

    def __init__(self, folder: Path, encoder: TorchEncoder, seed: int = 10) -> None:
        rng = np.random.default_rng(seed)
        self.folder, self.encoder, self.dimension = folder, encoder, encoder.dimension
        papers = [make_paper(number, rng) for number in range(NUMBERS)]
        self.versions: list[list[Paper]] = []
        for _ in range(VERSIONS):
            self.versions.append(papers)
            papers = [self._next(paper, number, rng) for number, paper in enumerate(papers)]
        self.corpora = [self.write(f"v{number}", version) for number, version in enumerate(self.versions)]
        self.given = [self.write_vectors(f"v{number}", version) for number, version in enumerate(self.versions)]

    def _next(self, paper: Paper, number: int, rng: np.random.Generator) -> Paper:
        what = rng.random()
        if what < 0.4:
            return make_paper(number, rng)
        return {**paper, "year": int(rng.integers(1990, 2024))} if what < 0.6 else paper

    def write(self, name: str, papers: Iterable[Paper]) -> cw.Corpus:
        """A corpus of some papers."""
        place = self.folder / name
        place.mkdir()
        path = write_lines(place / "papers.jsonl", papers)
        return cw.import_papers([path], place / "corpus", cw.ImportOptions(same_title="never")).corpus

    def write_vectors(self, name: str, papers: Iterable[Paper]) -> index_vectors.PrecomputedVectors:
        """Their vectors."""
        papers = list(papers)
        made_by = {"model": self.encoder.name, "revision": self.encoder.revision, "text_recipe": cw.TextRecipe().hash}
        with new_vectors(self.folder / name / "vectors", **made_by) as writer:
            writer.append([paper["id"] for paper in papers], np.stack([self.vector(paper) for paper in papers]))
            vectors: cw.Vectors = writer.finish()
        return index_vectors.PrecomputedVectors(vectors)

    def vector(self, paper: Paper) -> NDArray[np.float16]:
        return vector_of("\n".join(_text(paper)), self.dimension)


@dataclass
class Held:
    """What an index should hold, by id."""

    world: World
    papers: dict[str, Paper] = field(default_factory=dict)
    with_vector: set[str] = field(default_factory=set)
    embedded: set[tuple[str, str]] = field(default_factory=set)
    """All texts that ever had a vector."""

    gone: set[str] = field(default_factory=set)
    """Papers that were deleted and did not come again."""

    def add(self, version: int, numbers: Iterable[int], *, vectors: bool) -> None:
        for number in numbers:
            paper = self.world.versions[version][number]
            name, before = paper["id"], self.papers.get(paper["id"])
            if before is None or _text(before) != _text(paper):
                (self.with_vector.add if vectors else self.with_vector.discard)(name)
                if vectors:
                    self.embedded.add(_text(paper))
            self.papers[name] = paper
            self.gone.discard(name)

    def share_vectors(self, found: set[str]) -> None:
        """Check which papers have a vector; a paper may have one earlier, where another one has the same text."""
        assert self.with_vector <= found, "a paper without its vector"
        for name in found - self.with_vector:
            assert _text(self.papers[name]) in self.embedded, "a vector out of nothing"
        self.with_vector = found

    def delete(self, names: Iterable[str]) -> int:
        found = [name for name in dict.fromkeys(names) if name in self.papers]
        for name in found:
            del self.papers[name]
            self.with_vector.discard(name)
            self.gone.add(name)
        return len(found)

    def nearest(self, query: NDArray[Any], allowed: set[str] | None = None) -> dict[str, float]:
        """The cosine of every paper that may be found."""
        names = [name for name in self.with_vector if allowed is None or name in allowed]
        if not names:
            return {}
        matrix = np.stack([self.world.vector(self.papers[name]) for name in names]).astype(np.float64)
        scores = matrix @ query / np.linalg.norm(matrix, axis=1) / np.linalg.norm(query)
        return dict(zip(names, scores.tolist(), strict=True))

    def by_words(self, query: str, allowed: set[str] | None = None) -> dict[str, float]:
        """BM25 of every paper that shares a word with the query."""
        words = {name: _words(*_text(paper)) for name, paper in self.papers.items()}
        lengths = {name: found.total() for name, found in words.items()}
        mean = sum(lengths.values()) / max(1, len(lengths)) or 1.0
        scores: Counter[str] = Counter()
        for word, times in Counter(words_of(query)).items():
            having = [name for name in words if word in words[name]]
            weight = times * math.log(1 + (len(words) - len(having) + 0.5) / (len(having) + 0.5))
            for name in having:
                if allowed is None or name in allowed:
                    count = words[name][word]
                    scores[name] += weight * count / (count + 1.2 * (0.25 + 0.75 * lengths[name] / mean))
        return dict(scores)


@lru_cache(maxsize=10_000)
def _words(title: str, abstract: str) -> Counter[str]:
    return Counter(words_of(searchable_text(title, abstract)))


def _text(paper: Paper) -> tuple[str, str]:
    return paper["title"], paper["abstract"]


# --- the index --------------------------------------------------------------------------------------------

REBUILT = 10
"""Batches between two comparisons with a new index."""

LEAST_RECALL = 0.98
COUNT, QUERIES = 10, 6
OPTIONS = cw.IndexOptions(device="cpu")


def change(folder: Path, held: Held, rng: np.random.Generator) -> str:
    """Make one batch of changes, in the index and in the list."""
    world, version = held.world, int(rng.integers(VERSIONS))
    corpus, given = world.corpora[version], world.given[version]
    what = str(rng.choice(["add", "add words", "delete", "delete", "update", "fill"], p=[0.36, 0.1, 0.2, 0.2, 0.02, 0.12]))  # fmt: skip
    vectors = what != "add words"
    how = build.ChangeOptions(encoder=world.encoder, precomputed=given if vectors else None)
    if what.startswith("add"):
        numbers = rng.choice(NUMBERS, int(rng.integers(1, 60)), replace=False).tolist()
        rows = corpus.rows([f"p:{number}" for number in numbers])
        fresh = sum(f"p:{number}" not in held.papers for number in numbers)
        told = cw.add_papers(folder, corpus, rows, vectors=vectors, options=how)
        held.add(version, numbers, vectors=vectors)
        assert told.added == fresh and told.deleted == 0
        assert told.added + told.updated + told.unchanged == len(numbers)
    elif what == "delete":
        numbers = rng.choice(NUMBERS, int(rng.integers(1, 40)), replace=False).tolist()
        by_other = [f"doi:10.1/{number}" if number % 8 == 0 else f"p:{number}" for number in numbers]
        assert cw.delete_papers(folder, by_other) == held.delete(f"p:{number}" for number in numbers)
    elif what == "update":
        told = cw.update_index(folder, corpus, options=how)
        held.add(version, range(NUMBERS), vectors=True)
        assert told.added + told.updated + told.unchanged == NUMBERS
    else:
        _fill(folder, held)
    return what


def _fill(folder: Path, held: Held) -> None:
    """Vectors of the papers that have words alone, given as they are now."""
    name = f"filled {len(list(held.world.folder.glob('filled *')))}"
    if held.papers:
        given = held.world.write_vectors(name, held.papers.values())
        build.fill_vectors(folder, model=held.world.encoder, precomputed=given)
        shutil.rmtree(held.world.folder / name)
        (held.world.folder / name).mkdir()
    held.with_vector = set(held.papers)
    held.embedded |= {_text(paper) for paper in held.papers.values()}


def check_answers(index: cw.Index, held: Held, rng: np.random.Generator) -> float:
    """Every kind of search against the plain list; how much of the exact result the approximate one has."""
    names = _names(index, np.arange(index.size))
    assert sorted(names) == sorted(held.papers) and len(index) == len(held.papers)
    held.share_vectors(set(_names(index, np.flatnonzero(index.with_vector))))
    gone = sorted(held.gone)
    assert (index.rows(gone) == -1).all()
    where, allowed = _draw_filter(held, rng)
    mask = filter_rows(index, where)
    assert set(_names(index, np.flatnonzero(mask))) == allowed
    queries = _draw_queries(held, rng, QUERIES)
    for exact, limit in ((True, None), (False, None), (True, allowed)):
        near = nearest_papers(index, queries, COUNT, allowed=None if limit is None else mask, exact=exact)
        found = [_pairs(index, *one) for one in zip(near.rows, near.scores, strict=True)]
        known = [held.nearest(query, limit) for query in queries]
        if exact:
            for pairs, scores in zip(found, known, strict=True):
                _check_best(pairs, scores, 1e-5)
        else:
            recall = _recall(found, known)
    for text in _draw_texts(rng, 2):
        for limit, rows in ((None, None), (allowed, mask)):
            words = search_words(index, text, COUNT, allowed=rows)
            _check_best(_pairs(index, words.rows, words.scores), held.by_words(text, limit), 1e-9)
        _check_fused(index, held, text, where, allowed)
    if gone:
        assert not filter_rows(index, cw.Filter(ids=tuple(gone))).any()
    return recall


def _check_best(found: list[tuple[str, float]], known: dict[str, float], apart: float) -> None:
    """Whether these are the best of all that are known, with their scores, the best first."""
    assert len(found) == min(COUNT, len(known)) and len({name for name, _ in found}) == len(found)
    assert all(abs(known[name] - score) <= apart for name, score in found), "another score, or a paper not there"
    assert all(one[1] >= other[1] for one, other in itertools.pairwise(found))
    left = sorted((score for name, score in known.items() if name not in dict(found)), reverse=True)
    assert not (left and found) or found[-1][1] >= left[0] - apart, "a better paper was not found"


def _check_fused(index: cw.Index, held: Held, text: str, where: cw.Filter, allowed: set[str]) -> None:
    """What words and vectors find together: only papers that are there and pass the filter, each once."""
    reader = nearest.QueryEncoder(index, held.world.encoder)
    asked = cw.Query(text=text, by="hybrid")  # by name: papers are listed even if their vectors, random ones, are far
    for query in (asked, replace(asked, where=where), replace(asked, approximate=True)):
        if not held.papers:
            continue
        hits = [hit.id for hit in cw.answer(index, reader, query).hits]
        may = allowed if query.where else set(held.papers)
        assert set(hits) <= may and len(set(hits)) == len(hits)
        able = (set(held.by_words(text)) | held.with_vector) & may
        assert len(hits) == min(query.count, len(able))
    assert {index.id(one.row) for one in suggest(index, text[:2]) if one.row is not None} <= set(held.papers)


def _recall(found: list[list[tuple[str, float]]], known: list[dict[str, float]]) -> float:
    hits = total = 0
    for pairs, scores in zip(found, known, strict=True):
        assert all(name in scores for name, _ in pairs)
        best = sorted(scores.values(), reverse=True)[:COUNT]
        total += len(best)
        hits += sum(scores[name] >= best[-1] - 1e-6 for name, _ in pairs)
    return hits / total if total else 1.0


def check_as_new(index: cw.Index, held: Held, place: str) -> None:
    """The same papers in an index that never changed: the same answers to the last bit."""
    world = held.world
    corpus, given = world.write(place, held.papers.values()), world.write_vectors(place, held.papers.values())
    anew = cw.build_index(corpus, index.model, world.folder / place / "index", OPTIONS, precomputed=given)
    rng = np.random.default_rng(len(held.papers))
    queries, texts = _draw_queries(held, rng, 20), _draw_texts(rng, 10)
    assert _told(index, world.encoder, queries, texts) == _told(anew, world.encoder, queries, texts)
    shutil.rmtree(world.folder / place)


def _told(index: cw.Index, encoder: TorchEncoder, queries: NDArray[Any], texts: list[str]) -> dict[str, Any]:
    near = nearest_papers(index, queries, COUNT)
    told: dict[str, Any] = {"near": [_pairs(index, *found) for found in zip(near.rows, near.scores, strict=True)]}
    reader = nearest.QueryEncoder(index, encoder)
    for text in texts:
        words = search_words(index, text, COUNT)
        told[f"words {text}"] = _pairs(index, words.rows, words.scores)
        told[f"fused {text}"] = [(hit.id, hit.score) for hit in cw.answer(index, reader, cw.Query(text=text)).hits]
    for row in range(index.size):
        shown = index.paper(row)
        told[shown.id] = (shown.title, shown.abstract, shown.year, shown.ids, index.references(row).tolist())
        told[shown.id] += (sorted(_names(index, index.citing(index.key_of(row)))),)
    described = describe_index(index)
    return {**told, **{name: described[name] for name in ("papers", "with_abstract", "references")}}


def _names(index: cw.Index, rows: NDArray[Any]) -> list[str]:
    return [index.id(int(row)) for row in rows]


def _pairs(index: cw.Index, rows: NDArray[Any], scores: NDArray[Any]) -> list[tuple[str, float]]:
    return [(index.id(int(row)), float(score)) for row, score in zip(rows, scores, strict=True) if row >= 0]


def _draw_queries(held: Held, rng: np.random.Generator, count: int) -> NDArray[np.float32]:
    """Near to what some papers may say."""
    papers = [make_paper(0, rng) | {"title": "bal"} for _ in range(count)]
    return np.stack([held.world.vector(paper).astype(np.float32) for paper in papers])


def _draw_texts(rng: np.random.Generator, count: int) -> list[str]:
    return [" ".join(rng.choice(WORDS, 3)) for _ in range(count)]


def _draw_filter(held: Held, rng: np.random.Generator) -> tuple[cw.Filter, set[str]]:
    """A filter, and the papers that pass it."""
    first, venue = int(rng.integers(1990, 2024)), str(rng.choice([name for name in VENUES if name]))
    some = tuple(f"p:{number}" for number in rng.choice(NUMBERS, 80, replace=False).tolist())
    filters: tuple[tuple[cw.Filter, Any], ...] = (
        (cw.Filter(years=(first, None)), lambda paper: (paper["year"] or 0) >= first),
        (cw.Filter(years=(None, first)), lambda paper: 0 < (paper["year"] or 0) <= first),
        (cw.Filter(venues=(venue,)), lambda paper: paper["venue"] == venue),
        (cw.Filter(ids=some), lambda paper: paper["id"] in some),
        (cw.Filter(not_ids=some), lambda paper: paper["id"] not in some),
        (cw.Filter(has_abstract=False), lambda paper: not paper["abstract"]),
    )
    where, passes = filters[int(rng.integers(len(filters)))]
    return where, {name for name, paper in held.papers.items() if passes(paper)}


def test_index_after_batches_of_changes(trial, bert, tmp_path, monkeypatch):
    monkeypatch.setattr(index_vectors, "CODED", 64)  # small indexes are scanned by codes too
    encoder = cw.load_encoder(bert, device="cpu")
    world, folder, recalls, coded = World(tmp_path, encoder), tmp_path / "index", list[float](), 0
    held = Held(world)
    cw.build_index(world.corpora[0], bert, folder, OPTIONS, precomputed=world.given[0])
    held.add(0, range(NUMBERS), vectors=True)
    for number in trial.numbers(quick=40, whole=1000):
        rng = np.random.default_rng([10, number])
        what = change(folder, held, rng)
        with trial.attempt(f"seed 10, batch {number}, {what}"):
            index = cw.Index.open(folder)
            recalls.append(check_answers(index, held, rng))
            coded += index.codes("") is not None
            assert recalls[-1] >= LEAST_RECALL
            if number % REBUILT == REBUILT - 1:
                _fill(folder, held)
                check_as_new(cw.Index.open(folder), held, f"anew {number}")
    mean, least = round(float(np.mean(recalls)), 4), round(min(recalls), 4)
    trial.facts |= {"mean recall of approximate searches": mean, "batches with codes": coded}
    trial.facts["least recall of a batch"] = least
