"""Vectors from a folder or a file, judged as they are.

>>> judged = GivenVectors(["p1", "p2"], np.eye(2), name="mine")
>>> judged.vectors(Texts.of_ids(["p2", "p9"], lacking="papers.jsonl")).state.tolist()
[2, 0]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.errors import EmptyResultError, UserError
from citeweave.evaluation.judged import ABSENT, EMPTY, PRESENT, PaperVectors
from citeweave.evaluation.tasks import DISTANCES, Pools
from citeweave.evaluation.texts import Texts
from citeweave.files import hash_file, hash_json
from citeweave.opening import Source
from citeweave.similarity.nearest import nearest
from citeweave.similarity.pair_scores import pair_scores
from citeweave.similarity.vector_files import read_json, reader_for
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

    def facts(self) -> dict[str, Any]:
        return {"name": self.name, "revision": self.revision, "dimension": int(self._matrix.shape[1]), **self._facts}

    def vectors(self, texts: Texts) -> PaperVectors:
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


def score_pairs(vectors: PaperVectors, pools: Pools, distance: str) -> NDArray[np.float64]:
    """Score every pair; NaN where a vector is absent, -inf where the candidate's is empty, NaN where the query's is."""
    scores = pair_scores(vectors.matrix[pools.queries], vectors.matrix, pools.offsets, pools.candidates, distance)
    query_state = np.repeat(vectors.state[pools.queries], np.diff(pools.offsets))  # (pairs,)
    candidate_state = vectors.state[pools.candidates]
    scores[candidate_state == EMPTY] = -np.inf
    scores[(candidate_state == ABSENT) | (query_state != PRESENT)] = np.nan
    return scores


def find_top(
    vectors: PaperVectors, queries: NDArray[np.int64], candidates: NDArray[np.int64], depth: int, distance: str
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The best candidates of every query among those that have vectors."""
    pool = candidates[vectors.present[candidates]]
    rows = np.full((len(queries), depth), -1, np.int64)
    scores = np.full((len(queries), depth), np.nan)
    asked = np.flatnonzero(vectors.present[queries])
    if len(pool) and len(asked):
        k = min(depth, len(pool))
        found = nearest(
            vectors.matrix[pool].astype(np.float32),
            vectors.matrix[queries[asked]].astype(np.float32),
            k,
            metric=distance,
        )
        rows[asked, :k] = pool[found.rows]
        scores[asked, :k] = found.scores
    return rows, scores


def open_vectors(folder: Path) -> GivenVectors:
    """The vectors of an artefact folder."""
    vectors = Vectors.open(folder)
    source = vectors.provenance
    return GivenVectors(
        list(vectors.ids),
        vectors.matrix,
        name=source.label if source.model else folder.name,
        revision=vectors.manifest.hash[:16],
        facts={"vectors": folder.name, "text_recipe": source.text_recipe, "dtype": source.dtype},
    )


def read_vectors(paths: Sequence[Path], *, precision: str = "") -> GivenVectors:
    """The vectors of files (JSON lines, .npy with ids, .parquet); of several vectors of one paper the last counts.

    Numbers keep the precision of the file, JSON's that of float64; `precision` rounds them, as SciRepEval does to
    float16 when it reads a file.
    """
    tally = Tally({"vectors": Count()})
    ids: list[str] = []
    rows: list[NDArray[Any]] = []
    empty: list[str] = []
    for path in paths:
        reader = reader_for(path)
        source = Source(path)
        records = read_json(source, tally, told_empty=empty.append) if reader is read_json else reader(source, tally)
        for record in records:
            if rows and len(record.vector) != len(rows[0]):
                raise UserError(
                    f"{path} holds a vector of {len(record.vector)} numbers for {record.id!r}, others have "
                    f"{len(rows[0])}; judge one model at a time"
                )
            ids.append(record.id)
            rows.append(record.vector)
    if not rows:
        raise EmptyResultError(f"{', '.join(map(str, paths))} holds no vectors; give a file with ids and vectors")
    matrix = np.stack(rows)
    matrix = matrix.astype(precision) if precision else matrix.astype(np.result_type(matrix.dtype, np.float16))
    finite = np.isfinite(matrix.astype(np.float64)).all(axis=1)  # (rows,)
    revision = hash_json([[hash_file(path) for path in paths], precision])[:16]
    facts = {
        "files": [path.name for path in paths],
        "vectors given": len(ids),
        "vectors given twice": len(ids) - len(set(ids)),
        "vectors not finite": int((~finite).sum()),
        "empty vectors": len(empty),
        **tally.as_json(),
    }
    kept = [paper for paper, good in zip(ids, finite.tolist(), strict=True) if good]
    return GivenVectors(
        kept, matrix[finite], name=paths[0].stem, revision=revision, empty=set(empty) - set(kept), facts=facts
    )
