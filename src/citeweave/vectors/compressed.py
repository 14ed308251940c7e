"""Compressed vectors: int8, binary (one bit per number) or truncated to the first dimensions (Matryoshka).

    int8          round(x / scale), scale = largest size of the dimension / 127: off by half a scale at most
    binary        1 where x > 0, eight to a byte; decoded as 1 and -1
    truncate:128  the first 128 numbers at length 1, for models trained for it (Kusupati et al. 2022, Matryoshka
                  representation learning); ordinary `Vectors`, of a model with another name

    small/codes.npy                 int8, (papers, dimension), or uint8, (papers, dimension / 8)
    small/scales.npy                float32, (dimension,); int8 only
    small/id.utf8, id.offsets.npy   the ids, in the order of the rows
    small/manifest.json             the metadata, as in `vectors.py`; dtype is int8 or binary

    >>> packed, scales = np.packbits([[1, 0, 1]], axis=1), np.ones(3, np.float32)
    >>> decode(packed, "binary", 3, scales).tolist(), decode(np.array([[1, 0, -2]], np.int8), "int8", 3, scales).tolist()
    ([[1.0, -1.0, 1.0]], [[1.0, 0.0, -2.0]])

`Vectors.open` refuses such a folder by its kind. int8 vectors may be compared with the vectors they encode and keep the
model's name; binary and truncated ones may not: they get another model name, so `check_same` refuses to mix them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, Manifest, artifact_matches, new_artifact
from citeweave.core.columns import MatrixWriter, open_matrix, open_numbers, write_numbers
from citeweave.core.errors import ArtifactError, UserError, choose
from citeweave.core.files import link_or_copy
from citeweave.core.progress import Tally
from citeweave.vectors.vectors import KIND as VECTORS
from citeweave.vectors.vectors import VERSION as VECTORS_VERSION
from citeweave.vectors.vectors import (
    Provenance,
    RowsByPaper,
    Vectors,
    VectorsWriter,
    new_vectors,
    read_provenance,
    unit_rows,
)

KIND, VERSION = "compressed_vectors", 1
CODES = {"int8": "int8", "binary": "uint8"}
"""Kind of compression -> dtype of its codes."""

BLOCK = 16_384
"""Rows compressed or scored at a time."""


class CompressedVectors(RowsByPaper):
    """Compressed vectors of a folder, with one byte or one bit per number; `codes` is memory-mapped."""

    kind_and_version = KIND, VERSION

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.kind = str(manifest.facts.get("dtype"))
        if self.kind not in CODES:
            raise ArtifactError(f"{folder}/manifest.json does not describe vectors: it is damaged; make them again")
        plain = replace(manifest, facts={**manifest.facts, "dtype": "float32"})
        provenance, rows = read_provenance(folder, plain)
        super().__init__(folder, manifest)
        self.provenance: Provenance = replace(provenance, dtype=self.kind)
        dimension = provenance.dimension
        self.codes = open_matrix(folder / "codes.npy", CODES[self.kind], (rows, _width(self.kind, dimension)))
        self.scales = open_numbers(folder / "scales.npy", np.float32) if self.kind == "int8" else _ones(dimension)
        if len(self.scales) != dimension:
            raise ArtifactError(
                f"{folder} is damaged: {len(self.scales)} scales for {dimension} numbers; make it again"
            )

    def take(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """Return the decoded vectors of these papers, (ids, dimension)."""
        return self.decoded(self.rows_of_all(ids))

    def decoded(self, rows: NDArray[np.int64] | slice) -> NDArray[np.float32]:
        """Return the decoded vectors of these rows, (rows, dimension)."""
        return decode(np.asarray(self.codes[rows]), self.kind, self.provenance.dimension, self.scales)

    def scores(self, queries: NDArray[Any], rows: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """Score queries (queries, dimension) against all compressed vectors or these rows, (queries, papers).

        Higher is nearer. int8: the dot product. binary: dot product of the signs, dimension - 2 * Hamming distance.
        """
        dimension = self.provenance.dimension
        if queries.ndim != 2 or queries.shape[1] != dimension:
            raise UserError(
                f"queries of shape {queries.shape} for vectors of {dimension} numbers; give (n, {dimension})"
            )
        chosen = np.arange(len(self)) if rows is None else rows
        scores = np.empty((len(queries), len(chosen)), np.float32)  # (queries, papers)
        scaled = np.asarray(queries, np.float32) * self.scales  # (queries, dimension)
        signs = np.packbits(np.asarray(queries) > 0, axis=1)  # (queries, bytes)
        for start in range(0, len(chosen), BLOCK):
            codes = np.asarray(self.codes[chosen[start : start + BLOCK]])  # (papers of the block, width)
            if self.kind == "int8":
                scores[:, start : start + BLOCK] = scaled @ codes.T.astype(np.float32)
            else:
                for at, sign in enumerate(signs):
                    hamming = np.bitwise_count(codes ^ sign).sum(axis=1, dtype=np.int64)  # (papers of the block,)
                    scores[at, start : start + BLOCK] = dimension - 2 * hamming
        return scores


def compress(
    vectors: Vectors | Path,
    folder: str | Path,
    kind: str,
    *,
    recipe: dict[str, Any] | None = None,
    overwrite: bool = False,
) -> Vectors | CompressedVectors:
    """Write compressed vectors to a new folder: `int8`, `binary` or `truncate:N`; one of the same recipe is opened.

    A path is opened only while it is read, because it may lie inside the new folder's work folder, and Windows cannot
    rename a folder with open files.
    """
    dimensions = parse_kind(kind, _opened(vectors).provenance.dimension)
    recipe = {"vectors": _opened(vectors).manifest.hash, "as": kind} if recipe is None else recipe
    if (existing := open_compressed(folder, kind, recipe)) is not None:
        return existing
    if dimensions:
        return _truncate(vectors, folder, dimensions, recipe, overwrite)
    with new_artifact(Path(folder), KIND, VERSION, recipe, overwrite=overwrite) as artifact:
        _write_codes(artifact, _opened(vectors), kind)
        artifact.finish()
    return CompressedVectors.open(folder)


def _opened(vectors: Vectors | Path) -> Vectors:
    return vectors if isinstance(vectors, Vectors) else Vectors.open(vectors)


def open_compressed(folder: str | Path, kind: str, recipe: dict[str, Any]) -> Vectors | CompressedVectors | None:
    """Open a folder of compressed vectors if this recipe built it, else return None."""
    if kind.startswith("truncate"):
        return Vectors.open(folder) if artifact_matches(Path(folder), VECTORS, VECTORS_VERSION, recipe) else None
    return CompressedVectors.open(folder) if artifact_matches(Path(folder), KIND, VERSION, recipe) else None


def parse_kind(kind: str, dimension: int | None = None) -> int:
    """Check a kind of compressed vectors; return the number of dimensions to keep, 0 for int8 and binary.

    >>> parse_kind("truncate:128", 384), parse_kind("int8")
    (128, 0)
    """
    if kind in CODES:
        return 0
    match = re.fullmatch(r"truncate:(\d{1,5})", kind)
    if not match:
        choose(kind, (*CODES, "truncate:N"), "--as")
        raise UserError("--as is 'truncate:N'; put a number for N, such as truncate:128")
    dimensions = int(match[1])
    if dimensions < 1 or (dimension is not None and dimensions >= dimension):
        raise UserError(f"--as is {kind}; N must be from 1 to {(dimension or 2) - 1}, fewer than the vectors have")
    return dimensions


def decode(codes: NDArray[Any], kind: str, dimension: int, scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """Decode int8 or binary codes (rows, width) to float32 vectors (rows, dimension)."""
    if kind == "int8":
        return codes.astype(np.float32) * scales
    bits = np.unpackbits(codes, axis=1, count=dimension)  # (rows, dimension)
    return bits.astype(np.float32) * 2 - 1


def _write_codes(artifact: ArtifactWriter, vectors: Vectors, kind: str) -> None:
    provenance = vectors.provenance
    scales = _scales(vectors) if kind == "int8" else _ones(provenance.dimension)
    writer = MatrixWriter(artifact.folder / "codes.npy", CODES[kind], _width(kind, provenance.dimension))
    for block in _blocks(vectors):
        if kind == "int8":
            writer.append(np.clip(np.rint(block / scales), -127, 127).astype(np.int8))
        else:
            writer.append(np.packbits(block > 0, axis=1))
    writer.close()
    if kind == "int8":
        write_numbers(artifact.folder / "scales.npy", scales)
    for name in ("id.utf8", "id.offsets.npy"):
        link_or_copy(vectors.folder / name, artifact.folder / name)
    artifact.facts = {
        **vectors.manifest.facts,
        "model": provenance.model if kind == "int8" else _renamed(provenance.model, kind),
        "dtype": kind,
    }


def _truncate(
    vectors: Vectors | Path, folder: str | Path, dimensions: int, recipe: dict[str, Any], overwrite: bool
) -> Vectors:
    original = _opened(vectors).manifest.facts
    metadata = {name: original[name] for name in ("revision", "text_recipe", "source", "dtype")}
    model = _renamed(original["model"], f"truncate:{dimensions}")
    with new_vectors(folder, model=model, recipe=recipe, overwrite=overwrite, **metadata) as writer:
        # the counts of rejected vectors are carried over
        writer.tally = Tally.from_json(original)
        writer.tally.counts["vectors"].kept = 0
        _append_truncated(writer, _opened(vectors), dimensions)
        return writer.finish()


def _append_truncated(writer: VectorsWriter, vectors: Vectors, dimensions: int) -> None:
    for number, block in enumerate(_blocks(vectors)):
        ids = vectors.ids[number * BLOCK : number * BLOCK + len(block)]
        writer.append(ids, unit_rows(block[:, :dimensions]))


def _scales(vectors: Vectors) -> NDArray[np.float32]:
    """Return the int8 step of each dimension, its largest size / 127, (dimension,)."""
    largest = np.zeros(vectors.provenance.dimension, np.float32)
    for block in _blocks(vectors):
        largest = np.maximum(largest, np.abs(block).max(axis=0))
    # a 127th of a very small number would be 0
    scales: NDArray[np.float32] = np.maximum(largest / np.float32(127), np.finfo(np.float32).tiny)
    return scales


def _blocks(vectors: Vectors) -> Iterator[NDArray[np.float32]]:
    for start in range(0, len(vectors), BLOCK):
        yield np.asarray(vectors.matrix[start : start + BLOCK], np.float32)  # (rows, dimension)


def _renamed(model: str, kind: str) -> str:
    return f"{model} {kind}".strip()


def _width(kind: str, dimension: int) -> int:
    return dimension if kind == "int8" else -(-dimension // 8)


def _ones(dimension: int) -> NDArray[np.float32]:
    return np.ones(dimension, np.float32)
