"""Paper vectors on disk: one row of numbers per paper, the papers' ids, and which model computed them.

    vectors/matrix.npy                float16 or float32, one row per paper, memory-mapped
    vectors/id.utf8, id.offsets.npy   the ids, in the order of the rows
    vectors/manifest.json             the metadata: model, revision, text recipe, dtype, dimension, rows, source, records

    >>> from tempfile import mkdtemp
    >>> with new_vectors(Path(mkdtemp()) / "v", model="demo", dtype="float32") as writer:
    ...     writer.append(["s2:1", "s2:2"], np.eye(2))
    ...     vectors = writer.finish()
    >>> vectors.rows(["s2:2", "s2:3"]).tolist(), vectors.take(["s2:2"]).tolist()
    ([1, -1], [[0.0, 1.0]])
    >>> vectors["s2:2"].tolist(), vectors[0].tolist(), "s2:3" in vectors, len(vectors)
    ([0.0, 1.0], [1.0, 0.0], False, 2)

Does not embed or compare papers. `Vectors.open` refuses folders of int8 or binary vectors (`compressed.py`) and of
sentence vectors (`sentence_vectors.py`), which share the provenance and the lookup of ids with this file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from citeweave.core.arguments import as_texts
from citeweave.core.artifact import ArtifactWriter, Manifest, check_files, new_artifact, read_manifest
from citeweave.core.columns import KeyLookup, MatrixWriter, NumberWriter, TextColumn, TextWriter, open_matrix, release
from citeweave.core.errors import ArtifactError, EmptyResultError, UserError, choose
from citeweave.core.progress import Count, Tally

if TYPE_CHECKING:
    from citeweave.core.hash_keys import Keys

DTYPES = ("float16", "float32")
KIND, VERSION = "vectors", 1
MAX_DIMENSION = 65_536
"""The longest vector that is accepted."""

DUPLICATE_ID = "id given before"
NOT_FINITE = "number that is not finite"


def unit_rows(vectors: NDArray[Any]) -> NDArray[Any]:
    """Scale rows to length 1, (rows, dimension), in their own precision; rows of zeros stay.

    >>> unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)  # (rows, 1)
    return np.asarray(vectors / np.maximum(lengths, 1e-30), vectors.dtype)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Which model computed vectors, from which text: tells whether two sets of vectors may be compared."""

    model: str
    """Name of the model, empty where it is not known."""

    revision: str
    """Version of the model, empty where it is not known."""

    text_recipe: str
    """Hash of the rule that turns a paper into the model's input text, empty where it is not known."""

    dimension: int
    dtype: str
    source: str
    """What the vectors were computed or imported from."""

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
        """Return `model@revision` for error messages about vectors."""
        if not self.model:
            return "an unnamed model"
        return f"{self.model}@{self.revision}" if self.revision else self.model


class SeenKeys:
    """Hashes of the paper ids whose vectors are written so far, 8 bytes each, to detect duplicate ids.

    Sorted runs; the last two are merged when they have about the same size.
    """

    def __init__(self) -> None:
        self._runs: list[Keys] = []

    def add(self, keys: Keys) -> NDArray[np.bool_]:
        """Return which id hashes are new among the vectors, and remember them; of equal ones only the first is new."""
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
    """Hash paper ids, with the same result as `TextColumn.keys` for ids on disk."""
    # lone surrogates are replaced as they are when ids are written
    from citeweave.core.hash_keys import hash_texts  # needs numba, which training from a bundle does not

    return hash_texts([text if text.isascii() else text.encode("utf-8", "replace").decode() for text in ids])


def read_provenance(folder: Path, manifest: Manifest) -> tuple[Provenance, int]:
    """Read the provenance and the number of rows from the manifest of a vectors folder."""
    metadata = manifest.facts if isinstance(manifest.facts, dict) else {}
    texts = [metadata.get(name) for name in ("model", "revision", "text_recipe", "dtype", "source")]
    dimension, rows = metadata.get("dimension"), metadata.get("rows")
    is_valid = all(isinstance(text, str) for text in texts) and metadata.get("dtype") in DTYPES
    if not is_valid or type(dimension) is not int or type(rows) is not int or dimension < 1 or rows < 1:
        raise ArtifactError(f"{folder}/manifest.json does not describe vectors: it is damaged; make them again")
    model, revision, text_recipe, dtype, source = map(str, texts)
    return Provenance(model, revision, text_recipe, dimension, dtype, source), rows


