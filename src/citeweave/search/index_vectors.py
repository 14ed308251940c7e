"""Vectors of an index's next generation: carried over from the last one, precomputed elsewhere, or embedded now.

    vectors = GenerationVectors(artifact, embedding, last, precomputed)
    facts = vectors.write()                               embedded.npy, matrix.npy, spaces/, abstract_sentences/, codes/

    embedding = open_embedding(index, sentences=True)     the index's own model, to embed more papers; any other is refused
    precomputed = PrecomputedVectors(Vectors.open("vectors"), SentenceVectors.open("sentence_vectors"))

A vector is carried over to every paper with the same title and abstract (text key). Without a model, papers whose vector is
not known stay without one. Where sentences are wanted too, one pass of the network makes both kinds of vectors, unless the
encoder's pooling needs a pass of its own. An interrupted run resumes: finished shards are kept with the artifact.

Precomputed vectors, such as those of `citeweave embed` on a machine with a GPU, must come from the index's own model and
text recipe. They are looked up by the papers' ids: whether a paper had the same text then is not checked, so those of
another corpus are refused, unless the ids are trusted. Papers without a precomputed vector are embedded here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import ArtifactWriter, Manifest
from citeweave.core.columns import (
    MatrixWriter,
    TextColumn,
    TextWriter,
    find_keys,
    open_matrix,
    open_numbers,
    write_numbers,
)
from citeweave.core.errors import EmptyResultError, UserError
from citeweave.core.files import link_or_copy, open_input
from citeweave.core.hash_keys import Keys
from citeweave.core.progress import QUIET, Reporter
from citeweave.core.ragged import spans, to_offsets
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.text import TextRecipe
from citeweave.encoders.aspects import AspectHeads, find_heads
from citeweave.encoders.embed import SHARD, EmbeddingOptions, embed_papers, embed_papers_and_sentences, embed_sentences
from citeweave.encoders.encoder import TorchEncoder, load_encoder
from citeweave.encoders.sentence_encoder import reads_together
from citeweave.search.citing_sentences import CODED
from citeweave.search.index import HAS_NONE, HAS_VECTOR, NOT_YET, SENTENCES, Index
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.topk import write_codes
from citeweave.vectors.vectors import Provenance, Vectors, id_keys, unit_rows

PAPERS_ALONE, TOGETHER, PRECOMPUTED = "papers alone", "papers and sentences together", "precomputed"
"""The passes of the network that made the papers' vectors, which differ between them in their last bits."""

_BLOCK = 16_384


@dataclass(frozen=True, slots=True)
class Embedding:
    """The model that makes an index's vectors, encoder and aspect heads, and what they make."""

    encoder: TorchEncoder
    heads: AspectHeads | None
    dtype: str
    sentences: bool
    shard: int = SHARD

    @property
    def provenance(self) -> Provenance:
        encoder = self.encoder
        return Provenance(
            encoder.name, encoder.revision, TextRecipe().hash, encoder.dimension, self.dtype, "citeweave index"
        )


def open_embedding(
    index: Index,
    model: str | Path | None = None,
    *,
    device: str = "auto",
    shard: int = SHARD,
    encoder: TorchEncoder | None = None,
    sentences: bool = False,
) -> Embedding:
    """Load the model of an index to embed more papers: from where it was, or from where `model` says it is now.

    `encoder` is the model where it is already loaded. `sentences` asks for sentence vectors even if the index has none.
    """
    where = index.locate_model(model)
    encoder = encoder or load_encoder(where, device=device, runtime=index.runtime)
    facts = index.facts
    sentences = sentences or bool(facts.get("abstract_sentences"))
    embedding = Embedding(encoder, find_heads(where), str(facts["dtype"]), sentences, shard)
    if index.provenance is not None:
        index.provenance.check_same(embedding.provenance)
        if (embedding.heads.hash if embedding.heads else "") != facts.get("heads"):
            raise UserError(
                f"{index.folder} was made with other aspect heads than those of {where}; give the index's own model "
                "with --model, or build the index again"
            )
    return embedding


def model_metadata(embedding: Embedding | None) -> dict[str, Any]:
    """Return what an index's state records about its model; empty before there are vectors."""
    heads = embedding.heads if embedding else None
    return {
        "provenance": asdict(embedding.provenance) if embedding else None,
        "aspects": list(heads.names) if heads else [],
        "heads": heads.hash if heads else "",
    }


