"""Texts of a corpus's papers to embed: title and abstract, single sentences, or full texts in chunks that fit the model.

    texts = PaperTexts(corpus, TextRecipe())
    len(texts) == len(corpus), texts[:2] == ["A title[SEP]An abstract.", ...]

Full texts are title and abstract, then the sections; a corpus holds none, so they come from a file, one paper per line:

    {"id": "s2:1", "sections": [{"heading": "Introduction", "text": "Maps of ..."}, ...]}

    full = FullText.index("full.jsonl", corpus)
    embed_full_text(corpus, encoder, "vectors", full)                   the mean of the chunks, weighted by their tokens
    embed_full_text(corpus, encoder, "chunks", full, several=True)      SentenceVectors: one row per chunk

No chunk crosses sections, and nothing is truncated. A paper that is not in the file is embedded by its title and abstract.
The file is read in place, and only 16 bytes per paper are in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from citeweave.core.columns import release
from citeweave.core.errors import InputError, UserError
from citeweave.core.files import open_input
from citeweave.core.hash_keys import hash_texts
from citeweave.core.inputs import MAX_LINE, BadRecordError, Source, parse_json_object
from citeweave.core.progress import Count, Reporter, Tally
from citeweave.core.ragged import Longs, Ragged, number_within, to_offsets
from citeweave.corpus.corpus import Corpus, lines
from citeweave.corpus.text import TextRecipe, paper_text, sentence_texts
from citeweave.encoders.batches import SavedBatches
from citeweave.encoders.model_folder import ASPECT_WORDS
from citeweave.encoders.shards import Arrays, ShardMaker, ShardReporter, drop_empty_rows, ragged_rows
from citeweave.encoders.tokens import TextReader, Tokens
from citeweave.vectors.vectors import unit_rows

FULL_TEXT_SHARD = 1024
"""Papers per shard: a full text has some twenty chunks."""

_READ = 64

Split = tuple[str, list[str]]
"""A paper's title and the sentences of its abstract."""


class PaperTexts(Sequence[str]):
    """The texts of papers to embed, read slice by slice; empty where a paper has none of the recipe's parts."""

    def __init__(self, corpus: Corpus, recipe: TextRecipe) -> None:
        self.corpus, self.recipe = corpus, recipe
        self._columns = {
            "title": corpus.titles,
            "abstract": corpus.abstracts,
            "venue": corpus.venues,
            "authors": corpus.authors,
        }

    def __len__(self) -> int:
        return len(self.corpus)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if not isinstance(row, slice):
            return self[row : row + 1 or None][0]
        return self.take(np.arange(len(self))[row])

    def take(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the texts to embed of the papers in these rows."""
        empty = [""] * len(rows)
        parts = [column.take(rows) if name in self.recipe.parts else empty for name, column in self._columns.items()]
        release(*self._columns.values())  # else a corpus that is read from end to end would stay in memory
        return [
            paper_text(title, abstract, self.recipe, venue=venue, authors=lines(authors))
            for title, abstract, venue, authors in zip(*parts, strict=True)
        ]


def split_papers(corpus: Corpus, start: int, stop: int) -> list[Split]:
    """Split the papers of these rows into titles and sentences to embed."""
    pairs = zip(corpus.titles[start:stop], corpus.abstracts[start:stop], strict=True)
    return [(title, sentence_texts(abstract) or [text for text in [title] if text]) for title, abstract in pairs]


@dataclass(frozen=True, slots=True)
class FullText:
    """The position of each paper's full text in a file of JSON lines."""

    path: Path
    starts: Longs
    """(papers,) first byte of the paper's line, -1 where there is none."""

    lengths: Longs
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


def split_chunks(reader: TextReader, texts: Sequence[str]) -> list[Tokens]:
    """Split full texts to embed into chunks of at most max_tokens tokens, special tokens included."""
    room = reader.max_tokens - len(reader.opening) - len(reader.closing)
    return [
        np.concatenate([reader.opening, ids[start : start + room], reader.closing])
        for ids in reader.pieces([reader.prompt + text for text in texts if text])
        for start in range(0, len(ids), room)
    ]


def _pool_chunks(chunks: NDArray[np.float32], weights: Longs, offsets: Longs) -> NDArray[np.float32]:
    """Return the weighted mean of each paper's chunks[offsets[i]:offsets[i + 1]], (papers, dimension); zeros without one.

    >>> _pool_chunks(np.array([[1, 0], [0, 1], [2, 2]], np.float32), np.array([3, 1, 5]), np.array([0, 2, 2, 3])).tolist()
    [[0.75, 0.25], [0.0, 0.0], [2.0, 2.0]]
    """
    papers = Ragged(offsets)
    pooled = np.zeros((len(papers), chunks.shape[1]), np.float32)
    for paper in np.flatnonzero(papers.lengths()).tolist():
        pooled[paper] = np.average(chunks[papers.span(paper)], axis=0, weights=weights[papers.span(paper)])
    return pooled


def chunk_maker(texts: Sequence[str], full_text: FullText, encoder: Any, dtype: str, several: bool) -> ShardMaker:
    """Return the maker that embeds a shard of full texts: one vector per paper, or with `several` one per chunk."""
    reader: TextReader = encoder.reader
    if reader.by_sentence:
        raise UserError(
            f"{encoder.name} reads title and abstract sentence by sentence (pooling {ASPECT_WORDS}), and full texts are cut "
            "into chunks; leave out the full text, or use another model"
        )
    around = len(reader.opening) + len(reader.closing)

    def read(start: int, stop: int) -> list[list[Tokens]]:
        heads = enumerate(texts[start:stop], start)
        return [split_chunks(reader, [head, *full_text.sections(row)]) for row, head in heads]

    def encode(papers: list[list[Tokens]], reporter: Reporter, saved: SavedBatches) -> Arrays:
        chunks, done = [chunk for paper in papers for chunk in paper], 0
        share = len(papers) / max(1, len(chunks))
        offsets = to_offsets([len(paper) for paper in papers])  # (papers + 1,)
        with reporter.task("embedding", len(papers), "papers") as advance:

            def advance_chunks(amount: int) -> None:
                nonlocal done
                before, done = done, done + amount
                advance(int(done * share) - int(before * share))

            inner = ShardReporter(advance_chunks, reporter)
            vectors = encoder.encode_tokens(chunks, reporter=inner, saved=saved)  # (chunks, dimension)
        if several:
            return ragged_rows(vectors, offsets, number_within(np.diff(offsets)), 0, dtype)
        pooled = _pool_chunks(vectors, np.array([len(chunk) - around for chunk in chunks]), offsets)
        if encoder.settings.normalize:
            pooled = unit_rows(pooled)
        return drop_empty_rows(pooled, dtype)

    return ShardMaker(read, encode, _READ)


def _sections(record: dict[str, object]) -> list[str]:
    values = record.get("sections")
    sections = [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []
    parts = [[value if isinstance(value := s.get(name), str) else "" for name in ("heading", "text")] for s in sections]
    return [text for heading, body in parts if (text := paper_text(heading, body))]
