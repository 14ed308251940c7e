"""The citing sentences of a segment: chosen and embedded out of a corpus, or taken over from other segments.

A segment keeps the sentences that cite its papers. Which are kept is drawn once, when a paper is written: sentences that
a later corpus adds come with the papers that are written then.

The vectors of a segment: made by a model, or taken over row by row.

    embed_segment(artifact, embedding, keys, reporter)      reads the papers that lie in the artifact's folder
    take_vectors(folder, chosen, segments)                  rows of other segments

Both leave embedded.npy, and where there are vectors matrix.npy, spaces/ and abstract_sentences/. Where sentences are wanted
too, one pass of the network makes both kinds of vectors, unless the encoder's pooling needs a pass of its own.

From papers to a segment of an index that is being written.

    write_segment(writer, recipe, chosen, lambda artifact: embed_segment(artifact, how))

A segment that an interrupted writer had finished or begun, by the same recipe, is taken over. No state names the
segment until the caller commits one.
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

from citeweave.core.artifact import ArtifactWriter, Manifest, matches, new_artifact, read_manifest
from citeweave.core.columns import (
    MatrixWriter,
    TextColumn,
    TextWriter,
    open_matrix,
    open_numbers,
    write_numbers,
)
from citeweave.core.errors import EmptyResultError
from citeweave.core.files import link_or_copy, open_input
from citeweave.core.progress import QUIET, Reporter
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.text import TextRecipe
from citeweave.encoders.aspects import AspectHeads
from citeweave.encoders.embed import SHARD, EmbeddingOptions, embed_papers, embed_texts
from citeweave.encoders.embed_sentences import embed_papers_and_sentences, embed_sentences
from citeweave.encoders.encoder import Encoder, TorchEncoder
from citeweave.encoders.sentence_encoder import reads_together
from citeweave.graph.intent_overlay import IntentOverlay
from citeweave.search.segment import (
    CODES,
    HAS_NONE,
    HAS_VECTOR,
    KIND,
    NOT_YET,
    PAPERS_ALONE,
    READ_AS,
    TOGETHER,
    VERSION,
    CitingSentences,
    Segment,
    SegmentMentions,
    SentenceTexts,
    choose_mentions,
    mentions_of,
)
from citeweave.search.segment_papers import SelectedPapers, spread, write_papers
from citeweave.search.state import Entry, IndexWriter
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.topk import write_codes
from citeweave.vectors.vectors import Provenance, Vectors

FOLDER = "sentences"


def embed_citing_sentences(
    artifact: ArtifactWriter,
    corpus: Corpus,
    places: NDArray[np.int64],
    encoder: Encoder,
    *,
    most: int,
    dtype: str,
    overlay: IntentOverlay | None = None,
    reporter: Reporter = QUIET,
) -> dict[str, int]:
    """Choose, embed and write the sentences that cite the papers at `places`; what the manifest should tell."""
    mentions = mentions_of(corpus, overlay)
    chosen = choose_mentions(mentions.take(np.flatnonzero(places[mentions.paper] >= 0)), most)
    contexts = np.unique(chosen.context)  # (sentences,)
    if not len(contexts):
        return {}
    made = embed_texts(
        encoder,
        [str(number) for number in contexts.tolist()],
        SentenceTexts(corpus, contexts),
        artifact.work("sentences") / "vectors",
        text_recipe=READ_AS,
        dtype=dtype,
        reporter=reporter,
    )
    kept = np.array([int(name) for name in made.ids], np.int64)  # ascending, (sentences with a vector,)
    count = _write(artifact.folder / FOLDER, corpus, chosen, kept, places)
    writer = MatrixWriter(artifact.folder / FOLDER / "matrix.npy", dtype, encoder.dimension)
    writer.append(made.matrix)
    writer.close()
    return {"sentences": len(kept), "sentences_left_out": len(contexts) - len(kept), "mentions": count}


def _write(
    folder: Path, corpus: Corpus, mentions: SegmentMentions, contexts: NDArray[np.int64], places: NDArray[np.int64]
) -> int:
    """All columns but the vectors; says how many mentions there are."""
    texts, citing = TextWriter(folder, "text"), TextWriter(folder, "citing")
    texts.append_bytes(*corpus.contexts.texts.gather(contexts))
    for row in np.asarray(corpus.contexts.citing)[contexts].tolist():
        citing.append([corpus.ids[row] if row >= 0 else ""])
    texts.close()
    citing.close()
    at = np.minimum(np.searchsorted(contexts, mentions.context), len(contexts) - 1)
    kept = np.flatnonzero(contexts[at] == mentions.context)
    kept = kept[np.argsort(places[mentions.paper[kept]], kind="stable")]
    _write_mentions(folder, places[mentions.paper[kept]], at[kept], mentions.intents[kept])
    return len(kept)


def take_citing_sentences(folder: Path, chosen: SelectedPapers, tables: list[CitingSentences | None]) -> dict[str, int]:
    """The sentences of other segments that cite the papers chosen, one table a source; none where none is left."""
    texts, citing = TextWriter(folder / FOLDER, "text"), TextWriter(folder / FOLDER, "citing")
    matrix: MatrixWriter | None = None
    papers, sentences, intents, count = [], [], [], 0
    for at, table in enumerate(tables):
        if table is None:
            continue
        places = chosen.places(at)[table.paper]
        used = np.flatnonzero(places >= 0)
        rows, sentence = np.unique(np.asarray(table.sentence)[used], return_inverse=True)
        texts.append_bytes(*table.texts.gather(rows))
        citing.append_bytes(*table.citing.gather(rows))
        matrix = matrix or MatrixWriter(folder / FOLDER / "matrix.npy", table.matrix.dtype, table.matrix.shape[1])
        matrix.append(table.matrix[rows])
        papers.append(places[used])
        sentences.append(sentence + count)
        intents.append(np.asarray(table.intents)[used])
        count += len(rows)
    texts.close()
    citing.close()
    if matrix is not None:
        matrix.close()
    if not count:
        for path in (folder / FOLDER).iterdir():
            path.unlink()
        (folder / FOLDER).rmdir()
        return {}
    paper = np.concatenate(papers)
    order = np.argsort(paper, kind="stable")
    _write_mentions(folder / FOLDER, paper[order], np.concatenate(sentences)[order], np.concatenate(intents)[order])
    return {"sentences": count, "mentions": len(paper)}


def _write_mentions(folder: Path, paper: NDArray[Any], sentence: NDArray[Any], intents: NDArray[Any]) -> None:
    write_numbers(folder / "paper.npy", paper, np.int32)
    write_numbers(folder / "sentence.npy", sentence, np.int32)
    write_numbers(folder / "intents.npy", intents, np.uint8)


# The vectors of a segment: made by a model, or taken over row by row.

SENTENCES = "abstract_sentences"
CODED = 2048
"""Rows from which on a matrix has codes; fewer are compared as fast without."""

_BLOCK = 16_384


@dataclass(frozen=True, slots=True)
class Embedding:
    """What makes the vectors of an index."""

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


def embed_segment(artifact: ArtifactWriter, how: Embedding, reporter: Reporter = QUIET) -> dict[str, Any]:
    """Embed the papers whose columns lie in the artifact's folder; what its manifest should tell."""
    folder, papers = artifact.folder, _papers(artifact.folder)
    options = EmbeddingOptions(dtype=how.dtype, shard=how.shard)
    together = how.sentences and reads_together(how.encoder)
    vectors: Vectors | None = None
    if together:
        work = artifact.work("papers-and-sentences")
        made = embed_papers_and_sentences(papers, how.encoder, work, options, reporter=reporter)
        vectors = made.vectors
        _write_sentences(folder / SENTENCES, how, papers, made.sentences, work / "sentences")
    else:
        with suppress(EmptyResultError):
            vectors = embed_papers(papers, how.encoder, artifact.work("papers") / "vectors", options, reporter=reporter)
    status = _write_vectors(folder, how, papers, vectors)
    spaces = write_spaces(folder, how, len(papers), reporter) if how.heads else []
    if how.sentences and not together:
        embed_abstracts(artifact, how, reporter)
    return vector_facts(how.provenance, spaces, status, [TOGETHER if together else PAPERS_ALONE])


