"""Embed full texts: title and abstract, then the sections, in chunks that fit the model; one vector per paper or chunk.

    {"id": "s2:1", "sections": [{"heading": "Introduction", "text": "Maps of ..."}, ...]}      one line per paper

    full = FullText.index("full.jsonl", corpus)
    embed_full_text(corpus, encoder, "vectors", full)                   the mean of the chunks, weighted by their tokens
    embed_full_text(corpus, encoder, "chunks", full, several=True)      SentenceVectors: one row per chunk

No chunk crosses sections, and nothing is truncated. A paper that is not in the file is embedded by its title and abstract.
A corpus holds no full text, hence the file; it is read in place, and only 16 bytes per paper are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.artifact import artifact_matches
from citeweave.core.errors import InputError, UserError
from citeweave.core.files import hash_file, open_input
from citeweave.core.hash_keys import hash_texts
from citeweave.core.inputs import MAX_LINE, BadRecordError, Source, parse_json_object
from citeweave.core.progress import QUIET, Advance, Count, Reporter, Tally
from citeweave.corpus.corpus import Corpus
from citeweave.corpus.text import paper_text
from citeweave.encoders.batches import SavedBatches
from citeweave.encoders.embed import EmbeddingOptions, PaperTexts, as_encoders, plan_embedding
from citeweave.encoders.encoder import Encoder
from citeweave.encoders.model_folder import ASPECT_WORDS
from citeweave.encoders.shards import (
    Arrays,
    RemoteMaker,
    ShardMaker,
    drop_empty_rows,
    write_ragged_vectors,
    write_vectors,
)
from citeweave.encoders.tokens import TextReader, Tokens
from citeweave.vectors import sentence_vectors, vectors
from citeweave.vectors.sentence_vectors import SentenceVectors
from citeweave.vectors.vectors import Vectors, unit_rows

FULL_TEXT_SHARD = 1024
"""Papers per shard: a full text has some twenty chunks."""

_OPTIONS = EmbeddingOptions(shard=FULL_TEXT_SHARD)
_READ = 64


@dataclass(frozen=True, slots=True)
class FullText:
    """The position of each paper's full text in a file of JSON lines."""

    path: Path
    starts: NDArray[np.int64]
    """(papers,) first byte of the paper's line, -1 where there is none."""

    lengths: NDArray[np.int64]
    tally: Tally = field(default_factory=lambda: Tally({"full texts": Count()}))

    @classmethod
    def index(cls, path: str | Path, corpus: Corpus) -> FullText:
        """Index a file of full texts to embed by the papers of a corpus; other records are counted."""
        path, count = Path(path), len(corpus)
        full = cls(path, np.full(count, -1, np.int64), np.zeros(count, np.int64))
        # offsets are those of the file itself, so it must not be compressed
        with Source(path).open() as unpacked, open_input(path) as plain:
            head = unpacked.read(64)
            is_plain = head == plain.read(64) and head.lstrip().startswith(b"{")
        if not is_plain:
            raise InputError(
                f"{path} is not a plain file of JSON lines; decompress it, one paper with its sections per line"
            )
        at = 0
        for line in Source(path).raw_lines(full.tally, "full texts"):
            full._index_line(corpus, line, at)
            at += len(line)
        if at != path.stat().st_size:
            raise InputError(f"{path} has a line longer than {MAX_LINE >> 20} MiB; no paper is that long")
        return full

    def sections(self, row: int) -> list[str]:
        """Return the sections of a paper's full text, heading and text joined; empty where the file lacks the paper."""
        if self.starts[row] < 0:
            return []
        with open_input(self.path) as file:
            file.seek(int(self.starts[row]))
            line = file.read(int(self.lengths[row]))
        return _sections(parse_json_object(line))

    def _index_line(self, corpus: Corpus, line: bytes, at: int) -> None:
        if not line.strip():
            return
        try:
            record = parse_json_object(line)
            if not isinstance(record.get("id"), str) or not isinstance(record.get("sections"), list):
                raise BadRecordError("no id or no list of sections")
            row = int(corpus.index.rows_of(hash_texts([str(record["id"])]))[0])
            if row < 0:
                raise BadRecordError("id that is not in the corpus")
            if self.starts[row] >= 0:
                raise BadRecordError("id given before")
        except BadRecordError as error:
            self.tally.reject("full texts", str(error))
            return
        self.starts[row], self.lengths[row] = at, len(line)
        self.tally.keep("full texts")


