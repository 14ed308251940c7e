"""Vectors from a folder or a file, judged as they are.

>>> judged = GivenVectors(["p1", "p2"], np.eye(2), name="mine")
>>> judged.vectors(TaskTexts.of_ids(["p2", "p9"], lacking="papers.jsonl")).state.tolist()
[2, 0]

Scores that somebody else computed: a TREC run, MDCR's score file, CSFCube's ranked pools.

    q1 Q0 p7 1 0.93 mine                      TREC run
    {"q1_p7": 0.93, ...}                      MDCR
    {"q1": [["p7", 0.12], ...], ...}          CSFCube and ASPIRE: candidates with their distances, best first

Of a pair that is given twice the last score counts; NaN is no answer. Both are counted.
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
from citeweave.evaluation.suites.beir import PREFIX
from citeweave.evaluation.systems import ABSENT, EMPTY, PRESENT, NoAnswerError, PaperVectors, find_top, score_pairs
from citeweave.evaluation.tasks import DISTANCES, Pools, TaskTexts
from citeweave.vectors.formats import Record, read_json, reader_for
from citeweave.vectors.vectors import Vectors

PRECISIONS = ("float16", "float32", "float64")


class GivenVectors:
    """Single vectors by paper id."""

    distances = DISTANCES

    def __init__(
        self,
        ids: Sequence[str],
        matrix: NDArray[Any],
        *,
        name: str,
        revision: str = "",
        empty: Iterable[str] = (),
        facts: dict[str, Any] | None = None,
    ) -> None:
        self.name, self.revision, self._facts, self._matrix = name, revision, facts or {}, matrix
        self._rows = {paper: row for row, paper in enumerate(ids)}  # of equal ids the last
        self._empty = frozenset(empty)
        self._last: tuple[TaskTexts, PaperVectors] | None = None  # tasks of a suite mostly share their texts

    def facts(self) -> dict[str, Any]:
        return {"name": self.name, "revision": self.revision, "dimension": int(self._matrix.shape[1]), **self._facts}

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        if self._last is None or self._last[0] is not texts:
            self._last = texts, self._look_up(texts)
        return self._last[1]

    def _look_up(self, texts: TaskTexts) -> PaperVectors:
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


def open_vectors(folder: Path, *, precision: str = "") -> GivenVectors:
    """The vectors of an artifact folder."""
    vectors = Vectors.open(folder)
    source = vectors.provenance
    matrix, finite = _rounded(vectors.matrix, precision)
    ids = [paper for paper, good in zip(vectors.ids, finite.tolist(), strict=True) if good]
    return GivenVectors(
        ids,
        matrix if finite.all() else matrix[finite],
        name=source.label if source.model else folder.name,
        revision=hash_json([vectors.manifest.hash, precision])[:16] if precision else vectors.manifest.hash[:16],
        facts={
            "vectors": folder.name,
            "text_recipe": source.text_recipe,
            "dtype": precision or source.dtype,
            "vectors not finite": int((~finite).sum()),
        },
    )


def read_vectors(paths: Sequence[Path], *, name: str, precision: str = "") -> GivenVectors:
    """The vectors of files (JSON lines, .npy with ids, .parquet); of several vectors of one paper the last counts.

    Numbers keep the precision of the file, JSON's that of float64; `precision` rounds them, as SciRepEval does to
    float16 when it reads a file. A vector with a number that is not finite is none.
    """
    tally = Tally({"vectors": Count()})
    place: dict[str, int] = {}  # of a paper's last vector among the rows, -1 where that is an empty list
    rows: list[NDArray[Any]] = []
    twice = 0

    def told_empty(paper: str) -> None:
        place[paper] = -1

    for path in paths:
        for record in _records(path, tally, told_empty):
            if rows and len(record.vector) != len(rows[0]):
                raise UserError(
                    f"{path} holds a vector of {len(record.vector)} numbers for {record.id!r}, others have "
                    f"{len(rows[0])}; judge one model at a time"
                )
            twice += record.id in place
            place[record.id] = len(rows)
            rows.append(record.vector)
    if not rows:
        raise EmptyResultError(f"{', '.join(map(str, paths))} holds no vectors; give a file with ids and vectors")
    stacked = np.stack(rows)
    matrix, finite = _rounded(stacked, precision or np.result_type(stacked.dtype, np.float16).name)
    kept = {paper: row for paper, row in place.items() if row >= 0 and finite[row]}
    if not kept:
        raise UserError(f"no vector of {', '.join(map(str, paths))} is finite in {matrix.dtype}; check the file")
    empty = [paper for paper, row in place.items() if row < 0]
    tally.keep("vectors", len(rows))
    return GivenVectors(
        list(kept),
        matrix[list(kept.values())],
        name=name,
        revision=hash_json([[hash_file(path) for path in paths], precision])[:16],
        empty=empty,
        facts={
            "files": [path.name for path in paths],
            "dtype": matrix.dtype.name,
            "vectors given": len(rows),
            "vectors given twice": twice,
            "vectors not finite": int((~finite).sum()),
            "empty vectors": len(empty),
            **tally.as_json(),
        },
    )


def _records(path: Path, tally: Tally, told_empty: Callable[[str], None]) -> Iterator[Record]:
    reader, source = reader_for(path), Source(path)
    return read_json(source, tally, told_empty=told_empty) if reader is read_json else reader(source, tally)


def _rounded(matrix: NDArray[Any], precision: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The matrix in this precision and which of its rows are finite; as it is, all of them, where none is asked for."""
    if not precision:
        return matrix, np.ones(len(matrix), bool)
    with np.errstate(over="ignore"):
        rounded = matrix.astype(precision)
    return rounded, np.isfinite(rounded).all(axis=1)


# Scores that somebody else computed: a TREC run, MDCR's score file, CSFCube's ranked pools.

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

    def vectors(self, texts: TaskTexts) -> PaperVectors:
        raise NoAnswerError(f"{self.name} holds scores, not vectors, so it can rank but not classify or regress")

    def scores(self, texts: TaskTexts, pools: Pools, distance: str) -> NDArray[np.float64]:
        found = np.full(len(pools.candidates), np.nan)
        for number, row in enumerate(pools.queries.tolist()):
            given = self._scores.get(pools.names[number], self._scores.get(texts.ids[row], {}))
            for at in range(pools.offsets[number], pools.offsets[number + 1]):
                found[at] = given.get(texts.ids[pools.candidates[at]], np.nan)
        return found

    def top(
        self, texts: TaskTexts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
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
