"""A map of papers in two dimensions from their vectors, colored by topic, as figure 2 of SPECTER (Cohan et al., ACL 2020).

    map_data = make_map(matrix, labels, titles, seed=0)
    map_data.xy, map_data.homogeneity

t-SNE (van der Maaten and Hinton, JMLR 2008) on exact nearest neighbors by cosine, begun from the first two principal
components (Kobak and Berens, Nature Communications 2019): by openTSNE, or by scikit-learn on one core where openTSNE is not
installed. Each gives the same map for the same seed, with any number of workers. Nearness means something on it; its axes,
distances between far groups and the size of groups do not.

Does not draw: see `map_page`.

The map of a suite's papers: those of its first task that tells classes, colored by class.

    map_data = TopicMap(judged, suite).make(seed=0)

Does not place papers (`reporting.paper_map`) and does not draw (`reporting.map_page`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import MissingExtraError, UserError, require
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream
from citeweave.evaluation.metrics import map_quality
from citeweave.evaluation.systems import Judged, NoAnswerError
from citeweave.evaluation.tasks import ProbeTask, Suite
from citeweave.vectors.topk import nearest

PERPLEXITY = 30
FEWEST = 20
"""Fewer papers have no neighborhoods to keep: their map is the first two principal components."""

JUDGED_FROM = 5
"""Points that homogeneity and completeness need."""

_EARLY, _LATE, _AGAIN, _STEP = 250, 500, 250, 50
"""Iterations, as openTSNE's own: with exaggeration, then without; those of a map that goes on from another; and how
often progress is told."""

_MANY = 1000
"""Papers from which on several cores are of use."""

_MAX_WITHOUT_OPENTSNE = 10_000
"""Papers that scikit-learn places; 5,000 take as long as with openTSNE, 20,000 more than twice as long."""

Floats = NDArray[np.float32]
Plane = NDArray[np.float64]


@dataclass(frozen=True)
class MapData:
    """Papers on a map."""

    xy: Floats
    """(papers, 2)"""

    labels: Sequence[str]
    """Topic of each paper; empty where none is known."""

    titles: Sequence[str]
    homogeneity: float
    """0 to 1, how far clusters of the map hold one topic alone; NaN where it cannot be told."""

    completeness: float
    """0 to 1, how far a topic lies in one cluster alone; NaN where it cannot be told."""

    note: str = ""
    """What a careful reader must know."""


def make_map(
    matrix: NDArray[Any],
    labels: Sequence[str],
    titles: Sequence[str],
    *,
    seed: int = 0,
    most: int = 100_000,
    reporter: Reporter = QUIET,
) -> MapData:
    """Place papers by their vectors (papers, dimension); of more than `most` a random sample, in its old order."""
    _check(matrix, labels, titles, most)
    papers, notes = len(matrix), []
    chosen = np.arange(papers)
    if papers > most:
        chosen = np.sort(stream(seed, "map", "sample").choice(papers, most, replace=False))  # (most,)
        notes.append(f"A random sample of {most:,} of {papers:,} papers.")
    vectors = unit(np.asarray(matrix)[chosen])  # (n, dimension)
    topics = [str(labels[row]) for row in chosen.tolist()]
    if zeros := int((~vectors.any(axis=1)).sum()):
        notes.append(f"{zeros:,} papers have a vector of zeros; where they lie means nothing.")
    if len(vectors) < FEWEST:
        xy = principal(vectors)
        notes.insert(0, f"The first two principal components, as {FEWEST} papers are the least for t-SNE.")
    else:
        xy = t_sne(vectors, seed, reporter=reporter)
        notes.insert(0, "t-SNE of the vectors by cosine.")
    homogeneity, completeness = _judge(xy, topics)
    return MapData(
        xy.astype(np.float32),
        topics,
        [str(titles[row]) for row in chosen.tolist()],
        homogeneity,
        completeness,
        " ".join(notes),
    )


def _check(matrix: NDArray[Any], labels: Sequence[str], titles: Sequence[str], most: int) -> None:
    if np.ndim(matrix) != 2 or not len(matrix):
        raise UserError(
            f"vectors of the shape {np.shape(matrix)} cannot be mapped; give one row for each of some papers"
        )
    if not len(labels) == len(titles) == len(matrix):
        raise UserError(
            f"{len(matrix):,} vectors, {len(labels):,} topics and {len(titles):,} titles; give one of each a paper"
        )
    if most < 1:
        raise UserError(f"a map of at most {most} papers is empty; ask for 1 or more")
    bad = np.flatnonzero(~np.isfinite(matrix).all(axis=1))
    if len(bad):
        raise UserError(f"{len(bad):,} vectors hold NaN or infinity, such as row {bad[0]}; leave them out of the map")


def unit(vectors: NDArray[Any]) -> Floats:
    """Rows of length 1; zeros stay zeros."""
    wide = np.asarray(vectors, np.float32)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)  # (n, 1)
    return np.asarray(np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0))


def principal(vectors: Floats) -> Plane:
    """(n, 2): the first two principal components; each axis points so that its largest weight is positive."""
    if not len(vectors):
        return np.zeros((0, 2))
    if vectors.shape[1] < 2:
        vectors = np.pad(vectors, ((0, 0), (0, 2 - vectors.shape[1])))
    center = vectors.mean(axis=0, dtype=np.float64)  # (dimension,)
    spread = np.zeros((vectors.shape[1],) * 2)  # (dimension, dimension)
    for start in range(0, len(vectors), 10_000):  # as float64 all rows at once would double the memory
        block = vectors[start : start + 10_000] - center
        spread += block.T @ block
    axes = np.linalg.eigh(spread).eigenvectors[:, :-3:-1]  # (dimension, 2), the widest first
    axes *= np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]])
    return np.asarray((vectors - center.astype(np.float32)) @ axes)


def t_sne(vectors: Floats, seed: int, *, start: Plane | None = None, reporter: Reporter = QUIET) -> Plane:
    """(n, 2): places of vectors of length 1, begun from their principal components or from the places `start`, (n, 2)."""
    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
    shaken = stream(seed, "map", "start").normal(size=(len(vectors), 2))  # papers on one spot would never part
    if start is None:
        xy = principal(vectors)
        begin, early, late = 1e-4 * (xy / (xy[:, 0].std() or 1.0) + 0.01 * shaken), _EARLY, _LATE
    else:
        begin, early, late = start + 1e-3 * shaken, 0, _AGAIN
    try:
        opentsne = require("openTSNE", extra="maps")
    except MissingExtraError:
        if len(vectors) > _MAX_WITHOUT_OPENTSNE:
            raise
        return _scikit_learn_t_sne(vectors, begin, perplexity, early=early, iterations=early + late)
    found = nearest(vectors, vectors, math.floor(3 * perplexity), itself=np.arange(len(vectors)), reporter=reporter)
    distances = np.sqrt(np.maximum(0, 2 - 2 * found.scores.astype(np.float64)))  # (n, neighbors)
    index = require("openTSNE.nearest_neighbors", extra="maps").PrecomputedNeighbors(found.rows, distances)
    workers = -1 if len(vectors) >= _MANY else 1  # the map is the same with any number
    affinities = opentsne.affinity.PerplexityBasedNN(knn_index=index, perplexity=perplexity, n_jobs=workers)
    with reporter.task("mapping", total=early + late, unit="steps") as advance:
        tsne = opentsne.TSNE(
            perplexity=perplexity,
            initialization=begin,
            early_exaggeration_iter=early,
            n_iter=late,
            n_jobs=workers,
            random_state=seed,
            callbacks=lambda *_: advance(_STEP),
            callbacks_every_iters=_STEP,
        )
        with _silent("openTSNE.tsne"):
            return np.asarray(tsne.fit(affinities=affinities), np.float64)


def _scikit_learn_t_sne(vectors: Floats, begin: Plane, perplexity: float, *, early: int, iterations: int) -> Plane:
    """The same by scikit-learn, on one core: on several, sums would depend on their number."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    tsne = TSNE(
        perplexity=perplexity,
        init=begin.astype(np.float32),
        early_exaggeration=12.0 if early else 1.0,  # its first 250 iterations are always called early
        max_iter=iterations,
    )
    with threadpool_limits(1):
        return np.asarray(tsne.fit_transform(vectors), np.float64)


