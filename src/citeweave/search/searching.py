"""Searching an index: by a text, or by one of its papers; in the encoder's space or in that of an aspect.

    reader = open_reader(index)                                   the very model of the index, checked
    search_text(index, reader, "parsing with graphs", count=5)
    search_paper(index, "doi:10.1/x", count=5, aspect="method")   itself left out; no model is loaded

Does not mix spaces: one search, one space.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from citeweave.corpus.text import paper_text
from citeweave.encoders.encoder import Encoder, load_encoder
from citeweave.encoders.runtimes import AUTO, same_weights
from citeweave.encoders.torch_encoder import TorchEncoder
from citeweave.errors import UserError
from citeweave.search.exact import check_count, nearest_papers
from citeweave.search.index import Hit, Index
from citeweave.similarity.topk import Neighbors

MAX_TEXT = 100_000
"""Characters of a query; more is a mistake, as no model reads so many."""


@dataclass(frozen=True, slots=True)
class Reader:
    """The encoder of an index: makes vectors of texts that may be compared with its own."""

    index: Index
    encoder: Encoder
    any_runtime: bool = False
    """Whether the model may be computed by another runtime than the index was: scores then differ by about 0.001."""

    def __post_init__(self) -> None:
        known = self.index.provenance
        if known is None or (self.any_runtime and same_weights(self.encoder.revision, known.revision)):
            return
        if self.encoder.revision != known.revision:
            raise UserError(
                f"{self.index.folder} was made by {known.label}, and {self.encoder.name} is revision "
                f"{self.encoder.revision}: their vectors cannot be compared; give the index's own model with --model, "
                "or build the index again"
            )

    def read(self, text: str, aspect: str = "", *, abstract: str = "") -> NDArray[np.float32]:
        """The vector of a text in a space, (dimension,); with an abstract the text is a paper's title."""
        self.index.check_aspect(aspect)
        length = len(text) + len(abstract)
        if length > MAX_TEXT:
            raise UserError(f"the text has {length:,} characters; give at most {MAX_TEXT:,}")
        found = self.encoder.encode([paper_text(text, abstract)])  # (1, dimension)
        if not found.any() or not any(sign.isalnum() for sign in text + abstract):
            raise UserError(f"the text {text[:40]!r} holds no word that {self.encoder.name} can read; give another")
        return self.into(found[0], aspect)

    def into(self, vector: NDArray[np.float32], aspect: str) -> NDArray[np.float32]:
        """A vector of the encoder in a space."""
        heads = self.index.heads
        return heads.project(vector[None], aspect)[0] if aspect and heads is not None else vector


def open_reader(index: Index, model: str | Path | None = None, *, device: str = "auto") -> Reader:
    """Load the model that the index was made by: where it was then, or where `model` says it is now."""
    where = str(model or index.model)
    if not model and Path(where).is_absolute() and not Path(where).is_dir():
        raise UserError(f"the model of {index.folder} is no longer at {where}; say with --model where it is")
    encoder = load_reader_encoder(index, where, device=device, runtime=index.runtime)
    return Reader(index, encoder, any_runtime=index.any_runtime)


def load_reader_encoder(index: Index, model: str, *, device: str, runtime: str) -> TorchEncoder:
    """The model in this runtime; where it does not run and the index allows any, in the fastest one of this processor."""
    try:
        return load_encoder(model, device=device, runtime=runtime)
    except UserError:
        if not index.any_runtime or runtime == AUTO:
            raise
        return load_encoder(model, device=device, runtime=AUTO)


def search_text(index: Index, reader: Reader, text: str, *, count: int = 10, aspect: str = "") -> list[Hit]:
    """The papers nearest to a text."""
    check_count(count)
    return hits(index, nearest_papers(index, reader.read(text, aspect), count, aspect))


def search_paper(index: Index, paper: str, *, count: int = 10, aspect: str = "") -> list[Hit]:
    """The papers nearest to a paper of the index, by any of its ids."""
    check_count(count)
    row = index.row(paper)
    query = index.take(np.array([row]), aspect)[0]  # (dimension,)
    return hits(index, nearest_papers(index, query, count, aspect, itself=row))


def hits(index: Index, found: Neighbors) -> list[Hit]:
    """The first line of neighbours as papers."""
    pairs = zip(found.rows[0].tolist(), found.scores[0].tolist(), strict=True)
    return [index.hit(row, score) for row, score in pairs if row >= 0]