class RowsByPaper:
    """A vectors folder whose rows are looked up by paper id; subclasses turn a row into a vector."""

    kind_and_version: ClassVar[tuple[str, int]]

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open a folder of vectors after a check of its files."""
        manifest = read_manifest(Path(folder), *cls.kind_and_version)
        check_files(Path(folder), manifest)
        return cls(Path(folder), manifest)

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.ids, rows = TextColumn(folder, "id"), manifest.facts["rows"]  # `read_provenance` has checked it
        if len(self.ids) != rows:
            raise ArtifactError(f"{folder} is damaged: {len(self.ids)} ids for {rows} rows; make it again")
        self._lookup: KeyLookup | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and int(self.rows([id])[0]) >= 0

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of each paper id, -1 where the folder has no vector of that paper."""
        return self._keys().find(id_keys(as_texts(ids, "ids")))

    def rows_of_all(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of each paper id in the vectors folder; a paper without vector is an error."""
        ids = as_texts(ids, "ids")
        rows = self.rows(ids)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            raise UserError(
                f"{self.folder} has no vector of {len(missing):,} of {len(rows):,} papers, such as "
                f"{ids[int(missing[0])]!r}; embed them too, or request only papers for which `rows` is not -1"
            )
        return rows

    def _keys(self) -> KeyLookup:
        if self._lookup is None:
            # compiled code reads at these offsets without checking them
            if (self.ids.lengths() < 0).any():
                raise ArtifactError(
                    f"{self.folder} is damaged: the offsets of its ids are not increasing; make it again"
                )
            self._lookup = KeyLookup(self.ids.keys())
            release(self.ids)
        return self._lookup


class Vectors(RowsByPaper):
    """Paper vectors: one row of numbers per paper in a folder, found by paper id; `embed_papers` makes them.

        vectors = Vectors.open("vectors/")
        vectors["doi:10.1/x"], vectors.take(["a", "b"]), "a" in vectors, vectors.matrix.shape

    `matrix` is memory-mapped, so opening is cheap.
    """

    kind_and_version = KIND, VERSION

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.provenance, rows = read_provenance(folder, manifest)
        super().__init__(folder, manifest)
        self.matrix = open_matrix(folder / "matrix.npy", self.provenance.dtype, (rows, self.provenance.dimension))

    def __repr__(self) -> str:
        size = f"{len(self):,} papers, dimension {self.provenance.dimension}"
        return f"Vectors({str(self.folder)!r}: {size}, by {self.provenance.label})"

    def __getitem__(self, key: int | str | slice) -> NDArray[Any]:
        """Return the vector of a paper by its id or row, (dimension,), or those of a slice of rows, (rows, dimension)."""
        return np.asarray(self.matrix[self.rows_of_all([key])[0] if isinstance(key, str) else key])

    def take(self, ids: Sequence[str]) -> NDArray[Any]:
        """Return the vectors of these papers, (ids, dimension); a paper without vector is an error."""
        return np.asarray(self.matrix[self.rows_of_all(ids)])


class FolderWriter:
    """Writes ids and vectors block by block to a new folder; subclasses say what a block holds."""

    kind_and_version: ClassVar[tuple[str, int]]
    counted: ClassVar[str]
    """What the tally counts: vectors, or papers."""

    vector: ClassVar[str] = "vector"

    def __init__(self, folder: Path, artifact: ArtifactWriter, dtype: str, metadata: dict[str, str]) -> None:
        self._folder, self._artifact, self._dtype, self.metadata = folder, artifact, dtype, metadata
        self._ids = TextWriter(artifact.folder, "id")
        self._open: list[TextWriter | NumberWriter | MatrixWriter] = [self._ids]
        self._matrix: MatrixWriter | None = None
        self._seen = SeenKeys()
        self.rows = self.dimension = 0
        self.tally = Tally({self.counted: Count()})

    @classmethod
    @contextmanager
    def new(
        cls,
        folder: str | Path,
        *,
        model: str = "",
        revision: str = "",
        text_recipe: str = "",
        source: str = "",
        dtype: str = "float16",
        recipe: dict[str, Any] | None = None,
        overwrite: bool = False,
    ) -> Iterator[Self]:
        """Write vectors to a new folder, which appears once the caller has called `writer.finish()`."""
        choose(dtype, DTYPES, "--dtype")
        metadata = {"model": model, "revision": revision, "text_recipe": text_recipe, "source": source}
        recipe = recipe or dict(metadata)
        with new_artifact(Path(folder), *cls.kind_and_version, recipe, overwrite=overwrite) as artifact:
            writer = cls(Path(folder), artifact, dtype, metadata)
            try:
                yield writer
            finally:
                writer.close()

    def _publish(self) -> Manifest:
        """Close the files, write the manifest and publish the folder."""
        if not self.rows:
            rejected = self.tally.counts[self.counted].rejected.items()
            reasons = "; ".join(f"{number:,}: {reason}" for reason, number in rejected) or "there was none"
            raise EmptyResultError(f"no {self.vector} was kept ({reasons}); check the input")
        self.close()
        metadata = {**self.metadata, "dtype": self._dtype, "dimension": self.dimension, "rows": self.rows}
        self._artifact.facts |= {**metadata, **self.tally.as_json()}
        return self._artifact.finish()

    def close(self) -> None:
        """Close the files without publishing the folder; does nothing the second time."""
        while self._open:
            self._open.pop().close()

    def _begin(self, dimension: int) -> None:
        """Fix the dimension with the first block."""
        if self._matrix is None:
            if not 1 <= dimension <= MAX_DIMENSION:
                raise UserError(f"vectors of {dimension} numbers: a vector has 1 to {MAX_DIMENSION} of them")
            self.dimension = dimension
            self._matrix = MatrixWriter(self._artifact.folder / "matrix.npy", self._dtype, dimension)
            self._open.append(self._matrix)

    def _append_rows(self, rows: NDArray[Any]) -> None:
        assert self._matrix is not None
        self._matrix.append(rows)
        self.rows += len(rows)


class VectorsWriter(FolderWriter):
    """Writes vectors block by block to a new folder; see `new_vectors`."""

    kind_and_version, counted = (KIND, VERSION), "vectors"

    def append(self, ids: Sequence[str], block: NDArray[Any]) -> None:
        """Append the vectors (ids, dimension) of these papers to the vectors folder.

        A row with a repeated id, or with numbers that are not finite after conversion to the writer's dtype, is left
        out and counted.
        """
        if block.ndim != 2 or len(block) != len(ids):
            raise ValueError(f"a block of shape {block.shape} for {len(ids)} ids")
        if not len(ids):
            return
        self._begin(block.shape[1])
        if block.shape[1] != self.dimension:
            raise UserError(
                f"vectors of {block.shape[1]} numbers cannot join vectors of {self.dimension}; "
                "one folder holds the vectors of one model"
            )
        rows, finite = self._converted(block)
        places = np.flatnonzero(finite)
        fresh = places[self._seen.add(id_keys([ids[row] for row in places.tolist()]))]
        self.tally.reject("vectors", DUPLICATE_ID, len(places) - len(fresh))
        self._ids.append([ids[row] for row in fresh.tolist()])
        self._keep(rows[fresh])

    def append_column(self, ids: TextColumn, first: int, block: NDArray[Any]) -> None:
        """Append the vectors of the papers first, first + 1, ... of a corpus's id column, which has no duplicates.

        The bytes of the ids are copied and no hash is remembered, so memory does not grow with the number of papers.
        Rows with numbers that are not finite are left out and counted, as in `append`.
        """
        self._begin(block.shape[1])
        rows, finite = self._converted(block)
        self._ids.append_bytes(*ids.gather(first + np.flatnonzero(finite)))
        self._keep(rows if finite.all() else rows[finite])

    def _converted(self, block: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Convert a block to the writer's dtype; also return which rows are finite, and count the others."""
        with np.errstate(over="ignore", invalid="ignore"):
            rows = np.asarray(block).astype(self._dtype)
        is_finite = np.isfinite(rows)
        finite = np.ones(len(rows), bool) if is_finite.all() else is_finite.all(axis=1)  # rows are finite but for a few
        self.tally.reject("vectors", NOT_FINITE, int((~finite).sum()))
        return rows, finite

    def _keep(self, rows: NDArray[Any]) -> None:
        self.tally.keep("vectors", len(rows))
        self._append_rows(rows)

    def finish(self) -> Vectors:
        """Close the files, write the manifest and publish the vectors folder."""
        return Vectors(self._folder, self._publish())


new_vectors = VectorsWriter.new
"""Write vectors to a new folder: `with new_vectors(folder, model=...) as writer`, then `append` and `finish`."""
