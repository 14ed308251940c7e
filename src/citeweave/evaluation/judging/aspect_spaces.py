"""Aspect spaces of an encoder, judged: one space, all side by side, or for every query the one it asks about.

    spaces = spaces_of(Encoded(encoder), heads)      {"encoder": ..., "method": ..., "all": ..., "matching": ...}

All of them share the encoder's vectors, so that papers are read once; a space is a projection of them.
Which aspect a query asks about is the group of its pool, in CSFCube and in the suites `aspects` and `intents`:

    background, problem  -> the space of backgrounds        method -> of methods        result, finding -> of results

Does not load encoders or heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.encoders.aspects import ALL, AspectHeads
from citeweave.evaluation.judged import Judged, NoAnswerError, PaperVectors, Resumable
from citeweave.evaluation.judging.by_vectors import find_top, score_pairs
from citeweave.evaluation.tasks import DISTANCES, Pools, RankingTask, SearchTask, Suite, Task
from citeweave.evaluation.texts import Texts
from citeweave.files import hash_json

ENCODER, MATCHING = "encoder", "matching"
"""The encoder's own vector; the space that a query asks about."""

ALSO_CALLED = {"problem": "background", "finding": "result"}
"""The made-up literature's aspects -> the intents with which its papers cite those that share them."""


class AspectSpace:
    """The vectors of an encoder in the space of one aspect, or of all side by side."""

    distances = DISTANCES

    def __init__(self, whole: Judged, heads: AspectHeads, aspect: str) -> None:
        heads.check(aspect)
        self.whole, self._heads, self._aspect = whole, heads, aspect
        self.name = f"{whole.name} ({aspect})"
        self.revision = hash_json([whole.revision, heads.hash, aspect])[:16]
        self._last: tuple[Texts, PaperVectors] | None = None  # tasks of a suite mostly share their texts

    def resume_in(self, folder: Path | None) -> None:
        _resume_in(self.whole, folder)

    def facts(self) -> dict[str, Any]:
        found = {**self.whole.facts(), "name": self.name, "aspect": self._aspect, "heads": self._heads.hash}
        return {**found, "dimension": self._heads.dimension(self._aspect)}

    def vectors(self, texts: Texts) -> PaperVectors:
        if self._last is None or self._last[0] is not texts:
            self._last = texts, self._project(self.whole.vectors(texts))
        return self._last[1]

    def _project(self, found: PaperVectors) -> PaperVectors:
        matrix = np.zeros((len(found.matrix), self._heads.dimension(self._aspect)), np.float32)  # (rows, dimension)
        if found.present.any():
            matrix[found.present] = self._heads.project(found.matrix[found.present], self._aspect)
        return PaperVectors(matrix, found.state)

    def scores(self, texts: Texts, pools: Pools, distance: str) -> NDArray[np.float64]:
        return score_pairs(self.vectors(texts), pools, distance)

    def top(
        self, texts: Texts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return find_top(self.vectors(texts), queries, candidates, depth, distance)


class MatchingSpace:
    """Every query is answered in the space of the aspect that it asks about."""

    distances = DISTANCES

    def __init__(self, whole: Judged, heads: AspectHeads) -> None:
        self.whole, self._heads = whole, heads
        self._spaces = {name: AspectSpace(whole, heads, name) for name in heads.names}
        self.name = f"{whole.name} ({MATCHING})"
        self.revision = hash_json([whole.revision, heads.hash, MATCHING])[:16]

    def resume_in(self, folder: Path | None) -> None:
        _resume_in(self.whole, folder)

    def facts(self) -> dict[str, Any]:
        return {**self.whole.facts(), "name": self.name, "aspect": MATCHING, "heads": self._heads.hash}

    def vectors(self, texts: Texts) -> PaperVectors:
        raise NoAnswerError(
            f"{self.name} has a vector a query's aspect, and this task asks about none; judge one space, such as "
            f"--aspect {self._heads.names[0]}"
        )

    def answering(self, facet: str) -> Judged:
        """The space of an aspect as a task calls it."""
        name = ALSO_CALLED.get(facet, facet)
        if name not in self._spaces:
            raise NoAnswerError(
                f"queries ask about {facet!r}, and {self.whole.name} has the spaces {', '.join(self._spaces)}; "
                f"--aspect {MATCHING} needs the very one"
            )
        return self._spaces[name]

    def count_zeros(self, texts: Texts) -> int:
        """Vectors of zeros, those of the encoder itself."""
        return self.whole.vectors(texts).count_zeros()

    def scores(self, texts: Texts, pools: Pools, distance: str) -> NDArray[np.float64]:
        if pools.groups is None:
            raise self._unasked()
        found = np.full(len(pools.candidates), np.nan)
        facets = np.array(pools.groups)  # (queries,)
        for facet in dict.fromkeys(pools.groups):
            space, chosen = self.answering(facet), np.flatnonzero(facets == facet)
            part, pairs = _part(pools, chosen)
            found[pairs] = space.scores(texts, part, distance)
        return found

    def top(
        self, texts: Texts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        raise self._unasked()

    def _unasked(self) -> NoAnswerError:
        return NoAnswerError(
            f"--aspect {MATCHING} answers a query by the aspect that it asks about, and this task's queries ask about "
            f"none; judge one space, such as --aspect {self._heads.names[0]}, or all of them: --aspect every"
        )


def _resume_in(whole: Judged, folder: Path | None) -> None:
    if isinstance(whole, Resumable):
        whole.resume_in(folder)


def _part(pools: Pools, chosen: NDArray[np.int64]) -> tuple[Pools, NDArray[np.int64]]:
    """Pools of some queries alone, and which pairs those are."""
    spans = [np.arange(pools.offsets[query], pools.offsets[query + 1]) for query in chosen.tolist()]
    pairs = np.concatenate(spans)
    at = chosen.tolist()
    part = replace(
        pools,
        queries=pools.queries[chosen],
        offsets=np.cumsum([0, *(len(span) for span in spans)]),
        candidates=pools.candidates[pairs],
        grades=pools.grades[pairs],
        names=[pools.names[query] for query in at],
        sentences=None if pools.sentences is None else [pools.sentences[query] for query in at],
        groups=None,
        scored=None if pools.scored is None else pools.scored[pairs],
    )
    return part, pairs


def spaces_of(whole: Judged, heads: AspectHeads) -> dict[str, Judged]:
    """The encoder, its spaces, all side by side, and for every query its own; by the name that --aspect gives them."""
    spaces: dict[str, Judged] = {name: AspectSpace(whole, heads, name) for name in (*heads.names, ALL)}
    return {ENCODER: whole, **spaces, MATCHING: MatchingSpace(whole, heads)}


def judgeable(suite: Suite, spaces: Iterable[str]) -> list[str]:
    """The names of those spaces that a suite can judge: `matching` only where it says which aspect is asked about."""
    names = list(spaces)
    return [name for name in names if name != MATCHING or any(_asks_about(task, names) for task in suite.tasks)]


def _asks_about(task: Task, names: Sequence[str]) -> bool:
    pools = task.pools if isinstance(task, RankingTask) else task.judged if isinstance(task, SearchTask) else None
    facets = set(pools.groups or ()) if pools else set()
    return bool(facets) and {ALSO_CALLED.get(facet, facet) for facet in facets} <= set(names)