@dataclass(frozen=True, slots=True)
class PrecomputedVectors:
    """Vectors of papers and their sentences that were made elsewhere, looked up by id."""

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
        """Refuse precomputed vectors of a corpus with another hash, as far as they say which it is."""
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
        """Return hashes of the precomputed vectors, for the recipe of a generation."""
        return [self.vectors.manifest.hash, _hash(self.sentences) if self.sentences else ""]


def _hash(sentences: SentenceVectors) -> str:
    if sentences.manifest is not None:
        return sentences.manifest.hash
    return hashlib.sha256(np.asarray(sentences.matrix).tobytes()).hexdigest()


class KnownRows(NamedTuple):
    """Vectors of some papers of the next generation, or of their sentences: the row of each paper there, -1 where none."""

    rows: NDArray[np.int64]
    vectors: Any
    """A matrix with one row per paper, or `SentenceVectors`."""

    path: Path | None = None
    """Where they are on disk, to be shared where the papers there are just those of the index."""


@dataclass
class GenerationVectors:
    """The vectors of an index's next generation, whose papers' columns are already in the artifact's folder."""

    artifact: ArtifactWriter
    embedding: Embedding | None
    """None: no vector is made that is not known."""

    last: Index | None = None
    precomputed: PrecomputedVectors | None = None
    new: NDArray[np.int64] | None = None
    """Rows of papers that are looked up and embedded, all others are only carried over; None: all."""

    reporter: Reporter = field(default_factory=lambda: QUIET)
    vectors: list[KnownRows] = field(default_factory=list)
    sentences: list[KnownRows] = field(default_factory=list)
    passes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        papers = self.artifact.folder / "papers"
        self._keys = TextColumn(papers, "id").keys()
        self._text_keys: Keys = open_numbers(papers / "text_key.npy", np.uint64)
        self.status = np.full(len(self._keys), NOT_YET, np.uint8)
        """What `embedded.npy` says of every paper, (papers,)."""
        self._is_new = np.full(len(self._keys), self.new is None)
        self._is_new[self.new if self.new is not None else []] = True

    def write(self) -> dict[str, Any]:
        """Write all vectors of the next generation; return facts for its manifest."""
        self._carry_over()
        if self.embedding is not None:
            self._look_up(self.embedding)
            self._embed(self.embedding)
        folder = self.artifact.folder
        provenance = self.embedding.provenance if self.embedding else self.last.provenance if self.last else None
        write_numbers(folder / "embedded.npy", self.status)
        spaces = self._write_matrices(folder, provenance) if provenance is not None else []
        return {
            "provenance": asdict(provenance) if provenance else None,
            "spaces": spaces,
            "with_vector": int((self.status == HAS_VECTOR).sum()),
            "without_vector": int((self.status == HAS_NONE).sum()),
            "passes": sorted(self.passes),
        }

    # where vectors come from

    def _carry_over(self) -> None:
        """Take the vectors of papers with the same text from the last generation."""
        last = self.last
        if last is None or last.matrix is None:
            return
        tried = np.flatnonzero(last.embedded != NOT_YET)
        at = find_keys(self._text_keys, last.text_keys[tried])
        rows = np.where(at >= 0, tried[at] if len(tried) else -1, -1)
        self.status[rows >= 0] = last.embedded[rows[rows >= 0]]
        rows = np.where(self.status == HAS_VECTOR, rows, -1)
        if not (rows >= 0).any():
            return
        self.vectors.append(KnownRows(rows, last.matrix, last.place / "matrix.npy"))
        self.passes |= {*last.facts.get("passes", [])}
        if last.sentences is not None:
            self._add_sentences(rows, last.sentences, last.place / SENTENCES)

    def _look_up(self, embedding: Embedding) -> None:
        """Take precomputed vectors, by id, of papers that have none yet."""
        given = self.precomputed
        if given is None:
            return
        rows = np.where(self._waiting(), find_keys(self._keys, given.vectors.ids.keys()), -1)
        for start in range(0, len(rows), _BLOCK):
            part = rows[start : start + _BLOCK]
            with np.errstate(over="ignore"):
                block = given.vectors.matrix[part[part >= 0]].astype(embedding.dtype)
            part[np.flatnonzero(part >= 0)[~(np.isfinite(block).all(axis=1) & block.any(axis=1))]] = -1
        if (rows >= 0).any():
            self.status[rows >= 0] = HAS_VECTOR
            self.vectors.append(KnownRows(rows, given.vectors.matrix))
            self.passes.add(PRECOMPUTED)
        if given.sentences is not None and embedding.sentences:
            self._add_sentences(np.where(self._is_new, self._rows_in(given.sentences.ids), -1), given.sentences)

    def _waiting(self) -> NDArray[np.bool_]:
        return np.asarray((self.status == NOT_YET) & self._is_new)

    def _embed(self, embedding: Embedding) -> None:
        """Embed the papers, and the sentences of papers, that have no vector yet."""
        options = EmbeddingOptions(dtype=embedding.dtype, shard=embedding.shard)
        rows = np.flatnonzero(self._waiting())
        if len(rows):
            work = self.artifact.scratch_folder("papers")
            papers, vectors = self._write_texts(rows, work), None
            if embedding.sentences and reads_together(embedding.encoder):
                both = embed_papers_and_sentences(papers, embedding.encoder, work, options, reporter=self.reporter)
                vectors, sentences = both.vectors, both.sentences
                self.passes.add(TOGETHER)
                if sentences is not None:
                    self._add_sentences(self._rows_in(sentences.ids), sentences, work / "sentences")
            else:
                with suppress(EmptyResultError):
                    vectors = embed_papers(papers, embedding.encoder, work / "vectors", options, reporter=self.reporter)
                self.passes.add(PAPERS_ALONE)
            self.status[rows] = HAS_NONE
            if vectors is not None:
                found = self._rows_in(vectors.ids)
                self.status[found >= 0] = HAS_VECTOR
                self.vectors.append(KnownRows(found, vectors.matrix, vectors.folder / "matrix.npy"))
        if embedding.sentences:
            self._embed_sentences(embedding, options)

    def _embed_sentences(self, embedding: Embedding, options: EmbeddingOptions) -> None:
        rows = np.flatnonzero((self.status == HAS_VECTOR) & self._is_new & ~self._with_sentences())
        if not len(rows):
            return
        work = self.artifact.scratch_folder("abstracts")
        with suppress(EmptyResultError):
            papers = self._write_texts(rows, work)
            made = embed_sentences(papers, embedding.encoder, work / "vectors", options, reporter=self.reporter)
            self._add_sentences(self._rows_in(made.ids), made, work / "vectors")

    def _with_sentences(self) -> NDArray[np.bool_]:
        known = np.zeros(len(self.status), bool)
        for part in self.sentences:
            known |= part.rows >= 0
        return known

    def _add_sentences(self, rows: NDArray[np.int64], vectors: SentenceVectors, path: Path | None = None) -> None:
        """Take the sentence vectors of papers that have none yet."""
        counts = np.append(np.diff(vectors.offsets), 0)  # for -1
        rows = np.where((counts[rows] > 0) & ~self._with_sentences() & (self.status != HAS_NONE), rows, -1)
        if (rows >= 0).any():
            self.sentences.append(KnownRows(rows, vectors, path))

    def _rows_in(self, ids: Any) -> NDArray[np.int64]:
        return find_keys(self._keys, ids.keys() if isinstance(ids, TextColumn) else id_keys(ids))

    def _write_texts(self, rows: NDArray[np.int64], work: Path) -> Corpus:
        """Write the texts of some papers as a small corpus to embed; all papers are embedded from their own columns."""
        folder = self.artifact.folder
        if len(rows) < len(self.status):
            for name in ("id", "title", "abstract", "venue", "authors"):
                writer = TextWriter(work / "papers", name)
                for start in range(0, len(rows), _BLOCK):
                    writer.append_bytes(*TextColumn(folder / "papers", name).gather(rows[start : start + _BLOCK]))
                writer.close()
            years = open_numbers(folder / "papers" / "year.npy", np.int16)
            write_numbers(work / "papers" / "year.npy", years[rows], np.int16)
            folder = work
        digest = hashlib.sha256()
        for name in ("id.utf8", "title.utf8", "title.offsets.npy", "abstract.utf8", "abstract.offsets.npy"):
            with open_input(folder / "papers" / name) as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return Corpus(folder, Manifest("papers", 1, {}, {}, {"papers": {"sha256": digest.hexdigest()}}))

    # what is written

    def _write_matrices(self, folder: Path, provenance: Provenance) -> list[int]:
        """Write the vectors of papers and sentences, the spaces of aspects and the codes; return the spaces' widths."""
        papers = len(self.status)
        _write_rows(folder / "matrix.npy", provenance, self.vectors, papers)
        if self.sentences or (self.embedding and self.embedding.sentences):
            _write_sentences(folder / SENTENCES, provenance, self.sentences, papers)
        widths = self._write_spaces(folder, provenance)
        matrices = {folder / "codes": (folder / "matrix.npy", papers, provenance.dimension)}
        for number, width in enumerate(widths):
            matrices[folder / "codes" / str(number)] = folder / "spaces" / f"{number}.npy", papers, width
        if (folder / SENTENCES).is_dir():
            sentences = len(open_numbers(folder / SENTENCES / "numbers.npy", np.int32))
            matrices[folder / SENTENCES / "codes"] = folder / SENTENCES / "matrix.npy", sentences, provenance.dimension
        for place, (path, rows, width) in matrices.items():
            if rows >= CODED:
                write_codes(place, open_matrix(path, provenance.dtype, (rows, width)))
        return widths

    def _write_spaces(self, folder: Path, provenance: Provenance) -> list[int]:
        """Project the vectors into the space of every aspect, at length 1; return the dimensions."""
        heads = self.embedding.heads if self.embedding else self.last.heads if self.last else None
        if heads is None:
            return []
        papers = len(self.status)
        matrix = open_matrix(folder / "matrix.npy", provenance.dtype, (papers, provenance.dimension))
        with self.reporter.task("projecting", papers * len(heads.names), "vectors") as advance:
            for number, name in enumerate(heads.names):
                writer = MatrixWriter(folder / "spaces" / f"{number}.npy", provenance.dtype, heads.dimension(name))
                for start in range(0, papers, _BLOCK):
                    projected = heads.project(matrix[start : start + _BLOCK], name)  # (block, dimension)
                    writer.append(unit_rows(projected))
                    advance(len(projected))
                writer.close()
        return [heads.dimension(name) for name in heads.names]