def vector_facts(
    provenance: Provenance | None, spaces: list[int], status: NDArray[np.uint8], passes: list[str]
) -> dict[str, Any]:
    """What a segment's manifest says about its vectors."""
    return {
        "provenance": asdict(provenance) if provenance else None,
        "spaces": spaces,
        "with_vector": int((status == HAS_VECTOR).sum()),
        "without_vector": int((status == HAS_NONE).sum()),
        "passes": passes,
    }


def leave_empty(folder: Path, papers: int) -> dict[str, Any]:
    """Words only: no paper was tried yet."""
    status = np.full(papers, NOT_YET, np.uint8)
    write_numbers(folder / "embedded.npy", status)
    return vector_facts(None, [], status, [])


def _papers(folder: Path) -> Corpus:
    """The columns of a segment, which are named as those of a corpus, as one that can be embedded."""
    digest = hashlib.sha256()
    for name in ("id.utf8", "title.utf8", "title.offsets.npy", "abstract.utf8", "abstract.offsets.npy"):
        with open_input(folder / "papers" / name) as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return Corpus(folder, Manifest(KIND, VERSION, {}, {}, {"papers": {"sha256": digest.hexdigest()}}))


def _write_vectors(folder: Path, how: Embedding, papers: Corpus, made: Vectors | None) -> NDArray[np.uint8]:
    """The papers' own vectors as files of the segment; which paper has one, as `embedded.npy` says it."""
    status = np.full(len(papers), HAS_NONE, np.uint8)
    if made is None:
        _write_rows(
            folder / "matrix.npy", how, np.empty(0, np.int64), np.empty((0, how.encoder.dimension)), len(papers)
        )
    else:
        rows = np.flatnonzero(np.isin(papers.ids.keys(), made.ids.keys()))
        assert len(rows) == len(made), (len(rows), len(made))
        status[rows] = HAS_VECTOR
        if len(rows) == len(papers):
            link_or_copy(made.folder / "matrix.npy", folder / "matrix.npy")
        else:
            _write_rows(folder / "matrix.npy", how, rows, made.matrix, len(papers))
    write_numbers(folder / "embedded.npy", status)
    return status


