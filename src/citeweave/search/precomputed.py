"""Precomputed vectors for an index: made elsewhere, such as by `citeweave embed` on a machine with a GPU.

    precomputed = PrecomputedVectors(Vectors.open("vectors"), SentenceVectors.open("sentence_vectors"))
    for is_precomputed, rows in split_precomputed(precomputed, records, rows):      those that have one, and the others
        write_vectors(artifact, chosen, embedding, precomputed if is_precomputed else None)

They must come from the index's very model and text recipe, and are looked up by the papers' ids: whether a paper had the
same text then is not checked. So those of another corpus are refused, unless the ids are trusted. Papers without a
precomputed vector are embedded here (`segment_vectors.py`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter
from citeweave.core.columns import MatrixWriter, TextColumn, write_numbers
from citeweave.core.errors import UserError
from citeweave.core.hash_keys import Keys
from citeweave.core.progress import QUIET, Reporter
from citeweave.search.index_model import Embedding
from citeweave.search.segment import HAS_NONE, HAS_VECTOR, PRECOMPUTED
from citeweave.search.segment_papers import PaperRecords, SelectedPapers, spread
from citeweave.search.segment_vectors import (
    SENTENCES,
    embed_abstract_sentences,
    embed_segment,
    vector_metadata,
    write_spaces,
)
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.vectors import Vectors, id_keys

_BLOCK = 16_384


@dataclass(frozen=True, slots=True)
class PrecomputedVectors:
    """Vectors of papers, and of their sentences, that were made elsewhere and are looked up by id."""

    vectors: Vectors
    sentences: SentenceVectors | None = None
    trust_ids: bool = False
    """Whether equal ids mean equal papers, even in another corpus."""

    def check(self, embedding: Embedding, corpus: str) -> None:
        """Refuse precomputed vectors of another model or text recipe, or of a corpus with another hash."""
        embedding.provenance.check_same(self.vectors.provenance)
        if self.sentences is not None:
            if not embedding.sentences:
                raise UserError("sentence vectors are given, but the index keeps none; add --sentences")
            embedding.provenance.check_same(self.sentences.provenance)
        self.check_corpus(corpus)

    def check_corpus(self, corpus: str) -> None:
        """Refuse precomputed vectors of a corpus with another hash, as far as they say which corpus they are of."""
        manifests = {f"{self.vectors.folder}": self.vectors.manifest}
        if self.sentences is not None and self.sentences.manifest is not None:
            manifests["--sentence-vectors"] = self.sentences.manifest
        for name, manifest in manifests.items():
            if not self.trust_ids and manifest.recipe.get("corpus") not in (None, "", corpus):
                raise UserError(
                    f"{name} holds vectors of another corpus, in which an id may belong to another paper or text; "
                    "embed this corpus, or add --trust-ids where equal ids are equal papers"
                )

    def hashes(self) -> list[str]:
        """Return hashes of the precomputed vectors, for a segment's recipe."""
        return [self.vectors.manifest.hash, _hash(self.sentences) if self.sentences else ""]

    def has(self, records: PaperRecords) -> NDArray[np.bool_]:
        """Return which papers need no model: those with a valid precomputed vector, or without text; (papers,)."""
        places = find_keys(records.texts["id"].keys(), self.vectors.ids.keys())
        valid = places >= 0
        for start in range(0, len(places), _BLOCK):
            part = slice(start, start + _BLOCK)
            rows = self.vectors.matrix[places[part][valid[part]]]
            valid[part][valid[part]] = np.isfinite(rows).all(axis=1) & rows.any(axis=1)
        empty = (records.texts["title"].lengths() == 0) & (records.texts["abstract"].lengths() == 0)
        return np.asarray(valid | empty)


def _hash(sentences: SentenceVectors) -> str:
    if sentences.manifest is not None:
        return sentences.manifest.hash
    return hashlib.sha256(np.asarray(sentences.matrix).tobytes()).hexdigest()


def split_precomputed(
    precomputed: PrecomputedVectors | None, records: PaperRecords, rows: NDArray[np.int64]
) -> list[tuple[bool, NDArray[np.int64]]]:
    """Split rows of records into those with precomputed vectors (True) and those to embed; only parts that hold any."""
    known = np.zeros(len(rows), bool) if precomputed is None else precomputed.has(records)[rows]
    parts = [(True, rows[known]), (False, rows[~known])]
    return [(is_precomputed, part) for is_precomputed, part in parts if len(part)]