def _write_rows(path: Path, provenance: Provenance, parts: Sequence[KnownRows], papers: int) -> None:
    """Write a matrix with one row per paper, zeros where no part has it; share the file of a part that has all."""
    if len(parts) == 1 and parts[0].path and _are_all(parts[0].rows, len(parts[0].vectors)):
        link_or_copy(parts[0].path, path)
        return
    writer = MatrixWriter(path, provenance.dtype, provenance.dimension)
    for start in range(0, papers, _BLOCK):
        block = np.zeros((min(_BLOCK, papers - start), provenance.dimension), provenance.dtype)
        for part in parts:
            rows = part.rows[start : start + _BLOCK]
            block[rows >= 0] = part.vectors[rows[rows >= 0]]
        writer.append(block)
    writer.close()


def _write_sentences(folder: Path, provenance: Provenance, parts: Sequence[KnownRows], papers: int) -> None:
    """Write the sentence vectors of the papers, in blocks of papers."""
    folder.mkdir(parents=True, exist_ok=True)
    if len(parts) == 1 and parts[0].path and _are_all(parts[0].rows, len(parts[0].vectors.offsets) - 1):
        for name in ("offsets.npy", "numbers.npy", "matrix.npy"):
            link_or_copy(parts[0].path / name, folder / name)
        return
    counts = np.zeros(papers, np.int64)
    for part in parts:
        known = part.rows >= 0
        counts[known] = np.diff(part.vectors.offsets)[part.rows[known]]
    bounds = to_offsets(counts)  # (papers + 1,)
    numbers = np.empty(int(bounds[-1]), np.int32)
    writer = MatrixWriter(folder / "matrix.npy", provenance.dtype, provenance.dimension)
    for start in range(0, papers, _BLOCK):
        stop = min(start + _BLOCK, papers)
        first, last = int(bounds[start]), int(bounds[stop])
        block = np.empty((last - first, provenance.dimension), provenance.dtype)
        for part in parts:
            own = start + np.flatnonzero(part.rows[start:stop] >= 0)
            source = spans(np.asarray(part.vectors.offsets)[part.rows[own]], counts[own])
            target = spans(bounds[own], counts[own])
            block[target - first] = part.vectors.matrix[source]
            numbers[target] = np.asarray(part.vectors.numbers)[source]
        writer.append(block)
    writer.close()
    write_numbers(folder / "offsets.npy", bounds, np.int64)
    write_numbers(folder / "numbers.npy", numbers, np.int32)


def _are_all(rows: NDArray[np.int64], size: int) -> bool:
    """Return whether the papers of the next generation are just the rows of a source, in their order."""
    return len(rows) == size and bool((rows == np.arange(size)).all())