@contextmanager
def _silent(logger: str) -> Iterator[None]:
    """It warns of a start with wide distances, which is what is wanted when a map goes on from another."""
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _judge(xy: NDArray[np.float64], topics: Sequence[str]) -> tuple[float, float]:
    """Homogeneity and completeness over the papers that have a topic; two topics are the least to tell apart."""
    known = np.array([bool(topic) for topic in topics])  # (n,)
    named = [topic for topic in topics if topic]
    if len(named) < JUDGED_FROM or len(set(named)) < 2:
        return math.nan, math.nan
    quality = map_quality(xy[known], named)
    return quality.homogeneity, quality.completeness


# The map of a suite's papers: those of its first task that tells classes, colored by class.


class TopicMap:
    """What a map needs; what cannot be mapped is told at once, not after hours of judging."""

    def __init__(self, judged: Judged, suite: Suite) -> None:
        self.task = _first_classes(suite)
        try:
            self._vectors = judged.vectors(self.task.texts)
        except NoAnswerError as error:
            raise UserError(f"no map can be drawn: {error}; leave --map out") from None
        if not self._vectors.present[self._rows()].any():
            raise UserError(
                f"no map can be drawn: no paper of {self.task.name} has a vector; check that the ids are the suite's ids"
            )

    def make(self, *, seed: int = 0, reporter: Reporter = QUIET) -> MapData:
        """Place the papers that have vectors."""
        task, texts = self.task, self.task.texts
        answers = np.concatenate([task.train_answers, task.test_answers])  # (training and test papers,)
        rows, first = np.unique(self._rows(), return_index=True)
        has_vector = self._vectors.present[rows]  # (papers,)
        rows, first = rows[has_vector], first[has_vector]
        return make_map(
            self._vectors.matrix[rows],
            [str(answer) for answer in answers[first].tolist()],
            [texts.titles[row] or texts.ids[row] for row in rows.tolist()],
            seed=seed,
            reporter=reporter,
        )

    def _rows(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.concatenate([self.task.train, self.task.test])


def map_facts(map_data: MapData, task: str) -> dict[str, Any]:
    """What the report's JSON says of a map; homogeneity and completeness from 0 to 1, None where they cannot be told."""
    return {
        "task": task,
        "papers": len(map_data.xy),
        "homogeneity": map_data.homogeneity if math.isfinite(map_data.homogeneity) else None,
        "completeness": map_data.completeness if math.isfinite(map_data.completeness) else None,
        "note": map_data.note,
    }


def _first_classes(suite: Suite) -> ProbeTask:
    for task in suite.tasks:
        if isinstance(task, ProbeTask) and task.kind == "classes":
            return task
    raise UserError(
        f"{suite.name} tells no classes of papers to color a map by; leave --map out, or judge by scidocs, scirepeval, "
        "or a corpus with fields"
    )
