"""The model of an index: loaded again to encode queries or to embed more papers; any other model is refused.

    query_encoder = open_query_encoder(index)
    query_encoder.encode("parsing with graphs")                   (dimension,), comparable with the index's vectors
    embedding = open_embedding(index, sentences=True)             to embed more papers: `index_vectors.py`

Does not search.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from citeweave.core.errors import UserError
from citeweave.corpus.text import TextRecipe, paper_text
from citeweave.encoders.aspects import AspectHeads, find_heads
from citeweave.encoders.embed import SHARD
from citeweave.encoders.encoder import Encoder, TorchEncoder, load_encoder
from citeweave.encoders.runtimes import AUTO, same_weights
from citeweave.search.index import Index
from citeweave.search.query import MAX_TEXT
from citeweave.vectors.vectors import Provenance


@dataclass(frozen=True, slots=True)
class QueryEncoder:
    """The model of an index as the encoder of query texts: its vectors are comparable with those of the index."""

    index: Index
    encoder: Encoder
    any_runtime: bool = False
    """Whether another runtime than the index's may compute the model: scores then differ by about 0.001."""

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

    def encode(self, text: str, aspect: str = "", *, abstract: str = "") -> NDArray[np.float32]:
        """Encode a query text by the index's model in a space, (dimension,); with an abstract, the text is a title."""
        self.index.check_aspect(aspect)
        length = len(text) + len(abstract)
        if length > MAX_TEXT:
            raise UserError(f"the text has {length:,} characters; give at most {MAX_TEXT:,}")
        vectors = self.encoder.encode([paper_text(text, abstract)])  # (1, dimension)
        if not vectors.any() or not any(character.isalnum() for character in text + abstract):
            raise UserError(f"the text {text[:40]!r} holds no word that {self.encoder.name} can read; give another")
        return self.project(vectors[0], aspect)

    def project(self, vector: NDArray[np.float32], aspect: str) -> NDArray[np.float32]:
        """Project a vector of the encoder into the space of an aspect of the index; without aspect, return it."""
        heads = self.index.heads
        return heads.project(vector[None], aspect)[0] if aspect and heads is not None else vector


def open_query_encoder(index: Index, model: str | Path | None = None, *, device: str = "auto") -> QueryEncoder:
    """Load the model of an index to encode queries: from where it was, or from where `model` says it is now."""
    encoder = load_query_encoder(index, _model_path(index, model), device=device, runtime=index.runtime)
    return QueryEncoder(index, encoder, any_runtime=index.any_runtime)


def load_query_encoder(index: Index, model: str, *, device: str, runtime: str) -> TorchEncoder:
    """Load an index's model in a runtime; where that fails and the index allows any, in this processor's fastest."""
    try:
        return load_encoder(model, device=device, runtime=runtime)
    except UserError:
        if not index.any_runtime or runtime == AUTO:
            raise
        return load_encoder(model, device=device, runtime=AUTO)


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
    where = _model_path(index, model)
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


def _model_path(index: Index, model: str | Path | None) -> str:
    """Return where an index's model is: at `model`, or where it was when the index was made, if it is still there."""
    where = str(model or index.model)
    if not model and Path(where).is_absolute() and not Path(where).is_dir():
        raise UserError(f"the model of {index.folder} is no longer at {where}; say with --model where it is")
    return where
