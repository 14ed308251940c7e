"""The tokens of papers with their sentences: what training on sentences reads of a corpus.

    tokens, spans = read_sentences(corpus, rows, reader, folder)

A paper is read as `encoders/sentences.py` reads it: title, separator, the sentences of its abstract; the title is the
one sentence where there is no abstract. A paper of whose sentences none fits into the reader's length has one sentence:
all of its tokens. Tokens go to disk block by block and an interrupted run goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np

from citeweave.encoders.reading import TextReader, Tokens
from citeweave.encoders.sentence_layout import SentenceLayout, lay_out
from citeweave.encoders.token_store import TokenStore, make_token_store
from citeweave.files import hash_json
from citeweave.progress import QUIET, Reporter
from citeweave.training.data import Numbers
from citeweave.training.sentence_level.spans import Alignment, SentenceSpans, make_alignment

if TYPE_CHECKING:
    from citeweave.corpus.corpus import Corpus
    from citeweave.mining.samples import Samples

Split = tuple[str, list[str]]
"""A title and sentences."""


def read_sentences(
    corpus: Corpus, rows: Numbers, reader: TextReader, folder: Path, *, reporter: Reporter = QUIET
) -> tuple[TokenStore, SentenceSpans]:
    """Tokens of these papers, and where their sentences are; `folder` keeps what was tokenized."""
    records = make_token_store(
        _LayoutReader(reader),  # type: ignore[arg-type]  # it reads papers in sentences instead of texts
        _Splits(corpus, rows),  # type: ignore[arg-type]
        folder,
        recipe={"corpus": corpus.hash, "text_recipe": "title and sentences", "rows": hash_json(rows.tolist())},
        overwrite=True,
        reporter=reporter,
    )
    return _unpack(records)


def align(samples: Samples, rows: Numbers, spans: SentenceSpans) -> Alignment | None:
    """The alignment of samples by places among the sentences that have tokens; pairs that lost theirs are left out."""
    found = samples.alignment
    if found is None:
        return None
    anchors = np.searchsorted(rows, np.asarray(samples.anchors, np.int64)[samples.positives.owners()])
    positives = np.searchsorted(rows, np.asarray(samples.positives.rows, np.int64))
    sentences = np.stack(
        [
            _places(spans, anchors, np.asarray(found.anchor_sentences, np.int64)),
            _places(spans, positives, np.asarray(found.sentences, np.int64)),
        ],
        axis=1,
    )  # (picks, 2)
    keep = (sentences >= 0).all(axis=1)
    return make_alignment(anchors[keep], positives[keep], sentences[keep])


def _places(spans: SentenceSpans, papers: Numbers, numbers: Numbers) -> Numbers:
    """Where a paper's sentence of this number is among those that have tokens, -1 where it is not."""
    width = int(max(spans.numbers.max(initial=0), numbers.max(initial=0))) + 2
    owner = np.repeat(np.arange(len(spans.offsets) - 1), spans.counts())  # (sentences,)
    known = owner * width + spans.numbers + 1  # ascending: numbers ascend within a paper
    wanted = papers * width + numbers + 1
    at = np.minimum(np.searchsorted(known, wanted), max(0, len(known) - 1))
    hit = (known[at] == wanted) & (numbers >= 0) if len(known) else np.zeros(len(papers), bool)
    return np.where(hit, at - spans.offsets[papers], -1)


class _Splits(Sequence[Split]):
    """Titles and sentences of some papers, read slice by slice."""

    def __init__(self, corpus: Corpus, rows: Numbers) -> None:
        self._corpus, self._rows = corpus, rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, part: int) -> Split: ...
    @overload
    def __getitem__(self, part: slice) -> list[Split]: ...
    def __getitem__(self, part: int | slice) -> Split | list[Split]:
        from citeweave.corpus.text import sentence_texts

        rows = np.atleast_1d(self._rows[part])
        pairs = zip(self._corpus.titles.take(rows), self._corpus.abstracts.take(rows), strict=True)
        found = [_split(title, sentence_texts(abstract)) for title, abstract in pairs]
        return found if isinstance(part, slice) else found[0]


def _split(title: str, sentences: list[str]) -> Split:
    """
    >>> _split("A title", ["One."]), _split("A title alone", [])
    (('A title', ['One.']), ('', ['A title alone']))
    """
    return (title, sentences) if any(text.strip() for text in sentences) else ("", [title] if title else [])


@dataclass(frozen=True)
class _LayoutReader:
    """Reads papers into records of a token store: how many sentences, their starts, ends and numbers, then the tokens."""

    reader: TextReader

    @property
    def tokenizer(self) -> object:
        return self.reader.tokenizer

    @property
    def max_tokens(self) -> int:
        return self.reader.max_tokens

    @property
    def lower(self) -> bool:
        return self.reader.lower

    @property
    def prompt(self) -> str:
        return self.reader.prompt

    def read(self, papers: Sequence[Split]) -> list[Tokens]:
        layouts = lay_out(self.reader, [title for title, _ in papers], [sentences for _, sentences in papers])
        return [_record(layout) for layout in layouts]


def _record(layout: SentenceLayout) -> Tokens:
    if not len(layout.tokens):
        return layout.tokens
    starts, ends, numbers = layout.starts, layout.ends, layout.numbers
    if not len(numbers):
        starts, ends, numbers = np.array([0]), np.array([len(layout.tokens)]), np.array([-1])
    return np.concatenate([[len(numbers)], starts, ends, numbers + 1, layout.tokens])


def _unpack(records: TokenStore) -> tuple[TokenStore, SentenceSpans]:
    """Tokens and spans apart.

    >>> record = _record(SentenceLayout(np.array([7, 8, 9]), np.array([1]), np.array([2]), np.array([4])))
    >>> store, spans = _unpack(TokenStore(record.astype(np.uint16), np.array([0, len(record)])))
    >>> store[0].tolist(), spans.starts.tolist(), spans.ends.tolist(), spans.numbers.tolist()
    ([7, 8, 9], [1], [2], [4])
    """
    begins, lengths = records.offsets[:-1], records.lengths()
    counts = np.zeros(len(records), np.int64)  # (papers,)
    counts[lengths > 0] = records.ids[begins[lengths > 0]]
    heads = np.where(lengths > 0, 1 + 3 * counts, 0)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    within = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], counts)  # (sentences,)
    columns = [
        records.ids[np.repeat(begins + 1 + column * counts, counts) + within].astype(np.int64) for column in range(3)
    ]
    is_token = np.ones(len(records.ids), bool)
    marks = np.repeat(begins - (np.cumsum(heads) - heads), heads) + np.arange(int(heads.sum()))
    is_token[marks] = False
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths - heads)])
    tokens = TokenStore(np.asarray(records.ids)[is_token], ends)
    return tokens, SentenceSpans(offsets, columns[0], columns[1], columns[2] - 1)
