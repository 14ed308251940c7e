"""What vectors of any kind share: where they come from, how ids are looked up, which of them were met before.

Used by `vectors.py`, one row a paper, and `sentence_vectors.py`, several.

Vectors: one row of numbers a paper, with the ids of the papers and the model that made them.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.arguments import as_texts
from citeweave.core.artifact import ArtifactWriter, Manifest, check_files, new_artifact, read_manifest
from citeweave.core.columns import (
    MatrixWriter,
    TextColumn,
    TextWriter,
    open_matrix,
    release,
)
from citeweave.core.errors import ArtifactError, EmptyResultError, UserError, choose
from citeweave.core.progress import Count, Tally
from citeweave.core.randomness import Keys, hash_texts

DTYPES = ("float16", "float32")
MAX_DIMENSION = 65_536
"""Longest vector; a longer one is no vector of a paper."""

TWICE = "id given before"
NOT_FINITE = "number that is not finite"


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where vectors come from: whether two of them may be compared."""

    model: str
    """Name of the model, empty where it is not known."""

    revision: str
    """Version of the model, empty where it is not known."""

    text_recipe: str
    """Hash of how a paper became the text that the model read, empty where it is not known."""

    dimension: int
    dtype: str
    source: str
    """What the vectors were made or read from."""

    def check_same(self, other: Provenance) -> None:
        """Refuse vectors of another model, dimension or text recipe.

        What one side does not know about its revision or its text recipe is no difference; an unknown model is.
        """
        differences = []
        if self.model != other.model:
            differences.append("the models")
        if self.dimension != other.dimension:
            differences.append(f"the dimensions ({self.dimension} and {other.dimension})")
        if self.revision and other.revision and self.revision != other.revision:
            differences.append("the revisions of the model")
        if self.text_recipe and other.text_recipe and self.text_recipe != other.text_recipe:
            differences.append(f"the text recipes ({self.text_recipe[:12]} and {other.text_recipe[:12]})")
        if differences:
            raise UserError(
                f"vectors of {self.label} and of {other.label} cannot be compared: {', '.join(differences)} differ; "
                "embed both with the same model and text"
            )

    @property
    def label(self) -> str:
        """The model and its revision, for a message."""
        if not self.model:
            return "an unnamed model"
        return f"{self.model}@{self.revision}" if self.revision else self.model


class SeenKeys:
    """The keys met so far, 8 bytes each: sorted runs, of which the last two become one when they are alike in size."""

    def __init__(self) -> None:
        self._runs: list[Keys] = []

    def add(self, keys: Keys) -> NDArray[np.bool_]:
        """Which of the keys were not met before; of equal ones the first."""
        fresh = np.zeros(len(keys), bool)
        fresh[np.unique(keys, return_index=True)[1]] = True
        for run in self._runs:
            at = np.minimum(np.searchsorted(run, keys), len(run) - 1)
            fresh &= run[at] != keys
        if fresh.any():
            self._runs.append(np.sort(keys[fresh]))
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            last = self._runs.pop()
            self._runs[-1] = np.sort(np.concatenate([self._runs[-1], last]), kind="stable")
        return fresh


def id_keys(ids: Sequence[str]) -> Keys:
    """Hashes of ids, as of those in a column."""
    # lone surrogates are replaced as they are when ids are written
    return hash_texts([text if text.isascii() else text.encode("utf-8", "replace").decode() for text in ids])


def read_facts(folder: Path, manifest: Manifest) -> tuple[Provenance, int]:
    """Provenance and number of rows, as a manifest tells them."""
    facts = manifest.facts if isinstance(manifest.facts, dict) else {}
    texts = [facts.get(name) for name in ("model", "revision", "text_recipe", "dtype", "source")]
    dimension, rows = facts.get("dimension"), facts.get("rows")
    known = all(isinstance(text, str) for text in texts) and facts.get("dtype") in DTYPES
    if not known or type(dimension) is not int or type(rows) is not int or dimension < 1 or rows < 1:
        raise ArtifactError(f"{folder}/manifest.json does not describe vectors: it is damaged; make them again")
    model, revision, text_recipe, dtype, source = map(str, texts)
    return Provenance(model, revision, text_recipe, dimension, dtype, source), rows


# Vectors: one row of numbers a paper, with the ids of the papers and the model that made them.

KIND, VERSION = "vectors", 1


class PaperRows:
    """Rows of numbers that are asked for by the ids of papers; what of a row becomes a vector is the subclass's."""

    def __init__(self, folder: Path, manifest: Manifest, rows: int) -> None:
        self.folder, self.manifest = folder, manifest
        self.ids = TextColumn(folder, "id")
        if len(self.ids) != rows:
            raise ArtifactError(f"{folder} is damaged: {len(self.ids)} ids for {rows} rows; make it again")
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
                raise ArtifactError(f"{self.folder} is damaged: the offsets of its ids do not grow; make it again")
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

    def __init__(self, folder: Path, artifact: ArtifactWriter, dtype: str, facts: dict[str, str]) -> None:
        self._folder, self._artifact, self._dtype, self.facts = folder, artifact, dtype, facts
        self._ids = TextWriter(artifact.folder, "id")
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
        self._artifact.facts |= {
            **self.facts,
            "dtype": self._dtype,
            "dimension": self.dimension,
            "rows": count.kept,
            **self.tally.as_json(),
        }
        return Vectors(self._folder, self._artifact.finish())

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
        self._matrix = MatrixWriter(self._artifact.folder / "matrix.npy", self._dtype, dimension)


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
    with new_artifact(Path(folder), KIND, VERSION, recipe or dict(facts), overwrite=overwrite) as artifact:
        writer = VectorsWriter(Path(folder), artifact, dtype, facts)
        try:
            yield writer
        finally:
            writer.close()
