"""Vectors of a new segment of an index: embedded by its model, precomputed elsewhere, or copied from older segments.

    write_segment(writer, recipe, chosen, lambda artifact: _embed_segment(artifact, embedding))
    _embed_segment(artifact, embedding)                      the papers whose columns are in the artifact's folder
    copy_vectors(folder, chosen, segments)                  rows of older segments

    precomputed = PrecomputedVectors(Vectors.open("vectors"), SentenceVectors.open("sentence_vectors"))
    for is_precomputed, rows in split_precomputed(precomputed, records, rows):      those that have one, and the others
        write_vectors(artifact, chosen, embedding, precomputed if is_precomputed else None)

All write embedded.npy, and where there are vectors matrix.npy, spaces/ and abstract_sentences/. Where sentences are
wanted too, one pass of the network makes both kinds of vectors, unless the encoder's pooling needs a pass of its own. A
segment that an interrupted writer had begun by the same recipe is resumed. No state names a segment until the caller
commits one (`state.py`).

Precomputed vectors, such as those of `citeweave embed` on a machine with a GPU, must come from the index's own model and
text recipe. They are looked up by the papers' ids: whether a paper had the same text then is not checked, so those of
another corpus are refused, unless the ids are trusted. Papers without a precomputed vector are embedded here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, Manifest, artifact_matches, new_artifact, read_manifest
from citeweave.core.columns import (
    MatrixWriter,
    TextColumn,
    open_matrix,
    open_numbers,
    write_numbers,
)
from citeweave.core.errors import EmptyResultError, UserError
from citeweave.core.files import link_or_copy, open_input
from citeweave.core.hash_keys import Keys
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.encoders.embed import EmbeddingOptions, embed_papers, embed_papers_and_sentences, embed_sentences
from citeweave.encoders.sentence_encoder import reads_together
from citeweave.search.citing_sentences import CODES, FOLDER
from citeweave.search.index_model import Embedding
from citeweave.search.segment import (
    HAS_NONE,
    HAS_VECTOR,
    KIND,
    NOT_YET,
    PAPERS_ALONE,
    PRECOMPUTED,
    TOGETHER,
    VERSION,
    Segment,
)
from citeweave.search.segment_papers import PaperRecords, SelectedPapers, spread, write_papers
from citeweave.search.state import IndexWriter, SegmentEntry
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.topk import write_codes
from citeweave.vectors.vectors import Provenance, Vectors, id_keys

_BLOCK = 16_384


@dataclass(frozen=True, slots=True)
class PrecomputedVectors:
    """Precomputed vectors for a new segment's papers and their sentences: made elsewhere, looked up by id."""

    vectors: Vectors
    sentences: SentenceVectors | None = None
    trust_ids: bool = False
    """Whether equal ids mean equal papers, even in another corpus."""

    def check(self, embedding: Embedding, corpus: str) -> None:
        """Refuse for a new segment precomputed vectors of another model or text recipe, or of a corpus with another hash."""
        embedding.provenance.check_same(self.vectors.provenance)
        if self.sentences is not None:
            if not embedding.sentences:
                raise UserError("sentence vectors are given, but the index keeps none; add --sentences")
            embedding.provenance.check_same(self.sentences.provenance)
        self.check_corpus(corpus)

    def check_corpus(self, corpus: str) -> None:
        """Refuse for a new segment precomputed vectors of a corpus with another hash, as far as they say which it is."""
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
        """Return which papers of a new segment need no model: with a valid precomputed vector, or without text; (papers,)."""
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
    """Split the rows of a new segment into those with precomputed vectors (True) and those to embed; only parts that hold any."""
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
        return _embed_segment(artifact, embedding, reporter)
    return _write_precomputed(artifact, chosen, embedding, precomputed, reporter)


def find_keys(wanted: Keys, keys: Keys) -> NDArray[np.int64]:
    """Return the place of each wanted key among the keys of a new segment's precomputed vectors, -1 where they lack it."""
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
    spaces = _write_spaces(folder, embedding, len(chosen), reporter) if embedding.heads else []
    if embedding.sentences:
        write_sentence_vectors(artifact, embedding, precomputed, reporter)
    return _vector_metadata(embedding.provenance, spaces, status, [PRECOMPUTED])


