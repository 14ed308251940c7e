"""Scores that somebody else computed: a TREC run, MDCR's score file, CSFCube's ranked pools.

    q1 Q0 p7 1 0.93 mine                      TREC run
    {"q1_p7": 0.93, ...}                      MDCR
    {"q1": [["p7", 0.12], ...], ...}          CSFCube and ASPIRE: candidates with their distances, best first

Of a pair that is given twice the last score counts; NaN is no answer. Both are counted.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import InputError
from citeweave.evaluation.judged import NoAnswerError, PaperVectors
from citeweave.evaluation.suites.collection import PREFIX
from citeweave.evaluation.tasks import Pools
from citeweave.evaluation.texts import Texts
from citeweave.files import hash_file, hash_json, open_input, read_input

FACETS = ("background", "method", "result")


class GivenScores:
    """Scores by query and candidate. A query is looked up by its name in the task (`8781666_method`), then by its id."""

    distances: tuple[str, ...] = ()

    def __init__(
        self,
        scores: Mapping[str, Mapping[str, float]],
        *,
        name: str,
        revision: str = "",
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self._scores, self.name, self.revision, self._facts = scores, name, revision, facts or {}

    def facts(self) -> dict[str, Any]:
        return {"name": self.name, "revision": self.revision, "queries given": len(self._scores), **self._facts}

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
        pool = frozenset(candidates.tolist())
        for number, query in enumerate(queries.tolist()):
            asked = texts.ids[query]
            given = self._scores.get(asked, self._scores.get(asked.removeprefix(PREFIX), {}))
            answered = [pair for pair in given.items() if pair[1] == pair[1]]
            best = sorted(answered, key=lambda pair: (pair[1], pair[0]), reverse=True)
            known = [(row, score) for (paper, score) in best if (row := int(texts.rows([paper])[0])) in pool][:depth]
            rows[number, : len(known)] = [row for row, _ in known]
            scores[number, : len(known)] = [score for _, score in known]
        return rows, scores


def read_scores(paths: Sequence[Path], *, name: str) -> GivenScores:
    """Read files of scores; those of one CSFCube run are three, one a facet."""
    scores: dict[str, dict[str, float]] = {}
    given = 0
    for path in paths:
        for query, candidate, score in _read(path):
            scores.setdefault(query, {})[candidate] = score
            given += 1
    pairs = [score for each in scores.values() for score in each.values()]
    facts = {
        "files": [path.name for path in paths],
        "scores given": given,
        "scores given twice": given - len(pairs),
        "scores that are no number": sum(score != score for score in pairs),
    }
    return GivenScores(scores, name=name, revision=hash_json([hash_file(path) for path in paths])[:16], facts=facts)


def looks_like_scores(path: Path) -> bool:
    """Whether a file holds scores rather than vectors."""
    if path.suffix in (".run", ".trec"):
        return True
    if path.suffix != ".json":
        return False
    with open_input(path) as file:
        return file.read(1) == b"{"


def _read(path: Path) -> list[tuple[str, str, float]]:
    try:
        found = _read_run(path) if path.suffix != ".json" else _read_json(path)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{path} holds no scores that citeweave can read ({error}); it takes TREC runs, MDCR's and CSFCube's JSON; "
            "vectors in lines of JSON are named .jsonl"
        ) from None
    if not found:
        raise InputError(f"{path} holds no scores: it is empty; write it again")
    return found


def _read_run(path: Path) -> list[tuple[str, str, float]]:
    found = []
    with io.TextIOWrapper(open_input(path), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            words = line.split()
            if len(words) != 6:
                raise ValueError(f"line {number} has {len(words)} words, a run's has 6")
            found.append((words[0], words[2], float(words[4])))
    return found


def _read_json(path: Path) -> list[tuple[str, str, float]]:
    value = json.loads(read_input(path))
    if not isinstance(value, dict) or not value:
        raise ValueError("it is no JSON object with entries")
    if all(isinstance(entry, list) for entry in value.values()):
        facet = next((f"_{name}" for name in FACETS if f"-{name}-ranked" in path.name), "")
        if strange := [pair for entry in value.values() for pair in entry if not isinstance(pair, list) or not pair]:
            raise ValueError(f"a list holds {str(strange[0])[:60]!r} instead of a candidate with its distance")
        # their lists are in order already: the place keeps it where distances are equal
        return [
            (query + facet, str(pair[0]), float(-place))
            for query, entry in value.items()
            for place, pair in enumerate(entry)
        ]
    if strange := [name for name in value if "_" not in name]:
        raise ValueError(f"{strange[0][:60]!r} is no pair 'query_candidate'")
    pairs = ((*name.split("_", 1), float(score)) for name, score in value.items())
    return [(query, candidate, score) for query, candidate, score in pairs]