def embed_full_text(
    corpus: Corpus,
    encoder: Encoder | Sequence[Encoder],
    folder: str | Path,
    full_text: FullText,
    options: EmbeddingOptions = _OPTIONS,
    *,
    several: bool = False,
    overwrite: bool = False,
    reporter: Reporter = QUIET,
) -> Vectors | SentenceVectors:
    """Embed full texts into a folder: one vector per paper, or with `several` one per chunk."""
    encoders = as_encoders(encoder)
    if not all(hasattr(one, "encode_tokens") for one in encoders) or options.tokens is not None:
        raise UserError(
            "full texts are cut into chunks by the encoder's tokens; leave out --tokens, or use a model folder"
        )
    plan = plan_embedding(corpus, encoders[0], options, overwrite=overwrite, read="+sections")
    plan.recipe.update({"full_text": hash_file(full_text.path), "several": several})
    kind = sentence_vectors if several else vectors
    if artifact_matches(Path(folder), kind.KIND, kind.VERSION, plan.recipe):
        reporter.say(f"{folder} already exists: same papers, texts and model")
        return SentenceVectors.open(folder) if several else Vectors.open(folder)
    texts = PaperTexts(corpus, options.text)
    makers: Sequence[ShardMaker] | RemoteMaker
    if options.remote is not None:
        payload = {**options.as_payload(), "full_text": str(full_text.path.resolve()), "several": several}
        makers = options.remote.make_task(corpus, encoders[0], "chunks", payload)
    else:
        makers = [chunk_maker(texts, full_text, one, options.dtype, several) for one in encoders]
    return (write_ragged_vectors if several else write_vectors)(Path(folder), plan, makers, reporter=reporter)


def split_chunks(reader: TextReader, texts: Sequence[str]) -> list[Tokens]:
    """Split full texts to embed into chunks of at most max_tokens tokens, special tokens included."""
    room = reader.max_tokens - len(reader.opening) - len(reader.closing)
    return [
        np.concatenate([reader.opening, ids[start : start + room], reader.closing])
        for ids in reader.pieces([reader.prompt + text for text in texts if text])
        for start in range(0, len(ids), room)
    ]


def _pool_chunks(chunks: NDArray[np.float32], weights: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[Any]:
    """Return the weighted mean of each paper's chunks[offsets[i]:offsets[i + 1]], (papers, dimension); zeros without one.

    >>> _pool_chunks(np.array([[1, 0], [0, 1], [2, 2]], np.float32), np.array([3, 1, 5]), np.array([0, 2, 2, 3])).tolist()
    [[0.75, 0.25], [0.0, 0.0], [2.0, 2.0]]
    """
    pooled = np.zeros((len(offsets) - 1, chunks.shape[1]), np.float32)
    for paper, (start, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        if end > start:
            pooled[paper] = np.average(chunks[start:end], axis=0, weights=weights[start:end])
    return pooled


def chunk_maker(texts: PaperTexts, full_text: FullText, encoder: Any, dtype: str, several: bool) -> ShardMaker:
    """Return the maker that embeds a shard of full texts: one vector per paper, or with `several` one per chunk."""
    reader: TextReader = encoder.reader
    if reader.by_sentence:
        raise UserError(
            f"{encoder.name} reads title and abstract sentence by sentence (pooling {ASPECT_WORDS}), and full texts are cut "
            "into chunks; leave out the full text, or use another model"
        )
    around = len(reader.opening) + len(reader.closing)

    def read(start: int, stop: int) -> Iterator[list[list[Tokens]]]:
        for at in range(start, stop, _READ):
            rows = range(at, min(at + _READ, stop))
            heads = texts[rows.start : rows.stop]
            yield [
                split_chunks(reader, [head, *full_text.sections(row)]) for head, row in zip(heads, rows, strict=True)
            ]

    def encode(papers: list[list[Tokens]], reporter: Reporter, saved: SavedBatches) -> Arrays:
        chunks = [chunk for paper in papers for chunk in paper]
        offsets = np.cumsum([0, *map(len, papers)], dtype=np.int64)  # (papers + 1,)
        scaled = _PaperProgress(reporter, len(papers))
        vectors = encoder.encode_tokens(chunks, reporter=scaled, saved=saved)  # (chunks, dimension)
        if several:
            numbers = np.arange(len(chunks)) - np.repeat(offsets[:-1], np.diff(offsets))
            with np.errstate(over="ignore"):  # numbers that are not finite are counted when they are written
                matrix = vectors.astype(dtype)
            return {"matrix": matrix, "offsets": offsets, "numbers": numbers, "lost": np.zeros(1, np.int64)}
        pooled = _pool_chunks(vectors, np.array([len(chunk) - around for chunk in chunks]), offsets)
        if encoder.settings.normalize:
            pooled = unit_rows(pooled)
        return drop_empty_rows(pooled, dtype)

    return ShardMaker(read, encode)


class _PaperProgress(Reporter):
    """Reports progress in papers while chunks are encoded."""

    def __init__(self, outer: Reporter, papers: int) -> None:
        super().__init__(quiet=outer.quiet, stream=outer.stream)
        self._outer, self._papers = outer, papers

    def say(self, message: str) -> None:
        self._outer.say(message)

    @contextmanager
    def task(self, label: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        done = reported = 0
        with self._outer.task(label, self._papers, "papers") as onward:

            def advance(amount: int) -> None:
                nonlocal done, reported
                done += amount
                now = done * self._papers // max(total or 1, 1)
                onward(now - reported)
                reported = now

            yield advance


def _sections(record: dict[str, object]) -> list[str]:
    values = record.get("sections")
    sections = [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []
    parts = [[value if isinstance(value := s.get(name), str) else "" for name in ("heading", "text")] for s in sections]
    return [text for heading, body in parts if (text := paper_text(heading, body))]