def write_sentence_vectors(
    artifact: ArtifactWriter, embedding: Embedding, precomputed: PrecomputedVectors | None, reporter: Reporter = QUIET
) -> None:
    """Write the sentence vectors of a new segment's papers: all of them precomputed, or all embedded here."""
    if precomputed is None or precomputed.sentences is None:
        _embed_abstract_sentences(artifact, embedding, reporter)
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


SENTENCES = "abstract_sentences"
CODED = 2048
"""Rows from which on a matrix gets quantized codes; fewer are compared as fast without."""


def _embed_segment(artifact: ArtifactWriter, embedding: Embedding, reporter: Reporter = QUIET) -> dict[str, Any]:
    """Embed the papers whose columns are in a new segment's folder; return metadata for its manifest."""
    folder, papers = artifact.folder, _open_papers(artifact.folder)
    options = EmbeddingOptions(dtype=embedding.dtype, shard=embedding.shard)
    together = embedding.sentences and reads_together(embedding.encoder)
    vectors: Vectors | None = None
    if together:
        work = artifact.scratch_folder("papers-and-sentences")
        both = embed_papers_and_sentences(papers, embedding.encoder, work, options, reporter=reporter)
        vectors = both.vectors
        _write_sentences(folder / SENTENCES, embedding, papers, both.sentences, work / "sentences")
    else:
        with suppress(EmptyResultError):
            vectors = embed_papers(
                papers, embedding.encoder, artifact.scratch_folder("papers") / "vectors", options, reporter=reporter
            )
    status = _write_vectors(folder, embedding, papers, vectors)
    spaces = _write_spaces(folder, embedding, len(papers), reporter) if embedding.heads else []
    if embedding.sentences and not together:
        _embed_abstract_sentences(artifact, embedding, reporter)
    return _vector_metadata(embedding.provenance, spaces, status, [TOGETHER if together else PAPERS_ALONE])


def _vector_metadata(
    provenance: Provenance | None, spaces: list[int], status: NDArray[np.uint8], passes: list[str]
) -> dict[str, Any]:
    """Return the metadata of a segment's vectors for its manifest."""
    return {
        "provenance": asdict(provenance) if provenance else None,
        "spaces": spaces,
        "with_vector": int((status == HAS_VECTOR).sum()),
        "without_vector": int((status == HAS_NONE).sum()),
        "passes": passes,
    }


def write_without_vectors(folder: Path, papers: int) -> dict[str, Any]:
    """Mark all papers of a new segment as not embedded yet; return metadata for its manifest."""
    status = np.full(papers, NOT_YET, np.uint8)
    write_numbers(folder / "embedded.npy", status)
    return _vector_metadata(None, [], status, [])


def _open_papers(folder: Path) -> Corpus:
    """Open the columns of a new segment, which are named as those of a corpus, as a corpus to embed."""
    digest = hashlib.sha256()
    for name in ("id.utf8", "title.utf8", "title.offsets.npy", "abstract.utf8", "abstract.offsets.npy"):
        with open_input(folder / "papers" / name) as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return Corpus(folder, Manifest(KIND, VERSION, {}, {}, {"papers": {"sha256": digest.hexdigest()}}))


def _write_vectors(folder: Path, embedding: Embedding, papers: Corpus, vectors: Vectors | None) -> NDArray[np.uint8]:
    """Write the papers' vectors into the segment; return and write which paper has one (embedded.npy)."""
    status = np.full(len(papers), HAS_NONE, np.uint8)
    if vectors is None:
        _write_rows(
            folder / "matrix.npy",
            embedding,
            np.empty(0, np.int64),
            np.empty((0, embedding.encoder.dimension)),
            len(papers),
        )
    else:
        rows = np.flatnonzero(np.isin(papers.ids.keys(), vectors.ids.keys()))
        assert len(rows) == len(vectors), (len(rows), len(vectors))
        status[rows] = HAS_VECTOR
        if len(rows) == len(papers):
            link_or_copy(vectors.folder / "matrix.npy", folder / "matrix.npy")
        else:
            _write_rows(folder / "matrix.npy", embedding, rows, vectors.matrix, len(papers))
    write_numbers(folder / "embedded.npy", status)
    return status


