"""Vectors from a folder or a file, judged as they are.

>>> judged = GivenVectors(["p1", "p2"], np.eye(2), name="mine")
>>> judged.vectors(Texts.of_ids(["p2", "p9"], lacking="papers.jsonl")).state.tolist()
[2, 0]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import EmptyResultError, UserError
from citeweave.evaluation.judged import ABSENT, EMPTY, PRESENT, PaperVectors
from citeweave.evaluation.judging.by_vectors import find_top, score_pairs
from citeweave.evaluation.tasks import DISTANCES, Pools
from citeweave.evaluation.texts import Texts
from citeweave.files import hash_file, hash_json
from citeweave.opening import Source
from citeweave.similarity.vector_files import Record, read_json, reader_for
from citeweave.similarity.vectors import Vectors
from citeweave.tally import Count, Tally

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
        self._last: tuple[Texts, PaperVectors] | None = None  # tasks of a suite mostly share their texts

    def facts(self) -> dict[str, Any]:
        return {"name": self.name, "revision": self.revision, "dimension": int(self._matrix.shape[1]), **self._facts}

    def vectors(self, texts: Texts) -> PaperVectors:
        if self._last is None or self._last[0] is not texts:
            self._last = texts, self._look_up(texts)
        return self._last[1]

    def _look_up(self, texts: Texts) -> PaperVectors:
        rows = np.array([self._rows.get(paper, -1) for paper in texts.ids], np.int64)
        state = np.where(rows >= 0, PRESENT, ABSENT).astype(np.uint8)
        if self._empty:
            state[[at for at, paper in enumerate(texts.ids) if paper in self._empty]] = EMPTY
        matrix = np.zeros((len(rows), self._matrix.shape[1]), self._matrix.dtype)  # (rows, dimension)
        matrix[state == PRESENT] = self._matrix[rows[state == PRESENT]]
        return PaperVectors(matrix, state)

    def scores(self, texts: Texts, pools: Pools, distance: str) -> NDArray[np.float64]:
        return score_pairs(self.vectors(texts), pools, distance)

    def top(
        self, texts: Texts, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return find_top(self.vectors(texts), queries, candidates, depth, distance)


def open_vectors(folder: Path, *, precision: str = "") -> GivenVectors:
    """The vectors of an artefact folder."""
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