def _write_rows(path: Path, how: Embedding, rows: NDArray[np.int64], matrix: NDArray[Any], papers: int) -> None:
    """A matrix of all papers, with zeros where a paper has no row."""
    writer = MatrixWriter(path, how.dtype, how.encoder.dimension)
    for start in range(0, papers, _BLOCK):
        block = np.zeros((min(_BLOCK, papers - start), how.encoder.dimension), how.dtype)
        first, last = np.searchsorted(rows, [start, start + len(block)])
        block[rows[first:last] - start] = matrix[first:last]
        writer.append(block)
    writer.close()


def write_spaces(folder: Path, how: Embedding, papers: int, reporter: Reporter) -> list[int]:
    """The vectors in the space of every aspect, at length 1; how many numbers each has."""
    heads = how.heads
    assert heads is not None
    matrix = open_matrix(folder / "matrix.npy", how.dtype, (papers, how.encoder.dimension))
    with reporter.task("projecting", papers * len(heads.names), "vectors") as advance:
        for number, name in enumerate(heads.names):
            writer = MatrixWriter(folder / "spaces" / f"{number}.npy", how.dtype, heads.dimension(name))
            for start in range(0, papers, _BLOCK):
                found = heads.project(matrix[start : start + _BLOCK], name)  # (block, dimension)
                writer.append(at_length_1(found))
                advance(len(found))
            writer.close()
    return [heads.dimension(name) for name in heads.names]


def embed_abstracts(artifact: ArtifactWriter, how: Embedding, reporter: Reporter = QUIET) -> None:
    """Vectors of the sentences of the papers whose columns lie in the artifact's folder."""
    papers, options = _papers(artifact.folder), EmbeddingOptions(dtype=how.dtype, shard=how.shard)
    work, made = artifact.work("abstracts") / "vectors", None
    with suppress(EmptyResultError):
        made = embed_sentences(papers, how.encoder, work, options, reporter=reporter)
    _write_sentences(artifact.folder / SENTENCES, how, papers, made, work)


def _write_sentences(folder: Path, how: Embedding, papers: Corpus, made: SentenceVectors | None, made_in: Path) -> None:
    """The vectors of sentences, which lie in another folder, as files of the segment."""
    counts = np.zeros(len(papers), np.int64)
    if made is None:
        numbers: NDArray[Any] = np.empty(0, np.int32)
        _write_rows(folder / "matrix.npy", how, np.empty(0, np.int64), np.empty((0, how.encoder.dimension)), 0)
    else:
        assert isinstance(made.ids, TextColumn)
        counts[np.isin(papers.ids.keys(), made.ids.keys())] = made.lengths()
        numbers = made.numbers
        link_or_copy(made_in / "matrix.npy", folder / "matrix.npy")
    write_numbers(folder / "offsets.npy", np.concatenate([[0], np.cumsum(counts)]), np.int64)
    write_numbers(folder / "numbers.npy", numbers, np.int32)


