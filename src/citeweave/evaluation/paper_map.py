"""A map of papers in two dimensions from their vectors, colored by topic, and its interactive page `map.html`.

    map_data = project_papers(matrix, labels, titles, seed=0)
    map_data.xy, map_data.homogeneity
    map_data = TopicMap(system, suite).make(seed=0)      the papers of a suite's first task with classes, as topics
    Path("map.html").write_text(map_as_page(map_data), encoding="utf-8")

As figure 2 of SPECTER (Cohan et al., ACL 2020): t-SNE (van der Maaten and Hinton, JMLR 2008) on exact nearest neighbors by
cosine, started from the first two principal components (Kobak and Berens, Nature Communications 2019). It runs with
openTSNE, or with scikit-learn on one core where openTSNE is not installed. Each gives the same map for the same seed, with
any number of workers. Only nearness means something on a map: its axes, the distances between far groups and the size of
groups do not.

The page holds points to pan and zoom, titles to hover and search, topics to hide. Points are packed as 16-bit integers,
topics as 8-bit, both in base64; 100,000 points and their titles take about 9 MB. Its scripts are
`page/map.js`, which the explorer uses too, and `page/map_page.js`. Does not evaluate vectors and does not lay out an index: see `search/map.py`.
"""

from __future__ import annotations

import base64
import logging
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import MissingExtraError, UserError, require
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.randomness import stream
from citeweave.evaluation.html import PALETTE, as_json, format_number, one_line, read_resource, render_page
from citeweave.evaluation.systems import NoAnswerError, System
from citeweave.evaluation.tasks import ProbeTask, Suite
from citeweave.vectors.topk import nearest

PERPLEXITY = 30
MIN_T_SNE_PAPERS = 20
"""Fewer papers have no neighborhoods to preserve: their map is the first two principal components."""

MIN_MEASURED_POINTS = 5
"""Papers with a topic that homogeneity and completeness need, and that a cluster has around each of its inner ones."""

SPARSE_SHARE = 0.25
"""Share of the papers whose neighborhood is too sparse to be inside a cluster."""

MAP_FILE = "map.html"
NO_TOPIC = "no topic"
TITLE_LENGTHS, MAX_TITLE_BYTES = (80, 60, 40, 25), 8_500_000
"""Titles are cut to the first of these lengths at which all of them together fit into so many bytes."""

MAX_TOPICS = 250
"""The smallest of more topics share one entry of the legend."""

PREVIEW_POINTS = 3000

_EARLY, _LATE, _AGAIN, _STEP = 250, 500, 250, 50
"""Iterations, openTSNE's defaults: with exaggeration, then without; those of a map that starts from another; and how often
progress is reported."""

_PARALLEL_FROM = 1000
"""Papers from which on several cores help."""

_MAX_WITHOUT_OPENTSNE = 10_000
"""Most papers that scikit-learn places; 5,000 take as long as with openTSNE, 20,000 more than twice as long."""

_EXTENT = 65535

Floats = NDArray[np.float32]
Plane = NDArray[np.float64]


@dataclass(frozen=True)
class MapData:
    """Data of a paper map: the places of papers, with their topics and titles."""

    xy: Floats
    """(papers, 2)"""

    labels: Sequence[str]
    """Topic of each paper; empty where none is known."""

    titles: Sequence[str]
    homogeneity: float
    """0 to 1, how far clusters of the map hold one topic alone; NaN where it is undefined."""

    completeness: float
    """0 to 1, how far a topic lies in one cluster alone; NaN where it is undefined."""

    note: str = ""
    """What a careful reader must know."""


# --- placing papers --------------------------------------------------------------------------------------


def project_papers(
    matrix: NDArray[Any],
    labels: Sequence[str],
    titles: Sequence[str],
    *,
    seed: int = 0,
    max_papers: int = 100_000,
    reporter: Reporter = QUIET,
) -> MapData:
    """Project papers onto a paper map by vectors (papers, dimension), more than `max_papers` as a random sample."""
    _check_map_input(matrix, labels, titles, max_papers)
    papers, notes = len(matrix), []
    chosen = np.arange(papers)
    if papers > max_papers:
        chosen = np.sort(stream(seed, "map", "sample").choice(papers, max_papers, replace=False))  # (max_papers,)
        notes.append(f"A random sample of {max_papers:,} of {papers:,} papers.")
    vectors = unit(np.asarray(matrix)[chosen])  # (n, dimension)
    topics = [str(labels[row]) for row in chosen.tolist()]
    if zeros := int((~vectors.any(axis=1)).sum()):
        notes.append(f"{zeros:,} papers have a vector of zeros; where they lie means nothing.")
    if len(vectors) < MIN_T_SNE_PAPERS:
        xy = principal(vectors)
        notes.insert(0, f"The first two principal components, since t-SNE needs {MIN_T_SNE_PAPERS} papers or more.")
    else:
        xy = run_t_sne(vectors, seed, reporter=reporter)
        notes.insert(0, "t-SNE of the vectors by cosine.")
    shown = [str(titles[row]) for row in chosen.tolist()]
    return MapData(xy.astype(np.float32), topics, shown, *map_quality(xy, topics), " ".join(notes))


