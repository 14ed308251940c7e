"""Papers in several versions, and what an index of some of them must answer: computed anew from plain dictionaries.

    world = World(folder, encoder)
    held = Held(world)
    held.add(version, numbers, vectors=True)       as add_papers does
    held.nearest(query, 10), held.by_words("rain", 10)

The same text has the same vector whatever the version, as with any model.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.corpus import Corpus
from citeweave.corpus.ingest import ImportOptions, import_papers
from citeweave.corpus.text import TextRecipe
from citeweave.encoders.encoder import TorchEncoder
from citeweave.search.precomputed import PrecomputedVectors
from citeweave.search.words import searchable_text
from citeweave.vectors.bm25 import words_of
from citeweave.vectors.vectors import Vectors, new_vectors

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
    return {
        "id": f"p:{number}",
        "title": title,
        "abstract": abstract,
        "year": int(rng.integers(1990, 2024)) if rng.random() < 0.8 else None,
        "venue": str(rng.choice(VENUES)),
        "ids": [f"doi:10.1/{number}"] if number % 4 == 0 else [],
        "references": [
            f"p:{cited}" for cited in rng.choice(NUMBERS + 50, 3, replace=False).tolist() if cited != number
        ],
    }


def vector_of(paper: Paper, dimension: int) -> NDArray[np.float16]:
    """A vector that only the text decides, near one of a few centers."""
    return _vector(paper["title"] + "\n" + paper["abstract"], dimension)


@lru_cache(maxsize=10_000)
def _vector(text: str, dimension: int) -> NDArray[np.float16]:
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

    def write(self, name: str, papers: Iterable[Paper]) -> Corpus:
        """A corpus of some papers."""
        place = self.folder / name
        place.mkdir()
        (place / "papers.jsonl").write_text("".join(json.dumps(paper) + "\n" for paper in papers))
        return import_papers([place / "papers.jsonl"], place / "corpus", ImportOptions(same_title="never")).corpus

    def write_vectors(self, name: str, papers: Iterable[Paper]) -> PrecomputedVectors:
        """Their vectors."""
        papers = list(papers)
        made_by = {"model": self.encoder.name, "revision": self.encoder.revision, "text_recipe": TextRecipe().hash}
        with new_vectors(self.folder / name / "vectors", **made_by) as writer:
            writer.append([paper["id"] for paper in papers], np.stack([self.vector(paper) for paper in papers]))
            vectors: Vectors = writer.finish()
        return PrecomputedVectors(vectors)

    def vector(self, paper: Paper) -> NDArray[np.float16]:
        return vector_of(paper, self.dimension)


@dataclass
class Held:
    """What an index should hold, by id."""

    world: World
    papers: dict[str, Paper] = field(default_factory=dict)
    with_vector: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    """Papers that were deleted and did not come again."""

    def add(self, version: int, numbers: Iterable[int], *, vectors: bool) -> None:
        for number in numbers:
            paper = self.world.versions[version][number]
            name, before = paper["id"], self.papers.get(paper["id"])
            if before is None or _text(before) != _text(paper):
                (self.with_vector.add if vectors else self.with_vector.discard)(name)
            self.papers[name] = paper
            self.gone.discard(name)

    def delete(self, names: Iterable[str]) -> int:
        found = [name for name in dict.fromkeys(names) if name in self.papers]
        for name in found:
            del self.papers[name]
            self.with_vector.discard(name)
            self.gone.add(name)
        return len(found)

    def fill(self) -> None:
        self.with_vector = set(self.papers)

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
