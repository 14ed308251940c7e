"""Vectors that were made elsewhere, such as by `citeweave embed` on a machine with a graphics card.

    Given(Vectors.open("vectors"), SentenceVectors.open("sentence_vectors"))

They must be of the very model and text recipe of the index. Papers without a given vector are embedded here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.columns import MatrixWriter, TextColumn, write_numbers
from citeweave.errors import UserError
from citeweave.files import ArtefactWriter
from citeweave.hashing import Keys
from citeweave.progress import QUIET, Reporter
from citeweave.search.segment import HAS_NONE, HAS_VECTOR
from citeweave.search.writing.records import Chosen, Records, spread
from citeweave.search.writing.vectors import SENTENCES, Embedding, embed_abstracts, write_spaces
from citeweave.similarity.provenance import id_keys
from citeweave.similarity.sentence_vectors import SentenceVectors
from citeweave.similarity.vectors import Vectors

_BLOCK = 16_384


@dataclass(frozen=True, slots=True)
class Given:
    """Vectors of papers by their ids."""

    vectors: Vectors
    sentences: SentenceVectors | None = None

    def check(self, how: Embedding) -> None:
        """Refuse vectors of another model or text."""
        how.provenance.check_same(self.vectors.provenance)
        if self.sentences is not None:
            if not how.sentences:
                raise UserError("sentence vectors are given, but the index keeps none; add --sentences")
            how.provenance.check_same(self.sentences.provenance)

    def hashes(self) -> list[str]:
        """What they are, for a recipe."""
        manifests = [self.vectors.manifest, self.sentences.manifest if self.sentences else None]
        return [manifest.hash if manifest else "" for manifest in manifests]

    def has(self, records: Records) -> NDArray[np.bool_]:
        """Papers that need no model: a vector is given, or there is no text; (papers,)."""
        found = places_of(records.texts["id"].keys(), self.vectors.ids.keys()) >= 0
        empty = (records.texts["title"].lengths() == 0) & (records.texts["abstract"].lengths() == 0)
        return np.asarray(found | empty)


def places_of(wanted: Keys, keys: Keys) -> NDArray[np.int64]:
    """Where each wanted key stands, -1 where it does not."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(keys, kind="stable")
    at = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    return np.where(keys[at] == wanted, at, -1)


def take_given(
    artefact: ArtefactWriter, chosen: Chosen, how: Embedding, given: Given, reporter: Reporter = QUIET
) -> dict[str, Any]:
    """Write the given vectors of the papers that lie in the artefact's folder; what its manifest should tell."""
    folder = artefact.folder
    keys = TextColumn(folder / "papers", "id").keys()
    rows = places_of(keys, given.vectors.ids.keys())  # (papers,)
    writer = MatrixWriter(folder / "matrix.npy", how.dtype, how.encoder.dimension)
    status = np.full(len(chosen), HAS_NONE, np.uint8)
    for start in range(0, len(chosen), _BLOCK):
        part = rows[start : start + _BLOCK]
        block = np.zeros((len(part), how.encoder.dimension), how.dtype)
        with np.errstate(over="ignore"):
            block[part >= 0] = given.vectors.matrix[part[part >= 0]]
        block[~np.isfinite(block).all(axis=1)] = 0
        status[start : start + _BLOCK][block.any(axis=1)] = HAS_VECTOR
        writer.append(block)
    writer.close()
    write_numbers(folder / "embedded.npy", status)
    spaces = write_spaces(folder, how, len(chosen), reporter) if how.heads else []
    if given.sentences is not None:
        _take_sentences(folder / SENTENCES, keys, how, given.sentences)
    elif how.sentences:
        embed_abstracts(artefact, how, reporter)
    return {
        "provenance": asdict(how.provenance),
        "spaces": spaces,
        "with_vector": int((status == HAS_VECTOR).sum()),
        "without_vector": int((status == HAS_NONE).sum()),
    }


def _take_sentences(folder: Path, keys: Keys, how: Embedding, given: SentenceVectors) -> None:
    known = given.ids.keys() if isinstance(given.ids, TextColumn) else id_keys(given.ids)
    rows = places_of(keys, known)  # (papers,)
    starts = np.where(rows >= 0, given.offsets[rows], 0)
    counts = np.where(rows >= 0, given.offsets[rows + 1] - starts, 0)
    write_numbers(folder / "offsets.npy", np.concatenate([[0], np.cumsum(counts)]), np.int64)
    matrix = MatrixWriter(folder / "matrix.npy", how.dtype, how.encoder.dimension)
    numbers = []
    for start in range(0, len(rows), _BLOCK):
        part = slice(start, start + _BLOCK)
        places = spread(starts[part], counts[part])
        matrix.append(given.matrix[places])
        numbers.append(np.asarray(given.numbers)[places])
    matrix.close()
    write_numbers(folder / "numbers.npy", np.concatenate([np.empty(0, np.int32), *numbers]), np.int32)
