"""Scores that somebody else computed: a TREC run, MDCR's score file, CSFCube's ranked pools.

q1 Q0 p7 1 0.93 mine                      TREC run
{"q1_p7": 0.93, ...}                      MDCR
{"q1": [["p7", 0.12], ...], ...}          CSFCube and ASPIRE: candidates with their distances, best first
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import InputError
from citeweave.evaluation.judged import NoAnswerError, PaperVectors
from citeweave.evaluation.tasks import Pools
from citeweave.evaluation.texts import Texts
from citeweave.files import hash_file, hash_json

FACETS = ("background", "method", "result")


class GivenScores:
    """Scores by query and candidate. A query is looked up by its name in the task (`8781666_method`), then by its id."""

    distances: tuple[str, ...] = ()

    def __init__(self, scores: Mapping[str, Mapping[str, float]], *, name: str, revision: str = "") -> None:
        self._scores, self.name, self.revision = scores, name, revision

    def facts(self) -> dict[str, Any]:
        return {"name": self.name, "revision": self.revision, "queries given": len(self._scores)}

    def vectors(self, texts: Texts) -> PaperVectors:
        raise NoAnswerError(f"{self.name} holds scores, not vectors, so it can rank but not classify or regress")

    def scores(self, texts: Texts, pools: Pools, distance: str) -> NDArray[np.float64]:
        found = np.full(len(pools.candidates), np.nan)
        for number, row in enumerate(pools.queries.tolist()):
            given = self._scores.get(pools.names[number], self._scores.get(texts.ids[row], {}))
            for at in range(pools.offsets[number], pools.offsets[number + 1]):
                found[at] = given.get(texts.ids[pools.candidates[at]], np.nan)
        return found

    def top(
        self, texts: Texts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        rows = np.full((len(queries), depth), -1, np.int64)
        scores = np.full((len(queries), depth), np.nan)
        for number, query in enumerate(queries.tolist()):
            given = self._scores.get(texts.ids[query], {})
            best = sorted(given.items(), key=lambda pair: (pair[1], pair[0]), reverse=True)[:depth]
            known = [(row, score) for (paper, score) in best if (row := int(texts.rows([paper])[0])) >= 0]
            rows[number, : len(known)] = [row for row, _ in known]
            scores[number, : len(known)] = [score for _, score in known]
        return rows, scores


def read_scores(paths: Sequence[Path]) -> GivenScores:
    """Read files of scores; those of one CSFCube run are three, one a facet."""
    scores: dict[str, dict[str, float]] = {}
    for path in paths:
        for query, given in _read(path).items():
            scores.setdefault(query, {}).update(given)
    revision = hash_json([hash_file(path) for path in paths])[:16]
    return GivenScores(scores, name=paths[0].stem, revision=revision)


def looks_like_scores(path: Path) -> bool:
    """Whether a file holds scores rather than vectors."""
    if path.suffix in (".run", ".trec"):
        return True
    if path.suffix != ".json":
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(1) == "{"


def _read(path: Path) -> dict[str, dict[str, float]]:
    try:
        return _read_run(path) if path.suffix != ".json" else _read_json(path)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path} holds no scores that citeweave can read ({error}); it takes TREC runs, MDCR's and CSFCube's JSON"
        ) from None


def _read_run(path: Path) -> dict[str, dict[str, float]]:
    scores: dict[str, dict[str, float]] = {}
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            words = line.split()
            if len(words) != 6:
                raise ValueError(f"line {number} has {len(words)} words, a run's has 6")
            scores.setdefault(words[0], {})[words[2]] = float(words[4])
    return scores


def _read_json(path: Path) -> dict[str, dict[str, float]]:
    value = json.loads(path.read_bytes())
    if not isinstance(value, dict) or not value:
        raise ValueError("it is no JSON object with entries")
    if all(isinstance(entry, list) for entry in value.values()):
        facet = next((f"_{name}" for name in FACETS if f"-{name}-ranked" in path.name), "")
        # their lists are in order already: the place keeps it where distances are equal
        return {
            query + facet: {str(pair[0]): float(-place) for place, pair in enumerate(entry)}
            for query, entry in value.items()
        }
    scores: dict[str, dict[str, float]] = {}
    for pair, score in value.items():
        query, _, candidate = pair.partition("_")
        scores.setdefault(query, {})[candidate] = float(score)
    return scores
