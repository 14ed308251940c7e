"""Vectors: one row of numbers a paper, with the ids of the papers and the model that made them.

    vectors/matrix.npy                float16 or float32, one row a paper, memory-mapped
    vectors/id.utf8, id.offsets.npy   the ids, in the order of the rows
    vectors/manifest.json             the facts: model, revision, text recipe, dtype, dimension, rows, source, records

    >>> from tempfile import mkdtemp
    >>> with new_vectors(Path(mkdtemp()) / "v", model="demo", dtype="float32") as writer:
    ...     writer.append(["s2:1", "s2:2"], np.eye(2))
    ...     vectors = writer.finish()
    >>> vectors.rows(["s2:2", "s2:3"]).tolist(), vectors.take(["s2:2"]).tolist()
    ([1, -1], [[0.0, 1.0]])

Vectors of one byte or one bit a number are another kind of folder (`compressed.py`), which this one refuses to open.
Does not compute vectors or compare them; nothing here knows what a paper is beside its id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.arguments import as_texts
from citeweave.artefacts.integrity import check_files
from citeweave.artefacts.manifest import Manifest, read_manifest
from citeweave.artefacts.writing import ArtefactWriter, new_artefact
from citeweave.columns import MatrixWriter, TextColumn, TextWriter, open_matrix, release
from citeweave.errors import ArtefactError, EmptyResultError, UserError, choose
from citeweave.hashing import Keys
from citeweave.similarity.provenance import (
    DTYPES,
    MAX_DIMENSION,
    NOT_FINITE,
    TWICE,
    SeenKeys,
    id_keys,
    read_facts,
)
from citeweave.tally import Count, Tally

KIND, VERSION = "vectors", 1


class PaperRows:
    """Rows of numbers that are asked for by the ids of papers; what of a row becomes a vector is the subclass's."""

    def __init__(self, folder: Path, manifest: Manifest, rows: int) -> None:
        self.folder, self.manifest = folder, manifest
        self.ids = TextColumn(folder, "id")
        if len(self.ids) != rows:
            raise ArtefactError(f"{folder} is damaged: {len(self.ids)} ids for {rows} rows; make it again")
        self._lookup: tuple[Keys, NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The row of every id, -1 where it has none."""
        ids = as_texts(ids, "ids")
        keys, order = self._sorted_keys()
        wanted = id_keys(ids)  # (number of ids,)
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[at] == wanted, order[at], -1)

    def rows_of_all(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The same where every id must be there."""
        ids = as_texts(ids, "ids")
        rows = self.rows(ids)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            raise UserError(
                f"{self.folder} has no vector of {len(missing):,} of {len(rows):,} papers, such as "
                f"{ids[int(missing[0])]!r}; embed them too, or ask only for those that `rows` finds"
            )
        return rows

    def _sorted_keys(self) -> tuple[Keys, NDArray[np.int64]]:
        if self._lookup is None:
            # compiled code follows the offsets without looking
            if (self.ids.lengths() < 0).any():
                raise ArtefactError(f"{self.folder} is damaged: the offsets of its ids do not grow; make it again")
            keys = self.ids.keys()
            order = np.argsort(keys, kind="stable")
            release(self.ids)
            self._lookup = keys[order], order
        return self._lookup


class Vectors(PaperRows):
    """The vectors of a folder; `matrix` is memory-mapped, so that opening costs nothing."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.provenance, rows = read_facts(folder, manifest)
        super().__init__(folder, manifest, rows)
        self.matrix = open_matrix(folder / "matrix.npy", self.provenance.dtype, (rows, self.provenance.dimension))

    @classmethod
    def open(cls, folder: str | Path) -> Vectors:
        manifest = read_manifest(Path(folder), KIND, VERSION)
        check_files(Path(folder), manifest)
        return cls(Path(folder), manifest)

    def take(self, ids: Sequence[str]) -> NDArray[Any]:
        """The vectors of these papers, (number of ids, dimension), all of which must be there."""
        return np.asarray(self.matrix[self.rows_of_all(ids)])


class VectorsWriter:
    """Appends vectors to a new folder without holding more than a block of them. See `new_vectors`."""

    def __init__(self, folder: Path, artefact: ArtefactWriter, dtype: str, facts: dict[str, str]) -> None:
        self._folder, self._artefact, self._dtype, self.facts = folder, artefact, dtype, facts
        self._ids = TextWriter(artefact.folder, "id")
        self._matrix: MatrixWriter | None = None
        self._seen = SeenKeys()
        self._is_open = True
        self.dimension = 0
        self.tally = Tally({"vectors": Count()})

    def append(self, ids: Sequence[str], block: NDArray[Any]) -> None:
        """Vectors of shape (number of ids, dimension). An id that was there before, or numbers that are not finite
        (also once they are of the writer's type), cost the row, which is counted."""
        if block.ndim != 2 or len(block) != len(ids):
            raise ValueError(f"a block of shape {block.shape} for {len(ids)} ids")
        if not len(ids):
            return
        if self._matrix is None:
            self._begin(block.shape[1])
        if block.shape[1] != self.dimension:
            raise UserError(
                f"vectors of {block.shape[1]} numbers cannot join vectors of {self.dimension}; "
                "one folder holds the vectors of one model"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            rows = np.asarray(block).astype(self._dtype)
        finite = np.isfinite(rows).all(axis=1)
        self.tally.reject("vectors", NOT_FINITE, int((~finite).sum()))
        keep = np.flatnonzero(finite)
        fresh = keep[self._seen.add(id_keys([ids[row] for row in keep.tolist()]))]
        self.tally.reject("vectors", TWICE, len(keep) - len(fresh))
        self.tally.keep("vectors", len(fresh))
        self._ids.append([ids[row] for row in fresh.tolist()])
        assert self._matrix is not None
        self._matrix.append(rows[fresh])

    def append_column(self, ids: TextColumn, first: int, block: NDArray[Any]) -> None:
        """Vectors of the papers first, first + 1, ... of a column of ids that has none twice, as a corpus's.

        Bytes are copied: no string is made and no key remembered, so memory does not grow with the papers. Numbers that
        are not finite cost the row, as in `append`.
        """
        if self._matrix is None:
            self._begin(block.shape[1])
        assert self._matrix is not None
        with np.errstate(over="ignore", invalid="ignore"):
            rows = block.astype(self._dtype)
        places = np.arange(first, first + len(rows))
        if not np.isfinite(rows).all():
            finite = np.isfinite(rows).all(axis=1)
            rows, places = rows[finite], places[finite]
        self.tally.reject("vectors", NOT_FINITE, len(block) - len(rows))
        self.tally.keep("vectors", len(rows))
        self._ids.append_bytes(*ids.gather(places))
        self._matrix.append(rows)

    def finish(self) -> Vectors:
        """Close the files, write the manifest, give the folder its name."""
        count = self.tally.counts["vectors"]
        if self._matrix is None or not count.kept:
            reasons = "; ".join(f"{number:,}: {reason}" for reason, number in count.rejected.items())
            raise EmptyResultError(f"no vector was kept ({reasons or 'none was given'}); check the input")
        self.close()
        self._artefact.facts |= {
            **self.facts,
            "dtype": self._dtype,
            "dimension": self.dimension,
            "rows": count.kept,
            **self.tally.as_json(),
        }
        return Vectors(self._folder, self._artefact.finish())

    def close(self) -> None:
        """Close the files without making anything of them; once they are closed it does nothing."""
        if self._is_open:
            self._is_open = False
            self._ids.close()
            if self._matrix is not None:
                self._matrix.close()

    def _begin(self, dimension: int) -> None:
        if not 1 <= dimension <= MAX_DIMENSION:
            raise UserError(f"vectors of {dimension} numbers: a vector has 1 to {MAX_DIMENSION} of them")
        self.dimension = dimension
        self._matrix = MatrixWriter(self._artefact.folder / "matrix.npy", self._dtype, dimension)


@contextmanager
def new_vectors(
    folder: str | Path,
    *,
    model: str = "",
    revision: str = "",
    text_recipe: str = "",
    source: str = "",
    dtype: str = "float16",
    recipe: dict[str, Any] | None = None,
    overwrite: bool = False,
) -> Iterator[VectorsWriter]:
    """Write vectors into a new folder; the caller ends with `writer.finish()`, else no folder appears."""
    choose(dtype, DTYPES, "--dtype")
    facts = {"model": model, "revision": revision, "text_recipe": text_recipe, "source": source}
    with new_artefact(Path(folder), KIND, VERSION, recipe or dict(facts), overwrite=overwrite) as artefact:
        writer = VectorsWriter(Path(folder), artefact, dtype, facts)
        try:
            yield writer
        finally:
            writer.close()