def _check_map_input(matrix: NDArray[Any], labels: Sequence[str], titles: Sequence[str], max_papers: int) -> None:
    if np.ndim(matrix) != 2 or not len(matrix):
        raise UserError(f"vectors of the shape {np.shape(matrix)} cannot be mapped; give one row per paper")
    if not len(labels) == len(titles) == len(matrix):
        raise UserError(
            f"{len(matrix):,} vectors, {len(labels):,} topics and {len(titles):,} titles; give one of each per paper"
        )
    if max_papers < 1:
        raise UserError(f"a map of at most {max_papers} papers is empty; allow 1 or more")
    bad = np.flatnonzero(~np.isfinite(matrix).all(axis=1))
    if len(bad):
        raise UserError(f"{len(bad):,} vectors hold NaN or infinity, such as row {bad[0]}; leave them out of the map")


def unit(vectors: NDArray[Any]) -> Floats:
    """Return the vectors with rows scaled to length 1; zero vectors stay zero."""
    wide = np.asarray(vectors, np.float32)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)  # (n, 1)
    return np.asarray(np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0))


def principal(vectors: Floats) -> Plane:
    """Return the first two principal components of vectors, (n, 2), where the layout of a paper map begins.

    Each axis points so that its largest weight is positive.
    """
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


def run_t_sne(vectors: Floats, seed: int, *, start: Plane | None = None, reporter: Reporter = QUIET) -> Plane:
    """Lay out a paper map by t-SNE of unit vectors, (n, 2), beginning at principal components or `start`."""
    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
    shaken = stream(seed, "map", "start").normal(size=(len(vectors), 2))  # papers on one spot would never separate
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
    neighbors = nearest(vectors, vectors, math.floor(3 * perplexity), itself=np.arange(len(vectors)), reporter=reporter)
    distances = np.sqrt(np.maximum(0, 2 - 2 * neighbors.scores.astype(np.float64)))  # (n, neighbors)
    index = require("openTSNE.nearest_neighbors", extra="maps").PrecomputedNeighbors(neighbors.rows, distances)
    workers = -1 if len(vectors) >= _PARALLEL_FROM else 1  # the map is the same with any number
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
    """Place unit vectors by scikit-learn's t-SNE, on one core: on several, sums would depend on their number."""
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
    """Silence openTSNE's warning about wide starting distances, which are intended when a map starts from another."""
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


class MapQuality(NamedTuple):
    """How well the clusters of a paper map agree with the topics of its papers; NaN where that is undefined."""

    homogeneity: float
    """1 where every cluster holds papers of a single topic."""

    completeness: float
    """1 where all papers of a topic lie in a single cluster."""


def map_quality(xy: Plane, topics: Sequence[str]) -> MapQuality:
    """Measure a paper map: cluster its papers (papers, 2) with a topic by DBSCAN and compare clusters with topics.

    SPECTER (Cohan et al., ACL 2020, figure 2) evaluates its t-SNE map so: 0.41 / 0.72 against 0.19 / 0.63 of SciBERT. It
    does not give the settings of DBSCAN (Ester et al., KDD 1996), so its numbers are no target. scikit-learn's default
    `eps` of 0.5 leaves most papers of a t-SNE map outside any cluster, and no fixed number suits maps of other sizes. It is
    chosen as Ester et al. propose, from the distance of each paper to its fifth neighbor, itself included: a quarter of
    the papers has it farther away. So the values do not change where the map is stretched.
    """
    from sklearn.cluster import DBSCAN
    from sklearn.metrics import homogeneity_completeness_v_measure
    from sklearn.neighbors import NearestNeighbors

    known = np.array([bool(topic) for topic in topics])  # (papers,)
    named = [topic for topic in topics if topic]
    if len(named) < MIN_MEASURED_POINTS or len(set(named)) < 2:
        return MapQuality(math.nan, math.nan)
    points = np.asarray(xy, np.float64)[known]
    distances, _ = NearestNeighbors(n_neighbors=MIN_MEASURED_POINTS).fit(points).kneighbors(points)
    # papers that all lie on one spot still need an eps above 0
    eps = float(max(np.quantile(distances[:, -1], 1 - SPARSE_SHARE), np.finfo(np.float64).tiny))
    clusters = DBSCAN(eps=eps, min_samples=MIN_MEASURED_POINTS).fit_predict(points)  # (papers,)
    homogeneity, completeness, _ = homogeneity_completeness_v_measure(np.asarray(named), clusters)
    return MapQuality(float(homogeneity), float(completeness))