def _write_rows(path: Path, embedding: Embedding, rows: NDArray[np.int64], matrix: NDArray[Any], papers: int) -> None:
    """Write a matrix with one row per paper, zeros where `rows` does not have it."""
    writer = MatrixWriter(path, embedding.dtype, embedding.encoder.dimension)
    for start in range(0, papers, _BLOCK):
        block = np.zeros((min(_BLOCK, papers - start), embedding.encoder.dimension), embedding.dtype)
        first, last = np.searchsorted(rows, [start, start + len(block)])
        block[rows[first:last] - start] = matrix[first:last]
        writer.append(block)
    writer.close()


def _write_spaces(folder: Path, embedding: Embedding, papers: int, reporter: Reporter) -> list[int]:
    """Project the vectors of a segment into the space of every aspect, at length 1; return the dimensions."""
    heads = embedding.heads
    assert heads is not None
    matrix = open_matrix(folder / "matrix.npy", embedding.dtype, (papers, embedding.encoder.dimension))
    with reporter.task("projecting", papers * len(heads.names), "vectors") as advance:
        for number, name in enumerate(heads.names):
            writer = MatrixWriter(folder / "spaces" / f"{number}.npy", embedding.dtype, heads.dimension(name))
            for start in range(0, papers, _BLOCK):
                projected = heads.project(matrix[start : start + _BLOCK], name)  # (block, dimension)
                writer.append(_unit_rows(projected))
                advance(len(projected))
            writer.close()
    return [heads.dimension(name) for name in heads.names]


def _embed_abstract_sentences(artifact: ArtifactWriter, embedding: Embedding, reporter: Reporter = QUIET) -> None:
    """Embed the abstract sentences of the papers whose columns are in a new segment's folder."""
    papers, options = _open_papers(artifact.folder), EmbeddingOptions(dtype=embedding.dtype, shard=embedding.shard)
    work, vectors = artifact.scratch_folder("abstracts") / "vectors", None
    with suppress(EmptyResultError):
        vectors = embed_sentences(papers, embedding.encoder, work, options, reporter=reporter)
    _write_sentences(artifact.folder / SENTENCES, embedding, papers, vectors, work)


def _write_sentences(
    folder: Path, embedding: Embedding, papers: Corpus, vectors: SentenceVectors | None, source: Path
) -> None:
    """Write sentence vectors, which were embedded in the folder `source`, into the segment."""
    counts = np.zeros(len(papers), np.int64)
    if vectors is None:
        numbers: NDArray[Any] = np.empty(0, np.int32)
        _write_rows(
            folder / "matrix.npy", embedding, np.empty(0, np.int64), np.empty((0, embedding.encoder.dimension)), 0
        )
    else:
        assert isinstance(vectors.ids, TextColumn)
        counts[np.isin(papers.ids.keys(), vectors.ids.keys())] = vectors.lengths()
        numbers = vectors.numbers
        link_or_copy(source / "matrix.npy", folder / "matrix.npy")
    write_numbers(folder / "offsets.npy", np.concatenate([[0], np.cumsum(counts)]), np.int64)
    write_numbers(folder / "numbers.npy", numbers, np.int32)


def _write_all_codes(folder: Path, metadata: dict[str, Any], papers: int) -> None:
    """Write quantized codes beside every matrix of a segment that is large enough to need them."""
    provenance = metadata["provenance"]
    if provenance is None:
        return
    widths = {folder / "matrix.npy": provenance["dimension"]}
    places = {folder / "matrix.npy": folder / "codes"}
    for number, width in enumerate(metadata["spaces"]):
        path = folder / "spaces" / f"{number}.npy"
        widths[path], places[path] = width, folder / "codes" / str(number)
    rows = dict.fromkeys(widths, papers)
    if (folder / SENTENCES).is_dir():
        path = folder / SENTENCES / "matrix.npy"
        widths[path], places[path] = provenance["dimension"], folder / SENTENCES / "codes"
        rows[path] = len(open_numbers(folder / SENTENCES / "numbers.npy", np.int32))
    if metadata.get("sentences"):
        path = folder / FOLDER / "matrix.npy"
        widths[path], places[path], rows[path] = provenance["dimension"], folder / FOLDER / CODES, metadata["sentences"]
    for path, width in widths.items():
        if rows[path] >= CODED:
            write_codes(places[path], open_matrix(path, provenance["dtype"], (rows[path], width)))


