"""Systems from precomputed vectors and scores: vector files, TREC runs, MDCR's and CSFCube's score files.

    q1 Q0 p7 1 0.93 mine                      TREC run
    {"q1_p7": 0.93, ...}                      MDCR
    {"q1": [["p7", 0.12], ...], ...}          CSFCube and ASPIRE: candidates with their distances, best first

Of a pair with two scores the last one counts; NaN is no score. Both cases are counted.

>>> system = VectorSystem(["p1", "p2"], np.eye(2), name="mine")
>>> system.vectors(TaskTexts.of_ids(["p2", "p9"], lacking="papers.jsonl")).state.tolist()
[2, 0]
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import EmptyResultError, InputError, UserError
from citeweave.core.files import hash_file, hash_json, open_input, read_input
from citeweave.core.inputs import Source
from citeweave.core.progress import Count, Tally
from citeweave.evaluation.options import DISTANCES
from citeweave.evaluation.suites.beir import PREFIX
from citeweave.evaluation.systems import ABSENT, EMPTY, PRESENT, NoAnswerError, PaperVectors, find_top, score_pairs
from citeweave.evaluation.tasks import Pools, TaskTexts
from citeweave.vectors.formats import Record, read_json, reader_for
from citeweave.vectors.vectors import Vectors

FACETS = ("background", "method", "result")
"""Facets of CSFCube, which has one file of scores for each."""


class VectorSystem:
    """A system of precomputed vectors, one per paper id."""

    distances = DISTANCES

    def __init__(
        self,
        ids: Sequence[str],
        matrix: NDArray[Any],
        *,
        name: str,
        revision: str = "",
        empty: Iterable[str] = (),
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self.name, self.revision, self._metadata, self._matrix = name, revision, metadata or {}, matrix
        self._rows = {paper: row for row, paper in enumerate(ids)}  # the last of equal ids
        self._empty = frozenset(empty)
        self._last: tuple[TaskTexts, PaperVectors] | None = None  # most tasks of a suite share their texts

    def metadata(self) -> dict[str, Any]:
        return {"name": self.name, "revision": self.revision, "dimension": int(self._matrix.shape[1]), **self._metadata}

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        if self._last is None or self._last[0] is not texts:
            self._last = texts, self._look_up(texts)
        return self._last[1]

    def _look_up(self, texts: TaskTexts) -> PaperVectors:
        """Look up the precomputed vectors of a task's papers by id."""
        rows = np.array([self._rows.get(paper, -1) for paper in texts.ids], np.int64)
        state = np.where(rows >= 0, PRESENT, ABSENT).astype(np.uint8)
        if self._empty:
            state[[at for at, paper in enumerate(texts.ids) if paper in self._empty]] = EMPTY
        matrix = np.zeros((len(rows), self._matrix.shape[1]), self._matrix.dtype)  # (rows, dimension)
        matrix[state == PRESENT] = self._matrix[rows[state == PRESENT]]
        return PaperVectors(matrix, state)

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> NDArray[np.float64]:
        return score_pairs(self.vectors(texts), pools, distance)

    def top(
        self, texts: TaskTexts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return find_top(self.vectors(texts), queries, candidates, depth, distance)


def open_vectors(folder: Path, *, precision: str = "") -> VectorSystem:
    """Open the precomputed vectors in a folder written by citeweave as a system."""
    vectors = Vectors.open(folder)
    source = vectors.provenance
    matrix, finite = _round_vectors(vectors.matrix, precision)
    ids = [paper for paper, good in zip(vectors.ids, finite.tolist(), strict=True) if good]
    return VectorSystem(
        ids,
        matrix if finite.all() else matrix[finite],
        name=source.label if source.model else folder.name,
        revision=hash_json([vectors.manifest.hash, precision])[:16] if precision else vectors.manifest.hash[:16],
        metadata={
            "vectors": folder.name,
            "text_recipe": source.text_recipe,
            "dtype": precision or source.dtype,
            "vectors not finite": int((~finite).sum()),
        },
    )


def read_vectors(paths: Sequence[Path], *, name: str, precision: str = "") -> VectorSystem:
    """Read precomputed vectors (JSON lines, .npy with ids, .parquet) as a system; a paper's last vector counts.

    Numbers keep the precision of the file, JSON's that of float64; `precision` rounds them, as SciRepEval does to
    float16 when it reads a file. A vector with a number that is not finite counts as missing.
    """
    tally = Tally({"vectors": Count()})
    place: dict[str, int] = {}  # paper -> row of its last vector, -1 where that is an empty list
    rows: list[NDArray[Any]] = []
    twice = 0

    def on_empty(paper: str) -> None:
        place[paper] = -1

    for path in paths:
        for record in _records(path, tally, on_empty):
            if rows and len(record.vector) != len(rows[0]):
                raise UserError(
                    f"{path} holds a vector of {len(record.vector)} numbers for {record.id!r}, others have "
                    f"{len(rows[0])}; evaluate one model at a time"
                )
            twice += record.id in place
            place[record.id] = len(rows)
            rows.append(record.vector)
    if not rows:
        raise EmptyResultError(f"{', '.join(map(str, paths))} holds no vectors; give a file with ids and vectors")
    stacked = np.stack(rows)
    matrix, finite = _round_vectors(stacked, precision or np.result_type(stacked.dtype, np.float16).name)
    usable = {paper: row for paper, row in place.items() if row >= 0 and finite[row]}
    if not usable:
        raise UserError(f"no vector of {', '.join(map(str, paths))} is finite in {matrix.dtype}; check the file")
    empty = [paper for paper, row in place.items() if row < 0]
    tally.keep("vectors", len(rows))
    return VectorSystem(
        list(usable),
        matrix[list(usable.values())],
        name=name,
        revision=hash_json([[hash_file(path) for path in paths], precision])[:16],
        empty=empty,
        metadata={
            "files": [path.name for path in paths],
            "dtype": matrix.dtype.name,
            "vectors given": len(rows),
            "vectors given twice": twice,
            "vectors not finite": int((~finite).sum()),
            "empty vectors": len(empty),
            **tally.as_json(),
        },
    )


def _records(path: Path, tally: Tally, on_empty: Callable[[str], None]) -> Iterator[Record]:
    """Read the vectors of one file; `on_empty` gets the ids of papers with an empty list, which only JSON can have."""
    reader, source = reader_for(path), Source(path)
    return read_json(source, tally, on_empty=on_empty) if reader is read_json else reader(source, tally)


def _round_vectors(matrix: NDArray[Any], precision: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Round vectors to a precision and return which rows are finite then; without a precision nothing is checked."""
    if not precision:
        return matrix, np.ones(len(matrix), bool)
    with np.errstate(over="ignore"):
        rounded = matrix.astype(precision)
    return rounded, np.isfinite(rounded).all(axis=1)


class PrecomputedScores:
    """A system of precomputed scores; a query is looked up by its name in the task (`8781666_method`), then by its id."""

    distances: tuple[str, ...] = ()

    def __init__(
        self,
        scores: Mapping[str, Mapping[str, float]],
        *,
        name: str,
        revision: str = "",
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._scores, self.name, self.revision, self._metadata = scores, name, revision, metadata or {}

    def metadata(self) -> dict[str, Any]:
        return {"name": self.name, "revision": self.revision, "queries given": len(self._scores), **self._metadata}

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        raise NoAnswerError(f"{self.name} holds scores, not vectors, so it can rank but not classify or regress")

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> NDArray[np.float64]:
        scores = np.full(len(pools.candidates), np.nan)
        for number, row in enumerate(pools.queries.tolist()):
            by_paper = self._scores.get(pools.names[number], self._scores.get(texts.ids[row], {}))
            for at in range(pools.offsets[number], pools.offsets[number + 1]):
                scores[at] = by_paper.get(texts.ids[pools.candidates[at]], np.nan)
        return scores

    def top(
        self, texts: TaskTexts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        rows = np.full((len(queries), depth), -1, np.int64)
        scores = np.full((len(queries), depth), np.nan)
        pool = frozenset(candidates.tolist())
        for number, query in enumerate(queries.tolist()):
            query_id = texts.ids[query]
            by_paper = self._scores.get(query_id, self._scores.get(query_id.removeprefix(PREFIX), {}))
            scored = [pair for pair in by_paper.items() if pair[1] == pair[1]]  # NaN is no score
            best = sorted(scored, key=lambda pair: (pair[1], pair[0]), reverse=True)
            hits = [(row, score) for (paper, score) in best if (row := int(texts.rows([paper])[0])) in pool][:depth]
            rows[number, : len(hits)] = [row for row, _ in hits]
            scores[number, : len(hits)] = [score for _, score in hits]
        return rows, scores


def read_scores(paths: Sequence[Path], *, name: str) -> PrecomputedScores:
    """Read precomputed scores from files as a system; a CSFCube run has three files, one per facet."""
    scores: dict[str, dict[str, float]] = {}
    total = 0
    for path in paths:
        for query, candidate, score in _read_score_file(path):
            scores.setdefault(query, {})[candidate] = score
            total += 1
    pairs = [score for each in scores.values() for score in each.values()]
    metadata = {
        "files": [path.name for path in paths],
        "scores given": total,
        "scores given twice": total - len(pairs),
        "scores that are no number": sum(score != score for score in pairs),
    }
    return PrecomputedScores(
        scores, name=name, revision=hash_json([hash_file(path) for path in paths])[:16], metadata=metadata
    )


def looks_like_scores(path: Path) -> bool:
    """Tell whether a file holds precomputed scores rather than vectors, by its extension and first character."""
    if path.suffix in (".run", ".trec"):
        return True
    if path.suffix != ".json":
        return False
    with open_input(path) as file:
        return file.read(1) == b"{"


def _read_score_file(path: Path) -> list[tuple[str, str, float]]:
    """Read (query, candidate, score) from a TREC run or a JSON file of scores."""
    try:
        scores = _read_run(path) if path.suffix != ".json" else _read_json_scores(path)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{path} holds no scores that citeweave can read ({error}); it reads TREC runs, MDCR's and CSFCube's JSON; "
            "name a file of vectors, one JSON object per line, .jsonl"
        ) from None
    if not scores:
        raise InputError(f"{path} holds no scores: it is empty; write it again")
    return scores


def _read_run(path: Path) -> list[tuple[str, str, float]]:
    """Read (query, candidate, score) from a TREC run."""
    scores = []
    with io.TextIOWrapper(open_input(path), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            words = line.split()
            if len(words) != 6:
                raise ValueError(f"line {number} has {len(words)} words instead of the 6 of a TREC run")
            scores.append((words[0], words[2], float(words[4])))
    return scores


def _read_json_scores(path: Path) -> list[tuple[str, str, float]]:
    """Read (query, candidate, score) from MDCR's or CSFCube's JSON; CSFCube's ranks become scores."""
    value = json.loads(read_input(path))
    if not isinstance(value, dict) or not value:
        raise ValueError("it is not a JSON object with entries")
    if all(isinstance(entry, list) for entry in value.values()):
        facet = next((f"_{name}" for name in FACETS if f"-{name}-ranked" in path.name), "")
        if invalid := [pair for entry in value.values() for pair in entry if not isinstance(pair, list) or not pair]:
            raise ValueError(f"a list holds {str(invalid[0])[:60]!r} instead of a candidate with its distance")
        # lists are sorted already: the rank keeps their order where distances are equal
        return [
            (query + facet, str(pair[0]), float(-rank))
            for query, entry in value.items()
            for rank, pair in enumerate(entry)
        ]
    if invalid := [name for name in value if "_" not in name]:
        raise ValueError(f"{invalid[0][:60]!r} is not a pair 'query_candidate'")
    pairs = ((*name.split("_", 1), float(score)) for name, score in value.items())
    return [(query, candidate, score) for query, candidate, score in pairs]