class TopicMap:
    """The paper map of a suite: the papers of its first task with classes; raises at once if they cannot be mapped."""

    def __init__(self, system: System, suite: Suite) -> None:
        self.task = _first_class_task(suite)
        try:
            self._vectors = system.vectors(self.task.texts)
        except NoAnswerError as error:
            raise UserError(f"no map can be drawn: {error}; leave out --map") from None
        if not self._vectors.present[self._rows()].any():
            raise UserError(
                f"no map can be drawn: no paper of {self.task.name} has a vector; check that the ids are the suite's ids"
            )

    def make(self, *, seed: int = 0, reporter: Reporter = QUIET) -> MapData:
        """Make the paper map of the suite's papers that have vectors."""
        task, texts = self.task, self.task.texts
        classes = np.concatenate([task.train_labels, task.test_labels])  # (training and test papers,)
        rows, first = np.unique(self._rows(), return_index=True)
        has_vector = self._vectors.present[rows]  # (papers,)
        rows, first = rows[has_vector], first[has_vector]
        labels = [str(label) for label in classes[first].tolist()]
        titles = [texts.titles[row] or texts.ids[row] for row in rows.tolist()]
        return project_papers(self._vectors.matrix[rows], labels, titles, seed=seed, reporter=reporter)

    def _rows(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.concatenate([self.task.train, self.task.test])


def _first_class_task(suite: Suite) -> ProbeTask:
    for task in suite.tasks:
        if isinstance(task, ProbeTask) and task.kind == "classes":
            return task
    raise UserError(
        f"{suite.name} has no classes of papers to color a map by; leave out --map, or evaluate on scidocs, scirepeval, "
        "or a corpus with fields"
    )


def map_as_json(map_data: MapData, task: str) -> dict[str, Any]:
    """Return what report.json says about a paper map; homogeneity and completeness from 0 to 1, None where undefined."""
    quality = {"homogeneity": map_data.homogeneity, "completeness": map_data.completeness}
    known = {name: value if math.isfinite(value) else None for name, value in quality.items()}
    return {"task": task, "papers": len(map_data.xy), **known, "note": map_data.note}


# --- the page --------------------------------------------------------------------------------------------


class Topics(NamedTuple):
    """The topics of a paper map, with their colors and the topic of each paper."""

    names: list[str]
    colors: list[int]
    """Positions in the palette; its length stands for gray."""

    of_paper: NDArray[np.uint8]
    """(papers,) positions among the names."""


def map_as_page(map_data: MapData, *, title: str = "Map of papers", back: str = "") -> str:
    """Return an interactive paper map as an HTML file; `back` is the report's file to link to, such as `report.html`."""
    # in a random order, else the last topic covers all others
    order = stream(0, "map page").permutation(len(map_data.xy))  # (n,)
    topics = number_topics(map_data.labels)
    counts = np.bincount(topics.of_paper, minlength=len(topics.names)).tolist()
    packed = {"xy": _base64(pack_points(map_data.xy)[order], "<u2"), "topic": _base64(topics.of_paper[order], "u1")}
    legend = list(zip(topics.names, counts, topics.colors, strict=True))
    titles = _titles_as_json([map_data.titles[row] for row in order.tolist()])
    view = {"summary": _describe(map_data), "back": back, "topics": legend, "data": packed, "titles": titles}
    return render_page("map.html.j2", title, map_script(), view)


def map_script() -> str:
    """Return the script of the map's page, without comments: `map.js`, which the explorer uses too, and `map_page.js`."""
    return re.sub(r"^ *(//.*\n)?", "", read_resource("map.js") + read_resource("map_page.js"), flags=re.MULTILINE)


def _describe(map_data: MapData) -> str:
    """Return a map's number of papers, how well topics hold together, and its note."""
    count = len(map_data.xy)
    summary = f"{count:,} {'paper' if count == 1 else 'papers'}"
    if math.isfinite(map_data.homogeneity):
        homogeneity, completeness = format_number(map_data.homogeneity), format_number(map_data.completeness)
        summary += f", homogeneity {homogeneity}, completeness {completeness}"
    return f"{summary}. {one_line(map_data.note, 500)}".strip()


def preview(map_data: MapData) -> dict[str, Any]:
    """Return a small preview of a paper map for the report: a sample of its points, and a legend of topics.

    One path for all dots of a color keeps it small.
    """
    topics = number_topics(map_data.labels)
    order = stream(0, "map page").permutation(len(map_data.xy))[:PREVIEW_POINTS]  # (shown,)
    colors = np.array(topics.colors)[topics.of_paper[order]]  # (shown,)
    spots = (8 + 984 * (pack_points(map_data.xy[order]) / _EXTENT)).round().astype(int)  # (shown, 2)
    low, high = int(spots[:, 1].min()), int(spots[:, 1].max())
    each = {color: spots[colors == color].tolist() for color in np.unique(colors).tolist()}
    paths = {color: "".join(f"M{x} {1000 - y}h0" for x, y in own) for color, own in each.items()}
    legend, gray = list(zip(topics.names, topics.colors, strict=True)), len(PALETTE)
    if len(legend) > gray + 1:
        legend = [*legend[:gray], (f"{len(legend) - gray:,} more", gray)]
    some = f" Shown: {len(order):,} of them." if len(order) < len(map_data.xy) else ""
    box = {"count": len(order), "top": 992 - high, "height": high - low + 16, "file": MAP_FILE}
    width = round(min(18.0, max(5.0, 400 / math.sqrt(len(order)))), 1)
    return {**box, "paths": paths, "width": width, "legend": legend, "summary": f"{_describe(map_data)}{some}"}


def number_topics(labels: Sequence[str]) -> Topics:
    """Number the topics of a paper map by size, largest first; those beyond the legend and papers without come last.

    >>> topics = number_topics(["a", "b", "b", ""])
    >>> topics.names, topics.colors, topics.of_paper.tolist()
    (['b', 'a', 'no topic'], [0, 1, 20], [1, 0, 0, 2])
    """
    lines = [one_line(label, 80) for label in labels]
    sizes = Counter(lines)
    unnamed = sizes.pop("", 0)
    ordered = sorted(sizes, key=lambda name: (-sizes[name], name))
    names, rest = ordered[:MAX_TOPICS], ordered[MAX_TOPICS:]
    place = {name: min(number, MAX_TOPICS) for number, name in enumerate(ordered)}
    shared = [f"{len(rest):,} smaller topics"] * bool(rest) + [NO_TOPIC] * bool(unnamed)
    place[""] = len(names) + len(shared) - 1
    colors = [*(min(number, len(PALETTE)) for number in range(len(names))), *[len(PALETTE)] * len(shared)]
    return Topics([*names, *shared], colors, np.array([place[line] for line in lines], np.uint8))


def pack_points(xy: NDArray[Any]) -> NDArray[np.uint16]:
    """Pack the points of a paper map into integers from 0 to 65535, (n, 2), on the same scale for both axes.

    >>> pack_points(np.array([[0.0, 0.0], [2.0, 1.0]])).tolist()
    [[0, 16384], [65535, 49151]]
    """
    wide = np.asarray(xy, np.float64)
    low, high = wide.min(axis=0), wide.max(axis=0)
    size = float((high - low).max()) or 1.0
    places = np.rint(_EXTENT * (0.5 + (wide - (low + high) / 2) / size)).clip(0, _EXTENT)
    return np.asarray(places, np.uint16)


def _base64(values: NDArray[Any], dtype: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=dtype).tobytes()).decode()


def _titles_as_json(titles: Sequence[str]) -> str:
    """Return all titles of a map as one JSON string, one per line, cut so that the page stays small."""
    for length in TITLE_LENGTHS:
        encoded = as_json("\n".join(one_line(title, length) for title in titles))
        if len(encoded.encode()) <= MAX_TITLE_BYTES:
            break
    return encoded
