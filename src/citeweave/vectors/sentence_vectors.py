"""Sentence vectors on disk or in memory: several rows of numbers per paper, one per sentence of its abstract.

    vectors/matrix.npy                float16 or float32, one row per sentence, paper after paper, memory-mapped
    vectors/offsets.npy               where each paper's rows begin and end, (papers + 1,)
    vectors/numbers.npy               which sentence of the abstract a row is, from 0; truncated sentences are missing
    vectors/id.utf8, id.offsets.npy   the ids of the papers
    vectors/manifest.json             the metadata, as in `vectors.py`; rows are sentences

    >>> papers = SentenceVectors.of(["s2:1", "s2:2"], [np.eye(2), np.empty((0, 2))], model="demo")
    >>> papers.rows(["s2:2", "s2:3"]).tolist(), papers.sentences(0).tolist(), papers.lengths().tolist()
    ([1, -1], [[1.0, 0.0], [0.0, 1.0]], [2, 0])

A paper may have no sentence. Does not compute sentence vectors or compare them: see `document_distance.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, Manifest, check_files, new_artifact, read_manifest
from citeweave.core.columns import (
    KeyLookup,
    MatrixWriter,
    NumberWriter,
    TextColumn,
    TextWriter,
    open_matrix,
    open_numbers,
)
from citeweave.core.errors import ArtifactError, EmptyResultError, UserError, choose
from citeweave.core.progress import Count, Tally
from citeweave.vectors.vectors import (
    DTYPES,
    DUPLICATE_ID,
    MAX_DIMENSION,
    NOT_FINITE,
    Provenance,
    SeenKeys,
    id_keys,
    read_provenance,
)

if TYPE_CHECKING:
    pass

KIND, VERSION = "sentence_vectors", 1


class SentenceVectors:
    """Sentence vectors of papers, in memory (`of`) or memory-mapped from a folder (`open`)."""

    def __init__(
        self,
        ids: Sequence[str],
        offsets: NDArray[np.int64],
        matrix: NDArray[Any],
        numbers: NDArray[np.int32],
        provenance: Provenance,
        *,
        manifest: Manifest | None = None,
    ) -> None:
        self.ids, self.offsets, self.matrix, self.numbers = ids, offsets, matrix, numbers
        self.provenance, self.manifest = provenance, manifest
        self._lookup: KeyLookup | None = None

    @classmethod
    def open(cls, folder: str | Path) -> SentenceVectors:
        folder = Path(folder)
        manifest = read_manifest(folder, KIND, VERSION)
        check_files(folder, manifest)
        provenance, rows = read_provenance(folder, manifest)
        ids, offsets = TextColumn(folder, "id"), open_numbers(folder / "offsets.npy", np.int64)
        numbers = open_numbers(folder / "numbers.npy", np.int32)
        matrix = open_matrix(folder / "matrix.npy", provenance.dtype, (rows, provenance.dimension))
        fits = len(offsets) == len(ids) + 1 and offsets[0] == 0 and offsets[-1] == len(numbers) == rows
        # rows are read at these offsets without checking them again
        if not fits or (np.diff(offsets) < 0).any() or (ids.lengths() < 0).any():
            raise ArtifactError(f"{folder} is damaged: its ids, offsets and rows do not fit together; make it again")
        return cls(ids, offsets, matrix, numbers, provenance, manifest=manifest)

    @classmethod
    def of(
        cls,
        ids: Sequence[str],
        papers: Sequence[NDArray[Any]],
        *,
        numbers: Sequence[NDArray[np.integer[Any]]] | None = None,
        dtype: str = "float32",
        model: str = "",
        revision: str = "",
        text_recipe: str = "",
    ) -> SentenceVectors:
        """Hold sentence vectors in memory, one matrix (sentences, dimension) per paper.

        `numbers` says which sentences of the abstract the rows are; the default is 0, 1, 2 ... Repeated ids and numbers
        that are not finite are refused.
        """
        choose(dtype, DTYPES, "dtype")
        if len(ids) != len(papers) or not len(ids):
            raise ValueError(f"{len(papers)} papers for {len(ids)} ids")
        blocks = [_checked_sentences(paper, papers[0].shape[-1], dtype) for paper in papers]
        bad = [at for at, block in enumerate(blocks) if not np.isfinite(block).all()]
        if bad:
            raise UserError(
                f"{len(bad):,} of {len(ids):,} papers, such as {ids[bad[0]]!r}, have a {NOT_FINITE}; "
                "leave them out or embed them again"
            )
        keys = id_keys(ids)
        if twice := len(keys) - len(np.unique(keys)):
            raise UserError(f"{twice:,} of {len(ids):,} papers have an {DUPLICATE_ID}; keep one of each")
        provenance = Provenance(model, revision, text_recipe, blocks[0].shape[1], dtype, "memory")
        offsets = np.cumsum([0, *(len(block) for block in blocks)])
        return cls(list(ids), offsets, np.concatenate(blocks), _sentence_numbers(np.diff(offsets), numbers), provenance)

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return which row of the sentence vectors each paper id has, -1 where the paper is not among them."""
        if self._lookup is None:
            self._lookup = KeyLookup(self.ids.keys() if isinstance(self.ids, TextColumn) else id_keys(self.ids))
        return self._lookup.find(id_keys(ids))

    def sentences(self, row: int) -> NDArray[Any]:
        """Return the sentence vectors of one paper, (sentences, dimension)."""
        return np.asarray(self.matrix[self.offsets[row] : self.offsets[row + 1]])

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of sentences of each paper, (papers,)."""
        return np.diff(self.offsets)


class SentenceVectorsWriter:
    """Writes sentence vectors block by block to a new folder; see `new_sentence_vectors`."""

    def __init__(self, folder: Path, artifact: ArtifactWriter, dtype: str, metadata: dict[str, str]) -> None:
        self._folder, self._artifact, self._dtype, self.metadata = folder, artifact, dtype, metadata
        self._ids = TextWriter(artifact.folder, "id")
        self._offsets = NumberWriter(artifact.folder / "offsets.npy", np.int64)
        self._numbers = NumberWriter(artifact.folder / "numbers.npy", np.int32)
        self._offsets.append([0])
        self._matrix: MatrixWriter | None = None
        self._seen = SeenKeys()
        self._is_open = True
        self._rows = self.dimension = 0
        self.tally = Tally({"papers": Count()})

    def append(
        self,
        ids: Sequence[str],
        papers: Sequence[NDArray[Any]],
        numbers: Sequence[NDArray[np.integer[Any]]] | None = None,
    ) -> None:
        """Append papers, one matrix of sentence vectors each, as in `SentenceVectors.of`.

        A paper with a repeated id, or with numbers that are not finite after conversion to the writer's dtype, is left
        out and counted.
        """
        if len(papers) != len(ids):
            raise ValueError(f"{len(papers)} papers for {len(ids)} ids")
        if not len(ids):
            return
        if self._matrix is None:
            self._begin(papers[0].shape[-1])
        blocks = [_checked_sentences(paper, self.dimension, self._dtype) for paper in papers]
        finite = [at for at, block in enumerate(blocks) if np.isfinite(block).all()]
        fresh = np.flatnonzero(self._seen.add(id_keys([ids[at] for at in finite])))
        accepted = [finite[at] for at in fresh.tolist()]
        self.tally.reject("papers", NOT_FINITE, len(ids) - len(finite))
        self.tally.reject("papers", DUPLICATE_ID, len(finite) - len(accepted))
        self.tally.keep("papers", len(accepted))
        if not accepted:
            return
        lengths = np.array([len(blocks[at]) for at in accepted], np.int64)
        self._ids.append([ids[at] for at in accepted])
        self._offsets.append(self._rows + np.cumsum(lengths))
        self._numbers.append(_sentence_numbers(lengths, None if numbers is None else [numbers[at] for at in accepted]))
        self._rows += int(lengths.sum())
        assert self._matrix is not None
        self._matrix.append(np.concatenate([blocks[at] for at in accepted]))

    def finish(self) -> SentenceVectors:
        """Close the files, write the manifest and publish the folder of sentence vectors."""
        if not self._rows:
            reasons = "; ".join(f"{n:,}: {reason}" for reason, n in self.tally.counts["papers"].rejected.items())
            raise EmptyResultError(f"no sentence vector was kept ({reasons or 'there was none'}); check the input")
        self.close()
        self._artifact.facts |= {
            **self.metadata,
            "dtype": self._dtype,
            "dimension": self.dimension,
            "rows": self._rows,
            **self.tally.as_json(),
        }
        self._artifact.finish()
        return SentenceVectors.open(self._folder)

    def close(self) -> None:
        """Close the sentence vector files without publishing the folder; does nothing the second time."""
        if self._is_open:
            self._is_open = False
            for writer in (self._ids, self._offsets, self._numbers, self._matrix):
                if writer is not None:
                    writer.close()

    def _begin(self, dimension: int) -> None:
        if not 1 <= dimension <= MAX_DIMENSION:
            raise UserError(f"vectors of {dimension} numbers: a vector has 1 to {MAX_DIMENSION} of them")
        self.dimension = dimension
        self._matrix = MatrixWriter(self._artifact.folder / "matrix.npy", self._dtype, dimension)


@contextmanager
def new_sentence_vectors(
    folder: str | Path,
    *,
    model: str = "",
    revision: str = "",
    text_recipe: str = "",
    source: str = "",
    dtype: str = "float16",
    recipe: dict[str, Any] | None = None,
    overwrite: bool = False,
) -> Iterator[SentenceVectorsWriter]:
    """Write sentence vectors to a new folder, which appears once the caller has called `writer.finish()`."""
    choose(dtype, DTYPES, "--dtype")
    metadata = {"model": model, "revision": revision, "text_recipe": text_recipe, "source": source}
    with new_artifact(Path(folder), KIND, VERSION, recipe or dict(metadata), overwrite=overwrite) as artifact:
        writer = SentenceVectorsWriter(Path(folder), artifact, dtype, metadata)
        try:
            yield writer
        finally:
            writer.close()


def _checked_sentences(paper: NDArray[Any], dimension: int, dtype: str) -> NDArray[Any]:
    if paper.ndim != 2:
        raise ValueError(f"a paper's vectors have the shape {paper.shape}; it must be (sentences, dimension)")
    if paper.shape[1] != dimension:
        raise UserError(
            f"vectors of {paper.shape[1]} numbers cannot join vectors of {dimension}; all must be of one model"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(paper).astype(dtype)


def _sentence_numbers(
    lengths: NDArray[np.int64], numbers: Sequence[NDArray[np.integer[Any]]] | None
) -> NDArray[np.int32]:
    """Return the sentence number of each row: `numbers`, or counted from 0 within each paper."""
    if numbers is None:
        return (np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)).astype(np.int32)
    if [len(part) for part in numbers] != lengths.tolist():
        raise ValueError("the sentence numbers of a paper must be as many as its sentences")
    return np.concatenate([np.empty(0, np.int32), *numbers]).astype(np.int32)
