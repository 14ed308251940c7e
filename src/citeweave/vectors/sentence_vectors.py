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
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, Manifest, check_files, read_manifest
from citeweave.core.columns import KeyLookup, NumberWriter, TextColumn, open_matrix, open_numbers
from citeweave.core.errors import ArtifactError, UserError, choose
from citeweave.core.ragged import number_within, to_offsets
from citeweave.vectors.own_distance import Reading, parse_reading
from citeweave.vectors.vectors import (
    DTYPES,
    DUPLICATE_ID,
    NOT_FINITE,
    FolderWriter,
    Provenance,
    id_keys,
    read_provenance,
)

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

    @property
    def reading(self) -> Reading:
        """How the model that made them is best read."""
        facts = self.manifest.facts if self.manifest is not None else {}
        return parse_reading(facts.get("reading", {}), "the manifest of sentence vectors")

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
        offsets = to_offsets([len(block) for block in blocks])
        return cls(list(ids), offsets, np.concatenate(blocks), _sentence_numbers(np.diff(offsets), numbers), provenance)

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and int(self.rows([id])[0]) >= 0

    def __getitem__(self, id: str) -> NDArray[Any]:
        """Return the sentence vectors of a paper by its id, (sentences, dimension)."""
        return self.sentences(int(self.rows_of_all([id])[0]))

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return map(self.sentences, range(len(self)))

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return which row of the sentence vectors each paper id has, -1 where the paper is not among them."""
        if self._lookup is None:
            self._lookup = KeyLookup(self.ids.keys() if isinstance(self.ids, TextColumn) else id_keys(self.ids))
        return self._lookup.find(id_keys(ids))

    def rows_of_all(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return which row of the sentence vectors each paper id has; a missing paper is an error."""
        rows = self.rows(ids)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            raise UserError(
                f"{ids[int(missing[0])]!r} is none of the {len(self):,} papers of these sentence vectors, whose ids look "
                f"like {self.ids[0]!r}; check the id"
            )
        return rows

    def span(self, row: int) -> slice:
        """Return where the sentences of one paper are among the rows."""
        return slice(int(self.offsets[row]), int(self.offsets[row + 1]))

    def sentences(self, row: int) -> NDArray[Any]:
        """Return the sentence vectors of one paper, (sentences, dimension)."""
        return np.asarray(self.matrix[self.span(row)])

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of sentences of each paper, (papers,)."""
        return np.diff(self.offsets)


class SentenceVectorsWriter(FolderWriter):
    """Writes sentence vectors block by block to a new folder; see `new_sentence_vectors`."""

    kind_and_version, counted, vector = (KIND, VERSION), "papers", "sentence vector"

    def __init__(self, folder: Path, artifact: ArtifactWriter, dtype: str, metadata: dict[str, str]) -> None:
        super().__init__(folder, artifact, dtype, metadata)
        self._offsets = NumberWriter(artifact.folder / "offsets.npy", np.int64)
        self._numbers = NumberWriter(artifact.folder / "numbers.npy", np.int32)
        self._open += [self._offsets, self._numbers]
        self._offsets.append([0])

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
        self._offsets.append(self.rows + np.cumsum(lengths))
        self._numbers.append(_sentence_numbers(lengths, None if numbers is None else [numbers[at] for at in accepted]))
        self._append_rows(np.concatenate([blocks[at] for at in accepted]))

    def finish(self) -> SentenceVectors:
        """Close the files, write the manifest and publish the folder of sentence vectors."""
        self._publish()
        return SentenceVectors.open(self._folder)


new_sentence_vectors = SentenceVectorsWriter.new
"""Write sentence vectors to a new folder: `with new_sentence_vectors(folder) as writer`, then `append` and `finish`."""


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
        return number_within(lengths).astype(np.int32)
    if [len(part) for part in numbers] != lengths.tolist():
        raise ValueError("the sentence numbers of a paper must be as many as its sentences")
    return np.concatenate([np.empty(0, np.int32), *numbers]).astype(np.int32)