def copy_vectors(
    folder: Path, chosen: SelectedPapers, segments: Sequence[Segment], *, sentences: bool = True
) -> dict[str, Any]:
    """Copy vectors of a new segment's papers from older segments, one per source; return metadata for the manifest."""
    status = chosen.numbers([segment.embedded for segment in segments])
    write_numbers(folder / "embedded.npy", status, np.uint8)
    known = [segment for segment in segments if segment.provenance is not None]
    if not known:
        return _vector_metadata(None, [], status, [])
    provenance = known[0].provenance
    assert provenance is not None
    _copy_rows(folder / "matrix.npy", chosen, [segment.matrix for segment in segments], provenance.dtype)
    for number in range(len(known[0].spaces)):
        parts = [segment.spaces[number] if segment.spaces else None for segment in segments]
        _copy_rows(folder / "spaces" / f"{number}.npy", chosen, parts, provenance.dtype)
    if sentences and any(segment.sentences is not None for segment in segments):
        _copy_sentences(folder / SENTENCES, chosen, segments, provenance)
    passes = {each for at in np.unique(chosen.source).tolist() for each in segments[at].passes}
    return _vector_metadata(provenance, [space.shape[1] for space in known[0].spaces], status, sorted(passes))


def _copy_rows(path: Path, chosen: SelectedPapers, parts: Sequence[NDArray[Any] | None], dtype: str) -> None:
    width = next(part.shape[1] for part in parts if part is not None)
    writer = MatrixWriter(path, dtype, width)
    for start in range(0, len(chosen), _BLOCK):
        source, row = (
            chosen.source[start : start + _BLOCK],
            chosen.row[start : start + _BLOCK],
        )
        block = np.zeros((len(row), width), dtype)
        for at, part in enumerate(parts):
            own = np.flatnonzero(source == at)
            if part is not None and len(own):
                block[own] = part[row[own]]
        writer.append(block)
    writer.close()


def _copy_sentences(folder: Path, chosen: SelectedPapers, segments: Sequence[Segment], provenance: Provenance) -> None:
    """Copy the sentence vectors of selected papers from older segments, in blocks of papers."""
    none = [np.zeros(segment.size + 1, np.int64) for segment in segments]
    offsets = [
        none[at] if segment.sentences is None else np.asarray(segment.sentences.offsets)
        for at, segment in enumerate(segments)
    ]
    numbers = [
        np.empty(0, np.int32) if segment.sentences is None else np.asarray(segment.sentences.numbers)
        for segment in segments
    ]
    bounds, copied = chosen.ragged(offsets, numbers)
    write_numbers(folder / "offsets.npy", bounds, np.int64)
    write_numbers(folder / "numbers.npy", copied, np.int32)
    writer = MatrixWriter(folder / "matrix.npy", provenance.dtype, provenance.dimension)
    for start in range(0, len(chosen), _BLOCK):
        block = slice(start, min(start + _BLOCK, len(chosen)))
        first, last = int(bounds[block.start]), int(bounds[block.stop])
        rows = np.empty((last - first, provenance.dimension), provenance.dtype)
        for at, segment in enumerate(segments):
            if segment.sentences is None:
                continue
            own = block.start + np.flatnonzero(chosen.source[block] == at)
            counts = bounds[own + 1] - bounds[own]
            rows[spread(bounds[own] - first, counts)] = segment.sentences.matrix[
                spread(offsets[at][chosen.row[own]], counts)
            ]
        writer.append(rows)
    writer.close()


def _unit_rows(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale rows to length 1, which float16 can hold; rows of zeros stay."""
    units: NDArray[np.float32] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return units


Fill = Callable[[ArtifactWriter], dict[str, Any]]
"""Writes vectors and citing sentences into a new segment's folder; returns metadata for its manifest."""


def write_segment(writer: IndexWriter, recipe: dict[str, Any], chosen: SelectedPapers, fill: Fill) -> SegmentEntry:
    """Write a new segment, papers and their vectors, or reuse one that an interrupted writer finished by the same recipe."""
    folder = writer.segment(recipe)
    if artifact_matches(folder, KIND, VERSION, recipe):
        return SegmentEntry(folder.name, read_manifest(folder, KIND, VERSION).hash, len(chosen))
    with new_artifact(folder, KIND, VERSION, recipe, overwrite=True) as artifact:
        write_papers(artifact.folder, chosen)
        metadata = fill(artifact)
        _write_all_codes(artifact.folder, metadata, len(chosen))
        artifact.facts |= {"papers": len(chosen), **metadata}
        return SegmentEntry(folder.name, artifact.finish().hash, len(chosen))