def write_vectors(
    artifact: ArtifactWriter,
    chosen: SelectedPapers,
    embedding: Embedding,
    precomputed: PrecomputedVectors | None,
    reporter: Reporter = QUIET,
) -> dict[str, Any]:
    """Write the vectors of a new segment's papers, precomputed or embedded here; return metadata for its manifest."""
    if precomputed is None:
        return embed_segment(artifact, embedding, reporter)
    return _write_precomputed(artifact, chosen, embedding, precomputed, reporter)


def find_keys(wanted: Keys, keys: Keys) -> NDArray[np.int64]:
    """Return the place of each wanted key among the keys of precomputed vectors, -1 where they lack it."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(keys, kind="stable")
    at = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    return np.where(keys[at] == wanted, at, -1)


def _write_precomputed(
    artifact: ArtifactWriter,
    chosen: SelectedPapers,
    embedding: Embedding,
    precomputed: PrecomputedVectors,
    reporter: Reporter = QUIET,
) -> dict[str, Any]:
    """Write the precomputed vectors of a new segment's papers; return metadata for its manifest."""
    folder = artifact.folder
    keys = TextColumn(folder / "papers", "id").keys()
    rows = find_keys(keys, precomputed.vectors.ids.keys())  # (papers,)
    writer = MatrixWriter(folder / "matrix.npy", embedding.dtype, embedding.encoder.dimension)
    status = np.full(len(chosen), HAS_NONE, np.uint8)
    for start in range(0, len(chosen), _BLOCK):
        part = rows[start : start + _BLOCK]
        block = np.zeros((len(part), embedding.encoder.dimension), embedding.dtype)
        with np.errstate(over="ignore"):
            block[part >= 0] = precomputed.vectors.matrix[part[part >= 0]]
        block[~np.isfinite(block).all(axis=1)] = 0
        status[start : start + _BLOCK][block.any(axis=1)] = HAS_VECTOR
        writer.append(block)
    writer.close()
    write_numbers(folder / "embedded.npy", status)
    spaces = write_spaces(folder, embedding, len(chosen), reporter) if embedding.heads else []
    if embedding.sentences:
        write_sentence_vectors(artifact, embedding, precomputed, reporter)
    return vector_metadata(embedding.provenance, spaces, status, [PRECOMPUTED])


def write_sentence_vectors(
    artifact: ArtifactWriter, embedding: Embedding, precomputed: PrecomputedVectors | None, reporter: Reporter = QUIET
) -> None:
    """Write the sentence vectors of a new segment's papers: all of them precomputed, or all embedded here."""
    if precomputed is None or precomputed.sentences is None:
        embed_abstract_sentences(artifact, embedding, reporter)
    else:
        keys = TextColumn(artifact.folder / "papers", "id").keys()
        _write_precomputed_sentences(artifact.folder / SENTENCES, keys, embedding, precomputed.sentences)


def _write_precomputed_sentences(folder: Path, keys: Keys, embedding: Embedding, precomputed: SentenceVectors) -> None:
    """Write the precomputed sentence vectors of the papers with these keys into a new segment."""
    known = precomputed.ids.keys() if isinstance(precomputed.ids, TextColumn) else id_keys(precomputed.ids)
    rows = find_keys(keys, known)  # (papers,)
    starts = np.where(rows >= 0, precomputed.offsets[rows], 0)
    counts = np.where(rows >= 0, precomputed.offsets[rows + 1] - starts, 0)
    write_numbers(folder / "offsets.npy", np.concatenate([[0], np.cumsum(counts)]), np.int64)
    matrix = MatrixWriter(folder / "matrix.npy", embedding.dtype, embedding.encoder.dimension)
    numbers = []
    for start in range(0, len(rows), _BLOCK):
        part = slice(start, start + _BLOCK)
        places = spread(starts[part], counts[part])
        matrix.append(precomputed.matrix[places])
        numbers.append(np.asarray(precomputed.numbers)[places])
    matrix.close()
    write_numbers(folder / "numbers.npy", np.concatenate([np.empty(0, np.int32), *numbers]), np.int32)