def write_all_codes(folder: Path, facts: dict[str, Any], papers: int) -> None:
    """Codes beside every matrix that is large enough to need them."""
    told = facts["provenance"]
    if told is None:
        return
    widths = {folder / "matrix.npy": told["dimension"]}
    places = {folder / "matrix.npy": folder / "codes"}
    for number, width in enumerate(facts["spaces"]):
        path = folder / "spaces" / f"{number}.npy"
        widths[path], places[path] = width, folder / "codes" / str(number)
    rows = dict.fromkeys(widths, papers)
    if (folder / SENTENCES).is_dir():
        path = folder / SENTENCES / "matrix.npy"
        widths[path], places[path] = told["dimension"], folder / SENTENCES / "codes"
        rows[path] = len(open_numbers(folder / SENTENCES / "numbers.npy", np.int32))
    if facts.get("sentences"):
        path = folder / FOLDER / "matrix.npy"
        widths[path], places[path], rows[path] = told["dimension"], folder / FOLDER / CODES, facts["sentences"]
    for path, width in widths.items():
        if rows[path] >= CODED:
            write_codes(places[path], open_matrix(path, told["dtype"], (rows[path], width)))


def take_vectors(
    folder: Path, chosen: SelectedPapers, segments: Sequence[Segment], *, sentences: bool = True
) -> dict[str, Any]:
    """The vectors that the chosen papers have in other segments, one a source; what the manifest should tell."""
    status = chosen.numbers([segment.embedded for segment in segments])
    write_numbers(folder / "embedded.npy", status, np.uint8)
    known = [segment for segment in segments if segment.provenance is not None]
    if not known:
        return vector_facts(None, [], status, [])
    provenance = known[0].provenance
    assert provenance is not None
    _take_rows(folder / "matrix.npy", chosen, [segment.matrix for segment in segments], provenance.dtype)
    for number in range(len(known[0].spaces)):
        parts = [segment.spaces[number] if segment.spaces else None for segment in segments]
        _take_rows(folder / "spaces" / f"{number}.npy", chosen, parts, provenance.dtype)
    if sentences and any(segment.sentences is not None for segment in segments):
        _take_sentences(folder / SENTENCES, chosen, segments, provenance)
    passes = {each for at in np.unique(chosen.source).tolist() for each in segments[at].passes}
    return vector_facts(provenance, [space.shape[1] for space in known[0].spaces], status, sorted(passes))


def _take_rows(path: Path, chosen: SelectedPapers, parts: Sequence[NDArray[Any] | None], dtype: str) -> None:
    width = next(part.shape[1] for part in parts if part is not None)
    writer = MatrixWriter(path, dtype, width)
    for start in range(0, len(chosen), _BLOCK):
        source, row = chosen.source[start : start + _BLOCK], chosen.row[start : start + _BLOCK]
        block = np.zeros((len(row), width), dtype)
        for at, part in enumerate(parts):
            own = np.flatnonzero(source == at)
            if part is not None and len(own):
                block[own] = part[row[own]]
        writer.append(block)
    writer.close()


def _take_sentences(folder: Path, chosen: SelectedPapers, segments: Sequence[Segment], provenance: Provenance) -> None:
    """Row after row as the papers stand, in blocks of papers."""
    none = [np.zeros(segment.size + 1, np.int64) for segment in segments]
    offsets = [
        none[at] if segment.sentences is None else np.asarray(segment.sentences.offsets)
        for at, segment in enumerate(segments)
    ]
    numbers = [
        np.empty(0, np.int32) if segment.sentences is None else np.asarray(segment.sentences.numbers)
        for segment in segments
    ]
    bounds, kept = chosen.ragged(offsets, numbers)
    write_numbers(folder / "offsets.npy", bounds, np.int64)
    write_numbers(folder / "numbers.npy", kept, np.int32)
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


def at_length_1(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows (papers, dimension) at length 1, which float16 can hold; rows of zeros stay."""
    found: NDArray[np.float32] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return found


# From papers to a segment of an index that is being written.

Fill = Callable[[ArtifactWriter], dict[str, Any]]
"""Writes vectors and citing sentences into the folder where the papers are; what the manifest should tell."""


def write_segment(writer: IndexWriter, recipe: dict[str, Any], chosen: SelectedPapers, fill: Fill) -> Entry:
    """Write the chosen papers as a new segment."""
    folder = writer.segment(recipe)
    if matches(folder, KIND, VERSION, recipe):
        return Entry(folder.name, read_manifest(folder, KIND, VERSION).hash, len(chosen))
    with new_artifact(folder, KIND, VERSION, recipe, overwrite=True) as artifact:
        write_papers(artifact.folder, chosen)
        facts = fill(artifact)
        write_all_codes(artifact.folder, facts, len(chosen))
        artifact.facts |= {"papers": len(chosen), **facts}
        return Entry(folder.name, artifact.finish().hash, len(chosen))
